"""Markdown for a terminal, drawn while it comes.

A line is shown as it is written, and drawn once more where a mark has closed, a word has outgrown the line, or a row
of a table is complete. The text of a line waits only until its first characters tell what it is (a heading, an item
of a list, ...). What is no markdown, or too long to be drawn again, stays as it was written.

Code is not broken, framed or indented, so that it copies as it is; a line above names its language.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from localinfer.cli.inline import BOLD, DIM, UNDERLINED, inline
from localinfer.cli.table import Table
from localinfer.cli.wrap import Cell, Sheet, cells

_QUOTE = re.compile(r" {0,3}>( |(?=\S))")
_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)$")
_FENCE_BEGUN = re.compile(r"`{1,2}$|~{1,2}$")
_HEADING = re.compile(r"(#{1,6})[ \t]+(?=\S)")
_RULE = re.compile(r"([-*_])[ \t]*(?:\1[ \t]*){2,}")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])[ \t]+(?=\S)")
# What may become one of those.
_UNDECIDED = re.compile(r"#{1,6}[ \t]*|([-*_])[ \t]*(?:\1[ \t]*)*|\+[ \t]*|\d{1,9}(?:[.)][ \t]*)?")
_LONGEST = 600  # characters of text with a mark that is open
_RULE_COLUMNS = 40
_FEWEST_ROWS = 10  # where a terminal does not say how many it has


@dataclass
class _Begun:
    """What a line begins with: `prefix` is drawn in front of its text, `indent` where it goes on in the next row."""

    kind: str  # "text", "fence", "rule" or "table"
    text: str  # that follows
    prefix: list[Cell] = field(default_factory=list)
    indent: list[Cell] = field(default_factory=list)
    style: str = ""


class MarkdownStream:
    """Draws one text."""

    def __init__(self) -> None:
        self._sheet = Sheet()
        self._rows = 0
        self._start: str | None = ""  # of a line, until it is known what it is
        self._take: Callable[[str], None] = self._take_text  # what reads the rest of the line
        self._text, self._before, self._style = "", " ", ""  # not settled; the character before it
        self._prefix: list[Cell] = []
        self._fence, self._fence_indent = "", 0  # of the block that the line is in
        self._table: Table | None = None
        self._row = ""  # of the table, incomplete

    def feed(self, text: str, columns: int, rows: int) -> str:
        """What to write for the next piece of text on a terminal of that size."""
        if columns < 2:
            return text
        self._rows = rows or _FEWEST_ROWS
        if self._sheet.fit(columns):
            self._let_be()
        first, *following = text.split("\n")
        self._piece(first)
        for line in following:
            self._end_line(newline=True)
            self._piece(line)
        return self._sheet.taken()

    def finish(self) -> str:
        """What is left to write when no more comes."""
        self._end_line(newline=False)
        self._end_table()
        return self._sheet.taken()

    def _let_be(self) -> None:
        """The terminal has another size: what is shown stays."""
        self._text = ""
        if self._table is not None:
            self._table = None
            self._take = self._take_text

    def _piece(self, piece: str) -> None:
        if not piece:
            return
        if self._start is None:
            self._take(piece)
            return
        self._start += piece
        self._decide(final=False)

    def _end_line(self, *, newline: bool) -> None:
        if self._start is not None:
            if not (self._start or newline):
                return
            self._decide(final=True)
        if self._start is None and self._take == self._take_row:
            self._end_row()
            if not newline:
                self._sheet.show(self._sheet.tail[:-1])
        else:
            self._draw(final=True)
            if newline:
                self._sheet.raw("\n")
        self._sheet.indent = []
        self._start, self._text, self._before, self._style, self._prefix = "", "", " ", "", []

    def _decide(self, *, final: bool) -> None:
        """What the line is, if that is known by now."""
        start = self._start or ""
        if self._fence:
            self._decide_code(start, final)
            return
        begun = _begun(start, final)
        if begun is None:
            return
        self._start = None
        if begun.kind != "table":
            self._end_table()
        self._take = self._take_row if begun.kind == "table" else self._take_text
        if begun.kind == "fence":
            self._open_fence(begun)
            return
        if begun.kind == "rule":
            begun.prefix += cells("─" * min(_RULE_COLUMNS, self._sheet.columns - 1 - len(begun.prefix)), DIM)
        self._prefix, self._style = begun.prefix, begun.style
        self._sheet.indent = begun.indent
        self._sheet.show(begun.prefix)
        self._take(begun.text)

    def _open_fence(self, begun: _Begun) -> None:
        self._fence, language = _FENCE.match(begun.text).groups()  # type: ignore[union-attr]
        self._fence_indent = len(begun.indent)
        mark = begun.prefix if any(cell.text != " " for cell in begun.prefix) else []
        self._sheet.show([*mark, *cells(f"─── {language.strip()}".rstrip(), DIM)])

    def _decide_code(self, start: str, final: bool) -> None:
        bare = start.strip()
        if set(bare) <= {self._fence[0]} and len(start) - len(bare) <= self._fence_indent + 3 + len(self._fence):
            if not final:
                return
            if len(bare) >= len(self._fence):
                self._fence, self._start, self._take = "", None, self._take_text
                self._sheet.show(cells("───", DIM))
                return
        indent = len(start) - len(start.lstrip(" "))
        self._start, self._take = None, self._sheet.raw
        self._sheet.raw(start[min(indent, self._fence_indent) :])

    def _take_text(self, piece: str) -> None:
        self._text += piece
        self._draw(final=len(self._text) > _LONGEST)

    def _draw(self, *, final: bool) -> None:
        """Shows the line's text as far as it is there."""
        if not (self._text or self._prefix):
            self._sheet.settle(len(self._sheet.tail))
            return
        sheet = self._sheet
        line = inline(self._text, self._before, style=self._style, final=final)
        sheet.show([*self._prefix, *line.cells])
        certain = (len(line.cells), len(self._text)) if final else (line.certain_cells, line.certain_text)
        if not final and sheet.height >= self._rows:
            sheet.settle(len(sheet.tail))  # it could not be drawn again
            certain = (0, len(self._text))
        elif certain[0]:
            sheet.settle(len(self._prefix) + certain[0])
        else:
            return
        self._before = self._text[: certain[1]][-1:] or self._before
        self._text, self._prefix = self._text[certain[1] :], []

    def _take_row(self, piece: str) -> None:
        if self._table is None:
            self._table = Table()
        self._row += piece
        self._show_table()

    def _end_row(self) -> None:
        assert self._table is not None
        row, self._row = self._row, ""
        is_table = self._table.add(row)
        self._show_table()
        if not is_table:
            self._end_table()
        elif self._sheet.height >= self._rows - 2:
            self._sheet.settle(len(self._sheet.tail))
            self._table.settle(self._sheet.columns)

    def _show_table(self) -> None:
        assert self._table is not None
        self._sheet.show([*self._table.cells(self._sheet.columns), *cells(self._row)])

    def _end_table(self) -> None:
        if self._table is not None:
            self._sheet.settle(len(self._sheet.tail))
            self._table, self._row = None, ""


def _begun(start: str, final: bool) -> _Begun | None:
    """What a line begins with; None if more of it is needed to tell."""
    prefix: list[Cell] = []
    indent: list[Cell] = []
    rest = start
    while match := _QUOTE.match(rest):
        prefix += cells("│ ", DIM)
        rest = rest[match.end() :]
    quoted = bool(prefix)
    indent += prefix
    while True:
        bare = rest.lstrip(" \t")
        space = rest[: len(rest) - len(bare)].expandtabs(4)
        if not final and (not bare or bare.strip(" ") == ">" or _UNDECIDED.fullmatch(bare) or _FENCE_BEGUN.match(bare)):
            return None
        if not quoted and _FENCE.match(bare):
            return _Begun("fence", bare, prefix, [*indent, *cells(space)]) if final else None
        if _RULE.fullmatch(bare):
            return _Begun("rule", "", [*prefix, *cells(space)])
        prefix, indent = [*prefix, *cells(space)], [*indent, *cells(space)]
        if bare.startswith("|") and not prefix:
            return _Begun("table", bare)
        if match := _HEADING.match(bare):
            style = BOLD if len(match[1]) > 2 else f"{BOLD};{UNDERLINED}"
            return _Begun("text", bare[match.end() :], prefix, indent, style)
        if (match := _ITEM.match(bare)) is None:
            return _Begun("text", bare, prefix, indent)
        marker = match[0].expandtabs(4)
        prefix += cells(marker if marker[0].isdigit() else "•" + marker[1:])
        indent += cells(" " * len(marker))
        rest = bare[match.end() :]
