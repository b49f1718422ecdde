"""`--to int8|int4|fp8`: transformers and compressed-tensors load what is written, and agree about every weight."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from checkpoint_files import write_checkpoint
from localinfer.checkpoints import open_model
from localinfer.checkpoints.values import float_rows
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.quantize import stream
from localinfer.quantize.compressed import SCHEMES
from localinfer.quantize.pipeline import Wishes, quantize
from localinfer.quantize.provenance import KEY, from_json
from reports import Lines
from tiny_models import TinyModel, transformers_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WIDE = TinyModel(
    "wide", "qwen3", "Qwen3", {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "head_dim": 64}
)
# How far weights may be from the source's: the norm of the differences as a part of theirs. (Seen, for normal weights:
# 0.006, 0.1, 0.026, 0.026.)
FAR = {"int8": 0.01, "int4": 0.13, "fp8": 0.035, "fp8-block": 0.035}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(WIDE, tmp_path_factory.mktemp("source") / "wide", dtype=request.param)
    if request.param == "bfloat16":
        model = transformers_model(WIDE).to(torch.bfloat16)
        model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def run(source: Path, scheme: str, output: Path, **more: Any) -> Path:
    return quantize(Wishes(source, scheme, output=output, **({"measure": False} | more)), Lines()).path


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def meaning(tensors: dict[str, torch.Tensor], module: str, scheme: str) -> torch.Tensor:
    """The weights of a module, by the definition at the top of compressed.py, in float32."""
    scale = tensors[f"{module}.weight_scale"].float()
    if scheme == "int4":
        packed = tensors[f"{module}.weight_packed"]
        codes = torch.stack([(packed >> 4 * i & 15) - 8 for i in range(8)], dim=-1).flatten(1)
        assert tensors[f"{module}.weight_shape"].tolist() == list(codes.shape)
        return codes.float() * scale.repeat_interleave(128, dim=1)
    codes = tensors[f"{module}.weight"].float()
    if scheme == "fp8-block":
        scale = scale.repeat_interleave(128, dim=0)[: codes.shape[0]].repeat_interleave(128, dim=1)[:, : codes.shape[1]]
    return codes * scale


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_transformers_loads_the_folder_and_has_the_same_weights(source: Path, scheme: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = run(source, scheme, tmp_path / "out")
    tensors = tensors_of(folder)
    original = transformers_model(WIDE).state_dict()
    config = AutoConfig.from_pretrained(folder)
    config.quantization_config["dequantize"] = True
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    loaded = model.state_dict()
    matrices = [name.removesuffix(".weight") for name in original if "layers" in name and original[name].dim() == 2]
    for module in matrices:
        expected = meaning(tensors, module, scheme)
        torch.testing.assert_close(loaded[f"{module}.weight"].float(), expected, rtol=1e-2, atol=1e-8)
        weights = original[f"{module}.weight"]
        assert (expected - weights).norm() < FAR[scheme] * weights.norm()
    assert torch.equal(loaded["lm_head.weight"].float(), tensors["lm_head.weight"].float())


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_our_engine_reads_the_same_weights(source: Path, scheme: str, tmp_path: Path) -> None:
    folder = run(source, scheme, tmp_path / "out")
    tensors = tensors_of(folder)
    with open_model(folder) as model:
        tensor = model.tensor("blk.1.ffn_down.weight")
        found = float_rows(tensor, 0, tensor.shape[0])
    np.testing.assert_array_equal(found, meaning(tensors, "model.layers.1.mlp.down_proj", scheme).numpy())


def test_the_folder_has_everything_else_of_the_source(source: Path, tmp_path: Path) -> None:
    folder = run(source, "int8", tmp_path / "out", statement=True)
    names = {path.name for path in source.iterdir()}
    made = {"model.safetensors.provenance.json", "model.safetensors.intoto.json"}
    assert {path.name for path in folder.iterdir()} == names | made
    assert (folder / "tokenizer_config.json").read_text() == "{}"
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == ["lm_head"]
    assert config == json.loads((source / "config.json").read_text())


def test_the_file_says_where_it_comes_from(source: Path, tmp_path: Path) -> None:
    folder = run(source, "int4", tmp_path / "out")
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        found = from_json(file.metadata()[KEY], str(path))
    beside = json.loads((folder / "model.safetensors.provenance.json").read_text())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert beside.pop("files") == [{"name": path.name, "size": path.stat().st_size, "sha256": digest}]
    assert beside == found.to_dict()
    assert {file.name for file in found.source.files} >= {"model.safetensors", "config.json"}
    tensors = tensors_of(folder)
    assert set(found.tensors) == set(tensors)
    packed = "model.layers.0.mlp.up_proj.weight_packed"
    assert found.tensors[packed].sha256 == hashlib.sha256(tensors[packed].numpy().tobytes()).hexdigest()
    assert found.tensors[packed].method == "int4-group-1"
    assert found.tensors["model.norm.weight"].method == "copy"


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_bytes_depend_neither_on_threads_nor_on_pieces(
    source: Path, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(source, scheme, tmp_path / "a", threads=1)
    monkeypatch.setattr(stream, "PIECE_WEIGHTS", 3000)
    second = run(source, scheme, tmp_path / "b", threads=3)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_columns_that_no_group_divides_stay_floats_and_are_named(tmp_path: Path) -> None:
    odd = TinyModel("odd", "qwen3", "Qwen3", {"hidden_size": 128, "intermediate_size": 96, "head_dim": 32})
    source = write_checkpoint(odd, tmp_path / "odd")
    heard = Lines()
    quantize(Wishes(source, "int4", output=tmp_path / "out", measure=False), heard)
    assert heard.said == [
        "model.layers.0.mlp.down_proj.weight and 2 more matrices stay as they are: rows of 96 are no multiple of 128"
    ]
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["lm_head", *(f"model.layers.{i}.mlp.down_proj" for i in range(3))]
    tensors = tensors_of(tmp_path / "out")
    assert tensors["model.layers.0.mlp.down_proj.weight"].dtype == torch.float32
    assert tensors["model.layers.0.mlp.up_proj.weight_packed"].dtype == torch.int32


def test_an_interrupted_folder_is_gone_on_with_and_replaced_only_by_force(source: Path, tmp_path: Path) -> None:
    expected = (run(source, "fp8", tmp_path / "whole") / "model.safetensors").read_bytes()

    class Interrupting(Lines):
        def progress(self, what: str, done: int, total: int) -> None:
            if done > total / 2:
                raise KeyboardInterrupt

    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        quantize(Wishes(source, "fp8", output=output, measure=False), Interrupting())
    assert not output.exists()
    heard = Lines()
    quantize(Wishes(source, "fp8", output=output, measure=False), heard)
    assert any("going on" in line for line in heard.said)
    assert (output / "model.safetensors").read_bytes() == expected
    with pytest.raises(LocalInferError, match="exists"):
        run(source, "int8", output)
    run(source, "int8", output, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


def test_sources_that_will_not_do_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedError, match="which --to int8 needs"):
        run(tmp_path / "m.gguf", "int8", tmp_path / "out")
    with pytest.raises(UnsupportedError, match="one type for all matrices"):
        run(source, "int8", tmp_path / "out", tensors={"*": ["Q8_0"]})
    folder = run(source, "int8", tmp_path / "first")
    with pytest.raises(UnsupportedError, match="is quantized already"):
        run(folder, "int8", tmp_path / "second")
