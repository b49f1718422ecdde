"""`localinfer chat [NAME]`"""

from typing import Annotated, Any

import typer

from localinfer.cli.options import (
    Backend,
    Context,
    Draft,
    KvType,
    Quant,
    Speculation,
    Template,
    Threads,
    refuse_other_encodings,
    with_sampling,
)
from localinfer.cli.output import aside
from localinfer.cli.pull import offer_to_pull
from localinfer.errors import UnsupportedError

DEFAULT_MODEL = "smollm2:135m"


@with_sampling
def command(
    model: Annotated[
        str, typer.Argument(help="An installed model, or the path of a file or folder.", show_default=DEFAULT_MODEL)
    ] = "",
    system: Annotated[str, typer.Option("--system", help="A system message.", show_default=False)] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pull the model without asking.")] = False,
    context: Context = None,
    threads: Threads = 0,
    backend: Backend = "auto",
    kv_type: KvType = "f16",
    quant: Quant = "",
    speculation: Speculation = "auto",
    draft: Draft = "",
    template: Template = "",
    *,
    sampling: dict[str, Any],
) -> None:
    """Talk with a model in the terminal.

    Type /help in the chat for its commands. If standard input is not a terminal, each line is a message, and answers
    are separated by newlines.
    """
    refuse_other_encodings(**{"--system": system})
    if not template:
        _refuse_base_model(model)
    name = offer_to_pull(model or DEFAULT_MODEL, yes, "chat")
    from localinfer.cli.chat_session import Session
    from localinfer.cli.conversation import Conversation
    from localinfer.cli.loading import CONVERSATION, load_model, recommended_sampling
    from localinfer.cli.messages import MessageReader
    from localinfer.hub.folders import config_folder

    options = {"context": context, "threads": threads, "backend": backend, "kv_type": kv_type, "quant": quant}
    options |= {"speculation": speculation, "draft": draft or None}
    with load_model(name, template=template, **options) as llm:
        if llm.chat_template is None:
            raise _no_chat(name)
        recommended, _ = recommended_sampling(llm.chat_defaults, llm.path)
        params = recommended.changed(**{**CONVERSATION, **sampling})
        reader = MessageReader(config_folder() / "history")
        if reader.interactive:
            aside(
                f"{name}: context of {llm.context} tokens ({llm.plan.reason}), {llm.backend} backend. /help for help."
            )
        Session(llm, reader, Conversation(system), params).run()


def _refuse_base_model(name: str) -> None:
    """Before anything is downloaded."""
    from localinfer.hub.catalog import CATALOG
    from localinfer.hub.names import meant
    from localinfer.hub.store import is_path

    found = None if is_path(name) else meant(name, CATALOG)
    if found is not None and not CATALOG[found].chats:
        raise _no_chat(found)


def _no_chat(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} has no chat template: it continues text and does not chat",
        f"localinfer run --raw {name} PROMPT, or give a template with --template",
    )
