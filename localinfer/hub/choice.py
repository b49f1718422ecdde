"""Which files of a repository make the model that is wanted.

Data formats only: GGUF files, or safetensors with configuration and tokenizer. Pickles (.bin, .pt, .ckpt) run code when
they are opened, and code files are code: neither is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.hub.estimate import Estimate, estimate
from localinfer.hub.listing import Listing, RepoFile
from localinfer.hub.names import near

SAFETENSORS = "safetensors"
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?"
    r"(?:I?Q\d(?:_[01]|_K(?:_(?:XXS|XS|S|M|L|XL))?|_(?:XXS|XS|S|M|L|NL|XL))(?:_R\d+|_\d+_\d+)?"
    r"|TQ\d_0|MXFP4(?:_MOE)?|NVFP4|(?:BF|FP|F)(?:16|32)))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.(?:gguf|safetensors)$)")
_UNQUANTIZED = re.compile(r"(B?F|FP)(16|32)", re.IGNORECASE)
# GGUF files that are no language model: image encoders, statistics for quantizing, drafts, adapters.
_BESIDE = re.compile(r"(^|[._-])(mmproj|imatrix|lora|adapter|mtp)([._-]|$)", re.IGNORECASE)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
# Beside the weights of a safetensors model; all at the top of the repository.
_CONFIGURATION = {
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
}
_MAIN_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


class Candidate(NamedTuple):
    """Files that make a model together: `label` is what stands behind ":" for it, `files` the first file first."""

    label: str
    files: tuple[RepoFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_folder(self) -> bool:
        return self.label == SAFETENSORS


class Choice(NamedTuple):
    """What is taken, in which words, and what it will take of the memory."""

    candidate: Candidate
    why: str
    estimate: Estimate


def quant_of(file: str) -> str:
    """The quantization that a file's name tells, in capitals; "" if it tells none."""
    name = _PART.sub("", file).removesuffix(".gguf")
    found = [each.upper() for each in _QUANT.findall(name.rpartition("/")[2])] or [
        each.upper() for each in _QUANT.findall(name)
    ]
    return found[-1].replace("FP16", "F16").replace("FP32", "F32") if found else ""


def candidates(files: Iterable[RepoFile]) -> list[Candidate]:
    """The models that a repository holds; LocalInferError if the parts of one are not all there."""
    files = tuple(files)
    found = _gguf_candidates(files)
    if weights := _safetensors(files):
        configuration = [file for file in files if file.path in _CONFIGURATION]
        found.append(Candidate(SAFETENSORS, (*configuration, *weights)))
    return found


def choose(listing: Listing, wanted: str, memory: int | None) -> Choice:
    """The candidate that `wanted` names, else the best that fits `memory` bytes.

    UnsupportedError if the repository holds nothing that can be opened safely, LocalInferError if not what was asked.
    """
    found = candidates(listing.files)
    if not found:
        raise _nothing(listing)
    if wanted:
        candidate = _named(listing, found, wanted)
        return Choice(candidate, "as asked for", _estimate(listing, candidate))
    models = [each for each in found if not each.is_folder]
    if not models:
        return Choice(found[0], "the repository's safetensors files", _estimate(listing, found[0]))
    return _best(listing, models, memory)


def _best(listing: Listing, models: list[Candidate], memory: int | None) -> Choice:
    """The largest that fits: the nearest to the original. 16 and 32 bits only where there is nothing else."""
    quantized = [each for each in models if not _UNQUANTIZED.fullmatch(each.label)] or models
    ranked = sorted(quantized, key=lambda each: (-each.size, each.label))
    fitting = [
        each for each in ranked if memory is None or _estimate(listing, each).total <= memory
    ]  # fmt: skip
    chosen = (fitting or ranked[-1:])[0]
    taken = _estimate(listing, chosen)
    if len(models) == 1:
        why = "the only one"
    elif not fitting:
        why = f"the smallest of {len(models)}, and still too large for this machine"
    elif chosen is ranked[0]:
        why = f"the nearest to the original of {len(models)}, and it fits"
        if len(quantized) < len(models):
            why += "; 16 bits and more take twice the memory for a difference that is hard to find"
    else:
        next_larger = ranked[ranked.index(chosen) - 1]
        why = (
            f"the largest of {len(models)} that fits: {next_larger.label} would take "
            f"{_estimate(listing, next_larger).total / 1e9:.1f} GB, {(memory or 0) / 1e9:.1f} GB are free"
        )
    return Choice(chosen, why, taken)


def _named(listing: Listing, found: list[Candidate], wanted: str) -> Candidate:
    lower = wanted.lower()
    exact = [each for each in found if each.label.lower() == lower]
    by_file = [
        each
        for each in found
        if not each.is_folder and any(lower in _names_of(file.path) for file in each.files)
    ]  # fmt: skip
    by_quant = [each for each in found if not each.is_folder and quant_of(each.files[0].path).lower() == lower]
    fitting = exact or by_file or by_quant
    labels = [each.label for each in found]
    if len(fitting) > 1:
        raise LocalInferError(
            f"{listing.repository} has {len(fitting)} models of {wanted}",
            f"say which: {', '.join(f'{listing.repository}:{each.label}' for each in fitting)}",
        )
    if not fitting:
        guesses = near(wanted, labels)
        hint = f"did you mean {' or '.join(guesses[:3])}? " if guesses else ""
        raise LocalInferError(f"{listing.repository} has no {wanted}", f"{hint}it has {', '.join(labels)}")
    return fitting[0]


def _names_of(path: str) -> set[str]:
    names = {path.lower(), path.lower().rpartition("/")[2]}
    return names | {name.removesuffix(".gguf") for name in names}


def _gguf_candidates(files: tuple[RepoFile, ...]) -> list[Candidate]:
    groups: dict[str, list[RepoFile]] = {}
    for file in files:
        name = file.path.rpartition("/")[2]
        if name.endswith(".gguf") and not _BESIDE.search(name.removesuffix(".gguf")):
            groups.setdefault(_PART.sub("", file.path), []).append(file)
    models = [(stem, _complete(stem, parts)) for stem, parts in groups.items()]
    quants = [quant_of(stem) for stem, _ in models]
    beside = {file.path: file for file in files}
    return [
        # Where several files are of one type, or a name tells none, the file's own name is the label.
        Candidate(quant if quant and quants.count(quant) == 1 else _label(stem), _with_provenance(parts, beside))
        for (stem, parts), quant in zip(models, quants, strict=True)
    ]


def _with_provenance(parts: tuple[RepoFile, ...], beside: dict[str, RepoFile]) -> tuple[RepoFile, ...]:
    """The parts, and what localinfer wrote about them when it quantized them (localinfer/quantize/provenance.py)."""
    found = beside.get(f"{parts[0].path}.provenance.json")
    return parts if found is None else (*parts, found)


def _label(path: str) -> str:
    return re.sub(r"[\s:@]", "-", path.rpartition("/")[2].removesuffix(".gguf"))


def _complete(stem: str, parts: list[RepoFile]) -> tuple[RepoFile, ...]:
    parts = sorted(parts, key=lambda file: file.path)
    numbered = [_PART.search(file.path) for file in parts]
    if numbered[0] is None:
        return tuple(parts)
    count = int(numbered[0][2])
    if [int(each[1]) for each in numbered if each] != list(range(1, count + 1)):
        raise LocalInferError(f"{stem} comes in {count} parts, of which the repository has only {len(parts)}")
    return tuple(parts)


def _safetensors(files: tuple[RepoFile, ...]) -> list[RepoFile]:
    if not any(file.path == "config.json" for file in files):
        return []
    top = [file for file in files if file.path.endswith(".safetensors") and "/" not in file.path]
    main = [file for file in top if _MAIN_WEIGHTS.fullmatch(file.path)]
    parts = [file for file in main if _PART.search(file.path)]
    # Both forms of the same weights are in some repositories: the parts then go with the index.
    whole = [file for file in main if not _PART.search(file.path)]
    if parts and (not whole or any(file.path == "model.safetensors.index.json" for file in files)):
        return list(_complete("model.safetensors", parts))
    return whole or [file for file in top if not _BESIDE.search(file.path.removesuffix(".safetensors"))]


def _nothing(listing: Listing) -> UnsupportedError:
    names = [file.path for file in listing.files]
    look = f"look for another copy: localinfer search {listing.repository.rpartition('/')[2]}"
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        return UnsupportedError(
            f"{listing.repository} has its weights only as {', '.join(pickles[:3])}"
            f"{' and more' if len(pickles) > 3 else ''}: such files run code when they are opened, and are not fetched",
            look,
        )
    if any(name.endswith(".safetensors") for name in names):
        return UnsupportedError(
            f"{listing.repository} has safetensors files, but no config.json beside them that says what they are", look
        )
    return UnsupportedError(f"{listing.repository} has neither GGUF nor safetensors files", look)


def _estimate(listing: Listing, candidate: Candidate) -> Estimate:
    weights = sum(file.size for file in candidate.files if file.path.endswith((".gguf", ".safetensors")))
    return estimate(weights, listing.parameters or _parameters(candidate, weights), listing.context)


def _parameters(candidate: Candidate, weights: int) -> int:
    from localinfer.hub.estimate import BITS_PER_WEIGHT

    return int(weights * 8 / BITS_PER_WEIGHT.get(candidate.label.removeprefix("UD-"), 16 if candidate.is_folder else 5))
