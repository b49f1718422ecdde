"""How much each tensor's errors cost, measured: the KL divergence of a model in which one tensor alone is quantized.

For small errors, the divergence grows with the square of what an error does to a product. So one measurement per tensor
gives the price of its error, and errors in other types are computed from the weights and the statistics of the inputs:

    divergence(tensor in type) ≈ divergence(tensor in the probe's type) · error(type) / error(the probe's type)

where an error is the mean of |Δ x|² over inputs x, Δ being what quantizing changes in the matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from localinfer.evaluate.divergence import Reference
from localinfer.evaluate.windows import Windows
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.base import Tensor
from localinfer.kernels.types import TYPES
from localinfer.quantize.allocate import Option
from localinfer.quantize.convert import NONE, Calibration, GGUFJob, quantized
from localinfer.quantize.overlay import Overlay, Scratch
from localinfer.quantize.recipes import Choice
from localinfer.quantize.report import Report
from localinfer.quantize.work import Journal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Types that mixed precision chooses from, smallest first; which of them fit depends on a tensor's columns.
LADDER = ("Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_K", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0")
_SAMPLED_ROWS = 256


class Probe(NamedTuple):
    """A measurement: the mean KL divergence, in nats, of the model with this tensor in this type."""

    tensor: str
    type: str
    divergence: float


@dataclass(frozen=True)
class Prober:
    """Measures tensors of `model` over a text, as they are made with these calibrations."""

    model: ModelFile
    calibrations: Mapping[str, Calibration]
    threads: int = 0
    journal: Journal | None = None  # of measurements, where an interrupted run is to be gone on with

    def measure(self, probes: Mapping[str, str], windows: Windows, report: Report) -> list[Probe]:
        """One measurement per tensor: `probes` names the type that each is tried in."""
        known = {(name, kind): divergence for name, kind, divergence in (self.journal.entries if self.journal else [])}
        found = []
        with Reference(self.model, windows, threads=self.threads) as reference:
            for number, (name, kind) in enumerate(probes.items()):
                report.progress("measuring sensitivity", number, len(probes))
                if (name, kind) not in known:
                    known[name, kind] = self._divergence(reference, name, kind)
                found.append(Probe(name, kind, known[name, kind]))
        report.progress("measuring sensitivity", len(probes), len(probes))
        return found

    def _divergence(self, reference: Reference, name: str, kind: str) -> float:
        with Scratch() as scratch:
            tried = Overlay(self.model, {name: self.made(name, kind, scratch)})
            divergence = max(reference.compare(tried).kl_mean.value, 0.0)
        if self.journal is not None:
            self.journal.note([name, kind, divergence])
        self.model.drop_pages()
        return divergence

    def made(self, name: str, kind: str, scratch: Scratch) -> Tensor:
        """A tensor in another type, whole."""
        tensor = self.model.tensor(name)
        job = GGUFJob(tensor, Choice(name, tensor.shape, tensor.type.name, kind), self._calibration(name))
        parts = [
            part for start, rows in job.pieces() for part in job.convert(start, rows, self.threads)
        ]  # in order, so they only need to be joined
        return scratch.keep(name, kind, tensor.shape, b"".join(part.data for part in parts))

    def errors(self, name: str, kinds: Sequence[str]) -> dict[str, float]:
        """By type, the mean square of what quantizing changes in a product's results, summed over rows (a sample)."""
        import numpy as np

        from localinfer.checkpoints.values import float_rows

        tensor = self.model.tensor(name)
        rows = tensor.nbytes // tensor.type.row_bytes(tensor.shape[-1])
        step = max(1, rows // _SAMPLED_ROWS)
        weights = np.concatenate([float_rows(tensor, row, 1) for row in range(0, rows, step)])
        calibration, found = self._calibration(name), {}
        for kind in kinds:
            difference = dequantized(kind, quantized(kind, weights, calibration, self.threads), weights.shape) - weights
            found[kind] = product_error(difference, calibration) * rows / len(weights)
        return found

    def _calibration(self, name: str) -> Calibration:
        return self.calibrations.get(name, NONE)


def dequantized(kind: str, data: bytes | bytearray | memoryview, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """The numbers that blocks stand for."""
    from localinfer.kernels.reference.dequantize import dequantize

    return dequantize(TYPES[kind], data, shape)


def product_error(difference: npt.NDArray[np.float32], calibration: Calibration) -> float:
    """Σ over rows d of dᵀ H d, H being what is known of the inputs' second moments: all, their diagonal, or nothing."""
    import numpy as np

    if calibration.hessian is not None:
        total, begin = 0.0, 0
        for gram in calibration.hessian.grams:
            part = difference[:, begin : begin + len(gram)]
            total += float(np.sum((part @ gram) * part, dtype=np.float64))
            begin += len(gram)
        return total
    if calibration.importance is not None:
        return float(np.sum(np.square(difference, dtype=np.float64) @ calibration.importance.astype(np.float64)))
    return float(np.sum(np.square(difference, dtype=np.float64)))


def fitting(tensor: Tensor, types: Sequence[str] = LADDER) -> list[str]:
    """The types whose blocks divide the rows of a tensor, and that are smaller than its own."""
    columns = tensor.shape[-1]
    return [
        kind
        for kind in types
        if columns % TYPES[kind].block_size == 0 and TYPES[kind].row_bytes(columns) < tensor.type.row_bytes(columns)
    ]


def options_of(prober: Prober, probe: Probe, types: Sequence[str]) -> list[Option]:
    """What each type of a tensor costs, in bytes and in expected divergence."""
    tensor = prober.model.tensor(probe.tensor)
    errors = prober.errors(probe.tensor, [probe.type, *types])
    price = probe.divergence / errors[probe.type] if errors[probe.type] > 0 else 0.0
    return [
        Option(kind, Choice(probe.tensor, tensor.shape, tensor.type.name, kind).nbytes, price * errors[kind])
        for kind in types
    ]
