"""Text that breaks between words at the edge of a terminal, also while it comes in pieces.

Nothing is held back: the beginning of a word is shown at once, and where the rest of it does not fit, what is shown of
it is erased and begun again on the next line. Words longer than a line are left to the terminal, which breaks them
where the line is full and lets them be copied as they are; so are scripts written without spaces.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_FENCE = re.compile(r"[ \t]*(```|~~~)[^`]*$")
_TAB = 8
_EMOJI = "\ufe0f"  # asks for the one before it as an emoji, to which some terminals then give two columns


class Cell(NamedTuple):
    """A character, and how it is drawn: the numbers of an SGR sequence ("1;4"), or nothing."""

    text: str
    style: str = ""


def cells(text: str, style: str = "") -> list[Cell]:
    return [Cell(character, style) for character in text]


def columns_of(character: str) -> int:
    """How many columns a terminal gives a character."""
    if " " <= character <= "~":
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0  # drawn over, or into, the one before it
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width_of(row: Iterable[Cell], column: int = 0) -> int:
    """How many columns cells take that begin in a column, all in one row."""
    begin, last = column, 2
    for character, _ in row:
        if character == "\t":
            column += _TAB - column % _TAB
            continue
        width = 1 if character == _EMOJI and last == 1 else columns_of(character)
        column += width
        last = width or last
    return column - begin


def drawn(row: Iterable[Cell]) -> str:
    """Cells as a terminal takes them; styles end where the cells do."""
    found, style = [], ""
    for cell in row:
        if cell.style != style:
            found.append("\x1b[0m" * bool(style) + (f"\x1b[{cell.style}m" if cell.style else ""))
            style = cell.style
        found.append(cell.text)
    return "".join(found) + "\x1b[0m" * bool(style)


@dataclass
class _Row:
    cells: list[Cell] = field(default_factory=list)
    soft: bool = False  # the terminal itself begins it, where the one before is full


class Layout:
    """Lays cells out in rows, from some column on."""

    def __init__(self, columns: int, column: int = 0, *, full: bool = False, indent: Sequence[Cell] = ()) -> None:
        """`indent` begins the rows that a line goes on in; `full`: a space before did not fit any more."""
        # The last column stays empty: terminals differ in where the cursor is once it is filled.
        self._columns, self._limit = columns, columns - 1
        self._indent = list(indent) if width_of(indent) <= columns // 2 else []
        self.column, self.full = column, full
        self.rows = [_Row()]
        self._word = 0  # where the last word begins in the last row
        self.word_column = column  # and the column; -1: it stays where it is

    def add(self, given: Iterable[Cell]) -> "Layout":
        for cell in given:
            if cell.text == "\n":
                self._break()
            elif cell.text in " \t":
                self._space(cell)
            else:
                self._letter(cell)
        return self

    def _space(self, cell: Cell) -> None:
        width = width_of((cell,), self.column)
        self.full = self.full or self.column + width > self._limit
        if not self.full:
            self._put(cell, width)
        self._end_word()

    def _letter(self, cell: Cell) -> None:
        width = width_of((cell,))
        if width == 0:
            last = self.rows[-1].cells[-1:]
            self._put(cell, int(cell.text == _EMOJI and bool(last) and width_of(last) == 1))
            return
        if self.full:
            self._break(self._indent)
        if width == 1 and self.column + 1 > self._limit and self.word_column > width_of(self._indent):
            row = self.rows[-1].cells
            word = row[self._word :]
            del row[self._word :]
            self._break(self._indent)
            self.rows[-1].cells += word
            self.column += width_of(word)
        if self.column + width > self._columns:
            self.rows.append(_Row(soft=True))
            self.column, self._word, self.word_column = 0, 0, -1
        self._put(cell, width)
        if width == 2:
            self._end_word()

    def _put(self, cell: Cell, width: int) -> None:
        self.rows[-1].cells.append(cell)
        self.column += width

    def _break(self, indent: Sequence[Cell] = ()) -> None:
        self.rows.append(_Row(list(indent)))
        self.column, self.full = width_of(indent), False
        self._end_word()

    def _end_word(self) -> None:
        self._word, self.word_column = len(self.rows[-1].cells), self.column


class Sheet:
    """What is written to a terminal from its first column on, and whose end, the tail, can still be changed.

    Every method adds to `output` what makes the terminal show it.
    """

    def __init__(self) -> None:
        self.output: list[str] = []
        self.columns = 0
        self.indent: list[Cell] = []
        self.tail: list[Cell] = []
        self._column, self._full, self._fixed = 0, False, False  # where the tail begins, as Layout has it
        self._rows = [_Row()]  # the tail as it is shown

    @property
    def height(self) -> int:
        """How many rows the tail is shown in."""
        return len(self._rows)

    def taken(self) -> str:
        """The output, once."""
        text = "".join(self.output)
        self.output.clear()
        return text

    def fit(self, columns: int) -> bool:
        """The terminal is so wide; whether that is new. Then the tail stays as it is shown, and is empty."""
        before, self.columns = self.columns, columns
        if before in (0, columns):
            return False
        # Where the terminal has put the rows that were too long, if any, only it knows; most break them again.
        column = self._laid_out(self.tail, before).column
        self.tail, self._rows = [], [_Row()]
        self._column, self._full, self._fixed = column % columns, False, True
        return True

    def show(self, tail: list[Cell]) -> None:
        """The tail is now this."""
        self.tail = tail
        old, self._rows = self._rows, self._laid_out(tail).rows
        row = next((i for i, (a, b) in enumerate(zip(old, self._rows, strict=False)) if a != b), len(old) - 1)
        row = min(row, len(self._rows) - 1)
        same = _common(old[row].cells, self._rows[row].cells)
        if row < len(old) - 1 or same < len(old[row].cells):
            self._go_back(old, row, same)
        self.output.append(drawn(self._rows[row].cells[same:]))
        for following in self._rows[row + 1 :]:
            self.output.append(("" if following.soft else "\n") + drawn(following.cells))

    def settle(self, count: int) -> None:
        """The first cells of the tail stay. The rest begins a word, or a line, or goes on with one that stays."""
        layout = self._laid_out(self.tail[:count])
        if layout.column != self._column or count:
            self._fixed = bool(count) and layout.word_column < layout.column
        self._column, self._full = layout.column, layout.full
        self.tail = self.tail[count:]
        self._rows = self._laid_out(self.tail).rows

    def raw(self, text: str, style: str = "") -> None:
        """Settles all, and writes text that is broken by the terminal."""
        self.settle(len(self.tail))
        self.output.append(drawn(cells(text, style)))
        line = text.rpartition("\n")[2]
        begin = 0 if "\n" in text else self._column
        self._column = (begin + width_of(cells(line), begin)) % max(1, self.columns)
        self._full, self._fixed = False, bool(line) and not line[-1].isspace()

    def _laid_out(self, tail: list[Cell], columns: int = 0) -> Layout:
        layout = Layout(columns or self.columns, self._column, full=self._full, indent=self.indent)
        if self._fixed:
            layout.word_column = -1
        return layout.add(tail)

    def _go_back(self, old: list[_Row], row: int, same: int) -> None:
        """To a cell of the tail as it was shown, from its end; what was shown from there on is erased."""
        begin = self._column if row == 0 else 0
        target = begin + width_of(old[row].cells[:same], begin)
        up = len(old) - 1 - row
        if up:
            self.output.append(f"\x1b[{up}A")
        end = begin + width_of(old[row].cells, begin)
        if up or end >= self.columns:  # then the cursor is not simply behind the last cell
            self.output.append("\r" + (f"\x1b[{target}C" if target else ""))
        elif end > target:
            self.output.append(f"\x1b[{end - target}D")
        self.output.append("\x1b[J" if up else "\x1b[K")


class Wrapper:
    """Breaks plain text that begins in the first column of a terminal. Blocks between ``` or ~~~ stay as they are."""

    def __init__(self) -> None:
        self._sheet = Sheet()
        self._line = ""  # as it was given
        self._fence = ""  # what began the block that the line is in

    def feed(self, text: str, columns: int) -> str:
        """What to write for the next piece of text on a terminal that is `columns` wide; 0: as it is."""
        if columns < 2:
            return text
        sheet = self._sheet
        sheet.fit(columns)
        tail = list(sheet.tail)
        for character in text:
            self._line += character
            if character == "\n" or self._fence or _FENCE.match(self._line):
                sheet.show(tail)
                sheet.raw(character)
                tail = []
            else:
                tail.append(Cell(character))
            if character == "\n":
                self._end_line()
        sheet.show(tail)
        sheet.settle(begin_of_last_word(tail))
        return sheet.taken()

    def _end_line(self) -> None:
        if (fence := _FENCE.match(self._line[:-1])) and self._fence in ("", fence[1]):
            self._fence = "" if self._fence else fence[1]
        self._line = ""


def begin_of_last_word(tail: Sequence[Cell]) -> int:
    """Where in cells the word begins that more text may make longer."""
    for place in range(len(tail), 0, -1):
        text = tail[place - 1].text
        if text in " \t\n" or columns_of(text) == 2:
            # What has no column of its own belongs to the one before.
            while place < len(tail) and columns_of(tail[place].text) == 0:
                place += 1
            return place
    return 0


def _common(first: list[Cell], second: list[Cell]) -> int:
    """How many cells both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
