"""Real English text for the comparisons: the documentation that comes with llama.cpp's source, prose only.

The peer's version is pinned, so the text is the same for everyone; its hash is printed with the results.
"""

from __future__ import annotations

import re
from pathlib import Path

FILES = (
    "CONTRIBUTING.md",
    "docs/development/HOWTO-add-model.md",
    "docs/speculative.md",
    "docs/function-calling.md",
    "docs/autoparser.md",
    "SECURITY.md",
    "docs/build.md",
    "docs/development/parsing.md",
    "docs/backend/SYCL.md",
    "docs/docker.md",
)


def paragraphs(markdown: str) -> list[str]:
    """The paragraphs that are sentences: no code, tables, headings, HTML; list marks and link targets removed."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    found = []
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text):
        line = re.sub(r"\s+", " ", re.sub(r"^\s*(?:[-*>]|\d+\.)\s+", "", part)).strip()
        if len(line) >= 120 and not line.startswith(("#", "<", "[!")) and "|" not in line:
            found.append(line)
    return found


def collect(source: Path) -> str:
    """All of it, one paragraph a line; `source` is llama.cpp's source folder."""
    texts = [(source / name).read_text(encoding="utf-8") for name in FILES]
    return "\n".join(paragraph for text in texts for paragraph in paragraphs(text)) + "\n"
