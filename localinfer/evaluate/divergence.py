"""How well a model predicts a text, and how far its predictions are from those of the model that it was made of.

The source is asked first, then the model; kept are hidden states, from which the logits come again (halves.py). So the
two are never in memory together, and a source that many models are compared with runs once (`Reference`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from localinfer.checkpoints import open_model
from localinfer.engine.checks import token_ids
from localinfer.engine.load import choose_backend
from localinfer.errors import LocalInferError
from localinfer.evaluate.figures import Figure, mean, quantiles
from localinfer.evaluate.halves import Head, States, compute_states, tile_rows
from localinfer.evaluate.windows import Windows, begin_of, cut
from localinfer.formats.closing import Closing
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Backend, KvType, Logits, Progress
from localinfer.kernels.cpu.topology import default_threads
from localinfer.kernels.host.divergence import COLUMNS, row_divergences, row_losses
from localinfer.models import record
from localinfer.text.tokenizer import load_tokenizer
from localinfer.text.vocabulary_difference import vocabulary_difference

Model = ModelFile | Path | str
KvTypes = tuple[KvType, KvType]
F16: KvTypes = ("f16", "f16")
Report = Callable[[str, int, int], None]  # what is done ("model.gguf"), tokens or rows done, and in all

SEGMENT_BYTES = 256 * 2**20  # of hidden states that are in memory together


class Loss(NamedTuple):
    """How well a model predicts a text.

    windows     independent pieces of the text, of `window` tokens each
    positions   predictions that count, in all windows together
    loss        mean of -log p(token) in nats; `perplexity` is its exponential
    """

    windows: int
    window: int
    positions: int
    loss: Figure
    perplexity: Figure

    def as_data(self) -> dict[str, Any]:
        """For JSON: figures as {"value", "error"}."""
        return _as_data(self)


class Comparison(NamedTuple):
    """How far a model is from its source, over the predictions of a text.

    perplexity, source_perplexity   of both
    loss_difference                 mean of the model's loss minus the source's, in nats, prediction by prediction
    kl_mean, kl_median, kl_p99      of KL(source || model) in nats, over the whole vocabulary; p99 is exceeded by 1 %
    kl_max                          the largest; it has no error, and grows with the number of predictions
    top1                            the part of predictions whose likeliest token is the same
    """

    windows: int
    window: int
    positions: int
    perplexity: Figure
    source_perplexity: Figure
    loss_difference: Figure
    kl_mean: Figure
    kl_median: Figure
    kl_p99: Figure
    kl_max: float
    top1: Figure

    def as_data(self) -> dict[str, Any]:
        """For JSON: figures as {"value", "error"}."""
        return _as_data(self)


def loss(
    model: Model,
    windows: Windows,
    *,
    kv_types: KvTypes = F16,
    backend: str = "auto",
    threads: int = 0,
    report: Report | None = None,
) -> Loss:
    """How well a model predicts windows of text. Raises as `compare` does."""
    with _opened(model) as file:
        settings = _Settings(windows, choose_backend(backend)[0], threads, report)
        with _states(file, settings, kv_types) as states:
            values = array("d")
            for targets, (logits,) in _tiles(settings, (file, states)):
                values += row_losses(logits.address, logits.vocab_size, targets, settings.workers)
    average = mean(values, len(windows.tokens))
    perplexity = math.exp(average.value)
    return Loss(len(windows.tokens), windows.size, len(values), average, average.scaled(perplexity, perplexity))


def compare(
    model: Model,
    source: Model,
    tokens: Windows | Sequence[int],
    *,
    kv_types: KvTypes = F16,
    backend: str = "auto",
    threads: int = 0,
    report: Report | None = None,
) -> Comparison:
    """Compares a model with its source over a text: windows of it, or its token ids, which are cut into windows.

    Both are paths (of whatever `open_model` opens) or open files, which stay open. `kv_types` are those of the model's
    keys and values; the source has f16. LocalInferError if their vocabularies differ, if a logit is not a number, or if
    a file cannot be opened or run; MemoryPlanError if one does not fit what is free.
    """
    with _opened(source) as file, _opened(model) as other:
        _refuse_other_vocabulary(file, other)
        with Reference(file, tokens, backend=backend, threads=threads, report=report) as reference:
            return reference.compare(other, kv_types=kv_types)


class Reference(Closing):
    """A source that any number of models are compared with. Use it in a `with` statement; arguments as of `compare`."""

    def __init__(
        self,
        source: Model,
        tokens: Windows | Sequence[int],
        *,
        kv_types: KvTypes = F16,
        backend: str = "auto",
        threads: int = 0,
        report: Report | None = None,
    ) -> None:
        with ExitStack() as stack:
            self._file = stack.enter_context(_opened(source))
            windows = tokens if isinstance(tokens, Windows) else _windows(self._file, tokens)
            self._settings = _Settings(windows, choose_backend(backend)[0], threads, report)
            self._states = stack.enter_context(_states(self._file, self._settings, kv_types))
            self._stack = stack.pop_all()

    def compare(self, model: Model, *, kv_types: KvTypes = F16) -> Comparison:
        """Compares a model with this source; raises as the function `compare` does."""
        settings, rows = self._settings, array("d")
        with _opened(model) as file:
            _refuse_other_vocabulary(self._file, file)
            with _states(file, settings, kv_types) as states:
                for targets, (p, q) in _tiles(settings, (self._file, self._states), (file, states)):
                    rows += row_divergences(p.address, q.address, p.vocab_size, targets, settings.workers)
        return _comparison(settings.windows, rows)

    def close(self) -> None:
        self._stack.close()


class _Settings(NamedTuple):
    windows: Windows
    backend: Backend
    threads: int
    report: Report | None

    @property
    def workers(self) -> int:
        """Threads that reduce logits."""
        return self.threads or default_threads()

    def progress(self, what: str) -> Progress | None:
        report = self.report
        return None if report is None else lambda done, total: report(what, done, total)


def _refuse_other_vocabulary(source: ModelFile, model: ModelFile) -> None:
    difference = vocabulary_difference(source.metadata, model.metadata)
    sizes = [record(file.metadata, file).vocab_size for file in (source, model)]
    if not difference and sizes[0] != sizes[1]:
        difference = f"one has logits of {sizes[0]} tokens, the other of {sizes[1]}"
    if difference:
        raise LocalInferError(
            f"{model.paths[0]} cannot be compared with {source.paths[0]}, because its vocabulary is another one: "
            f"{difference}",
            "a model can only be compared with one that has the same tokens",
        )


@contextmanager
def _opened(model: Model) -> Iterator[ModelFile]:
    """Closes what it opens, and leaves open what was open."""
    if isinstance(model, Path | str):
        with open_model(model) as file:
            yield file
    else:
        yield model


def _windows(file: ModelFile, tokens: Sequence[int]) -> Windows:
    tokenizer = load_tokenizer(file.metadata)
    return cut(token_ids("tokens", tokens, tokenizer.vocab_size), begin_of(tokenizer))


@contextmanager
def _states(file: ModelFile, settings: _Settings, kv_types: KvTypes) -> Iterator[States]:
    name = file.paths[0].name
    states = compute_states(
        file,
        settings.windows,
        settings.backend,
        kv_types=kv_types,
        threads=settings.threads,
        loading=settings.progress(f"loading {name}"),
        progress=settings.progress(f"running {name}"),
    )
    try:
        yield states
    finally:
        states.close()


def _tiles(settings: _Settings, *models: tuple[ModelFile, States]) -> Iterator[tuple[array[int], list[Logits]]]:
    """Logits of all models for the same predictions, some rows at a time, with the tokens to predict."""
    targets = settings.windows.targets
    tell = settings.progress("comparing" if len(models) > 1 else "scoring")
    tile = tile_rows(models[0][1].program.vocab_size)
    segment = max(tile, SEGMENT_BYTES // (4 * max(states.width for _, states in models)))
    for begin in range(0, len(targets), segment):
        end = min(begin + segment, len(targets))
        with ExitStack() as stack:
            heads = []
            for file, states in models:
                head = Head(file, states, begin, end - begin, settings.backend, tile=tile, threads=settings.threads)
                stack.callback(head.close)
                heads.append(head)
            for first in range(begin, end, tile):
                wanted = targets[first : min(first + tile, end)]
                yield wanted, [head.logits(first - begin, len(wanted)) for head in heads]
                if tell is not None:
                    tell(first + len(wanted), len(targets))


def _comparison(windows: Windows, rows: array[float]) -> Comparison:
    count = len(windows.tokens)
    source, model, divergence, same = (rows[column::COLUMNS] for column in range(COLUMNS))
    losses = [mean(values, count) for values in (model, source)]
    perplexities = [figure.scaled(math.exp(figure.value), math.exp(figure.value)) for figure in losses]
    median, p99 = quantiles(divergence, count, (0.5, 0.99))
    return Comparison(
        windows=count,
        window=windows.size,
        positions=len(divergence),
        perplexity=perplexities[0],
        source_perplexity=perplexities[1],
        loss_difference=mean([ours - theirs for ours, theirs in zip(model, source, strict=True)], count),
        kl_mean=mean(divergence, count),
        kl_median=median,
        kl_p99=p99,
        kl_max=max(divergence),
        top1=mean(same, count),
    )


def _as_data(found: Loss | Comparison) -> dict[str, Any]:
    return {name: value._asdict() if isinstance(value, Figure) else value for name, value in found._asdict().items()}
