"""`localinfer quantize` to GGUF: what is written, that it is always the same, and what an interruption leaves."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_files import write_gguf as write_any_gguf
from localinfer.cli.main import execute
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Tensor
from localinfer.kernels.quantize.quantizer import quantize_rows
from localinfer.kernels.types import TYPES
from localinfer.quantize import stream
from localinfer.quantize.pipeline import Wishes, quantize
from localinfer.quantize.provenance import KEY, read_provenance, sidecar_path
from localinfer.quantize.recipes import RECIPES, Shape, choose, find_recipe
from localinfer.quantize.work import WorkFile
from random_rows import random_rows
from tiny_models import TinyModel, write_gguf

WIDE = TinyModel(
    "wide", "llama", "Llama", {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
)


class Heard:
    """A report that keeps what it is told, and may interrupt after some progress."""

    def __init__(self, interrupt_at: float = 2.0) -> None:
        self.said: list[str] = []
        self._limit = interrupt_at

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "quantizing" and done >= self._limit * total:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(WIDE, tmp_path_factory.mktemp("source") / "wide-f16.gguf", "F16")


def run(source: Path, to: str, output: Path, **more: Any) -> Path:
    return quantize(Wishes(source, to, output=output, **({"measure": False} | more)), Heard()).path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def matrix(name: str, *shape: int, kind: str = "F16") -> Tensor:
    return Tensor(name, TYPES[kind], shape, Path(), 0, 0, memoryview(b""))


# ---- recipes -------------------------------------------------------------------------------------------------


def types_of_layers(recipe: str, kind: str, layers: int = 32, **shape: Any) -> list[str]:
    tensors = {f"blk.{i}.{kind}.weight": matrix(f"blk.{i}.{kind}.weight", 512, 1024) for i in range(layers)}
    model = Shape(layers, **({"queries_per_key": 1, "experts": 0, "tied": False} | shape))
    return [choice.type for choice in choose(find_recipe(recipe), tensors, model)]


def test_recipes_give_more_bits_where_llama_cpp_does() -> None:
    better = [i for i, kind in enumerate(types_of_layers("q4_k_m", "ffn_down")) if kind == "Q6_K"]
    assert better == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert types_of_layers("q4_k_m", "attn_v") == types_of_layers("q4_k_m", "ffn_down")
    assert set(types_of_layers("q4_k_m", "attn_q")) == {"Q4_K"}
    assert types_of_layers("q3_k_m", "attn_v")[:3] == ["Q5_K", "Q5_K", "Q4_K"]
    assert types_of_layers("q3_k_m", "ffn_down")[:3] == ["Q5_K", "Q5_K", "Q4_K"]
    assert set(types_of_layers("q2_k", "attn_v")) == {"Q3_K"}
    assert set(types_of_layers("q2_k", "attn_v", queries_per_key=4)) == {"Q4_K"}
    assert types_of_layers("q4_k_s", "ffn_down")[3:5] == ["Q5_K", "Q4_K"]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("q4_k_m", 1024, "Q4_K"),
        ("q4_k_m", 640, "Q5_0"),
        ("q5_k_m", 640, "Q5_1"),
        ("q6_k", 640, "Q8_0"),
        ("q3_k_m", 640, "IQ4_NL"),
        ("iq4_xs", 640, "IQ4_NL"),
        ("q4_0", 40, "F16"),
        ("q4_k_m", 40, "F16"),
        ("f16", 40, "F16"),
    ],
)
def test_rows_that_no_block_divides_get_a_type_that_fits(name: str, columns: int, expected: str) -> None:
    tensor = matrix("blk.0.ffn_up.weight", 8, columns)
    (choice,) = choose(find_recipe(name), {tensor.name: tensor}, Shape(8, 1, 0, False))
    assert choice.type == expected
    assert bool(choice.reason) == (columns % TYPES[RECIPES[name].type].block_size != 0)


def test_the_head_gets_six_bits_and_is_the_embedding_where_that_is_shared() -> None:
    tensors = {name: matrix(name, 512, 1024) for name in ("token_embd.weight", "output.weight")}
    assert [c.type for c in choose(find_recipe("q4_k_m"), tensors, Shape(8, 1, 0, False))] == ["Q4_K", "Q6_K"]
    del tensors["output.weight"]
    assert [c.type for c in choose(find_recipe("q4_k_m"), tensors, Shape(8, 1, 0, True))] == ["Q6_K"]


def test_vectors_and_routers_stay_and_16_bit_vectors_become_32_bit_ones() -> None:
    names = {"blk.0.attn_norm.weight": (64,), "blk.0.ffn_gate_inp.weight": (8, 64), "blk.0.attn_q.bias": (64,)}
    tensors = {name: matrix(name, *shape) for name, shape in names.items()}
    assert {c.type for c in choose(find_recipe("q4_0"), tensors, Shape(8, 1, 0, False))} == {"F32"}


# ---- what is written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_writes_a_file_that_readers_agree_about(name: str, source: Path, tmp_path: Path) -> None:
    path = run(source, name, tmp_path / "out.gguf")
    with open_gguf(source) as before, open_gguf(path) as after:
        assert list(before.tensors) == list(after.tensors)
        changed = {"general.file_type", "general.quantization_version", KEY}
        for key in before.metadata:
            assert key in changed or before.encoded(key) == after.encoded(key)
        assert after.metadata["general.file_type"] == RECIPES[name].file_type
        assert after.tensor("blk.0.ffn_gate.weight").type.name == RECIPES[name].type
        for key, tensor in after.tensors.items():
            original = before.tensor(key)
            if tensor.type.name not in ("F32", original.type.name):
                weights = np.frombuffer(original.buffer, np.float16).astype(np.float32).reshape(original.shape)
                assert bytes(tensor.buffer) == bytes(quantize_rows(tensor.type.name, weights))
        types = {key: tensor.type.name for key, tensor in after.tensors.items()}
    assert {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors} == types


def test_the_file_says_where_it_comes_from(source: Path, tmp_path: Path) -> None:
    path = run(source, "Q4_K", tmp_path / "out.gguf", statement=True)
    with open_gguf(path) as file, open_gguf(source) as before:
        found = read_provenance(file.metadata, str(path))
        assert found is not None
        assert found.recipe == {"name": "q4_k_m"}
        assert [(f.name, f.size, f.sha256) for f in found.source.files] == [
            (source.name, source.stat().st_size, sha256(source))
        ]
        assert found.quality == {"skipped": "--no-report"}
        assert list(found.tensors) == list(file.tensors)
        for name, record in found.tensors.items():
            assert record.sha256 == hashlib.sha256(file.tensor(name).buffer).hexdigest()
            assert record.source_sha256 == hashlib.sha256(before.tensor(name).buffer).hexdigest()
            assert record.type == file.tensor(name).type.name
            copied = record.type == record.source_type
            assert record.method == ("copy" if copied else "search-1")
    beside = json.loads(sidecar_path(path).read_text())
    assert beside.pop("files") == [{"name": "out.gguf", "size": path.stat().st_size, "sha256": sha256(path)}]
    assert beside == found.to_dict()
    signed = json.loads((tmp_path / "out.gguf.intoto.json").read_text())
    assert signed["subject"] == [{"name": "out.gguf", "digest": {"sha256": sha256(path)}}]
    assert signed["_type"] == "https://in-toto.io/Statement/v1"


def test_repository_and_revision_are_known_from_the_hubs_cache(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models--someone--some--thing" / "snapshots" / ("0123456789" * 4)
    folder.mkdir(parents=True)
    (folder / "m.gguf").symlink_to(source)
    (tmp_path / "link").symlink_to(folder / "m.gguf")
    for given in (folder / "m.gguf", tmp_path / "link"):
        path = run(given, "q8_0", tmp_path / "out.gguf", force=True)
        found = json.loads(sidecar_path(path).read_text())["source"]
        assert (found["repository"], found["revision"]) == ("someone/some--thing", "0123456789" * 4)
        assert found["name"] == "m.gguf"


def test_a_quantized_source_is_warned_about(tmp_path: Path, source: Path) -> None:
    heard = Heard()
    first = run(source, "q8_0", tmp_path / "first.gguf")
    result = quantize(Wishes(first, "q4_0", output=tmp_path / "second.gguf", measure=False), heard)
    assert any("quantized already" in line for line in heard.said)
    assert result.types["Q4_0"][0] > 0
    assert read_provenance(open_gguf(result.path).metadata, "").source.files[0].sha256 == sha256(first)  # type: ignore[union-attr]


def test_fallbacks_are_said_once_for_all_tensors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {f"blk.{i}.ffn_up.weight": rng.standard_normal((4, 96)).astype(np.float32) for i in range(3)}
    path = write_any_gguf(tmp_path / "x.gguf", {"llama.block_count": (3, "UINT32")}, tensors)
    heard = Heard()
    quantize(Wishes(path, "q4_k_m", output=tmp_path / "y.gguf", measure=False), heard)
    assert heard.said == [
        "blk.0.ffn_up.weight and 2 more tensors: Q5_0, because rows of 96 are no multiple of the Q4_K block of 256"
    ]


def test_matrices_of_experts_are_quantized_row_by_row(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).standard_normal((3, 5, 64)).astype(np.float32)
    source = write_any_gguf(tmp_path / "x.gguf", {}, {"blk.0.ffn_up_exps.weight": weights})
    path = run(source, "q8_0", tmp_path / "y.gguf")
    with open_gguf(path) as file:
        tensor = file.tensor("blk.0.ffn_up_exps.weight")
        assert tensor.shape == (3, 5, 64)
        assert bytes(tensor.buffer) == bytes(quantize_rows("Q8_0", weights.reshape(15, 64)))


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q6_K", "IQ4_XS", "Q2_K", "BF16"])
def test_sources_of_other_types_are_read(kind: str, tmp_path: Path) -> None:
    data = random_rows(kind, 4, 256)
    source = write_any_gguf(tmp_path / "x.gguf", {}, {"blk.0.ffn_up.weight": (data, kind)})
    path = run(source, "f32", tmp_path / "y.gguf")
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    with open_gguf(path) as file:
        np.testing.assert_array_equal(
            np.frombuffer(file.tensor("blk.0.ffn_up.weight").buffer, np.float32).reshape(4, 256), expected
        )


def test_types_of_single_tensors_can_be_asked_for(source: Path, tmp_path: Path) -> None:
    wanted = {"*.attn_v.weight": ["Q8_0"], "blk.1.ffn_up.weight": ["F16"]}
    path = run(source, "q4_0", tmp_path / "out.gguf", tensors=wanted)
    with open_gguf(path) as file:
        assert file.tensor("blk.0.attn_v.weight").type.name == "Q8_0"
        assert file.tensor("blk.1.ffn_up.weight").type.name == "F16"
        assert file.tensor("blk.0.ffn_up.weight").type.name == "Q4_0"
    with pytest.raises(LocalInferError, match="no matrix nothing"):
        run(source, "q4_0", tmp_path / "out2.gguf", tensors={"nothing": ["Q8_0"]})
    with pytest.raises(LocalInferError, match="no matrix blk"):
        run(source, "q4_0", tmp_path / "out2.gguf", tensors={"blk.0.attn_norm.weight": ["Q8_0"]})
    with pytest.raises(LocalInferError, match="type Q9"):
        run(source, "q4_0", tmp_path / "out2.gguf", tensors={"*": ["Q9"]})


# ---- always the same -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q4_k_m", "q8_0"])
def test_bytes_depend_neither_on_threads_nor_on_pieces(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sha256(run(source, name, tmp_path / "a.gguf", threads=1))
    assert sha256(run(source, name, tmp_path / "b.gguf", threads=3)) == expected
    monkeypatch.setattr(stream, "PIECE_WEIGHTS", 1000)
    assert sha256(run(source, name, tmp_path / "c.gguf", threads=2)) == expected


# ---- interruptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.4, 0.9])
def test_an_interrupted_run_is_gone_on_with(part: float, source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    expected = sha256(run(source, "q4_k_m", tmp_path / "whole.gguf"))
    output = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        quantize(Wishes(source, "q4_k_m", output=output, measure=False), Heard(interrupt_at=part))
    assert not output.exists()
    heard = Heard()
    made: list[str] = []
    monkeypatch.setattr(WorkFile, "note", _noting(WorkFile.note, made))
    quantize(Wishes(source, "q4_k_m", output=output, measure=False), heard)
    assert sha256(output) == expected
    with open_gguf(source) as file:
        assert (len(made) < len(file.tensors)) == (part > 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        name + end for name in ("whole.gguf", "out.gguf") for end in ("", ".provenance.json")
    )


def _noting(note: Any, made: list[str]) -> Any:
    def noting(self: WorkFile, name: str, *hashes: Any) -> None:
        made.append(name)
        note(self, name, *hashes)

    return noting


def test_bytes_of_an_interrupted_run_are_not_believed(source: Path, tmp_path: Path) -> None:
    expected = sha256(run(source, "q8_0", tmp_path / "whole.gguf"))
    output = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        quantize(Wishes(source, "q8_0", output=output, measure=False), Heard(interrupt_at=0.9))
    part = tmp_path / "out.gguf.part"
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.write_bytes(data)
    journal = tmp_path / "out.gguf.part.json"
    journal.write_text(journal.read_text() + '["blk.0.attn_q.wei')  # a line that was being written
    run(source, "q8_0", output)
    assert sha256(output) == expected


def test_another_recipe_or_source_starts_anew(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        quantize(Wishes(source, "q8_0", output=output, measure=False), Heard(interrupt_at=0.9))
    heard = Heard()
    quantize(Wishes(source, "q4_0", output=output, measure=False), heard)
    assert not any("going on" in line for line in heard.said)
    assert sha256(output) == sha256(run(source, "q4_0", tmp_path / "whole.gguf"))


def test_a_process_killed_at_any_moment_leaves_no_half_file(source: Path, tmp_path: Path) -> None:
    expected = sha256(run(source, "q6_k", tmp_path / "whole.gguf"))
    output = tmp_path / "out.gguf"
    code = (
        "import sys, time; from pathlib import Path; from localinfer.quantize import pipeline, stream\n"
        "stream.PIECE_WEIGHTS = 5000\n"
        "class R:\n"
        "    def say(self, text): pass\n"
        "    def progress(self, *a): print(flush=True); time.sleep(0.001)\n"
        "pipeline.quantize(pipeline.Wishes(Path(sys.argv[1]), 'q6_k', output=Path(sys.argv[2]), measure=False), R())\n"
    )
    for steps in (1, 60, 150):
        process = subprocess.Popen([sys.executable, "-c", code, source, output], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(steps):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if output.exists():
            break
    if output.exists():
        assert sha256(output) == expected
        output.unlink()
    run(source, "q6_k", output)
    assert sha256(output) == expected


def test_two_processes_do_not_write_one_file(source: Path, tmp_path: Path) -> None:
    with (
        WorkFile(tmp_path / "out.gguf", "x"),
        pytest.raises(LocalInferError, match="being written by another process"),
    ):
        run(source, "q8_0", tmp_path / "out.gguf")


# ---- refusals ------------------------------------------------------------------------------------------------


def test_what_is_there_is_only_overwritten_by_force(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(LocalInferError, match="exists"):
        run(source, "q8_0", output)
    assert output.read_bytes() == b"precious"
    run(source, "q8_0", output, force=True)
    assert output.read_bytes()[:4] == b"GGUF"


def test_the_source_is_never_overwritten(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(source, tmp_path / "m.gguf"))
    before = sha256(copy)
    with pytest.raises(LocalInferError, match="is what is to be quantized"):
        run(copy, "q8_0", copy, force=True)
    assert sha256(copy) == before


def test_a_full_disk_is_noticed_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(LocalInferError, match="GB free"):
        run(source, "q8_0", tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf.part").exists()


def test_a_source_that_changes_meanwhile_is_refused(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(source, tmp_path / "m.gguf"))

    class Touching(Heard):
        def progress(self, what: str, done: int, total: int) -> None:
            with open(copy, "ab") as file:
                file.write(b"\0")

    with pytest.raises(LocalInferError, match="was changed while it was read"):
        quantize(Wishes(copy, "q8_0", output=tmp_path / "out.gguf", measure=False), Touching())
    assert not (tmp_path / "out.gguf").exists()


def test_weights_that_are_no_numbers_are_an_error_that_names_them(tmp_path: Path) -> None:
    weights = np.ones((4, 64), np.float32)
    weights[2, 3] = np.nan
    source = write_any_gguf(tmp_path / "x.gguf", {}, {"blk.0.ffn_up.weight": weights})
    with pytest.raises(LocalInferError, match=r"tensor blk\.0\.ffn_up\.weight: row 2"):
        run(source, "q8_0", tmp_path / "y.gguf")


def test_an_unknown_type_is_answered_with_those_that_there_are(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no type 'q4_z'") as caught:
        run(source, "q4_z", tmp_path / "out.gguf")
    assert "q4_k_m" in caught.value.hint
    assert "int8" in caught.value.hint
    with pytest.raises(LocalInferError, match="either a type or a size"):
        run(source, "", tmp_path / "out.gguf")
    with pytest.raises(LocalInferError, match="is no folder"):
        run(source, "q8_0", tmp_path / "nowhere" / "out.gguf")


# ---- the command ---------------------------------------------------------------------------------------------


def test_the_command_prints_what_it_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["quantize", str(source), "--to", "q4_k_m", "--no-report", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == "wide-Q4_K_M.gguf"
    assert found["size"] == (tmp_path / "wide-Q4_K_M.gguf").stat().st_size
    assert {row["type"] for row in found["types"]} == {"Q4_K", "Q6_K", "F32"}
    assert execute(["quantize", str(source), "--to", "q4_k_m", "--no-report"]) == 1
    assert "--force" in capsys.readouterr().err
    assert execute(["quantize", str(source), "--to", "q4_k_m", "--tensor", "oops"]) == 2
