"""What each op of a Program computes, in float32 torch. Formulas stand in `kernels/program.py`.

Activations are `[tokens or rows, width]`. Nothing here knows of programs, caches or files.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from localinfer.kernels.program import Activation, RopeSpec

# Weight types that the CPU backend multiplies with int8 activations (kernels/cpu/native/matmul.h).
INTEGER_TYPES = frozenset(
    {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "I8_32", "I8_128", "I4_32", "I4_64", "I4_128"}
)
ACTIVATION_GROUP = 16  # activations that share one scale
INT16_LIMIT = 2**15 - 1
CHUNK = 256  # positions whose attention weights share one scale


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight` is `[group]`; every run of `group` columns is normalized by itself."""
    runs = x.view(x.shape[0], x.shape[1] // weight.shape[0], weight.shape[0])
    scale = torch.rsqrt(runs.square().mean(-1, keepdim=True) + eps)
    return (runs * scale * weight).view_as(x)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Over the last dimension; `weight` and `bias` are `[width]`."""
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x `[tokens, cols]`, weight `[rows, cols]`, bias `[rows]`."""
    return functional.linear(x, weight, bias)


def emulated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, type_name: str) -> Tensor:
    """The CPU backend's product with a weight of type `type_name`, its sums in float64.

    kernels/cpu/native/matmul.h rounds activations for the integer types; all that follows there equals, but for the
    order and rounding of float32 sums, the product with the dequantized weight, which is what stands here.
    """
    rounded = dequantized_activations(x) if type_name in INTEGER_TYPES else x.double()
    y = rounded @ weight.double().T
    return (y if bias is None else y + bias.double()).float()


def quantized_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 `[tokens, cols]` and float32 scales `[tokens, cols / 16]`, bit for bit as the CPU backend has them.

    scale = max|x| / 127 and q = round(x * (127 / max|x|)), ties to even, in float32. A group with max|x| < 2⁻¹¹⁹
    (whose factor may overflow) is zero; one with an infinity or a NaN has q = 0 and a NaN for scale.
    """
    groups = x.view(x.shape[0], x.shape[1] // ACTIVATION_GROUP, ACTIVATION_GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    regular = largest.isfinite() & (largest >= 2.0**-119)
    q = torch.where(regular, torch.round(groups * (127.0 / largest)), 0.0)
    scale = torch.where(regular, largest / 127.0, torch.where(largest < 2.0**-119, 0.0, math.nan))
    return q.view_as(x).to(torch.int8), scale.squeeze(-1)


def dequantized_activations(x: Tensor) -> Tensor:
    """x as the int8 form represents it, float64."""
    q, scale = quantized_activations(x)
    return q.double() * scale.double().repeat_interleave(ACTIVATION_GROUP, dim=-1)


def rope(x: Tensor, positions: Tensor, head_dim: int, spec: RopeSpec) -> Tensor:
    """x `[tokens, heads * head_dim]`, positions `[tokens]`. Angles are computed in float64."""
    frequencies = torch.tensor(spec.inverse_frequencies, dtype=torch.float64)
    angles = positions.double()[:, None, None] * frequencies
    cos, sin = (angles.cos() * spec.magnitude).float(), (angles.sin() * spec.magnitude).float()
    heads = x.view(x.shape[0], x.shape[1] // head_dim, head_dim).clone()
    turned = heads[..., : 2 * len(frequencies)]
    if spec.pairs == "adjacent":
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    rotated = first * cos - second * sin, first * sin + second * cos
    first.copy_(rotated[0])
    second.copy_(rotated[1])
    return heads.view_as(x)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    n_heads: int,
    scale: float,
    window: int,
    softcap: float,
    value_scales: Tensor | None = None,
) -> Tensor:
    """One sequence: q `[tokens, n_heads * head_dim]` at `positions`, k and v `[0 … last, kv heads, head_dim]`.

    With `value_scales` `[0 … last, kv heads]`, weights are rounded as the CPU backend rounds them for int8 values.
    """
    head_dim, group = k.shape[2], n_heads // k.shape[1]
    queries = q.view(q.shape[0], n_heads, head_dim).transpose(0, 1)
    keys = k.transpose(0, 1).repeat_interleave(group, dim=0)
    values = v.transpose(0, 1).repeat_interleave(group, dim=0)
    scores = queries @ keys.transpose(1, 2) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    distance = positions[:, None] - torch.arange(k.shape[0])
    hidden = (distance < 0) | (distance >= window) if window > 0 else distance < 0
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    if value_scales is not None:
        weights = rounded_weights(weights, value_scales.T.repeat_interleave(group, dim=0)[:, None])
    return (weights @ values).transpose(0, 1).reshape(q.shape)


def text_attention(q: Tensor, k: Tensor, v: Tensor, n_heads: int, scale: float) -> Tensor:
    """One text: q, k and v `[tokens, n_heads * head_dim]`; every token sees every token."""
    heads = (x.view(x.shape[0], n_heads, -1).transpose(0, 1) for x in (q, k, v))
    queries, keys, values = heads
    weights = (queries @ keys.transpose(1, 2) * scale).softmax(-1)
    return (weights @ values).transpose(0, 1).reshape(q.shape)


def rounded_queries(q: Tensor, head_dim: int) -> Tensor:
    """q `[tokens, heads * head_dim]`, float64, as the CPU backend rounds it for keys in int8: one scale per head.

    The integers are as large as a sum of `head_dim` products with int8 in 31 bits allows.
    """
    limit = min(INT16_LIMIT, (2**31 - 1) // 127 // head_dim)
    return _rounded(q.view(q.shape[0], q.shape[1] // head_dim, head_dim), limit).view(q.shape)


def rounded_weights(weights: Tensor, value_scales: Tensor) -> Tensor:
    """Weights, times the scales of the values that they are for, are int16 with one scale per chunk of positions."""
    scaled = torch.split(weights * value_scales, CHUNK, dim=-1)
    rounded = torch.cat([_rounded(chunk, INT16_LIMIT) for chunk in scaled], dim=-1)
    return torch.where(value_scales == 0, 0.0, rounded / value_scales)


def _rounded(x: Tensor, limit: int) -> Tensor:
    """x as integers of at most `limit` with one scale along the last dimension represent it, float64."""
    largest = x.abs().amax(-1, keepdim=True)
    regular = largest.isfinite() & (largest >= 2.0**-100)
    integers = torch.where(regular, torch.round(x * (limit / largest)), 0.0)
    unit = torch.where(regular, largest / limit, torch.where(largest < 2.0**-100, 0.0, math.nan))
    return integers.double() * unit.double()


def glu(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    return activate(gate, activation) * up


def activate(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)
