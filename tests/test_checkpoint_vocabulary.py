"""Tokenizers of checkpoints against their own libraries, token by token; and what else the folder says about text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from checkpoint_files import (
    GPT4O,
    LLAMA3,
    QWEN2,
    TEKKEN,
    TEXTS,
    sentencepiece_model,
    split,
    tokenizer_from_sentencepiece,
    tokenizer_json,
    train_byte_level,
)
from localinfer.checkpoints.sentencepiece import read_sentencepiece
from localinfer.checkpoints.splitting import name_of_split
from localinfer.checkpoints.vocabulary import read_vocabulary
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.gguf import open_gguf
from localinfer.kernels.host.encoder import BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED
from localinfer.text.tokenizer import Tokenizer, load_tokenizer
from vocabularies import published, vocabulary_file

Make = Callable[[Path], tokenizers.Tokenizer]
VOCABULARY = 700  # rows of the embedding table: more than there are tokens
MIXED = [*TEXTS, *(a + b for a in TEXTS for b in ("<|im_end|>x", "<s>y", "</s> z", "<tool_call> u", "[TOOL]v"))]


def spm(prefix: str) -> Make:
    def make(folder: Path) -> tokenizers.Tokenizer:
        model = sentencepiece_model(folder / "m.model", add_dummy_prefix=prefix != "none")
        return tokenizer_from_sentencepiece(model, prefix)

    return make


def with_strippers(folder: Path) -> tokenizers.Tokenizer:
    tokenizer = train_byte_level([split(LLAMA3)])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True)])
    tokenizer.add_tokens([AddedToken("<s>", special=False, normalized=False, lstrip=True)])
    return tokenizer


# How a tokenizer is made, and the name that its way to split text has.
TOKENIZERS: dict[str, tuple[Make, str]] = {
    "gpt-2": (lambda folder: train_byte_level([]), "gpt-2"),
    "smollm": (lambda folder: train_byte_level([pre_tokenizers.Digits(individual_digits=True)]), "smollm"),
    "llama-3": (lambda folder: train_byte_level([split(LLAMA3)], ignore_merges=True, bos="<|begin|>"), "llama-bpe"),
    "dbrx": (lambda folder: train_byte_level([split(LLAMA3)]), "dbrx"),
    "qwen2": (lambda folder: train_byte_level([split(QWEN2)], normalizer=normalizers.NFC()), "qwen2"),
    "gpt-4o": (lambda folder: train_byte_level([split(GPT4O)]), "gpt-4o"),
    "tekken": (lambda folder: train_byte_level([split(TEKKEN)], ignore_merges=True), "tekken"),
    "strippers": (with_strippers, "dbrx"),
    "llama-2": (spm("every"), "default"),
    "mistral": (spm("first"), "default"),
    "gemma": (spm("none"), "default"),
}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[tokenizers.Tokenizer, Path]]:
    """Tokenizers by name, with the folder where they are saved; made once."""
    done: dict[str, tuple[tokenizers.Tokenizer, Path]] = {}

    def make(name: str) -> tuple[tokenizers.Tokenizer, Path]:
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            tokenizer = TOKENIZERS[name][0](folder)
            tokenizer.save(str(folder / "tokenizer.json"))
            done[name] = tokenizer, folder
        return done[name]

    return make


Made = Callable[[str], tuple[tokenizers.Tokenizer, Path]]


def ours(folder: Path) -> Tokenizer:
    return load_tokenizer(read_vocabulary(folder, {}, VOCABULARY))


def pieces(tokenizer: tokenizers.Tokenizer, ids: list[int]) -> list[str | None]:
    return [tokenizer.id_to_token(i) for i in ids]


# ---- the same tokens -----------------------------------------------------------------------------------------------


@each_tokenizer
def test_tokens_are_those_of_the_library(name: str, made: Made) -> None:
    theirs, folder = made(name)
    tokenizer = ours(folder)
    for text in MIXED:
        for special in (True, False):
            expected = theirs.encode(text, add_special_tokens=special).ids
            found = list(tokenizer.encode(text, add_special=special, parse_special=True))
            assert pieces(theirs, found) == pieces(theirs, expected), text
            shown = theirs.decode(expected, skip_special_tokens=True)
            assert tokenizer.decode(found, skip_special=True) == shown, text


ALPHABET = "aAbeEnt'sSTR 012\n\t\r.,!/é\u0301ﬁßЖ漢字🙂▁_[]<>|\u00a0\u200b"


@each_tokenizer
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from(ALPHABET) | st.characters(exclude_categories=["Cs"]), max_size=30))
def test_tokens_of_any_text(name: str, made: Made, text: str) -> None:
    theirs, folder = made(name)
    tokenizer = CACHE.setdefault(name, ours(folder))
    expected = theirs.encode(text).ids
    found = list(tokenizer.encode(text, add_special=True, parse_special=True))
    assert pieces(theirs, found) == pieces(theirs, expected)


CACHE: dict[str, Tokenizer] = {}


@each_tokenizer
def test_how_text_is_split_is_recognized(name: str, made: Made) -> None:
    _, folder = made(name)
    metadata = read_vocabulary(folder, {}, VOCABULARY)
    assert metadata["tokenizer.ggml.pre"] == TOKENIZERS[name][1]
    assert metadata["tokenizer.ggml.model"] == ("llama" if TOKENIZERS[name][1] == "default" else "gpt2")


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_model_alone(prefix: bool, tmp_path: Path) -> None:
    import sentencepiece

    path = sentencepiece_model(tmp_path / "tokenizer.model", add_dummy_prefix=prefix)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = ours(tmp_path)
    assert tokenizer.add_bos
    for text in TEXTS:
        assert list(tokenizer.encode(text, add_special=False, parse_special=False)) == theirs.encode(text), text
    model = read_sentencepiece(path)
    assert len(model.pieces) == theirs.get_piece_size()
    for i, (text, score, kind) in enumerate(model.pieces):
        assert (text, score) == (theirs.id_to_piece(i), theirs.get_score(i))
        assert (kind == CONTROL, kind == UNKNOWN, kind == BYTE) == (
            theirs.is_control(i),
            theirs.is_unknown(i),
            theirs.is_byte(i),
        )


def test_a_sentencepiece_model_and_its_tokenizer_json_say_the_same(made: Made, tmp_path: Path) -> None:
    """Scores from merges differ from those of the model by a scale, and order the same."""
    _, folder = made("llama-2")
    (tmp_path / "tokenizer.model").write_bytes((folder / "m.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "unk_token": "<unk>"}))
    one, other = read_vocabulary(folder, {}, VOCABULARY), read_vocabulary(tmp_path, {}, VOCABULARY)
    for key in ("tokens", "token_type", "add_space_prefix", "bos_token_id", "add_bos_token"):
        found, expected = other[f"tokenizer.ggml.{key}"], one[f"tokenizer.ggml.{key}"]
        assert (list(found), list(expected)) if hasattr(found, "__len__") else (found, expected) and found == expected
    for text in TEXTS:
        ids = [list(load_tokenizer(m).encode(text, add_special=True, parse_special=True)) for m in (one, other)]
        assert ids[0] == ids[1], text


@pytest.mark.parametrize(("name", "pattern"), [("gpt-2", ""), ("qwen2", QWEN2), ("llama-spm", "")])
def test_published_vocabularies(name: str, pattern: str, tmp_path: Path) -> None:
    """Large ones, from the GGUF files that others made of them."""
    path = vocabulary_file(name)
    metadata = open_gguf(path).metadata
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(metadata, pattern)))
    count = len(metadata["tokenizer.ggml.tokens"])
    found = read_vocabulary(tmp_path, {}, count)
    assert found["tokenizer.ggml.pre"] == ("default" if name == "llama-spm" else name)
    assert found["tokenizer.ggml.tokens"].first_difference(metadata["tokenizer.ggml.tokens"]) is None
    tokenizer = load_tokenizer(found)
    for text in path.with_name(f"{path.name}.inp").read_text().split("\n__ggml_vocab_test__\n"):
        expected = published(name).encode(text, add_special=False, parse_special=True)
        assert tokenizer.encode(text, add_special=False, parse_special=True) == expected


# ---- how pre-tokenizers are written ---------------------------------------------------------------------------------

# Patterns of published tokenizer.json files that no test above has, and the row that they are.
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def pre_tokenizer(*rules: str, **last: Any) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False} for rule in rules
    ]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False} | last)
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


@pytest.mark.parametrize(
    ("data", "whole_words", "expected"),
    [
        (pre_tokenizer(LLAMA3), True, "llama-bpe"),
        (pre_tokenizer(LLAMA3), False, "dbrx"),
        (pre_tokenizer(QWEN2), False, "qwen2"),
        (pre_tokenizer(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK3), False, "deepseek-v3"),
        (pre_tokenizer(use_regex=True), False, "gpt-2"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}}, False, "gpt-2"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}, False, "gpt-2"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, False, ""),
        ({}, False, ""),
    ],
)
def test_published_patterns_are_recognized(data: dict[str, Any], whole_words: bool, expected: str) -> None:
    assert name_of_split(data, whole_words, Path("x")) == (expected, expected != "")


def test_a_split_that_keeps_what_matches_is_the_same(made: Made) -> None:
    data = pre_tokenizer(LLAMA3)
    data["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}  # Phi-4, OLMo 2
    assert name_of_split(data, False, Path("x")) == ("dbrx", True)


# ---- special tokens ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(made: Made, tmp_path: Path) -> Path:
    """A byte-level tokenizer that a test may change."""
    _, source = made("gpt-2")
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return tmp_path


def write(folder: Path, name: str, **values: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(values))


def test_kinds_of_tokens(folder: Path, made: Made) -> None:
    theirs, _ = made("gpt-2")
    metadata = read_vocabulary(folder, {}, VOCABULARY)
    types = metadata["tokenizer.ggml.token_type"]
    assert types[theirs.token_to_id("<|im_end|>")] == CONTROL
    assert types[theirs.token_to_id("<tool_call>")] == USER_DEFINED
    assert len(types) == len(metadata["tokenizer.ggml.tokens"]) == VOCABULARY
    assert types[VOCABULARY - 1] == UNUSED
    assert metadata["tokenizer.ggml.tokens"][VOCABULARY - 1] == f"[PAD{VOCABULARY - 1}]"
    small = read_vocabulary(folder, {}, 3)
    assert len(small["tokenizer.ggml.tokens"]) == theirs.get_vocab_size(), "models/ says that these are too many"
    spm_types = read_vocabulary(made("llama-2")[1], {}, VOCABULARY)["tokenizer.ggml.token_type"]
    assert list(spm_types[:3]) == [UNKNOWN, CONTROL, CONTROL]
    assert BYTE in spm_types


def test_tokens_that_look_special_are_no_text(folder: Path) -> None:
    """Qwen's <|fim_prefix|> is not marked as special, but must not come from what a person types."""
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.add_tokens([AddedToken("<|fim_prefix|>", special=False, normalized=False)])
    theirs.save(str(folder / "tokenizer.json"))
    tokenizer = ours(folder)
    wanted = theirs.token_to_id("<|fim_prefix|>")
    assert list(tokenizer.encode("<|fim_prefix|>", add_special=False, parse_special=True)) == [wanted]
    assert wanted not in tokenizer.encode("<|fim_prefix|>", add_special=False, parse_special=False)


def test_special_tokens_by_text_and_by_number(folder: Path) -> None:
    write(folder, "tokenizer_config", bos_token="<|begin|>", pad_token={"content": "<tool_call>"})
    write(folder, "special_tokens_map", eos_token={"content": "<|im_end|>"}, bos_token="<|im_start|>")
    metadata = read_vocabulary(folder, {"eos_token_id": 5, "unk_token_id": 7, "mask_token_id": 10**6}, VOCABULARY)
    found = {key: value for key, value in metadata.items() if key.endswith("_token_id")}
    tokens = {kind: metadata["tokenizer.ggml.tokens"][i] for kind, i in found.items()}
    assert tokens["tokenizer.ggml.bos_token_id"] == "<|begin|>"
    assert tokens["tokenizer.ggml.eos_token_id"] == "<|im_end|>"
    assert tokens["tokenizer.ggml.padding_token_id"] == "<tool_call>"
    assert found["tokenizer.ggml.unknown_token_id"] == 7
    assert "tokenizer.ggml.mask_token_id" not in found
    assert metadata["tokenizer.ggml.add_bos_token"] is False


def test_every_end_that_generation_config_names_ends_an_answer(folder: Path) -> None:
    write(folder, "tokenizer_config", eos_token="<|begin|>")
    write(folder, "generation_config", eos_token_id=[11, 12, 10**6, 0])
    tokenizer = ours(folder)
    assert tokenizer.stop_ids >= {0, 11, 12}
    assert tokenizer.eos_id == 0
    assert 13 not in tokenizer.stop_ids
    (folder / "generation_config.json").unlink()
    assert load_tokenizer(read_vocabulary(folder, {"eos_token_id": [13, 14]}, VOCABULARY)).stop_ids >= {0, 13, 14}


@pytest.mark.parametrize(
    ("template", "setting", "expected"),
    [
        (["<|begin|>", "$A"], None, (True, False)),
        (["$A", "<|im_end|>"], None, (False, True)),
        (["<|begin|>", "$A", "<|im_end|>"], False, (True, True)),
        (["$A"], True, (False, False)),
        (None, True, (True, False)),
        (None, False, (False, False)),
        (None, None, (False, False)),
    ],
)
def test_what_is_put_around_a_text(
    folder: Path, template: list[str] | None, setting: bool | None, expected: tuple[bool, bool]
) -> None:
    if template is not None:
        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = [(t, theirs.token_to_id(t)) for t in template if t != "$A"]
        theirs.post_processor = tokenizers.processors.TemplateProcessing(
            single=" ".join(template), pair="$A $B:1", special_tokens=names
        )
        theirs.save(str(folder / "tokenizer.json"))
    more = {} if setting is None else {"add_bos_token": setting}
    write(folder, "tokenizer_config", bos_token="<|begin|>", eos_token="<|im_end|>", **more)
    metadata = read_vocabulary(folder, {}, VOCABULARY)
    assert (metadata["tokenizer.ggml.add_bos_token"], metadata["tokenizer.ggml.add_eos_token"]) == expected


# ---- templates and sampling ----------------------------------------------------------------------------------------


def test_where_chat_templates_are_found(folder: Path) -> None:
    key = "tokenizer.chat_template"
    assert key not in read_vocabulary(folder, {}, VOCABULARY)
    write(folder, "chat_template", chat_template="from its own json")
    assert read_vocabulary(folder, {}, VOCABULARY)[key] == "from its own json"
    write(folder, "tokenizer_config", chat_template="from the settings")
    assert read_vocabulary(folder, {}, VOCABULARY)[key] == "from the settings"
    several = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}, {"name": "broken"}]
    write(folder, "tokenizer_config", chat_template=several)
    found = read_vocabulary(folder, {}, VOCABULARY)
    assert (found[key], found[f"{key}.tool_use"]) == ("one", "two")
    (folder / "chat_template.jinja").write_text("from its own file: é", encoding="utf-8")
    assert read_vocabulary(folder, {}, VOCABULARY)[key] == "from its own file: é"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"chat_template\.jinja cannot be read"):
        read_vocabulary(folder, {}, VOCABULARY)


def test_recommended_sampling(folder: Path) -> None:
    numbers = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
    write(folder, "generation_config", do_sample=True, **numbers)
    metadata = read_vocabulary(folder, {}, VOCABULARY)
    found = {key.removeprefix("general.sampling."): value for key, value in metadata.items() if "sampling" in key}
    assert found == pytest.approx({"temp": 0.6, "top_k": 20, "top_p": 0.95, "penalty_repeat": 1.05})
    assert isinstance(found["top_k"], int)
    write(folder, "generation_config", do_sample=False, **numbers)
    assert not any("sampling" in key for key in read_vocabulary(folder, {}, VOCABULARY))


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path, {}, VOCABULARY) == {}


# ---- what is refused -----------------------------------------------------------------------------------------------


def changed(path: Path, *place: str | int, to: Any) -> None:
    """Sets one value in a JSON file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = to
    path.write_text(json.dumps(data), encoding="utf-8")


_OTHER_SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("name", "place", "value", "error", "words"),
    [
        ("gpt-2", ("model", "type"), "WordLevel", UnsupportedError, "type 'WordLevel'"),
        ("gpt-2", ("model", "vocab"), [["a", 0.0]], UnsupportedError, "type 'BPE'"),
        ("gpt-2", ("model", "vocab"), 3, FormatError, r"model\.vocab is missing"),
        ("gpt-2", ("model", "vocab", "a"), "x", FormatError, "token 'a' has the id 'x'"),
        ("gpt-2", ("model", "vocab", "a"), 2**40, FormatError, "token 'a' has the id"),
        ("gpt-2", ("model", "vocab", "a"), -1, FormatError, "token 'a' has the id"),
        ("gpt-2", ("model", "vocab", "a"), 4, FormatError, "have the same id 4"),
        ("gpt-2", ("model", "vocab", "\ud800"), 650, FormatError, "is no text"),
        ("gpt-2", ("model", "dropout"), 0.1, UnsupportedError, "dropout 0.1"),
        ("gpt-2", ("model", "end_of_word_suffix"), "</w>", UnsupportedError, "end_of_word_suffix"),
        ("gpt-2", ("model", "merges"), None, FormatError, r"model\.merges is missing"),
        ("gpt-2", ("model", "merges", 0), "a b c", FormatError, "is no pair of tokens"),
        ("gpt-2", ("model", "merges", 0), [1, 2], FormatError, "is no pair of tokens"),
        ("gpt-2", ("added_tokens",), {}, FormatError, "added_tokens should be a list"),
        ("gpt-2", ("added_tokens", 0), 3, FormatError, "should have an id and a content"),
        ("gpt-2", ("added_tokens", 0, "id"), "0", FormatError, "should have an id and a content"),
        ("gpt-2", ("added_tokens", 0, "id"), 7, FormatError, "have the same id 7"),
        ("gpt-2", ("added_tokens", 0, "single_word"), True, UnsupportedError, "for whole words"),
        ("gpt-2", ("normalizer",), {"type": "Lowercase"}, UnsupportedError, "Lowercase"),
        ("gpt-2", ("pre_tokenizer", "pretokenizers"), 3, FormatError, "list of objects"),
        (
            "gpt-2",
            ("pre_tokenizer", "pretokenizers", 0, "add_prefix_space"),
            True,
            UnsupportedError,
            "add_prefix_space",
        ),
        ("llama-3", ("pre_tokenizer", "pretokenizers", 0), _OTHER_SPLIT, UnsupportedError, "does not know"),
        ("llama-3", ("pre_tokenizer", "pretokenizers", 0, "behavior"), "Removed", UnsupportedError, "'Split'"),
        ("llama-3", ("pre_tokenizer", "pretokenizers", 0, "type"), "BertPreTokenizer", UnsupportedError, "BertPre"),
        ("llama-3", ("post_processor", "single"), [{"Sequence": {}}] * 2, FormatError, "2 places for the text"),
        ("llama-3", ("post_processor", "single", 0), 3, FormatError, "post-processor's template has '3'"),
        ("llama-3", ("post_processor", "type"), "BertProcessing", UnsupportedError, "BertProcessing"),
        (
            "llama-3",
            ("post_processor", "single", 0, "SpecialToken", "id"),
            "<|absent|>",
            UnsupportedError,
            "around every text is not supported",
        ),
        ("llama-2", ("model", "merges", 0), ["▁", "zz"], FormatError, "is merged, but no token"),
        ("llama-2", ("normalizer", "normalizers", 0), {"type": "NFKC"}, UnsupportedError, "NFKC"),
        ("llama-2", ("normalizer",), None, UnsupportedError, r"does not write spaces as U\+2581"),
        ("mistral", ("pre_tokenizer", "replacement"), "_", UnsupportedError, "Metaspace"),
        ("mistral", ("pre_tokenizer",), {"type": "Whitespace"}, UnsupportedError, "Whitespace"),
    ],
)
def test_what_would_not_be_exact_is_refused(
    name: str, place: tuple[str | int, ...], value: Any, error: type[Exception], words: str, made: Made, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes((made(name)[1] / "tokenizer.json").read_bytes())
    changed(path, *place, to=value)
    with pytest.raises(error, match=words):
        read_vocabulary(tmp_path, {}, VOCABULARY)


@pytest.mark.parametrize("change", ["one pair less", "in another order"])
def test_merges_that_scores_cannot_say_are_refused(change: str, made: Made, tmp_path: Path) -> None:
    data = json.loads((made("llama-2")[1] / "tokenizer.json").read_text())
    merges = data["model"]["merges"]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in merges]
    twice = next(i for i in range(1, len(pairs)) if "".join(pairs[i]) == "".join(pairs[i - 1]))
    if change == "one pair less":
        del merges[twice]
    else:
        merges.append(merges.pop(twice))
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(UnsupportedError, match="no SentencePiece model has made"):
        read_vocabulary(tmp_path, {}, VOCABULARY)


HOSTILE = (None, 0, -1, 2**63, 1.5, "", "x", "\ud800", [], [1], [[]], {}, {"type": "Sequence"}, True)


@pytest.mark.parametrize("name", ["llama-3", "llama-2", "mistral"])
def test_no_value_does_worse_than_an_error(name: str, made: Made, tmp_path: Path) -> None:
    data = json.loads((made(name)[1] / "tokenizer.json").read_text())
    data["model"]["merges"] = []  # else each try takes long
    data["model"]["vocab"] = {k: i for k, i in data["model"]["vocab"].items() if len(k) == 1 or "<" in k}
    path = tmp_path / "tokenizer.json"
    places: list[tuple[str | int, ...]] = []

    def collect(value: Any, place: tuple[str | int, ...]) -> None:
        places.append(place)
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in list(keys)[:8]:
            collect(value[key], (*place, key))

    for key in data:
        collect(data[key], (key,))
    source = random.Random(20240607)
    for place in places:
        for value in source.sample(HOSTILE, 2):
            inner, kept = data, None
            for key in place[:-1]:
                inner = inner[key]
            kept = inner[place[-1]]
            inner[place[-1]] = value
            path.write_text(json.dumps(data))
            inner[place[-1]] = kept
            with suppress(LocalInferError):
                load_tokenizer(read_vocabulary(tmp_path, {}, 0))


@pytest.mark.parametrize("file", ["tokenizer_config", "generation_config", "special_tokens_map", "chat_template"])
def test_no_value_of_a_smaller_file_does_worse_either(file: str, folder: Path) -> None:
    keys = (
        "bos_token",
        "eos_token",
        "add_bos_token",
        "chat_template",
        "eos_token_id",
        "do_sample",
        "temperature",
        "top_k",
    )
    for key in keys:
        for value in HOSTILE:
            write(folder, file, **{"do_sample": True, key: value})
            with suppress(LocalInferError):
                load_tokenizer(read_vocabulary(folder, {key: value}, VOCABULARY))


def test_damaged_sentencepiece_models_are_refused(made: Made, tmp_path: Path) -> None:
    good = (made("llama-2")[1] / "m.model").read_bytes()
    path = tmp_path / "tokenizer.model"
    source = random.Random(20240607)
    for size in source.sample(range(len(good)), 60):
        path.write_bytes(good[:size])
        with suppress(LocalInferError):  # a model that ends after a piece is a smaller one
            ours(tmp_path)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(source.randrange(1, 5)):
            data[source.randrange(len(data))] = source.randrange(256)
        path.write_bytes(data)
        with suppress(LocalInferError):
            read_sentencepiece(path)
    for data, words in (
        (b"", "it has no pieces"),
        (b"\xff" * 11, "more than ten bytes"),
        (b"\x0a\x7f", "runs past the end"),
        (b"\x0b", "unknown kind 3"),
        (b"\x08\x01", "a number where"),
        (b"\x0a\x02\x18\x09", "a piece of type 9"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=words):
            read_sentencepiece(path)
    with pytest.raises(LocalInferError, match="cannot read"):
        read_sentencepiece(tmp_path / "absent")


def test_other_sentencepiece_models_are_refused(tmp_path: Path) -> None:
    piece = b"\x0a\x03\x0a\x01a"
    for data, words in (
        (piece + b"\x12\x02\x18\x01", "does not merge pairs"),
        (piece + b"\x12\x02\x18\x02" + b"\x1a\x02\x20\x01", "normalizes text"),
        (piece + b"\x12\x02\x18\x02" + b"\x1a\x05\x20\x00\x12\x01x", "normalizes text"),
    ):
        (tmp_path / "tokenizer.model").write_bytes(data)
        with pytest.raises(UnsupportedError, match=words):
            ours(tmp_path)
