"""`localinfer list`"""

from typing import Annotated

import typer

from localinfer.cli.output import emit_json, emit_table, note, size


def command(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List models, and what they take on the disk."""
    from localinfer.hub.catalog import CATALOG
    from localinfer.hub.store import disk_use, installed, unfinished

    models, problems = installed()
    have = {model.name for model in models}
    missing = [entry for entry in CATALOG.values() if entry.name not in have]
    use = {model.name: disk_use(model) for model in models}
    if json:
        emit_json(
            {
                "installed": [
                    {
                        **model._asdict(),
                        "path": str(model.path),
                        "files": [{**each._asdict(), "path": str(each.path)} for each in model.files],
                        "disk": use[model.name],
                    }
                    for model in models
                ],
                "problems": [{"message": p.message, "hint": p.hint} for p in problems],
                "unfinished": unfinished(),
                "available": [{"name": e.name, "size": e.size, "sha256": e.sha256, "about": e.about} for e in missing],
            }
        )
        return
    if models:
        rows = [(m.name, size(use[m.name]), m.licence, m.path) for m in models]
        emit_table(("name", "on disk", "licence", "path"), rows)
        note(f"{size(sum(use.values()))} on the disk in {len(models)} model{'s' if len(models) > 1 else ''}")
    elif not problems:
        note("no model is installed")
    for problem in problems:
        note(f"not usable: {problem.message} ({problem.hint})")
    for name in unfinished():
        note(f"not finished: {name} (localinfer pull {name} goes on with it, localinfer gc deletes it)")
    for entry in missing:
        note(f"can be pulled: {entry.name} ({size(entry.size)}), {entry.about}")
    if not models:
        note("localinfer search WORD finds others on the Hugging Face hub")
