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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.environment import Template
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 20  # characters of a template
MAX_SIZE = 1 << 25  # characters of a string, items of a list
MAX_BITS = 1 << 12  # of an integer
MAX_STEPS = 20_000_000  # iterations and calls, and 256 built characters each
_CHARS_PER_STEP = 256

_WIDTH = re.compile(r"\d{6,}")  # in a format string


class RaisedByTemplate(TemplateError):
    """The template itself refused its input with `raise_exception`."""


class _Budget:
    def __init__(self) -> None:
        self.steps = MAX_STEPS

    def charge(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise SecurityError("it runs too long")


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
    _budget.get().charge(1 + size // _CHARS_PER_STEP)
    return value


def _check_arguments(name: str, target: Any, args: Iterable[Any]) -> None:
    """Refuses calls whose result could be far larger than what goes in."""
    arguments = list(args)
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_SIZE:
            raise SecurityError("it asks for something too large")
    texts = [a for a in [target, *arguments] if isinstance(a, str)]
    if name in ("replace", "join", "translate") and len(texts) > 1:
        lengths = sorted(map(len, texts))
        items = (
            len(arguments[0]) if name == "join" and arguments and isinstance(arguments[0], Sized) else lengths[-1] + 1
        )
        if name == "join" and isinstance(target, Sized) and not isinstance(target, str):
            items = len(target)  # the filter: the list comes first
        if items * lengths[-2 if name != "join" else -1] > MAX_SIZE:
            raise SecurityError("it builds a text that is too large")
    if name == "format" and isinstance(target, str) and _WIDTH.search(target):
        raise SecurityError("it pads a text too far")


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments and result are bounded. jinja2's marks on it (`pass_context`, ...) are kept."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        mark = 1 if hasattr(function, "jinja_pass_arg") else 0
        value = args[mark] if len(args) > mark else None
        _check_arguments(name, value, (*args[mark + 1 :], *kwargs.values()))
        return _checked(function(*args, **kwargs))

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
    texts = [str(value) for value in values]
    if sum(map(len, texts)) > MAX_SIZE:
        raise SecurityError("it builds a text that is too large")
    return str(_checked("".join(texts)))


class _Bounds(NodeTransformer):
    """Puts the filters above around what the sandbox cannot intercept: loops, `~`, and {% set %} blocks."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_bounded_loop", [], [], None, None)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "_bounded_concat", [], [], None, None)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, "_checked", [], [], None, None)
        return node


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


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores {name!r} in a namespace")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; see the module's docstring for what they may do."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, LoopControlExtension])
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            self.filters[name] = _guarded(name, function)
        for bound in (_bounded_loop, _bounded_concat, _checked):
            self.filters[bound.__name__] = bound
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
        )
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bounded: nodes.Template = _Bounds().visit(tree)
        return bounded.set_environment(self)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Templates collect pieces with `list.append`. All that they can reach is a copy, made for one rendering.
        return (attr == "append" and type(obj) is list) or super().is_safe_attribute(obj, attr, value)

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
        return _checked(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDTH.search(value.__self__):
            raise SecurityError("it pads a text too far")
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        target = getattr(__obj, "__self__", None)
        _check_arguments(getattr(__obj, "__name__", "") or "", target, (*args, *kwargs.values()))
        if isinstance(target, list) and len(target) >= MAX_SIZE:
            raise SecurityError("it builds a list that is too large")
        return _checked(super().call(__context, __obj, *args, **kwargs))


def compile_template(source: str) -> Template:
    """Raises jinja2's TemplateError, or what Python's compiler raises for code that is too deep."""
    if len(source) > MAX_SOURCE:
        raise SecurityError(f"it has {len(source)} characters, more than {MAX_SOURCE}")
    return ChatEnvironment().from_string(source)


def render(template: Template, variables: Mapping[str, Any]) -> str:
    """Runs the template within its bounds. Raises whatever it raises."""
    token = _budget.set(_Budget())
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
