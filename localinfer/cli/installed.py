"""`localinfer list`"""

from typing import Annotated

import typer

from localinfer.cli.output import emit_json, emit_table, note, size


def command(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List models: installed, and to be pulled."""
    from localinfer.hub.catalog import CATALOG
    from localinfer.hub.store import installed

    models, problems = installed()
    have = {model.name for model in models}
    missing = [entry for entry in CATALOG.values() if entry.name not in have]
    if json:
        emit_json(
            {
                "installed": [{**model._asdict(), "path": str(model.path)} for model in models],
                "problems": [{"message": p.message, "hint": p.hint} for p in problems],
                "available": [{"name": e.name, "size": e.size, "sha256": e.sha256, "about": e.about} for e in missing],
            }
        )
        return
    if models:
        emit_table(("name", "size", "path"), [(m.name, size(m.size), m.path) for m in models])
    elif not problems:
        note("no model is installed")
    for problem in problems:
        note(f"not usable: {problem.message} ({problem.hint})")
    for entry in missing:
        note(f"can be pulled: {entry.name} ({size(entry.size)}), {entry.about}")
