"""The prompt for a gap between two texts, in the form in which models learned to fill gaps in.

One file (Bavarian et al. 2022, arXiv:2207.14255), and with other files of its project before it (Hui et al. 2024,
arXiv:2409.12186, "repository-level"; marks in angle brackets, the last two in one order or the other):

    <prefix>...<suffix>...<middle>
    <repository>project⏎<file>name⏎text<file>name⏎text<file>name⏎<prefix>...<suffix>...<middle>
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from localinfer.errors import UnsupportedError
from localinfer.text.tokenizer import Tokenizer

PROJECT = "myproject"  # names for what a request does not name
FILE_NAME = "filename"
PREFIX_SHARE = 3 / 4  # of the room, if both sides of a gap are too long for it
LEAST_OF_A_FILE = 16  # tokens: less than that of a file says nothing
_BEFORE_TEXT = "☺"  # a text behind it is encoded as in the middle of a text


class File(NamedTuple):
    """Another file of the project, or a piece of one."""

    name: str
    text: str


def fill_in_prompt(
    tokenizer: Tokenizer, prefix: str, suffix: str, *, files: Sequence[File] = (), room: int | None = None
) -> array[int]:
    """Token ids of a prompt of at most `room` tokens, whose answer belongs between `prefix` and `suffix`.

    What is furthest from the gap is left out where the room is short: of the prefix its beginning, of the suffix its
    end, and of `files`, which only get what the two leave, the first ones; of the first that is shown, its beginning.
    None is room for everything. UnsupportedError if the vocabulary has no tokens for this.
    """
    marks = tokenizer.fill_in
    if marks is None:
        raise UnsupportedError(
            "this model cannot fill in a gap: its vocabulary has no tokens for the text before and after one",
            "models for code that can: Qwen2.5-Coder, StarCoder2, CodeLlama, DeepSeek-Coder, Granite, CodeGemma",
        )
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    fixed = len(bos) + 2 + (marks.middle is not None)
    before = tokenizer.encode(prefix, add_special=False, parse_special=False)
    behind = _inside(tokenizer, suffix)
    if room is not None:
        before, behind = _cut(before, behind, max(0, room - fixed))
    others: array[int] = array("i")
    if files:
        left = None if room is None else room - fixed - len(before) - len(behind)
        others = _others(tokenizer, files, left)
    prefix_part, suffix_part = [marks.prefix, *before], [marks.suffix, *behind]
    sides = [*suffix_part, *prefix_part] if marks.suffix_first else [*prefix_part, *suffix_part]
    return array("i", [*bos, *others, *sides, *(() if marks.middle is None else (marks.middle,))])


def _cut(before: array[int], behind: array[int], room: int) -> tuple[array[int], array[int]]:
    """The end of the first and the beginning of the second, together at most `room` tokens."""
    share = int(room * PREFIX_SHARE)
    kept_before = min(len(before), max(share, room - len(behind)))
    return before[len(before) - kept_before :], behind[: room - kept_before]


def _others(tokenizer: Tokenizer, files: Sequence[File], room: int | None) -> array[int]:
    """Other files, the last ones first as long as they fit, and what has to be between them and the gap."""
    marks = tokenizer.fill_in
    assert marks is not None
    front: list[int] = []
    if marks.repository is not None:
        front = [marks.repository, *_inside(tokenizer, f"{PROJECT}\n")]
    end = [] if marks.file is None else [marks.file, *_inside(tokenizer, f"{FILE_NAME}\n")]
    shown: list[list[int]] = []
    left = None if room is None else room - len(front) - len(end)
    for file in reversed(files):
        head = [] if marks.file is None else [marks.file, *_inside(tokenizer, f"{file.name}\n")]
        text = _inside(tokenizer, file.text if marks.file is not None else f"{file.text}\n\n")
        if left is not None:
            if left < len(head) + min(len(text), LEAST_OF_A_FILE):
                break
            text = text[max(0, len(head) + len(text) - left) :]
            left -= len(head) + len(text)
        shown.insert(0, [*head, *text])
    return array("i", [*front, *(token for file in shown for token in file), *end] if shown else [])


def _inside(tokenizer: Tokenizer, text: str) -> array[int]:
    """The tokens of a text that does not begin there: without the space that some vocabularies put in front."""
    if not tokenizer.space_prefix:
        return tokenizer.encode(text, add_special=False, parse_special=False)
    head = tokenizer.encode(_BEFORE_TEXT, add_special=False, parse_special=False)
    whole = tokenizer.encode(_BEFORE_TEXT + text, add_special=False, parse_special=False)
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return tokenizer.encode(text, add_special=False, parse_special=False)
