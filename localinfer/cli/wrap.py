"""Text that breaks between words at the edge of a terminal, also while it comes in pieces.

Nothing is held back: the beginning of a word is shown at once, and where the rest of it does not fit, what is shown of
it is erased and begun again on the next line. Blocks between ``` or ~~~ are left to the terminal, which breaks them
where the line is full and lets them be copied as they are; so are words longer than a line, and scripts written
without spaces.
"""

import re
import unicodedata

_FENCE = re.compile(r"[ \t]*(```|~~~)[^`]*$")
_TAB = 8


def columns_of(character: str) -> int:
    """How many columns a terminal gives a character."""
    if " " <= character <= "~":
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0  # drawn over, or into, the one before it
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


class Wrapper:
    """Breaks text that begins in the first column of a terminal."""

    def __init__(self) -> None:
        self._column = 0  # that the cursor is in
        self._word = ""  # what stands of the last word on this line
        self._word_columns = 0
        self._line = ""  # as it was given
        self._fence = ""  # what began the block that the line is in
        self._full = False  # the last word filled the line: the next one begins a new line

    def feed(self, text: str, columns: int) -> str:
        """What to write for the next piece of text on a terminal that is `columns` wide; 0: as it is."""
        if columns < 2:
            return text
        # The last column stays empty: terminals differ in where the cursor is once it is filled.
        self._columns, self._limit = columns, columns - 1
        self._written: list[str] = []
        self._fresh = 0  # characters of the word that are in `_written`, not yet on the terminal
        for character in text:
            self._take(character)
        return "".join(self._written)

    def _take(self, character: str) -> None:
        if character == "\n":
            self._end_line()
            return
        self._line += character
        width = columns_of(character)
        if self._fence or _FENCE.match(self._line):
            self._place(character)
        elif character in " \t":
            self._space(character)
        elif width == 0:
            self._join(character)
        elif width == 2:
            self._break_if_full()
            self._place(character)
            self._forget_word()
        else:
            self._letter(character)

    def _end_line(self) -> None:
        self._written.append("\n")
        if (fence := _FENCE.match(self._line)) and self._fence in ("", fence[1]):
            self._fence = "" if self._fence else fence[1]
        self._line, self._column, self._full = "", 0, False
        self._forget_word()

    def _space(self, character: str) -> None:
        width = 1 if character == " " else _TAB - self._column % _TAB
        self._full = self._full or self._column + width > self._limit
        if not self._full:
            self._written.append(character)
            self._column += width
        self._forget_word()

    def _letter(self, character: str) -> None:
        self._break_if_full()
        if self._column + 1 > self._limit and self._word_columns < self._column:
            self._move_word()
        self._place(character)
        self._word += character
        self._word_columns += 1
        self._fresh += 1

    def _join(self, character: str) -> None:
        """A character without a column of its own stays with the one before it."""
        self._written.append(character)
        if self._word:
            self._word += character
            self._fresh += 1

    def _break_if_full(self) -> None:
        if self._full:
            self._written.append("\n")
            self._column, self._full = 0, False

    def _move_word(self) -> None:
        """Begins the word again on the next line."""
        if self._fresh:
            del self._written[-self._fresh :]
        shown = sum(map(columns_of, self._word[: len(self._word) - self._fresh]))
        # Back to where the word began, and the rest of the line erased.
        self._written.append(f"\x1b[{shown}D\x1b[K\n" if shown else "\n")
        self._written += self._word
        self._fresh = len(self._word)
        self._column = self._word_columns

    def _place(self, character: str) -> None:
        """Puts a character where it fits, in the next line if the terminal breaks this one."""
        width = columns_of(character) if character != "\t" else _TAB - self._column % _TAB
        if self._column + width > self._columns:
            self._column = 0
        self._column += width
        self._written.append(character)

    def _forget_word(self) -> None:
        self._word, self._word_columns, self._fresh = "", 0, 0
