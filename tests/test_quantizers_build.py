"""Builds of the quantizers by two compilers, with and without optimization, give the same bytes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "kernels" / "quantize" / "native"
FLAGS = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wno-psabi"]
CLANG = [sys.executable, "-m", "ziglang", "c++"]

PRINT_DIGESTS = """
import test_quantizers as tests
from localinfer.kernels.quantize.quantizer import *
weights, hessian = tests.every_kind(), Hessian([tests.gram(tests.COLUMNS)])
for name in QUANTIZABLE:
    print(name, tests.digest(quantize_rows(name, weights, importance=tests.importance(tests.COLUMNS))))
for name in WITH_FEEDBACK:
    print(name, tests.digest(quantize_with_feedback(name, weights, hessian=hessian)))
print(sorted(tests.codes().items()))
"""


def digests(folder: Path | None) -> str:
    """What the library in a folder (None: the installed one) makes, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    if folder is not None:
        environment["LOCALINFER_NATIVE_DIR"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(folder: Path, compiler: list[str], flags: list[str]) -> None:
    """The arithmetic by this compiler, for the lanes of `flags`; threads and checks by g++."""
    files = [str(path) for path in SOURCES.glob("*.cpp") if not path.name.startswith("kernels_")]
    arithmetic = folder / "kernels.o"
    source = SOURCES / "kernels_portable.cpp"
    subprocess.run([*compiler, *FLAGS, *flags, "-c", str(source), "-o", str(arithmetic)], check=True, timeout=120)
    others = [str(SOURCES / f"kernels_{name}.cpp") for name in ("avx2", "avx512")]  # without their flags: empty
    library = str(folder / "_quantize.so")
    subprocess.run(
        ["g++", *FLAGS, "-O1", "-shared", *files, *others, str(arithmetic), "-pthread", "-o", library],
        check=True,
        timeout=120,
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("compiler", "flags"),
    [(["g++"], ["-O0"]), (CLANG, ["-O2", "-mavx2", "-mfma"])],
    ids=["g++ -O0", "clang -O2 -mavx2 -mfma"],
)
def test_compilers_agree(compiler: list[str], flags: list[str], tmp_path: Path) -> None:
    if compiler is CLANG and importlib.util.find_spec("ziglang") is None:
        pytest.skip("the clang of the package ziglang is not installed")
    build(tmp_path, compiler, flags)
    assert digests(tmp_path) == digests(None)
