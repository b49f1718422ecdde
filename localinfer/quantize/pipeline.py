"""`localinfer quantize`: from what was asked for to a file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from localinfer import __version__
from localinfer.checkpoints import is_checkpoint, open_model
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.formats.model_file import ModelFile
from localinfer.quantize import compressed, gguf_output
from localinfer.quantize.calibrate import DEFAULT, Known, calibration_text, is_statistics, known_from
from localinfer.quantize.convert import GGUFJob
from localinfer.quantize.make import Made, Product, digest, make, refuse_existing, refuse_sources
from localinfer.quantize.mixed import Mix, Task, bits_of, budget_of, bytes_of, fit, measure
from localinfer.quantize.provenance import UNKNOWN_HASH, Provenance, SourceFile, room_for, width_in_json
from localinfer.quantize.recipes import ALIASES, RECIPES, Choice, choose, find_recipe, is_quantized_matrix
from localinfer.quantize.report import Report
from localinfer.quantize.sensitivity import Prober
from localinfer.quantize.source import describe_source, identities, is_quantized, shape_of, source_files, weights_in
from localinfer.quantize.work import Journal

_PROBE_WINDOW = 256  # tokens; sensitivities are measured over some windows of the calibration text, or one shorter one
_PROBE_TOKENS = (128, 4096)  # at least and at most
_PROBE_WORK = 1e13  # multiplications that measuring all sensitivities may take, if that is not too few tokens
_TYPES = tuple(dict.fromkeys(recipe.type for recipe in RECIPES.values()))  # that tensors may get
_SLACK = 256  # of a header whose numbers are not known yet


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    source      a .gguf file, or a folder with config.json and safetensors
    to          a recipe's name, a scheme of compressed-tensors, or bits per weight ("4.2bpw"); "" with `fit`
    fit         the size of the file ("6GB"), instead of `to`
    output      the file (or folder) to write; None names it after the source and the type, in the current folder
    tensors     patterns of names → the types that such tensors may get ("*.attn_v.weight": ("Q6_K",)); the first that
                matches counts, and of several types only mixed precision has a choice
    calibrate   "default", a text, a file of statistics or an imatrix; "" is none
    feedback    feed errors back, where second moments are known
    threads     0: one per processor that this process may use
    keep        a file to write the calibration statistics to, for the next time
    force       overwrite `output`
    measure     measure the quality, and write it into the file
    statement   write an in-toto statement as well
    """

    source: Path
    to: str = ""
    fit: str = ""
    output: Path | None = None
    tensors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    calibrate: str = ""
    feedback: bool = True
    keep: Path | None = None
    threads: int = 0
    force: bool = False
    measure: bool = True
    statement: bool = False


@dataclass(frozen=True)
class Result:
    """What was made; `weights` counts all of them, `types` are tensors and bytes by type, `seconds` is all of it."""

    path: Path
    size: int
    weights: int
    types: dict[str, tuple[int, int]]
    provenance: Provenance
    seconds: float = 0.0

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size / self.weights


def quantize(wishes: Wishes, report: Report) -> Result:
    """Makes a file. LocalInferError, with nothing under the final name, if it cannot be made."""
    if bool(wishes.to) == bool(wishes.fit):
        raise LocalInferError("say either a type or a size", "--to q4_k_m, --to 4.2bpw, or --fit 6GB")
    if wishes.source.suffix == ".safetensors":
        wishes = replace(wishes, source=wishes.source.absolute().parent)
    started = time.monotonic()
    if wishes.to.lower() in compressed.SCHEMES:
        result = _quantize_checkpoint(wishes, wishes.to.lower(), report)
    else:
        result = _quantize_to_gguf(wishes, report)
    return replace(result, seconds=time.monotonic() - started)


def _quantize_to_gguf(wishes: Wishes, report: Report) -> Result:
    mixed = bool(wishes.fit) or bits_of(wishes.to) is not None
    name = wishes.fit if wishes.fit else ALIASES.get(wishes.to.lower(), wishes.to.lower())
    if not mixed:
        _known_recipe(name)
    limit = bytes_of(wishes.fit) if wishes.fit else 0
    output = wishes.output or default_output(wishes.source, name.upper() + ".gguf")
    refuse_existing(output, wishes.force)
    with open_model(wishes.source) as model:
        files = source_files(model, wishes.source)
        refuse_sources(output, files)
        if is_quantized(model):
            report.say(_requantizing(wishes.source))
        ladder = _ladder(wishes.tensors, model)
        task = None
        if mixed:
            task = Task(model.tensors, _budget(wishes, limit, model), ladder)
            if task.most < task.budget:
                report.say(_too_generous(name, task.most, model))
        calibrate = wishes.calibrate or (DEFAULT if mixed else "")
        known = _calibrated(wishes, calibrate, model, report)
        recipe: dict[str, Any] = {"name": name}
        if ladder:
            recipe["tensors"] = {pattern: list(types) for pattern, types in wishes.tensors.items()}
        if task is not None:
            found = _mix(wishes, limit, model, known, task, recipe, output, report)
            choices, file_type = found.choices, found.file_type
            recipe |= found.recipe
        else:
            file_type = RECIPES[name].file_type
            choices = choose(RECIPES[name], model.tensors, shape_of(model), {t: ts[0] for t, ts in ladder.items()})
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
        probes_path(output).unlink(missing_ok=True)
        return _result(output, made, model, [(choice.type, choice.nbytes) for choice in choices])


def _mix(
    wishes: Wishes,
    limit: int,
    model: ModelFile,
    known: Known,
    task: Task,
    recipe: Mapping[str, Any],
    output: Path,
    report: Report,
) -> Mix:
    """Types for so many bits per weight of all tensors, or for a file of a size, header included."""
    from localinfer.evaluate.windows import windows_of
    from localinfer.text.tokenizer import load_tokenizer

    text = calibration_text(DEFAULT if is_statistics(wishes.calibrate) else wishes.calibrate or DEFAULT)
    least, most = _PROBE_TOKENS
    matrices = sum(is_quantized_matrix(tensor) for tensor in model.tensors.values())
    tokens = min(most, max(least, int(_PROBE_WORK / (weights_in(model) * max(1, matrices)))))
    window = min(_PROBE_WINDOW, tokens)
    windows = windows_of(load_tokenizer(model.metadata), text, window, tokens // window)
    about = [str(identities(source_files(model, wishes.source))), known.describe(), list(map(list, windows.tokens))]
    with Journal(probes_path(output), digest(about), output) as journal:
        prober = Prober(model, known.of_all(model), wishes.threads, journal)
        measured = measure(prober, task, windows, report)
    found = measured.mix(task.budget)
    return fit(measured, found, limit, lambda mix: _size(wishes, model, known, recipe, mix)) if limit else found


def _budget(wishes: Wishes, limit: int, model: ModelFile) -> int:
    """Bytes that all tensors may take together; of a file of `limit` bytes, what the smallest header leaves."""
    bits = bits_of(wishes.to)
    return limit - gguf_output.layout_of(model, [], 0, "").size if bits is None else budget_of(model, bits)


def _too_generous(name: str, most: int, model: ModelFile) -> str:
    bits = 8 * most / weights_in(model)
    return f"{name} is more than the largest types take: all tensors get those, {most / 1e6:.1f} MB ({bits:.2f}bpw)"


def probes_path(output: Path) -> Path:
    """Where measured sensitivities are noted until the file is there."""
    return output.with_name(output.name + ".part.probes.json")


def _ladder(wanted: Mapping[str, Sequence[str]], model: ModelFile) -> dict[str, Sequence[str]]:
    """The types that were asked for, by tensor. LocalInferError for a type or a pattern that fits nothing."""
    ladder: dict[str, Sequence[str]] = {}
    for pattern, types in wanted.items():
        unknown = [kind for kind in types if kind not in _TYPES]
        matrices = [name for name, tensor in model.tensors.items() if is_quantized_matrix(tensor)]
        names = [name for name in matrices if fnmatchcase(name, pattern)]
        if unknown or not types:
            raise LocalInferError(f"no tensor can get the type {', '.join(unknown)}", f"there are {', '.join(_TYPES)}")
        if not names:
            raise LocalInferError(
                f"the model has no matrix {pattern} whose type could be chosen",
                f"names are like {', '.join(matrices[:3])}",
            )
        ladder |= {name: types for name in names if name not in ladder}
    return ladder


def _size(wishes: Wishes, model: ModelFile, known: Known, recipe: Mapping[str, Any], found: Mix) -> int:
    """How large a file of these choices will be."""
    jobs = [GGUFJob(model.tensor(choice.name), choice, known.of(choice.name)) for choice in found.choices]
    files = tuple(SourceFile(file.name, 0, UNKNOWN_HASH) for file in source_files(model, wishes.source))
    source = describe_source(wishes.source, files)
    draft = Provenance(__version__, source, {**recipe, **found.recipe}, known.describe(), gguf_output.records(jobs, {}))
    return gguf_output.layout_of(model, jobs, found.file_type, " " * (room_for(draft) + _SLACK)).size


def _quantize_checkpoint(wishes: Wishes, scheme: str, report: Report) -> Result:
    from localinfer.formats.safetensors import open_safetensors

    if wishes.tensors:
        raise UnsupportedError(
            f"--to {scheme} has one type for all matrices", "leave --tensor out, or take a GGUF type"
        )
    if not is_checkpoint(wishes.source):
        raise UnsupportedError(
            f"{wishes.source} is no folder with config.json and safetensors, which --to {scheme} needs",
            "quantize from the model's folder as the Hugging Face hub has it, or to a GGUF type: --to q8_0",
        )
    folder = wishes.source
    output = wishes.output or default_output(folder, scheme.upper())
    config = compressed.read_config(folder)
    refuse_existing(output, wishes.force)
    with open_model(folder) as model, open_safetensors(folder) as stored:
        files = source_files(model, folder)
        refuse_sources(output, files)
        known = _calibrated(wishes, wishes.calibrate, model, report)
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
            beside=compressed.beside(folder, config, scheme, jobs),
            member=compressed.WEIGHTS_FILE,
            width=width_in_json,
        )
        made = _make(product, output, wishes, report)
        return _result(output, made, model, [(info.dtype, info.nbytes) for job in jobs for info in job.infos])


def _calibrated(wishes: Wishes, calibrate: str, model: ModelFile, report: Report) -> Known:
    known = known_from(calibrate, model, wishes.feedback, wishes.threads, report)
    if wishes.keep is not None:
        if known.statistics is None:
            raise LocalInferError("there are no statistics to keep", "--calibrate default collects some")
        known.statistics.save(wishes.keep)
    return known


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
    return Result(output, made.size, weights_in(model), types, made.provenance)


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
