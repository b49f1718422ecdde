"""Every family against transformers, against llama.cpp, and against itself cut into chunks; and bad files."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import localinfer.models
from fake_tensors import FakeTensors
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Executable, LoadConfig, batch_of
from localinfer.kernels.program import Attention, KvLayer, Linear, Program, Rope, Softcap
from localinfer.kernels.reference.backend import Emulation, ReferenceBackend
from localinfer.models import FAMILIES, record, refuse_unused
from tiny_encoders import TINY_ENCODERS
from tiny_models import TINY_MODELS, TinyModel, by_name, transformers_logits, write_gguf

FIXTURES = Path(__file__).parent / "data" / "llama_cpp"
TABLE = [5, 4, 6, 0, 7, 1, 2, 3]  # blocks in an order that would show a mix-up


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads only slow such small products down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyModel], Path]:
    """The GGUF file of a tiny model, written once."""
    folder = tmp_path_factory.mktemp("tiny")

    @lru_cache
    def write(tiny: TinyModel) -> Path:
        return write_gguf(tiny, folder / f"{tiny.name}.gguf")

    return lambda tiny: write(tiny)


def load(path: Path, context: int = 256, emulate: Emulation = "none") -> tuple[Program, Executable]:
    file = open_gguf(path)
    program = record(file.metadata, file, context)
    config = LoadConfig(128, 128, 2, context, kv_blocks=16, kv_type_k="f32", kv_type_v="f32")
    return program, ReferenceBackend(emulate).load(program, file, config)


def run(model: Executable, tokens: Sequence[int], chunk: int, table: Sequence[int] = TABLE) -> np.ndarray:
    """The logits after every token, `[tokens, vocabulary]`, in steps of `chunk` tokens."""
    steps = [
        model.step(batch_of([(tokens[i : i + chunk], i, table)], "all")).numpy().copy()
        for i in range(0, len(tokens), chunk)
    ]
    return np.concatenate(steps)


def names(models: Sequence[TinyModel]) -> dict[str, Any]:
    return {"argvalues": models, "ids": [m.name for m in models]}


# ---- other implementations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiny", **names(TINY_MODELS))
def test_logits_are_those_of_transformers(tiny: TinyModel, file_of: Callable[[TinyModel], Path]) -> None:
    _, model = load(file_of(tiny), tiny.context)
    np.testing.assert_allclose(run(model, tiny.tokens(), 64), transformers_logits(tiny), rtol=0, atol=1e-4)


@pytest.mark.parametrize("tiny", **names([m for m in TINY_MODELS if m.llama_cpp]))
def test_logits_are_those_of_llama_cpp(tiny: TinyModel, file_of: Callable[[TinyModel], Path]) -> None:
    """On the very same file, which shows that it is written as llama.cpp reads it.

    Measured differences are below 2e-5, but up to 4e-3 for Gemma: llama.cpp looks GELU up in a table of halves.
    """
    path = file_of(tiny)
    fixture = json.loads((FIXTURES / f"{tiny.name}.json").read_text())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == fixture.pop("sha256"), (
        "the fixture is of another file; run scripts/llama_cpp_logits.py --fixtures"
    )
    stride = fixture.pop("token_stride")
    _, model = load(path, tiny.context)
    logits = run(model, tiny.tokens(), 64)
    assert len(fixture) >= 3
    for position, expected in fixture.items():
        tolerance = 5e-3 if tiny.architecture.startswith("gemma") else 1e-4
        np.testing.assert_allclose(logits[int(position), ::stride], expected, rtol=0, atol=tolerance)


def test_every_difference_from_llama_cpp_is_explained() -> None:
    assert all(m.llama_cpp or m.why_not for m in TINY_MODELS)
    assert {m.name for m in TINY_MODELS if m.llama_cpp} == {path.stem for path in FIXTURES.glob("*.json")}


# ---- the same tokens however the work is cut -------------------------------------------------------------------


@pytest.mark.parametrize("tiny", **names(TINY_MODELS))
def test_chunks_and_single_tokens_equal_the_whole_prompt(tiny: TinyModel, file_of: Callable[[TinyModel], Path]) -> None:
    _, model = load(file_of(tiny), tiny.context)
    tokens = tiny.tokens()
    whole = run(model, tokens, 64)
    for chunk in (1, 17):
        np.testing.assert_allclose(run(model, tokens, chunk), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "olmo3", "smollm3"])
def test_two_sequences_in_a_step_equal_each_alone(name: str, file_of: Callable[[TinyModel], Path]) -> None:
    tiny = by_name(name)
    _, model = load(file_of(tiny), tiny.context)
    first, second = tiny.tokens(), tiny.tokens()[::-1][:21]
    other = [15, 9, 11]
    alone = run(model, first, 64), run(model, second, 64, other)
    # The first is prefilled in two chunks, the second joins with the last of them and then decodes one token.
    model.step(batch_of([(first[:25], 0, TABLE)]))
    step = model.step(batch_of([(first[25:], 25, TABLE), (second[:20], 0, other)], "all")).numpy()
    np.testing.assert_allclose(step[:15], alone[0][25:], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(step[15:], alone[1][:20], rtol=1e-5, atol=1e-5)
    last = model.step(batch_of([([3], len(first), TABLE), (second[20:], 20, other)])).numpy()
    np.testing.assert_allclose(last[1], alone[1][20], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("emulate", ["none", "cpu"])
def test_a_step_may_want_no_logits(emulate: Emulation, file_of: Callable[[TinyModel], Path]) -> None:
    """As all chunks of a prompt but the last do."""
    tiny = by_name("gemma3")
    _, model = load(file_of(tiny), emulate=emulate)
    whole = run(model, tiny.tokens(), 64)[-1]
    batch = batch_of([(tiny.tokens()[:-1], 0, TABLE)])
    batch.logit_rows = array("i")
    assert model.step(batch).rows == 0
    last = model.step(batch_of([(tiny.tokens()[-1:], 39, TABLE)])).numpy()[0]
    np.testing.assert_allclose(last, whole, rtol=1e-5, atol=1e-5)


def test_only_the_wanted_rows_are_returned_in_their_order(file_of: Callable[[TinyModel], Path]) -> None:
    tiny = by_name("qwen3")
    _, model = load(file_of(tiny))
    batch = batch_of([(tiny.tokens(), 0, TABLE)], "all")
    every = model.step(batch).numpy().copy()
    batch.logit_rows = array("i", [3, 17, 39])
    some = model.step(batch)
    assert (some.rows, some.vocab_size) == (3, every.shape[1])
    np.testing.assert_allclose(some.numpy(), every[[3, 17, 39]], rtol=1e-5, atol=1e-5)


def test_longrope_follows_the_context_that_is_served_not_the_length_so_far(
    file_of: Callable[[TinyModel], Path],
) -> None:
    tiny = by_name("phi3-longrope-long")  # trained on 32 positions, scaled to 256
    path = file_of(tiny)
    short, _ = load(path, context=32)
    long, model = load(path, context=33)
    assert [op.rope for op in short.ops if isinstance(op, Rope)] != [op.rope for op in long.ops if isinstance(op, Rope)]
    tokens = tiny.tokens()
    np.testing.assert_allclose(run(model, tokens[:5], 8), run(model, tokens[:33], 64)[:5], rtol=1e-5, atol=1e-5)


# ---- what a file says, and what it must not say ----------------------------------------------------------------


def test_the_table_of_families_and_the_folder_agree() -> None:
    folder = Path(localinfer.models.__path__[0])
    shared = {"__init__", "base", "decoder", "recorder", "rope"}
    assert set(FAMILIES.values()) == {path.stem for path in folder.glob("*.py")} - shared
    tiny = {m.architecture for m in TINY_MODELS} | {m.architecture for m in TINY_ENCODERS}
    assert tiny == set(FAMILIES), "every family has a tiny model"


def test_recording_imports_no_heavy_package(file_of: Callable[[TinyModel], Path]) -> None:
    code = (
        "import sys\n"
        "from localinfer.formats.gguf import open_gguf\n"
        "from localinfer.models import record\n"
        "file = open_gguf(sys.argv[1])\n"
        "record(file.metadata, file)\n"
        "print([m for m in ('numpy', 'torch', 'gguf', 'transformers') if m in sys.modules])"
    )
    path = file_of(by_name("llama-llama3"))
    output = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def llama(**changes: Any) -> dict[str, Any]:
    """Metadata of a small llama; a change to None removes the key. Dots are written as double underscores."""
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 12,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 64,
    }
    metadata |= {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (20, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_v.weight": (4, 8),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (12, 8),
    "blk.0.ffn_up.weight": (12, 8),
    "blk.0.ffn_down.weight": (8, 12),
}


def without(*names: str, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    added = {name.replace("__", "."): shape for name, shape in more.items()}
    return {name: shape for name, shape in SHAPES.items() if name not in names} | added


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_each_weight_must_be_there_and_have_its_shape(name: str) -> None:
    with pytest.raises(FormatError, match=name):
        record(llama(), FakeTensors(without(name)))
    wrong = tuple(n + 1 for n in SHAPES[name])
    with pytest.raises(FormatError, match=rf"tensor {name}: expected shape .*, found \({wrong[0]}"):
        record(llama(), FakeTensors(SHAPES | {name: wrong}))


SIZES = ("block_count", "embedding_length", "feed_forward_length", "attention__head_count", "context_length")
NO_SIZES = (None, 0, -1, "4", True, float("nan"), 2**40, [1, 2])
NO_EPSILONS = (None, 0.0, -1e-5, "4", True, float("nan"), float("inf"), [1e-5])


@pytest.mark.parametrize(
    ("key", "value"),
    [*product(SIZES, NO_SIZES), *product(["attention__layer_norm_rms_epsilon"], NO_EPSILONS)],
)
def test_each_number_must_be_there_and_make_sense(key: str, value: object) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=key.replace("__", ".")):
        record(llama(**{key: value}), FakeTensors(SHAPES))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"attention__head_count_kv": 3}, FormatError, "divisor of the 2 query heads, found 3"),
        ({"attention__head_count": 3, "attention__head_count_kv": 3}, FormatError, "3 heads do not divide"),
        ({"attention__head_count_kv": [1, 2]}, UnsupportedError, "differs between layers"),
        ({"attention__value_length": 6}, UnsupportedError, "keys of 4 columns with values of 6"),
        ({"expert_count": 8}, UnsupportedError, "mixture of experts"),
        ({"rope__dimension_count": 6}, FormatError, "even number <= the head size 4, found 6"),
        ({"rope__dimension_count": 3}, FormatError, "even number <= the head size 4, found 3"),
        ({"rope__freq_base": 0.0}, FormatError, "rope.freq_base: expected a number > 0"),
        ({"rope__freq_base": 1.0}, FormatError, "rope.freq_base: expected a number > 1"),
        ({"rope__scaling__type": "ntk"}, UnsupportedError, "'ntk' is unknown"),
        ({"rope__scaling__type": 3}, FormatError, "expected a string, found 3"),
        (
            {"rope__scaling__factor": float("inf")},
            FormatError,
            "expected 0 or a number from 1e-30 to 1e\\+30, found inf",
        ),
        ({"rope__scaling__type": "longrope"}, FormatError, "rope_factors_short.weight is missing"),
        ({"attention__sliding_window": 4, "attention__sliding_window_pattern": [True] * 3}, FormatError, "1 values"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        record(llama(**changes), FakeTensors(SHAPES))


HOSTILE = (None, 0, -1, 1, 3, 2**31, 2**63, 5e-324, 1e-9, 1e308, math.nan, math.inf, "", "x", [], [1], [None], {}, True)


@pytest.mark.parametrize("tiny", **names(TINY_MODELS))
def test_no_value_of_a_key_does_worse_than_an_error(tiny: TinyModel, file_of: Callable[[TinyModel], Path]) -> None:
    file = open_gguf(file_of(tiny))
    record(file.metadata, file)
    keys = [key for key in file.metadata if not key.startswith(("general.", "tokenizer."))]
    more = ("attention.scale", "rope.scaling.attn_factor", "rope.scaling.finetuned", "attention.sliding_window_pattern")
    for key in keys + [f"{tiny.architecture}.{name}" for name in more]:
        for value in HOSTILE:
            with suppress(LocalInferError):
                record({**file.metadata, key: value}, file)


@pytest.mark.parametrize("factors", [[1.0], [1.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0]])
def test_rope_factors_must_fit_and_be_positive(factors: list[float]) -> None:
    with pytest.raises(FormatError, match=r"rope_freqs\.weight"):
        record(llama(), FakeTensors(SHAPES, {"rope_freqs.weight": factors}))


def test_an_unknown_architecture_is_told_which_are_known() -> None:
    with pytest.raises(UnsupportedError, match="'mamba' is not supported") as error:
        record({"general.architecture": "mamba"}, FakeTensors({}))
    assert "gemma2, gemma3, granite, llama, nomic-bert, olmo2, phi3, qwen2, qwen3, smollm3" in error.value.hint
    with pytest.raises(FormatError, match=r"general\.architecture"):
        record({}, FakeTensors({}))


def test_tensors_that_nothing_reads_are_refused(file_of: Callable[[TinyModel], Path]) -> None:
    for tiny in TINY_MODELS:
        file = open_gguf(file_of(tiny))
        refuse_unused(record(file.metadata, file), file.tensors)
    shapes = SHAPES | {"blk.0.attn_sinks.weight": (2,), "rope_freqs.weight": (2,)}
    with pytest.raises(UnsupportedError, match=r"1 tensors that are not supported: blk\.0\.attn_sinks\.weight"):
        refuse_unused(record(llama(), FakeTensors(SHAPES)), shapes)


def test_a_list_with_equal_values_per_layer_is_one_value() -> None:
    program = record(llama(attention__head_count_kv=array("i", [1])), FakeTensors(SHAPES))
    assert program.kv == (KvLayer(1, 4),)


def test_the_vocabulary_is_as_large_as_the_tables_which_may_be_padded() -> None:
    tokens = {"tokenizer.ggml.tokens": ["x"] * 17}
    assert record(llama(vocab_size=17) | tokens, FakeTensors(SHAPES)).vocab_size == 20
    program = record(llama(), FakeTensors(SHAPES | {"output.weight": (20, 8)}))
    assert [w.name for w in program.ops[-1].weights] == ["output.weight"]
    with pytest.raises(FormatError, match=r"output\.weight: expected shape \(20, 8\), found \(24, 8\)"):
        record(llama(), FakeTensors(SHAPES | {"output.weight": (24, 8)}))
    with pytest.raises(FormatError, match=r"the tokenizer has 21 tokens, but .* only 20 rows"):
        record(llama() | {"tokenizer.ggml.tokens": ["x"] * 21}, FakeTensors(SHAPES))


def test_fused_q_k_v_are_slices_in_any_family() -> None:
    split = record(llama(), FakeTensors(SHAPES))
    shapes = without("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight")
    shapes |= {"blk.0.attn_qkv.weight": (16, 8), "blk.0.attn_qkv.bias": (16,)}
    fused = record(llama(), FakeTensors(shapes))
    qkv = next(op for op in fused.ops if isinstance(op, Linear))
    assert [(m.rows, m.start) for m in qkv.matrices] == [(8, 0), (4, 8), (4, 12)]
    assert [(b.size, b.start) for b in qkv.biases if b] == [(8, 0), (4, 8), (4, 12)]
    assert len(fused.ops) == len(split.ops)


def small(
    architecture: str, layers: int, other: Mapping[str, tuple[int, ...]] | None = None, **changes: Any
) -> Program:
    """A small model of another architecture, recorded from names and shapes; `other` shapes replace SHAPES'."""
    metadata = {key.replace("llama", architecture): value for key, value in llama(block_count=layers).items()}
    metadata |= {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
    shapes = {
        name.replace("blk.0", f"blk.{i}"): shape
        for name, shape in (SHAPES | (other or {})).items()
        for i in range(layers)
    }
    for i in range(layers):
        shapes |= {f"blk.{i}.post_attention_norm.weight": (8,), f"blk.{i}.post_ffw_norm.weight": (8,)}
        shapes |= {f"blk.{i}.attn_q_norm.weight": (4,), f"blk.{i}.attn_k_norm.weight": (4,)}
    return record(metadata, FakeTensors(shapes))


def test_windows_follow_the_pattern_of_the_file_or_of_the_family() -> None:
    def windows(architecture: str, layers: int, **changes: Any) -> list[int]:
        program = small(architecture, layers, **{f"attention__{key}": value for key, value in changes.items()})
        assert [op.window for op in program.ops if isinstance(op, Attention)] == [k.window for k in program.kv]
        return [layer.window for layer in program.kv]

    assert windows("llama", 2) == [0, 0]
    assert windows("llama", 2, sliding_window=9) == [9, 9]
    assert windows("gemma2", 4) == [4096, 0, 4096, 0]
    assert windows("gemma3", 7, sliding_window=512) == [512] * 5 + [0, 512]
    assert windows("gemma3", 3, sliding_window=512, sliding_window_pattern=2) == [512, 0, 512]
    assert windows("gemma3", 3, sliding_window=512, sliding_window_pattern=[False, True, True]) == [0, 512, 512]
    assert windows("gemma3", 2) == [0, 0]


def test_what_gemma_files_leave_out() -> None:
    """Early files lack the local rope base and the caps; none states the 27B models' attention scale."""
    program = small("gemma3", 7, attention__sliding_window=8, rope__freq_base=1e6)
    ropes = [op.rope for op in program.ops if isinstance(op, Rope)]  # q and k of each layer
    assert ropes[0].inverse_frequencies == pytest.approx((1.0, 10000.0**-0.5))
    assert ropes[2 * 5].inverse_frequencies == pytest.approx((1.0, 1e6**-0.5))
    ops = small("gemma2", 1).ops
    assert [op.softcap for op in ops if isinstance(op, Attention)] == [50.0]
    assert [op.cap for op in ops if isinstance(op, Softcap)] == [30.0]


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_gemma_27b_scales_attention_by_width_over_heads(architecture: str, layers: int) -> None:
    shapes = {"blk.0.attn_q.weight": (4, 8), "blk.0.attn_output.weight": (8, 4)}  # one head of 4 columns, width 8
    sizes = {"attention__head_count": 1, "attention__key_length": 4, "attention__value_length": 4}

    def scales(layers: int) -> set[float]:
        return {op.scale for op in small(architecture, layers, shapes, **sizes).ops if isinstance(op, Attention)}

    assert scales(layers - 1) == {1 / math.sqrt(4)}
    assert scales(layers) == {1 / math.sqrt(8)}
