"""`localinfer verify`: files against their hashes and their source, what is printed, and how the command ends."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import write_gguf
from localinfer.cli.main import execute
from localinfer.formats.gguf import open_gguf
from localinfer.formats.safetensors import open_safetensors
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES
from localinfer.quantize.pipeline import Wishes as QuantizeWishes
from localinfer.quantize.pipeline import quantize
from localinfer.verify.examine import Verdict
from localinfer.verify.pair import Pair
from localinfer.verify.report import Exit, Report
from localinfer.verify.sample import chunks_of
from localinfer.verify.verification import Wishes, verify

CHECKPOINT = Path(__file__).parent / "data" / "presidents-1m"
LEAST_RUNS, RUN = 16, 4  # rows of a sample


class Quiet:
    """A report that says nothing."""

    def say(self, text: str) -> None:
        del text

    def progress(self, what: str, done: int, total: int) -> None:
        assert 0 <= done <= total, what


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of ours: q4.gguf, f16.gguf, and the folder int8."""
    folder = tmp_path_factory.mktemp("made")
    for recipe, name in (("q4_k_m", "q4.gguf"), ("f16", "f16.gguf"), ("int8", "int8")):
        quantize(QuantizeWishes(CHECKPOINT, recipe, output=folder / name, measure=False), Quiet())
    return folder


def look(path: Path, source: Path | None = CHECKPOINT, **wishes: Any) -> Report:
    return verify(Wishes(path, source, **({"limits": False} | wishes)), Quiet())


def copy(path: Path, folder: Path) -> Path:
    """The file alone, without what stands beside it."""
    return Path(shutil.copyfile(path, folder / path.name))


def change(path: Path, tensor: str, at: int = 0) -> None:
    """Flips the lowest bit of a byte of a tensor."""
    with open_gguf(path) as file:
        offset = file.tensor(tensor).offset + at
    _flip(path, offset)


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_file_of_ours_is_proven(made: Path) -> None:
    report = look(made / "q4.gguf")
    assert report.exit is Exit.PROVEN
    assert {tensor.verdict for tensor in report.tensors} == {Verdict.IDENTICAL}
    assert {check.kind for check in report.checks} == {"tensor", "file", "source file"}
    assert all(check.right for check in report.checks)
    assert not report.metadata


def test_hashes_alone(made: Path, tmp_path: Path) -> None:
    assert look(made / "q4.gguf", None).exit is Exit.PROVEN
    path = copy(made / "q4.gguf", tmp_path)
    assert look(path, None).exit is Exit.PROVEN
    change(path, "blk.1.ffn_up.weight", 1000)
    report = look(path, None)
    assert report.exit is Exit.REFUTED
    assert [check.name for check in report.checks if not check.right] == ["blk.1.ffn_up.weight"]


def test_a_wrong_file_hash_is_found_where_no_tensor_tells(made: Path, tmp_path: Path) -> None:
    path = copy(made / "q4.gguf", tmp_path)
    shutil.copyfile(made / "q4.gguf.provenance.json", tmp_path / "q4.gguf.provenance.json")
    data = path.read_bytes()
    _flip(path, data.index(b"<|begin_of_text|>"))
    report = look(path, None)
    assert [check.kind for check in report.checks if not check.right] == ["file"]
    assert report.exit is Exit.REFUTED


def test_a_file_without_hashes_proves_nothing_alone(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "plain.gguf", {}, {"a.weight": np.ones((2, 32), np.float32)})
    assert look(path, None).exit is Exit.UNPROVEN
    assert look(path, path).exit is Exit.PROVEN


def test_a_changed_block_is_found_and_named(made: Path, tmp_path: Path) -> None:
    path = copy(made / "q4.gguf", tmp_path)
    change(path, "blk.0.ffn_gate.weight", 5 * 144 + 40)  # a row has one block
    report = look(path)
    assert report.exit is Exit.REFUTED
    (found,) = [tensor for tensor in report.tensors if tensor.verdict is not Verdict.IDENTICAL]
    assert (found.name, found.verdict) == ("blk.0.ffn_gate.weight", Verdict.DIFFERENT)
    assert found.finding is not None
    assert found.finding.tally.broken == 1
    assert (found.finding.tally.worst[0].row, found.finding.tally.worst[0].column) == (5, 0)


def test_a_file_of_ours_that_honest_scales_would_explain_is_no_less_refuted(made: Path, tmp_path: Path) -> None:
    """The last bit of a block's scale: every weight stays on its nearest level, and whoever flips it mends the hash."""
    path, name = copy(made / "q4.gguf", tmp_path), "blk.1.ffn_gate.weight"

    def sha256() -> bytes:
        with open_gguf(path) as file:
            return hashlib.sha256(file.tensor(name).buffer).hexdigest().encode()

    told = sha256()
    change(path, name)
    path.write_bytes(path.read_bytes().replace(told, sha256()))
    report = look(path)
    assert all(check.right for check in report.checks)
    (found,) = [tensor for tensor in report.tensors if tensor.verdict is not Verdict.IDENTICAL]
    assert (found.name, found.verdict) == (name, Verdict.DIFFERENT)
    assert found.finding is not None
    assert "search-1 makes other bytes" in found.finding.how
    assert report.exit is Exit.REFUTED
    assert look(path, share=0.99, seed=0).exit is Exit.REFUTED  # the block is in the sample


def test_provenance_of_another_file_is_not_held_against_this_one(made: Path, tmp_path: Path) -> None:
    path = copy(made / "q4.gguf", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"type":"Q4_K"', b'"type":"Q4_0"').replace(b'"type":"Q6_K"', b'"type":"Q8_0"'))
    report = look(path)
    assert report.exit is Exit.PROVEN
    assert report.provenance is None
    assert "that of a file with other types" in report.notes[0]


def test_tensors_without_partner_leave_it_unproven(tmp_path: Path) -> None:
    one = {"a.weight": np.ones((2, 32), np.float32)}
    more = one | {"b.weight": np.ones((2, 32), np.float32)}
    small, large = write_gguf(tmp_path / "small.gguf", {}, one), write_gguf(tmp_path / "large.gguf", {}, more)
    assert [(t.name, t.missing) for t in look(small, large).tensors if t.missing] == [("b.weight", "the file")]
    assert [(t.name, t.missing) for t in look(large, small).tensors if t.missing] == [("b.weight", "the source")]
    assert look(large, small).exit is look(small, large).exit is Exit.UNPROVEN


def test_another_shape_refutes(tmp_path: Path) -> None:
    one = write_gguf(tmp_path / "one.gguf", {}, {"a.weight": np.ones((2, 32), np.float32)})
    other = write_gguf(tmp_path / "other.gguf", {}, {"a.weight": np.ones((4, 16), np.float32)})
    assert look(one, other).exit is Exit.REFUTED


def test_metadata_that_differs_is_told(tmp_path: Path) -> None:
    tensors = {"a.weight": np.ones((2, 32), np.float32)}
    one = write_gguf(tmp_path / "one.gguf", {"llama.block_count": 2, "tokenizer.ggml.tokens": ["a", "b"]}, tensors)
    other = write_gguf(tmp_path / "other.gguf", {"llama.block_count": 2, "tokenizer.ggml.tokens": ["a", "c"]}, tensors)
    assert look(one, other).metadata == ["tokenizer.ggml.tokens"]


def test_a_sample_looks_at_some_rows_only(made: Path, tmp_path: Path) -> None:
    path = copy(made / "q4.gguf", tmp_path)
    change(path, "token_embd.weight", 777 * 210 + 5)
    report = look(path, share=0.02, seed=0)
    assert report.exit is Exit.PROVEN  # row 777 is not among them
    assert not report.checks
    (embedding,) = [tensor for tensor in report.tensors if tensor.name == "token_embd.weight"]
    assert (embedding.rows, embedding.seen) == (1024, LEAST_RUNS * RUN)
    assert look(path).exit is Exit.REFUTED


def test_a_seed_chooses_the_rows() -> None:
    with open_safetensors(CHECKPOINT) as file:
        table = file.tensor("model.embed_tokens.weight")
        tensor = Tensor("t", TYPES["BF16"], table.shape, table.path, table.offset, table.nbytes, table.buffer)
    pair = Pair(tensor, tensor)
    once, again, other = (chunks_of(pair, 0.1, seed) for seed in (1, 1, 2))
    assert once == again != other
    assert sum(chunk.rows for chunk in once) == pytest.approx(0.1 * 1024, abs=RUN)
    assert sum(chunk.rows for chunk in chunks_of(pair, 1, 1)) == 1024


def test_a_compressed_folder_is_made_again(made: Path, tmp_path: Path) -> None:
    report = look(made / "int8")
    assert report.exit is Exit.PROVEN
    assert {tensor.finding.how for tensor in report.tensors if tensor.finding} >= {"localinfer's int8-channel-1"}
    folder = Path(shutil.copytree(made / "int8", tmp_path / "int8"))
    (weights,) = folder.glob("*.safetensors")
    with open_safetensors(weights) as file:
        name, tensor = next((n, t) for n, t in file.tensors.items() if t.dtype == "I8")
    _flip(weights, tensor.offset + 100)
    report = look(folder)
    assert report.exit is Exit.REFUTED
    assert [check.name for check in report.checks if not check.right and check.kind == "tensor"] == [name]
    assert report.count(Verdict.DIFFERENT) == 1


def test_scales_of_a_compressed_folder_are_made_again(made: Path, tmp_path: Path) -> None:
    """The last bit of the scale of a row, where that is no more than a division in bfloat16 may be off by."""
    folder = Path(shutil.copytree(made / "int8", tmp_path / "int8"))
    (weights,) = folder.glob("*.safetensors")
    with open_safetensors(weights) as file:
        scales = next(t for n, t in file.tensors.items() if n.endswith("weight_scale"))
        mantissas = np.frombuffer(scales.buffer, "<u2") & 127
    _flip(weights, scales.offset + 2 * int(mantissas.argmax()))
    found = [tensor.finding.how for tensor in look(folder).tensors if tensor.finding]
    assert sum("int8-channel-1 makes other bytes" in how for how in found) == 1


def test_calibrated_files_say_how_they_are_made_again(tmp_path: Path) -> None:
    quantize(
        QuantizeWishes(CHECKPOINT, "q8_0", output=tmp_path / "q8.gguf", calibrate="default", measure=False), Quiet()
    )
    report = look(tmp_path / "q8.gguf")
    assert report.exit is Exit.UNPROVEN
    assert any("--calibrate default" in note for note in report.notes)
    assert not any(t.finding.change > 0.1 for t in report.tensors if t.finding and t.finding.change is not None)
    assert look(tmp_path / "q8.gguf", calibrate="default").exit is Exit.PROVEN


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = execute(["verify", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_the_command_says_what_was_proven(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, made / "q4.gguf", "--source", CHECKPOINT)
    assert code == 0
    assert text.startswith("PROVEN: ")
    path = copy(made / "q4.gguf", tmp_path)
    change(path, "blk.0.attn_q.weight", 77)
    code, text = run(capsys, path, "--source", CHECKPOINT)
    assert code == 4
    assert text.startswith("REFUTED: 1 hash wrong; 1 tensor not from ")
    assert "blk.0.attn_q.weight (Q4_K): different" in text
    code, text = run(capsys, path, "--source", CHECKPOINT, "--sample", "--seed", "0")
    assert "rows that were not looked at: 98%" in text
    assert "seed 0" in text


def test_the_command_prints_json(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, made / "f16.gguf", "--source", CHECKPOINT, "--json")
    found = json.loads(text)
    assert (code, found["outcome"], found["exit_code"]) == (0, "proven", 0)
    assert found["counts"] == {"identical": 20, "consistent": 0, "unproven": 0, "different": 0}
    assert found["provenance"]["recipe"]["name"] == "f16"
    assert len(found["tensors"]) == 20


def test_what_cannot_be_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    assert execute(["verify", str(tmp_path / "bad.gguf")]) == 1
    assert execute(["verify", str(tmp_path / "none.gguf")]) == 1
    assert execute(["verify", str(CHECKPOINT), "--calibrate", "default"]) == 2
    assert execute(["verify", str(CHECKPOINT), "--source", str(CHECKPOINT), "--seed", "1"]) == 2
    assert "error: " in capsys.readouterr().err
