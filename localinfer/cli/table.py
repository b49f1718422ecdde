"""Tables of markdown, for a terminal: columns as wide as what is in them, or less where that does not fit."""

import re

from localinfer.cli.inline import BOLD, DIM, inline
from localinfer.cli.wrap import Cell, Layout, cells, width_of

_RULE = re.compile(r"\s*\|?(\s*:?-+:?\s*\|)*\s*:?-+:?\s*\|?\s*")
_NARROWEST = 4
_BETWEEN = cells(" │ ", DIM)


class Table:
    """A table that grows line by line."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []  # the head first
        self._lines: list[str] = []  # as they were given
        self._sides: list[tuple[bool, bool]] = []  # of each column: whether it stands left, right; centred if both
        self._widths: list[int] = []  # once some of it cannot be changed any more
        self._settled_rows, self._settled_lines = 0, 0

    def add(self, line: str) -> bool:
        """A complete line; False if it shows that this is no table."""
        self._lines.append(line)
        row = _cells_of(line)
        if len(self._lines) == 2:
            if _RULE.fullmatch(line) and len(row) == len(self._rows[0]):
                self._sides = [(cell.startswith(":"), cell.endswith(":")) for cell in row]
            return bool(self._sides)
        self._rows.append(row)
        return True

    def settle(self, columns: int) -> None:
        """What is shown of it stays, and with it the widths of its columns."""
        if self._sides:
            self._widths = self._widths or self._fitting(columns)
        self._settled_rows, self._settled_lines = len(self._rows), len(self._lines)

    def cells(self, columns: int) -> list[Cell]:
        """The rows that have not been settled, each with a newline; as written if they do not fit."""
        widths = (self._widths or self._fitting(columns)) if self._sides else []
        if not widths or (self._settled_lines and not self._widths):
            return cells("".join(line + "\n" for line in self._lines[self._settled_lines :]))
        found: list[Cell] = []
        for number, row in enumerate(self._rows[self._settled_rows :], self._settled_rows):
            found += self._drawn(row, self._stretched(row, widths, columns), BOLD if number == 0 else "")
            if number == 0:
                found += cells("─┼─".join("─" * width for width in widths) + "\n", DIM)
        return found

    def _fitting(self, columns: int) -> list[int]:
        """The widths of the columns; none if they would be too narrow."""
        count = len(self._sides)
        room = columns - 1 - len(_BETWEEN) * (count - 1)
        wanted = [max([1, *(width_of(line) for row in self._rows for line in _lines(row, i))]) for i in range(count)]
        least = [min(width, _NARROWEST) for width in wanted]
        if sum(least) > room:
            return []
        widths = list(wanted)
        while sum(widths) > room:  # the widest give what is missing
            widest = max(range(count), key=widths.__getitem__)
            widths[widest] -= 1
        return widths

    def _stretched(self, row: list[str], widths: list[int], columns: int) -> list[int]:
        """The widths for a row below those that stay, which may be wider than all of them."""
        wider = [max(width, *map(width_of, _lines(row, i))) for i, width in enumerate(widths)]
        fits = sum(wider) + len(_BETWEEN) * (len(wider) - 1) < columns
        return wider if self._widths and fits else widths

    def _drawn(self, row: list[str], widths: list[int], style: str) -> list[Cell]:
        columns = [_broken(row, i, width, style) for i, width in enumerate(widths)]
        found: list[Cell] = []
        for line in range(max(map(len, columns))):
            for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
                here = column[line] if line < len(column) else []
                space = width - width_of(here)
                left, right = self._sides[i]
                before = space // 2 if left and right else space if right else 0
                last = i == len(widths) - 1
                found += [*cells(" " * before), *here, *cells(" " * (0 if last else space - before))]
                found += [] if last else _BETWEEN
            found.append(Cell("\n"))
        return found


def _cells_of(line: str) -> list[str]:
    inside = line.strip().removeprefix("|")
    if inside.endswith("|") and not inside.endswith("\\|"):
        inside = inside[:-1]
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inside)]


def _lines(row: list[str], column: int, style: str = "") -> list[list[Cell]]:
    """The lines of a cell, unbroken."""
    texts = re.split(r"<br\s*/?>", row[column]) if column < len(row) else [""]
    return [inline(text.strip(), style=style).cells for text in texts]


def _broken(row: list[str], column: int, width: int, style: str) -> list[list[Cell]]:
    """The lines of a cell, broken where they are too long."""
    found: list[list[Cell]] = []
    for line in _lines(row, column, style):
        for part in Layout(width + 1).add(line).rows:
            here = found.pop() + part.cells if part.soft else part.cells  # a word that fills more than a line
            while width_of(here) > width:
                count = next(n for n in range(len(here), 0, -1) if width_of(here[:n]) <= width or n == 1)
                found.append(here[:count])
                here = here[count:]
            found.append(here)
    return found
