"""Where localinfer keeps things. Nothing here is created by asking for it."""

from __future__ import annotations

import os
from pathlib import Path


def models_folder() -> Path:
    """`$LOCALINFER_HOME/models`, else `localinfer/models` in the XDG data folder (~/.local/share)."""
    return _base("XDG_DATA_HOME", ".local/share") / "models"


def conversations_folder() -> Path:
    """`$LOCALINFER_HOME/conversations`, else `localinfer/conversations` in the XDG data folder."""
    return _base("XDG_DATA_HOME", ".local/share") / "conversations"


def config_folder() -> Path:
    """`$LOCALINFER_HOME/config`, else `localinfer` in the XDG config folder (~/.config)."""
    base = _base("XDG_CONFIG_HOME", ".config")
    return base / "config" if os.environ.get("LOCALINFER_HOME") else base


def _base(variable: str, default: str) -> Path:
    if home := os.environ.get("LOCALINFER_HOME"):
        return Path(home).expanduser().absolute()
    # The XDG base directory specification: a relative path in these variables is invalid and ignored.
    folder = os.environ.get(variable, "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / default) / "localinfer"
