"""Finding and opening the native libraries that the build installs beside their packages."""

from __future__ import annotations

import ctypes
import importlib.util
import os

from localinfer.errors import LocalInferError


def open_library(module: str) -> ctypes.CDLL:
    """Opens the shared library installed as `module`, for example "localinfer.kernels.host._host".

    The environment variable LOCALINFER_NATIVE_DIR names a folder with other builds of the same libraries
    (`scripts/sanitize` uses it); they are looked for there by file name.
    """
    name = module.rpartition(".")[2] + ".so"
    if folder := os.environ.get("LOCALINFER_NATIVE_DIR"):
        path = os.path.join(folder, name)
    else:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise LocalInferError(f"the native library {name} is not installed", "reinstall localinfer: pip install .")
        path = spec.origin
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise LocalInferError(
            f"the native library {path} does not load: {error}",
            "unset LOCALINFER_NATIVE_DIR if it is set, or reinstall localinfer: pip install .",
        ) from error
