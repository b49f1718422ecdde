"""Text that comes in pieces: what may be the beginning of something that is looked for."""


def begun(text: str, mark: str) -> int:
    """The length of the longest end of `text` that is a beginning of `mark`, but not all of it."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
