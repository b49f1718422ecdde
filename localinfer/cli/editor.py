"""A text in the person's own editor."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from localinfer.errors import LocalInferError


def edited(text: str) -> str:
    """The text as it is when the editor ends. LocalInferError if there is no editor, or it fails."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:  # which nobody else may read
        path = Path(folder) / "message.md"
        path.write_text(text + "\n", encoding="utf-8")
        try:
            code = subprocess.run([*command, str(path)], check=False).returncode
            found = path.read_text(encoding="utf-8")
        except OSError as error:
            raise LocalInferError(f"{command[0]} cannot be started: {error.strerror}", "set EDITOR") from error
        except UnicodeDecodeError as error:
            raise LocalInferError("what the editor wrote is not valid UTF-8") from error
    if code:
        raise LocalInferError(f"{command[0]} failed with exit code {code}, so the message stays as it was")
    return found.removesuffix("\n")
