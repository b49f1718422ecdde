"""The jinja2 environment in which chat templates run.

A template comes with a model file, so it is code of a stranger. jinja2's sandbox keeps it from Python's internals;
this one also bounds what it may cost: every loop and call is charged to a budget, and nothing that it builds may
grow beyond a size. Importing this module imports jinja2.

What templates expect beyond jinja2 is what transformers' `apply_chat_template` offers: loop controls,
{% generation %}, raise_exception, strftime_now, a `tojson` that does not escape HTML, and trimmed blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from contextvars import ContextVar
from datetime import datetime
from time import thread_time
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 20  # characters of a template
MAX_SIZE = 1 << 22  # characters of a string, items of a list
MAX_BITS = 1 << 12  # of an integer
MAX_STEPS = 2_000_000  # iterations and calls, and 256 built characters each
MAX_SECONDS = 5.0  # of processor time
MAX_WEIGHT = 1 << 18  # items of a list with all that is in it, to be compared or written out
MAX_INDENT = 64
_CHARS_PER_STEP = 256
_STEPS_PER_LOOK = 1 << 12  # at the clock

_CONTAINERS = (dict, list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_INDENTING = ("expandtabs", "indent", "tojson")
_WIDTH = re.compile(r"\d{6,}")  # in a format string


class RaisedByTemplate(TemplateError):
    """The template itself refused its input with `raise_exception`."""


class _Budget:
    """What one rendering may still spend. `given` are the template's inputs."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._steps = MAX_STEPS
        self._next_look = MAX_STEPS
        self._end = thread_time() + MAX_SECONDS
        self._known: dict[int, int] = {}  # weights of the inputs' containers: they are trees, and stay as they are
        self._weigh_input(given)

    def charge(self, steps: int) -> None:
        self._steps -= steps
        if self._steps <= self._next_look:
            self._next_look = self._steps - _STEPS_PER_LOOK
            if self._steps < 0 or thread_time() > self._end:
                raise SecurityError("it runs too long")

    def weigh(self, value: Any) -> None:
        """Refuses a container that holds too much to be compared or written out.

        A list that holds another twice, which holds another twice, and so on, is small in memory and endless on paper.
        """
        if not isinstance(value, _CONTAINERS):
            return
        weight, waiting = 0, [value]
        while waiting:
            item = waiting.pop()
            if (known := self._known.get(id(item))) is not None:
                weight += known
            elif isinstance(item, str):
                weight += 1 + len(item) // _CHARS_PER_STEP
            elif isinstance(item, _CONTAINERS):
                weight += 1 + len(item)
                if weight <= MAX_WEIGHT:
                    waiting.extend(item.values() if isinstance(item, dict) else item)
            if weight > MAX_WEIGHT:
                raise SecurityError("it nests a list or object too often")
        self.charge(weight // 8)

    def _weigh_input(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value) // _CHARS_PER_STEP
        if not isinstance(value, dict | list):
            return 1
        items = value.values() if isinstance(value, dict) else value
        weight = 1 + sum(map(self._weigh_input, items))
        if isinstance(value, dict):  # lists of the inputs can be appended to
            self._known[id(value)] = weight
        return weight


_budget: ContextVar[_Budget] = ContextVar("template_budget")


def _checked(value: Any) -> Any:
    """The value, charged for its size."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise SecurityError("it computes a number that is too large")
        return value
    size = len(value) if isinstance(value, str | list | tuple | dict) else 0
    if size > MAX_SIZE:
        raise SecurityError("it builds a text or list that is too large")
    _budget.get().charge(1 + (size // _CHARS_PER_STEP if isinstance(value, str) else size // 8))
    return value


def _weighed(value: Any) -> Any:
    """The value, if it can be compared and written out."""
    _budget.get().weigh(value)
    return value


def _safe_arguments(name: str, target: Any, args: Iterable[Any]) -> None:
    """Refuses calls whose result or work could be far larger than what goes in."""
    arguments = list(args)
    if isinstance(target, str):
        _budget.get().charge(len(target) // _CHARS_PER_STEP)
    _weighed(target)  # a number there is the value itself: it makes nothing large
    for argument in arguments:
        _weighed(argument)
        if isinstance(argument, int) and abs(argument) > (MAX_INDENT if name in _INDENTING else MAX_SIZE):
            raise SecurityError("it asks for something too large")
    if name in ("replace", "translate"):
        lengths = sorted(len(a) for a in (target, *arguments) if isinstance(a, str))
        if len(lengths) > 1 and (lengths[-1] + 1) * lengths[-2] > MAX_SIZE:
            raise SecurityError("it builds a text that is too large")
    if name == "format" and isinstance(target, str) and _WIDTH.search(target):
        raise SecurityError("it pads a text too far")


def _joinable(values: Any, separator: Any) -> Any:
    """What is to be joined, if the result is not too large."""
    if not isinstance(values, Iterable):
        return values
    items = list(_bounded_loop(values))
    between = len(separator) if isinstance(separator, str) else 0
    if sum(len(item) if isinstance(item, str) else 1 for item in items) + between * len(items) > MAX_SIZE:
        raise SecurityError("it builds a text that is too large")
    return items


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test whose arguments and result are bounded. jinja2's marks on it (`pass_context`, ...) are kept."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    def bounded(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        _safe_arguments(name, given[first], (*given[first + 1 :], *kwargs.values()))
        if name == "join":
            given[first] = _joinable(given[first], given[first + 1] if len(given) > first + 1 else kwargs.get("d"))
        return _checked(function(*given, **kwargs))

    bounded.__dict__.update(getattr(function, "__dict__", {}))
    return bounded


def _bounded_loop(values: Any) -> Any:
    """What a loop runs over, charged an item a step."""
    if isinstance(values, Sized):
        _budget.get().charge(1 + len(values))
        return values
    return _counted(values) if isinstance(values, Iterator) else values


def _counted(values: Iterator[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for value in values:
        budget.charge(1)
        yield value


def _bounded_concat(values: list[Any]) -> str:
    texts = [str(_weighed(value)) for value in values]
    if sum(map(len, texts)) > MAX_SIZE:
        raise SecurityError("it builds a text that is too large")
    return str(_checked("".join(texts)))


class _Bounds(NodeTransformer):
    """Puts the checks above, as filters, around what the sandbox cannot intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _bounded_loop)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), _bounded_concat)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filtered(node.filter, _checked)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _weighed)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _weighed)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, _weighed)
        return node


def _filtered(node: Any, check: Callable[..., Any]) -> nodes.Filter:
    return nodes.Filter(node, check.__name__, [], [], None, None)


class _GenerationExtension(Extension):
    """{% generation %} … {% endgeneration %} marks what the model wrote, for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """`dict` for templates: only what makes one, nothing of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace(...)` whose names cannot reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it reaches for {name!r}")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    if isinstance(value, Iterator):  # what `map` and its like give
        value = _weighed(list(_counted(value)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; see the module's docstring for what they may do."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_weighed,
            extensions=[_GenerationExtension, LoopControlExtension],
        )
        self.filters["tojson"] = _to_json
        for table in (self.filters, self.tests):
            for name, function in list(table.items()):
                table[name] = _guarded(name, function)
        for bound in (_bounded_loop, _bounded_concat, _checked, _weighed):
            self.filters[bound.__name__] = bound
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
        )
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bounded: nodes.Template = _Bounds().visit(tree)
        bounded.set_environment(self)
        return bounded

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Templates collect pieces with `list.append`. All that they can reach is a copy, made for one rendering.
        return (attr == "append" and type(obj) is list) or super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        _refuse_private(attribute)
        return super().unsafe_undefined(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if isinstance(left, str | list | tuple) and isinstance(right, Sized) and len(left) + len(right) > MAX_SIZE:
                raise SecurityError("it builds a text or list that is too large")
        elif operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(count, int) and len(many) * count > MAX_SIZE:
                    raise SecurityError("it builds a text or list that is too large")
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > MAX_BITS:
                raise SecurityError("it computes a number that is too large")
        elif isinstance(left, str) and (
            _WIDTH.search(left) or ("*" in left and isinstance(right, tuple))  # %*d takes its width from the values
        ):
            raise SecurityError("it pads a text too far")
        if operator == "%":
            _weighed(right)
        return _checked(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDTH.search(value.__self__):
            raise SecurityError("it pads a text too far")
        return wrapped

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, _weighed(argument))  # a tuple as a key would be hashed

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        name, target = getattr(__obj, "__name__", ""), getattr(__obj, "__self__", None)
        if name == "append" and isinstance(target, list):
            if len(target) >= MAX_SIZE:
                raise SecurityError("it builds a list that is too large")
        else:
            _safe_arguments(name, target, (*args, *kwargs.values()))
        if name == "join" and args:
            args = (_joinable(args[0], target), *args[1:])
        _budget.get().charge(8)
        return _checked(super().call(__context, __obj, *args, **kwargs))


def compile_template(source: str) -> Template:
    """Raises jinja2's TemplateError, or what Python's compiler raises for code that is too deep."""
    if len(source) > MAX_SOURCE:
        raise SecurityError(f"it has {len(source)} characters, more than {MAX_SOURCE}")
    return ChatEnvironment().from_string(source)


def render(template: Template, variables: Mapping[str, Any]) -> str:
    """Runs the template within its bounds. Raises whatever it raises."""
    token = _budget.set(_Budget(variables))
    try:
        pieces: list[str] = []
        size = 0
        for piece in template.generate(variables):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_SIZE:
                raise SecurityError("it builds a text that is too large")
        return "".join(pieces)
    finally:
        _budget.reset(token)
