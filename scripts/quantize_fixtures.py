"""What llama.cpp makes of files that `localinfer quantize` writes: rewrites tests/data/quantized.json.

    python scripts/quantize_fixtures.py

For every recipe, on the trained checkpoint of the tests: a hash of all tensors, and some of llama.cpp's logits.
Needs llama.cpp built by scripts/build_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from llama_cpp_logits import logits
from peer import add_peer_argument

from localinfer.hub.report import Silent
from localinfer.quantize.pipeline import Wishes, quantize
from localinfer.quantize.provenance import Provenance
from localinfer.quantize.recipes import RECIPES

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
TOKENS = [(7 * i * i + 11 * i + 5) % 1000 + 3 for i in range(24)]
TOKEN_STRIDE = 16  # every so many tokens' logits are kept
POSITIONS = (3, 11, 23)


def digest(made: Provenance) -> str:
    """One hash for all tensors of a file."""
    lines = "".join(f"{name} {record.sha256}\n" for name, record in made.tensors.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_argument(parser)
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in RECIPES:
            path = Path(folder) / f"{name}.gguf"
            made = quantize(Wishes(DATA / "presidents-1m", name, output=path, measure=False), Silent()).provenance
            values = logits(arguments.llama_cpp, path, TOKENS, 64)
            rows = {str(p): [round(float(v), 4) for v in values[p, ::TOKEN_STRIDE]] for p in POSITIONS}
            found[name] = {"sha256": digest(made)} | rows
            print(f"{name}: {path.stat().st_size} bytes")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    text = f'{{\n"tokens": {TOKENS},\n"token_stride": {TOKEN_STRIDE},\n"recipes": {{\n{lines}\n}}\n}}\n'
    (DATA / "quantized.json").write_text(text)


if __name__ == "__main__":
    main()
