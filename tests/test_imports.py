"""Imports point downward only, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripted_model import write_scripted_model

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "localinfer": ROOT / "localinfer",
    "localinfer.kernels": ROOT / "kernels",
    "localinfer.models": ROOT / "models",
}

# What each package may import beside itself and localinfer.errors: docs/architecture.md in rows.
ALLOWED = {
    "errors": set(),
    "kernels": set(),
    "models": {"kernels"},
    "formats": {"kernels"},
    "text": {"formats", "kernels"},
    "checkpoints": {"formats", "kernels", "text"},
    "hub": set(),
    "engine": {"checkpoints", "formats", "hub", "kernels", "models", "text"},
    "evaluate": {"checkpoints", "engine", "formats", "kernels", "models", "text"},
    "quantize": {"checkpoints", "engine", "evaluate", "formats", "kernels", "models", "text"},
    "verify": {"checkpoints", "formats", "kernels", "quantize"},
    "bench": {"checkpoints", "engine", "formats", "hub", "kernels", "models", "text"},
    "server": {"engine", "formats", "hub", "kernels", "models", "text"},
    "cli": {
        "bench",
        "checkpoints",
        "engine",
        "evaluate",
        "formats",
        "hub",
        "kernels",
        "models",
        "quantize",
        "server",
        "text",
        "verify",
    },
    "__init__": {"engine"},
    "__main__": {"cli"},
}
# Policy decides about integers: no tensors, no native code, no backend.
INTEGERS_ONLY = {f"engine.{n}" for n in ("draft_control", "kv", "ngram", "scheduler", "sequence", "step_times")}
# Third-party packages that may be imported as soon as a module is (which is itself imported late, but for the first).
SERVER = {"starlette", "uvicorn", "msgspec", "prometheus_client"}
AT_ONCE = {
    "checkpoints.quantized": {"numpy"},
    "cli": {"typer"},
    "kernels.reference": {"torch", "numpy"},
    "server": SERVER,
    "verify": {"numpy"},
    "text.template_sandbox": {"jinja2"},
}
HEAVY = (
    *("torch", "transformers", "numpy", "gguf", "huggingface_hub", "safetensors", "rich", "jinja2", "llguidance"),
    *sorted(SERVER),
)


def modules() -> dict[str, Path]:
    """Every module of the installed package, by its name without the leading "localinfer."."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = [*package.split(".")[1:], *path.relative_to(folder).with_suffix("").parts]
            if len(parts) > 1 and parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


MODULES = modules()


def is_later(node: ast.AST) -> bool:
    """Whether what is inside does not run when the module is imported."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def imports(path: Path, at_once: bool = False) -> Iterator[str]:
    """Names that a file imports; with `at_once`, only those imported when the module is."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                yield f"{child.module}"
                if child.module in FOLDERS:
                    yield from (f"{child.module}.{alias.name}" for alias in child.names)
            elif at_once and is_later(child):
                continue
            else:
                yield from walk(child)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")))


def test_the_walk_finds_what_it_should() -> None:
    assert {"errors", "kernels.base", "models.base", "engine.scheduler", "cli.main", "__init__"} <= set(MODULES)
    assert "typer" in set(imports(MODULES["cli.pull"], at_once=True))
    assert "localinfer.hub.pull" in set(imports(MODULES["cli.pull"]))
    assert "localinfer.hub.pull" not in set(imports(MODULES["cli.pull"], at_once=True))


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downward(name: str) -> None:
    package = name.partition(".")[0]
    assert package in ALLOWED, f"docs/architecture.md and ALLOWED do not say where {package} belongs"
    for imported in imports(MODULES[name]):
        if not imported.startswith("localinfer."):
            continue
        target = imported.split(".")[1]
        if target in (package, "errors", "__version__", "LLM", "SamplingParams"):
            continue
        assert target in ALLOWED[package], f"{name} imports {imported}"


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith("kernels.")])
def test_the_contract_knows_no_backend_and_backends_not_each_other(name: str) -> None:
    own = ".".join(name.split(".")[:2])
    backends = {"localinfer.kernels.reference", "localinfer.kernels.cpu"}
    for imported in imports(MODULES[name]):
        target = ".".join(imported.split(".")[:3])
        assert target not in backends or target == f"localinfer.{own}", f"{name} imports {imported}"


@pytest.mark.parametrize("name", sorted(INTEGERS_ONLY))
def test_policy_holds_no_tensors(name: str) -> None:
    for imported in imports(MODULES[name]):
        top = imported.partition(".")[0]
        if top == "localinfer":
            known = {f"localinfer.{n}" for n in INTEGERS_ONLY} | {"localinfer.errors"}
            assert imported in known, f"{name} imports {imported}"
        else:
            assert top in sys.stdlib_module_names, f"{name} imports {imported}"


@pytest.mark.parametrize("name", MODULES)
def test_other_packages_are_imported_where_they_are_used(name: str) -> None:
    allowed = set().union(*(tops for prefix, tops in AT_ONCE.items() if f"{name}.".startswith(f"{prefix}.")))
    for imported in imports(MODULES[name], at_once=True):
        top = imported.partition(".")[0]
        assert top in {"localinfer", "__future__", *sys.stdlib_module_names, *allowed}, f"{name} imports {imported}"


def loaded_after(code: str, *arguments: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    code += "\nimport sys; print(); print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import localinfer",
        "import localinfer.cli.main",
        "from localinfer.cli.main import build_app; build_app()",
        "from localinfer.cli.main import execute; assert execute(['--help']) == 0",
        "from localinfer.cli.main import execute; assert execute(['list']) == 0",
    ],
)
def test_nothing_heavy_is_imported_at_start(code: str) -> None:
    assert loaded_after(code).isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_talk_on_the_cpu_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    path = write_scripted_model(tmp_path / "scripted.gguf")
    code = """
import io, sys
sys.stdin = io.TextIOWrapper(io.BytesIO(b"hi\\n"))
from localinfer.cli.main import execute
assert execute(sys.argv[1:]) == 0
"""
    loaded = loaded_after(code, command, str(path), "--backend", "cpu")
    assert loaded.isdisjoint(set(HEAVY) - {"jinja2"})
    assert "jinja2" in loaded, "the chat template was not rendered"
