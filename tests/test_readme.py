"""The README says what the code has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localinfer.cli.main import build_app
from localinfer.hub.catalog import CATALOG
from localinfer.models import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def rows(header: str) -> list[list[str]]:
    """The cells of the table with that first header."""
    table = README[README.index(f"| {header} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_every_command_is_described_and_none_that_is_missing() -> None:
    described = {name for row in rows("command") for name in re.findall(r"`(?:localinfer )?([a-z]+)", row[0])}
    registered = {command.name for command in build_app().registered_commands}
    assert described == registered


def test_the_table_of_architectures_is_that_of_the_code() -> None:
    assert {row[0].strip("`") for row in rows("architecture")} == set(FAMILIES)


# In a process of its own: code books that another test's model has installed stay installed.
USABLE_TYPES = """
from localinfer.kernels.cpu.codebooks import install_codebooks
from localinfer.kernels.cpu.native import library
from localinfer.kernels.types import TYPES
native = library()
install_codebooks(native, TYPES)
for name, kind in TYPES.items():
    if kind.in_gguf and native.li_cpu_group_bytes(None, kind.id, 768):
        print("integer" if native.li_cpu_integer_type(None, kind.id) else "other", name)
"""


def test_the_table_of_tensor_types_is_what_the_cpu_multiplies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", USABLE_TYPES]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout.splitlines()
    usable = {line.split()[1] for line in lines}
    integer = {line.split()[1] for line in lines if line.startswith("integer")}
    fast, floating, slow = ({t.strip("`") for t in row[0].split()} for row in rows("tensor types"))
    assert fast == integer
    assert floating == {"F32", "F16", "BF16"}
    assert fast | floating | slow == usable


def test_models_named_as_examples_can_be_pulled() -> None:
    named = set(re.findall(r"`([a-z0-9]+:[0-9]+m)`", README))
    assert named
    assert named <= set(CATALOG)


def test_the_python_example_runs_as_far_as_it_can_without_a_model(tmp_path: Path) -> None:
    """It is complete and its names exist: without the model the only complaint is that the model is missing."""
    example = README[README.index("```python\n") + 10 :].split("```")[0]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "smollm2:135m is not installed" in done.stderr.replace("'", "").replace('"', ""), done.stderr


def ci(folder: Path, readme: str) -> subprocess.CompletedProcess[str]:
    """.ci/run in a checkout with that README, and with a python3 that only pretends to make an environment."""
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "README.md").write_text(readme)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").write_text("#!/bin/sh\n")
    (folder / "bin" / "python3").chmod(0o755)
    environment = os.environ | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([folder / ".ci" / "run"], capture_output=True, text=True, env=environment, check=False)


def test_ci_runs_the_test_command_of_the_readme(tmp_path: Path) -> None:
    before, marker, after = README.partition("<!-- test-command -->")
    assert marker
    command = "pip install '.[dev]' && scripts/check"
    assert after.startswith(f"\n```sh\n{command}\n```\n")
    done = ci(tmp_path / "same", README.replace(command, 'echo "$PYTEST_ADDOPTS"; pwd'))
    assert done.stdout == f"--only-expected-skips\n{tmp_path / 'same'}\n", done.stderr
    assert done.returncode == 0
    for failing in ("false && true", "false; true", "exit 3"):
        assert ci(tmp_path / failing.replace(" ", ""), README.replace(command, failing)).returncode != 0
    lost = ci(tmp_path / "lost", before + after)
    assert lost.returncode == 1
    assert "names no test command" in lost.stderr
    assert lost.stdout == ""
