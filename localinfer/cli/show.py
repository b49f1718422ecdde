"""`localinfer show NAME`"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localinfer.cli.options import Json, Model, Quant
from localinfer.cli.output import emit, emit_json, emit_table, harmless, size

if TYPE_CHECKING:
    from localinfer.formats.model_file import ModelFile

MAX_LISTED = 32


def command(
    model: Model,
    program: Annotated[bool, typer.Option("--program", help="Print the recorded program: every op.")] = False,
    quant: Quant = "",
    json: Json = False,
) -> None:
    """Show what is in a model file.

    Its metadata, tensors by type, chat template, and the memory that running it takes.
    """
    from localinfer.checkpoints import open_model
    from localinfer.hub.store import resolve
    from localinfer.models import record

    with open_model(resolve(model), quant) as file:
        if program and not json:
            emit(f"{record(file.metadata, file)}\n")
            return
        found = describe_file(file, with_program=program)
    if json:
        emit_json(found)
    else:
        _print(found)


def describe_file(file: "ModelFile", with_program: bool = False) -> dict[str, Any]:
    """What `show --json` prints.

    paths, size, metadata, tensors by type, chat template; what a chat samples with, where there is a template; and
    if it can be run, memory plan, context_length, program.
    """
    from localinfer.errors import LocalInferError
    from localinfer.models import record

    found: dict[str, Any] = {
        "paths": [str(path) for path in file.paths],
        "size": file.file_size,
        "metadata": {key: _short(value) for key, value in file.metadata.items()},
        "tensors": _by_type(file),
        "chat_template": file.metadata.get("tokenizer.chat_template"),
    }
    try:
        recorded = record(file.metadata, file)
        found["memory_plan"] = _plan(file)
        if found["chat_template"]:
            found["chat_sampling"] = _sampling(file)
        found["context_length"] = recorded.context_length
        if with_program:
            found["program"] = str(recorded).splitlines()
    except LocalInferError as error:  # a file that cannot be run can still be looked at
        found["not_runnable"] = error.message
    return found


def _by_type(file: "ModelFile") -> list[dict[str, Any]]:
    types: dict[str, dict[str, Any]] = {}
    for tensor in file.tensors.values():
        row = types.setdefault(tensor.type.name, {"type": tensor.type.name, "tensors": 0, "weights": 0, "bytes": 0})
        count = 1
        for dimension in tensor.shape:
            count *= dimension
        row["tensors"] += 1
        row["weights"] += count
        row["bytes"] += tensor.nbytes
    return sorted(types.values(), key=lambda row: -int(row["bytes"]))


def _plan(file: "ModelFile") -> dict[str, Any]:
    """What running it here would take, in bytes, with the context that it would get."""
    from localinfer.engine.load import choose_backend
    from localinfer.engine.plan import Wishes, make_plan

    plan = make_plan(file, choose_backend()[0], Wishes())
    return {
        "backend": plan.backend,
        "context": plan.config.context,
        "reason": plan.reason,
        "parts": plan.parts,
        "total": plan.total,
        "free": plan.free,
    }


def _sampling(file: "ModelFile") -> dict[str, Any]:
    """The sampling parameters of a chat that are not at their neutral values, and who recommends them."""
    from localinfer.cli.chat_params import CHAT_PARAMS
    from localinfer.cli.loading import recommended_sampling
    from localinfer.engine.load import chat_defaults
    from localinfer.engine.sampling import SamplingParams

    params, source = recommended_sampling(chat_defaults(file.metadata), file.paths[0])
    neutral = SamplingParams()
    names = [name for name in CHAT_PARAMS if getattr(params, name) != getattr(neutral, name)]
    return {"recommended_by": source, "parameters": {name: getattr(params, name) for name in names}}


def _short(value: Any) -> Any:
    """A metadata value that JSON can hold; long arrays (vocabularies) are told by their size and kind."""
    from localinfer.formats.metadata import describe

    if isinstance(value, str | int | float | bool):
        return value
    return list(value) if len(value) <= MAX_LISTED else describe(value)


def _print(found: dict[str, Any]) -> None:
    from localinfer.cli.chat_params import in_words

    for path in found["paths"]:
        emit(f"{path}\n")
    emit(f"{size(found['size'])}\n\nmetadata\n")
    for key, value in found["metadata"].items():
        text = ", ".join(map(in_words, value)) if isinstance(value, list) else in_words(value)
        if key == "tokenizer.chat_template":
            text = f"{len(text)} characters; --json prints it"
        emit(f"  {key:45} {harmless(text if len(text) <= 100 else text[:97] + '...')}\n")
    emit("\ntensors\n")
    emit_table(
        ("type", "tensors", "weights", "bytes", "size"),
        [(row["type"], row["tensors"], row["weights"], row["bytes"], size(row["bytes"])) for row in found["tensors"]],
    )
    emit(f"\nchat template: {'yes' if found['chat_template'] else 'no: it completes text, and does not chat'}\n")
    if "chat_sampling" in found:
        sampling = found["chat_sampling"]
        listed = ", ".join(f"{name} {in_words(value)}" for name, value in sampling["parameters"].items())
        emit(f"chat sampling: {listed} (recommended by {sampling['recommended_by']})\n")
    if "not_runnable" in found:
        emit(f"cannot be run: {found['not_runnable']}\n")
        return
    emit(f"context: made for {found['context_length']} tokens\n")
    plan = found["memory_plan"]
    emit(f"memory: {size(plan['total'])} on the {plan['backend']} backend, {size(plan['free'])} are free\n")
    emit(f"  with a context of {plan['context']} tokens ({plan['reason']})\n")
    for name, count in plan["parts"].items():
        emit(f"  {name:12} {size(count)}\n")
