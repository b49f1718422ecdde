"""The five things of tests/conversation.py, asked through the clients that Python programs use."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, Protocol

import pydantic

from conversation import FOREVER, KEY, QUESTION, RESULT

MODEL = "tiny"
ANSWER_TOKENS = 400
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Pet(pydantic.BaseModel):
    """What a structured answer has to be."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["cat", "dog"]
    size: Literal[1, 2, 3]


class Client(Protocol):
    """One client. `errors` are the kinds of exception that it has for what goes wrong."""

    errors: dict[str, type[Exception]]

    def __init__(self, url: str) -> None: ...

    def stream(self) -> list[str]:
        """The pieces in which the answer to QUESTION comes."""
        ...

    def tool_round(self) -> tuple[list[Any], str]:
        """The arguments of the calls that were made, and the answer after their results."""
        ...

    def structured(self) -> Pet: ...

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        """Asks and does not stream."""
        ...

    def leave(self) -> None:
        """Begins the answer to FOREVER, reads a piece of it and leaves."""
        ...


def _said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


class OpenAI:
    """openai: chat completions."""

    def __init__(self, url: str) -> None:
        import openai

        self._url = url
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60)
        self.errors = {
            "too long": openai.BadRequestError,
            "no such model": openai.NotFoundError,
            "bad field": openai.BadRequestError,
            "wrong key": openai.AuthenticationError,
        }

    def stream(self) -> list[str]:
        with self._client.chat.completions.create(
            model=MODEL, messages=_said(QUESTION), temperature=0, stream=True
        ) as chunks:
            return [text for chunk in chunks if (text := chunk.choices[0].delta.content)]

    def tool_round(self) -> tuple[list[Any], str]:
        turns = _said(QUESTION)
        options: dict[str, Any] = {"model": MODEL, "temperature": 0, "tools": [WEATHER]}
        answer = self._client.chat.completions.create(messages=turns, **options).choices[0].message
        turns += [answer, *({"role": "tool", "tool_call_id": c.id, "content": RESULT} for c in answer.tool_calls)]
        final = self._client.chat.completions.create(messages=turns, **options).choices[0].message.content
        return [json.loads(call.function.arguments) for call in answer.tool_calls], final

    def structured(self) -> Pet:
        answer = self._client.chat.completions.parse(
            model=MODEL, messages=_said(QUESTION), response_format=Pet, temperature=0, max_tokens=ANSWER_TOKENS
        )
        found = answer.choices[0].message.parsed
        assert found is not None
        return found

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        client = self._client.with_options(api_key=key)
        client.chat.completions.create(model=model, messages=_said(text), temperature=temperature)

    def leave(self) -> None:
        with self._client.chat.completions.create(
            model=MODEL, messages=_said(FOREVER), temperature=0, stream=True
        ) as chunks:
            next(chunk for chunk in chunks if chunk.choices[0].delta.content)

    def close(self) -> None:
        self._client.close()


class OpenAIResponses(OpenAI):
    """openai: responses."""

    def stream(self) -> list[str]:
        with self._client.responses.create(model=MODEL, input=QUESTION, temperature=0, stream=True) as events:
            return [event.delta for event in events if event.type == "response.output_text.delta"]

    def tool_round(self) -> tuple[list[Any], str]:
        turns = _said(QUESTION)
        options: dict[str, Any] = {
            "model": MODEL,
            "temperature": 0,
            "tools": [{"type": "function", **WEATHER["function"], "strict": True}],
        }
        calls = self._client.responses.create(input=turns, **options).output
        turns += calls
        turns += [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls]
        return [json.loads(c.arguments) for c in calls], self._client.responses.create(
            input=turns, **options
        ).output_text

    def structured(self) -> Pet:
        answer = self._client.responses.parse(
            model=MODEL, input=QUESTION, text_format=Pet, temperature=0, max_output_tokens=ANSWER_TOKENS
        )
        assert answer.output_parsed is not None
        return answer.output_parsed

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        self._client.with_options(api_key=key).responses.create(model=model, input=text, temperature=temperature)

    def leave(self) -> None:
        with self._client.responses.create(model=MODEL, input=FOREVER, temperature=0, stream=True) as events:
            next(event for event in events if event.type == "response.output_text.delta")


class Anthropic:
    """anthropic: messages."""

    def __init__(self, url: str) -> None:
        import anthropic

        self._client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60)
        self.errors = {
            "too long": anthropic.BadRequestError,
            "no such model": anthropic.NotFoundError,
            "bad field": anthropic.BadRequestError,
            "wrong key": anthropic.AuthenticationError,
        }
        # Newer clients do not know the temperature by its name.
        self._fields: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "extra_body": {"temperature": 0}}

    def stream(self) -> list[str]:
        with self._client.messages.stream(model=MODEL, messages=_said(QUESTION), **self._fields) as stream:
            return list(stream.text_stream)

    def tool_round(self) -> tuple[list[Any], str]:
        function = WEATHER["function"]
        tool = {"name": "weather", "description": function["description"], "input_schema": function["parameters"]}
        options: dict[str, Any] = {"model": MODEL, "tools": [tool], **self._fields}
        turns = _said(QUESTION)
        blocks = self._client.messages.create(messages=turns, **options).content
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": RESULT} for block in blocks]
        turns += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        [final] = self._client.messages.create(messages=turns, **options).content
        return [block.input for block in blocks], final.text

    def structured(self) -> Pet:
        answer = self._client.messages.parse(model=MODEL, messages=_said(QUESTION), output_format=Pet, **self._fields)
        assert answer.parsed_output is not None
        return answer.parsed_output

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        fields = {**self._fields, "extra_body": {"temperature": temperature}}
        self._client.with_options(api_key=key).messages.create(model=model, messages=_said(text), **fields)

    def leave(self) -> None:
        fields = {**self._fields, "max_tokens": 1000}
        with self._client.messages.stream(model=MODEL, messages=_said(FOREVER), **fields) as stream:
            next(stream.text_stream)

    def close(self) -> None:
        self._client.close()


class Ollama:
    """ollama: chat."""

    def __init__(self, url: str) -> None:
        import ollama

        self._url = url
        self._client = self._with(KEY)
        self.errors = dict.fromkeys(("too long", "no such model", "bad field", "wrong key"), ollama.ResponseError)

    def _with(self, key: str) -> Any:
        import ollama

        return ollama.Client(self._url, headers={"authorization": f"Bearer {key}"}, timeout=60)

    def stream(self) -> list[str]:
        parts = self._client.chat(MODEL, _said(QUESTION), options={"temperature": 0}, stream=True)
        return [part.message.content for part in parts if part.message.content]

    def tool_round(self) -> tuple[list[Any], str]:
        options: dict[str, Any] = {"tools": [WEATHER], "options": {"temperature": 0}}
        turns = _said(QUESTION)
        answer = self._client.chat(MODEL, turns, **options).message
        turns += [
            answer,
            *({"role": "tool", "tool_name": c.function.name, "content": RESULT} for c in answer.tool_calls),
        ]
        final = self._client.chat(MODEL, turns, **options).message.content
        return [call.function.arguments for call in answer.tool_calls], final

    def structured(self) -> Pet:
        options = {"temperature": 0, "num_predict": ANSWER_TOKENS}
        answer = self._client.chat(MODEL, _said(QUESTION), format=Pet.model_json_schema(), options=options)
        return Pet.model_validate_json(answer.message.content)

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        with self._with(key) as client:
            client.chat(model, _said(text), options={"temperature": temperature})

    def leave(self) -> None:
        parts = self._client.chat(MODEL, _said(FOREVER), options={"temperature": 0}, stream=True)
        next(part for part in parts if part.message.content)
        parts.close()

    def close(self) -> None:
        self._client.close()


class LangChain:
    """langchain-openai."""

    def __init__(self, url: str) -> None:
        import openai

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its imports
            from langchain_openai import ChatOpenAI

        self._make = ChatOpenAI
        self._options: dict[str, Any] = {
            "base_url": f"{url}/v1",
            "max_retries": 0,
            "timeout": 60,
            "max_tokens": ANSWER_TOKENS,
        }
        self._chat: Any = self._with()
        self.errors = {
            "too long": openai.BadRequestError,
            "no such model": openai.NotFoundError,
            "bad field": openai.BadRequestError,
            "wrong key": openai.AuthenticationError,
        }

    def _with(self, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> Any:
        return self._make(model=model, api_key=key, temperature=temperature, **self._options)

    def stream(self) -> list[str]:
        return [chunk.content for chunk in self._chat.stream(QUESTION) if chunk.content]

    def tool_round(self) -> tuple[list[Any], str]:
        from langchain_core.messages import HumanMessage, ToolMessage

        chat = self._chat.bind_tools([WEATHER])
        turns: list[Any] = [HumanMessage(QUESTION)]
        answer = chat.invoke(turns)
        turns += [answer, *(ToolMessage(RESULT, tool_call_id=call["id"]) for call in answer.tool_calls)]
        return [call["args"] for call in answer.tool_calls], chat.invoke(turns).content

    def structured(self) -> Pet:
        found: Pet = self._chat.with_structured_output(Pet, method="json_schema").invoke(QUESTION)
        return found

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        self._with(model=model, key=key, temperature=temperature).invoke(text)

    def leave(self) -> None:
        chunks = self._chat.stream(FOREVER)
        next(chunk for chunk in chunks if chunk.content)
        chunks.close()

    def close(self) -> None:
        """Its connections are shared, and closed with the process."""


class LiteLLM:
    """litellm, as a client of a server that speaks OpenAI's protocol."""

    def __init__(self, url: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its imports
            import litellm

        self._litellm = litellm
        # It asks for the loop of the thread, which Python would make and nobody close.
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._url = url
        self.errors = {
            "too long": litellm.exceptions.ContextWindowExceededError,
            "no such model": litellm.exceptions.NotFoundError,
            "bad field": litellm.exceptions.BadRequestError,
            "wrong key": litellm.exceptions.AuthenticationError,
        }

    def _complete(self, messages: list[Any], **fields: Any) -> Any:
        wanted = {"model": f"openai/{MODEL}", "api_key": KEY, "temperature": 0, "max_tokens": ANSWER_TOKENS, **fields}
        return self._litellm.completion(
            api_base=f"{self._url}/v1", messages=messages, num_retries=0, timeout=60, **wanted
        )

    def stream(self) -> list[str]:
        chunks = self._complete(_said(QUESTION), stream=True)
        return [text for chunk in chunks if (text := chunk.choices[0].delta.content)]

    def tool_round(self) -> tuple[list[Any], str]:
        turns = _said(QUESTION)
        answer = self._complete(turns, tools=[WEATHER]).choices[0].message
        turns += [
            answer.model_dump(exclude_none=True),
            *({"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in answer.tool_calls),
        ]
        final = self._complete(turns, tools=[WEATHER]).choices[0].message.content
        return [json.loads(call.function.arguments) for call in answer.tool_calls], final

    def structured(self) -> Pet:
        answer = self._complete(_said(QUESTION), response_format=Pet)
        return Pet.model_validate_json(answer.choices[0].message.content)

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        self._complete(_said(text), model=f"openai/{model}", api_key=key, temperature=temperature)

    def leave(self) -> None:
        chunks = self._complete(_said(FOREVER), stream=True)
        next(chunk for chunk in chunks if chunk.choices[0].delta.content)
        chunks.completion_stream.close()

    def close(self) -> None:
        asyncio.set_event_loop(None)
        self._loop.close()


class PydanticAI:
    """pydantic-ai."""

    def __init__(self, url: str) -> None:
        from pydantic_ai import exceptions

        self._url = url
        self.errors = {
            "too long": exceptions.ModelHTTPError,
            "no such model": exceptions.ModelHTTPError,
            "bad field": exceptions.ModelHTTPError,
            "wrong key": exceptions.ModelHTTPError,
        }

    @asynccontextmanager
    async def _agent(self, *, model: str = MODEL, key: str = KEY, **options: Any) -> AsyncIterator[Any]:
        import openai
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        async with openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key, max_retries=0) as client:
            provider = OpenAIProvider(openai_client=client)
            settings = {"temperature": 0, "max_tokens": ANSWER_TOKENS, **options.pop("settings", {})}
            yield Agent(OpenAIChatModel(model, provider=provider), model_settings=settings, **options)

    def stream(self) -> list[str]:
        async def pieces() -> list[str]:
            async with self._agent() as agent, agent.run_stream(QUESTION) as result:
                return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

        return asyncio.run(pieces())

    def tool_round(self) -> tuple[list[Any], str]:
        asked: list[Any] = []

        def weather(city: str) -> str:
            """Tells the weather."""
            asked.append({"city": city})
            return RESULT

        async def answer() -> str:
            async with self._agent(tools=[weather]) as agent:
                return str((await agent.run(QUESTION)).output)

        return asked, asyncio.run(answer())

    def structured(self) -> Pet:
        from pydantic_ai import NativeOutput

        async def answer() -> Pet:
            async with self._agent(output_type=NativeOutput(Pet)) as agent:
                found: Pet = (await agent.run(QUESTION)).output
                return found

        return asyncio.run(answer())

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        async def answer() -> None:
            async with self._agent(model=model, key=key, settings={"temperature": temperature}) as agent:
                await agent.run(text)

        asyncio.run(answer())

    def leave(self) -> None:
        async def begin() -> None:
            async with self._agent() as agent, agent.run_stream(FOREVER) as result:
                await anext(result.stream_text(delta=True, debounce_by=None))
                await result.cancel()

        asyncio.run(begin())

    def close(self) -> None:
        """Each of its clients was closed."""


class OpenAIAgents:
    """openai-agents: responses."""

    def __init__(self, url: str) -> None:
        import agents
        import openai

        agents.set_tracing_disabled(True)
        self._url = url
        self.errors = {
            "too long": openai.BadRequestError,
            "no such model": openai.NotFoundError,
            "bad field": openai.BadRequestError,
            "wrong key": openai.AuthenticationError,
        }

    @asynccontextmanager
    async def _agent(
        self, *, model: str = MODEL, key: str = KEY, temperature: float = 0, **options: Any
    ) -> AsyncIterator[Any]:
        import agents
        import openai

        async with openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key, max_retries=0) as client:
            settings = agents.ModelSettings(temperature=temperature, max_tokens=ANSWER_TOKENS)
            made = self._model(model, client)
            yield agents.Agent(name="agent", model=made, model_settings=settings, **options)

    def _model(self, name: str, client: Any) -> Any:
        import agents

        return agents.OpenAIResponsesModel(model=name, openai_client=client)

    def stream(self) -> list[str]:
        import agents

        async def pieces() -> list[str]:
            async with self._agent() as agent:
                result = agents.Runner.run_streamed(agent, QUESTION)
                return [text async for event in result.stream_events() if (text := _delta(event))]

        return asyncio.run(pieces())

    def tool_round(self) -> tuple[list[Any], str]:
        import agents

        asked: list[Any] = []

        @agents.function_tool
        def weather(city: str) -> str:
            asked.append({"city": city})
            return RESULT

        async def answer() -> str:
            async with self._agent(tools=[weather]) as agent:
                return str((await agents.Runner.run(agent, QUESTION, max_turns=3)).final_output)

        return asked, asyncio.run(answer())

    def structured(self) -> Pet:
        import agents

        async def answer() -> Pet:
            async with self._agent(output_type=Pet) as agent:
                return (await agents.Runner.run(agent, QUESTION)).final_output_as(Pet)

        return asyncio.run(answer())

    def ask(self, text: str, *, model: str = MODEL, key: str = KEY, temperature: float = 0) -> None:
        import agents

        async def answer() -> None:
            async with self._agent(model=model, key=key, temperature=temperature) as agent:
                await agents.Runner.run(agent, text)

        asyncio.run(answer())

    def leave(self) -> None:
        import agents

        async def begin() -> None:
            async with self._agent() as agent:
                result = agents.Runner.run_streamed(agent, FOREVER)
                async for event in result.stream_events():
                    if _delta(event):
                        result.cancel()

        asyncio.run(begin())

    def close(self) -> None:
        """Each of its clients was closed."""


class OpenAIAgentsChat(OpenAIAgents):
    """openai-agents: chat completions."""

    def _model(self, name: str, client: Any) -> Any:
        import agents

        return agents.OpenAIChatCompletionsModel(model=name, openai_client=client)


def _delta(event: Any) -> str:
    """The text that an event of the agents SDK brings."""
    if event.type != "raw_response_event" or event.data.type != "response.output_text.delta":
        return ""
    return str(event.data.delta)


CLIENTS: dict[str, type[Any]] = {
    "openai": OpenAI,
    "openai-responses": OpenAIResponses,
    "anthropic": Anthropic,
    "ollama": Ollama,
    "langchain-openai": LangChain,
    "litellm": LiteLLM,
    "pydantic-ai": PydanticAI,
    "openai-agents": OpenAIAgents,
    "openai-agents-chat": OpenAIAgentsChat,
}


@contextmanager
def connected(name: str, url: str) -> Iterator[Any]:
    """The client of that name."""
    client = CLIENTS[name](url)
    try:
        yield client
    finally:
        client.close()
