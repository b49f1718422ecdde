"""The code in an answer, and how a terminal takes it to the clipboard."""

import base64
import re

_BLOCK = re.compile(r"^([ \t]*)(`{3,}|~{3,})[^`\n]*\n(.*?)(?:^[ \t]*\2[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


def code_blocks(text: str) -> list[str]:
    """The code between fences, each line without the fence's indentation and with a newline."""
    found = []
    for indent, _, code in _BLOCK.findall(text):
        lines = code.removesuffix("\n").split("\n")
        found.append("".join(re.sub(f"^ {{0,{len(indent)}}}", "", line) + "\n" for line in lines))
    return found


def to_clipboard(text: str) -> str:
    """What makes a terminal take a text (OSC 52); those that do not know it, or do not allow it, show nothing."""
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"
