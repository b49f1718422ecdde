"""JSON schemas drawn at random, of all the keywords that people write."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("name", "id", "age", "note", "x", "é", "a b", 'q"q', "back\\slash", "")
_PATTERNS = (
    *("^[a-z]{2,5}$", "[0-9]+", "^a|b$", r"^\d{3}-\w+$", "(ab)+c?", "^.{0,4}$", r"\S", "^(red|green)$", "x", r"^\s*$"),
    *("^[^a-c]{2}$", "[\\\\/]", '"', "^é+$"),
)
_FORMATS = ("date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname", "uri", "duration")
_VALUES = (1, 0, -3, 2.5, "a", "", "é\n", True, False, None, [1, "b"], {"k": 1}, [], {}, "\u2028", 'q"')


class RandomSchemas:
    """Draws schemas; the same seed draws the same."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def draw(self) -> dict[str, Any]:
        """A schema, with definitions that it refers to."""
        names = [f"d{i}" for i in range(self._chance.randint(0, 2))]
        schema = self._schema(0, names)
        if names:
            schema["$defs"] = {name: self._schema(1, names if self._chance.random() < 0.3 else []) for name in names}
        if self._chance.random() < 0.2:
            schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "D"}
        return schema

    def _schema(self, depth: int, names: list[str]) -> dict[str, Any]:
        chance = self._chance
        if names and depth and chance.random() < 0.2:
            return {"$ref": f"#/$defs/{chance.choice(names)}"}
        deep = depth < 3
        kinds = [self._string, self._string, self._number, self._integer, self._enum, self._simple]
        kinds += [self._object, self._object, self._array, self._mixed, self._all_of] if deep else []
        return chance.choice(kinds)(depth, names)

    def _string(self, depth: int, names: list[str]) -> dict[str, Any]:
        chance = self._chance
        found: dict[str, Any] = {"type": "string"}
        kind = chance.randint(0, 4)
        if kind == 1:
            found |= self._range("minLength", "maxLength", 0, 8)
        elif kind == 2:
            found["pattern"] = chance.choice(_PATTERNS)
        elif kind == 3:
            found["format"] = chance.choice(_FORMATS)
        elif kind == 4:
            found |= {"pattern": chance.choice(_PATTERNS), **self._range("minLength", "maxLength", 1, 9)}
        return found

    def _number(self, depth: int, names: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "number"}
        if self._chance.random() < 0.7:
            low, high = sorted(round(self._chance.uniform(-20, 20), self._chance.randint(0, 2)) for _ in range(2))
            found[self._chance.choice(["minimum", "exclusiveMinimum"])] = low
            found[self._chance.choice(["maximum", "exclusiveMaximum"])] = high + 1
        return found

    def _integer(self, depth: int, names: list[str]) -> dict[str, Any]:
        chance = self._chance
        found: dict[str, Any] = {"type": "integer", **self._range("minimum", "maximum", -50, 50)}
        if chance.random() < 0.2:
            found |= {"multipleOf": chance.choice([2, 3, 10])}
        if chance.random() < 0.2:
            found["exclusiveMaximum"] = 60
        return found

    def _enum(self, depth: int, names: list[str]) -> dict[str, Any]:
        if self._chance.random() < 0.4:
            return {"const": self._chance.choice(_VALUES)}
        found: dict[str, Any] = {"enum": self._chance.sample(_VALUES, self._chance.randint(1, 4))}
        if self._chance.random() < 0.2:
            found["type"] = ["string", "integer", "null"]
        return found

    def _simple(self, depth: int, names: list[str]) -> dict[str, Any]:
        kinds = ["boolean", "null", "integer", "string"]
        return self._chance.choice(
            [{"type": "boolean"}, {"type": "null"}, {"type": self._chance.sample(kinds, 2)}, {"type": "object"}]
        )

    def _object(self, depth: int, names: list[str]) -> dict[str, Any]:
        chance = self._chance
        keys = chance.sample(_WORDS, chance.randint(0, 4))
        found: dict[str, Any] = {"type": "object"}
        if keys or chance.random() < 0.5:
            found["properties"] = {key: self._schema(depth + 1, names) for key in keys}
        required = [key for key in keys if chance.random() < 0.6]
        if chance.random() < 0.1:
            required.append("more")
        if required:
            found["required"] = required
        kind = chance.random()
        if kind < 0.5:
            found["additionalProperties"] = False
        elif kind < 0.7:
            found["additionalProperties"] = self._schema(depth + 1, names)
        if chance.random() < 0.1:
            found["patternProperties"] = {"^p_": self._schema(depth + 1, names)}
        if chance.random() < 0.1:
            found |= self._range("minProperties", "maxProperties", 0, 4)
        return found

    def _array(self, depth: int, names: list[str]) -> dict[str, Any]:
        chance = self._chance
        found: dict[str, Any] = {"type": "array"}
        if chance.random() < 0.8:
            found["items"] = self._schema(depth + 1, names) if chance.random() < 0.9 else False
        if chance.random() < 0.3:
            found["prefixItems"] = [self._schema(depth + 1, names) for _ in range(chance.randint(1, 3))]
        return found | self._range("minItems", "maxItems", 0, 4)

    def _mixed(self, depth: int, names: list[str]) -> dict[str, Any]:
        key = self._chance.choice(["anyOf", "anyOf", "oneOf"])
        found: dict[str, Any] = {key: [self._schema(depth + 1, names) for _ in range(self._chance.randint(1, 3))]}
        if self._chance.random() < 0.1:
            found["type"] = self._chance.choice(["object", "string"])
        return found

    def _all_of(self, depth: int, names: list[str]) -> dict[str, Any]:
        draw = self._chance.choice([self._object, self._string, self._integer, self._array])
        return {"allOf": [draw(depth + 1, names) for _ in range(2)]}

    def _range(self, low: str, high: str, least: int, most: int) -> dict[str, Any]:
        first, second = sorted((self._chance.randint(least, most), self._chance.randint(least, most)))
        return {key: value for key, value in ((low, first), (high, second)) if self._chance.random() < 0.7}
