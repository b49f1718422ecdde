"""Backends: each runs the ops of a recorded `Program`. See `base.py` for the contract."""

# The folder stands at the top of the repository and installs as `localinfer.kernels`. Imported under
# another name it would be a second module with second copies of every class.
if __name__ != "localinfer.kernels":
    raise ImportError(f"import this package as localinfer.kernels, not as {__name__}")

from importlib import import_module
from typing import TYPE_CHECKING

from localinfer.errors import UnsupportedError

if TYPE_CHECKING:
    from localinfer.kernels.base import Backend

# name -> module:class, imported when it is asked for
BACKENDS = {
    "cpu": "localinfer.kernels.cpu.backend:CpuBackend",
    "reference": "localinfer.kernels.reference.backend:ReferenceBackend",
}


def backend(name: str) -> "Backend":
    """The backend of that name; UnsupportedError, which names the others, if there is none."""
    if name not in BACKENDS:
        raise UnsupportedError(f"there is no backend {name!r}", f"there are {', '.join(sorted(BACKENDS))}")
    module, _, attribute = BACKENDS[name].partition(":")
    found: Backend = getattr(import_module(module), attribute)()
    return found
