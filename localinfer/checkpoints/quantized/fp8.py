"""FP8 checkpoints: matrices of E4M3 numbers with float scales.

    weight             F8_E4M3 [rows, columns]
    weight_scale_inv   [ceil(rows / 128), ceil(columns / 128)], for blocks of `weight_block_size` (DeepSeek, Qwen);
                       in spite of its name, weights are multiplied with it
    weight_scale       one value, or one per row (fbgemm, ModelOpt), or one per block (ModelOpt's FP8_PB_WO)

(DeepSeek-V3, README_WEIGHTS.md; transformers, integrations/fbgemm_fp8.py; NVIDIA ModelOpt, unified checkpoints.)
"""

from __future__ import annotations

from localinfer.checkpoints.quantized.extras import ACTIVATION_NOTE, CACHE_NOTE, note, set_aside
from localinfer.checkpoints.quantized.grid import small_float_matrix
from localinfer.checkpoints.quantized.matrix import QuantizedReader
from localinfer.checkpoints.quantized.settings import Settings
from localinfer.checkpoints.quantized.stored import damaged
from localinfer.errors import UnsupportedError
from localinfer.formats.safetensors import SafetensorsFolder

_SCALES = (".weight_scale_inv", ".weight_scale")
# ModelOpt's names of ways to quantize that are FP8, and whether scales are of blocks.
_ALGORITHMS = {
    "FP8": False,
    "FP8_PER_CHANNEL_PER_TOKEN": False,
    "FP8_PB_WO": True,
    "FP8_PB_REAL": True,
}
_MODELOPT_BLOCK = (128, 128)


def read(settings: Settings, tensors: SafetensorsFolder) -> QuantizedReader:
    """The reader of an FP8 checkpoint; see `reader_for`."""
    block = _block_of(settings)
    reader = QuantizedReader()
    for name, scale in tensors.tensors.items():
        suffix = next((suffix for suffix in _SCALES if name.endswith(suffix)), "")
        if not suffix:
            continue
        weight = tensors.tensor(name.removesuffix(suffix) + ".weight")
        if weight.dtype != "F8_E4M3":
            raise damaged(weight, f"has scales, but holds numbers of type {weight.dtype}, not F8_E4M3")
        if weight.name in reader.weights:
            raise damaged(scale, f"is a second scale of {weight.name}")
        reader.weights[weight.name] = small_float_matrix(weight, scale, block)
        reader.used |= {name, weight.name}
    for name, tensor in tensors.tensors.items():
        if tensor.dtype.startswith("F8_") and name not in reader.used:
            if tensor.dtype not in ("F8_E4M3", "F8_E8M0"):
                raise UnsupportedError(
                    f"{tensor.path}: tensor {name} holds floats of type {tensor.dtype}; E4M3 is read"
                )
            raise damaged(tensor, "has no scale")
    if settings.text("activation_scheme") == "static" or settings.values.get("activation_scale_ub") is not None:
        note(reader, ACTIVATION_NOTE)
    if settings.values.get("kv_cache_quant_algo") or settings.values.get("kv_cache_scheme"):
        note(reader, CACHE_NOTE)
    set_aside(reader, tensors)
    return reader


def _block_of(settings: Settings) -> tuple[int, int] | None:
    """The rows and columns that share a scale; None if scales are for whole tensors or rows."""
    algorithm = settings.text("quant_algo").upper()
    if algorithm:
        if algorithm not in _ALGORITHMS:
            raise UnsupportedError(
                f"{settings.path}: the model is quantized to {algorithm}, which is not read",
                f"of ModelOpt's types, {', '.join(_ALGORITHMS)} are",
            )
        return _MODELOPT_BLOCK if _ALGORITHMS[algorithm] else None
    block = settings.values.get("weight_block_size")
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        raise settings.error(f"weight_block_size should be two sizes, but is {block!r:.40}")
    return block[0], block[1]
