"""What a loaded model can be asked for."""

from __future__ import annotations

from localinfer.engine.llm import LLM
from localinfer.server.rerank import ranks

_OLLAMA = {"infill": "insert", "rerank": None}  # what Ollama calls it; None: nothing


def capabilities(llm: LLM) -> list[str]:
    """Of completion, chat, embedding, rerank, infill, tools and thinking, those that it has.

    The first call may take a while: its chat template is tried out.
    """
    writes = llm.purpose == "text"
    found = {
        "completion": writes,
        "chat": writes and llm.chat_template is not None,
        "embedding": llm.purpose != "ranking",
        "rerank": ranks(llm),
        "infill": writes and llm.tokenizer.fill_in is not None,
        "tools": writes and llm.tool_format is not None,
        "thinking": writes and llm.reasoning_format is not None,
    }
    return [name for name, has in found.items() if has]


def ollama_capabilities(llm: LLM) -> list[str]:
    """The same in Ollama's words, whose clients know no others."""
    words = [_OLLAMA.get(name, name) for name in capabilities(llm) if name != "chat"]
    return [word for word in words if word is not None]
