"""The code books of the IQ1, IQ2 and IQ3 types, which the gguf package keeps, for the native dequantizers.

Only a model that has such tensors pays for importing that package.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from localinfer.kernels.types import TYPES

_WITH_CODEBOOK = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")


def install_codebooks(library: ctypes.CDLL, type_names: Iterable[str]) -> None:
    """Hands the code books of those of `type_names` that have one to the native library; others are ignored.

    Call it before asking the library whether it supports the types, and before any model that uses them is loaded.
    """
    for name in sorted(set(type_names).intersection(_WITH_CODEBOOK)):
        import gguf.quants

        book = getattr(gguf.quants, name)
        book.init_grid()
        entries = book.grid.astype("int8").tobytes()
        if library.li_cpu_set_codebook(TYPES[name].id, entries, ctypes.c_size_t(len(entries))) != 0:
            raise RuntimeError(f"the code book of {name} in the gguf package has {len(entries)} bytes, not as expected")
