"""What llama.cpp computes for a file, to compare model families with.

    python scripts/llama_cpp_logits.py MODEL TOKEN,TOKEN,...    prints the best five tokens after each token
    python scripts/llama_cpp_logits.py --fixtures               rewrites tests/data/llama_cpp/ from the tiny models

Needs llama.cpp built by scripts/build_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from peer import NATIVE, add_peer_argument, binary, compile_native

TESTS = Path(__file__).resolve().parents[1] / "tests"
POSITIONS = (4, 12, 25, 39)  # of the tokens of a tiny model: before and after its window is full
TOKEN_STRIDE = 12  # every so many tokens' logits are kept


def logits(source: Path, model: Path, tokens: Sequence[int], context: int) -> npt.NDArray[Any]:
    """llama.cpp's float32 `[tokens, vocabulary]`, with a float32 cache."""
    libraries = binary(source, "libllama.so").parent
    program = compile_native(
        NATIVE / "llama_logits.cpp",
        f"-I{source / 'include'}",
        f"-I{source / 'ggml' / 'include'}",
        f"-L{libraries}",
        f"-Wl,-rpath,{libraries}",
        "-lllama",
        "-lggml",
        "-lggml-base",
    )
    command = [str(program), str(model), str(context), *map(str, tokens)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    vocabulary = int(np.frombuffer(output, np.int32, 1)[0])
    return np.frombuffer(output, np.float32, offset=4).reshape(len(tokens), vocabulary)


def write_fixtures(source: Path) -> None:
    """One file per tiny model: a hash of its GGUF file and some of the logits."""
    sys.path.insert(0, str(TESTS))
    from tiny_models import TINY_MODELS, write_gguf

    folder = TESTS / "data" / "llama_cpp"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for tiny in TINY_MODELS:
            if not tiny.llama_cpp:
                continue
            path = write_gguf(tiny, Path(temporary) / "tiny.gguf")
            values = logits(source, path, tiny.tokens(), tiny.context)
            rows = {str(p): [round(float(v), 5) for v in values[p, ::TOKEN_STRIDE]] for p in POSITIONS}
            fixture = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "token_stride": TOKEN_STRIDE} | rows
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items())
            (folder / f"{tiny.name}.json").write_text(f"{{\n{lines}\n}}\n")
            print(f"{tiny.name}: {values.shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("tokens", nargs="?", default="1")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--fixtures", action="store_true", help="rewrite the tests' fixtures")
    add_peer_argument(parser)
    arguments = parser.parse_args()
    if arguments.fixtures:
        write_fixtures(arguments.llama_cpp)
    elif arguments.model is None:
        parser.error("name a model, or ask for --fixtures")
    else:
        tokens = [int(t) for t in arguments.tokens.split(",")]
        values = logits(arguments.llama_cpp, arguments.model, tokens, arguments.context)
        for token, row in zip(tokens, values, strict=True):
            best = np.argsort(-row)[:5]
            print(f"{token:>8} -> " + "  ".join(f"{t}: {row[t]:.4f}" for t in best))


if __name__ == "__main__":
    main()
