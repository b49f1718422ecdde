"""ctypes bindings of native/api.cpp. The structs mirror native/model.h; a check of sizes and counts at load
catches a drift."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, get_args

from localinfer.errors import LocalInferError
from localinfer.kernels.cpu.lower import MAX_HEADS_PER_KV_HEAD, MAX_OUTPUTS, Kind
from localinfer.kernels.native_library import open_library

KINDS = get_args(Kind)  # in the order of OpKind in native/model.h
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
INDEXES = ("token", "position", "type")  # in the order of Index in native/model.h
KV_TYPES = ("f16", "bf16", "int8")
PURPOSES = ("weights", "kv", "activations")
CHUNK = 256  # positions that attention sums up together: kChunk in native/vector.h


class ValueRef(Structure):
    _fields_ = [("slot", c_int32), ("width", c_int32), ("dim", c_int32), ("is_private", c_int32)]


class NativeOp(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("barrier_single", c_int32),
        ("barrier_batch", c_int32),
        ("by_columns", c_int32),
        ("inputs", ValueRef * 3),
        ("outputs", ValueRef * MAX_OUTPUTS),
        ("matrices", c_int32 * MAX_OUTPUTS),
        ("biases", c_int32 * MAX_OUTPUTS),
        ("n_matrices", c_int32),
        ("activations", c_int32),
        ("vector", c_int32),
        ("bias", c_int32),
        ("rope", c_int32),
        ("layer", c_int32),
        ("group", c_int32),
        ("heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("activation", c_int32),
        ("index", c_int32),
        ("factor", c_float),
        ("softcap", c_float),
    ]


class Config(Structure):
    _fields_ = [
        ("max_tokens", c_int32),
        ("max_rows", c_int32),
        ("max_sequences", c_int32),
        ("context", c_int32),
        ("kv_blocks", c_int32),
        ("block_size", c_int32),
        ("kv_type_k", c_int32),
        ("kv_type_v", c_int32),
        ("threads", c_int32),
        ("pool", c_void_p),
        ("isa", c_char_p),
    ]


class BatchView(Structure):
    _fields_ = [
        ("tokens", c_int32),
        ("sequences", c_int32),
        ("rows", c_int32),
        ("table_size", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("starts", c_void_p),
        ("block_table", c_void_p),
        ("table_starts", c_void_p),
        ("logit_rows", c_void_p),
        ("types", c_void_p),
    ]


# name -> (result type, argument types)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "li_cpu_isa_name": (c_char_p, [c_int]),
    "li_cpu_group_bytes": (c_size_t, [c_char_p, c_int32, c_int32]),
    "li_cpu_integer_type": (c_int, [c_char_p, c_int32]),
    "li_cpu_layout": (None, [POINTER(c_int32)]),
    "li_cpu_set_codebook": (c_int, [c_int32, c_char_p, c_size_t]),
    "li_cpu_pool_create": (c_void_p, []),
    "li_cpu_pool_grow": (c_int, [c_void_p, c_int]),
    "li_cpu_create": (c_void_p, [POINTER(Config)]),
    "li_cpu_destroy": (None, [c_void_p]),
    "li_cpu_error": (c_char_p, [c_void_p]),
    "li_cpu_add_matrix": (c_int, [c_void_p, c_int32, c_int32, c_int32, c_int, c_uint64, c_size_t]),
    "li_cpu_add_vector": (c_int, [c_void_p, c_void_p, c_int]),
    "li_cpu_add_rope": (c_int, [c_void_p, c_void_p, c_int, c_float, c_int]),
    "li_cpu_add_kv_layer": (c_int, [c_void_p, c_int32, c_int32]),
    "li_cpu_reserve": (c_int, [c_void_p, c_void_p, c_int, c_void_p, c_int, c_void_p, c_int, c_int]),
    "li_cpu_load_weights": (c_int, [c_void_p]),
    "li_cpu_progress": (c_uint64, [c_void_p]),
    "li_cpu_reserved": (POINTER(c_uint64), [c_void_p]),
    "li_cpu_step": (c_int, [c_void_p, POINTER(BatchView)]),
    "li_cpu_set_hidden": (None, [c_void_p, c_int, c_int]),
    "li_cpu_hidden_step": (c_int, [c_void_p, POINTER(BatchView)]),
    "li_cpu_hidden": (c_void_p, [c_void_p]),
    "li_cpu_copy_blocks": (c_int, [c_void_p, c_void_p, c_int]),
    "li_cpu_cancel": (None, [c_void_p]),
    "li_cpu_logits": (c_void_p, [c_void_p]),
    "li_cpu_profile": (None, [c_void_p, c_void_p, c_int]),
}


@cache
def library() -> ctypes.CDLL:
    """The opened native library, with every function's types declared. Calls release the GIL (ctypes.CDLL does)."""
    native = open_library("localinfer.kernels.cpu._cpu")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(native, name)
        function.restype = result
        function.argtypes = arguments
    layout = (c_int32 * 6)()
    native.li_cpu_layout(layout)
    sizes = [ctypes.sizeof(struct) for struct in (NativeOp, Config, BatchView)]
    if list(layout) != [*sizes, len(KINDS), MAX_HEADS_PER_KV_HEAD, CHUNK]:
        raise LocalInferError(
            "the native library does not belong to this version of localinfer", "reinstall it: pip install ."
        )
    return native


def isa_names() -> list[str]:
    """Instruction sets whose kernels can run here, the best last."""
    names: list[str] = []
    while (name := library().li_cpu_isa_name(len(names))) is not None:
        names.append(name.decode())
    return names
