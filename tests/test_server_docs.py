"""README and docs/http-api.md say of the HTTP API what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from localinfer.server.fields import HARMLESS, REFUSED
from localinfer.server.metrics import Metrics
from localinfer.server.routes import ENDPOINTS
from script_files import load_script

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("conformance_table")


@pytest.mark.parametrize("page", ["README.md", "docs/http-api.md"])
def test_the_conformance_tables_are_those_of_the_code(script: ModuleType, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = script.BLOCK.findall(text)
    assert block == script.TABLES[ROOT / page](), "run scripts/conformance_table.py --write"


def test_the_full_table_has_every_field_once(script: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", script.full(), re.MULTILINE)
    served = {e.path: set(e.request.__struct_fields__) for e in ENDPOINTS if e.request is not None}
    assert [name for name, _ in rows] == sorted(set().union(HARMLESS, REFUSED, *served.values()))
    for name, cells in rows:
        for fields, cell in zip(served.values(), cells.split("|"), strict=True):
            if name in fields:
                assert cell.strip() == "supported"
            else:
                assert cell.strip() == ("ignored" if name in HARMLESS else "refused" if name in REFUSED else "–")


def test_no_field_is_harmless_and_refused() -> None:
    assert not HARMLESS & set(REFUSED)
    for endpoint in ENDPOINTS:
        if endpoint.request is not None:
            assert not HARMLESS & set(endpoint.request.__struct_fields__), "what is served is not said to be ignored"


def test_the_page_names_every_endpoint_and_no_other() -> None:
    named = set(re.findall(r"`(GET|POST) (/[^`]*)`", PAGE))
    assert named == {(endpoint.method, endpoint.name) for endpoint in ENDPOINTS}


def test_the_page_names_every_metric_and_no_other() -> None:
    families = re.findall(r"^# TYPE (\S+) (?:gauge|counter|histogram)$", Metrics(list).render().decode(), re.MULTILINE)
    assert set(re.findall(r"`((?:vllm|localinfer):\w+)`", PAGE)) == set(families)
