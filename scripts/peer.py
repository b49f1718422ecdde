"""llama.cpp as the peer of the comparison scripts: where its build lies, and a driver process that obeys commands."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

NATIVE = Path(__file__).resolve().parent / "native"
DEFAULT_FOLDER = Path.home() / ".cache" / "localinfer-peers"
SDIST_VERSION = "0.3.36"  # of llama-cpp-python, which carries llama.cpp's source
DEFAULT_SOURCE = DEFAULT_FOLDER / f"llama_cpp_python-{SDIST_VERSION}" / "vendor" / "llama.cpp"


def add_peer_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--llama-cpp DIR`, llama.cpp's source folder with its build inside."""
    parser.add_argument(
        "--llama-cpp",
        type=Path,
        default=DEFAULT_SOURCE,
        metavar="DIR",
        help="llama.cpp's source folder, built in DIR/build (default: what build_llama_cpp.py makes)",
    )


def binary(source: Path, name: str) -> Path:
    """A program of the build; ends the script with a hint if it isn't there."""
    path = source / "build" / "bin" / name
    if not path.exists():
        raise SystemExit(f"error: {path} does not exist\n\nhint: python scripts/build_llama_cpp.py")
    return path


def compile_native(source: Path, *flags: str) -> Path:
    """Compiles one C++ file of ours to a program, once per content and flags; returns its path."""
    key = hashlib.sha256(source.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    folder = DEFAULT_FOLDER / "programs"
    path = folder / f"{source.stem}-{key}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CXX", "c++")
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / source.stem
            command = [compiler, "-O3", "-march=native", "-std=c++17", "-pthread", str(source), "-o", str(made)]
            subprocess.run([*command, *flags], check=True)
            made.replace(path)
    return path


def driver_program(source: Path) -> Path:
    """Our driver, linked against the peer's libllama."""
    libraries = binary(source, "libllama.so").parent
    return compile_native(
        NATIVE / "llama_driver.cpp",
        f"-I{source / 'include'}",
        f"-I{source / 'ggml' / 'include'}",
        f"-L{libraries}",
        f"-Wl,-rpath,{libraries}",
        "-lllama",
        "-lggml",
        "-lggml-base",
    )


class Child:
    """A process that answers one line per command on its pipes."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | (environment or {}),
        )
        self.reply()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def reply(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.process.args!r} ended early with status {self.process.wait()}")
        return line.decode().strip()

    def ask(self, command: str) -> str:
        self.send(command.encode() + b"\n")
        return self.reply()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LlamaCpp(Child):
    """llama.cpp with a model loaded. `contexts` are the sizes of the contexts, addressed by index."""

    def __init__(self, source: Path, model: Path, threads: int, flash_attention: bool, contexts: Sequence[int]) -> None:
        flash = "on" if flash_attention else "off"
        super().__init__([driver_program(source), model, str(threads), flash, *map(str, contexts)])

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text, without begin-of-text, special tokens not parsed."""
        data = text.encode()
        self.send(f"tokenize {len(data)}\n".encode() + data)
        return [int(word) for word in self.reply().split()]

    def logits(self, ids: Sequence[int], context: int = 0) -> npt.NDArray[Any]:
        """float32 `[ids, vocabulary]`: the logits after each of the ids, from an empty context."""
        import numpy as np

        size = int(self.ask(f"logits {context} {' '.join(map(str, ids))}"))
        assert self.process.stdout is not None
        data = np.empty((len(ids), size), np.float32)
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):
            count = self.process.stdout.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise SystemExit("error: the driver ended within its logits")
            done += count
        return data


class Timed(NamedTuple):
    """What a program took: seconds, bytes of memory at most, and seconds of all processors."""

    seconds: float
    peak: int
    processor: float


def run_timed(command: Sequence[str | Path], until_output: bool = True) -> Timed:
    """Runs a program to its end; `seconds` are those from its start to its first byte of output (or its end).

    The peak is the largest resident set that the kernel saw, mapped file pages included. The kernel starts a
    child's peak at its parent's, so the caller must hold less than what it measures.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process.stdout as output:
        output.read(1)
        seconds = time.perf_counter() - start
        output.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if not until_output:
        seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise SystemExit(f"error: status {process.returncode} from {command!r}")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Timed(seconds, peak, usage.ru_utime + usage.ru_stime)
