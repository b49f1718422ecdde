"""Mixed precision: each tensor's type chosen so that a file of a given size is as close to the source as can be.

`--to 4.2bpw` and `--fit 6GB`. What was measured and what came of it stand in the recipe, so that anyone can see why a
tensor got its type, and so that the file can be made again without measuring again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.evaluate.windows import Windows
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES
from localinfer.quantize.allocate import Option, allocate
from localinfer.quantize.recipes import RECIPES, Choice, is_quantized_matrix, keep
from localinfer.quantize.report import Report
from localinfer.quantize.sensitivity import LADDER, Probe, Prober, fitting, options_of

_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*bpw", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
METHOD = "mixed-1"


@dataclass(frozen=True)
class Mix:
    """What was decided: a choice per tensor, the file type to claim, and what led to it, for the recipe."""

    choices: Sequence[Choice]
    file_type: int
    recipe: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """What was measured: tensors that keep their types, and what each type of every other costs."""

    tensors: Mapping[str, Tensor]
    kept: Mapping[str, Choice]
    probes: Sequence[Probe]
    options: Mapping[str, Sequence[Option]]
    windows: Windows

    def mix(self, budget: int) -> Mix:
        """Types so that all tensors take `budget` bytes at most. LocalInferError if the smallest types are larger."""
        left = budget - sum(choice.nbytes for choice in self.kept.values())
        _check_smallest(sum(min(option.nbytes for option in some) for some in self.options.values()), left)
        chosen = allocate(self.options, left)
        choices = [
            self.kept[name] if name in self.kept else Choice(name, tensor.shape, tensor.type.name, chosen[name].type)
            for name, tensor in self.tensors.items()
        ]
        recipe = {
            "mixed": METHOD,
            "budget": budget,
            "probes": {probe.tensor: [probe.type, float(f"{probe.divergence:.4g}")] for probe in self.probes},
            "predictions": self.windows.scored * len(self.windows.tokens),
            "expected_kl": float(f"{sum(option.error for option in chosen.values()):.4g}"),
        }
        return Mix(choices, _file_type(choices), recipe)


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
    return int(sum(math.prod(tensor.shape) for tensor in model.tensors.values()) * bits / 8)


class Task:
    """What is to be decided: a type for each of `tensors`, so that all take `budget` bytes at most.

    `ladder` names, for some of them, the only types they may get; one that may get none stays as it is.
    LocalInferError if all of them in their smallest types are larger.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], budget: int, ladder: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.tensors, self.budget = tensors, budget
        self.kept: dict[str, Choice] = {}
        self.ladders: dict[str, Sequence[str]] = {}
        for name, tensor in tensors.items():
            types = fitting(tensor, (ladder or {}).get(name, LADDER)) if is_quantized_matrix(tensor) else []
            if types:
                self.ladders[name] = types
            else:
                self.kept[name] = as_it_is(tensor) if is_quantized_matrix(tensor) else keep(tensor)
        self._fixed = sum(choice.nbytes for choice in self.kept.values())
        sizes = [[_size(tensors[name], kind) for kind in types] for name, types in self.ladders.items()]
        self.most = self._fixed + sum(map(max, sizes))  # bytes, of all tensors in their largest types
        _check_smallest(sum(map(min, sizes)), budget - self._fixed)

    def probe_types(self) -> dict[str, str]:
        """The type nearest to what each tensor will get on average: errors are most alike there."""
        weights = sum(math.prod(self.tensors[name].shape) for name in self.ladders)
        bits = 8 * (self.budget - self._fixed) / max(1, weights)
        return {name: min(types, key=lambda kind: abs(_bits(kind) - bits)) for name, types in self.ladders.items()}


def measure(prober: Prober, task: Task, windows: Windows, report: Report) -> Measured:
    """Measures over `windows` what the decision needs."""
    probes = prober.measure(task.probe_types(), windows, report)
    options = {}
    for number, probe in enumerate(probes):
        report.progress("computing errors", number, len(probes))
        options[probe.tensor] = options_of(prober, probe, task.ladders[probe.tensor])
    return Measured(task.tensors, task.kept, probes, options, windows)


def fit(measured: Measured, first: Mix, limit: int, size: Callable[[Mix], int]) -> Mix:
    """The mix whose file, of `size(mix)` bytes, is as large as may be but not larger than `limit`.

    `first` is a mix whose tensors alone would fill it. Headers depend on what they say, so it takes a few rounds.
    """
    found = first
    while (over := size(found) - limit) > 0:
        found = measured.mix(int(found.recipe["budget"]) - over)
    return found


def as_it_is(tensor: Tensor) -> Choice:
    """The type that a tensor has."""
    return Choice(tensor.name, tensor.shape, tensor.type.name, tensor.type.name)


def _check_smallest(least: int, budget: int) -> None:
    if least > budget:
        raise LocalInferError(
            f"the model does not fit: its matrices take {least / 1e6:.1f} MB in the smallest types, and "
            f"{max(0, budget) / 1e6:.1f} MB remain for them",
            "ask for a larger size, or take a smaller model",
        )


def _size(tensor: Tensor, kind: str) -> int:
    """Bytes of a tensor in another type."""
    return math.prod(tensor.shape[:-1]) * TYPES[kind].row_bytes(tensor.shape[-1])


def _bits(kind: str) -> float:
    """Per weight."""
    return 8 * TYPES[kind].block_bytes / TYPES[kind].block_size


def _file_type(choices: Sequence[Choice]) -> int:
    """The number of the recipe whose type most bytes have: what programs show, nothing depends on it."""
    sizes: Counter[str] = Counter()
    for choice in choices:
        sizes[choice.type] += choice.nbytes
    most = sizes.most_common(1)[0][0]
    return next((recipe.file_type for recipe in RECIPES.values() if recipe.type == most), 0)
