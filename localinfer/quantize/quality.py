"""The quality report of a quantized file: how far it is from its source on the text that ships for this."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.formats.model_file import ModelFile
from localinfer.quantize.report import Report

_WINDOW = 512
_LEAST_WINDOWS, _WORK = 2, 4e13  # multiplications that measuring may take, for each of the two models
_DIGITS = 6


def measure_quality(made: Path, source: ModelFile, weights: int, threads: int, report: Report) -> dict[str, Any]:
    """A report for provenance; {"skipped": why} where the models cannot be compared here.

    The larger the model, the fewer windows of the text are read: the report says how many.
    """
    from localinfer.evaluate.divergence import compare
    from localinfer.evaluate.texts import default_text
    from localinfer.evaluate.windows import windows_of
    from localinfer.text.tokenizer import load_tokenizer

    text = default_text("evaluation")
    most = max(_LEAST_WINDOWS, int(_WORK / weights / _WINDOW))
    try:
        windows = windows_of(load_tokenizer(source.metadata), text, _WINDOW, most)
        found = compare(made, source, windows, threads=threads, report=report.progress)
    except LocalInferError as error:
        return {"skipped": error.message[:500]}
    data = {"text": "default", "text_sha256": hashlib.sha256(text.encode()).hexdigest()} | found.as_data()
    rounded: dict[str, Any] = _rounded(data)
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
