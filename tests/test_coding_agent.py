"""Coding agents as the guide sets them up, without a network: a turn in which one writes a file and says so."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conversation import KEY, REPORT, called, talking
from node_packages import environment, installed

TURN_SECONDS = 120.0
TASK = "Write hello into made.txt."
# Agents send tens of thousands of characters, of which the model is shown the last.
SHOWN = "(message['content'] or '')[-200:]"
GUIDE = (Path(__file__).resolve().parents[1] / "docs" / "guides" / "agents.md").read_text(encoding="utf-8")


class Agent(NamedTuple):
    """How one is asked. `call` is the call that the model makes, `project` where the file has to be."""

    call: Callable[[Path], str]
    command: Callable[[Path, Path], list[str]]
    environment: Callable[[str, Path], dict[str, str]]
    answer: Callable[[str], str]
    path: str  # where it asks


def _codex_home(url: str, home: Path) -> dict[str, str]:
    (home / ".codex").mkdir()
    config = GUIDE[GUIDE.index("```toml\n") + 8 :].split("```")[0]
    config = config.replace("http://127.0.0.1:8080", url).replace("smollm2:135m", "tiny")
    (home / ".codex" / "config.toml").write_text(config)
    return {"LOCALINFER_KEY": KEY}


def _codex_answer(output: str) -> str:
    events = [json.loads(line) for line in output.splitlines()]
    assert events[-1]["type"] == "turn.completed", events[-1]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    [command] = [item for item in items if item["type"] == "command_execution"]
    assert (command["exit_code"], command["aggregated_output"]) == (0, "hello\n")
    return str(items[-1]["text"])


def _claude_environment(url: str, home: Path) -> dict[str, str]:
    exported = dict(re.findall(r"^export (\w+)=(\S+)$", GUIDE, re.MULTILINE))
    return {**exported, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": KEY}


def _claude_answer(output: str) -> str:
    found: dict[str, Any] = json.loads(output)
    assert (found["is_error"], found["num_turns"], found["permission_denials"]) == (False, 2, [])
    return str(found["result"])


AGENTS = {
    "codex": Agent(
        call=lambda project: called("exec_command", '{"cmd": "echo hello > made.txt && cat made.txt"}'),
        command=lambda packages, project: [
            *(str(packages / "node_modules" / ".bin" / "codex"), "exec", "--json", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "--cd", str(project), TASK),
        ],
        environment=_codex_home,
        answer=_codex_answer,
        path="/v1/responses",
    ),
    "claude-code": Agent(
        call=lambda project: called(
            "Write", json.dumps({"file_path": str(project / "made.txt"), "content": "hello\n"})
        ),
        command=lambda packages, project: [
            str(next((packages / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude"))),
            *("-p", TASK, "--model", "tiny", "--permission-mode", "acceptEdits", "--output-format", "json"),
        ],
        environment=_claude_environment,
        answer=_claude_answer,
        path="/v1/messages",
    ),
}


@pytest.mark.network
@pytest.mark.parametrize("name", list(AGENTS))
def test_a_turn_with_a_tool(name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]
    project, home = tmp_path / "project", tmp_path / "agents-home"
    project.mkdir()
    home.mkdir()
    with (
        installed(name, tmp_path) as packages,
        talking(tmp_path, agent.call(project), content=SHOWN, context=8192) as server,
    ):
        done = subprocess.run(
            agent.command(packages, project),
            cwd=project,
            env=environment(home, **agent.environment(server.url, home)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TURN_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert agent.answer(done.stdout) == "".join(REPORT)
    assert (project / "made.txt").read_text() == "hello\n"
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if f"endpoint={agent.path} " in line]
    assert len(lines) == 2
    assert all("status=200" in line for line in lines)
