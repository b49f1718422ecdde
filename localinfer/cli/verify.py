"""`localinfer verify FILE [--source SOURCE]`"""

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from localinfer.cli.options import Json
from localinfer.cli.output import emit_json

if TYPE_CHECKING:
    from localinfer.verify.report import Report

SAMPLE = 0.02  # of the rows


def command(
    file: Annotated[
        str,
        typer.Argument(help="A .gguf file, a folder with safetensors, or an installed model.", show_default=False),
    ],
    source: Annotated[
        str,
        typer.Option("--source", "-s", help="What the file should have been made from.", show_default="none"),
    ] = "",
    calibrate: Annotated[
        str,
        typer.Option(
            "--calibrate",
            help="The statistics that a file of localinfer was calibrated with, as `quantize --calibrate` takes them.",
            show_default="none",
        ),
    ] = "",
    sample: Annotated[
        bool, typer.Option("--sample", help=f"Look at {SAMPLE:.0%} of the rows, and at no hash: quick.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Chooses the rows of --sample.", show_default="by chance")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", "-t", help="Threads; 0 is one per processor.", min=0)] = 0,
    json: Json = False,
) -> int:
    """Check where a model's weights come from.

    Without --source, every hash that the file carries. With it, every tensor: that a known quantizer makes the same
    bytes from the source, or that each block is one that an honest quantizer would leave.

    Exit codes: 0 proven; 3 not proven, though nothing speaks against it; 4 refuted.
    """
    if calibrate and not source:
        raise typer.BadParameter("--calibrate is for making tensors again, which needs --source")
    if seed is not None and not sample:
        raise typer.BadParameter("--seed chooses the rows of --sample")
    from pathlib import Path

    from localinfer.cli.progress import TerminalReport
    from localinfer.cli.verify_report import print_report
    from localinfer.hub.store import resolve
    from localinfer.verify.verification import Wishes, verify

    wishes = Wishes(
        Path(resolve(file)),
        Path(resolve(source)) if source else None,
        calibrate,
        share=SAMPLE if sample else 1.0,
        seed=secrets.randbits(32) if seed is None else seed,
        threads=threads,
    )
    with TerminalReport() as terminal:
        report: Report = verify(wishes, terminal)
    if json:
        emit_json(report.to_dict())
    else:
        print_report(report)
    return int(report.exit)
