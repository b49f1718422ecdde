"""What clients can beyond the five things that tests/test_clients_python.py asks of each: counts, batches, texts."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from localinfer.server.settings import ServerSettings
from scripted_model import ANSWER
from served_app import Served, served_scripted

HELLO: Any = [{"role": "user", "content": "hello"}]
TEXT = "".join(ANSWER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    settings = ServerSettings(log_file=str(folder / "log"))
    with served_scripted(folder, context=256, settings=settings) as found:
        yield found


def test_openai_without_waiting(server: Served) -> None:
    async def answers() -> tuple[list[str], str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as client:

            async def ask() -> str:
                answer = await client.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
                return str(answer.choices[0].message.content)

            texts = await asyncio.gather(*(ask() for _ in range(6)))
            stream: Any = await client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return list(texts), "".join(pieces)

    assert asyncio.run(answers()) == ([TEXT] * 6, TEXT)


def test_openai_stream_helper(server: Served) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as client,
        client.chat.completions.stream(model="tiny", messages=HELLO, temperature=0) as stream,
    ):
        final = stream.until_done().get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"


def test_langchain(server: Served) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        from langchain_openai import ChatOpenAI, OpenAI

    chat: Any = ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key="none", temperature=0, timeout=60, stream_usage=True
    )
    answer = chat.invoke([("system", "be short"), ("human", "hello")])
    assert answer.content == TEXT
    assert answer.usage_metadata["output_tokens"] == len(ANSWER) + 1
    chunks = list(chat.stream("hello"))
    assert "".join(chunk.content for chunk in chunks) == TEXT
    assert [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata] == [len(ANSWER) + 1]
    assert [answer.content for answer in chat.batch(["hello", "hi"])] == [TEXT, TEXT]
    assert asyncio.run(chat.ainvoke("hello")).content == TEXT
    texts: Any = OpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="none", temperature=0, timeout=60)
    assert texts.invoke("abc") == TEXT
    assert "".join(texts.stream("abc")) == TEXT


def test_litellm(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for a list of prices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports, and of pydantic while it copies answers
        import litellm

        options: Any = {"api_base": f"{server.url}/v1", "api_key": "none", "temperature": 0, "timeout": 60}
        answer: Any = litellm.completion(model="openai/tiny", messages=HELLO, **options)
        assert answer.choices[0].message.content == TEXT
        assert answer.usage.completion_tokens == len(ANSWER) + 1
        stream: Any = litellm.completion(
            model="openai/tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}, **options
        )
        chunks = list(stream)
        assert chunks[-1].usage.completion_tokens == len(ANSWER) + 1
        text: Any = litellm.text_completion(model="text-completion-openai/tiny", prompt="abc", **options)
        assert text.choices[0].text == TEXT
