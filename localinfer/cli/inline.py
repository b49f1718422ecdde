"""Marks inside of a line of markdown: from its text to the cells of a terminal.

A mark that is not closed, as far as is known, is shown as it was written. Known are `code`, **bold**, *italic* (both
with underscores too), ~~struck out~~, [links](https://example.org), <https://example.org>, and \\* for a mark that is
none. All else is text. A mark inside of a word is none, but in scripts written without spaces.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from localinfer.cli.wrap import Cell, begin_of_last_word, cells, columns_of

BOLD, DIM, ITALIC, UNDERLINED, STRUCK, CODE = "1", "2", "3", "4", "9", "36"
_EMPHASIS = {"**": BOLD, "__": BOLD, "*": ITALIC, "_": ITALIC, "~~": STRUCK, "***": f"{BOLD};{ITALIC}"}
_OPEN = re.compile(r"`+|\*+|_+|~~+|\\|\[|<")
_LINK = re.compile(
    r"\[((?:[^\[\]\\]|\\.)*)\]\(\s*([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
)
_LINK_BEGUN = re.compile(r"\[((?:[^\[\]\\]|\\.)*)(?:\](?:\([^)]*)?)?$")
_ADDRESS = re.compile(r"<((?:https?://|mailto:)[^\s<>]*)>")
_ADDRESS_BEGUN = re.compile(r"<(?:https?://|mailto:)?[^\s<>]*$")
_ESCAPED = "*_`#~<>|[]-+."
_DEEPEST = 6  # marks within marks


@dataclass(frozen=True)
class Line:
    """A line, or what is there of it: its cells, and how much of them and of its text cannot change any more."""

    cells: list[Cell]
    certain_cells: int
    certain_text: int


def inline(text: str, before: str = " ", *, style: str = "", final: bool = True) -> Line:
    """`before` is the character in front of the text. Without `final`, more of the text may come."""
    return _Reader(text, before, style, final).line()


class _Reader:
    def __init__(self, text: str, before: str, style: str, final: bool, depth: int = 0) -> None:
        self._text, self._before, self._style, self._final, self._depth = text, before, style, final, depth
        self._cells: list[Cell] = []
        self._edges = [(0, 0)]  # (text, cells) between two items of the line
        self._open: int | None = None  # where the first mark begins that may be closed yet

    def line(self) -> Line:
        text, place = self._text, 0
        while match := _OPEN.search(text, place):
            self._plain(text[place : match.start()], match.start())
            place = self._item(match.start(), match[0])
            self._edges.append((place, len(self._cells)))
        self._plain(text[place:], len(text))
        limit = len(text) if self._open is None else self._open
        words = begin_of_last_word(self._cells)
        edge = max((edge for edge in self._edges if edge[0] <= limit and edge[1] <= words), default=(0, 0))
        return Line(self._cells, edge[1], edge[0])

    def _plain(self, text: str, end: int) -> None:
        begin, count = end - len(text), len(self._cells)
        self._cells += cells(text, self._style)
        if self._depth == 0:
            # Text may be cut behind a space, or a wide character.
            place = begin_of_last_word(self._cells[count:])
            self._edges += [(begin + place, count + place), (end, len(self._cells))]

    def _item(self, place: int, mark: str) -> int:
        """Reads what a mark begins, and says where it ends."""
        read: dict[str, Callable[[int, str], int]] = {
            "`": self._code, "\\": self._escape, "[": self._link, "<": self._address,
        }  # fmt: skip
        return read.get(mark[0], self._emphasis)(place, mark)

    def _as_written(self, place: int, mark: str, *, may_close: bool) -> int:
        if may_close and not self._final and self._open is None:
            self._open = place
        self._cells += cells(mark, self._style)
        return place + len(mark)

    def _code(self, place: int, mark: str) -> int:
        begin = place + len(mark)
        closing = re.compile(rf"(?<!`){mark}(?!`)").search(self._text, begin)
        if closing is None or (closing.end() == len(self._text) and not self._final):
            return self._as_written(place, mark, may_close=True)
        inside = self._text[begin : closing.start()]
        if inside.startswith(" ") and inside.endswith(" ") and inside.strip():
            inside = inside[1:-1]
        self._cells += cells(inside, self._with(CODE))
        return closing.end()

    def _escape(self, place: int, mark: str) -> int:
        following = self._text[place + 1 : place + 2]
        if following and following in _ESCAPED and following not in "[]":
            self._cells.append(Cell(following, self._style))
            return place + 2
        return self._as_written(place, mark, may_close=not following)

    def _link(self, place: int, mark: str) -> int:
        if match := _LINK.match(self._text, place):
            words, address = match[1], match[2]
            if words and address:
                self._cells += self._nested(words, UNDERLINED)
                if words != address:
                    self._cells += [*cells(" (", self._style), *cells(address, self._with(DIM)), Cell(")", self._style)]
                return match.end()
        return self._as_written(place, mark, may_close=_LINK_BEGUN.match(self._text, place) is not None)

    def _address(self, place: int, mark: str) -> int:
        if match := _ADDRESS.match(self._text, place):
            self._cells += cells(match[1], self._with(UNDERLINED))
            return match.end()
        return self._as_written(place, mark, may_close=_ADDRESS_BEGUN.match(self._text, place) is not None)

    def _emphasis(self, place: int, mark: str) -> int:
        text, begin = self._text, place + len(mark)
        if begin == len(text):  # the mark may become longer
            return self._as_written(place, mark, may_close=True)
        before = text[place - 1] if place else self._before
        if mark not in _EMPHASIS or text[begin].isspace() or _in_word(before) or self._depth >= _DEEPEST:
            return self._as_written(place, mark, may_close=False)
        end = self._closing(begin, mark)
        if end is None:
            return self._as_written(place, mark, may_close=True)
        if mark == "__" and text[begin:end].isidentifier():  # as Python names things
            return self._as_written(place, mark, may_close=False)
        self._cells += self._nested(text[begin:end], _EMPHASIS[mark])
        return end + len(mark)

    def _closing(self, begin: int, mark: str) -> int | None:
        """Where the same mark closes what it opened."""
        text, place = self._text, begin
        while match := re.compile(r"\\.|(`+).+?(?<!`)\1(?!`)|" + re.escape(mark[0]) + "+", re.DOTALL).search(
            text, place
        ):
            place = match.end()
            run = match[0]
            if run[0] != mark[0]:
                continue
            following = text[place : place + 1]
            if not following and not self._final:
                return None
            if text[match.start() - 1].isspace() or (mark[0] == "_" and _in_word(following)):
                continue
            if run == mark and not (len(mark) == 1 and _in_word(following)):
                return match.start()
            if len(run) == 3 and len(mark) < 3:  # ends one inside of this, and this
                return place - len(mark)
        return None

    def _nested(self, text: str, style: str) -> list[Cell]:
        return _Reader(text, " ", self._with(style), True, self._depth + 1).line().cells

    def _with(self, style: str) -> str:
        return f"{self._style};{style}" if self._style else style


def _in_word(character: str) -> bool:
    """Whether it is of a word in a script that puts spaces between words."""
    return character.isalnum() and columns_of(character) == 1
