"""The web page at /: which files it has, how they are sent, and who gets it. The files are in the folder page/.

The page is for browsers, the JSON of GET / for everybody else: the Accept header tells them apart. The files are the
same for all and hold no secrets, so they need no key; what the page asks of the API does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Scope

FOLDER = Path(__file__).parent / "page"
PATH = "/page/{name}"
INDEX = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# This page shows what models write. Should some of it ever be taken for markup, it still loads and runs nothing.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",  # browsers keep the files, and ask each time whether they are still the same
    "vary": "accept",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    etag: str


class Page:
    """The files of the page, read once."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES}

    @property
    def names(self) -> list[str]:
        """Of all files."""
        return list(self._files)

    def answer(self, http: Request, name: str) -> Response:
        """The file, or 304 if the browser has it already. HTTPException 404 if there is none of that name."""
        if (file := self._files.get(name)) is None:
            raise HTTPException(404)
        headers = {**_HEADERS, "etag": file.etag}
        if file.etag in http.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)


async def one(http: Request) -> Response:
    """The handler of /page/{name}."""
    page: Page = http.app.state.page
    return page.answer(http, http.path_params["name"])


def wants_page(accept: str) -> bool:
    """Whether an Accept header (RFC 9110, section 12.5.1) names HTML, and does not like JSON better."""
    weights = dict(_range(part) for part in accept.lower().split(","))
    html = weights.get("text/html", 0.0)
    return html > 0 and html >= weights.get("application/json", 0.0)


def is_for_page(scope: Scope) -> bool:
    """Whether a request is for the page or one of its files."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    if scope["path"] == "/":
        return wants_page(",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"))
    return bool(scope["path"].startswith(PATH.removesuffix("{name}")))


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _range(part: str) -> tuple[str, float]:
    """A media range and its weight, 0 if that is no number."""
    name, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return name, float(parameter[2:])
            except ValueError:
                return name, 0.0
    return name, 1.0
