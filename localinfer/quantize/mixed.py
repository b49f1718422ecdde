"""Mixed precision: each tensor's type chosen so that a file of a given size is as close to the source as can be.

`--to 4.2bpw` and `--fit 6GB`. What was measured and what came of it stand in the recipe, so that anyone can see why a
tensor got its type, and so that the file can be made again without measuring again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.evaluate.windows import Windows
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.types import TYPES
from localinfer.quantize.allocate import Option, allocate
from localinfer.quantize.recipes import RECIPES, Choice, is_quantized_matrix, keep
from localinfer.quantize.sensitivity import LADDER, Prober, Report, fitting, options_of

_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*bpw", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
METHOD = "mixed-1"


@dataclass(frozen=True)
class Mix:
    """What was decided: a choice per tensor, the file type to claim, and what led to it, for the recipe."""

    choices: Sequence[Choice]
    file_type: int
    measured: dict[str, Any]


def bits_of(text: str) -> float | None:
    """4.2 of "4.2bpw"; None for anything else."""
    match = _BITS.fullmatch(text.strip())
    return float(match[1]) if match else None


def bytes_of(text: str) -> int:
    """Bytes of "6GB", "500MiB" or "123456". LocalInferError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise LocalInferError(f"{text!r} is no size", "sizes are given like 6GB, 500MB or 4GiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def budget_of(model: ModelFile, bits: float) -> int:
    """Bytes that all tensors may take together for so many bits per weight."""
    weights = sum(
        tensor.nbytes // tensor.type.block_bytes * tensor.type.block_size for tensor in model.tensors.values()
    )
    return int(weights * bits / 8)


def mix(
    prober: Prober, budget: int, windows: Windows, report: Report, ladder: Mapping[str, Sequence[str]] | None = None
) -> Mix:
    """Chooses types so that all tensors take `budget` bytes at most, from what `prober` measures over `windows`.

    `ladder` names, for some tensors, the only types they may get. LocalInferError if the smallest are larger.
    """
    tensors = prober.model.tensors
    kept = {name: keep(tensor) for name, tensor in tensors.items() if not is_quantized_matrix(tensor)}
    ladders = {name: fitting(t, (ladder or {}).get(name, LADDER)) for name, t in tensors.items() if name not in kept}
    kept |= {name: keep_type(tensors[name].name, prober.model) for name, types in ladders.items() if not types}
    ladders = {name: types for name, types in ladders.items() if types}
    fixed = sum(choice.nbytes for choice in kept.values())
    weights = sum(_weights(prober.model, name) for name in ladders)
    bits = 8 * (budget - fixed) / max(1, weights)
    probes = {name: _probe_type(types, bits) for name, types in ladders.items()}
    measured = prober.measure(probes, windows, report)
    options = {probe.tensor: options_of(prober, probe, ladders[probe.tensor]) for probe in measured}
    chosen = _allocate(options, budget - fixed)
    choices = [
        kept[name] if name in kept else Choice(name, tensor.shape, tensor.type.name, chosen[name].type)
        for name, tensor in tensors.items()
    ]
    return Mix(
        choices,
        _file_type(choices),
        {
            "method": METHOD,
            "budget": budget,
            "windows": len(windows.tokens),
            "window": windows.size,
            "probes": {p.tensor: [p.type, float(f"{p.divergence:.4g}")] for p in measured},
            "expected_kl": float(f"{sum(option.error for option in chosen.values()):.4g}"),
        },
    )


def keep_type(name: str, model: ModelFile) -> Choice:
    """Exactly as it is."""
    tensor = model.tensor(name)
    return Choice(name, tensor.shape, tensor.type.name, tensor.type.name)


def _allocate(options: Mapping[str, Sequence[Option]], budget: int) -> dict[str, Option]:
    try:
        return allocate(options, budget)
    except ValueError:
        least = sum(min(option.nbytes for option in some) for some in options.values())
        raise LocalInferError(
            f"the model does not fit: its matrices take {least / 1e6:.1f} MB in the smallest types, and "
            f"{max(0, budget) / 1e6:.1f} MB remain for them",
            "ask for a larger size, or take a smaller model",
        ) from None


def _probe_type(types: Sequence[str], bits: float) -> str:
    """The type nearest to what the tensor will get on average: errors are most alike there."""
    sizes = {kind: 8 * TYPES[kind].block_bytes / TYPES[kind].block_size for kind in types}
    return min(types, key=lambda kind: abs(sizes[kind] - bits))


def _weights(model: ModelFile, name: str) -> int:
    tensor = model.tensor(name)
    return tensor.nbytes // tensor.type.block_bytes * tensor.type.block_size


def _file_type(choices: Sequence[Choice]) -> int:
    """The number of the recipe whose type most bytes have: what programs show, nothing depends on it."""
    sizes: Counter[str] = Counter()
    for choice in choices:
        sizes[choice.type] += choice.nbytes
    most = sizes.most_common(1)[0][0]
    return next((recipe.file_type for recipe in RECIPES.values() if recipe.type == most), 0)
