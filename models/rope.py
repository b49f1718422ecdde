"""Rope frequencies, resolved once at record time from metadata and the file's factor tensors.

    linear    f / factor                                         (Chen et al. 2023, arXiv:2306.15595)
    yarn      a ramp between f and f / factor                    (Peng et al. 2023, arXiv:2309.00071)
    longrope  f / factors_long or factors_short, magnitude > 1   (Ding et al. 2024, arXiv:2402.13753)
    llama3    f / rope_freqs, a tensor that the converter computes from Llama 3's four numbers

All in float64. `f[i] = base ** (-2 i / dims)` for the `dims` leading columns of a head that rotate.
"""

from __future__ import annotations

import math
from typing import Literal

from localinfer.errors import FormatError, UnsupportedError
from localinfer.kernels.program import RopeSpec
from localinfer.models.base import ModelSource

Pairs = Literal["adjacent", "halves"]

SCALINGS = ("none", "linear", "yarn", "longrope")


def plain_rope(base: float, dims: int, pairs: Pairs) -> RopeSpec:
    """Rope without any scaling."""
    return RopeSpec(tuple(_frequencies(base, dims)), 1.0, pairs)


def read_rope(source: ModelSource, head_dim: int, pairs: Pairs) -> RopeSpec:
    """The rope of the model's full-attention layers, with every scaling that the file asks for.

    FormatError if the numbers contradict each other, UnsupportedError for a scaling we do not know.
    """
    dims = rotated_columns(source, head_dim)
    frequencies = _frequencies(read_base(source), dims)
    scaling = source.text("rope.scaling.type", "linear")
    if scaling not in SCALINGS:
        raise UnsupportedError(
            f"metadata key {source.key('rope.scaling.type')}: rope scaling {scaling!r} is unknown",
            f"known are {', '.join(SCALINGS)}",
        )
    magnitude = source.positive("rope.scaling.attn_factor", 1.0)
    # Files made before `rope.scaling.factor` existed call it `rope.scale_linear`; 0 means not set.
    factor = source.number("rope.scaling.factor", source.number("rope.scale_linear", 0.0)) or 1.0
    divisors = _divisors(source, dims // 2, scaling)
    frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    if scaling == "yarn":
        if (share := source.number("rope.scaling.yarn_ext_factor", 1.0)) != 1.0:
            raise UnsupportedError(
                f"metadata key {source.key('rope.scaling.yarn_ext_factor')}: only 1 is supported, found {share!r}"
            )
        mix = _yarn_mix(source, dims)
        frequencies = [f / factor * m + f * (1 - m) for f, m in zip(frequencies, mix, strict=True)]
        # The paper's attention temperature, equation 22 (sqrt(1/t) = 0.1 ln(s) + 1), unless the file states one.
        magnitude *= source.positive("rope.scaling.yarn_attn_factor", 1.0 + 0.1 * math.log(max(factor, 1.0)))
    elif scaling == "linear":
        frequencies = [f / factor for f in frequencies]
    return RopeSpec(tuple(frequencies), magnitude, pairs)


def read_base(source: ModelSource, name: str = "rope.freq_base", default: float = 10000.0) -> float:
    """The number whose powers are the wave lengths."""
    base = source.positive(name, default)
    if base <= 1:
        raise FormatError(f"metadata key {source.key(name)}: expected a number > 1, found {base!r}")
    return base


def rotated_columns(source: ModelSource, head_dim: int) -> int:
    """How many leading columns of each head rotate; the rest pass through (partial rotary)."""
    dims = source.integer("rope.dimension_count", head_dim)
    if dims % 2 or dims > head_dim:
        raise FormatError(
            f"metadata key {source.key('rope.dimension_count')}: expected an even number <= the head size "
            f"{head_dim}, found {dims}"
        )
    return dims


def _frequencies(base: float, dims: int) -> list[float]:
    return [math.pow(base, -2 * i / dims) for i in range(dims // 2)]


def _divisors(source: ModelSource, count: int, scaling: str) -> list[float]:
    """What each frequency is divided by, from the file's factor tensors (1 where it has none)."""
    original = source.integer("rope.scaling.original_context_length", source.integer("context_length"))
    context = source.context or source.integer("context_length")
    name = "rope_factors_long.weight" if context > original else "rope_factors_short.weight"
    factors = source.factors("rope_freqs.weight", count) or source.factors(name, count)
    if factors is None and scaling == "longrope":
        raise FormatError(f"tensor {name} is missing, which rope scaling longrope needs")
    return factors or [1.0] * count


def _yarn_mix(source: ModelSource, dims: int) -> list[float]:
    """Per pair, 0 to keep the frequency and 1 to divide it: the ramp of the paper's section 3.2.

    Its ends are the pairs that turn `beta_fast` and `beta_slow` times in the original context, widened to integers.
    """
    original = source.integer("rope.scaling.original_context_length", source.integer("context_length"))
    base = read_base(source)

    def pair_of(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_of(source.positive("rope.scaling.yarn_beta_fast", 32.0))))
    high = min(dims - 1, math.ceil(pair_of(source.positive("rope.scaling.yarn_beta_slow", 1.0))))
    width = max(high - low, 0.001)
    return [min(1.0, max(0.0, (i - low) / width)) for i in range(dims // 2)]
