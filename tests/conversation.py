"""What every client is tested with: a model that calls a tool once and then reports its result, behind real HTTP.

Five things are asked of each client, and `Rounds` says what has to come back, whatever the client is called and
whatever it is written in: a stream, a tool's call and its result, an answer of a schema, errors, and leaving in the
middle of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gated_steps import Gate, wait_until
from localinfer import LLM
from localinfer.server.settings import ServerSettings
from scripted_model import ANSWER, write_scripted_model
from served_app import Served, served

KEY = "the-key"
QUESTION = "How is the weather?"
FOREVER = "Say it forever."
TEXT = "".join(ANSWER)
CALL = {"city": "Oslo"}
RESULT = "rain"
REPORT = ["It", " rains", " in Oslo", "."]
TOO_LONG = "x" * 5000  # tokens, one each
CONTEXT = 2048
STEPS_BEFORE_LEAVING = 12

# The Hermes way of calling. CONTENT is what of a message's content the model is shown.
TEMPLATE = """\
{%- if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool.function.name + ' ' }}{% endfor %}{{ '<|end|>' }}
{%- endif %}
{%- for message in messages %}{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' }}
{{- CONTENT }}
{%- for call in message['tool_calls'] or [] %}{{ '\\n' if not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{ '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|forever|>' if 'forever' in (messages[-1]['content'] or '')
    else '<|report|>' if messages | selectattr('role', 'equalto', 'tool') | list
    else '<|call|>' if tools else '<|assistant|>' }}{% endif %}"""


def called(name: str, arguments: str) -> str:
    """A call as the model writes it; `arguments` are JSON."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WEATHER_CALL = called("weather", json.dumps(CALL))
WHOLE = "message['content'] or ''"


class Talking(NamedTuple):
    """A server whose model calls a tool where there are tools. Its steps pass a gate."""

    server: Served
    gate: Gate

    @property
    def url(self) -> str:
        return self.server.url

    @contextmanager
    def seeing_the_client_leave(self) -> Iterator[None]:
        """The block has to begin an endless answer and leave it; then nothing more is computed for it.

        Only so many steps pass, fewer than the answer would take: the next one waits, and is given up.
        """
        [model] = self.server.app.state.registry.loaded()
        before = self.gate.steps
        self.gate.close_gate(STEPS_BEFORE_LEAVING)
        try:
            yield
            wait_until(lambda: model.thread.active == 0 and model.llm.engine.statistics.running == 0)
            assert 0 < self.gate.steps - before <= STEPS_BEFORE_LEAVING
        finally:
            self.gate.open_gate()


def write_talking_model(path: Path, call: str = WEATHER_CALL, *, content: str = WHOLE, context: int = CONTEXT) -> Path:
    """Writes a model that says `call` where it is shown tools, and REPORT after a result."""
    template = TEMPLATE.replace("CONTENT", f"({content})")
    return write_scripted_model(path, template=template, context=context, answers={"call": [call], "report": REPORT})


@contextmanager
def talking(
    folder: Path, call: str = WEATHER_CALL, *, content: str = WHOLE, context: int = CONTEXT
) -> Iterator[Talking]:
    """Serves the model as "tiny" to those who have the key. `call` is what it writes where it is shown tools."""
    path = write_talking_model(folder / "tiny.gguf", call, content=content, context=context)
    llm = LLM(path, context=context, max_sequences=4, threads=1)
    llm.name = "tiny"
    gate = Gate(llm)
    settings = ServerSettings(api_keys=(KEY,), log_file=str(folder / "log"))
    with served(llm, settings, guard=True) as server:
        yield Talking(server, gate)
