"""`localinfer pull NAME`"""

import sys
from typing import Annotated

import typer

from localinfer.cli.output import ask, note, size
from localinfer.errors import LocalInferError


def command(
    name: Annotated[str, typer.Argument(help="A name of the catalog, for example smollm2:135m.", show_default=False)],
    verify: Annotated[bool, typer.Option("--verify", help="Hash an installed file again.")] = False,
) -> None:
    """Download a model and check its hash."""
    pull_model(name, verify=verify)


def pull_model(name: str, *, verify: bool = False) -> None:
    """Pulls with progress on standard error."""
    from localinfer.cli.progress import TerminalReport
    from localinfer.hub.pull import pull

    with TerminalReport() as report:
        model = pull(name, verify=verify, report=report)
    note(f"{model.name} is installed: {model.path} ({size(model.size)})")


def offer_to_pull(name: str, yes: bool, command: str) -> str:
    """The path, or the full name, of the model that is meant; one of the catalog that is not installed is offered.

    `yes` pulls it unasked, as `command --yes` would. LocalInferError if it is declined, or if there is no such model.
    """
    from localinfer.hub.store import full_name, is_path, model_file

    if is_path(name):
        return name
    name = full_name(name)
    if model_file(name) is None:
        from localinfer.hub.catalog import CATALOG

        question = f"{name} is not installed. Download {size(CATALOG[name].size)} now?"
        if not yes and not (sys.stdin.isatty() and ask(question)):
            raise LocalInferError(
                f"{name} is not installed", f"localinfer pull {name}, or localinfer {command} {name} --yes"
            )
        pull_model(name)
    return name
