"""The trained checkpoint that comes with the tests, and the script that made it."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localinfer.checkpoints import open_model
from localinfer.kernels import backend
from localinfer.kernels.base import KvType, LoadConfig, batch_of
from localinfer.models import record
from localinfer.text.tokenizer import load_tokenizer

# transformers probes for an unrelated package named `kernels`; an editable install of localinfer puts a folder of that
# name on the path, which must not be mistaken for it. None means: not installed.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]

from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")
ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "tests" / "data" / "presidents-1m"
WORDS = "the whale and the sea are the only things that the captain sees, for they're 2,000 miles from home. "


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """scripts/train_small.py, imported as it imports its neighbours."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    before = set(sys.modules)
    yield importlib.import_module("train_small")
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == ROOT / "scripts":
            del sys.modules[name]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


def tiny(script: Any) -> Any:
    """A model that is trained in a blink."""
    return script.Size(300, 32, 32, 1, 2, 1, context=16, batch=2, steps=10, rate=1e-2)


# The checkpoint


def test_the_files_are_small_and_shaped_for_every_block_format(model: LlamaForCausalLM) -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 4_000_000
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    for name, weight in model.named_parameters():
        assert weight.ndim == 1 or weight.shape[1] % 256 == 0, name
        assert bool(torch.isfinite(weight).all()), name


def test_the_tokenizer_loads_and_decodes_what_it_encodes(script: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    splitter = json.loads((CHECKPOINT / "tokenizer.json").read_text("utf-8"))["pre_tokenizer"]["pretokenizers"][0]
    assert splitter["pattern"]["Regex"] == script.WORDS
    text = "Call me Ishmael. It's 1851, and\n\n  the naïve “whale” weighs 90 tons 🐋!"
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_perplexity_on_held_out_text_is_what_the_readme_says(script: Any, model: LlamaForCausalLM) -> None:
    stated = re.search(r"on `held_out.txt` perplexity ([\d.]+)", (CHECKPOINT / "README.md").read_text("utf-8"))
    assert stated is not None
    text = (CHECKPOINT / "held_out.txt").read_text("utf-8")
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    tokens = torch.tensor([*ids, tokenizer.eos_token_id])
    loss = script.evaluate(model, tokens, script.SIZES["1m"], exact=True)
    assert math.exp(loss) == pytest.approx(float(stated[1]), rel=2e-3)
    assert math.exp(loss) < 100  # of 1,024 equally likely tokens: it has learnt something


# The texts


def archive(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, BytesIO(text.encode()))


def test_documents_are_read_in_order_and_one_in_ten_is_held_out(script: Any, tmp_path: Path) -> None:
    texts = sys.modules["public_text"]
    files = {
        "package/data/chapter_15.txt": "Call me\nIshmael.\n\nSome\nyears ago\n",
        "package/data/chapter_2.txt": "Two",
    }
    archive(tmp_path / "book.tgz", {**files, "package/README.md": "no text", "package/data/chapter_2.json": "{}"})
    found = texts.documents_of(
        texts.Package("book", "1", "", r"package/data/chapter_(\d+)\.txt", True), tmp_path / "book.tgz"
    )
    assert [(document.number, document.text) for document in found] == [
        (2, "Two"),
        (15, "Call me Ishmael.\nSome years ago"),
    ]
    assert [document.held_out for document in found] == [False, True]


def test_an_archive_with_another_hash_is_refused(script: Any, tmp_path: Path) -> None:
    texts = sys.modules["public_text"]
    archive(tmp_path / "scope-book-1.tgz", {"package/data/chapter_2.txt": "Two"})
    digest = hashlib.sha256((tmp_path / "scope-book-1.tgz").read_bytes()).hexdigest()
    assert texts.fetch(texts.Package("@scope/book", "1", digest, ""), tmp_path) == tmp_path / "scope-book-1.tgz"
    with pytest.raises(SystemExit, match="expected is 0000"):
        texts.fetch(texts.Package("@scope/book", "1", "0000", ""), tmp_path)


# The trainer


def test_help_says_how_to_run_it(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_small.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        script.main()
    assert "python scripts/train_small.py FOLDER" in capsys.readouterr().out


def test_a_tokenizer_is_a_function_of_its_text(script: Any) -> None:
    one, two = (script.train_tokenizer([WORDS * 20], 300) for _ in range(2))
    assert one.to_str() == two.to_str()
    assert one.get_vocab_size() == 300
    ids = one.encode(WORDS).ids
    assert ids[0] == one.token_to_id(script.BEGIN)
    assert one.decode(ids) == WORDS
    assert script.encode_all(one, ["a", "the"]).tolist() == [*one.encode("a").ids[1:], 1, *one.encode("the").ids[1:], 1]


def test_a_pass_sees_every_window_once(script: Any) -> None:
    windows = script.Windows(torch.arange(1000), 7, 16, 4, seed=3)
    assert windows.steps_per_pass == 15
    firsts = []
    for step in range(15):
        inputs, targets = windows.at(step)
        assert inputs.shape == targets.shape == (4, 16)
        assert inputs[:, 0].tolist() == [7] * 4
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        firsts += targets[:, 0].tolist()
    assert sorted(firsts) == list(range(min(firsts), min(firsts) + 60 * 16, 16))
    assert firsts != sorted(firsts)
    assert [windows.at(step)[1][0, 0].item() for step in range(15, 30)] != firsts[::4]  # the next pass is another
    again = script.Windows(torch.arange(1000), 7, 16, 4, seed=3)
    assert torch.equal(again.at(20)[1], windows.at(20)[1])
    with pytest.raises(SystemExit, match="too few"):
        script.Windows(torch.arange(60), 7, 16, 4, seed=3)


def test_the_rate_rises_stays_and_falls_to_nothing(script: Any) -> None:
    rates = [script.rate_at(step, 1000, 2.0) for step in range(1000)]
    assert rates[0] == pytest.approx(0.02)
    assert rates[99] == rates[700] == 2
    assert rates[850] == pytest.approx(1)
    assert rates[999] == pytest.approx(2 / 300)


def run(script: Any, folder: Path, steps: int, stop_at: int | None = None) -> Any:
    """A trainer after its run in `folder`, broken off before step `stop_at`."""
    tokenizer = script.train_tokenizer([WORDS * 20], 300)
    tokens = script.encode_all(tokenizer, [WORDS * 20])
    size = tiny(script)
    trainer = script.Trainer(size, steps, seed=1)
    windows = script.Windows(tokens, 0, size.context, size.batch, seed=1)
    advance = trainer.advance

    def breaking(*batch: Any) -> float:
        if trainer.step == stop_at:
            raise KeyboardInterrupt
        return float(advance(*batch))

    trainer.advance = breaking
    if stop_at is None:
        script.train(trainer, windows, tokens, folder, save_minutes=0)
    else:
        with pytest.raises(KeyboardInterrupt):
            script.train(trainer, windows, tokens, folder, save_minutes=0)
    return trainer


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in trainer.model.named_parameters()}


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one).values(), weights(two).values(), strict=True))


def test_a_resumed_run_ends_with_the_same_weights(script: Any, tmp_path: Path) -> None:
    whole = run(script, tmp_path / "whole", 10)
    run(script, tmp_path / "broken", 10, stop_at=4)
    run(script, tmp_path / "broken", 10, stop_at=9)  # within the fall of the rate
    assert same(whole, run(script, tmp_path / "broken", 10))
    assert not same(whole, run(script, tmp_path / "shorter", 9))


def test_more_steps_go_on_from_before_the_rate_fell(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rate without the warm-up, whose length differs between runs as short as these.
    monkeypatch.setattr(
        script, "rate_at", lambda step, steps, peak: peak / (1 if step < script.decay_start(steps) else 2)
    )
    shorter = run(script, tmp_path / "run", 10)
    longer = run(script, tmp_path / "run", 12)
    assert longer.step == 12
    assert not same(shorter, longer)
    assert same(longer, run(script, tmp_path / "whole", 12))


def test_training_learns_and_the_export_is_what_was_trained(script: Any, tmp_path: Path) -> None:
    trainer = run(script, tmp_path, 100)
    tokenizer = script.train_tokenizer([WORDS * 20], 300)
    tokens = script.encode_all(tokenizer, [WORDS * 20])
    assert script.evaluate(trainer.model, tokens, trainer.size) < math.log(300) / 2
    script.export(trainer.model, tokenizer, trainer.size, tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, weights(trainer)[name]), name
    assert AutoTokenizer.from_pretrained(tmp_path)(WORDS).input_ids == tokenizer.encode(WORDS).ids
    assert not list(tmp_path.rglob("*.part"))


# In localinfer


def held_out_tokens(count: int) -> list[int]:
    """BEGIN and the first tokens of the held-out text."""
    text = (CHECKPOINT / "held_out.txt").read_text("utf-8")[: 6 * count]
    return list(AutoTokenizer.from_pretrained(CHECKPOINT)(text).input_ids[:count])


@pytest.mark.parametrize(("name", "tolerance"), [("reference", 1e-4), ("cpu", 5e-2)])
def test_logits_are_those_of_transformers(model: LlamaForCausalLM, name: str, tolerance: float) -> None:
    tokens = held_out_tokens(96)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    with open_model(CHECKPOINT) as file:
        file.prepare()
        program = record(file.metadata, file, 128)
        kv_type: KvType = "f32" if name == "reference" else "f16"
        config = LoadConfig(128, 128, 1, 128, kv_blocks=8, kv_type_k=kv_type, kv_type_v=kv_type)
        loaded = backend(name).load(program, file, config)
        logits = np.asarray(loaded.step(batch_of([(tokens, 0, range(8))], "all")).numpy())
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)


def test_tokens_are_those_of_transformers() -> None:
    text = (CHECKPOINT / "held_out.txt").read_text("utf-8")[
        :1000
    ] + "It's 1851, and\n\n  the naïve “whale” weighs 90 tons 🐋!"
    with open_model(CHECKPOINT) as file:
        tokenizer = load_tokenizer(file.metadata)
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        assert [*ids] == AutoTokenizer.from_pretrained(CHECKPOINT)(text).input_ids
