"""Builds the peer: llama.cpp with this machine's instructions, from the source that llama-cpp-python carries.

    python scripts/build_llama_cpp.py [FOLDER]

Takes some 20 minutes on two cores and does nothing if the build is there already. Needs pip, cmake and a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from peer import DEFAULT_FOLDER, SDIST_VERSION

PROGRAMS = (
    "llama-bench",
    "llama-cli",
    "llama-completion",
    "llama-imatrix",
    "llama-quantize",
    "llama-server",
    "llama-tokenize",
)
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",  # llama-cli links the server's code
    "-DLLAMA_BUILD_UI=OFF",
)


def fetch(folder: Path) -> Path:
    """Downloads and unpacks the source distribution; returns the folder of llama.cpp's source."""
    root = folder / f"llama_cpp_python-{SDIST_VERSION}"
    if not root.exists():
        requirement = f"llama-cpp-python=={SDIST_VERSION}"
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*download, "-d", str(folder), requirement], check=True)
        with tarfile.open(folder / f"llama_cpp_python-{SDIST_VERSION}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return root / "vendor" / "llama.cpp"


def build(source: Path) -> None:
    """Configures and builds; a finished or half-finished build is continued."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("error: cmake is not installed\n\nhint: pip install cmake")
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    folder = source / "build"
    subprocess.run([cmake, "-S", str(source), "-B", str(folder), *generator, *OPTIONS], check=True)
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    subprocess.run([cmake, "--build", str(folder), "-j", jobs, "--target", *PROGRAMS], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=DEFAULT_FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    source = fetch(folder)
    if not all((source / "build" / "bin" / program).exists() for program in PROGRAMS):
        build(source)
    print(f"llama.cpp: {source} (pass it as --llama-cpp if it isn't the default)")


if __name__ == "__main__":
    main()
