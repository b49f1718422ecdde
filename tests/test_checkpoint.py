"""Checkpoints of every family as transformers writes them: their logits, their types, and what is refused."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from checkpoint_files import change_json, train_byte_level, write_checkpoint
from localinfer.checkpoints import is_checkpoint, open_model
from localinfer.checkpoints.config import FAMILIES, describe
from localinfer.checkpoints.names import NORMS_AROUND, NORMS_LESS_ONE, PAIRS_ADJACENT
from localinfer.checkpoints.spool import Spool, SpooledTensor, spool_folder
from localinfer.checkpoints.values import float_rows
from localinfer.cli.main import execute
from localinfer.cli.serve import plan_models
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Backend, LoadConfig, Tensor, batch_of
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.kernels.types import TYPES
from localinfer.models import FAMILIES as RECORDERS
from localinfer.models import record, refuse_unused
from tiny_models import (
    NORMS_PLUS_ONE,
    PERMUTED,
    TINY_MODELS,
    TinyModel,
    by_name,
    transformers_logits,
    transformers_model,
    write_gguf,
)

TABLE = [5, 4, 6, 0, 7, 1, 2, 3]
CPU_TOLERANCE = 1e-3  # of the largest logit, as in test_cpu_families.py

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FolderOf = Callable[[TinyModel], Path]

each_model = pytest.mark.parametrize("tiny", TINY_MODELS, ids=[m.name for m in TINY_MODELS])


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """The checkpoint of a tiny model in float32, written once; tests that change one copy it."""
    folder = tmp_path_factory.mktemp("checkpoints")

    @lru_cache
    def write(tiny: TinyModel) -> Path:
        return write_checkpoint(tiny, folder / tiny.name)

    return write


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return write_checkpoint(by_name("llama"), tmp_path / "llama")


def logits(file: ModelFile, tiny: TinyModel, backend: Backend, kv: Any = "f32") -> np.ndarray:
    """float32 `[length, vocabulary]` after every one of the model's own tokens."""
    program = record(file.metadata, file, tiny.context)
    refuse_unused(program, file.tensors)
    config = LoadConfig(64, 64, 1, tiny.context, kv_blocks=16, kv_type_k=kv, kv_type_v=kv)
    executable = backend.load(program, file, config)
    result = executable.step(batch_of([(tiny.tokens(), 0, TABLE)], "all")).numpy().copy()
    executable.close()
    return result


# ---- the same model in every form ----------------------------------------------------------------------------------


@each_model
def test_logits_are_those_of_transformers(tiny: TinyModel, folder_of: FolderOf) -> None:
    with open_model(folder_of(tiny)) as file:
        assert file.notes == ()
        found = logits(file, tiny, ReferenceBackend())
    np.testing.assert_allclose(found, transformers_logits(tiny), rtol=0, atol=1e-4)


@each_model
def test_a_checkpoint_says_what_the_gguf_file_of_the_same_model_says(
    tiny: TinyModel, folder_of: FolderOf, tmp_path: Path
) -> None:
    """tests/data/llama_cpp holds what llama.cpp makes of these GGUF files."""
    with open_model(folder_of(tiny)) as ours, open_gguf(write_gguf(tiny, tmp_path / "x.gguf")) as expected:
        assert set(ours.tensors) == set(expected.tensors)
        for name, tensor in expected.tensors.items():
            assert ours.tensor(name).shape == tensor.shape
            if "rope_f" in name:  # computed in float64 on either side
                np.testing.assert_allclose(
                    np.frombuffer(ours.tensor(name).buffer, "<f4"), np.frombuffer(tensor.buffer, "<f4"), rtol=1e-6
                )
            else:
                assert bytes(ours.tensor(name).buffer) == bytes(tensor.buffer), name
        keys = {key for key in expected.metadata if key.startswith(f"{tiny.architecture}.")}
        for key in keys:
            value, wanted = ours.metadata[key], expected.metadata[key]
            assert (
                list(value) == list(wanted)
                if hasattr(wanted, "__len__") and not isinstance(wanted, str)
                else (value == wanted)
            ), key
        more = {key for key in ours.metadata if key.startswith(f"{tiny.architecture}.")} - keys
        harmless = {"attention.key_length", "attention.value_length"}
        harmless |= {"attention.sliding_window"} if tiny.architecture == "phi3" else set()  # 0
        assert more <= {f"{tiny.architecture}.{name}" for name in harmless}


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3-longrope-long", "qwen3", "granite", "olmo3"])
def test_the_cpu_reads_it_by_path_and_offset(name: str, folder_of: FolderOf) -> None:
    tiny = by_name(name)
    with open_model(folder_of(tiny)) as file:
        expected = logits(file, tiny, ReferenceBackend(), "f16")
        found = logits(file, tiny, CpuBackend(), "f16")
    assert np.abs(found - expected).max() <= CPU_TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama-bias", "gemma2"])
def test_half_precision_stays_what_it_is(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Against transformers, which reads the same file and calculates in float32."""
    tiny = by_name(name)
    model = transformers_model(tiny)
    model.to(dtype).save_pretrained(tmp_path)
    wide = type(model).from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = wide(torch.tensor([tiny.tokens()])).logits[0].numpy()
    with open_model(tmp_path) as file:
        assert file.tensor("blk.0.attn_q.weight").type.name == {torch.float16: "F16"}.get(dtype, "BF16")
        np.testing.assert_allclose(logits(file, tiny, ReferenceBackend()), expected, rtol=0, atol=1e-4)
        found = logits(file, tiny, CpuBackend(), "f16")
        wanted = logits(file, tiny, ReferenceBackend(), "f16")
    # A half of the embedding table is an activation, too: the CPU rounds activations for such weights to int8.
    assert np.abs(found - wanted).max() <= 2e-2 * np.abs(wanted).max()


def test_planning_computes_nothing(folder_of: FolderOf) -> None:
    tiny = by_name("llama")
    with open_model(folder_of(tiny)) as file:
        spool = file.tensor("blk.0.attn_q.weight")._spool  # type: ignore[attr-defined]
        program = record(file.metadata, file, tiny.context)
        CpuBackend().plan(program, file, LoadConfig(64, 64, 1, tiny.context, kv_blocks=16))
        assert not spool._filled


def test_only_what_differs_is_spooled(folder_of: FolderOf) -> None:
    with open_model(folder_of(by_name("llama"))) as file:
        spooled = {name for name, tensor in file.tensors.items() if isinstance(tensor, SpooledTensor)}
        assert spooled == {f"blk.{i}.attn_{part}.weight" for i in range(3) for part in "qk"}
        for tensor in file.tensors.values():
            if tensor.name not in spooled:
                raw = Path(tensor.path).read_bytes()
                assert raw[tensor.offset : tensor.offset + tensor.nbytes] == bytes(tensor.buffer)


def test_old_and_new_spellings_of_rope_mean_the_same(tmp_path: Path) -> None:
    """transformers 4 wrote rope_theta and rope_scaling where 5 writes rope_parameters."""
    for name, old in (
        ("llama-linear", {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        (
            "llama-yarn",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
        ),
        (
            "gemma3-linear",
            {
                "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "layer_types": None,
                "sliding_window_pattern": 6,
            },
        ),
        ("phi3-partial", {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}),
    ):
        folder = write_checkpoint(by_name(name), tmp_path / name)
        with open_model(folder) as file:
            new = dict(file.metadata)
        change_json(folder / "config.json", rope_parameters=None, torch_dtype="float32", **old)
        with open_model(folder) as file:
            assert dict(file.metadata) == new


def test_the_tables_know_the_same_families() -> None:
    assert {family.architecture for family in FAMILIES.values()} == set(RECORDERS) - {"bert", "nomic-bert"}
    assert PAIRS_ADJACENT == PERMUTED
    assert NORMS_LESS_ONE == NORMS_PLUS_ONE
    assert set(RECORDERS) >= NORMS_AROUND


# ---- what config.json says -----------------------------------------------------------------------------------------


def config_of(name: str, folder_of: FolderOf, **changes: Any) -> dict[str, Any]:
    values = json.loads((folder_of(by_name(name)) / "config.json").read_text()) | changes
    return {key: value for key, value in values.items() if value != "absent"}


def described(name: str, folder_of: FolderOf, **changes: Any) -> dict[str, Any]:
    return describe(config_of(name, folder_of, **changes), Path("config.json")).metadata


@pytest.mark.parametrize(
    ("name", "changes", "key", "value"),
    [
        ("mistral-window", {"sliding_window": None}, "llama.attention.sliding_window", None),
        ("mistral-window", {"sliding_window": "absent"}, "llama.attention.sliding_window", 4096),
        ("llama", {"sliding_window": 8}, "llama.attention.sliding_window", None),
        ("qwen2", {"sliding_window": 8}, "qwen2.attention.sliding_window", None),
        ("phi3", {}, "phi3.attention.sliding_window", 0),
        ("gemma2", {"sliding_window": None}, "gemma2.attention.sliding_window", 0),
        ("gemma2", {"query_pre_attn_scalar": 64}, "gemma2.attention.scale", 0.125),
        ("gemma2", {"query_pre_attn_scalar": 16}, "gemma2.attention.scale", None),
        ("gemma2", {"attn_logit_softcapping": None}, "gemma2.attn_logit_softcapping", 0.0),
        ("gemma2", {"attn_logit_softcapping": "absent"}, "gemma2.attn_logit_softcapping", 50.0),
        ("llama", {"rms_norm_eps": 1e-6}, "llama.attention.layer_norm_rms_epsilon", float(np.float32(1e-6))),
        ("llama", {"num_key_value_heads": "absent"}, "llama.attention.head_count_kv", 4),
        ("granite", {"logits_scaling": "absent"}, "granite.logit_scale", 1.0),
    ],
)
def test_keys_and_their_defaults(name: str, changes: dict[str, Any], key: str, value: Any, folder_of: FolderOf) -> None:
    assert described(name, folder_of, **changes).get(key) == value


def test_windows_of_some_layers(folder_of: FolderOf) -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    changes: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 8}
    key = "qwen2.attention.sliding_window_pattern"
    assert list(described("qwen2", folder_of, layer_types=kinds, **changes)[key]) == [False, True, True]
    older = described("qwen2", folder_of, layer_types="absent", max_window_layers=1, **changes)
    assert list(older[key]) == [False, True, True]
    assert older["qwen2.attention.sliding_window"] == 8
    assert key not in described("qwen2", folder_of, layer_types="absent", max_window_layers=0, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' are not supported"),
        ("llama", {"architectures": None}, "class None"),
        ("llama", {"hidden_act": "relu"}, "'relu' is not supported"),
        ("llama", {"num_local_experts": 8}, "num_local_experts is 8"),
        ("llama", {"clip_qkv": 1.5}, "clip_qkv is 1.5"),
        ("llama", {"is_causal": False}, "is_causal is False"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma3", {"attn_logit_softcapping": 3.0}, "not supported for Gemma 3"),
        ("smollm3", {"no_rope_layers": [1, 1, 0, 1, 1]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layer_interval": 3}, "no_rope_layers"),
        ("llama", {"rope_parameters": {"rope_type": "proportional"}}, "'proportional' is not supported"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ("llama-yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 4, "mscale": 1}}, "yarn with mscale"),
        ("llama-yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 4, "truncate": False}}, "truncation"),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "short_mscale": [1], "short_factor": [1], "long_factor": [1]}},
            "short_mscale",
        ),
    ],
)
def test_what_models_cannot_do_is_refused(name: str, changes: dict[str, Any], words: str, folder_of: FolderOf) -> None:
    if "rope_scaling" in changes:
        changes = changes | {"rope_parameters": "absent"}
    with pytest.raises(UnsupportedError, match=words):
        described(name, folder_of, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"hidden_size": "absent"}, "hidden_size is missing"),
        ("llama", {"hidden_size": "64"}, "hidden_size should be an integer"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers should be"),
        ("llama", {"num_hidden_layers": 2**30}, "num_hidden_layers should be at most 10000"),
        ("llama", {"head_dim": "absent", "hidden_size": 65}, "4 heads do not divide the hidden size 65"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps should be a number"),
        ("llama", {"rope_parameters": []}, "rope_parameters should be an object"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope factor is missing"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 9}}, "contradict each other"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "rope long_factor is missing"),
        ("phi3", {"original_max_position_embeddings": "x"}, "original_max_position_embeddings should be"),
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types should be"),
        ("gemma3", {"rope_parameters": {"full_attention": 1}}, "an object per kind of layer"),
        ("llama", {"text_config": 3}, "text_config should be an object"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    name: str, changes: dict[str, Any], words: str, folder_of: FolderOf
) -> None:
    with pytest.raises(FormatError, match=words):
        described(name, folder_of, **changes)


HOSTILE = (None, 0, -1, 1, 3, 2**31, 2**63, 1e-9, 1e308, float("nan"), float("inf"), "", "x", [], [1], [None], {}, True)


@each_model
def test_no_value_of_a_key_does_worse_than_an_error(tiny: TinyModel, folder_of: FolderOf) -> None:
    config = json.loads((folder_of(tiny) / "config.json").read_text())
    places: list[tuple[str, ...]] = [(key,) for key in config]
    places += [("rope_parameters", key) for key in config.get("rope_parameters", {})]
    for place in places:
        for value in HOSTILE:
            changed = json.loads(json.dumps(config))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            with suppress(LocalInferError):
                describe(changed, Path("config.json"))


def test_keys_that_nobody_reads_are_told(llama: Path) -> None:
    change_json(llama / "config.json", surprising_scale=3.0, _private=1)
    with open_model(llama) as file:
        assert file.notes == ("config.json says things that localinfer does not know: surprising_scale",)


# ---- which tensors -------------------------------------------------------------------------------------------------


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Changes tensors of a checkpoint; dots are written as double underscores, None removes one."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path) | {k.replace("__", "."): v for k, v in changes.items()}
    safetensors.torch.save_file({k: v for k, v in tensors.items() if v is not None}, path)


def test_unknown_tensors_are_refused(llama: Path) -> None:
    rewrite(llama, model__layers__0__self_attn__sinks=torch.zeros(4))
    with pytest.raises(UnsupportedError, match=r"1 tensors that are not supported: model\.layers\.0\.self_attn\.sinks"):
        open_model(llama)


def test_constants_of_old_checkpoints_are_left_out(llama: Path) -> None:
    rewrite(llama, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    with open_model(llama) as file:
        assert not any("inv_freq" in name for name in file.tensors)


def test_a_weight_that_is_there_twice_is_refused(llama: Path) -> None:
    rewrite(llama, model__layers__00__mlp__up_proj__weight=torch.zeros(96, 64))
    with pytest.raises(FormatError, match="are the same weight"):
        open_model(llama)


def test_other_numbers_are_refused(llama: Path) -> None:
    rewrite(llama, model__layers__0__mlp__up_proj__weight=torch.zeros(96, 64, dtype=torch.int8))
    with pytest.raises(UnsupportedError, match="holds I8, and nothing says what"):
        open_model(llama)
    rewrite(llama, model__layers__0__mlp__up_proj__weight=torch.zeros(2, 48, 64))
    with pytest.raises(UnsupportedError, match="has the shape"):
        open_model(llama)


def test_heads_must_fit_their_rows(llama: Path) -> None:
    rewrite(llama, model__layers__1__self_attn__k_proj__weight=torch.zeros(30, 64))
    with pytest.raises(FormatError, match=r"blk\.1\.attn_k\.weight has 30 rows, which are no 2 heads"):
        open_model(llama)


@pytest.mark.parametrize(("tied", "expected"), [(True, False), (False, True), (None, True)])
def test_whether_the_head_is_the_embedding_table(tied: bool | None, expected: bool, llama: Path) -> None:
    change_json(llama / "config.json", tie_word_embeddings=tied)
    with open_model(llama) as file:
        assert file.has_tensor("output.weight") is expected


def test_a_model_that_also_sees_reads_text(tmp_path: Path) -> None:
    """Its language model is under other names, and config.json leaves much to defaults."""
    tiny = by_name("gemma3")
    folder = write_checkpoint(tiny, tmp_path / "gemma3")
    path = folder / "model.safetensors"
    tensors = {
        name.replace("model.", "language_model.model."): tensor
        for name, tensor in safetensors.torch.load_file(path).items()
    }
    tensors["vision_tower.x.weight"] = tensors["multi_modal_projector.y"] = torch.zeros(1)
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    text = json.loads((folder / "config.json").read_text())
    outer = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 3},
    }
    (folder / "config.json").write_text(json.dumps(outer))
    with open_model(folder) as file:
        assert file.notes == ("this model also sees images; here it reads text only",)
        found = logits(file, tiny, ReferenceBackend())
    np.testing.assert_allclose(found, transformers_logits(tiny), rtol=0, atol=1e-4)


# ---- opening -------------------------------------------------------------------------------------------------------


def test_what_is_opened(llama: Path, tmp_path: Path) -> None:
    gguf = write_gguf(by_name("llama"), tmp_path / "x.gguf")
    with open_model(gguf) as file:
        assert file.paths == (gguf,)
    with pytest.raises(UnsupportedError, match="is a GGUF file, which is not quantized again"):
        open_model(gguf, "q8_0")
    with open_model(str(llama)) as folder, open_model(llama / "model.safetensors") as file:
        assert set(folder.tensors) == set(file.tensors)
        assert folder.metadata["general.name"] == "llama"
        assert folder.paths == file.paths == (llama / "model.safetensors",)
    assert is_checkpoint(llama)
    assert is_checkpoint(llama / "model.safetensors")
    assert not is_checkpoint(tmp_path)
    with pytest.raises(LocalInferError, match=r"has no config\.json"):
        open_model(tmp_path)
    (llama / "model.safetensors").unlink()
    with pytest.raises(LocalInferError, match=r"has no \.safetensors file"):
        open_model(llama)


def test_a_folder_of_the_hub_is_called_by_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--owner--some-name" / "snapshots" / "0123abc"
    write_checkpoint(by_name("llama"), folder)
    (tmp_path / "model").symlink_to(folder)
    with open_model(tmp_path / "model") as file:
        assert file.metadata["general.name"] == "some-name"


def test_nothing_heavy_is_imported_for_plain_numbers(folder_of: FolderOf) -> None:
    code = (
        "import sys\n"
        "from localinfer.checkpoints import open_model\n"
        "from localinfer.models import record\n"
        "with open_model(sys.argv[1]) as file:\n"
        "    record(file.metadata, file)\n"
        "    file.prepare()\n"
        "print([m for m in ('numpy', 'torch', 'safetensors', 'tokenizers', 'transformers') if m in sys.modules])"
    )
    path = folder_of(by_name("llama-llama3"))
    output = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


# ---- quantizing while opening --------------------------------------------------------------------------------------


def test_matrices_are_quantized_while_they_are_opened(folder_of: FolderOf) -> None:
    from localinfer.kernels.quantize.quantizer import quantize_rows

    tiny = by_name("llama")
    with open_model(folder_of(tiny)) as plain, open_model(folder_of(tiny), "q8_0") as file:
        for name, tensor in file.tensors.items():
            source = plain.tensor(name)
            if len(source.shape) == 2:
                values = np.frombuffer(source.buffer, np.float32).reshape(source.shape)
                assert tensor.type.name == "Q8_0"
                assert bytes(tensor.buffer) == bytes(quantize_rows("Q8_0", values)), name
            else:
                assert bytes(tensor.buffer) == bytes(source.buffer)
        exact = logits(plain, tiny, ReferenceBackend())
        found = logits(file, tiny, CpuBackend(), "f16")
    assert 0 < np.abs(found - exact).max() <= 0.1 * np.abs(exact).max()


def test_rows_that_are_no_whole_blocks_get_another_type(folder_of: FolderOf) -> None:
    """64 and 96 columns are no multiple of 256."""
    with open_model(folder_of(by_name("llama")), "q4_k") as file:
        assert {t.type.name for t in file.tensors.values() if len(t.shape) == 2} == {"Q8_0"}


def test_types_that_nobody_makes_are_refused(folder_of: FolderOf) -> None:
    with pytest.raises(UnsupportedError, match="cannot be quantized to 'q3'") as error:
        open_model(folder_of(by_name("llama")), "q3")
    assert "q8_0" in error.value.hint


# ---- the spool -----------------------------------------------------------------------------------------------------


def spooled(spool: Spool, name: str, size: int, calls: list[str]) -> SpooledTensor:
    def pieces() -> Any:
        calls.append(name)
        yield bytes([len(name)]) * (size // 2)
        yield memoryview(bytes([len(name)]) * (size - size // 2))

    return SpooledTensor(spool, name, TYPES["I8"], (size,), pieces)


def test_bytes_are_computed_once_and_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    calls: list[str] = []
    spool = Spool()
    one, three = spooled(spool, "a", 100, calls), spooled(spool, "ccc", 7, calls)
    assert isinstance(one, Tensor)
    assert calls == []
    assert bytes(three.buffer) == bytes(three.buffer) == b"\3" * 7
    assert three.buffer.readonly
    assert calls == ["ccc"]
    seen: list[tuple[int, int]] = []
    spool.fill(lambda done, total: seen.append((done, total)))
    assert calls == ["ccc", "a"]
    assert seen == [(50, 100), (100, 100)]
    spool.fill(lambda done, total: seen.append((done, total)))
    assert len(seen) == 2
    file = os.open(one.path, os.O_RDONLY)
    assert os.pread(file, 100, one.offset) == b"\1" * 100
    assert os.pread(file, 7, three.offset) == b"\3" * 7
    os.close(file)
    spool.drop_pages()
    assert bytes(one.buffer) == b"\1" * 100
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    kept = one.buffer
    spool.close()
    assert bytes(kept) == b"\1" * 100
    spool.close()


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import shutil

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    calls: list[str] = []
    spool = Spool()
    spooled(spool, "a", 1 << 20, calls)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1 << 20))
    with pytest.raises(LocalInferError, match=rf"temporary space in {tmp_path}: 0\.0 GiB are free") as error:
        spool.fill()
    assert "TMPDIR" in error.value.hint
    assert calls == []


def test_a_write_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    spool = Spool()
    tensor = spooled(spool, "a", 100, [])
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(LocalInferError, match="No space left on device"):
        assert tensor.buffer


def test_where_the_spool_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert spool_folder() == str(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    assert os.path.isdir(spool_folder())


def test_closing_a_checkpoint_gives_the_disk_back(folder_of: FolderOf) -> None:
    def open_files() -> int:
        return len(os.listdir("/dev/fd"))

    before = open_files()
    file = open_model(folder_of(by_name("llama")))
    file.prepare()
    assert open_files() > before
    file.close()
    assert open_files() == before


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_rows_as_floats(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((5, 64), np.float32)
    halves = values.astype(np.float16)
    match kind:
        case "F32":
            data, expected = values.tobytes(), values
        case "F16":
            data, expected = halves.tobytes(), halves.astype(np.float32)
        case "BF16":
            short = (values.view(np.uint32) >> 16).astype(np.uint16)
            data, expected = short.tobytes(), (short.astype(np.uint32) << 16).view(np.float32)
        case _:
            blocks = [struct.pack("<e32b", 0.5 * (i + 1), *range(-16, 16)) for i in range(10)]
            data = b"".join(blocks)
            expected = np.concatenate([np.arange(-16, 16) * 0.5 * (i + 1) for i in range(10)]).reshape(5, 64)
    buffer = memoryview(b"x" + data)[1:]  # nothing is aligned
    tensor = Tensor("t", TYPES[kind], (5, 64), Path("x"), 1, len(data), buffer)
    np.testing.assert_array_equal(float_rows(tensor, 1, 3), expected[1:4])
    assert float_rows(tensor, 0, 5).dtype == np.float32
    assert float_rows(tensor, 2, 1).flags.writeable
    for start, rows in ((-1, 2), (4, 2), (0, -1), (6, 0)):
        with pytest.raises(ValueError, match="of tensor t, which has 5"):
            float_rows(tensor, start, rows)
    vector = Tensor("v", TYPES["F32"], (6,), Path("x"), 0, 24, memoryview(values.tobytes()[:24]))
    np.testing.assert_array_equal(float_rows(vector, 0, 1), values[:1, :6])


# ---- the whole way -------------------------------------------------------------------------------------------------


def test_a_folder_talks(tmp_path: Path) -> None:
    """A real tokenizer, a chat template, and everything that the engine needs."""
    from localinfer import LLM

    folder = write_checkpoint(by_name("qwen3"), tmp_path / "talker", vocab_size=512)
    rewrite(folder, model__embed_tokens__weight=torch.randn(512, 64))
    train_byte_level([]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
    for quant in ("", "q8_0"):
        with LLM(folder, quant=quant, context=128) as llm:
            answer = llm.chat([{"role": "user", "content": "Hello"}], max_tokens=5, temperature=0.0)
            assert answer.finish_reason in ("length", "stop")
            assert llm.tokenizer.eos_id in llm.tokenizer.stop_ids


PRESIDENTS = Path(__file__).parent / "data" / "presidents-1m"


def test_show_and_run_and_bench_take_a_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert execute(["show", str(PRESIDENTS), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["paths"] == [str(PRESIDENTS / "model.safetensors")]
    assert shown["context_length"] == 512
    assert [row["type"] for row in shown["tensors"]] == ["BF16"]
    assert shown["memory_plan"]["parts"]["weights"] == pytest.approx(shown["tensors"][0]["bytes"], rel=0.01)
    assert execute(["show", str(PRESIDENTS), "--quant", "q8_0", "--json"]) == 0
    quantized = json.loads(capsys.readouterr().out)
    assert [row["type"] for row in quantized["tensors"]] == ["Q8_0", "BF16"]
    assert quantized["memory_plan"]["parts"]["weights"] < 0.6 * shown["memory_plan"]["parts"]["weights"]

    run_it = ["run", str(PRESIDENTS), "The President of the United", "--raw", "--max-tokens", "2"]
    for more in ([], ["--quant", "q8_0"]):
        assert execute([*run_it, *more]) == 0
        assert capsys.readouterr().out.strip().startswith("States")

    assert execute(["bench", str(PRESIDENTS), "-p", "8", "-n", "2", "-r", "1", "--quant", "q4_0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["quant"] == "q4_0"
    assert report["model"]["name"] == "presidents-1m"


def test_clients_call_a_folder_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Some-1.5B"
    folder.symlink_to(PRESIDENTS)
    monkeypatch.chdir(tmp_path)
    options = {"kv_type": "f16", "quant": "q8_0", "threads": 1, "max_sequences": 1, "kv_tokens": 0}
    for name in ("Some-1.5B", "./Some-1.5B/", str(folder)):
        (source,) = plan_models([name], {}, 64, options | {"backend": "auto", "draft": None})
        assert source.name == "Some-1.5B"


def test_pages_that_were_read_are_let_go() -> None:
    calls: list[str] = []
    spool = Spool(lambda: calls.append("relief"))
    spooled(spool, "a", 10 << 20, calls)
    spool.fill()
    assert calls == ["a", "relief", "relief", "relief"]


def test_memory_is_as_planned_for_a_folder() -> None:
    """In a process of its own: what was held before is part of the plan."""
    code = (
        "import sys\n"
        "from localinfer.cli.bench import bench\n"
        "report = bench(sys.argv[1], prompts=[8], decodes=[2], depths=[0], rounds=1, threads=1, backend_name='cpu',\n"
        "    kv_type='f16', quant=sys.argv[2])\n"
        "print(report['peak_memory'] / report['memory_plan']['total'])\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(PRESIDENTS), ""], capture_output=True, text=True, check=True
    )
    assert float(output.stdout) == pytest.approx(1, abs=0.05)
