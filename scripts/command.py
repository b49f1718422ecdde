"""The installed command, for scripts that start it."""

from __future__ import annotations

import sys

# -P: in the repository's root, `localinfer` would be the folder there, which lacks kernels and models.
LOCALINFER: tuple[str, ...] = (sys.executable, "-P", "-m", "localinfer")
