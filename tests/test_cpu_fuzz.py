"""Damaged models through the whole path, from the file to a step: they work or they are refused, nothing else.

`scripts/sanitize address` runs this too: then a read or write outside a buffer ends it.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_files import string
from localinfer.engine import plan as planning
from localinfer.engine.plan import Wishes, make_plan
from localinfer.errors import LocalInferError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.types import BY_ID
from tiny_models import TinyModel, by_name, write_gguf

CONTEXT = 48
FREE = 32 << 20  # bytes that plans may count on: what asks for more is refused, not allocated
SEEDS_PER_TEST = 40

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}  # whole blocks of every type
MODELS = {
    "llama": (TinyModel("wide", "llama", "Llama", WIDE), "F32"),
    "gemma2": (by_name("gemma2"), "Q8_0"),
    "phi3": (by_name("phi3-longrope-long"), "Q8_0"),
}

INTEGERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    64,
    96,
    255,
    256,
    257,
    4096,
    2**16,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
LONG = (*INTEGERS, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 30.0, 1e-30, 1e-45, 1e4, 3e38, float("inf"), float("-inf"), float("nan"))


class Victim:
    """A model file and the places in it that are worth damaging."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        with open_gguf(path) as file:
            self.header = min(tensor.offset for tensor in file.tensors.values())
            self.keys = [key for key in file.metadata if not key.startswith("tokenizer.")]
            self.dimensions = {name: len(tensor.shape) for name, tensor in file.tensors.items()}

    def damaged(self, choose: random.Random) -> bytes:
        data = bytearray(self.data)
        for _ in range(choose.choice((1, 1, 1, 2, 3))):
            kinds = (self._value, self._shape, self._type, self._offset, self._header, self._weights)
            choose.choices(kinds, (4, 2, 3, 1, 1, 3))[0](data, choose)
        return bytes(data)

    def _put(self, data: bytearray, at: int, code: str, value: float) -> None:
        struct.pack_into(f"<{code}", data, at, value)

    def _behind(self, name: str) -> int:
        return self.data.index(string(name.encode())) + 8 + len(name)

    def _value(self, data: bytearray, choose: random.Random) -> None:
        """Another number for a key, or another type."""
        at = self._behind(choose.choice(self.keys))
        if choose.random() < 0.1:
            self._put(data, at, "I", choose.randrange(14))
        elif choose.random() < 0.5:
            self._put(data, at + 4, "I", choose.choice(INTEGERS))
        else:
            self._put(data, at + 4, "f", choose.choice(FLOATS))

    def _shape(self, data: bytearray, choose: random.Random) -> None:
        name = choose.choice(list(self.dimensions))
        at = self._behind(name)
        if choose.random() < 0.2:
            self._put(data, at, "I", choose.choice(INTEGERS))
        else:
            self._put(data, at + 4 + 8 * choose.randrange(self.dimensions[name]), "Q", choose.choice(LONG))

    def _type(self, data: bytearray, choose: random.Random) -> None:
        """Mostly of a matrix, which may be of any type that is as short or shorter."""
        matrices = [name for name, count in self.dimensions.items() if count == 2]
        name = choose.choice(matrices if choose.random() < 0.8 else list(self.dimensions))
        self._put(data, self._behind(name) + 4 + 8 * self.dimensions[name], "I", choose.choice((*BY_ID, 4, 38, 99)))

    def _offset(self, data: bytearray, choose: random.Random) -> None:
        name = choose.choice(list(self.dimensions))
        at = self._behind(name) + 8 + 8 * self.dimensions[name]
        room = len(self.data) - self.header
        self._put(data, at, "Q", choose.choice((choose.randrange(room), choose.randrange(room) & ~31, *LONG)))

    def _header(self, data: bytearray, choose: random.Random) -> None:
        self._bytes(data, choose, choose.randrange(self.header))

    def _weights(self, data: bytearray, choose: random.Random) -> None:
        """Infinite and NaN scales among them."""
        self._bytes(data, choose, choose.randrange(self.header, len(data) - 8))

    def _bytes(self, data: bytearray, choose: random.Random, at: int) -> None:
        size = choose.choice((1, 4, 8))
        data[at : at + size] = choose.choice((choose.randbytes(size), b"\xff" * size, bytes(size)))


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Victim]:
    folder = tmp_path_factory.mktemp("victims")
    written: dict[str, Victim] = {}

    def victim(name: str) -> Victim:
        if name not in written:
            tiny, matrix_type = MODELS[name]
            written[name] = Victim(write_gguf(tiny, folder / f"{name}.gguf", matrix_type))
        return written[name]

    return victim


def answer(path: Path) -> None:
    """One step of three tokens and one of one, as the engine takes them."""
    backend = CpuBackend()
    with open_gguf(path) as file:
        plan = make_plan(file, backend, Wishes(context=CONTEXT, threads=1, chunk=8))
        executable = backend.load(plan.program, file, plan.config)
    try:
        table = range(plan.config.kv_blocks)
        executable.step(batch_of([([0, 0, 0], 0, table)]))
        executable.step(batch_of([([0], 3, table)]))
    finally:
        executable.close()


@pytest.mark.parametrize("first_seed", range(0, 200, SEEDS_PER_TEST))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_damaged_models_work_or_are_refused(
    name: str,
    first_seed: int,
    victims: Callable[[str], Victim],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: FREE)
    outcomes: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        path = tmp_path / f"seed-{seed}.gguf"  # a failure's traceback names it, and leaves it behind
        path.write_bytes(victims(name).damaged(random.Random(seed)))
        try:
            answer(path)
            outcomes["answered"] += 1
        except LocalInferError:
            outcomes["refused"] += 1
        path.unlink()
    assert outcomes["answered"] >= SEEDS_PER_TEST // 10, "hardly a damaged model reaches a step"
    assert outcomes["refused"] > 0
