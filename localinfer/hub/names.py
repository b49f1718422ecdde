"""Which name a person means: case does not matter, and what stands behind ":" may be left out where one model fits."""

from __future__ import annotations

from collections.abc import Iterable

from localinfer.errors import LocalInferError


def meant(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is meant by `name`; None if there is none. LocalInferError if there are several."""
    wanted = name.lower()
    known = list(names)
    fitting = [each for each in known if each.lower() == wanted]
    fitting = fitting or [each for each in known if each.lower().partition(":")[0] == wanted]
    if len(fitting) > 1:
        raise LocalInferError(f"{name} may be one of {len(fitting)} models", f"say which: {', '.join(fitting)}")
    return fitting[0] if fitting else None


def near(name: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that are spelt nearly so, the nearest first."""
    from difflib import SequenceMatcher

    def likeness(other: str) -> float:
        return max(
            SequenceMatcher(None, a, b).ratio()
            for a, b in ((name.lower(), other.lower()), (_family(name), _family(other)))
        )

    ranked = sorted(((likeness(other), other) for other in names), key=lambda pair: (-pair[0], pair[1]))
    return [other for score, other in ranked if score >= 0.6]


def _family(name: str) -> str:
    return name.lower().partition(":")[0]
