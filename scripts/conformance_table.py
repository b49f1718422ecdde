"""Which field of which endpoint is supported, ignored or refused: the tables of README.md and docs/http-api.md.

python scripts/conformance_table.py            prints both
python scripts/conformance_table.py --write    puts them between the marks in the two files
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from localinfer.server.fields import HARMLESS, REFUSED
from localinfer.server.routes import ENDPOINTS

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?<=<!-- conformance -->\n).*?(?=<!-- /conformance -->)", re.DOTALL)
SERVED = {endpoint.path: set(endpoint.request.__struct_fields__) for endpoint in ENDPOINTS if endpoint.request}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def short() -> str:
    """For the README: a row for each kind of treatment, with the names of the fields."""
    both = SERVED[CHAT] & SERVED[TEXT]
    rows = [
        ("supported: chat and text completions", both),
        (f"supported: `{CHAT}` also", SERVED[CHAT] - both),
        (f"supported: `{TEXT}` also", SERVED[TEXT] - both),
        *((f"supported: `{path}`", fields) for path, fields in SERVED.items() if path not in (CHAT, TEXT)),
        ("ignored", HARMLESS),
        ("refused with a 400 that names them, where they are not supported", REFUSED),
    ]
    lines = [f"| {treatment} | {_names(fields)} |" for treatment, fields in rows]
    return "\n".join(["| fields | |", "|---|---|", *lines, ""])


def full() -> str:
    """For docs/http-api.md: a row for each field, a column for each endpoint that has a body."""
    lines = ["| field | " + " | ".join(f"`{path}`" for path in SERVED) + " |", "|---" * (len(SERVED) + 1) + "|"]
    for field in sorted(set().union(*SERVED.values(), HARMLESS, REFUSED)):
        cells = ("supported" if field in fields else _otherwise(field) for fields in SERVED.values())
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


TABLES = {ROOT / "README.md": short, ROOT / "docs" / "http-api.md": full}


def _otherwise(field: str) -> str:
    """What happens to a field that an endpoint does not have."""
    return "ignored" if field in HARMLESS else "refused" if field in REFUSED else "–"


def _names(fields: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in sorted(fields))


def main() -> None:
    for page, table in TABLES.items():
        if sys.argv[1:] == ["--write"]:
            text = BLOCK.sub(lambda _, table=table: table(), page.read_text(encoding="utf-8"))
            page.write_text(text, encoding="utf-8")
        else:
            print(table())


if __name__ == "__main__":
    main()
