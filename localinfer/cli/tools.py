"""The tools that a chat can lend to its model, and the question before one reads a file."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from localinfer.cli.calculator import calculate
from localinfer.cli.file_reader import FileReader
from localinfer.cli.output import aside, note, size
from localinfer.errors import LocalInferError
from localinfer.text.answer_reader import Call

TOOLS = ("calculator", "files")  # for --tools
MOST_ROUNDS = 8  # of calls, to one message
_SHOWN = 200  # characters of a call, or of a result

Reply = Literal["yes", "no", "always"]


class Prepared(NamedTuple):
    """A call that has been looked at: what the person has to allow ("" for nothing), and what the model would get."""

    question: str
    result: str


@dataclass(frozen=True)
class Tool:
    """`prepare` takes the arguments by name. It raises LocalInferError for what cannot be done."""

    name: str
    description: str
    arguments: Mapping[str, str]  # name and description of each, all of them texts
    prepare: Callable[..., Prepared]

    @property
    def definition(self) -> dict[str, Any]:
        """As in OpenAI's API."""
        properties = {name: {"type": "string", "description": text} for name, text in self.arguments.items()}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


class Toolbox:
    """The tools of one chat. `ask` puts a question to the person; what nobody can be asked is denied."""

    def __init__(self, names: Sequence[str], folder: Path, ask: Callable[[str], Reply] | None) -> None:
        for name in names:
            if name not in TOOLS:
                raise LocalInferError(f"there is no tool {name}", f"--tools takes {', '.join(TOOLS)}")
        tools = [_CALCULATOR] if "calculator" in names else []
        if "files" in names:
            tools += _file_tools(FileReader(folder))
        self._tools = {tool.name: tool for tool in tools}
        self._ask = ask
        self._allowed: set[str] = set()

    @property
    def definitions(self) -> list[dict[str, Any]]:
        return [tool.definition for tool in self._tools.values()]

    def run(self, call: Call) -> str:
        """What the model gets for a call; it is told what went wrong, too."""
        aside(_short(f"{call.name} {call.arguments}"))
        try:
            result = self._run(call)
        except LocalInferError as problem:
            result = f"error: {problem.message}"
        aside(_short(f"= {result}"))
        return result

    def _run(self, call: Call) -> str:
        tool = self._tools.get(call.name)
        if tool is None:
            raise LocalInferError(f"there is no tool {call.name}; there are {', '.join(self._tools)}")
        try:
            arguments = json.loads(call.arguments)
        except ValueError as error:
            raise LocalInferError("the arguments are no JSON") from error
        named = set(arguments) if isinstance(arguments, dict) else set()
        if named != set(tool.arguments) or not all(isinstance(value, str) for value in arguments.values()):
            raise LocalInferError(f"{tool.name} takes {', '.join(tool.arguments)}, as texts, and nothing else")
        prepared = tool.prepare(**arguments)
        if prepared.question and not self._may(tool.name, prepared.question):
            raise LocalInferError("the user does not allow it; answer without it, and do not ask again")
        return prepared.result

    def _may(self, name: str, question: str) -> bool:
        if name in self._allowed:
            aside(f"(allowed for this session: {question})")
            return True
        if self._ask is None:
            note(f"note: nobody can be asked at a pipe, so the model may not {question}")
            return False
        reply = self._ask(f"The model wants to {question}. Allow it?")
        if reply == "always":
            self._allowed.add(name)
        return reply != "no"


_CALCULATOR = Tool(
    "calculator",
    "Calculates the value of one arithmetic expression, exactly.",
    {"expression": "For example: (3 + 4) * 2 ** 10 / sqrt(2). Functions: sqrt, log, sin, factorial, round and others."},
    lambda expression: Prepared("", calculate(expression)),
)


def _file_tools(reader: FileReader) -> list[Tool]:
    def read(path: str) -> Prepared:
        text = reader.read(path)
        lines = len(text.splitlines())
        words = f"{size(len(text.encode()))}, {lines} line{'' if lines == 1 else 's'}"
        return Prepared(f"read {_on_a_line(reader.path(path))} ({words})", text)

    def names(path: str) -> Prepared:
        return Prepared(f"list the files in {_on_a_line(reader.path(path))}", reader.names(path))

    where = "A path below the user's folder"
    return [
        Tool("read_file", "Reads a text file.", {"path": f"{where}, such as notes/today.txt"}, read),
        Tool("list_files", "Lists what is in a folder.", {"path": f'{where}; "." is that folder itself'}, names),
    ]


def ask_person(question: str) -> Reply:
    """Asks at the terminal; what is no answer, the end of input and Ctrl-C are no."""
    import sys

    note(question)
    while True:
        print("[y]es, [n]o, [a]lways in this session: ", end="", file=sys.stderr, flush=True)
        try:
            typed = sys.stdin.readline()
        except KeyboardInterrupt:
            typed = ""
        if not typed:
            note("")
            return "no"
        replies: dict[str, Reply] = {"y": "yes", "yes": "yes", "a": "always", "always": "always"}
        word = typed.strip().lower()
        if word in replies:
            return replies[word]
        if word in ("n", "no"):
            return "no"


def _on_a_line(path: Path) -> str:
    return str(path).replace("\n", "\u240a")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}… ({len(text)} characters)"
