"""`localinfer chat [NAME]`"""

import os
import sys
from typing import Annotated, Any

import typer

from localinfer.cli.options import Backend, Context, KvType, Template, Threads, refuse_other_encodings, with_sampling
from localinfer.cli.output import aside, ask
from localinfer.errors import LocalInferError, UnsupportedError

DEFAULT_MODEL = "smollm2:135m"


@with_sampling
def command(
    model: Annotated[
        str, typer.Argument(help="An installed model, or the path of a .gguf file.", show_default=DEFAULT_MODEL)
    ] = "",
    system: Annotated[str, typer.Option("--system", help="A system message.", show_default=False)] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pull the model without asking.")] = False,
    context: Context = None,
    threads: Threads = 0,
    backend: Backend = "auto",
    kv_type: KvType = "f16",
    template: Template = "",
    *,
    sampling: dict[str, Any],
) -> None:
    """Talk with a model in the terminal.

    Type /help in the chat for its commands. If standard input is not a terminal, each line is a message, and answers
    are separated by newlines.
    """
    refuse_other_encodings(**{"--system": system})
    name = model or DEFAULT_MODEL
    _pull_if_needed(name, yes)
    from localinfer.cli.chat_session import Session
    from localinfer.cli.conversation import Conversation
    from localinfer.cli.loading import load_model
    from localinfer.cli.messages import MessageReader
    from localinfer.hub.folders import config_folder

    with load_model(name, template=template, context=context, threads=threads, backend=backend, kv_type=kv_type) as llm:
        if llm.chat_template is None:
            raise UnsupportedError(
                f"{name} has no chat template: it continues text and does not chat",
                f"localinfer run --raw {name} PROMPT, or give a template with --template",
            )
        params = llm.chat_defaults.changed(**sampling)
        reader = MessageReader(config_folder() / "history")
        if reader.interactive:
            aside(
                f"{name}: context of {llm.context} tokens ({llm.plan.reason}), {llm.backend} backend. /help for help."
            )
        Session(llm, reader, Conversation(system), params).run()


def _pull_if_needed(name: str, yes: bool) -> None:
    """Offers to pull a model of the catalog that is not installed."""
    from localinfer.hub.store import model_file

    if model_file(name) is not None or os.path.exists(name):
        return
    from localinfer.cli.output import size
    from localinfer.cli.pull import pull_model
    from localinfer.hub.catalog import CATALOG

    entry = CATALOG.get(name)
    if entry is None:
        return

    if not yes and not (sys.stdin.isatty() and ask(f"{name} is not installed. Download {size(entry.size)} now?")):
        raise LocalInferError(f"{name} is not installed", f"localinfer pull {name}, or localinfer chat {name} --yes")
    pull_model(name)
