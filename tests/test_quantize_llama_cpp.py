"""Files of every recipe, byte for byte what they always were, and to llama.cpp what they are to us.

tests/data/quantized.json (scripts/quantize_fixtures.py) has, for each, a hash of its tensors and logits that
llama.cpp computed for it. A changed hash means that an algorithm changed: it needs another name in provenance.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import LoadConfig, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.models import record
from localinfer.quantize.pipeline import Wishes, quantize
from localinfer.quantize.recipes import RECIPES
from reports import Lines

DATA = Path(__file__).parent / "data"
FIXTURES = json.loads((DATA / "quantized.json").read_text())
# Both round activations to 8 bits, llama.cpp per 32 or 256 numbers, we per 16; as a part of the logits' spread.
TOLERANCE = 0.05


def test_there_is_a_fixture_for_every_recipe() -> None:
    assert list(FIXTURES["recipes"]) == list(RECIPES)


@pytest.mark.parametrize("name", list(RECIPES))
def test_bytes_are_golden_and_logits_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    wanted = FIXTURES["recipes"][name]
    path = tmp_path / "out.gguf"
    made = quantize(Wishes(DATA / "presidents-1m", name, output=path, measure=False), Lines()).provenance
    lines = "".join(f"{tensor} {found.sha256}\n" for tensor, found in made.tensors.items())
    assert hashlib.sha256(lines.encode()).hexdigest() == wanted["sha256"]
    with open_gguf(path) as file:
        program = record(file.metadata, file, 64)
        model = CpuBackend().load(program, file, LoadConfig(64, 64, 1, 64, kv_blocks=4))
        found = model.step(batch_of([(FIXTURES["tokens"], 0, [0, 1, 2, 3])], "all")).numpy().copy()
    for position in ("3", "11", "23"):
        expected = np.array(wanted[position])
        differences = found[int(position), :: FIXTURES["token_stride"]] - expected
        assert np.sqrt(np.mean(differences**2)) < TOLERANCE * expected.std()
