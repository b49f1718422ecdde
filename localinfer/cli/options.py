"""Options that several commands share."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal

import typer

from localinfer.engine.sampling import SamplingParams

Model = Annotated[str, typer.Argument(help="An installed model, or the path of a .gguf file.", show_default=False)]
Context = Annotated[
    int | None,
    typer.Option("--context", "-c", help="Tokens that prompt and answer may take together.", show_default="automatic"),
]
Threads = Annotated[
    int, typer.Option("--threads", "-t", help="Threads; 0 is one per physical (performance) core.", min=0)
]
Backend = Annotated[str, typer.Option("--backend", help="auto, or one that `localinfer doctor` lists.")]
KvType = Annotated[
    Literal["f16", "bf16", "int8"], typer.Option("--kv-type", help="How keys and values of earlier tokens are kept.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_SAMPLING_HELP = {
    "temperature": (float, "Randomness; 0 takes the likeliest token each time."),
    "top_k": (int, "Draw from the k likeliest tokens; 0: all."),
    "top_p": (float, "Draw from the fewest tokens whose probabilities reach p."),
    "min_p": (float, "Draw from tokens at least p times as likely as the likeliest."),
    "typical_p": (float, "Locally typical sampling; 1: off."),
    "repetition_penalty": (float, "Make tokens that occurred less likely; 1: off."),
    "presence_penalty": (float, "Lower the logit of tokens that the answer has."),
    "frequency_penalty": (float, "The same, times how often the answer has them."),
    "penalty_window": (int, "How many last tokens the penalties look at; 0: all."),
    "seed": (int | None, "Same seed, same answer."),
    "max_tokens": (int | None, "End the answer after that many tokens."),
    "stop": (list[str], "End the answer before this text; may be given several times."),
}


def with_sampling(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each sampling parameter; it gets them as one SamplingParams, `params`.

    `defaults` are the values of SamplingParams that this command starts from.
    """
    start = {f.name: getattr(SamplingParams(**defaults), f.name) for f in fields(SamplingParams)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def with_options(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in _SAMPLING_HELP}
            command(**values, params=SamplingParams(**{**start, **chosen, "stop": tuple(chosen["stop"])}))

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "params"]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=list(start[name]) if name == "stop" else start[name],
                annotation=Annotated[kind, typer.Option(f"--{name.replace('_', '-')}", help=text)],
            )
            for name, (kind, text) in _SAMPLING_HELP.items()
        ]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + options
        with_options.__doc__ = command.__doc__
        with_options.__name__ = command.__name__
        with_options.__module__ = command.__module__
        # Typer reads a command's options from these two.
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return decorate
