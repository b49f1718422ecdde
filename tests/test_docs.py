"""The pages in docs/: their links lead somewhere, their commands run, and the reference is that of the code.

In the guides every block of commands or code has a mark in front, an HTML comment that readers do not see:

    <!-- run -->      the block is run, in one folder for the whole page, where `smollm2:135m` is a scripted model, the
                      server at port 8080 serves it, and `tests` is the folder of the repository
    <!-- output -->   what the block before writes to standard output; "…" stands for anything
    <!-- check -->    commands that would run for ever or need the network: the command line's own parser takes them
    <!-- shown -->    nothing that could be run here
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer

from conversation import write_talking_model
from localinfer import LLM
from localinfer.cli.main import COMMANDS, build_app
from localinfer.hub.store import Installed, folder_of, write_record
from script_files import load_script
from scripted_model import write_scripted_model
from served_app import served

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
GUIDES = [*sorted((DOCS / "guides").glob("*.md")), DOCS / "quick-start.md"]
MODEL = "smollm2:135m"
# Properties that the engine reads, and nobody else needs.
INTERNAL = ("bounds", "drawn", "withholds", "penalizes", "looks_back", "needed", "name")
ADDRESS = "http://127.0.0.1:8080"
BLOCK = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """What a link may name behind #, as GitHub makes it of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(
            name if name not in found else next(f"{name}-{n}" for n in range(1, 99) if f"{name}-{n}" not in found)
        )
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:docs|tests|scripts|localinfer|kernels|models)/[\w./-]+\.\w+)`", page.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_every_page_can_be_reached_from_the_first() -> None:
    seen: set[Path] = set()
    waiting = [DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
        waiting += [target for link in links if (target := (page.parent / link).resolve()).suffix == ".md"]
    assert set(PAGES) <= seen | {ROOT / "README.md"}


# --- the reference ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_script("reference")


@pytest.mark.parametrize("name", ["cli", "python", "http", "errors"])
def test_the_reference_is_that_of_the_code(reference: ModuleType, name: str) -> None:
    path = DOCS / "reference" / f"{name}.md"
    assert set(reference.PAGES) == set(path.parent.iterdir())
    assert path.read_text(encoding="utf-8") == reference.PAGES[path](), "run scripts/reference.py --write"


def test_the_reference_tells_everything_that_is_public(reference: ModuleType) -> None:
    shown = {(entry, member) for _, entry, members in reference.PUBLIC for member in members}
    for entry in {entry for _, entry, _ in reference.PUBLIC if isinstance(entry, type)}:
        for name, member in vars(entry).items():
            public = not name.startswith("_") and (callable(member) or hasattr(member, "__get__"))
            internal = entry is not LLM and name in INTERNAL
            if public and not internal and name not in getattr(entry, "_fields", getattr(entry, "__match_args__", ())):
                assert (entry, name) in shown, f"{entry.__name__}.{name} is missing in scripts/reference.py"


# --- commands ---------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block: the mark in front of it ("" if there is none), its language, and what is in it."""

    mark: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(mark or "", language, text) for mark, language, text in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("page", GUIDES, ids=page_id)
def test_commands_in_guides_are_marked(page: Path) -> None:
    found = blocks(page)
    assert page.read_text().count("\n```") == 2 * len(found), "a block is not closed, or indented"
    for block in found:
        assert block.language, f"a block without a language: {block.text[:60]}"
        if block.language in ("sh", "python"):
            assert block.mark in ("run", "check", "shown"), f"not marked: {block.text[:60]}"


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every command in a shell script that starts localinfer."""
    lexer = shlex.shlex(re.sub(r"\\\n\s*", " ", text), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, "\n"]:
        if not set(token) <= set("();<>|&\n"):
            words.append(token)
            continue
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("if", "then", "else", "!")):
            words.pop(0)
        if words[:1] == ["localinfer"]:
            yield words[1:-1] if token[0] == ">" and words[-1] == "2" else words[1:]
        words = []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_command_line_takes_every_command(page: Path) -> None:
    for block in blocks(page):
        if block.language != "sh":
            continue
        for arguments in commands(block.text):
            if not arguments or arguments[0].startswith("-"):
                continue
            assert arguments[0] in COMMANDS, arguments
            group: Any = typer.main.get_command(build_app(arguments[0]))
            context = group.make_context("localinfer", list(arguments))  # of the group
            _, command, rest = group.resolve_command(context, list(arguments))
            with command.make_context(arguments[0], list(rest), parent=context):
                pass  # raises what the user would read


# What the guides use of curl, for machines without it.
CURL = """
import sys, urllib.request
arguments = dict(zip(sys.argv, sys.argv[1:]))
(address,) = (word for word in sys.argv if word.startswith("http"))
request = urllib.request.Request(address, arguments["-d"].encode(), dict([arguments["-H"].split(": ")]))
sys.stdout.write(urllib.request.urlopen(request).read().decode())
"""


def install(name: str, write: Callable[[Path], Path]) -> None:
    """Puts a model into the store of the test, under a name of the catalog."""
    folder = folder_of(name)
    folder.mkdir(parents=True)
    path = write(folder / "model.gguf")
    write_record(folder, Installed(name, path, "a test", "", path.stat().st_size, "2026-01-01T00:00:00+00:00"))


@contextmanager
def surroundings(page: Path, folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Where a page is run: environment variables, and the address of a server."""
    (folder / "tests").symlink_to(ROOT / "tests")
    install(MODEL, write_talking_model if page.name == "agents.md" else write_scripted_model)
    served_model = MODEL
    if page.name == "embeddings.md":
        from tiny_encoders import encoder, write_encoder_folder, write_encoder_gguf

        served_model = "minilm:l6-v2"
        install(served_model, lambda path: write_encoder_gguf(encoder("bert"), path))
        write_encoder_folder(encoder("bert-rank"), folder / "ms-marco-MiniLM-L6-v2")
    path_variable = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("curl") is None:
        (folder / "bin").mkdir()
        (folder / "bin" / "curl").write_text(f"#!{sys.executable}\n{CURL}")
        (folder / "bin" / "curl").chmod(0o755)
        path_variable += f"{os.pathsep}{folder / 'bin'}"
    llm = LLM(served_model, context=None if served_model != MODEL else 4096, max_sequences=4, threads=1)
    with served(llm, guard=True) as server:
        yield {**os.environ, "PATH": path_variable, "HOME": str(folder)}, server.url


@pytest.mark.parametrize("page", [p for p in GUIDES if "<!-- run -->" in p.read_text()], ids=page_id)
def test_what_guides_show_runs(page: Path, tmp_path: Path) -> None:
    with surroundings(page, tmp_path) as (environment, address):
        output = ""
        for block in blocks(page):
            text = block.text.replace(ADDRESS, address)
            if block.mark == "run":
                command = ["bash", "-euo", "pipefail", "-c", text]
                if block.language == "python":
                    command = [sys.executable, "-c", text]
                done = subprocess.run(
                    command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
                )
                assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
                output = done.stdout
            elif block.mark == "output":
                pattern = re.escape(block.text.rstrip()).replace("…", ".*?")
                assert re.fullmatch(pattern, output.rstrip(), re.DOTALL), f"written was\n{output}"
