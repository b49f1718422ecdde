"""llama.cpp's quantizer, through its library, and its imatrix tool: the peer that ours are compared with."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from peer import binary

# include/llama.h, enum llama_ftype, by the names that llama-quantize has for them.
FILE_TYPES = {
    "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12,
    "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30,
    "bf16": 32, "mxfp4": 38,
}  # fmt: skip


class _Importance(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("type", ctypes.c_int))


class _Parameters(ctypes.Structure):
    """llama_model_quantize_params of include/llama.h."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(_Importance)),
        ("kv_overrides", ctypes.c_void_p),
        ("tt_overrides", ctypes.POINTER(_Override)),
        ("prune_layers", ctypes.POINTER(ctypes.c_int32)),
        ("max_buf_size", ctypes.c_size_t),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Quantizer:
    """llama.cpp's library. Its messages are kept in `log`."""

    def __init__(self, source: Path) -> None:
        self._library = ctypes.CDLL(str(binary(source, "libllama.so")))
        self._library.llama_model_quantize_default_params.restype = _Parameters
        self._library.llama_model_quantize.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Parameters))
        self._library.llama_model_quantize.restype = ctypes.c_uint32
        self.log: list[str] = []
        self._callback = _LOG(lambda level, text, data: self.log.append(text.decode(errors="replace")))
        self._library.llama_log_set(self._callback, None)
        self._library.llama_backend_init()

    def quantize(
        self,
        model: Path,
        output: Path,
        name: str,
        importance: Mapping[str, npt.NDArray[np.float32]] | None = None,
        types: Mapping[str, str] | None = None,
        threads: int = 0,
    ) -> None:
        """Writes `output`. `types` names, for some tensors, the type that they get instead (of ggml: "F16")."""
        parameters = self._library.llama_model_quantize_default_params()
        parameters.ftype = FILE_TYPES[name]
        parameters.nthread = threads
        parameters.allow_requantize = True
        kept: list[Any] = []
        if importance:
            entries = (_Importance * (len(importance) + 1))()
            for entry, (tensor, values) in zip(entries, importance.items(), strict=False):
                data = np.ascontiguousarray(values, np.float32)
                kept.append(data)
                pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                entry.name, entry.data, entry.size = tensor.encode(), pointer, data.size
            parameters.imatrix = entries
        if types:
            overrides = (_Override * (len(types) + 1))()
            for override, (tensor, kind) in zip(overrides, types.items(), strict=False):
                override.pattern = f"^{re.escape(tensor)}$".encode()
                override.type = gguf.GGMLQuantizationType[kind]
            parameters.tt_overrides = overrides
            if "token_embd.weight" in types:
                parameters.token_embedding_type = gguf.GGMLQuantizationType[types["token_embd.weight"]]
        self.log.clear()
        if self._library.llama_model_quantize(str(model).encode(), str(output).encode(), ctypes.byref(parameters)):
            raise SystemExit(f"error: llama.cpp did not quantize {model}\n\n{''.join(self.log[-20:])}")


def imatrix(
    source: Path, model: Path, text: Path, output: Path, window: int = 512, threads: int = 2
) -> dict[str, npt.NDArray[np.float32]]:
    """What llama.cpp's own tool collects on a text: the mean of x² by column, for every matrix; kept in `output`."""
    if not output.exists():
        growing = output.with_suffix(".part.gguf")  # the tool saves its results now and then
        command = [binary(source, "llama-imatrix"), "-m", model, "-f", text, "-o", growing, "-c", window, "-t", threads]
        done = subprocess.run([str(part) for part in [*command, "--process-output"]], capture_output=True, text=True)
        if done.returncode or not growing.exists():
            raise SystemExit(f"error: llama-imatrix failed\n\n{done.stderr[-2000:]}")
        growing.replace(output)
    return read_imatrix(output)


def read_imatrix(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """An imatrix file, as llama-quantize reads it (tools/quantize/quantize.cpp)."""
    tensors = {tensor.name: np.array(tensor.data, np.float32) for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for name, sums in tensors.items():
        if name.endswith(".in_sum2"):
            stem = name.removesuffix(".in_sum2")
            found[stem] = (sums.reshape(-1) / tensors[f"{stem}.counts"].reshape(-1)[0]).astype(np.float32)
    return found
