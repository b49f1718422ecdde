"""What people write to say which model of the Hugging Face hub they mean: `owner/name[:QUANT][@revision]`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_WORD = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(rf"({_WORD}/{_WORD})(?::([^\s:@/]+))?(?:@([\w.][\w./-]*))?", re.ASCII)
_FILE_URL = re.compile(rf"/({_WORD}/{_WORD})(?:/(?:resolve|blob)/([^/]+)/(.+))?/?", re.ASCII)
HUB_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")


class Reference(NamedTuple):
    """`repository` is owner/name; `choice` a quantization, or the name of a file; `revision` a branch, tag or commit.

    The last two are empty where nothing is said.
    """

    repository: str
    choice: str = ""
    revision: str = ""

    def __str__(self) -> str:
        choice = f":{self.choice}" if self.choice else ""
        return f"{self.repository}{choice}" + (f"@{self.revision}" if self.revision else "")


def parse_reference(text: str) -> Reference | None:
    """The reference that `text` is, by its form alone; None if it has another form. Nobody is asked."""
    found = _HUB_NAME.fullmatch(text)
    if found is None or found[1].endswith(".gguf") or "--" in found[1] or ".." in text:
        return None
    return Reference(found[1], found[2] or "", found[3] or "")


def parse_hub_url(url: str) -> Reference | None:
    """The reference that a web address at the hub is: of a repository, or of one of its files. None elsewhere."""
    parts = urlsplit(url)
    hosts = {*HUB_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc}
    found = _FILE_URL.fullmatch(unquote(parts.path))
    if parts.netloc not in hosts or found is None:
        return None
    revision = "" if found[2] in (None, "main") else found[2]
    return Reference(found[1], found[3] or "", revision)
