"""A model of each tensor type on the CPU backend, each in a process that knows nothing of the others.

What one load installs (code books) stays for the process, so only a fresh one shows that a load installs all it needs.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gguf_files import write_gguf
from localinfer.engine.plan import Wishes, make_plan
from localinfer.errors import UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import batch_of
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.kernels.reference.dequantize import DEQUANTIZERS
from localinfer.kernels.reference.ops import INTEGER_TYPES
from localinfer.kernels.types import TYPES
from random_rows import random_rows

WIDTH, VOCABULARY, HEADS = 256, 40, 4  # a width of whole blocks of every type
TOKENS = [3, 17, 17, 39, 0]
CONTEXT = 16

CHILD = f"""
import ctypes, sys
from localinfer.engine.load import choose_backend
from localinfer.engine.plan import Wishes, make_plan
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import batch_of
backend, note = choose_backend("auto")
assert (backend.name, note) == ("cpu", ""), note
with open_gguf(sys.argv[1]) as file:
    plan = make_plan(file, backend, Wishes(context={CONTEXT}, threads=1))
    executable = backend.load(plan.program, file, plan.config)
logits = executable.step(batch_of([({TOKENS}, 0, [0])]))
sys.stdout.buffer.write(ctypes.string_at(logits.address, 4 * logits.rows * logits.vocab_size))
assert ("gguf" in sys.modules) == (sys.argv[2].startswith(("IQ1", "IQ2", "IQ3"))), "only code books need that package"
"""


# Of the largest logit. Seen: 2e-5 (attention, through halves of keys and values). Where activations are int8, one that
# falls on the other side of a rounding boundary than the reference's shows: seen 7e-3.
TOLERANCE, INTEGER_TOLERANCE = 1e-4, 2e-2


def weights(type_name: str, rows: int, seed: int) -> np.ndarray:
    """Random rows whose sums of squares stay far from the largest float."""
    if type_name in ("I16", "I32", "I64"):
        small = np.random.default_rng(seed).integers(-9, 10, (rows, WIDTH))
        return small.astype(f"<i{TYPES[type_name].block_bytes}").view(np.uint8)
    raw = random_rows(type_name, rows, WIDTH, seed)
    if type_name == "MXFP4":
        raw.reshape(rows, -1, TYPES[type_name].block_bytes)[..., 0] = 122  # the exponent of 2**-6
    return raw


def write_model(path: Path, type_name: str) -> Path:
    """One layer, every matrix of that type."""
    shapes = {"token_embd": VOCABULARY, "output": VOCABULARY}
    shapes |= {f"blk.0.attn_{name}": WIDTH for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": WIDTH for name in ("gate", "up", "down")}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    sizes = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": WIDTH // HEADS,
    }
    return write_gguf(
        path,
        {f"llama.{name}": value for name, value in sizes.items()},
        {
            f"{name}.weight": (weights(type_name, rows, seed), type_name)
            for seed, (name, rows) in enumerate(shapes.items())
        }
        # Small gains: attention over loud keys would be decided by single roundings.
        | {f"{name}.weight": np.full(WIDTH, 0.02, np.float32) for name in norms},
    )


@pytest.mark.parametrize("type_name", sorted(name for name in DEQUANTIZERS if TYPES[name].in_gguf))
def test_a_model_of_each_type_runs_in_a_fresh_process(tmp_path: Path, type_name: str) -> None:
    path = write_model(tmp_path / "model.gguf", type_name)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), type_name], capture_output=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    found = np.frombuffer(done.stdout, np.float32)
    backend = ReferenceBackend(emulate="cpu")
    with open_gguf(path) as file:
        plan = make_plan(file, backend, Wishes(context=CONTEXT))
        expected = backend.load(plan.program, file, plan.config).step(batch_of([(TOKENS, 0, [0])])).numpy()[0]
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    tolerance = INTEGER_TOLERANCE if type_name in INTEGER_TYPES else TOLERANCE
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("type_name", sorted(name for name in DEQUANTIZERS if not TYPES[name].in_gguf))
def test_types_of_our_own_are_refused_in_a_gguf_file(tmp_path: Path, type_name: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", {}, {"one.weight": (random_rows("Q8_0", 4, WIDTH), "Q8_0")})
    file = bytearray(path.read_bytes())
    at = file.index(b"one.weight") + len(b"one.weight") + 4 + 2 * 8  # behind the number of dimensions, and those
    assert struct.unpack_from("<I", file, at) == (TYPES["Q8_0"].id,)
    struct.pack_into("<I", file, at, TYPES[type_name].id)
    path.write_bytes(file)
    with pytest.raises(UnsupportedError, match=f"one.weight is of type {TYPES[type_name].id}, which is not known"):
        open_gguf(path)
