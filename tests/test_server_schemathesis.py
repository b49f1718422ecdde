"""Requests that schemathesis makes up from the OpenAPI document: never a 5xx, and every answer as it is described."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from localinfer import LLM
from localinfer.server.openapi import document
from localinfer.server.routes import ENDPOINTS
from localinfer.server.settings import ServerSettings
from scripted_model import write_scripted_model
from served_app import Served, served

load_all_checks()
CHECKED = CHECKS.get_by_names(
    ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)
SCHEMA = schemathesis.openapi.from_dict(document(ENDPOINTS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("schemathesis")
    llm = LLM(write_scripted_model(folder / "tiny.gguf"), context=48, max_sequences=8, threads=1)
    with served(llm, ServerSettings(log_file=str(folder / "log"))) as server:
        yield server


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


# The same requests each time: a test that fails now and then would stop everybody. More, and others, are found by
# running it with other settings.
@SCHEMA.parametrize()
@settings(max_examples=4, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_asked_gets_an_answer_that_is_described(
    case: schemathesis.Case, server: Served, session: requests.Session
) -> None:
    case.call_and_validate(base_url=server.url, session=session, checks=CHECKED)
