"""`localinfer run NAME [PROMPT]`"""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localinfer.cli.options import (
    Backend,
    Context,
    Draft,
    Json,
    KvType,
    Model,
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
from localinfer.cli.output import aside, emit, emit_json, note
from localinfer.errors import ContextLengthError, LocalInferError

if TYPE_CHECKING:
    from localinfer.cli.answering import Answered
    from localinfer.engine.llm import LLM, TextStream
    from localinfer.text.answer_marks import AnswerMarks

PATIENCE_SECONDS = 2.0


@with_sampling
def command(
    model: Model,
    prompt: Annotated[
        str, typer.Argument(help="The prompt; what stands on standard input follows it.", show_default=False)
    ] = "",
    system: Annotated[str, typer.Option("--system", help="A system message.", show_default=False)] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    special: Annotated[
        bool, typer.Option("--special", help="With --raw: the text of a special token means the token.")
    ] = False,
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
    schema: Annotated[
        str,
        typer.Option(
            "--schema", help="A JSON schema, or a file with one: the answer is JSON that fits it.", show_default=False
        ),
    ] = "",
    regex: Annotated[
        str, typer.Option("--regex", help="A regular expression that the whole answer matches.", show_default=False)
    ] = "",
    grammar: Annotated[
        str,
        typer.Option("--grammar", help="A file with a grammar of the answer, in GBNF or for Lark.", show_default=False),
    ] = "",
    stats: Annotated[bool, typer.Option("--stats", help="Say counts and speed on standard error.")] = False,
    json: Json = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Answer one prompt and exit.

    The prompt is the argument, or standard input, or both, the argument first. The answer goes to standard output.
    What is not given of the sampling is as in `chat`, and `show` tells it; with --raw it is greedy.
    """
    if special and not raw:
        raise typer.BadParameter("--special goes with --raw only: a chat template writes the special tokens itself")
    if system and raw:
        raise typer.BadParameter("--system needs the chat template, which --raw leaves out")
    if raw and (think is not None or thinking_budget is not None):
        raise typer.BadParameter("a model is told how to think by its chat template, which --raw leaves out")
    refuse_other_encodings(**{"the prompt": prompt, "--system": system})
    sampling |= _grammar(schema, regex, grammar)
    if thinking_budget is not None:
        sampling["thinking_budget"] = thinking_budget
    text = _read_prompt(prompt)
    from localinfer.cli.interrupt import interrupt_ends
    from localinfer.cli.loading import load_model
    from localinfer.hub.store import full_name, is_path

    name = model if is_path(model) or not model else full_name(model)
    llm = load_model(
        name,
        template=template,
        context=context,
        threads=threads,
        backend=backend,
        kv_type=kv_type,
        quant=quant,
        speculation=speculation,
        draft=draft or None,
    )
    # Nothing is lost when Ctrl-C ends the process, so it may do that at once.
    with llm, interrupt_ends():
        try:
            stream, marks = _start(llm, text, system, raw, special, think, sampling)
        except ContextLengthError as problem:
            lower = ", lower --max-tokens" if "max_tokens" in sampling else ""
            raise ContextLengthError(
                problem.message, f"shorten the prompt{lower}, or give a larger --context"
            ) from problem
        answered = _shown(stream, marks, thoughts, silent=json)
        completion = answered.completion
        if json:
            from localinfer.cli.statistics import as_data

            emit_json(as_data(completion, llm, answered.content, answered.thought))
        elif not answered.content.endswith("\n"):
            emit("\n")
        if completion.finish_reason == "loop":
            note("note: ended, for it repeats itself; --no-loop-detection lets it go on")
        elif completion.finish_reason == "length" and len(completion.tokens) != sampling.get("max_tokens"):
            note(f"note: the answer ends early: {completion.finish_detail}")
        if stats:
            from localinfer.cli.statistics import context_use, rates

            cached, prefill = completion.cached_tokens, completion.prefill_tokens_per_second
            aside(f"prompt {completion.prompt_tokens} tokens ({cached} cached), {prefill:.1f} tokens/s")
            aside(f"answer {rates(completion)}; context {context_use(completion, llm.context)}")


def _start(
    llm: "LLM", text: str, system: str, raw: bool, special: bool, think: bool | None, sampling: dict[str, Any]
) -> "tuple[TextStream, AnswerMarks | None]":
    """The answer, and how it is read, unless the prompt is only continued."""
    from localinfer.cli.loading import CONVERSATION, recommended_sampling

    if raw:
        return llm.stream(llm.tokenize(text, parse_special=special), **sampling), None
    sampling = {**CONVERSATION, **sampling}
    if llm.chat_template is None and not system:
        note("note: the model has no chat template; it continues the prompt as it is (--raw does not say this)")
        return llm.stream(llm.tokenize(text, parse_special=special), **sampling), None
    from localinfer.cli.answering import begin
    from localinfer.cli.thinking import thinking_variables

    messages = [{"role": "system", "content": system}] if system else []
    recommended, _ = recommended_sampling(llm.chat_defaults, llm.path)
    variables = {} if think is None else thinking_variables(llm.chat_template, think)
    asked = [*messages, {"role": "user", "content": text}]
    return begin(llm, asked, recommended.changed(**sampling), variables=variables)


def _shown(stream: "TextStream", marks: "AnswerMarks | None", thoughts: str | None, silent: bool) -> "Answered":
    """Shows the answer to its end."""
    from localinfer.cli.answer_view import AnswerView, Silent
    from localinfer.cli.answering import Answered, follow

    terminal = sys.stdout.isatty()
    shown = not terminal if thoughts is None else thoughts == "show"
    view = Silent() if silent else AnswerView(markdown=False, thoughts=shown, raw=shown and not terminal)
    if marks is not None:
        return follow(stream, marks, view)
    for chunk in stream:
        view.said(chunk.text)
    view.over()
    return Answered(stream.completion, stream.completion.text, "", 0)


def _grammar(schema: str, regex: str, grammar: str) -> dict[str, Any]:
    """The sampling parameter that binds the answer, if any does."""
    given = [name for name, value in (("--schema", schema), ("--regex", regex), ("--grammar", grammar)) if value]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other: an answer follows one of them")
    if not given:
        return {}
    from localinfer.text.grammar import Grammar

    if regex:
        return {"grammar": Grammar("regex", regex)}
    if schema:
        return {"grammar": Grammar("json_schema", schema if schema.lstrip()[:1] == "{" else _read_file(schema))}
    return {"grammar": Grammar("gbnf", _read_file(grammar))}


def _read_file(name: str) -> str:
    from pathlib import Path

    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise LocalInferError(f"{name} cannot be read: {reason}") from error


def _read_prompt(argument: str) -> str:
    """The argument and standard input, which loses the newline at its end."""
    given = b""
    if sys.stdin is not None and not sys.stdin.isatty():
        if argument:
            _say_if_waiting()
        given = sys.stdin.buffer.read()
    try:
        text = given.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise LocalInferError(
            f"standard input is not valid UTF-8 at byte {error.start}", "iconv converts files of other encodings"
        ) from error
    prompt = "\n".join(part for part in (argument, text) if part)
    if not prompt:
        raise typer.BadParameter("there is no prompt: give one as an argument or on standard input")
    return prompt


def _say_if_waiting() -> None:
    """Whoever started us may have left its end of a pipe open without meaning to write."""
    import contextlib
    import select

    with contextlib.suppress(OSError):
        if not select.select([sys.stdin], [], [], PATIENCE_SECONDS)[0]:
            note("note: waiting for standard input to end; </dev/null says that there is none")
