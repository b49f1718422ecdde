"""JSON schemas, rewritten where llguidance would take them for less than they say, or refuse what it could enforce.

docs/http-api.md lists what is not supported; scripts/schemas.py looks for more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localinfer.errors import UnsupportedError

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # objects of schemas
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_CONTENTS = ("contentEncoding", "contentMediaType", "contentSchema")
_DEPTH = 200

# llguidance's own let 29 February through in every year, and a 60th second in every minute.
_YEAR_OF_29 = "(([0-9]{2}(0[48]|[2468][048]|[13579][26]))|((0[048]|[2468][048]|[13579][26])00))"
_DATE = (
    "(([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))"
    f"|({_YEAR_OF_29}-02-29))"
)
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}


def enforceable(schema: Any) -> Any:
    """The schema as llguidance should get it. UnsupportedError names what cannot be enforced."""
    if schema is True:
        return {}
    if schema is False:
        raise UnsupportedError("nothing fits a schema that is false")
    references: set[str] = set()
    rewritten = _rewritten(schema, schema, references, 0)
    if not _Ends(schema, references).may_end(schema):
        raise UnsupportedError("an answer that fits would never end: the schema asks for itself")
    return rewritten


def _rewritten(schema: Any, root: Any, references: set[str], depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    if depth > _DEPTH:
        raise UnsupportedError("it nests too deep")
    found = {key: _inner(key, value, root, references, depth) for key, value in schema.items()}
    for key in _CONTENTS:
        if key in found:
            raise UnsupportedError(f"{key} cannot be enforced")
    if "$ref" in found and "$id" in found:
        raise UnsupportedError("$id beside $ref means different things in different drafts")
    if isinstance(found.get("$ref"), str):
        _refuse_loops(found["$ref"], root)
        references.add(found["$ref"])
    for key in _COUNTS:
        if isinstance(found.get(key), float) and found[key].is_integer():
            found[key] = int(found[key])
    if found.get("uniqueItems") is False:
        del found["uniqueItems"]
    if found.get("propertyNames") in (True, {}, {"type": "string"}):
        del found["propertyNames"]
    if "pattern" in found and isinstance(found["pattern"], str):
        found["pattern"] = _pattern(found["pattern"])
    if "format" in found:
        _replace_format(found)
    if "oneOf" in found:
        _replace_one_of(found, root)
    return found


def _inner(key: str, value: Any, root: Any, references: set[str], depth: int) -> Any:
    if key in _OF_SCHEMAS and isinstance(value, dict):
        return {name: _rewritten(each, root, references, depth + 1) for name, each in value.items()}
    if (key in _LISTS or key == "items") and isinstance(value, list):
        return [_rewritten(each, root, references, depth + 1) for each in value]
    return _rewritten(value, root, references, depth + 1) if key in _SINGLE else value


def _replace_format(schema: dict[str, Any]) -> None:
    kinds = schema.get("type", "string")
    if "string" not in ([kinds] if isinstance(kinds, str) else kinds):
        del schema["format"]  # formats say something of texts only
    elif (pattern := _FORMATS.get(str(schema["format"]))) is not None:
        del schema["format"]
        if "pattern" not in schema:
            schema["pattern"] = pattern
        else:
            schema["allOf"] = [*schema.get("allOf", ()), {"pattern": pattern}]


def _pattern(pattern: str) -> str:
    """In ECMAScript's expressions the byte order mark is white space."""
    parts = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|[^\\\[]+|.", pattern, re.DOTALL)
    return "".join(r"[^\s\uFEFF]" if part == r"\S" else part for part in parts)


def _replace_one_of(schema: dict[str, Any], root: Any) -> None:
    """Schemas of which no two can fit are as good with anyOf. Others are left to llguidance, which looks at types."""
    schema.pop("discriminator", None)  # it would be believed
    branches = [_resolved(each, root) for each in schema["oneOf"]]
    if "anyOf" in schema or not all(isinstance(each, dict) for each in branches):
        return
    names = set.intersection(*(_told_by(each) for each in branches)) if branches else set()
    if any(_apart([_values(each["properties"][name]) for each in branches]) for name in names):
        schema["anyOf"] = schema.pop("oneOf")


def _resolved(schema: Any, root: Any) -> Any:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return _target(reference, root) if isinstance(reference, str) else schema


def _told_by(schema: Mapping[str, Any]) -> set[str]:
    """Properties that an object must have, with a value of a list."""
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
        return set()
    return {name for name in required if isinstance(name, str) and _values(properties.get(name))}


def _values(schema: Any) -> Sequence[Any]:
    if not isinstance(schema, dict):
        return ()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return values if texts and values else ()


def _apart(values: Sequence[Sequence[Any]]) -> bool:
    return len(set().union(*values)) == sum(len(set(each)) for each in values)


class _Ends:
    """Whether a schema has room for a value that ends, in spite of what it refers to."""

    def __init__(self, root: Any, references: Iterable[str]) -> None:
        targets = {reference: _target(reference, root) for reference in references}
        self._endless = set(targets)
        found = True
        while found:  # each round finds what ends by what is known to end
            found = False
            for reference in sorted(self._endless):
                if self.may_end(targets[reference]):
                    self._endless.discard(reference)
                    found = True

    def may_end(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return schema is not False  # what is not found is llguidance's matter
        if schema.get("$ref") in self._endless:
            return False
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and not any(map(self.may_end, schema[key])):
                return False
        if isinstance(schema.get("allOf"), list) and not all(map(self.may_end, schema["allOf"])):
            return False
        return any(self._value_may_end(kind, schema) for kind in _kinds(schema))

    def _value_may_end(self, kind: str, schema: Mapping[str, Any]) -> bool:
        if kind == "object":
            properties, names = schema.get("properties"), schema.get("required")
            if not isinstance(properties, dict) or not isinstance(names, list):
                return True
            return all(self.may_end(each) for name, each in properties.items() if name in names)
        if kind == "array":
            least, first, items = schema.get("minItems"), schema.get("prefixItems"), schema.get("items")
            needed = [*(first if isinstance(first, list) else ()), items]
            return not least or not isinstance(least, int) or all(map(self.may_end, needed[:least]))
        return True


def _refuse_loops(reference: str, root: Any) -> None:
    """A reference must not lead back to itself before a list or an object is begun."""
    left, seen = [_target(reference, root)], set()
    while left:
        schema = left.pop()
        if not isinstance(schema, dict):
            continue
        for key in ("anyOf", "oneOf", "allOf"):
            left += schema[key] if isinstance(schema.get(key), list) else []
        following = schema.get("$ref")
        if following == reference:
            raise UnsupportedError(f"$ref leads to itself: {reference}")
        if isinstance(following, str) and following not in seen:
            seen.add(following)
            left.append(_target(following, root))


def _target(reference: str, root: Any) -> Any:
    """What a local reference points to; None if that is not found."""
    if reference == "#":
        return root
    found = root if reference.startswith("#/") else None
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _kinds(schema: Mapping[str, Any]) -> Sequence[str]:
    kinds = schema.get("type", "any" if "properties" not in schema else "object")
    if "const" in schema or "enum" in schema:
        return ("any",)
    return [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else ("any",)
