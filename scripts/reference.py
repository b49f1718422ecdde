"""The reference in docs/reference/: made from the command line, the docstrings, the schemas and the errors of the code.

python scripts/reference.py            says which pages are stale; exit code 1 if one is
python scripts/reference.py --write    writes them
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from typer.models import ArgumentInfo, OptionInfo

import localinfer
from localinfer.cli.main import COMMANDS, EXIT_CODES
from localinfer.engine import llm, plan, request, thread
from localinfer.engine.sampling import SamplingParams
from localinfer.errors import LocalInferError
from localinfer.evaluate import divergence
from localinfer.server.errors import as_api_error
from localinfer.server.openapi import document
from localinfer.server.routes import ENDPOINTS, Endpoint
from localinfer.server.schemas.sampling import SamplingFields
from localinfer.text import chat_template, grammar

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py --write: change the code instead. -->\n"
NO_LIMIT = 2**31 - 1  # what a 32-bit integer can hold says nothing of the field
LIMITS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)
WIDTH = 100  # of a signature that stays on one line
SAMPLING = {field.name for field in dataclasses.fields(SamplingParams)}
SAMPLING_TITLE, PARAMS = "Sampling options", "[SamplingParams](python.md#samplingparams)"

# What people import, each with the members that the reference shows.
PUBLIC: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    (
        "localinfer",
        localinfer.LLM,
        (
            *("generate", "stream", "chat", "chat_tokens", "embed", "rank", "tokenize", "detokenize"),
            *("cancel", "detach", "close", "engine", "tool_format", "reasoning_format", "purpose", "pooling"),
            *("thought", "prepare_grammars"),
        ),
    ),
    ("localinfer", SamplingParams, ("changed",)),
    (
        "localinfer.engine.llm",
        llm.Completion,
        ("message", "decode_tokens_per_second", "prefill_tokens_per_second"),
    ),
    ("localinfer.engine.llm", llm.TextChunk, ()),
    ("localinfer.engine.llm", llm.TextStream, ("completion", "cancel", "close")),
    ("localinfer.engine.request", request.TokenLogprob, ()),
    ("localinfer.engine.plan", plan.Plan, ("total", "fits")),
    ("localinfer.engine.plan", plan.Wishes, ()),
    ("localinfer.text.grammar", grammar.Grammar, ()),
    ("localinfer.text.grammar", grammar.json_schema, ()),
    ("localinfer.text.grammar", grammar.choice, ()),
    ("localinfer.evaluate.divergence", divergence.Reference, ("compare", "close")),
)
ERRORS: tuple[type[LocalInferError], ...] = (
    LocalInferError,
    *(kind for kind in LocalInferError.__subclasses__() if kind.__module__ == "localinfer.errors"),
    chat_template.TemplateFailure,
    thread.QueueFullError,
    thread.EngineStoppedError,
    thread.EngineFailedError,
)


# --- Markdown ---------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; "" without rows."""
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]) if lines else ""


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|") or " "


def anchor(heading: str) -> str:
    """How a heading is linked to."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(heading: str, page: str = "") -> str:
    return f"[`{heading}`]({page}#{anchor(heading)})"


def page(title: str, about: str, *parts: str) -> str:
    """A page of parts, empty ones left out."""
    return "\n\n".join(filter(None, (f"# {title}", about, *parts))) + "\n\n" + MADE


def prose(doc: str | None) -> str:
    """A docstring as Markdown: what stands in two columns ("name   what it is") becomes a table."""
    return "\n\n".join(_columns(block) or block for block in inspect.cleandoc(doc or "").split("\n\n"))


def _columns(block: str) -> str:
    rows: list[list[str]] = []
    for line in block.splitlines():
        if found := re.match(r"(\w+) {2,}(\S.*)", line):
            rows.append([f"`{found[1]}`", found[2]])
        elif rows and line.startswith("  "):
            rows[-1][1] += f" {line.strip()}"
        else:
            return ""
    return table(("name", "meaning"), rows)


# --- the command line -------------------------------------------------------------------------------------------------


def cli() -> str:
    """Every command with its arguments and options."""
    commands = {name: import_module(module).command for name, module in COMMANDS.items()}
    rows = [[link(f"localinfer {name}"), _paragraphs(command)[0]] for name, command in commands.items()]
    return page(
        "The command line",
        "Every command and option. `localinfer COMMAND --help` says the same, and `localinfer --version` the version.",
        table(("command", ""), rows),
        EXIT_CODES,
        *(_command(name, command) for name, command in commands.items()),
        _sampling_options(commands["run"]),
    )


def _command(name: str, command: Callable[..., None]) -> str:
    usage, arguments, options, samples = [f"localinfer {name}"], [], [], False
    for parameter, kind, info in _parameters(command):
        if isinstance(info, ArgumentInfo):
            usage.append(_argument(parameter, kind, info))
            arguments.append([f"`{usage[-1]}`", info.help or ""])
        elif parameter.name in SAMPLING:
            samples = True
        elif not info.hidden:
            options.append(_option(parameter, kind, info))
    parts = [
        f"## localinfer {name}",
        f"    {' '.join(usage)} [OPTIONS]",
        *_paragraphs(command),
        table(("argument", "meaning"), arguments),
        table(("option", "meaning", "default"), options),
        f"And the [sampling options](#{anchor(SAMPLING_TITLE)})." if samples else "",
    ]
    return "\n\n".join(filter(None, parts))


def _sampling_options(command: Callable[..., None]) -> str:
    rows = [_option(*each)[:2] for each in _parameters(command) if each[0].name in SAMPLING]
    about = f"Of `chat` and `run`. What is not given is as the model's file recommends. See {PARAMS}."
    return "\n\n".join((f"## {SAMPLING_TITLE}", about, table(("option", "meaning"), rows)))


def _parameters(command: Callable[..., None]) -> Iterator[tuple[inspect.Parameter, Any, Any]]:
    """Each with its type and Typer's description."""
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, info = get_args(parameter.annotation)
        yield parameter, kind, info


def _paragraphs(command: Callable[..., None]) -> list[str]:
    return inspect.cleandoc(command.__doc__ or "").split("\n\n")


def _argument(parameter: inspect.Parameter, kind: Any, info: ArgumentInfo) -> str:
    name = info.metavar or parameter.name.upper()
    several = "..." if get_origin(kind) is list else ""
    needed = parameter.default in (inspect.Parameter.empty, ...)
    return f"{name}{several}" if needed else f"[{name}]{several}"


def _option(parameter: inspect.Parameter, kind: Any, info: OptionInfo) -> list[str]:
    # In Annotated the first name stands where a default would.
    declared = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
    names = [name for each in declared for name in each.split("/") if name.startswith("-")]
    names = names or [f"--{parameter.name.replace('_', '-')}"]
    value, default = _value(kind, info), parameter.default
    if isinstance(info.show_default, str):
        shown = info.show_default
    else:
        shown = f"`{default}`" if info.show_default and default not in (None, "", []) and default is not False else ""
    return [" ".join(f"`{name}`" for name in names) + (f" `{value}`" if value else ""), info.help or "", shown]


def _value(kind: Any, info: OptionInfo) -> str:
    """What stands behind an option; "" if it is a switch."""
    if info.metavar:
        return info.metavar
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    kinds = {kind, *get_args(kind)}
    for each, name in ((bool, ""), (int, "NUMBER"), (float, "NUMBER"), (Path, "PATH")):
        if each in kinds:
            return name
    return "TEXT"


# --- Python -----------------------------------------------------------------------------------------------------------


def python() -> str:
    """The classes and functions that people import, with their signatures and docstrings."""
    entries = [[link(entry.__name__), _first_sentence(entry.__doc__)] for _, entry, _ in PUBLIC]
    return page(
        "From Python",
        "What `import localinfer` and its modules offer. What goes wrong is a [LocalInferError](errors.md).",
        table(("name", ""), entries),
        *(_entry(*row) for row in PUBLIC),
    )


def _entry(module: str, entry: Any, members: Sequence[str]) -> str:
    assert getattr(sys.modules[module], entry.__name__) is entry
    parts = [f"## {entry.__name__}", f"`from {module} import {entry.__name__}`"]
    if inspect.isfunction(entry):
        parts += [_code(signature(entry)), prose(entry.__doc__)]
    elif dataclasses.is_dataclass(entry) or hasattr(entry, "_fields"):
        parts += [prose(entry.__doc__), table(("field", "type", "default"), _fields(entry))]
    else:
        parts += [prose(entry.__doc__), _code(signature(entry.__init__, entry.__name__)), prose(entry.__init__.__doc__)]
    return "\n\n".join([*filter(None, parts), *(_member(entry, name) for name in members)])


def _member(entry: type, name: str) -> str:
    found = inspect.getattr_static(entry, name)
    parts = [f"### {entry.__name__}.{name}"]
    if inspect.isfunction(found):
        return "\n\n".join(filter(None, [*parts, _code(signature(found)), prose(found.__doc__)]))
    function = getattr(found, "fget", None) or found.func  # of a property, or one that is computed once
    kind = inspect.signature(function).return_annotation
    return "\n\n".join(filter(None, [*parts, f"A property: `{kind}`", prose(function.__doc__)]))


def _fields(entry: Any) -> Iterator[list[str]]:
    if hasattr(entry, "_fields"):
        for name in entry._fields:
            default = f"`{entry._field_defaults[name]!r}`" if name in entry._field_defaults else ""
            kind = entry.__annotations__[name]
            yield [f"`{name}`", f"`{getattr(kind, '__forward_arg__', kind)}`", default]
        return
    for field in dataclasses.fields(entry):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        if field.default_factory is not dataclasses.MISSING:
            default = f"`{field.default_factory()!r}`"
        yield [f"`{field.name}`", f"`{field.type}`", default]


def signature(function: Any, name: str = "") -> str:
    """As it is written in the code, without `self`; one parameter a line if it is long."""
    found = inspect.signature(function)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    returns = inspect.Signature.empty if name else found.return_annotation
    texts = [_parameter(p) for p in parameters]
    first_named = next((n for n, p in enumerate(parameters) if p.kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first_named is not None and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        texts.insert(first_named, "*")
    end = "" if returns is inspect.Signature.empty else f" -> {returns}"
    name = name or function.__name__
    line = f"{name}({', '.join(texts)}){end}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


def _first_sentence(doc: str | None) -> str:
    return re.split(r"(?<=\.)\s", inspect.cleandoc(doc or "").replace("\n", " "))[0]


# --- HTTP -------------------------------------------------------------------------------------------------------------


def http() -> str:
    """Every endpoint, with the fields of what it takes and gives, from the table of endpoints and the schemas."""
    described = document(ENDPOINTS)
    schemas = described["components"]["schemas"]
    bodies = {kind.__name__: kind for e in ENDPOINTS for kind in (e.request, e.response, e.error) if _is_struct(kind)}
    requests = {e.request.__name__ for e in ENDPOINTS if e.request is not None}
    rows = [[link(f"{e.method} {e.name}"), e.summary] for e in ENDPOINTS]
    objects = {name: schemas[name] for name in sorted(schemas) if name not in requests}
    return page(
        "HTTP",
        "Every endpoint with its fields, as `/openapi.json` has them. What they mean, and what happens to other "
        "fields, is in [the HTTP API](../http-api.md). A field may always be `null`, which is as if it were not there.",
        table(("endpoint", ""), rows),
        *(_endpoint(endpoint, schemas) for endpoint in ENDPOINTS),
        "## SamplingFields",
        prose(SamplingFields.__doc__),
        _struct_table(schemas["CompletionRequest"], SamplingFields.__struct_fields__),
        "## Objects",
        "What requests and answers are made of.",
        *(_object(name, schema, bodies.get(name)) for name, schema in objects.items()),
    )


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _endpoint(endpoint: Endpoint, schemas: dict[str, Any]) -> str:
    parts = [f"## {endpoint.method} {endpoint.name}", f"{endpoint.summary}."]
    parts += [f"`?{name}=`: {about}." for name, about in endpoint.query]
    if endpoint.request is not None:
        fields = endpoint.request.__struct_fields__
        if issubclass(endpoint.request, SamplingFields):
            parts.append("The fields below, and those of [SamplingFields](#samplingfields).")
            fields = [name for name in fields if name not in SamplingFields.__struct_fields__]
        parts += [prose(endpoint.request.__doc__), _struct_table(schemas[endpoint.request.__name__], fields)]
    answer = endpoint.media_type
    if endpoint.response is not None:
        (schema,), _ = msgspec.json.schema_components([endpoint.response], ref_template="#/components/schemas/{name}")
        answer = words(schema)
    streamed = f"; with `stream`, {endpoint.streamed_type}" if endpoint.streams else ""
    parts.append(f"Answers with {answer}{streamed}.")
    return "\n\n".join(filter(None, parts))


def _object(name: str, schema: dict[str, Any], kind: Any) -> str:
    about = prose(kind.__doc__ if kind is not None else schema.get("description"))
    return "\n\n".join(filter(None, [f"### {name}", about, _struct_table(schema, schema.get("properties", {}))]))


def _struct_table(schema: dict[str, Any], fields: Iterable[str]) -> str:
    required = schema.get("required", ())
    rows = [[f"`{n}`" + (", required" if n in required else ""), words(schema["properties"][n])] for n in fields]
    return table(("field", "value"), rows)


def words(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if "anyOf" in schema:
        return ", or ".join(words(each) for each in schema["anyOf"] if each.get("type") != "null") or "null"
    for key in ("enum", "const"):
        if key in schema:
            values = schema[key] if key == "enum" else [schema[key]]
            return " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in values if value is not None)
    kind = schema.get("type")
    if kind == "array":
        items = re.sub(r"^(text|whole number|number|object)", r"\1s", words(schema.get("items") or {}))
        most = f" (at most {schema['maxItems']})" if "maxItems" in schema else ""
        return f"list of {items}" + (" (not empty)" if schema.get("minItems") else most)
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {words(inner)}" if isinstance(inner, dict) and inner else "object"
    if kind == "string":
        return "text (not empty)" if schema.get("minLength") else "text"
    if kind in ("integer", "number"):
        limits = [f"{name} {schema[key]}" for key, name in LIMITS if abs(schema.get(key, NO_LIMIT)) < NO_LIMIT]
        return ("whole number" if kind == "integer" else "number") + (f" ({', '.join(limits)})" if limits else "")
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "anything")


# --- errors -----------------------------------------------------------------------------------------------------------


def errors() -> str:
    """The exceptions, and what they are at the command line and over HTTP."""
    rows = []
    for kind in ERRORS:
        api = as_api_error(thread.QueueFullError(1, 1) if kind is thread.QueueFullError else kind(""))
        rows.append([f"`{kind.__module__}.{kind.__name__}`", _first_paragraph(kind), f"{api.status}", f"`{api.code}`"])
    return page(
        "Errors",
        "What a person can do something about is a `localinfer.LocalInferError` or one of its kinds: `message` says "
        "what is wrong and where, `hint` what to do. Anything else that is raised is a bug. At the command line both "
        "are written to standard error, and the exit code is 1; over HTTP they are the `message` of the answer.",
        table(("exception", "meaning", "HTTP status", "`code`"), rows),
        EXIT_CODES,
    )


def _first_paragraph(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]


# --- all of it --------------------------------------------------------------------------------------------------------

PAGES = {FOLDER / f"{make.__name__}.md": make for make in (cli, python, http, errors)}


def main() -> int:
    stale = 0
    for path, make in PAGES.items():
        text = make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if sys.argv[1:] == ["--write"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            stale = 1
            print(f"{path.name} is stale: python scripts/reference.py --write")
    return stale


if __name__ == "__main__":
    sys.exit(main())
