"""`localinfer search WORDS`"""

from typing import Annotated

import typer

from localinfer.cli.options import Json
from localinfer.cli.output import emit_json, emit_table, note, size


def command(
    words: Annotated[list[str], typer.Argument(help="Words of the name.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many to list.", min=1, max=1000)] = 20,
    safetensors: Annotated[
        bool, typer.Option("--safetensors", help="Look for safetensors files instead of GGUF files.")
    ] = False,
    json: Json = False,
) -> None:
    """Find models on the Hugging Face hub.

    The most downloaded first. Sizes are of the file that pull would choose here, as estimated from the number of
    weights; a model fits if it does with the memory that is free now, and if models of its kind can be run at all.
    """
    from localinfer.cli.progress import TerminalReport
    from localinfer.cli.pull import runnable
    from localinfer.engine.memory import free_memory
    from localinfer.hub.search import search

    runs = runnable()
    memory = free_memory()
    with TerminalReport() as report:
        found = search(" ".join(words), limit, memory, report, safetensors)
    if json:
        models = [{**each._asdict(), "runs": each.kind in runs if each.kind else None} for each in found]
        emit_json({"memory_free": memory, "models": models})
        return
    if not found:
        note("nothing found; fewer or other words may find more")
        return
    rows = []
    for each in found:
        fits = {True: "yes", False: "no", None: "?"}[each.fits]
        if each.kind and each.kind not in runs:
            fits = f"no: {each.kind}"
        about = f"{each.choice} {size(each.size)}" if each.size else "?"
        rows.append((each.name, _count(each.downloads), about, fits, each.licence + (", gated" if each.gated else "")))
    emit_table(("name", "downloads", "size, about", f"fits {size(memory)}", "licence"), rows)


def _count(number: int) -> str:
    for unit in ("", "k", "M"):
        if number < 1000 or unit == "M":
            break
        number //= 1000
    return f"{number}{unit}"
