"""`localinfer rm NAME`"""

from typing import Annotated

import typer

from localinfer.cli.output import note, size


def command(name: Annotated[str, typer.Argument(help="An installed model.", show_default=False)]) -> None:
    """Delete an installed model.

    Files that other models need, or that were there before it was pulled, stay.
    """
    from localinfer.hub.store import remove

    removed = remove(name)
    note(f"{removed.name} is removed: {size(removed.freed)} freed")
    if removed.kept:
        note(f"{size(removed.kept)} stay: localinfer did not put them there, or another model needs them")
