"""The numbers of a tensor of any type, as float32."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from localinfer.kernels.base import Tensor, row_range

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@functools.cache
def _halves() -> npt.NDArray[np.float32]:
    """What each of the 65,536 halves is: looking them up takes half the time of converting them."""
    import numpy as np

    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def float_rows(tensor: Tensor, start: int, rows: int) -> npt.NDArray[np.float32]:
    """Rows `[start, start + rows)` as float32 [rows, cols], a copy; a vector is one row. ValueError if out of range.

    F32, F16 and BF16 are exact; quantized types are dequantized as kernels/reference/dequantize.py defines it
    (UnsupportedError for a type that it lacks).
    """
    import numpy as np

    height, width = (1, tensor.shape[0]) if len(tensor.shape) == 1 else (tensor.shape[0], tensor.shape[-1])
    if len(tensor.shape) > 2:
        height = int(np.prod(tensor.shape[:-1]))
    if not 0 <= start <= start + rows <= height:
        raise ValueError(f"rows {start} to {start + rows} of tensor {tensor.name}, which has {height}")
    begin, count = row_range(tensor, start, rows)
    data = tensor.buffer[begin : begin + count]
    match tensor.type.name:
        case "F32":
            values = np.frombuffer(data, "<f4").astype(np.float32)
        case "F16":
            values = _halves().take(np.frombuffer(data, "<u2"))
        case "BF16":
            # The upper half of a float32.
            wide = np.zeros((count // 2, 2), "<u2")
            wide[:, 1] = np.frombuffer(data, "<u2")
            values = wide.view("<f4").astype(np.float32, copy=False)
        case _:
            from localinfer.kernels.reference.dequantize import dequantize

            values = dequantize(tensor.type, data, (rows, width), f"tensor {tensor.name}")
    return values.reshape(rows, width)
