"""`search`: models on the Hugging Face hub, and whether they would run here."""

from __future__ import annotations

from typing import Any, NamedTuple

from localinfer.hub.choice import quant_of
from localinfer.hub.estimate import BITS_PER_WEIGHT, estimate, size_at
from localinfer.hub.listing import ask, licence_of
from localinfer.hub.report import Report

EXPANDED = ["config", "downloads", "gated", "gguf", "safetensors", "siblings", "tags", "cardData"]
UNQUANTIZED_BITS = 16


class Found(NamedTuple):
    """A repository.

    parameters  number of weights, 0 if the hub does not know
    quants      the quantizations that its GGUF files are of; empty for a repository of safetensors files
    choice      what `pull` would probably take here; "" if nothing can be said
    size        bytes of that, as estimated from `parameters`; 0 if nothing can be said
    memory      bytes that running it takes, likewise
    fits        whether that is there; None if nothing can be said
    kind        its architecture, or the class that its config.json names; "" if the hub does not know
    """

    name: str
    downloads: int
    licence: str
    gated: bool
    parameters: int
    quants: tuple[str, ...]
    choice: str
    size: int
    memory: int
    fits: bool | None
    kind: str


def search(words: str, limit: int, memory: int | None, report: Report, safetensors: bool = False) -> list[Found]:
    """Repositories whose names have these words, the most downloaded first: of GGUF files, or of safetensors.

    `memory` is what a model may take, in bytes. Unreachable or LocalInferError as in hub/listing.py.
    """
    kind = "safetensors" if safetensors else "gguf"
    found = ask(
        lambda api: list(api.list_models(search=words, filter=kind, sort="downloads", limit=limit, expand=EXPANDED)),
        None,
        report,
    )
    return [_found(info, memory) for info in found]


def _found(info: Any, memory: int | None) -> Found:
    files = [each.rfilename for each in info.siblings or ()]
    quants = {quant_of(file) for file in files if file.endswith(".gguf")} - {""}
    gguf = info.gguf if isinstance(info.gguf, dict) else {}
    parameters = int(gguf.get("total") or (info.safetensors.total if info.safetensors else 0) or 0)
    choice, size = _choice(quants, parameters, memory)
    needed = estimate(size, parameters, int(gguf.get("context_length") or 0)).total if size else 0
    config = info.config if isinstance(info.config, dict) else {}
    card = info.card_data.to_dict() if info.card_data else {}
    return Found(
        name=info.id,
        downloads=int(info.downloads or 0),
        licence=licence_of(card, info.tags or ()),
        gated=bool(info.gated),
        parameters=parameters,
        quants=tuple(sorted(quants, key=lambda quant: BITS_PER_WEIGHT.get(quant.removeprefix("UD-"), 0))),
        choice=choice,
        size=size,
        memory=needed,
        fits=None if not needed or memory is None else needed <= memory,
        kind=str(gguf.get("architecture") or next(iter(config.get("architectures") or ()), "")),
    )


def _choice(quants: set[str], parameters: int, memory: int | None) -> tuple[str, int]:
    """As hub/choice.py decides: the largest quantization that fits, else the smallest."""
    if not parameters:
        return "", 0
    sizes = {quant: size for quant in quants if (size := size_at(parameters, quant))}
    small = {quant: size for quant, size in sizes.items() if size * 8 < parameters * UNQUANTIZED_BITS} or sizes
    if not small:
        return ("", 0) if quants else ("safetensors", parameters * UNQUANTIZED_BITS // 8)
    ranked = sorted(small.items(), key=lambda pair: -pair[1])
    fitting = [pair for pair in ranked if memory is None or estimate(pair[1], parameters).total <= memory]
    return (fitting or ranked[-1:])[0]
