"""`localinfer serve [NAME...]`"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localinfer.cli.chat import DEFAULT_MODEL
from localinfer.cli.options import Backend, Context, Draft, KvType, Quant, Speculation, Template, Threads
from localinfer.cli.output import ReaderLeft, note
from localinfer.cli.pull import offer_to_pull
from localinfer.errors import LocalInferError

if TYPE_CHECKING:
    from localinfer.engine.llm import LLM
    from localinfer.server.on_demand import ModelSource

KEY_VARIABLE = "LOCALINFER_API_KEY"


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Installed models, or paths of .gguf files or safetensors folders; the first is the default one.",
            show_default=DEFAULT_MODEL,
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", help="0 takes a free one.", min=0, max=65535)] = 8080,
    host: Annotated[
        str, typer.Option("--host", help="An address of this machine; 0.0.0.0 is all of them, and needs a key.")
    ] = "127.0.0.1",
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help=f"A key that clients must send. Others can see it on a command line, but not in ${KEY_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    api_key_file: Annotated[
        str, typer.Option("--api-key-file", help="A file with one key per line.", show_default=False)
    ] = "",
    alias: Annotated[
        list[str] | None,
        typer.Option("--alias", help="OTHER=NAME: clients may ask for the model NAME as OTHER.", show_default=False),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", help="Answers computed at the same time.", min=1)] = 8,
    queue: Annotated[int, typer.Option("--queue", help="Requests that may wait; more get a 429.", min=0)] = 64,
    context: Context = None,
    kv_tokens: Annotated[
        int,
        typer.Option(
            "--kv-tokens",
            help="Tokens that the cache of keys and values holds, of all answers together.",
            min=0,
            show_default="automatic",
        ),
    ] = 0,
    kv_type: KvType = "f16",
    quant: Quant = "",
    threads: Threads = 0,
    backend: Backend = "auto",
    template: Template = "",
    speculation: Speculation = "auto",
    draft: Draft = "",
    idle_unload: Annotated[
        float,
        typer.Option(
            "--idle-unload", help="Unload a model that nobody asked for so many seconds.", min=0, show_default="never"
        ),
    ] = 0.0,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin", help="Let web pages of this origin ask, beside local ones; * is all.", show_default=False
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="A name by which this server may be asked without a key, beside localhost and IP addresses.",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[str, typer.Option("--tls-cert", help="A certificate in PEM form.", show_default=False)] = "",
    tls_key: Annotated[str, typer.Option("--tls-key", help="Its private key.", show_default=False)] = "",
    max_body: Annotated[int, typer.Option("--max-body", help="MiB that a request may have.", min=1)] = 32,
    drain: Annotated[
        float, typer.Option("--drain", help="Seconds that answers may take to finish after SIGTERM.", min=0)
    ] = 30.0,
    log_file: Annotated[
        str, typer.Option("--log-file", help="Where lines about requests go.", show_default="standard error")
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for every request, also of /health.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Pull models without asking.")] = False,
) -> None:
    """Answer clients of OpenAI's and other APIs.

    The first model is loaded at once, others when they are asked for; where memory is short, the one that was used the
    longest ago makes room. Ctrl-C or SIGTERM lets running answers finish; a second one stops at once. Exit codes: 0 all
    answers were finished, 1 an error or answers that were cut off, 130 and 143 stopped at once.
    """
    asked = list(dict.fromkeys(models or [DEFAULT_MODEL]))
    if draft and len(asked) > 1:
        raise typer.BadParameter("--draft goes with one model: a draft model guesses for one of its own family")
    names = list(dict.fromkeys(offer_to_pull(name, yes, "serve") for name in asked))
    keys = (*(api_key or ()), *_environment_keys(), *(_keys_of_file(api_key_file) if api_key_file else ()))
    for key in keys:
        _check_key(key)
    from localinfer.cli.loading import read_template
    from localinfer.server.process import run
    from localinfer.server.settings import MEBIBYTE, ServerSettings

    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=keys,
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=tuple(allowed_host or ()),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        max_body=max_body * MEBIBYTE,
        parallel=parallel,
        queue=queue,
        drain_seconds=drain,
        idle_unload=idle_unload,
        log_file=log_file,
        verbose=verbose,
    )
    options: dict[str, Any] = {
        "threads": threads,
        "backend": backend,
        "kv_type": kv_type,
        "quant": quant,
        "max_sequences": parallel,
        "kv_tokens": kv_tokens,
        "speculation": speculation,
        "draft": draft or None,
        "chat_template": read_template(template) if template else None,
    }
    sources = plan_models(names, _aliases(alias or ()), context, options)
    code = run(settings, sources, _say)
    if code:
        raise typer.Exit(code)


def _say(text: str) -> None:
    """Whoever read standard error may be gone: the server goes on."""
    with contextlib.suppress(ReaderLeft, OSError):
        note(text)


def plan_models(
    names: list[str], aliases: dict[str, str], context: int | None, options: dict[str, Any]
) -> "list[ModelSource]":
    """The models as the server loads them: their contexts and pools are settled here, each as if it were alone.

    `aliases` leads from other names to these. LocalInferError if a model is not there, is damaged, or does not fit
    the memory that is free now.
    """
    from localinfer.hub.store import resolve
    from localinfer.server.on_demand import ModelSource

    paths = {name: resolve(name) for name in names}
    ids = _served_names(paths)
    known = {**{name: name for name in names}, **{served: name for name, served in ids.items()}}
    for other, name in aliases.items():
        if name not in known:
            raise LocalInferError(
                f"--alias {other}={name}: {name} is not served", f"served are {', '.join(ids.values())}"
            )
        if other in known:
            raise LocalInferError(f"--alias {other}={name}: {other} is the name of a model already")
    sources = []
    for name, path in paths.items():
        others = [other for other, target in aliases.items() if known[target] == name]
        if ids[name] != name:
            others.append(name)
        if path.name not in (ids[name], *others) and [p.name for p in paths.values()].count(path.name) == 1:
            others.append(path.name)
        fixed = {**options, **_settled(path, context, options)}
        sources.append(
            ModelSource(ids[name], path, fixed["context"], _loader(str(path), ids[name], fixed), tuple(others))
        )
    return sources


def _settled(path: Path, context: int | None, options: dict[str, Any]) -> dict[str, int]:
    """Context and pool of a model, by a plan made before anything is loaded."""
    from localinfer.checkpoints import open_model
    from localinfer.engine.load import choose_backend
    from localinfer.engine.plan import Wishes, kv_types, make_plan
    from localinfer.hub.store import resolve

    wishes = Wishes(
        context,
        *kv_types(options["kv_type"]),
        options["threads"],
        options["max_sequences"],
        kv_tokens=options["kv_tokens"],
    )
    with contextlib.ExitStack() as files:
        file = files.enter_context(open_model(path, options["quant"]))
        draft = files.enter_context(open_model(resolve(options["draft"]))) if options["draft"] else None
        config = make_plan(file, choose_backend(options["backend"])[0], wishes, draft).config
    return {"context": config.context, "kv_tokens": config.kv_blocks * config.block_size}


def _loader(path: str, name: str, options: dict[str, Any]) -> "Any":
    def load(promised: int) -> "LLM":
        from localinfer.cli.loading import recommended_sampling
        from localinfer.engine.llm import LLM

        llm = LLM(path, promised=promised, **options)
        llm.name = name
        llm.chat_defaults, _ = recommended_sampling(llm.chat_defaults, llm.path)
        llm.detach()  # the file may change while it is served
        if llm.chat_template is not None:
            llm.prepare_grammars()
        return llm

    return load


def _served_names(paths: dict[str, Path]) -> dict[str, str]:
    """What clients call each model: as it was installed, or a file's name without its ending if that is unique."""
    names = {name: _file_name(path) if os.path.exists(name) else name for name, path in paths.items()}
    return {name: served if list(names.values()).count(served) == 1 else name for name, served in names.items()}


def _file_name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path)) if path.is_dir() else path.stem


def _aliases(given: "list[str] | tuple[str, ...]") -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        other, equals, name = text.partition("=")
        if not (other and equals and name):
            raise typer.BadParameter(f"--alias {text} should be OTHER=NAME: the new name first")
        if other in found:
            raise typer.BadParameter(f"--alias gives {other} twice")
        found[other] = name
    return found


def _environment_keys() -> list[str]:
    key = os.environ.get(KEY_VARIABLE)
    if key == "":
        raise LocalInferError(
            f"{KEY_VARIABLE} is set and empty: this server would ask for no key", f"unset {KEY_VARIABLE}"
        )
    return [key] if key else []


def _keys_of_file(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LocalInferError(f"the file of API keys {path} cannot be read: {error}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            _check_key(line.strip(), f"line {number} of {path}")
            keys.append(line.strip())
    if not keys:
        raise LocalInferError(f"the file of API keys {path} has no key in it", "write one key per line")
    return keys


def _check_key(key: str, where: str = "an API key") -> None:
    """A key travels in a header: anything but visible ASCII would not arrive, and would lock everybody out."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise LocalInferError(
            f"{where} is empty, or has characters other than visible ASCII", "`openssl rand -hex 24` makes a key"
        )
