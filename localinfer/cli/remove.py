"""`localinfer rm NAME`"""

from typing import Annotated

import typer

from localinfer.cli.output import note, size


def command(name: Annotated[str, typer.Argument(help="An installed model.", show_default=False)]) -> None:
    """Delete an installed model."""
    from localinfer.hub.store import remove

    removed = remove(name)
    note(f"{removed.name} is removed: {size(removed.freed)} freed")
