"""`localinfer chat [NAME]`"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localinfer.cli.options import (
    Backend,
    Context,
    Draft,
    KvType,
    Quant,
    Speculation,
    Template,
    Think,
    ThinkingBudget,
    Thoughts,
    Threads,
    refuse_other_encodings,
    with_sampling,
)
from localinfer.cli.output import aside
from localinfer.cli.pull import offer_to_pull
from localinfer.errors import UnsupportedError

if TYPE_CHECKING:
    from localinfer.cli.saved import Saved
    from localinfer.cli.tools import Toolbox

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
    think: Think = None,
    thinking_budget: ThinkingBudget = None,
    thoughts: Thoughts = None,
    plain: Annotated[bool, typer.Option("--plain", help="Show answers as they were written, not drawn.")] = False,
    tools: Annotated[
        str,
        typer.Option(
            "--tools", metavar="NAME[,NAME]", help="Lend the model tools: calculator, files.", show_default=False
        ),
    ] = "",
    tools_folder: Annotated[
        str,
        typer.Option(
            "--tools-folder", metavar="FOLDER", help="The folder below which files may read, if you allow it each time."
        ),
    ] = ".",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the last conversation, or with one given in place of the model: its number, its name, or "
            "words of its title.",
        ),
    ] = False,
    list_kept: Annotated[bool, typer.Option("--list", help="List the conversations that were kept, and exit.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Keep neither this conversation nor its input.")] = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Talk with a model in the terminal.

    Type /help in the chat for its commands. If standard input is not a terminal, each line is a message, and answers
    are separated by newlines.
    """
    refuse_other_encodings(**{"--system": system})
    if list_kept:
        _list()
        return
    saved = _to_resume(model) if resume else None
    if saved is not None and (saved.model and not _is_model(model)):
        model = saved.model
    if not template:
        _refuse_base_model(model)
    name = offer_to_pull(model or DEFAULT_MODEL, yes, "chat")
    from localinfer.cli.chat_session import Display, Session
    from localinfer.cli.conversation import Conversation, load
    from localinfer.cli.loading import CONVERSATION, load_model, recommended_sampling
    from localinfer.cli.messages import MessageReader
    from localinfer.cli.thinking import thinking_variables
    from localinfer.hub.folders import config_folder

    options = {"context": context, "threads": threads, "backend": backend, "kv_type": kv_type, "quant": quant}
    options |= {"speculation": speculation, "draft": draft or None}
    if thinking_budget is not None:
        sampling["thinking_budget"] = thinking_budget
    conversation = load(saved.path) if saved is not None else Conversation(system)
    if system:
        conversation.system = system
    reader = MessageReader(config_folder() / "history", remember=not private)
    toolbox = _toolbox(tools, tools_folder, reader.interactive) if tools else None
    with load_model(name, template=template, **options) as llm:
        if llm.chat_template is None:
            raise _no_chat(name)
        if toolbox is not None and llm.tool_format is None:
            raise _no_tools(name)
        variables = {} if think is None else thinking_variables(llm.chat_template, think)
        recommended, _ = recommended_sampling(llm.chat_defaults, llm.path)
        params = recommended.changed(**{**CONVERSATION, **sampling})
        if reader.interactive:
            aside(
                f"{name}: context of {llm.context} tokens ({llm.plan.reason}), {llm.backend} backend. /help for help."
            )
            if saved is not None:
                aside(f"resumed: {saved.title}")
        session = Session(
            llm,
            reader,
            conversation,
            params,
            Display(markdown=not plain, thoughts=None if thoughts is None else thoughts == "show"),
            toolbox,
            variables,
            private,
            saved.path if saved is not None else None,
        )
        session.run()


def _list() -> None:
    from localinfer.cli.output import emit_table
    from localinfer.cli.saved import saved_conversations

    every = saved_conversations()
    rows = [(number, each.name, each.when, each.model, each.title) for number, each in enumerate(every, 1)]
    emit_table(("number", "name", "changed", "model", "title"), rows)


def _is_model(name: str) -> bool:
    from localinfer.hub.catalog import CATALOG
    from localinfer.hub.names import meant
    from localinfer.hub.store import is_path

    return is_path(name) or (bool(name) and meant(name, CATALOG) is not None)


def _to_resume(name: str) -> "Saved":
    from localinfer.cli.saved import meant

    return meant("" if _is_model(name) else name)


def _toolbox(names: str, folder: str, interactive: bool) -> "Toolbox":
    from pathlib import Path

    from localinfer.cli.tools import Toolbox, ask_person

    chosen = [name.strip() for name in names.split(",")]
    return Toolbox(chosen, Path(folder).expanduser(), ask_person if interactive else None)


def _no_tools(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} cannot be lent tools: its chat template shows it none, or not how it has to call them",
        "start without --tools, or give a template that does with --template",
    )


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
