"""Text files below one folder, for models: nothing outside of it is reached, and no link is followed."""

import errno
import os
import stat
from pathlib import Path

from localinfer.errors import LocalInferError

_LARGEST = 65536  # bytes of a file
_MOST_NAMES = 200


class FileReader:
    """Reads below `folder`. LocalInferError says, for the model to read, what cannot be had and why."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise LocalInferError(f"{folder} is no folder", "--tools-folder names the folder to read from")
        self.folder = folder.resolve()

    def path(self, name: str) -> Path:
        """What a name means; nothing is looked up."""
        return self.folder.joinpath(*self._parts(name))

    def read(self, name: str) -> str:
        """The text of a file."""
        descriptor = self._open(self._parts(name), name)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise LocalInferError(f"{name} is {'a folder' if stat.S_ISDIR(mode) else 'no file'}")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(_LARGEST + 1)
        finally:
            os.close(descriptor)
        if len(data) > _LARGEST:
            raise LocalInferError(f"{name} has more than {_LARGEST} bytes, which is more than can be read")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise LocalInferError(f"{name} is no text in UTF-8")
        return text

    def names(self, name: str) -> str:
        """What is in a folder, a line each; folders end with a slash. Hidden files are left out."""
        descriptor = self._open(self._parts(name), name)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise LocalInferError(f"{name} is no folder")
            with os.scandir(descriptor) as entries:
                found = sorted(
                    entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                    for entry in entries
                    if not entry.name.startswith(".") and not entry.is_symlink()
                )
        finally:
            os.close(descriptor)
        more = [f"... and {len(found) - _MOST_NAMES} more"] if len(found) > _MOST_NAMES else []
        return "\n".join([*found[:_MOST_NAMES], *more]) or "(empty)"

    def _parts(self, name: str) -> list[str]:
        try:
            inside = Path(name)
            if inside.is_absolute():
                inside = inside.relative_to(self.folder)
        except ValueError:
            raise LocalInferError(f"{name} is outside of the folder that may be read") from None
        if ".." in inside.parts or "\0" in name:
            raise LocalInferError(f"{name} is outside of the folder that may be read")
        return list(inside.parts)

    def _open(self, parts: list[str], name: str) -> int:
        """A descriptor, reached folder by folder so that no link is followed."""
        # Without O_NONBLOCK a named pipe would be waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                below = os.open(part, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
        except (OSError, UnicodeError) as error:
            os.close(descriptor)
            reason = getattr(error, "strerror", None) or "it is no name"
            if getattr(error, "errno", 0) == errno.ELOOP:
                reason = "it is a link, which is not followed"
            raise LocalInferError(f"{name} cannot be read: {reason}") from error
        return descriptor
