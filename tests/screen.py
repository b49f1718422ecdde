"""A small terminal: what text with the control sequences that we write looks like, and nothing else is obeyed."""

from __future__ import annotations

import re
from itertools import groupby

from localinfer.cli.wrap import columns_of

_SEQUENCE = re.compile(r"\x1b\[([\d;]*[A-Za-z])|(.)", re.DOTALL)


class Screen:
    """It breaks full lines only when one more character comes, and its rows are never used up.

    `height` is how far up the cursor reaches. Cells are (character, style); the right half of a wide character is
    ("", style).
    """

    def __init__(self, columns: int, height: int = 1000) -> None:
        self.columns, self.height = columns, height
        self.lines: list[list[tuple[str, str]]] = [[]]
        self.row, self.column, self.style = 0, 0, ""

    def write(self, text: str) -> None:
        for code, character in _SEQUENCE.findall(text):
            if code:
                self._obey(code[:-1], code[-1])
            else:
                self._draw(character)

    def _obey(self, argument: str, code: str) -> None:
        number = int(argument) if argument.isdigit() else 1
        line = self.lines[self.row]
        if code == "m":
            self.style = "" if argument == "0" else argument
        elif code == "K":
            del line[self.column :]
        elif code == "J":
            del line[self.column :]
            del self.lines[self.row + 1 :]
        elif code == "D":
            assert self.column < self.columns, "where the cursor is after the last column differs between terminals"
            assert number <= self.column, "goes back further than the line"
            self.column -= number
        elif code == "A":
            self.row -= number
            assert self.row >= max(0, len(self.lines) - self.height), "goes up further than the screen"
        elif code == "C":
            self.column += number
            assert self.column <= len(line), "goes where nothing stands"
        else:
            raise AssertionError(f"an unknown sequence: {argument}{code}")

    def _draw(self, character: str) -> None:
        if character == "\n":
            self._next_row()
        elif character == "\r":
            self.column = 0
        elif character == "\t":
            for _ in range(8 - self.column % 8):
                self._draw(" ")
        elif (width := columns_of(character)) == 0:
            before, style = self.lines[self.row][self.column - 1]
            self.lines[self.row][self.column - 1] = (before + character, style)
            if character == "\ufe0f" and before and columns_of(before[0]) == 1:  # as an emoji it is wide
                self.lines[self.row].append(("", style))
                self.column += 1
        else:
            assert character >= " ", f"a control character: {character!r}"
            if self.column + width > self.columns:
                self._next_row()
            self.lines[self.row][self.column :] = [(character, self.style), ("", self.style)][:width]
            self.column += width

    def _next_row(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append([])

    @property
    def text(self) -> list[str]:
        """Its lines, without spaces at their ends."""
        return ["".join(text for text, _ in line).rstrip() for line in self.lines]

    @property
    def styled(self) -> list[str]:
        """Its lines, with what has a style as {style:text}."""
        found = []
        for line in self.lines:
            runs = [(style, "".join(c for c, _ in run)) for style, run in groupby(line, key=lambda cell: cell[1])]
            found.append("".join(f"{{{style}:{text}}}" if style else text for style, text in runs).rstrip())
        return found
