"""Things that are open until they are closed."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """What a `with` statement closes at its end, whatever ends it."""

    def close(self) -> None:
        """Lets go of what is held; may be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
