"""What quantized checkpoints hold besides weights, and what becomes of it here."""

from __future__ import annotations

from localinfer.checkpoints.quantized.matrix import QuantizedReader
from localinfer.formats.safetensors import SafetensorsFolder

# Scales and zero points of the inputs and outputs of matrices, and of a cache of few bits.
_ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "input_scale_ub", "activation_scale",
                "output_scale", "output_zero_point", "weight_observer_min", "weight_observer_max")  # fmt: skip
_CACHE = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "prob_output_scale", "kv_scale")
_CACHE_OUTPUTS = (".k_proj.output_scale", ".v_proj.output_scale", ".kv_proj.output_scale")

ACTIVATION_NOTE = (
    "the checkpoint is made for activations of few bits; here they are rounded as for every model, more finely: "
    "eight bits and a scale for every 16 values, or not at all for FP8"
)
CACHE_NOTE = "the checkpoint has scales for a cache of few bits, which are not used: --kv-type says how it is kept"


def set_aside(reader: QuantizedReader, tensors: SafetensorsFolder) -> None:
    """Marks what has no meaning here as used, and notes it."""
    for name in tensors.tensors:
        last = name.rpartition(".")[2]
        if name.endswith(_CACHE_OUTPUTS) or last in _CACHE:
            note(reader, CACHE_NOTE)
        elif last in _ACTIVATIONS:
            note(reader, ACTIVATION_NOTE)
        else:
            continue
        reader.used.add(name)


def note(reader: QuantizedReader, text: str) -> None:
    if text not in reader.notes:
        reader.notes.append(text)
