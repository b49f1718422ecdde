"""Arguments of calls that are no JSON object, bound by their schema: pairs between marks, Gemma's notation, Python.

What cannot be written in such a form is refused, never left out. As in JSON, the arguments come in the order in which
the schema has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localinfer.errors import UnsupportedError
from localinfer.text.call_values import typed
from localinfer.text.grammar import WHITESPACE
from localinfer.text.json_schemas import enforceable
from localinfer.text.literals import Literals
from localinfer.text.tool_format import ToolFormat

_SAID = frozenset(  # what binds nothing
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id")
)
_DEFINITIONS = frozenset(("$defs", "definitions"))
_OF_TEXTS = frozenset(("type", "enum", "const", "minLength", "maxLength", "pattern", "format"))
_OF_NUMBERS = frozenset(("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_OF_LISTS = frozenset(("type", "items", "minItems", "maxItems"))
_OF_OBJECTS = frozenset(("type", "properties", "required", "additionalProperties"))
_FORMATS = {
    "date": "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])",
    "time": "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": "[a-zA-Z0-9_+-]{1,32}(\\.[a-zA-Z0-9_+-]{1,16})?@[a-zA-Z0-9]{1,32}(\\.[a-zA-Z0-9]{1,32}){1,3}",
    "uri": "[a-z]{1,12}:\\/\\/[a-zA-Z0-9.-]{1,64}(:[0-9]{1,5})?(\\/[a-zA-Z0-9._~%&=?#+-]{0,64}){0,16}",
    "ipv4": "((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
}
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"
_ANY_TEXT = "(?s:.*)"


class ArgumentGrammar:
    """Writes the rules of arguments, in the words of Lark; `lines` has those that were needed."""

    def __init__(self, form: ToolFormat, literal: Literals, marks: Callable[[str], str]) -> None:
        """`marks` makes a rule of a mark, in which ids may be wanted."""
        self._form = form
        self._literal = literal
        self._marks = marks
        self.lines: list[str] = []

    def call(self, name: str, schema: Any) -> str:
        """A call of a function, between its marks. UnsupportedError names what of the schema is not possible."""
        form = self._form
        schema = schema if isinstance(schema, dict) and schema else {"additionalProperties": False}
        if form.style == "pairs":
            return self._pairs(name, schema)
        words = self._words()
        values = _Values(words, self._literal, self.lines, schema)
        if form.style == "python" and not re.fullmatch("[A-Za-z_][A-Za-z0-9_.-]*", name):
            raise UnsupportedError(f"the name {name!r} cannot be written as this model writes calls")
        opened, closed = ("(", ")") if form.style == "python" else ("{", "}")
        members = values.members(schema, words.argument, closed)
        return f"{self._marks(form.call_open)} {_quoted(name + opened)} {members} {self._marks(form.call_close)}"

    def _words(self) -> _Words:
        if self._form.style == "python":
            return _Words("True", "False", "None", ", ", _python_text, lambda key: f"{json.dumps(key)}: ", _python_key)
        quote = self._form.pair_middle
        marked = self._literal(quote)
        special = marked.startswith("<[")
        inside = f"/{_ANY_TEXT}/" if special else f"(/{_ANY_TEXT}/ & ~/{_ANY_TEXT}{_escaped(quote)}{_ANY_TEXT}/)"

        def text(schema: Mapping[str, Any], new: Callable[[str], str]) -> str:
            if "enum" in schema or "const" in schema:
                found = [each for each in _listed(schema) if isinstance(each, str) and quote not in each]
                return _either(f"{marked} {_quoted(each)} {marked}" for each in found)
            content = new(f"{inside}{_content(schema, trimmed=False)}")
            return f"{marked} {content} {marked}"

        return _Words("true", "false", "null", ",", text, _notation_key, _notation_key)

    def _pairs(self, name: str, schema: Mapping[str, Any]) -> str:
        form = self._form
        properties, required, more = _object(schema)
        head = self._marks((form.call_open + name + form.name_close).replace("{name}", name))
        tail = self._marks(form.call_close)
        empty = self._marks(form.call_open + name + form.empty.replace("{name}", name)) if form.empty else head + tail
        pairs = [self._pair(key, inner, schema) + ("" if key in required else "?") for key, inner in properties.items()]
        if not pairs and more is not False:
            pairs = [self._any_pair(more, schema)]
        whole = f"{head} {' '.join(pairs)} {tail}"
        return whole if required else f"({whole} | {empty})" if pairs else empty

    def _pair(self, key: str, schema: Any, root: Mapping[str, Any]) -> str:
        form = self._form
        is_text = _is_text(schema)
        middle = form.pair_middle if is_text or not form.pair_middle_json else form.pair_middle_json
        opened = self._marks((form.pair_open + key + middle).replace("{key}", key))
        close = form.pair_close.replace("{key}", key)
        if not is_text:
            return f"({opened} {self._json(schema, root)} {self._marks(close)})"
        return f"({opened} {self._text(schema, close)})"

    def _any_pair(self, schema: Any, root: Mapping[str, Any]) -> str:
        form = self._form
        if "{key}" in form.pair_middle + form.pair_close:
            raise UnsupportedError("arguments of any name cannot be written as this model writes calls")
        middle = form.pair_middle_json or form.pair_middle
        value = self._json({} if schema is True else schema, root)
        return f"({self._marks(form.pair_open)} /[A-Za-z0-9_.-]{{1,64}}/ {self._marks(middle)} {value} " + (
            f"{self._marks(form.pair_close)})*"
        )

    def _json(self, schema: Any, root: Mapping[str, Any]) -> str:
        """A value as JSON; or a text that can be nothing else."""
        name = f"json_{len(self.lines)}"
        if isinstance(schema, dict) and set(schema) - _SAID == {"enum"} and all(map(_plain, schema["enum"])):
            return _either(map(_quoted, schema["enum"]))
        self.lines.append(f"{name}: %json {json_rule(schema, root)}")
        return name

    def _text(self, schema: Mapping[str, Any], close: str) -> str:
        """A text, and the mark behind it."""
        _check(schema, _OF_TEXTS)
        if "enum" in schema or "const" in schema:
            texts = [each for each in _listed(schema) if isinstance(each, str) and close.strip() not in each]
            return f"({_either(map(_quoted, texts))} {self._marks(close)})"
        first, *rest = self._literal.parts(close)
        limits = _content(schema, trimmed=True)
        name = f"TEXT_{len(self.lines)}"
        if first.startswith("<["):
            self.lines.append(f"{name}: /{_ANY_TEXT}/{limits}")
            return f"{name} {first} {' '.join(rest)}"
        stop = _escaped(json.loads(first).strip())
        without = f" & ~/{_ANY_TEXT}{stop}{_ANY_TEXT}/" if stop else ""
        self.lines.append(f"{name}: (/{_ANY_TEXT}/{without}{limits}) {first}")
        return f"{name} {' '.join(rest)}"


def json_rule(schema: Any, root: Mapping[str, Any] | None = None) -> str:
    """A schema as Lark has it, with llguidance's own key for what it should take for white space."""
    given = dict(schema) if isinstance(schema, dict) else {} if schema is True else {"not": {}}
    for name in _DEFINITIONS & set(root or {}):
        given.setdefault(name, (root or {})[name])
    return json.dumps({**enforceable(given), "x-guidance": {"whitespace_pattern": WHITESPACE}})


@dataclass(frozen=True)
class _Words:
    """How values are written: `text` makes a rule of a schema of texts, `key` and `argument` what is before a value."""

    true: str
    false: str
    null: str
    comma: str
    text: Callable[[Mapping[str, Any], Callable[[str], str]], str]
    key: Callable[[str], str]
    argument: Callable[[str], str]


class _Values:
    """Rules of values by their schema, in a notation that is not JSON."""

    def __init__(self, words: _Words, literal: Literals, lines: list[str], root: Mapping[str, Any]) -> None:
        self._words = words
        self._literal = literal
        self._lines = lines
        self._root = root
        self._named: dict[str, str] = {}  # what $ref points to -> its rule

    def value(self, schema: Any) -> str:
        """The name of a rule."""
        if schema is False:
            raise UnsupportedError("a schema that nothing fits cannot be enforced")
        schema = {} if schema is True else schema
        if "$ref" in schema:
            return self._of_reference(schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                _check(schema, frozenset((key, *_DEFINITIONS)))
                if key == "oneOf" and len({_kind(each) for each in schema[key]}) < len(schema[key]):
                    raise UnsupportedError("oneOf of several schemas of one type cannot be enforced in this form")
                return self._rule(_either(map(self.value, schema[key])))
        kinds = schema.get("type", _guessed(schema))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "enum" in schema or "const" in schema:
            if set(kinds) == {"string"}:
                return self._rule(self._words.text({**schema, "type": "string"}, self._terminal))
            return self._rule(_either(map(self._constant, _listed(schema))))
        return self._rule(_either(self._of_kind(kind, schema) for kind in kinds))

    def members(self, schema: Mapping[str, Any], before: Callable[[str], str], close: str) -> str:
        """A rule of the members of an object, and what closes it."""
        properties, required, more = _object(schema)
        if not properties and more is not False and before is not self._words.argument:
            raise UnsupportedError("an object of any keys cannot be enforced in this form")
        comma = _quoted(self._words.comma)
        first = later = _quoted(close)  # what may come if nothing has come yet, and if something has
        for key, inner in reversed(properties.items()):
            member = f"{_quoted(before(key))} {self.value(inner)}"
            begun = self._rule(f"{member} {later}" + ("" if key in required else f" | {first}"))
            going_on = self._rule(f"{comma} {member} {later}" + ("" if key in required else f" | {later}"))
            first, later = begun, going_on
        return first

    def _of_reference(self, schema: Mapping[str, Any]) -> str:
        target = schema["$ref"]
        _check(schema, frozenset(("$ref", *_DEFINITIONS)))
        if target not in self._named:
            found: Any = self._root
            for part in target.removeprefix("#/").split("/") if target.startswith("#/") else (None,):
                found = found.get(part) if isinstance(found, dict) else None
            if not isinstance(found, dict | bool):
                raise UnsupportedError(f"what $ref points to is not found: {target}")
            self._named[target] = name = self._new("named")
            self._lines.append(f"{name}: {self.value(found)}")
        return self._named[target]

    def _of_kind(self, kind: Any, schema: Mapping[str, Any]) -> str:
        words = self._words
        several = not isinstance(schema.get("type"), str)  # what belongs to another type says nothing of this one
        if kind == "string":
            _check(schema, _OF_TEXTS, several)
            return words.text(schema, self._terminal)
        if kind in ("integer", "number"):
            _check(schema, _OF_NUMBERS, several)
            numbers = {key: value for key, value in schema.items() if key in _OF_NUMBERS}
            return self._rule(f"%json {json_rule({**numbers, 'type': kind})}")
        if kind == "boolean":
            _check(schema, frozenset(("type",)), several)
            return _either(map(_quoted, (words.true, words.false)))
        if kind == "null":
            return _quoted(words.null)
        if kind == "array":
            _check(schema, _OF_LISTS, several)
            return self._items(schema)
        if kind == "object":
            _check(schema, _OF_OBJECTS, several)
            return f'"{{" {self.members(schema, words.key, "}")}'
        raise UnsupportedError(f"a value of type {kind!r} cannot be enforced")

    def _items(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[]"'
        item = self.value(schema.get("items", {}))
        more = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        several = f'"[" {item} ({_quoted(self._words.comma)} {item}){more} "]"'
        return several if least else f'({several} | "[]")'

    def _constant(self, value: Any) -> str:
        words = self._words
        if isinstance(value, bool) or value is None:
            return _quoted({True: words.true, False: words.false, None: words.null}[value])
        if isinstance(value, str):
            return words.text({"type": "string", "const": value}, self._terminal)
        if isinstance(value, int | float):
            return _quoted(json.dumps(value))
        raise UnsupportedError("a list or an object in enum or const cannot be enforced in this form")

    def _rule(self, body: str) -> str:
        name = self._new("value")
        self._lines.append(f"{name}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = self._new("TEXT")
        self._lines.append(f"{name}: {body}")
        return name

    def _new(self, kind: str) -> str:
        self._lines.append("")  # so that no two have the same number
        return f"{kind}_{len(self._lines)}"


def _python_text(schema: Mapping[str, Any], new: Callable[[str], str]) -> str:
    if "enum" in schema or "const" in schema:
        texts = [each for each in _listed(schema) if isinstance(each, str)]
        return _either(_quoted(json.dumps(each, ensure_ascii=False)) for each in texts)
    if "pattern" in schema or "format" in schema:
        found = new(f'/[^"\\\\\\x00-\\x1f]*/{_content(schema, trimmed=False)}')
        return f'"\\"" {found} "\\""'
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return new(f'/"([^"\\\\\\x00-\\x1f]|\\\\["\\\\nrt]){{{least},{most}}}"/')


def _python_key(key: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key):
        raise UnsupportedError(f"an argument of the name {key!r} cannot be written as Python has it")
    return f"{key}="


def _notation_key(key: str) -> str:
    if not re.fullmatch("[A-Za-z0-9_.$-]+", key):
        raise UnsupportedError(f"an argument of the name {key!r} cannot be written in this model's notation")
    return f"{key}:"


def _object(schema: Mapping[str, Any]) -> tuple[dict[str, Any], set[str], Any]:
    """Properties, which of them are required, and what others may be (False: there are none)."""
    _check(schema, _OF_OBJECTS | _DEFINITIONS)
    properties = dict(schema.get("properties", {}))
    more = schema.get("additionalProperties", True)
    for key in schema.get("required", ()):
        if key not in properties:
            if more is False:
                raise UnsupportedError(f"the property {key!r} is required and not allowed")
            properties[key] = more
    return properties, set(schema.get("required", ())), more


def _check(schema: Mapping[str, Any], known: frozenset[str], several: bool = False) -> None:
    """UnsupportedError for keywords that this form cannot enforce."""
    everything = _OF_TEXTS | _OF_NUMBERS | _OF_LISTS | _OF_OBJECTS if several else frozenset()
    for key in schema:
        if key not in known | everything | _SAID and not key.startswith("x-"):
            raise UnsupportedError(f"{key} cannot be enforced in the form in which this model writes arguments")


def _is_text(schema: Any) -> bool:
    """Whether an argument is read as the text that it is: see `typed`."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _plain(value: Any) -> bool:
    """Whether a text in an enum without a type is read as itself."""
    return isinstance(value, str) and bool(value) and value == value.strip() and typed(value, None) == value


def _content(schema: Mapping[str, Any], *, trimmed: bool) -> str:
    """Further regular expressions that a text has to fit. `trimmed`: white space around it gets lost."""
    found = ""
    if "minLength" in schema or "maxLength" in schema:
        found += f" & /(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/"
    if "pattern" in schema:
        found += f" & /{_searched(schema['pattern'])}/"
    if "format" in schema:
        if schema["format"] not in _FORMATS:
            raise UnsupportedError(f"the format {schema['format']!r} cannot be enforced in this form")
        found += f" & /{_FORMATS[schema['format']]}/"
    return f"{found} & ~/\\s{_ANY_TEXT}/ & ~/{_ANY_TEXT}\\s/" if found and trimmed else found


def _searched(pattern: str) -> str:
    """A pattern that may be found anywhere in a text, as one of the whole text."""
    begins, ends = pattern.startswith("^"), bool(re.search(r"(?<!\\)(\\\\)*\$$", pattern))
    inner = pattern[1 if begins else 0 : -1 if ends else None]
    if re.search(r"(?<![\[\\])\^|(?<!\\)\$", inner) or ((begins or ends) and "|" in re.sub(r"\(.*\)", "", inner)):
        raise UnsupportedError(f"the pattern {pattern!r} cannot be enforced in this form")
    inner = re.sub(r"(?<!\\)/", r"\\/", inner).replace("\n", "\\n")
    return f"{'' if begins else _ANY_TEXT}({inner}){'' if ends else _ANY_TEXT}"


def _listed(schema: Mapping[str, Any]) -> Sequence[Any]:
    """The values that are possible."""
    if "const" not in schema:
        return list(schema["enum"])
    return [value for value in [schema["const"]] if value in schema.get("enum", [schema["const"]])]


def _guessed(schema: Mapping[str, Any]) -> list[str]:
    """The types of a schema that names none."""
    if "properties" in schema:
        return ["object"]
    if "items" in schema:
        return ["array"]
    return ["string", "number", "boolean", "null"]


def _kind(schema: Any) -> str:
    return str(schema.get("type", schema)) if isinstance(schema, dict) else str(schema)


def _either(rules: Iterable[str]) -> str:
    found = [rule for rule in rules if rule]
    if not found:
        raise UnsupportedError("none of the values of an enum can be written in this form")
    return f"({' | '.join(found)})"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/").replace("\n", "\\n")
