"""Addresses of Python buffers, for native code."""

from __future__ import annotations

import ctypes
from typing import Any


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
