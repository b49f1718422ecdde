"""Whether a model thinks before it answers: what its chat template wants to be told."""

import re
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.text.chat_template import ChatTemplate

# Names of variables, and where a template reads them; the second is also the name of a part of messages.
_VARIABLES = (
    ("enable_thinking", re.compile(r"\benable_thinking\b")),
    ("thinking", re.compile(r"\{%-?\s*(?:el)?if(?:\s+not)?\s+(?:\w+\s+(?:and|or)\s+)*thinking\b(?!\s*\.)")),
)


def thinking_variables(template: ChatTemplate | None, thinks: bool) -> dict[str, Any]:
    """Variables for the template. LocalInferError if it does not let one choose."""
    source = template.source if template is not None else ""
    read = [name for name, pattern in _VARIABLES if pattern.search(source)][:1]
    if not read:
        raise LocalInferError(
            "the chat template of this model does not read enable_thinking: it thinks or does not, as it was trained",
            "--thinking-budget 0 ends each thought at once",
        )
    return {read[0]: thinks}
