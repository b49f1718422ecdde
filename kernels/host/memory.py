"""Addresses of Python buffers, for native code, and what lies there."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

_MAP_FIXED = 0x10  # on Linux and on macOS; Python's mmap does not name it


class _Buffer(ctypes.Structure):
    """The leading fields of CPython's Py_buffer and room for the rest (Python/C API, "Buffer Protocol")."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("rest", ctypes.c_void_p * 16),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_Buffer),)
_release_buffer.restype = None


def address_of(buffer: Any) -> int:
    """Where the bytes of a contiguous buffer lie (memoryview, array, bytes, mmap; read-only ones too).

    The address is valid as long as the caller keeps `buffer` alive and does not resize or release it.
    Raises BufferError if the bytes are not contiguous.
    """
    view = _Buffer()
    _get_buffer(buffer, ctypes.byref(view), 0)  # 0: PyBUF_SIMPLE
    address = int(view.address or 0)
    _release_buffer(ctypes.byref(view))
    return address


def copy_in_place(mapping: Any, size: int) -> None:
    """Puts a copy of the first `size` bytes of a mapped file (a whole mmap, or a view of one) where they are mapped.

    Views of them stay valid, and what happens to the file no longer concerns them: shortening a mapped file makes
    every access behind its new end a SIGBUS. The copy counts as memory of this process. OSError if there is none left.
    Nobody may read these bytes meanwhile.
    """
    address = address_of(mapping)
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE  # the last page of a file is mapped whole, with zeros at its end
    contents = ctypes.string_at(address, size)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    if libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    ctypes.memmove(address, contents, size)
