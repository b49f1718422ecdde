"""Options that several commands share."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import typer

from localinfer.errors import LocalInferError

Model = Annotated[
    str,
    typer.Argument(help="An installed model, or the path of a .gguf file or safetensors folder.", show_default=False),
]
Quant = Annotated[
    str,
    typer.Option(
        "--quant",
        metavar="TYPE",
        help="Quantize a safetensors model while it is loaded: q8_0, q4_k, and others.",
        show_default=False,
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", "-c", help="Tokens that prompt and answer may take together.", show_default="automatic"),
]
Threads = Annotated[
    int, typer.Option("--threads", "-t", help="Threads; 0 is one per physical (performance) core.", min=0)
]
Backend = Annotated[str, typer.Option("--backend", help="auto, or one that `localinfer doctor` lists.")]
KV_TYPES = ("f16", "bf16", "int8")


def _kv_type(text: str) -> str:
    types = text.split(",")
    if len(types) > 2 or not set(types) <= set(KV_TYPES):
        raise typer.BadParameter(
            f"{text!r} is not one of {', '.join(KV_TYPES)}, or two of them, of keys and of values: f16,int8"
        )
    return text


KvType = Annotated[
    Any,  # a text, checked by the parser
    typer.Option(
        "--kv-type",
        parser=_kv_type,
        metavar="TYPE[,TYPE]",
        help=f"How keys and values of earlier tokens are kept: {', '.join(KV_TYPES)}, or one for each, as f16,int8.",
    ),
]
Speculation = Annotated[
    Literal["auto", "off", "ngram", "draft"],
    typer.Option(
        "--speculation",
        help="Guess tokens ahead, which changes no answer: where that measures faster (auto), never (off), always by "
        "looking earlier text up (ngram), or always with the draft model (draft).",
    ),
]
Draft = Annotated[
    str,
    typer.Option(
        "--draft", help="A small model of the same vocabulary, to guess tokens ahead with.", show_default=False
    ),
]
Template = Annotated[
    str, typer.Option("--template", help="A jinja2 file to use as the chat template.", show_default=False)
]
Think = Annotated[
    bool | None,
    typer.Option("--think/--no-think", help="Let the model think before it answers, or not.", show_default=False),
]
ThinkingBudget = Annotated[
    int | None,
    typer.Option("--thinking-budget", help="End a thought after that many tokens.", min=0, show_default=False),
]
Thoughts = Annotated[
    Literal["show", "hide"] | None,
    typer.Option(
        "--thoughts",
        help="Show what the model thinks, or not.",
        show_default="hide at a terminal, show where the output is a pipe or a file",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# Sampling parameters that have an option: kind and help. What is not given is left to the model's defaults.
_SAMPLING: dict[str, tuple[Any, str]] = {
    "temperature": (float | None, "Randomness; 0 takes the likeliest token each time."),
    "top_k": (int | None, "Draw from the k likeliest tokens; 0: all."),
    "top_p": (float | None, "Draw from the fewest tokens whose probabilities reach p."),
    "min_p": (float | None, "Draw from tokens at least p times as likely as the likeliest."),
    "typical_p": (float | None, "Locally typical sampling; 1: off."),
    "repetition_penalty": (float | None, "Make tokens that occurred less likely; 1: off."),
    "presence_penalty": (float | None, "Lower the logits of tokens that the answer has."),
    "frequency_penalty": (float | None, "The same, times how often the answer has them."),
    "penalty_window": (int | None, "How many last tokens the penalties look at; 0: all."),
    "dry_multiplier": (float | None, "DRY: lower what would repeat earlier text, the longer the more; 0: off."),
    "dry_base": (float | None, "... times this for each token that the repetition is longer."),
    "dry_allowed_length": (int | None, "Repetitions of that many tokens are the shortest that DRY lowers."),
    "dry_penalty_last_n": (int | None, "How many last tokens DRY looks at; -1: all, 0: off."),
    "dry_sequence_breakers": (
        list[str] | None,
        "DRY lets no repetition reach across this text; may be given several times, or once as none.",
    ),
    "top_n_sigma": (float | None, "Draw from logits at most n standard deviations below the largest; 0: off."),
    "xtc_probability": (float | None, "XTC: how often to leave out all likely tokens but the last of them; 0: off."),
    "xtc_threshold": (float | None, "... which are those of at least this probability."),
    "dynatemp_range": (float | None, "Let the temperature go up and down by so much, by how unsure the model is."),
    "dynatemp_exponent": (float | None, "... the higher, the lower it stays."),
    "mirostat": (int | None, "Keep the surprise even instead of cutting: 1 or 2; 0: off."),
    "mirostat_tau": (float | None, "... at so many bits per token."),
    "mirostat_eta": (float | None, "... and how fast to adapt."),
    "seed": (int | None, "Same seed, same answer."),
    "max_tokens": (int | None, "End the answer after that many tokens."),
    "stop": (list[str] | None, "End the answer before this text; may be given several times."),
    "loop_detection": (bool | None, "End an answer that repeats itself."),
}


def with_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each sampling parameter; it gets those that were given as a dict, `sampling`."""

    def with_options(**values: Any) -> None:
        given = {name: value for name in _SAMPLING if (value := values.pop(name)) not in (None, [])}
        if "stop" in given:
            given["stop"] = tuple(given["stop"])
            refuse_other_encodings(**{"--stop": "".join(given["stop"])})
        if "dry_sequence_breakers" in given:
            texts = tuple(given["dry_sequence_breakers"])
            given["dry_sequence_breakers"] = () if texts == ("none",) else texts
            refuse_other_encodings(**{"--dry-sequence-breakers": "".join(texts)})
        command(**values, sampling=given)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "sampling"]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind, typer.Option(_option(name, kind), help=text, show_default=False)],
        )
        for name, (kind, text) in _SAMPLING.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + options
    with_options.__doc__ = command.__doc__
    with_options.__name__ = command.__name__
    with_options.__module__ = command.__module__
    # Typer reads a command's options from these two.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


def _option(name: str, kind: Any) -> str:
    words = name.replace("_", "-")
    return f"--{words}/--no-{words}" if bool in get_args(kind) else f"--{words}"


def refuse_other_encodings(**texts: str) -> None:
    """LocalInferError for a text whose bytes on the command line were no UTF-8, by the name that it is given by."""
    for name, text in texts.items():
        # Python hands such a byte over as a lone surrogate (PEP 383).
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            raise LocalInferError(f"{name} is not valid UTF-8", "iconv converts texts of other encodings")
