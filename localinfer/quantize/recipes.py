"""Recipes: which tensor of a model gets which type.

The names are those that people know from llama.cpp, and so are the mixtures behind them (its documentation of
llama-quantize and the types found in its files): attention values and the ffn's second matrix of some layers get more
bits, the output matrix most. A matrix whose rows no block of its type divides gets a type that fits, which is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localinfer.errors import UnsupportedError
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES

_LAYER = re.compile(r"blk\.(\d+)\.")

# What comes in when a row is no whole number of blocks; the last that fits any row is F16.
_SMALLER_BLOCKS = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
# Matrices that stay as they are: routers, positions, and others that are small and that everything depends on.
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv",
    "per_layer_model_proj",
    "altup",
    "laurel",
    "attn_rel_b.weight",
)
_UNQUANTIZED = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Choice:
    """A tensor's type in the file to be; `reason` says it where the recipe's own type did not fit."""

    name: str
    shape: tuple[int, ...]
    source_type: str
    type: str
    reason: str = ""

    @property
    def nbytes(self) -> int:
        count = TYPES[self.type].row_bytes(self.shape[-1])
        for dimension in self.shape[:-1]:
            count *= dimension
        return count


@dataclass(frozen=True)
class Shape:
    """What recipes look at beside names: layers, query heads per key head, experts, whether the head has no matrix."""

    layers: int
    queries_per_key: int
    experts: int
    tied: bool


@dataclass(frozen=True)
class Rule:
    """Layers of a kind of matrix that get another type: `(layer, layers) -> whether`."""

    type: str
    layers: str = "all"  # a key of _LAYERS


@dataclass(frozen=True)
class Recipe:
    """`file_type` is the number that general.file_type gets, `kinds` the matrices that get another type than `type`."""

    file_type: int
    type: str
    kinds: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    grouped_values: str = ""  # for attention values that four or more query heads share

    def type_of(self, kind: str, layer: int, shape: Shape) -> str:
        """The type for a matrix of this kind (a key of `kinds`) in this layer."""
        if kind == "attn_v" and self.grouped_values and shape.queries_per_key >= 4:
            return self.grouped_values
        for rule in self.kinds.get(kind, ()):
            if _LAYERS[rule.layers](layer, shape.layers):
                return rule.type
        return self.type


def _every_third_and_both_ends(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


_LAYERS = {
    "all": lambda layer, layers: True,
    "first two": lambda layer, layers: layer < 2,
    "first four": lambda layer, layers: layer < 4,
    "first sixteenth": lambda layer, layers: layer < layers // 16,
    "first eighth": lambda layer, layers: layer < layers // 8,
    "every third and both ends": _every_third_and_both_ends,
}
_SOME = "every third and both ends"

RECIPES: dict[str, Recipe] = {
    "f32": Recipe(0, "F32"),
    "f16": Recipe(1, "F16"),
    "bf16": Recipe(32, "BF16"),
    "q4_0": Recipe(2, "Q4_0"),
    "q4_1": Recipe(3, "Q4_1"),
    "q5_0": Recipe(8, "Q5_0"),
    "q5_1": Recipe(9, "Q5_1"),
    "q8_0": Recipe(7, "Q8_0"),
    "q2_k": Recipe(
        10,
        "Q2_K",
        {"attn_v": (Rule("Q3_K"),), "ffn_down": (Rule("Q3_K"),), "attn_output": (Rule("Q3_K"),)},
        grouped_values="Q4_K",
    ),
    "q3_k_s": Recipe(11, "Q3_K"),
    "q3_k_m": Recipe(
        12,
        "Q3_K",
        {
            "attn_v": (Rule("Q5_K", "first two"), Rule("Q4_K")),
            "ffn_down": (Rule("Q5_K", "first sixteenth"), Rule("Q4_K")),
            "attn_output": (Rule("Q4_K"),),
        },
    ),
    "q3_k_l": Recipe(
        13, "Q3_K", {"attn_v": (Rule("Q5_K"),), "ffn_down": (Rule("Q5_K"),), "attn_output": (Rule("Q5_K"),)}
    ),
    "q4_k_s": Recipe(
        14, "Q4_K", {"attn_v": (Rule("Q5_K", "first four"),), "ffn_down": (Rule("Q5_K", "first eighth"),)}
    ),
    "q4_k_m": Recipe(15, "Q4_K", {"attn_v": (Rule("Q6_K", _SOME),), "ffn_down": (Rule("Q6_K", _SOME),)}),
    "q5_k_s": Recipe(16, "Q5_K"),
    "q5_k_m": Recipe(17, "Q5_K", {"attn_v": (Rule("Q6_K", _SOME),), "ffn_down": (Rule("Q6_K", _SOME),)}),
    "q6_k": Recipe(18, "Q6_K"),
    "iq4_nl": Recipe(25, "IQ4_NL", {"ffn_down": (Rule("Q5_K", "first eighth"),)}, grouped_values="Q5_K"),
    "iq4_xs": Recipe(30, "IQ4_XS", {"ffn_down": (Rule("Q5_K", "first eighth"),)}, grouped_values="Q5_K"),
    "mxfp4": Recipe(38, "MXFP4"),
}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4_moe": "mxfp4"}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, in any case; UnsupportedError, with the names that there are."""
    lower = name.lower()
    recipe = RECIPES.get(ALIASES.get(lower, lower))
    if recipe is None:
        raise UnsupportedError(f"there is no type {name!r}", f"there are {', '.join(RECIPES)}")
    return recipe


def choose(
    recipe: Recipe, tensors: Mapping[str, Tensor], shape: Shape, wanted: Mapping[str, str] | None = None
) -> list[Choice]:
    """One choice per tensor, in the order of the file; `wanted` names types that some tensors get instead."""
    return [_choose(recipe, tensor, shape, (wanted or {}).get(tensor.name, "")) for tensor in tensors.values()]


def _choose(recipe: Recipe, tensor: Tensor, shape: Shape, wanted: str) -> Choice:
    if not is_quantized_matrix(tensor):
        return keep(tensor)
    is_head = tensor.name == "output.weight" or (shape.tied and tensor.name == "token_embd.weight")
    if wanted:
        pass
    elif recipe.type in _UNQUANTIZED:
        wanted = recipe.type
    elif is_head:
        wanted = _head_type(recipe, tensor.shape[-1])
    elif recipe.type == "MXFP4" and tensor.name == "token_embd.weight":
        wanted = "Q8_0"
    else:
        wanted = recipe.type_of(kind_of(tensor.name), layer_of(tensor.name), shape)
    return fitted(tensor, wanted)


def _head_type(recipe: Recipe, columns: int) -> str:
    """The output matrix decides about every token: it gets six bits, or eight."""
    if recipe.type in ("Q8_0", "MXFP4") or columns % TYPES[recipe.type].block_size:
        return "Q8_0"
    return "Q6_K"


def keep(tensor: Tensor) -> Choice:
    """Stays as it is; 16-bit numbers become 32-bit ones, as llama.cpp wants to have vectors."""
    kind = "F32" if tensor.type.name in ("F16", "BF16") else tensor.type.name
    return Choice(tensor.name, tensor.shape, tensor.type.name, kind)


def fitted(tensor: Tensor, wanted: str) -> Choice:
    """The wanted type, or the nearest whose blocks divide the rows of the tensor."""
    columns, reason, chosen = tensor.shape[-1], "", wanted
    if columns % TYPES[chosen].block_size:
        chosen = _SMALLER_BLOCKS.get(chosen, "F16")
        if columns % TYPES[chosen].block_size:
            chosen = "F16"
        reason = f"rows of {columns} are no multiple of the {wanted} block of {TYPES[wanted].block_size}"
    return Choice(tensor.name, tensor.shape, tensor.type.name, chosen, reason)


def is_quantized_matrix(tensor: Tensor) -> bool:
    """Whether recipes decide about this tensor: matrices of weights do, vectors and small special ones do not."""
    name = tensor.name
    return len(tensor.shape) >= 2 and name.endswith("weight") and not any(part in name for part in _KEPT)


def kind_of(name: str) -> str:
    """What a matrix does, as recipes call it: its name without "blk.N." and ".weight", qkv counted as attn_v."""
    kind = _LAYER.sub("", name).removesuffix(".weight").removesuffix("_exps")
    return "attn_v" if kind in ("attn_qkv", "attn_kv_b") else kind


def layer_of(name: str) -> int:
    """The layer that a tensor belongs to; 0 for one that belongs to none."""
    match = _LAYER.match(name)
    return int(match[1]) if match else 0
