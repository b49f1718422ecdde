"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from localinfer.text.partial import begun


class StopMatcher:
    """Passes text on, up to the first stop string. Text that may turn out to begin one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """What can be passed on now. Of stop strings that occur, the one that begins first counts."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.matched = min(found)
            # A longer stop string that began earlier and is not complete cannot complete any more: text ends here.
            self._held = ""
            return text[:at]
        held = max((begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """The text is over: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held
