"""`localinfer pull NAME`"""

from typing import Annotated

import typer

from localinfer.cli.output import note, size


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
