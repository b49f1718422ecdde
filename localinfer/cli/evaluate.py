"""`localinfer eval NAME`"""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localinfer.cli.options import Backend, Json, KvType, Model, Quant, Threads, refuse_other_encodings
from localinfer.cli.output import aside, emit_json, emit_table, note
from localinfer.errors import LocalInferError

if TYPE_CHECKING:
    from localinfer.evaluate.divergence import Comparison, Loss
    from localinfer.evaluate.windows import Windows
    from localinfer.formats.model_file import ModelFile

SHOW_EVERY = 0.2  # seconds between updates of the progress line


def command(
    model: Model,
    against: Annotated[
        str,
        typer.Option(
            "--against", help="The model that it was made of: how far apart are their predictions?", show_default=False
        ),
    ] = "",
    text: Annotated[
        str, typer.Option("--text", help="A text file (UTF-8) to predict.", show_default="a text that comes along")
    ] = "",
    window: Annotated[
        int, typer.Option("--window", "-w", help="Tokens of the pieces that the text is cut into.", min=16)
    ] = 512,
    windows: Annotated[int, typer.Option("--windows", help="How many of them to take; 0: all.", min=0)] = 0,
    recall: Annotated[
        int, typer.Option("--recall", help="Ask for facts in texts of up to so many tokens; 0: don't.", min=0)
    ] = 0,
    tool_calls: Annotated[bool, typer.Option("--tool-calls", help="Have it call functions, in JSON.")] = False,
    kv_type: KvType = "f16",
    threads: Threads = 0,
    backend: Backend = "auto",
    quant: Quant = "",
    json: Json = False,
) -> None:
    """Measure how good a model is.

    How well it predicts a text (perplexity), and with --against how far its predictions are from those of the model it
    was made of: the Kullback-Leibler divergence, and how often both find the same token likeliest. A --kv-type other
    than f16 is compared with f16 if there is nothing else to compare with. Figures have standard errors.
    """
    from localinfer.checkpoints import open_model
    from localinfer.hub.store import resolve

    refuse_other_encodings(**{"--text": text})
    path = resolve(model)
    found: dict[str, Any] = {"model": str(path)}
    with _ProgressLine() as progress:
        with open_model(path, quant) as file:
            pieces, told = _windows(file, text, window, windows)
            found |= {
                "text": told,
                "predictions": _predictions(file, pieces, against, kv_type, threads, backend, progress),
            }
        if recall or tool_calls:
            options = {"threads": threads, "backend": backend, "kv_type": kv_type, "quant": quant}
            found |= _probes(str(path), recall, tool_calls, options, progress)
    if json:
        emit_json(found)
    else:
        _print(found)


def _windows(file: "ModelFile", text: str, size: int, most: int) -> "tuple[Windows, dict[str, Any]]":
    """The text in windows, and what is told about it."""
    from hashlib import sha256

    from localinfer.evaluate.texts import default_text
    from localinfer.evaluate.windows import windows_of
    from localinfer.text.tokenizer import load_tokenizer

    contents = _read(Path(text)) if text else default_text()
    pieces = windows_of(load_tokenizer(file.metadata), contents, size, most or None)
    return pieces, {"name": text or "default", "sha256": sha256(contents.encode()).hexdigest()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{path} is not valid UTF-8 at byte {error.start}", "--text takes a text file") from error
    except OSError as error:
        raise LocalInferError(f"{path} cannot be read: {error.strerror}", "--text takes a text file") from error


def _predictions(
    file: "ModelFile",
    pieces: "Windows",
    against: str,
    kv_type: str,
    threads: int,
    backend: str,
    progress: "_ProgressLine",
) -> dict[str, Any]:
    from localinfer.engine.plan import kv_types
    from localinfer.evaluate.divergence import compare, loss
    from localinfer.hub.store import resolve

    types = kv_types(kv_type)
    settings: dict[str, Any] = {"kv_types": types, "threads": threads, "backend": backend, "report": progress}
    result: Comparison | Loss
    if against:
        source = resolve(against)
        result, told = compare(file, source, pieces, **settings), str(source)
    elif types != ("f16", "f16"):
        result, told = compare(file, file, pieces, **settings), "itself, with keys and values in f16"
    else:
        result, told = loss(file, pieces, **settings), ""
    return {"kv_type": ",".join(dict.fromkeys(types)), **({"against": told} if told else {}), **result.as_data()}


def _probes(
    model: str, recall: int, tool_calls: bool, options: dict[str, Any], progress: "_ProgressLine"
) -> dict[str, Any]:
    from localinfer.engine.llm import LLM
    from localinfer.evaluate import recall as recalling
    from localinfer.evaluate import tool_calls as calling

    found: dict[str, Any] = {}
    if recall:
        lengths = recalling.lengths_up_to(recall)
        with recalling.load_for_recall(model, recall, **options) as llm:
            found["recall"] = [one.as_data() for one in recalling.recall(llm, lengths, report=progress)]
    if tool_calls:
        with LLM(model, context=calling.CONTEXT, max_sequences=calling.AT_ONCE, **options) as llm:
            found["tool_calls"] = calling.tool_calls(llm, report=progress).as_data()
    return found


def _print(found: dict[str, Any]) -> None:
    predictions = found["predictions"]
    note(
        f"{found['model']}: {predictions['positions']} predictions in {predictions['windows']} windows of "
        f"{predictions['window']} tokens"
    )
    if "against" in predictions:
        note(f"against {predictions['against']}")
    rows = [_row(title, predictions[name]) for name, title in _NAMES.items() if name in predictions]
    rows += [_row(f"recall in {one['length']} tokens", one["accuracy"]) for one in found.get("recall", ())]
    calls = found.get("tool_calls", {})
    rows += [_row(title, calls[name]) for name, title in _CALLS.items() if name in calls]
    emit_table(("", "value", "standard error"), rows)
    for one in found.get("recall", ()):
        if lost := [depth for depth, right in one["right_at_depth"].items() if not right]:
            note(f"in {one['length']} tokens, facts at these depths were not recalled: {', '.join(lost)}")
    aside("errors are of means over independent windows of the text, or over independent questions (docs/evaluate.md)")


# figure -> how it is called in the table
_NAMES = {
    "perplexity": "perplexity",
    "source_perplexity": "perplexity of the source",
    "loss": "loss, nats",
    "loss_difference": "loss minus the source's, nats",
    "kl_mean": "KL divergence, mean, nats",
    "kl_median": "KL divergence, median",
    "kl_p99": "KL divergence, 99th percentile",
    "kl_max": "KL divergence, largest",
    "top1": "same likeliest token",
}


_CALLS = {
    "json": "tool calls that are JSON",
    "function": "tool calls of the right function",
    "arguments": "tool calls with the right arguments",
}


def _row(title: str, value: Any) -> tuple[str, str, str]:
    if not isinstance(value, dict):
        return title, f"{value:.5g}", ""
    error = "" if value["error"] is None else f"{value['error']:.2g}"
    return title, f"{value['value']:.5g}", error


class _ProgressLine:
    """One line on standard error that tells what is done, and is gone afterwards; nothing where no terminal is."""

    def __init__(self) -> None:
        self._shown = False
        self._last = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self._last < SHOW_EVERY and done < total):
            return
        self._last, self._shown = now, True
        print(f"\r\x1b[K{what} {100 * done // max(total, 1):3d} %", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "_ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
