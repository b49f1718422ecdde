"""`localinfer quantize`: from what was asked for to a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localinfer.checkpoints import is_checkpoint, open_model
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.formats.model_file import ModelFile
from localinfer.quantize import compressed, gguf_output
from localinfer.quantize.calibrate import DEFAULT, Known, calibration_text, is_statistics, known_from
from localinfer.quantize.convert import GGUFJob
from localinfer.quantize.make import Made, Product, Report, make, refuse_existing, refuse_sources
from localinfer.quantize.mixed import Mix, bits_of, budget_of, bytes_of, mix
from localinfer.quantize.provenance import Provenance
from localinfer.quantize.recipes import ALIASES, RECIPES, Choice, choose, find_recipe
from localinfer.quantize.source import is_quantized, shape_of, source_files, weights_in

_PROBE_WINDOW, _PROBE_WINDOWS = 256, 8  # of the calibration text, over which sensitivities are measured
_HEADER_ROOM = 65536  # bytes that a file takes beside its metadata and tensors, for --fit


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    source      a .gguf file, or a folder with config.json and safetensors
    to          a recipe's name, a scheme of compressed-tensors, or bits per weight ("4.2bpw"); "" with `fit`
    fit         the size of the file ("6GB"), instead of `to`
    output      the file (or folder) to write; None names it after the source and the type, in the current folder
    calibrate   "default", a text, a file of statistics or an imatrix; "" is none
    feedback    feed errors back, where second moments are known
    threads     0: one per processor that this process may use
    force       overwrite `output`
    measure     measure the quality, and write it into the file
    statement   write an in-toto statement as well
    """

    source: Path
    to: str = ""
    fit: str = ""
    output: Path | None = None
    calibrate: str = ""
    feedback: bool = True
    threads: int = 0
    force: bool = False
    measure: bool = True
    statement: bool = False


@dataclass(frozen=True)
class Result:
    """What was made; `weights` counts all of them, `types` are tensors and bytes by type."""

    path: Path
    size: int
    weights: int
    seconds: float
    types: dict[str, tuple[int, int]]
    provenance: Provenance

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size / self.weights


def quantize(wishes: Wishes, report: Report) -> Result:
    """Makes a file. LocalInferError, with nothing under the final name, if it cannot be made."""
    if bool(wishes.to) == bool(wishes.fit):
        raise LocalInferError("say either a type or a size", "--to q4_k_m, --to 4.2bpw, or --fit 6GB")
    if wishes.to.lower() in compressed.SCHEMES:
        return _quantize_checkpoint(wishes, wishes.to.lower(), report)
    return _quantize_to_gguf(wishes, report)


def _quantize_to_gguf(wishes: Wishes, report: Report) -> Result:
    mixed = bool(wishes.fit) or bits_of(wishes.to) is not None
    name = wishes.fit if wishes.fit else ALIASES.get(wishes.to.lower(), wishes.to.lower())
    if not mixed:
        _known_recipe(name)
    output = wishes.output or default_output(wishes.source, name.upper() + ".gguf")
    refuse_existing(output, wishes.force)
    with open_model(wishes.source) as model:
        files = source_files(model, wishes.source)
        refuse_sources(output, files)
        if is_quantized(model):
            report.say(_requantizing(wishes.source))
        calibrate = wishes.calibrate or (DEFAULT if mixed else "")
        known = known_from(calibrate, model, wishes.feedback, wishes.threads, report)
        recipe: dict[str, Any] = {"name": name}
        if mixed:
            found = _mix(wishes, model, known, calibrate, report)
            choices, file_type = found.choices, found.file_type
            recipe |= found.measured
        else:
            choices, file_type = choose(RECIPES[name], model.tensors, shape_of(model)), RECIPES[name].file_type
        for line in fallbacks(choices):
            report.say(line)
        jobs = [GGUFJob(model.tensor(choice.name), choice, known.of(choice.name)) for choice in choices]
        product = Product(
            source=model,
            path=wishes.source,
            files=files,
            jobs=jobs,
            layout=lambda text: gguf_output.layout_of(model, jobs, file_type, text),
            records=lambda hashes: gguf_output.records(jobs, hashes),
            measure=lambda path: _measure(wishes, path, model, report),
            recipe=recipe,
            calibration=known.describe(),
        )
        made = _make(product, output, wishes, report)
        return _result(output, made, model, [(choice.type, choice.nbytes) for choice in choices])


def _mix(wishes: Wishes, model: ModelFile, known: Known, calibrate: str, report: Report) -> Mix:
    from localinfer.evaluate.windows import windows_of
    from localinfer.quantize.sensitivity import Prober
    from localinfer.text.tokenizer import load_tokenizer

    bits = bits_of(wishes.to)
    if bits is not None:
        budget = budget_of(model, bits)
    else:
        empty = gguf_output.layout_of(model, [], 0, "")
        budget = bytes_of(wishes.fit) - empty.size - _HEADER_ROOM - 400 * len(model.tensors)
    text = calibration_text(DEFAULT if is_statistics(calibrate) else calibrate)
    windows = windows_of(load_tokenizer(model.metadata), text, _PROBE_WINDOW, _PROBE_WINDOWS)
    return mix(Prober(model, known.of_all(model), wishes.threads), budget, windows, report)


def _quantize_checkpoint(wishes: Wishes, scheme: str, report: Report) -> Result:
    from localinfer.formats.safetensors import open_safetensors

    if not is_checkpoint(wishes.source):
        raise UnsupportedError(
            f"{wishes.source} is no folder with config.json and safetensors, which --to {scheme} needs",
            "quantize from the model's folder as the Hugging Face hub has it, or to a GGUF type: --to q8_0",
        )
    folder = wishes.source if wishes.source.is_dir() else wishes.source.parent
    output = wishes.output or default_output(folder, scheme.upper())
    refuse_existing(output, wishes.force)
    with open_model(folder) as model, open_safetensors(folder) as stored:
        files = source_files(model, folder)
        refuse_sources(output, files)
        known = known_from(wishes.calibrate, model, wishes.feedback, wishes.threads, report)
        architecture = model.metadata.get_str("general.architecture")
        jobs = compressed.plan_jobs(stored, scheme, architecture, known.of_all(model))
        for line in compressed.fallbacks(jobs, scheme):
            report.say(line)
        product = Product(
            source=stored,
            path=folder,
            files=files,
            jobs=jobs,
            layout=lambda text: compressed.layout_of(jobs, text),
            records=lambda hashes: compressed.records(jobs, hashes),
            measure=lambda path: _measure(wishes, path, model, report),
            recipe={"name": scheme},
            calibration=known.describe(),
            beside=compressed.beside(folder, scheme, jobs),
            member=compressed.WEIGHTS_FILE,
        )
        made = _make(product, output, wishes, report)
        return _result(output, made, model, [(info.dtype, info.nbytes) for job in jobs for info in job.infos])


def _make(product: Product, output: Path, wishes: Wishes, report: Report) -> Made:
    return make(product, output, threads=wishes.threads, force=wishes.force, signed=wishes.statement, report=report)


def _measure(wishes: Wishes, path: Path, model: ModelFile, report: Report) -> dict[str, Any]:
    if not wishes.measure:
        return {"skipped": "--no-report"}
    from localinfer.quantize.quality import measure_quality

    return measure_quality(path, model, weights_in(model), wishes.threads, report)


def _result(output: Path, made: Made, model: ModelFile, sizes: Sequence[tuple[str, int]]) -> Result:
    tensors: Counter[str] = Counter(kind for kind, _ in sizes)
    nbytes: Counter[str] = Counter()
    for kind, size in sizes:
        nbytes[kind] += size
    types = {kind: (tensors[kind], nbytes[kind]) for kind in tensors}
    return Result(output, made.size, weights_in(model), made.seconds, types, made.provenance)


def _known_recipe(name: str) -> None:
    """UnsupportedError, with all that can be asked for, for a name that is none."""
    try:
        find_recipe(name)
    except UnsupportedError as error:
        more = f"{', '.join(compressed.SCHEMES)}; or bits per weight, as 4.2bpw"
        raise UnsupportedError(error.message, f"{error.hint}, {more}") from None


def fallbacks(choices: Sequence[Choice]) -> list[str]:
    """A line for each reason for which tensors did not get the type of the recipe."""
    names: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        if choice.reason:
            names.setdefault((choice.type, choice.reason), []).append(choice.name)
    return [
        f"{some[0]}{f' and {len(some) - 1} more tensors' if len(some) > 1 else ''}: {kind}, because {reason}"
        for (kind, reason), some in names.items()
    ]


def default_output(source: Path, ending: str) -> Path:
    """NAME-ENDING in the current folder; what the source's name says about its own type is dropped."""
    stem = source.resolve().name if source.is_dir() else source.stem
    for suffix in ("-f32", "-f16", "-bf16", ".f32", ".f16", ".bf16"):
        if stem.lower().endswith(suffix):
            stem = stem[: -len(suffix)]
            break
    return Path(f"{stem}-{ending}")


def _requantizing(source: Path) -> str:
    return (
        f"{source} is quantized already: the result gets the errors of both. Better quantize from the model's original "
        "weights (F16, BF16 or F32), if you can have them."
    )
