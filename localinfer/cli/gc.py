"""`localinfer gc`"""

from typing import Annotated

import typer

from localinfer.cli.options import Json
from localinfer.cli.output import emit_json, emit_table, note, size


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")] = False,
    json: Json = False,
) -> None:
    """Delete what takes room and is of no use.

    Downloads that were not finished, versions that were replaced, what processes that died have left. Models stay, and
    so do complete files that other programs have put into the Hugging Face cache.
    """
    from localinfer.hub.collect import collect

    found = collect(remove=not dry_run)
    total = sum(each.size for each in found)
    if json:
        things = [{**each._asdict(), "path": str(each.path)} for each in found]
        emit_json({"deleted": not dry_run, "size": total, "things": things})
        return
    if found:
        emit_table(("what", "size", "path"), [(each.what, size(each.size), each.path) for each in found])
    note(f"{size(total)} {'would be ' if dry_run else ''}freed")
