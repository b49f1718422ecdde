"""`localinfer quantize SOURCE --to TYPE`"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localinfer.cli.options import Json
from localinfer.cli.output import emit, emit_json, emit_table, note, size
from localinfer.cli.progress import LINE_SECONDS, TerminalReport

if TYPE_CHECKING:
    from localinfer.quantize.pipeline import Result

SHOW_EVERY = 0.2  # seconds between updates of a line on a terminal


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder with safetensors and config.json, a .gguf file, or an installed model.", show_default=False
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", help="The type: q4_k_m, q8_0, int8, ..., or 4.2bpw.", show_default=False)
    ] = "",
    fit: Annotated[
        str, typer.Option("--fit", help="The size of the file, instead of a type: 6GB.", show_default=False)
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="What to write.", show_default="SOURCE-TYPE.gguf here")
    ] = None,
    tensor: Annotated[
        list[str] | None,
        typer.Option("--tensor", metavar="NAME=TYPE", help="Another type for some tensors: '*.attn_v.weight=q6_k'."),
    ] = None,
    calibrate: Annotated[
        str,
        typer.Option(
            "--calibrate",
            help="Look at how the model uses its weights on a text: default, a text file, a file of statistics, or an "
            "imatrix of llama.cpp.",
            show_default=False,
        ),
    ] = "",
    feedback: Annotated[
        bool, typer.Option("--feedback/--no-feedback", help="With --calibrate: make up for errors in later columns.")
    ] = True,
    keep_statistics: Annotated[
        Path | None,
        typer.Option("--keep-statistics", help="Write what --calibrate found to this file.", show_default=False),
    ] = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Measure the quality afterwards.")] = True,
    statement: Annotated[bool, typer.Option("--statement", help="Write an in-toto statement, to be signed.")] = False,
    threads: Annotated[int, typer.Option("--threads", "-t", help="Threads; 0 is one per processor.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    json: Json = False,
) -> None:
    """Make a smaller file of a model.

    The same source, type and calibration give the same bytes everywhere; what was done stands in the file. The same
    command goes on with a run that was interrupted.
    """
    from localinfer.hub.store import resolve
    from localinfer.quantize.pipeline import Wishes, quantize

    wishes = Wishes(
        resolve(source),
        to,
        fit,
        output,
        dict(_tensor_types(text) for text in tensor or ()),
        calibrate=calibrate,
        feedback=feedback,
        keep=keep_statistics,
        threads=threads,
        force=force,
        measure=report,
        statement=statement,
    )
    with _Terminal() as terminal:
        try:
            result = quantize(wishes, terminal)
        except KeyboardInterrupt:
            terminal.say("stopped; the same command goes on with the tensors that are done")
            raise
    if json:
        emit_json(describe(result))
    else:
        _print(result)


class _Terminal(TerminalReport):
    """Tells bytes as bytes, and everything else, which is counted in tokens or tensors, in percent."""

    def __init__(self) -> None:
        super().__init__()
        self._told, self._next = "", 0.0

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "quantizing" or what.startswith("loading"):
            super().progress(what, done, total)
            return
        now = time.monotonic()
        if what == self._told and now < self._next:
            return
        terminal = sys.stderr.isatty()
        self._told, self._next = what, now + (SHOW_EVERY if terminal else LINE_SECONDS)
        text = f"{what}: {100 * done // max(total, 1)} %"
        if terminal:
            self._close()
            print(f"\r\x1b[K{text}\r", end="", file=sys.stderr, flush=True)
        else:
            note(text)


def _tensor_types(text: str) -> tuple[str, list[str]]:
    """ "PATTERN=TYPE,TYPE" as it is handed on."""
    pattern, equals, types = text.rpartition("=")
    if not equals or not pattern or not types:
        raise typer.BadParameter(f"--tensor takes NAME=TYPE, not {text!r}")
    return pattern, types.upper().split(",")


def describe(result: "Result") -> dict[str, Any]:
    """What `quantize --json` prints."""
    return {
        "path": str(result.path),
        "size": result.size,
        "bits_per_weight": round(result.bits_per_weight, 4),
        "seconds": round(result.seconds, 3),
        "types": _by_type(result),
        "recipe": dict(result.provenance.recipe),
        "quality": result.provenance.quality,
    }


def _by_type(result: "Result") -> list[dict[str, Any]]:
    rows = [{"type": name, "tensors": count, "bytes": size} for name, (count, size) in result.types.items()]
    return sorted(rows, key=lambda row: -int(row["bytes"]))


def _print(result: "Result") -> None:
    tensors = 8 * sum(row["bytes"] for row in _by_type(result)) / result.weights
    bits = f"{result.bits_per_weight:.2f} bits per weight, {tensors:.2f} in tensors"
    emit(f"{result.path}\n{size(result.size)}, {bits}\n\n")
    emit_table(("type", "tensors", "size"), [(r["type"], r["tensors"], size(r["bytes"])) for r in _by_type(result)])
    emit(f"\n{quality_line(result.provenance.quality or {})}\n")


def quality_line(quality: Mapping[str, Any]) -> str:
    """The report in a line."""
    if "skipped" in quality:
        return f"quality: not measured ({quality['skipped']})"
    return (
        f"quality: KL {quality['kl_mean']['value']:.4g} to the source (1 in 100 predictions above "
        f"{quality['kl_p99']['value']:.4g}), the likeliest token is the same in {quality['top1']['value']:.1%}, "
        f"perplexity {quality['perplexity']['value']:.4g} instead of {quality['source_perplexity']['value']:.4g}, over "
        f"{quality['positions']} predictions"
    )
