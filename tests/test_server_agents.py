"""What coding agents send that other clients do not: roles in any order, fields of their own, and too much of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from conversation import KEY, TOO_LONG, Talking, talking
from localinfer.server.conversation import prompt_of
from localinfer.server.fields import UNKNOWN_FIELDS_HEADER
from localinfer.server.messages import alternating
from localinfer.text.chat_template import ChatTemplate, TemplateRefusal
from published import TEMPLATES

# As Claude Code begins: the system speaks again behind the first message, and the user before the answer.
AGENT = [
    {"role": "system", "content": "You code."},
    {"role": "user", "content": "The date is today."},
    {"role": "system", "content": "There are agents."},
    {"role": "user", "content": "Write a file."},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    """Its template insists on the order of roles."""
    strict = "message['content'] or '' if loop.first or message['role'] != 'system' else raise_exception('no system')"
    with talking(tmp_path_factory.mktemp("agents"), content=strict) as found:
        yield found


def post(server: Talking, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers={"x-api-key": KEY}, timeout=60)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": AGENT}),
        ("/v1/messages", {"messages": AGENT[1:], "system": "You code.", "max_tokens": 9}),
        ("/v1/responses", {"input": AGENT}),
    ],
)
def test_roles_that_a_template_refuses_are_put_in_order_and_that_is_told(
    server: Talking, path: str, body: dict[str, Any]
) -> None:
    response = post(server, path, body)
    assert response.status_code == 200, response.text
    assert "messages" in response.headers[UNKNOWN_FIELDS_HEADER]
    plain = {key: AGENT[1:2] if key in ("messages", "input") else value for key, value in body.items()}
    assert UNKNOWN_FIELDS_HEADER not in post(server, path, {**plain, "store": False}).headers


def test_nothing_is_lost_where_roles_are_put_in_order() -> None:
    late = [*AGENT, {"role": "assistant", "content": "Done."}, {"role": "system", "content": "Be brief."}]
    assert alternating(late) == [
        {"role": "system", "content": "You code."},
        {"role": "user", "content": "The date is today.\n\nThere are agents.\n\nWrite a file."},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Be brief."},
    ]
    assert alternating(AGENT[:2]) == AGENT[:2]


def templates() -> list[Path]:
    return sorted(TEMPLATES.glob("*.jinja"))


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="the published templates are not beside the checkout")
@pytest.mark.parametrize("path", templates(), ids=lambda path: path.stem)
def test_real_templates_take_what_agents_send(path: Path) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
    llm: Any = SimpleNamespace(chat_template=template, chat_tokens=lambda messages, _: template.render(messages))
    if path.stem == "google-gemma-2-2b-it":  # takes no words of the system at all
        with pytest.raises(TemplateRefusal, match="System role not supported"):
            prompt_of(llm, AGENT, {})
        return
    for messages in (AGENT, [AGENT[0], AGENT[1], AGENT[3]]):
        text, _ = prompt_of(llm, messages, {})
        assert all(message["content"] in text for message in messages)


def test_a_schema_in_anthropics_words(server: Talking) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": form, "effort": "high"}}, {"output_format": form}):
        response = post(server, "/v1/messages", {"messages": AGENT[1:2], "max_tokens": 400, **fields})
        assert response.status_code == 200, response.text
        [block] = response.json()["content"]
        assert json.loads(block["text"])["n"] in (1, 2)
        told = response.headers.get(UNKNOWN_FIELDS_HEADER, "")
        assert ("output_config.effort" in told) == ("output_config" in fields), "the template does not read it"


def test_agents_compact_at_the_words_they_know(server: Talking) -> None:
    body = {"messages": [{"role": "user", "content": TOO_LONG}], "max_tokens": 9}
    message = post(server, "/v1/messages", body).json()["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert "maximum context length is 2048 tokens" in message


def test_fields_of_claude_code(server: Talking) -> None:
    harmless = {"context_management": {"edits": []}, "metadata": {"user_id": "x"}, "speed": "standard"}
    body = {"messages": AGENT[1:2], "max_tokens": 9, "thinking": {"type": "adaptive"}, **harmless}
    assert UNKNOWN_FIELDS_HEADER not in post(server, "/v1/messages?beta=true", body).headers
    refused = post(server, "/v1/messages", {**body, "mcp_servers": [{"type": "url", "url": "x", "name": "y"}]})
    assert refused.status_code == 400
    assert "mcp_servers" in refused.json()["error"]["message"]
