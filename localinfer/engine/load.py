"""From a model file to a running engine: open it, choose a backend, plan, load."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from localinfer.engine.admission import HOW_TO_ASK, MADE_FOR
from localinfer.engine.checks import wrong
from localinfer.engine.engine import Engine
from localinfer.engine.plan import Plan, Wishes, make_plan
from localinfer.engine.sampling import SamplingParams
from localinfer.engine.speculation import SpeculationMode
from localinfer.errors import FormatError, LocalInferError, UnsupportedError
from localinfer.formats.model_file import ModelFile
from localinfer.kernels import BACKENDS
from localinfer.kernels import backend as find_backend
from localinfer.kernels.base import Backend, Executable, Progress
from localinfer.text.constraint import Constraints
from localinfer.text.sequence_breakers import SequenceBreakers
from localinfer.text.tokenizer import Tokenizer
from localinfer.text.vocabulary_difference import vocabulary_difference

# What a chat samples with unless the model file or the caller says otherwise.
CHAT_DEFAULTS = SamplingParams(temperature=0.7, top_k=40, top_p=0.95)

# general.sampling.NAME in a file -> the parameter, and its kind
_SAMPLING_KEYS = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "penalty_repeat": ("repetition_penalty", float),
    "penalty_last_n": ("penalty_window", int),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}


class LoadedModel(NamedTuple):
    """A model that can take steps, and its draft model if it has one."""

    executable: Executable
    backend: Backend
    plan: Plan
    notes: tuple[str, ...]
    draft: Executable | None = None


class Loaded(NamedTuple):
    """An engine with the plan it was loaded by. `notes` are what a person should be told."""

    engine: Engine
    plan: Plan
    notes: tuple[str, ...]
    constraints: Constraints


def choose_backend(name: str = "auto") -> tuple[Backend, str]:
    """The backend of that name, and a note if it is not the one a person would expect.

    "auto" is the CPU backend if it is usable, else the reference. UnsupportedError says why one is not usable.
    """
    if name != "auto":
        backend = find_backend(name)
        availability = backend.availability()
        if not availability.usable:
            raise UnsupportedError(
                f"the backend {name} is not usable here: {availability.reason}", "`localinfer doctor` tells more"
            )
        return backend, ""
    reasons: list[str] = []
    for candidate in ("cpu", *sorted(set(BACKENDS) - {"cpu"})):
        backend = find_backend(candidate)
        availability = backend.availability()
        if availability.usable:
            return backend, f"using the {candidate} backend: {'; '.join(reasons)}" if reasons else ""
        reasons.append(f"{candidate} is not usable ({availability.reason})")
    raise UnsupportedError(f"no backend is usable here: {'; '.join(reasons)}", "`localinfer doctor` tells more")


def load_model(
    file: ModelFile,
    wishes: Wishes,
    *,
    draft: ModelFile | None = None,
    backend: str = "auto",
    encoders: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Plans, reserves and loads, without an engine. Raises and tells as `load` does.

    UnsupportedError for a model that writes no text, unless `encoders` are welcome too.
    """
    chosen, note = choose_backend(backend)
    notes = [note] if note else []
    notes += file.notes
    if draft and (difference := vocabulary_difference(file.metadata, draft.metadata)):
        raise LocalInferError(
            f"{draft.paths[0]} cannot draft for {file.paths[0]}, because its vocabulary is another one: {difference}",
            "a draft model must be a smaller model of the same family",
        )
    plan = make_plan(file, chosen, wishes, draft)
    purpose = plan.program.purpose
    if purpose != "text" and (draft or not encoders):
        raise UnsupportedError(f"this model writes no text: {MADE_FOR[purpose]}", HOW_TO_ASK[purpose])
    if plan.config.context > plan.program.context_length:
        notes.append(
            f"a context of {plan.config.context} tokens is more than the {plan.program.context_length} "
            "that the model was made for"
        )
    for note in notes:
        say(note)
    file.prepare(progress)
    executable = chosen.load(plan.program, file, plan.config, progress)
    file.drop_pages()
    drafting = None
    if draft and plan.draft:
        try:
            draft.prepare(progress)
            drafting = chosen.load(plan.draft.program, draft, plan.draft.config, progress)
        except BaseException:
            executable.close()
            raise
        draft.drop_pages()
    return LoadedModel(executable, chosen, plan, tuple(notes), drafting)


def load(
    file: ModelFile,
    tokenizer: Tokenizer,
    wishes: Wishes,
    *,
    backend: str = "auto",
    prefix_cache: bool = True,
    speculation: SpeculationMode = "auto",
    draft: ModelFile | None = None,
    progress: Progress | None = None,
) -> Loaded:
    """Plans, reserves and loads. Notes also go to standard error.

    MemoryPlanError if it does not fit; LocalInferError if `draft` is not of the same vocabulary, or has nothing to do.
    """
    _check_speculation(speculation, draft)
    for note in tokenizer.notes:
        say(note)
    model = load_model(file, wishes, draft=draft, backend=backend, encoders=True, progress=progress)
    drafting = None
    if model.draft and model.plan.draft:
        size = model.plan.draft.program.vocab_size
        from localinfer.engine.draft import DraftModel

        drafting = DraftModel(model.draft, model.plan.draft.config, size, prefix_cache=prefix_cache)
    constraints = Constraints(tokenizer, model.plan.program.vocab_size)
    engine = Engine(
        model.executable,
        model.plan.config,
        model.plan.program.vocab_size,
        end_ids=sorted(tokenizer.stop_ids),
        prefix_cache=prefix_cache,
        speculation=speculation if model.plan.program.purpose == "text" else "off",
        draft=drafting,
        purpose=model.plan.program.purpose,
        constrain=constraints.constraint,
        find_breakers=SequenceBreakers(tokenizer, model.plan.program.vocab_size).find,
    )
    return Loaded(engine, model.plan, (*tokenizer.notes, *model.notes), constraints)


def _check_speculation(mode: SpeculationMode, draft: ModelFile | None) -> None:
    modes = get_args(SpeculationMode)
    if mode not in modes:
        raise wrong("speculation", mode, f"one of {', '.join(modes)}")
    if mode == "draft" and draft is None:
        raise LocalInferError('speculation is "draft", but there is no draft model', "give one: draft=..., or --draft")
    if mode in ("off", "ngram") and draft is not None:
        raise LocalInferError(
            f'a draft model is given, but speculation is "{mode}", which does not use it',
            'leave out one of them, or set speculation to "auto" or "draft"',
        )


def say(note: str) -> None:
    """Tells a person on standard error."""
    print(f"note: {note}", file=sys.stderr)


def chat_defaults(metadata: Mapping[str, Any]) -> SamplingParams:
    """CHAT_DEFAULTS, or what the file recommends (`general.sampling.…`): if it names any, all others are off."""
    found: dict[str, Any] = {}
    for key, (name, kind) in _SAMPLING_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = kind(value) if math.isfinite(value) else value
    if not found:
        return CHAT_DEFAULTS
    # Files follow llama.cpp: a window of -1 is everything and of 0 nothing, top_k below 1 is off.
    if found.get("penalty_window") == 0:
        found["repetition_penalty"] = 1.0
    for name in {"penalty_window", "top_k"} & set(found):
        found[name] = max(0, found[name]) if math.isfinite(found[name]) else found[name]
    try:
        return SamplingParams(temperature=CHAT_DEFAULTS.temperature).changed(**found)
    except LocalInferError as error:
        raise FormatError(f"the file recommends what makes no sense (general.sampling.…): {error.message}") from error
