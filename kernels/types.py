"""The table of tensor types: how many weights share a block, and how many bytes a block takes.

Ids and sizes are those of the GGUF format specification (ggml `enum ggml_type`), but for those of
`FIRST_INTERNAL_ID` and more: these never lie in a GGUF file, they are what the weights of quantized checkpoints in
other formats are rewritten to when they are loaded.
To add a type, add a row here and a dequantizer in `kernels/reference/dequantize.py`; tests pick both up.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_INTERNAL_ID = 1000


@dataclass(frozen=True)
class TensorType:
    """One way to store weights. A row of `n` weights takes `n / block_size * block_bytes` bytes."""

    name: str
    id: int
    block_size: int
    block_bytes: int

    @property
    def in_gguf(self) -> bool:
        """Whether GGUF files may have it."""
        return self.id < FIRST_INTERNAL_ID

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights, which must be a whole number of blocks."""
        if columns % self.block_size:
            raise ValueError(f"{columns} columns are no multiple of the {self.name} block of {self.block_size}")
        return columns // self.block_size * self.block_bytes


# name, id, weights per block, bytes per block
_ROWS = (
    ("F32", 0, 1, 4),
    ("F16", 1, 1, 2),
    ("Q4_0", 2, 32, 18),
    ("Q4_1", 3, 32, 20),
    ("Q5_0", 6, 32, 22),
    ("Q5_1", 7, 32, 24),
    ("Q8_0", 8, 32, 34),
    ("Q8_1", 9, 32, 40),
    ("Q2_K", 10, 256, 84),
    ("Q3_K", 11, 256, 110),
    ("Q4_K", 12, 256, 144),
    ("Q5_K", 13, 256, 176),
    ("Q6_K", 14, 256, 210),
    ("Q8_K", 15, 256, 292),
    ("IQ2_XXS", 16, 256, 66),
    ("IQ2_XS", 17, 256, 74),
    ("IQ3_XXS", 18, 256, 98),
    ("IQ1_S", 19, 256, 50),
    ("IQ4_NL", 20, 32, 18),
    ("IQ3_S", 21, 256, 110),
    ("IQ2_S", 22, 256, 82),
    ("IQ4_XS", 23, 256, 136),
    ("I8", 24, 1, 1),
    ("I16", 25, 1, 2),
    ("I32", 26, 1, 4),
    ("I64", 27, 1, 8),
    ("F64", 28, 1, 8),
    ("IQ1_M", 29, 256, 56),
    ("BF16", 30, 1, 2),
    ("TQ1_0", 34, 256, 54),
    ("TQ2_0", 35, 256, 66),
    ("MXFP4", 39, 32, 17),
    ("NVFP4", 40, 64, 36),
    ("Q1_0", 41, 128, 18),
    # A float32 scale and a zero point for integers, a float32 scale for floats of 8 bits (E4M3).
    ("I8_32", 1000, 32, 37),
    ("I8_128", 1001, 128, 133),
    ("I4_32", 1002, 32, 21),
    ("I4_64", 1003, 64, 37),
    ("I4_128", 1004, 128, 69),
    ("F8_32", 1005, 32, 36),
    ("F8_128", 1006, 128, 132),
)

TYPES: dict[str, TensorType] = {row[0]: TensorType(*row) for row in _ROWS}
BY_ID: dict[int, TensorType] = {t.id: t for t in TYPES.values() if t.in_gguf}  # what a GGUF file may name
