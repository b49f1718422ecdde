"""Models of a hub, by name: what is chosen, kept, found again and deleted."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_server import Cut, HubServer, Refusal, Repository, running
from localinfer.cli.main import execute
from localinfer.cli.progress import TerminalReport
from localinfer.errors import LocalInferError
from localinfer.hub import store, transfer
from localinfer.hub.cache import cache_folder
from localinfer.hub.choice import candidates, choose, quant_of
from localinfer.hub.collect import collect
from localinfer.hub.estimate import estimate
from localinfer.hub.folders import models_folder
from localinfer.hub.listing import Listing, RepoFile
from localinfer.hub.lock import locked_file
from localinfer.hub.pull import pull
from localinfer.hub.reference import Reference, parse_hub_url, parse_reference
from localinfer.hub.repository import plan_reference
from reports import Lines
from scripted_model import write_scripted_model

GB = 10**9
NAME = "some/model-GGUF"
A, B = "1" * 40, "2" * 40


def weights(seed: int, size: int = 300_000) -> bytes:
    return b"GGUF" + random.Random(seed).randbytes(size)


def gguf_repository(**more: Any) -> Repository:
    files = {
        f"model-{quant}.gguf": weights(number, 300_000 + number)
        for number, quant in enumerate(("Q4_K_M", "Q8_0", "F16"))
    }
    return Repository({"README.md": b"about", **files}, **more)


SAFETENSORS = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}" * 2000,
    "tokenizer_config.json": b"{}",
    "model.safetensors": weights(9),
    "pytorch_model.bin": weights(8),
    "modeling_own.py": b"import os",
    "original/consolidated.safetensors": weights(7),
    "README.md": b"about",
}


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer({NAME: gguf_repository(), "some/folder": Repository(dict(SAFETENSORS))})
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(transfer, "LONGEST_WAIT", 0.02)
    with running(server):
        yield server


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("something local opens a socket")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, forbidden)


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", Reference("owner/name")),
        ("owner/name:Q4_K_M", Reference("owner/name", "Q4_K_M")),
        ("owner/na.me-1:UD-Q4_K_XL@v1.0", Reference("owner/na.me-1", "UD-Q4_K_XL", "v1.0")),
        ("owner/name@refs/pr/1", Reference("owner/name", "", "refs/pr/1")),
        ("owner/name:model.Q8_0.gguf", Reference("owner/name", "model.Q8_0.gguf")),
        ("smollm2:135m", None),
        ("folder/model.gguf", None),
        ("./owner/name", None),
        ("../name", None),
        ("/owner/name", None),
        ("a/b/c", None),
        ("owner/..", None),
        ("owner--x/name", None),
        ("owner/name:", None),
        ("owner/name@", None),
        ("owner/name@../../x", None),
        ("öwner/name", None),
        ("owner/name\n", None),
    ],
)
def test_references(text: str, expected: Reference | None) -> None:
    assert parse_reference(text) == expected
    if expected:
        assert str(expected) == text


def test_addresses_at_the_hub_are_references(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "https://huggingface.co/owner/name"
    assert parse_hub_url(home) == Reference("owner/name")
    assert parse_hub_url(f"{home}/blob/main/a/m%20x.gguf?download=true") == Reference("owner/name", "a/m x.gguf")
    assert parse_hub_url(f"{home}/resolve/v1/m.gguf") == Reference("owner/name", "m.gguf", "v1")
    assert parse_hub_url("https://example.org/owner/name/resolve/main/m.gguf") is None
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror:1")
    assert parse_hub_url("http://mirror:1/owner/name/resolve/main/m.gguf") == Reference("owner/name", "m.gguf")


def test_names_have_folders_of_their_own() -> None:
    names = ["a/b", "a/b:c", "a/b@c", "a/b:c@d", "a-b:c", "a/b-c", "a/b@c/d", "a/b@c-d", "a--b", "a:b"]
    folders = [store.folder_of(name) for name in names]
    assert len(set(folders)) == len(names) - 1, "a:b is a--b, which no hub allows"
    assert all(folder.parent == models_folder() for folder in folders)


# --- what is chosen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gemma-3-270m-q4_k_m.gguf", "Q4_K_M"),
        ("Llama-3.2-1B-Instruct-IQ3_XXS.gguf", "IQ3_XXS"),
        ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Q5_K_S/big-Q5_K_S-00001-of-00003.gguf", "Q5_K_S"),
        ("BF16/big-00001-of-00002.gguf", "BF16"),
        ("Qwen2.5-0.5B-fp16.gguf", "F16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("model-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("ggml-model-f32.gguf", "F32"),
        ("model-TQ2_0.gguf", "TQ2_0"),
        ("Mistral-7B-v0.3.gguf", ""),
        ("Q8-lovers-club.gguf", ""),
    ],
)
def test_the_quantization_is_read_from_the_name(file: str, quant: str) -> None:
    assert quant_of(file) == quant


def listing(sizes: dict[str, int], parameters: int = 8 * GB) -> Listing:
    files = tuple(RepoFile(path, size, f"sha256:{number:064x}") for number, (path, size) in enumerate(sizes.items()))
    return Listing("some/model", A, "main", files, parameters=parameters)


EIGHT_B = {
    "m-F16.gguf": 16 * GB,
    "m-Q8_0.gguf": 8_500_000_000,
    "m-Q6_K.gguf": 6_600_000_000,
    "m-Q4_K_M.gguf": 4_900_000_000,
    "m-IQ2_M.gguf": 2_900_000_000,
    "mmproj-F16.gguf": GB,
    "m.imatrix.gguf": 1000,
}


@pytest.mark.parametrize(
    ("memory", "label", "why"),
    [
        (None, "Q8_0", "the nearest to the original of 5, and it fits"),
        (64 * GB, "Q8_0", "16 bits and more take twice the memory"),
        (8 * GB, "Q6_K", "the largest of 5 that fits: Q8_0 would take 9.6 GB, 8.0 GB are free"),
        (7 * GB, "Q4_K_M", "Q6_K would take 7.7 GB, 7.0 GB are free"),
        (2 * GB, "IQ2_M", "the smallest of 5, and still too large for this machine"),
    ],
)
def test_the_best_that_fits_is_chosen_and_said_why(memory: int | None, label: str, why: str) -> None:
    found = choose(listing(EIGHT_B), "", memory)
    assert found.candidate.label == label
    assert why in found.why


def test_what_is_asked_for_is_taken_by_any_of_its_names() -> None:
    names = listing(EIGHT_B)
    for wanted in ("q4_k_m", "Q4_K_M", "m-Q4_K_M.gguf", "m-q4_k_m"):
        assert choose(names, wanted, GB).candidate.label == "Q4_K_M"
    with pytest.raises(LocalInferError, match="some/model has no Q4_K_S") as caught:
        choose(names, "Q4_K_S", None)
    assert "did you mean Q4_K_M" in caught.value.hint
    assert "IQ2_M" in caught.value.hint


def test_several_models_of_one_type_are_told_apart_by_file() -> None:
    files = listing({"small-Q8_0.gguf": GB, "large-Q8_0.gguf": 2 * GB, "plain.gguf": 3 * GB})
    assert {each.label for each in candidates(files.files)} == {"small-Q8_0", "large-Q8_0", "plain"}
    with pytest.raises(LocalInferError, match="2 models of Q8_0") as caught:
        choose(files, "Q8_0", None)
    assert "some/model:small-Q8_0" in caught.value.hint
    assert choose(files, "small-q8_0", None).candidate.size == GB


def test_parts_go_together() -> None:
    parts = {f"Q8_0/m-Q8_0-{number:05}-of-00003.gguf": GB for number in (2, 1, 3)}
    (found,) = candidates(listing(parts).files)
    assert found.label == "Q8_0"
    assert [file.path[-14:-5] for file in found.files] == [f"{number}-of-00003"[-9:] for number in (1, 2, 3)]
    parts.popitem()
    with pytest.raises(LocalInferError, match="comes in 3 parts, of which the repository has only 2"):
        candidates(listing(parts).files)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "pytorch_model.bin", "modeling.py"], "only as pytorch_model.bin: such files run code"),
        (["a.pt", "b.ckpt", "c.pth", "d.pkl"], r"only as a\.pt, b\.ckpt, c\.pth and more"),
        (["adapter.safetensors"], r"no config\.json beside them"),
        (["README.md"], "neither GGUF nor safetensors"),
        ([], "neither GGUF nor safetensors"),
    ],
)
def test_what_cannot_be_opened_safely_is_not_fetched(files: list[str], message: str) -> None:
    with pytest.raises(LocalInferError, match=message) as caught:
        choose(listing(dict.fromkeys(files, 1000)), "", None)
    assert "localinfer search model" in caught.value.hint


def test_weights_that_are_there_twice_are_fetched_once() -> None:
    shards = {f"model-0000{number}-of-00002.safetensors": GB for number in (1, 2)}
    both = {"config.json": 1, "consolidated.safetensors": GB, "model.safetensors": GB, **shards}

    def fetched(files: dict[str, int]) -> set[str]:
        (found,) = candidates(listing(files).files)
        return {file.path for file in found.files if file.path.endswith(".safetensors")}

    assert fetched({**both, "model.safetensors.index.json": 1}) == set(shards)
    assert fetched(both) == {"model.safetensors"}
    assert fetched({"config.json": 1, "consolidated.safetensors": 1, **shards}) == set(shards)
    assert fetched({"config.json": 1, "weights.safetensors": 1}) == {"weights.safetensors"}
    shards.popitem()
    with pytest.raises(LocalInferError, match="comes in 2 parts, of which the repository has only 1"):
        fetched({"config.json": 1, **shards})


@pytest.mark.parametrize(
    ("parameters", "kv"), [(1.2e9, 32 << 10), (8e9, 128 << 10), (32e9, 256 << 10), (70e9, 320 << 10)]
)
def test_keys_and_values_are_estimated_within_half(parameters: float, kv: int) -> None:
    """Of Llama 3.2 1B, Llama 3 8B, Qwen 2.5 32B, Llama 3 70B: layers x heads x head size x 2 x 2 bytes a token."""
    found = estimate(0, int(parameters))
    assert 0.66 < found.kv / (kv * found.context) < 1.6
    assert estimate(0, int(parameters), 2048).context == 2048


# --- what is installed -------------------------------------------------------------------------------------------


def test_a_model_is_used_where_the_hubs_cache_has_it(hub: HubServer, hub_cache: Path) -> None:
    report = Lines()
    model = pull(NAME, report=report, memory=GB)
    assert model.name == f"{NAME}:Q8_0"
    assert model.path == hub_cache / "models--some--model-GGUF" / "snapshots" / A / "model-Q8_0.gguf"
    for name in (model.name, NAME, NAME.upper(), f"{NAME}:q8_0"):
        assert store.resolve(name) == model.path
    assert (model.licence, model.revision) == ("apache-2.0", A)
    assert model.sha256 == hashlib.sha256(weights(1, 300_001)).hexdigest()
    assert report.said[0].startswith(f"{NAME}:Q8_0: 0.3 MB in 1 file, 0.3 MB to fetch (the nearest to the original")
    assert report.said[1] == f"licence: apache-2.0; revision {A[:12]}"
    assert report.said[2].startswith("memory: about 0.1 GB with a context of 8192 tokens; 1.0 GB are free")
    assert (store.folder_of(model.name) / store.LINK).is_symlink()
    assert not list(models_folder().rglob("*.gguf")), "no second copy"
    assert store.installed().models == [model]
    before = len(hub.asked("/storage"))
    assert pull(NAME, memory=GB)._replace(time="") == model._replace(time="")
    assert len(hub.asked("/storage")) == before
    pull(f"{NAME}:Q4_K_M")
    with pytest.raises(LocalInferError, match="may be one of 2 models"):
        store.resolve(NAME)


def test_other_programs_find_it(hub: HubServer) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache

    path = pull(f"{NAME}:Q4_K_M").path
    assert try_to_load_from_cache(NAME, "model-Q4_K_M.gguf") == str(path)
    before = len(hub.asked("/storage"))
    assert hf_hub_download(NAME, "model-Q4_K_M.gguf", endpoint=hub.url) == str(path)
    assert len(hub.asked("/storage")) == before
    found = scan_cache_dir()
    assert not found.warnings
    assert [(repo.repo_id, repo.size_on_disk) for repo in found.repos] == [(NAME, len(weights(0)))]


def test_what_other_programs_fetched_is_used_and_stays(hub: HubServer) -> None:
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download(NAME, "model-Q4_K_M.gguf", endpoint=hub.url))
    before = len(hub.asked("/storage"))
    assert pull(f"{NAME}:Q4_K_M").path == path
    assert len(hub.asked("/storage")) == before
    removed = store.remove(f"{NAME}:Q4_K_M")
    assert removed.freed < 2000
    assert removed.kept == path.stat().st_size


def test_a_folder_of_safetensors_has_what_it_needs_and_no_code(hub: HubServer) -> None:
    model = pull("some/folder")
    assert model.name == "some/folder"
    assert store.resolve("some/folder") == model.path
    names = {path.name for path in model.path.rglob("*")}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    for name in names:
        assert (model.path / name).read_bytes() == SAFETENSORS[name]
    assert store.is_model_folder(model.path)
    fetched = {each.path.rpartition("/")[2] for each in hub.asked("/resolve")}
    assert fetched == names
    store.remove("some/folder")
    assert not list(cache_folder().glob("models--*"))


def test_all_parts_of_a_split_file_are_there(hub: HubServer) -> None:
    names = [f"Q8_0/m-Q8_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repositories["some/split"] = Repository({name: weights(n, 50_000) for n, name in enumerate(names)})
    model = pull("some/split")
    assert model.path.name == "m-Q8_0-00001-of-00003.gguf"
    assert sorted(path.name for path in model.path.parent.iterdir()) == [name[5:] for name in names]
    assert model.size == 3 * 50_004
    assert model.sha256 == ""
    assert store.resolve("some/split") == model.path


def test_a_revision_is_part_of_the_name(hub: HubServer) -> None:
    hub.repositories[NAME].revisions = ("main", "v1", "refs/pr/1")
    model = pull(f"{NAME}:Q4_K_M@v1")
    assert model.name == f"{NAME}:Q4_K_M@v1"
    assert (cache_folder() / "models--some--model-GGUF" / "refs" / "v1").read_text() == A
    assert pull(f"{NAME}:Q4_K_M@refs/pr/1").path == model.path
    asked = len(hub.requests)
    assert pull(f"{NAME}:Q4_K_M@{A}").revision == A
    assert len(hub.requests) > asked
    asked = len(hub.requests)
    pull(f"{NAME}@{A}")
    assert len(hub.requests) == asked, "a commit that is installed cannot have changed"


def test_a_newer_version_replaces_the_older_and_gc_frees_it(hub: HubServer) -> None:
    name = f"{NAME}:Q4_K_M"
    old = pull(name).path
    files = {**hub.repositories[NAME].files, "model-Q4_K_M.gguf": weights(77)}
    hub.repositories[NAME] = Repository(files, commit=B)
    report = Lines()
    model = pull(name, report=report)
    assert (model.revision, model.path.read_bytes()) == (B, weights(77))
    assert "the version before still takes 0.3 MB" in report.said[-1]
    assert old.exists()
    found = collect(remove=False)
    assert [(each.what, each.size // 100_000) for each in found] == [("replaced version", 3)]
    assert old.exists()
    assert collect()[0].size > 300_000
    assert not old.exists()
    assert model.path.exists()
    assert collect() == []


def test_a_file_that_a_newer_version_still_has_is_not_fetched_again(hub: HubServer) -> None:
    pull(f"{NAME}:Q4_K_M")
    hub.repositories[NAME] = Repository(dict(hub.repositories[NAME].files), commit=B)
    model = pull(f"{NAME}:Q4_K_M")
    assert model.revision == B
    assert len(hub.asked("/storage")) == 1
    collect()
    assert model.path.read_bytes() == weights(0)
    assert store.remove(model.name).freed > 300_000
    assert not list(cache_folder().glob("models--*"))


def test_models_that_share_a_file_can_be_removed_apart(hub: HubServer) -> None:
    hub.repositories[NAME].revisions = ("main", "v1")
    first, second = pull(f"{NAME}:Q4_K_M"), pull(f"{NAME}:Q4_K_M@v1")
    assert first.path == second.path
    removed = store.remove(first.name)
    assert (removed.freed < 2000, removed.kept) == (True, first.size)
    assert store.resolve(second.name).read_bytes() == weights(0)
    assert store.remove(second.name).freed > first.size
    assert not first.path.exists()


def test_gc_takes_what_was_not_finished_unless_somebody_is_at_it(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.cuts.extend([Cut(100_000), *[Cut(0)] * transfer.FRUITLESS_TRIES])
    with pytest.raises(LocalInferError, match="broke off"):
        pull(f"{NAME}:Q4_K_M")
    assert store.unfinished() == [f"{NAME}:Q4_K_M"]
    assert execute(["list"]) == 0
    assert f"not finished: {NAME}:Q4_K_M (localinfer pull {NAME}:Q4_K_M goes on" in capsys.readouterr().err
    (partial,) = cache_folder().rglob("*.incomplete")
    other = partial.with_name(f"{'0' * 64}.abcdef12.incomplete")  # as huggingface_hub names its own
    other.write_bytes(b"?")
    lock = cache_folder() / ".locks" / "models--some--model-GGUF" / f"{partial.name.partition('.')[0]}.lock"
    with locked_file(lock, lambda: None):
        assert {each.path for each in collect(remove=False)} >= {other}
        assert partial not in {each.path for each in collect(remove=False)}
    found = {each.path: each.size for each in collect()}
    assert found[partial] == 100_000
    assert not partial.exists()
    assert not other.exists()
    assert [path.name for path in models_folder().iterdir()] == []


def test_the_files_of_a_pull_that_was_given_up_are_known(hub: HubServer) -> None:
    """Two of four files came, and nobody wants the rest any more."""
    hub.cuts.extend([Cut(10**9, "")] * 2 + [Cut(0)] * (transfer.FRUITLESS_TRIES + 3))
    with pytest.raises(LocalInferError, match="broke off"):
        pull("some/folder")
    assert list(cache_folder().rglob("snapshots/*/config.json"))
    collect()
    assert not list(cache_folder().glob("models--*"))


# --- what cannot be had ------------------------------------------------------------------------------------------


def test_refusals_say_what_to_do(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["some/gated"] = gguf_repository(gated=True)
    with pytest.raises(LocalInferError, match="the hub has no repository some/absent, or it is private") as caught:
        pull("some/absent")
    assert "hf auth login" in caught.value.hint
    with pytest.raises(LocalInferError, match=f"{NAME} has no revision v9"):
        pull(f"{NAME}:Q4_K_M@v9")
    for token, status in (("", 401), ("bad", 403)):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(LocalInferError, match=f"some/gated/.* answers {status}") as caught:
            pull("some/gated:Q4_K_M")
        assert f"{hub.url}/some/gated says who may have it" in caught.value.hint
    monkeypatch.setenv("HF_TOKEN", "good")
    assert pull("some/gated:Q4_K_M").path.read_bytes() == weights(0)
    hub.refusals.append(Refusal("/api", 418))
    with pytest.raises(LocalInferError, match="answers 418"):
        pull("some/gated:Q8_0")


def test_a_private_repository_needs_the_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["some/private"] = gguf_repository(private=True)
    with pytest.raises(LocalInferError, match="or it is private"):
        pull("some/private:Q4_K_M")
    monkeypatch.setenv("HF_TOKEN", "good")
    assert pull("some/private:Q4_K_M").path.exists()


def test_a_hub_that_is_not_there_is_said_and_what_is_installed_is_used(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pull(f"{NAME}:Q4_K_M")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    report = Lines()
    assert pull(NAME, report=report) == model
    assert report.said[-1].endswith(f"{model.name} is installed, and may not be the latest")
    with pytest.raises(LocalInferError, match=r"http://127\.0\.0\.1:9 cannot be reached") as caught:
        pull("some/other")
    assert "localinfer list" in caught.value.hint
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull(NAME, report=report) == model
    with pytest.raises(LocalInferError, match="HF_HUB_OFFLINE is set"):
        pull("some/other")


def test_what_the_cache_has_is_installed_without_the_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import hf_hub_download, snapshot_download

    path = Path(hf_hub_download(NAME, "model-Q4_K_M.gguf", endpoint=hub.url))
    hf_hub_download("some/folder", "config.json", endpoint=hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    report = Lines()
    model = pull(NAME, report=report)
    assert (model.name, model.path, model.revision) == (f"{NAME}:Q4_K_M", path, A)
    assert "what the Hugging Face cache has is used" in report.said[0]
    with pytest.raises(LocalInferError, match="HF_HUB_OFFLINE is set"):
        pull(f"{NAME}:Q8_0")
    with pytest.raises(LocalInferError, match="HF_HUB_OFFLINE is set"):
        pull("some/folder")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    snapshot_download("some/folder", endpoint=hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull("some/folder").path.is_dir()
    assert {each.path.name for each in pull("some/folder").files} & {"pytorch_model.bin", "modeling_own.py"} == set()
    pull("some/folder", verify=True, report=report)
    assert any("model.safetensors has the expected sha256" in line for line in report.said)


def test_files_that_come_through_xet_only_are_said_to(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.hub.huggingface.RESPONSE_LIMIT", 1000)
    hub.refusals.append(Refusal("/storage", 400))
    with pytest.raises(LocalInferError, match="answers 400") as caught:
        pull(f"{NAME}:Q4_K_M")
    assert f"hf download {NAME} model-Q4_K_M.gguf" in caught.value.hint


def test_an_answer_that_is_no_json_is_no_traceback(hub: HubServer) -> None:
    hub.refusals.extend([Refusal("/api", 200)] * 5)
    with pytest.raises(LocalInferError, match="cannot be reached"):
        pull(NAME)


def test_names_of_files_that_lead_elsewhere_are_refused(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["some/evil"] = Repository({"../../../../evil-Q8_0.gguf": weights(1)})
    with pytest.raises(LocalInferError, match="which leads elsewhere"):
        pull("some/evil")
    assert not list(tmp_path.rglob("evil*"))


def test_too_little_space_is_said_before_anything_is_fetched(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000_000))
    with pytest.raises(LocalInferError, match=r"0\.1 GB free, but pulling some/model-GGUF:Q4_K_M takes 0\.0 GB"):
        pull(f"{NAME}:Q4_K_M")
    assert not hub.asked("/storage")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=101_000_000))
    pull(f"{NAME}:Q4_K_M")


def test_the_makers_quality_report_is_shown(hub: HubServer) -> None:
    report = {"quality": {"kl_mean": 0.01234, "top1": 0.97, "text": "default"}, "tensors": {}}
    hub.repositories[NAME].files["model-Q4_K_M.gguf.provenance.json"] = json.dumps(report).encode()
    hub.repositories[NAME].files["model-Q8_0.gguf.provenance.json"] = b"somebody else's"
    said = Lines()
    model = pull(f"{NAME}:Q4_K_M", report=said)
    assert "quality, as its maker measured it: kl_mean 0.01234, top1 0.97" in said.said
    assert model.path.with_name("model-Q4_K_M.gguf.provenance.json").exists()
    assert model.sha256 == hashlib.sha256(weights(0)).hexdigest()
    pull(f"{NAME}:Q8_0", report=said)


def test_what_cannot_be_run_is_said_before_it_is_fetched(hub: HubServer) -> None:
    hub.repositories[NAME].gguf = {"architecture": "brand-new", "total": GB, "context_length": 2048}
    hub.repositories["some/folder"].config = {"architectures": ["BrandNewForCausalLM"], "model_type": "new"}
    said = Lines()
    pull(f"{NAME}:Q4_K_M", report=said, runs={"llama"})
    pull("some/folder", report=said, runs={"llama"})
    assert "brand-new models cannot be run by this version of localinfer" in said.said
    assert "BrandNewForCausalLM models cannot be run by this version of localinfer" in said.said
    assert "about 0.2 GB with a context of 2048 tokens" in said.said[2]
    said = Lines()
    pull(f"{NAME}:Q8_0", report=said, runs={"brand-new"})
    assert not any("cannot be run" in line for line in said.said)


def test_the_config_of_a_folder_tells_its_keys_and_values(hub: HubServer) -> None:
    """Llama 3 8B: 32 layers of 8 heads of 128, keys and values of two bytes: 128 KiB a token."""
    config = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "num_hidden_layers": 32}
    hub.repositories["some/folder"].files["config.json"] = json.dumps(config).encode()
    assert plan_reference(Reference("some/folder"), None, Lines()).choice.estimate.kv == 8192 * (128 << 10)
    nested = {"text_config": {**config, "head_dim": 64}, "max_position_embeddings": 4096}
    hub.repositories["some/folder"] = Repository({**SAFETENSORS, "config.json": json.dumps(nested).encode()}, commit=B)
    assert plan_reference(Reference("some/folder"), None, Lines()).choice.estimate.kv == 4096 * (64 << 10)
    hub.repositories["some/folder"].files["config.json"] = b"[]"
    hub.repositories["some/folder"].commit = "3" * 40
    assert plan_reference(Reference("some/folder"), None, Lines()).choice.estimate.kv > 0


# --- without a network -------------------------------------------------------------------------------------------


def test_everything_local_opens_no_socket(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Nor does it with the hub's address and no offline switch."""
    pull(f"{NAME}:Q4_K_M")
    pull("some/folder")
    pull(f"{NAME}:Q8_0@{A}")
    request.getfixturevalue("no_network")
    capsys.readouterr()
    assert store.resolve("some/folder").is_dir()
    assert execute(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["installed"]] == ["some/folder", f"{NAME}:Q4_K_M", f"{NAME}:Q8_0@{A}"]
    assert all(each["disk"] > 0 for each in found["installed"])
    assert execute(["list"]) == 0
    assert "3 models" in capsys.readouterr().err
    assert execute(["pull", f"{NAME}:Q8_0@{A}"]) == 0
    assert execute(["gc", "--json"]) == 0
    capsys.readouterr()
    assert execute(["show", f"{NAME}:Q4_K_M"]) == 1  # not a model, in truth
    assert "snapshots" in capsys.readouterr().err
    assert execute(["rm", f"{NAME}:Q4_K_M"]) == 0
    assert "is removed: 30" in capsys.readouterr().err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert execute(["pull", "some/folder"]) == 0
    assert execute(["pull", "some/absent"]) == 1
    assert execute(["search", "tiny"]) == 1
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_what_was_pulled_answers_by_its_name(
    hub: HubServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    checkpoint = Path(__file__).resolve().parent / "data" / "presidents-1m"
    hub.repositories["some/presidents"] = Repository({path.name: path.read_bytes() for path in checkpoint.iterdir()})
    scripted = write_scripted_model(tmp_path / "scripted-Q8_0.gguf").read_bytes()
    hub.repositories["some/scripted"] = Repository({"scripted-Q8_0.gguf": scripted})
    for name in ("some/presidents", "some/scripted"):
        pull(name)
    request.getfixturevalue("no_network")
    assert execute(["run", "some/scripted:Q8_0", "hi"]) == 0
    assert capsys.readouterr().out == "Hello, wide 🌍!\n"
    assert execute(["run", "some/presidents", "--raw", "--max-tokens", "4", "The people of the"]) == 0
    assert capsys.readouterr().out.strip()
    assert execute(["show", "some/presidents", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["metadata"]["general.architecture"] == "llama"


# --- addresses, paths, packages ----------------------------------------------------------------------------------


def test_a_file_from_an_address(hub: HubServer) -> None:
    hub.plain["/files/my%20model-Q8_0.gguf"] = b""
    hub.plain["/files/my model-Q8_0.gguf"] = content = weights(5)
    hub.cuts.append(Cut(100_000))
    model = pull(f"{hub.url}/files/my%20model-Q8_0.gguf")
    assert model.name == "my model-Q8_0"
    assert model.path.parent.parent == models_folder()
    assert [path.name for path in model.path.parent.iterdir() if path.name != "record.json"] == ["my model-Q8_0.gguf"]
    assert model.path.read_bytes() == content
    assert model.sha256 == hashlib.sha256(content).hexdigest()
    assert [each.range for each in hub.asked("/files") if each.method == "GET"] == ["", "bytes=100000-"]
    assert store.resolve(model.name) == model.path
    asked = len(hub.requests)
    assert pull(f"{hub.url}/files/my%20model-Q8_0.gguf") == model
    assert len(hub.requests) == asked
    model.path.write_bytes(content[:-1] + b"?")
    assert pull(f"{hub.url}/files/my%20model-Q8_0.gguf", verify=True).path.read_bytes() == content


def test_a_file_from_an_address_goes_on_if_it_is_still_the_same(hub: HubServer) -> None:
    hub.plain["/a.gguf"] = weights(5)

    def break_off() -> None:
        hub.cuts.extend([Cut(100_000), *[Cut(0)] * transfer.FRUITLESS_TRIES])
        with pytest.raises(LocalInferError, match="broke off"):
            pull(f"{hub.url}/a.gguf")
        hub.cuts.clear()
        hub.requests.clear()

    break_off()
    pull(f"{hub.url}/a.gguf")
    assert [each.range for each in hub.requests if each.method == "GET"] == ["bytes=100000-"]
    store.remove("a")
    break_off()
    hub.plain["/a.gguf"] = weights(6)
    assert pull(f"{hub.url}/a.gguf").path.read_bytes() == weights(6)
    assert [each.range for each in hub.requests if each.method == "GET"] == [""]
    store.remove("a")
    hub.validators = False  # nothing tells whether it is the same
    break_off()
    pull(f"{hub.url}/a.gguf")
    assert [each.range for each in hub.requests if each.method == "GET"] == [""]


def test_a_file_that_changes_while_it_is_fetched_is_not_patched_together(hub: HubServer) -> None:
    hub.plain["/a.gguf"] = weights(5)
    hub.cuts.append(Cut(100_000, "call"))
    hub.on_cut = lambda: hub.plain.update({"/a.gguf": weights(6)})
    assert pull(f"{hub.url}/a.gguf").path.read_bytes() == weights(6)


def test_addresses_that_are_refused(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.plain["/page.gguf"] = b"<html>log in</html>"
    hub.plain["/a.gguf"] = weights(5)
    for address, message in (
        ("http://example.org/a.gguf", "not fetched over plain http"),
        ("https://example.org/a.bin", r"not the address of a \.gguf file"),
        ("https://example.org/", r"not the address of a \.gguf file"),
        ("ftp://example.org/a.gguf", "not fetched over plain http"),
        (f"{hub.url}/absent.gguf", "answers 404"),
        (f"{hub.url}/page.gguf", "is no GGUF file: it begins with b'<htm'"),
    ):
        with pytest.raises(LocalInferError, match=message):
            pull(address)
    with pytest.raises(LocalInferError, match=f"is not what was announced: .*, expected {'0' * 64}"):
        pull(f"{hub.url}/a.gguf", sha256="0" * 64)
    assert store.installed().models == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LocalInferError, match="HF_HUB_OFFLINE is set"):
        pull(f"{hub.url}/a.gguf")


def test_an_address_of_the_first_part_brings_all_parts(hub: HubServer) -> None:
    for number in (1, 2):
        hub.plain[f"/big-0000{number}-of-00002.gguf"] = weights(number)
    model = pull(f"{hub.url}/big-00001-of-00002.gguf")
    assert model.name == "big"
    assert store.resolve("big") == model.path
    assert {path.name for path in model.path.parent.glob("*.gguf")} == {path[1:] for path in hub.plain}
    asked = len(hub.requests)
    assert pull(f"{hub.url}/big-00001-of-00002.gguf") == model
    assert len(hub.requests) == asked


def test_an_address_at_the_hub_goes_through_the_hub(hub: HubServer) -> None:
    model = pull(f"{hub.url}/{NAME}/resolve/main/model-Q8_0.gguf?download=true")
    assert model.name == f"{NAME}:Q8_0"
    assert cache_folder() in model.path.parents


def test_a_path_gets_a_name_and_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine-Q8_0.gguf"
    path.write_bytes(weights(5))
    model = pull(str(path))
    assert (model.name, model.path) == ("mine-Q8_0", path)
    assert store.resolve("mine-q8_0") == path
    assert model.sha256 == hashlib.sha256(weights(5)).hexdigest()
    assert pull(str(path)) == model
    assert pull(str(path), save_as="other").name == "other"
    report = Lines()
    pull(str(path), verify=True, report=report)
    assert "has the expected sha256" in report.said[-1]
    path.write_bytes(weights(6))
    assert pull(str(path)) == model, "without --verify the size is what counts"
    assert pull(str(path), verify=True, report=report).sha256 == hashlib.sha256(weights(6)).hexdigest()
    assert "is not what it was when it was pulled" in report.said[-1]
    removed = store.remove("mine-Q8_0")
    assert (removed.freed < 2000, removed.kept) == (True, path.stat().st_size)
    path.unlink()
    with pytest.raises(LocalInferError, match=r"mine-Q8_0\.gguf, the file of other, is missing"):
        store.resolve("other")
    assert [problem.message for problem in store.installed().problems] == [f"{path} is missing"]
    with pytest.raises(LocalInferError, match="there is no file"):
        pull(str(path))


def test_a_folder_on_the_disk_gets_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with pytest.raises(LocalInferError, match="is a folder, not a model file"):
        pull(str(folder))
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(SAFETENSORS[name])
    assert store.resolve(folder) == folder
    assert pull(str(folder)).path == folder
    assert store.resolve("checkpoint") == folder


def test_a_name_is_given_once(hub: HubServer, tmp_path: Path) -> None:
    hub.plain["/mine.gguf"] = weights(5)
    path = tmp_path / "mine.gguf"
    path.write_bytes(weights(5))
    pull(str(path))
    with pytest.raises(LocalInferError, match="mine is installed already, from") as caught:
        pull(f"{hub.url}/mine.gguf")
    assert "--name" in caught.value.hint
    assert pull(f"{hub.url}/mine.gguf", save_as="theirs").name == "theirs"


# --- the command line --------------------------------------------------------------------------------------------


def test_the_plan_alone(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["pull", f"{NAME}:Q4_K_M", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "0.3 MB to fetch (as asked for)" in said
    assert f"sha256 {hashlib.sha256(weights(0)).hexdigest()}" in said
    assert not hub.asked("/storage")
    assert execute(["pull", "smollm2:135m", "--dry-run"]) == 1


def test_a_pull_on_the_command_line(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["pull", f"{NAME}:Q4_K_M"]) == 0
    said = capsys.readouterr().err
    assert f"{NAME}:Q4_K_M is installed: " in said
    assert execute(["show", "some/absent"]) == 1
    assert "localinfer pull some/absent" in capsys.readouterr().err
    assert execute(["chat", "some/absent"]) == 1
    assert "some/absent is not installed" in capsys.readouterr().err
    assert execute(["rm", NAME]) == 0
    assert f"{NAME}:Q4_K_M is removed: 300" in capsys.readouterr().err
    assert not os.listdir(models_folder())


def test_progress_without_a_terminal_says_speed_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 5.0, 10.0))
    monkeypatch.setattr("localinfer.cli.progress.time.monotonic", lambda: next(clock))
    with TerminalReport() as report:
        report.progress("a model", 500_000_000, 1_000_000_000)  # what was there before counts for no speed
        report.progress("a model", 550_000_000, 1_000_000_000)
        report.progress("a model", 600_000_000, 1_000_000_000)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "a model (1.0 GB)"
    assert second == "a model: 600.0 MB of 1.0 GB, 10.0 MB/s, 40 s left"


def test_the_measurement_of_interruptions_runs() -> None:
    script = Path(__file__).resolve().parents[1] / "scripts" / "interrupt_pull.py"
    options = ["--interruptions", "2", "--megabytes", "2", "--rate", "4"]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, timeout=60)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["right"], result["interruptions"], result["requests"]) == (True, 2, 3), done.stdout
