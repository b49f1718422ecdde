"""Where everything lies in a safetensors file that is to be written. `safetensors.py` describes the format."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localinfer.formats.safetensors import DTYPE_BITS

_ALIGNMENT = 8  # of the data, by blanks behind the header


@dataclass(frozen=True)
class SafetensorsInfo:
    """What a header says of a tensor; `dtype` is a key of DTYPE_BITS."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class SafetensorsLayout:
    """The layout of a file, for a FileWriter. `metadata` are texts by key.

    Tensors are laid by the size of their numbers, largest first, so that each begins at a multiple of it: readers
    view them where they are.
    """

    def __init__(self, metadata: Mapping[str, str], tensors: Sequence[SafetensorsInfo]) -> None:
        entries: dict[str, object] = {"__metadata__": dict(metadata)}
        position = 0
        for info in sorted(tensors, key=lambda info: -DTYPE_BITS[info.dtype]):
            end = position + info.nbytes
            entries[info.name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [position, end]}
            position = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self.header = struct.pack("<Q", len(text)) + text
        self.offsets = {
            name: len(self.header) + entry["data_offsets"][0]
            for name, entry in entries.items()
            if isinstance(entry, dict) and "data_offsets" in entry
        }
        self.size = len(self.header) + position
