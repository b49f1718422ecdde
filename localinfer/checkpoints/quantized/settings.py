"""What a checkpoint says about how it is quantized: its quantization_config, or the older file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from localinfer.errors import FormatError
from localinfer.formats.json_file import read_json_object

# Files from before config.json had a quantization_config, and the method they belong to.
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}

_T = TypeVar("_T")


class Settings:
    """A JSON object with typed access. `path` is the file it is from, `where` the place in it."""

    def __init__(self, values: Mapping[str, Any], path: Path, where: str = "quantization_config") -> None:
        self.values = values
        self.path = path
        self.where = where

    def text(self, key: str, default: str = "") -> str:
        return self._typed(key, default, str, "a text")

    def flag(self, key: str, default: bool = False) -> bool:
        return self._typed(key, default, bool, "true or false")

    def number(self, key: str, default: int) -> int:
        value = self._typed(key, default, int, "a whole number")
        if isinstance(value, bool):
            raise self.error(f"{key} should be a whole number, but is {value!r}")
        return value

    def texts(self, key: str) -> list[str]:
        value: list[Any] = self._typed(key, [], list, "a list of texts")
        if not all(isinstance(item, str) for item in value):
            raise self.error(f"{key} should be a list of texts")
        return value

    def object(self, key: str) -> Settings | None:
        """The object of that key; None if there is none, or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} should be an object, but is {value!r:.40}")
        return Settings(value, self.path, f"{self.where}.{key}")

    def error(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: in {self.where}, {what}")

    def _typed(self, key: str, default: _T, kind: type[_T], words: str) -> _T:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.error(f"{key} should be {words}, but is {value!r:.40}")
        return value


def read_settings(config: Mapping[str, Any], folder: Path) -> Settings | None:
    """The settings of the checkpoint in `folder` whose config.json is `config`; None if it is not quantized."""
    path = folder / "config.json"
    for key in ("quantization_config", "compression_config"):
        values = config.get(key)
        text = config.get("text_config")
        if values is None and isinstance(text, dict):  # models that also see images
            values = text.get(key)
        if values is None:
            continue
        if not isinstance(values, dict):
            raise FormatError(f"{path}: {key} should be an object, but is {values!r:.40}")
        return Settings(values, path, key)
    for name, method in _FILES.items():
        if (folder / name).is_file():
            values = read_json_object(folder / name)
            inner = values.get("quantization")
            if method == "modelopt" and isinstance(inner, dict):
                values = inner
            return Settings({"quant_method": method, **values}, folder / name, "the file")
    return None
