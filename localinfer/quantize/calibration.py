"""What the inputs of a model's matrices look like on a text: the statistics that quantizers are calibrated with.

The CPU backend adds them up while it reads the text (kernels/cpu/statistics.py), every sum in the order of the text:
they depend on model and text alone, not on threads or instruction set. Matrices that share an input share its sums.

A statistics file has the layout of safetensors: for input number N the tensors `N.squares` float64 `[cols]` and, if
second moments were collected, `N.gram.0`, `N.gram.1`, … float32 `[n, n]`; and "localinfer.statistics" in
`__metadata__` is one JSON text: {"schema", "text_sha256", "tokens", "window", "model", "inputs": [{"tensors", "cols",
"rows", "grams"}]}.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localinfer.checkpoints import open_model
from localinfer.errors import FormatError, LocalInferError
from localinfer.evaluate.halves import batches, record_for, running, trunk
from localinfer.evaluate.windows import WINDOW, windows_of
from localinfer.formats.model_file import ModelFile
from localinfer.formats.safetensors import open_safetensors
from localinfer.kernels import backend
from localinfer.kernels.program import Linear, Program, Value
from localinfer.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localinfer.kernels.cpu.statistics import InputSums
    from localinfer.kernels.quantize.quantizer import Hessian

KEY = "localinfer.statistics"
SCHEMA = 1
GRAM_BYTES = 2**30  # that all second moments may take together
BLOCKS = (2048, 1024, 512, 256, 128)  # columns of a block, where the whole matrix is too large: multiples of any type's
_HINT = "the file may be damaged, or no statistics of localinfer: calibrate again"


@dataclass(frozen=True)
class InputStatistics:
    """One input x of `cols` columns, seen `rows` times: sum of x² by column, and sums of x xᵀ by block of columns."""

    tensors: tuple[str, ...]  # the matrices that are multiplied with it
    rows: int
    squares: npt.NDArray[np.float64]
    grams: tuple[npt.NDArray[np.float32], ...] = ()

    @property
    def cols(self) -> int:
        return len(self.squares)


class Statistics:
    """The statistics of a text on a model, by the names of its tensors.

    origin   where they come from: "text_sha256" and "tokens" of the text, "window" (tokens read independently),
             "model"; of an imatrix file what it says
    """

    def __init__(self, inputs: Sequence[InputStatistics], origin: Mapping[str, Any]) -> None:
        self.inputs = tuple(inputs)
        self.origin = dict(origin)
        self._by_tensor = {name: found for found in self.inputs for name in found.tensors}

    @property
    def tensors(self) -> tuple[str, ...]:
        """The matrices that are known."""
        return tuple(self._by_tensor)

    def importance(self, tensor: str) -> npt.NDArray[np.float32] | None:
        """The mean of x² by column, float32 `[cols]`; None for a tensor that the statistics do not know."""
        import numpy as np

        found = self._by_tensor.get(tensor)
        return None if found is None else (found.squares / found.rows).astype(np.float32)

    def hessian(self, tensor: str) -> Hessian | None:
        """Sums of x xᵀ for the quantizer with error feedback; None where they were not collected."""
        found = self._by_tensor.get(tensor)
        if found is None or not found.grams:
            return None
        from localinfer.kernels.quantize.quantizer import Hessian

        return Hessian(found.grams)

    @cached_property
    def sha256(self) -> str:
        """Of the statistics file, which depends on nothing else than the statistics."""
        digest = hashlib.sha256()
        for part in self._file():
            digest.update(part)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """For provenance: origin and hash."""
        return {"sha256": self.sha256, **self.origin}

    def save(self, path: Path | str) -> None:
        """Writes a statistics file, which takes its name when it is complete. LocalInferError if that fails."""
        write_whole(Path(path), self._file())

    def _file(self) -> Iterator[bytes | memoryview]:
        header: dict[str, Any] = {"__metadata__": {KEY: self._metadata()}}
        position = 0
        for name, values in self._arrays():
            kind = "F64" if values.dtype.itemsize == 8 else "F32"
            end = position + values.nbytes
            header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [position, end]}
            position = end
        raw = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
        raw += b" " * (-len(raw) % 8)
        yield struct.pack("<Q", len(raw)) + raw
        for _, values in self._arrays():
            yield values.data.cast("B")

    def _arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """In the order of the file: what takes 8 bytes first, so that everything is aligned."""
        for number, found in enumerate(self.inputs):
            yield f"{number}.squares", found.squares
        for number, found in enumerate(self.inputs):
            for block, gram in enumerate(found.grams):
                yield f"{number}.gram.{block}", gram

    def _metadata(self) -> str:
        inputs = [
            {"tensors": list(x.tensors), "cols": x.cols, "rows": x.rows, "grams": len(x.grams)} for x in self.inputs
        ]
        return json.dumps({"schema": SCHEMA, **self.origin, "inputs": inputs}, ensure_ascii=True)


def load_statistics(path: Path | str) -> Statistics:
    """Reads a statistics file. FormatError if it is none, or damaged."""
    with open_safetensors(path) as file:
        try:
            found = json.loads(file.metadata[KEY])
            if found.pop("schema") != SCHEMA:
                raise FormatError(f"{path} has statistics of another version of localinfer", _HINT)
            described = found.pop("inputs")
            inputs = [_input(file.tensors, number, entry) for number, entry in enumerate(described)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{path} does not hold statistics of localinfer: {error}", _HINT) from error
    return Statistics(inputs, found)


def _input(tensors: Mapping[str, Any], number: int, entry: Mapping[str, Any]) -> InputStatistics:
    """ValueError if what the file holds is not what it describes."""
    import numpy as np

    def values(name: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        tensor = tensors[name]
        if tensor.dtype != kind or tensor.shape != shape:
            raise ValueError(f"{name} is {tensor.dtype} {tensor.shape}, not {kind} {shape}")
        found = np.frombuffer(tensor.buffer, np.float64 if kind == "F64" else np.float32).reshape(shape)
        if not np.isfinite(found).all():
            raise ValueError(f"{name} holds something that is not a number")
        return found.copy()

    cols, rows, names = int(entry["cols"]), int(entry["rows"]), tuple(map(str, entry["tensors"]))
    if rows < 1 or cols < 1:
        raise ValueError(f"input {number} has {rows} rows of {cols} columns")
    sides = [tensors[f"{number}.gram.{block}"].shape[0] for block in range(int(entry["grams"]))]
    if sides and sum(sides) != cols:
        raise ValueError(f"the second moments of input {number} have {sum(sides)} columns, not {cols}")
    grams = [values(f"{number}.gram.{block}", "F32", (side, side)) for block, side in enumerate(sides)]
    return InputStatistics(names, rows, values(f"{number}.squares", "F64", (cols,)), tuple(grams))


def collect(
    model: ModelFile | Path | str,
    text: str,
    *,
    grams: bool = False,
    window: int = WINDOW,
    most: int | None = None,
    threads: int = 0,
    gram_bytes: int = GRAM_BYTES,
    report: Callable[[str, int, int], None] | None = None,
) -> Statistics:
    """Reads a text with a model, in windows of `window` tokens (at most `most` of them), and adds up its statistics.

    With `grams`, second moments too: of all columns together, or in blocks where that would take more than
    `gram_bytes` for all matrices. `report` hears what is done, how far it is and how far it goes. LocalInferError if
    the model cannot be run or computes what is not a number, or if the text is shorter than a window; MemoryPlanError
    if it does not fit.
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_model(model)) if isinstance(model, Path | str) else model
        program = record_for(file, window)
        windows = windows_of(load_tokenizer(file.metadata), text, window, most)
        total = windows.size * len(windows.tokens)

        def loading(done: int, size: int) -> None:
            if report is not None:
                report(f"loading {file.paths[0].name}", done, size)

        sums = _sums_of(program, gram_bytes if grams else 0)
        executable = stack.enter_context(
            running(trunk(program), file, backend("cpu"), windows, threads=threads, loading=loading)
        )
        first: dict[Value, Linear] = {}
        for op in program.ops:
            if isinstance(op, Linear):
                first.setdefault(op.x, op)
        executable.collect({op: sums[x] for x, op in first.items() if x != program.hidden})  # type: ignore[attr-defined]
        done = 0
        for batch in batches(windows, everything=True):
            found = executable.step(batch)
            if program.hidden in sums:  # the head's input: what the step gives
                sums[program.hidden].add(found.address, found.rows)
            done += len(batch.tokens)
            if report is not None:
                report("calibrating", done, total)
        origin = {
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "tokens": total,
            "window": window,
            "model": file.paths[0].name,
        }
    return Statistics([_finished(x, sums[x], program, total) for x in sums], origin)


def _sums_of(program: Program, gram_bytes: int) -> dict[Value, InputSums]:
    """Sums for every input of a matrix product, in the order of the program."""
    from localinfer.kernels.cpu.statistics import InputSums

    inputs = dict.fromkeys(op.x for op in program.ops if isinstance(op, Linear))
    widths = [x.width for x in inputs]
    return {x: InputSums(x.width, block_of(widths, gram_bytes) if gram_bytes else 0) for x in inputs}


def block_of(widths: Sequence[int], gram_bytes: int) -> int:
    """How many columns second moments are kept for together: all, or the most of BLOCKS that take `gram_bytes`."""

    def size(block: int) -> int:
        return sum(4 * (width // block * block**2 + (width % block) ** 2) for width in widths)

    choices = (max(widths), *(block for block in BLOCKS if block < max(widths)))
    return next((block for block in choices if size(block) <= gram_bytes), choices[-1])


def _finished(x: Value, sums: InputSums, program: Program, rows: int) -> InputStatistics:
    names = dict.fromkeys(m.name for op in program.ops if isinstance(op, Linear) and op.x == x for m in op.matrices)
    if not math.isfinite(float(sums.squares.sum())):
        raise LocalInferError(
            f"the inputs of {next(iter(names))} are not all numbers",
            "the model's file may be damaged: see localinfer show",
        )
    return InputStatistics(tuple(names), rows, sums.squares, tuple(sums.symmetric_grams()))


def write_whole(path: Path, parts: Iterator[bytes | memoryview]) -> None:
    """Writes a file beside its place and moves it there when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(temporary, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LocalInferError(
            f"{path} cannot be written: {error.strerror}", "is there space, and may you write there?"
        ) from error
