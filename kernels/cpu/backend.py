"""The CPU backend: native kernels chosen by instruction set, one native call per step."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from localinfer.errors import FormatError, LocalInferError, MemoryPlanError, UnsupportedError
from localinfer.kernels.base import (
    Availability,
    Batch,
    Cancelled,
    KvType,
    LoadConfig,
    MemoryPlan,
    Progress,
    Tensor,
    TensorSource,
    row_range,
)
from localinfer.kernels.cpu import topology
from localinfer.kernels.cpu.codebooks import install_codebooks
from localinfer.kernels.cpu.lower import USE_REFERENCE, Lowered, LoweredProgram, Place, lower
from localinfer.kernels.cpu.native import (
    ACTIVATIONS,
    CHUNK,
    INDEXES,
    KINDS,
    KV_TYPES,
    PURPOSES,
    BatchView,
    Config,
    NativeOp,
    ValueRef,
    isa_names,
    library,
)
from localinfer.kernels.program import Linear, Matrix, Program, Vector

if TYPE_CHECKING:
    import numpy.typing as npt

    from localinfer.kernels.cpu.statistics import InputSums


class CpuBackend:
    """Runs on any CPU; fast where an instruction set of `native/isa.cpp` is there.

    `isa` forces one by name ("portable", "avx2", "avx512vnni"); the default is the environment variable
    LOCALINFER_CPU_ISA, else the best.
    """

    name = "cpu"

    def __init__(self, isa: str | None = None) -> None:
        self._isa = isa or os.environ.get("LOCALINFER_CPU_ISA") or None
        self._lowered: tuple[Program, LoweredProgram, ctypes.Array[NativeOp]] | None = None  # planned, to be loaded

    @cached_property
    def default_threads(self) -> int:
        """Looked up once: it takes reading some seventy files."""
        return topology.default_threads()

    @property
    def isa(self) -> str:
        """The instruction set whose kernels run."""
        names = isa_names()
        if self._isa is not None and self._isa not in names:
            raise UnsupportedError(
                f"the instruction set {self._isa!r} cannot run on this processor", f"usable here: {', '.join(names)}"
            )
        return self._isa or names[-1]

    def availability(self) -> Availability:
        try:
            names, isa = isa_names(), self.isa
        except LocalInferError as error:
            return Availability(False, error.message)
        threads = self.default_threads
        limit = topology.quota()
        details = {
            "instruction sets": ", ".join(names),
            "in use": isa,
            "threads": str(threads),
            "logical processors allowed": str(len(topology.allowed_cpus())),
            "container quota": "none" if limit is None else f"{limit:g} processors",
        }
        return Availability(True, f"{isa} kernels, {threads} thread{'s' if threads != 1 else ''}", details)

    def plan(self, program: Program, tensors: TensorSource, config: LoadConfig) -> MemoryPlan:
        with self._building(program, tensors, config, only_plan=True) as building:
            building.reserve(only_plan=True)
            return MemoryPlan(building.reserved())

    def load(
        self, program: Program, tensors: TensorSource, config: LoadConfig, progress: Progress | None = None
    ) -> CpuExecutable:
        with self._building(program, tensors, config, only_plan=False) as building:
            building.reserve(only_plan=False)
            building.load_weights(progress)
            return building.finish()

    @contextmanager
    def _building(
        self, program: Program, tensors: TensorSource, config: LoadConfig, only_plan: bool
    ) -> Iterator[_Building]:
        config = replace(config, threads=config.threads or self.default_threads)
        building = _Building(self.isa, program, *self._lower(program, tensors), config)
        try:
            building.describe(tensors, only_plan)
            yield building
        finally:
            building.close()

    def _lower(self, program: Program, tensors: TensorSource) -> tuple[LoweredProgram, ctypes.Array[NativeOp]]:
        if self._lowered is None or self._lowered[0] is not program:
            types = {m: tensors.tensor(m.name).type for m in program.matrices()}
            install_codebooks(library(), (t.name for t in types.values()))
            isa = self.isa.encode()
            integer = frozenset(m for m, t in types.items() if library().li_cpu_integer_type(isa, t.id))
            lowered = lower(program, integer)
            ops = (NativeOp * len(lowered.ops))(*(_native_op(op) for op in lowered.ops))
            self._lowered = program, lowered, ops
        return self._lowered[1:]


class CpuExecutable:
    """A loaded model; see `kernels.base.Executable`."""

    def __init__(self, model: int, program: Program, ops: list[Lowered], memory: MemoryPlan, threads: int) -> None:
        self._model: int | None = model
        self._program = program
        self._lock = threading.RLock()  # close may come from another thread, and from a signal handler
        self._process = os.getpid()
        self._ops = ops
        self._sums: Mapping[Linear, InputSums] = {}
        self.memory = memory
        self.threads = threads

    def step(self, batch: Batch) -> CpuLogits:
        native = library()
        self._run(native.li_cpu_step, batch)
        return CpuLogits(len(batch.logit_rows), self._program.output.width, native.li_cpu_logits(self._model))

    def hidden(self, batch: Batch) -> CpuHidden:
        native = library()
        value = self._program.up_to_hidden()[-1].outputs[0]
        self._run(native.li_cpu_hidden_step, batch)
        return CpuHidden(len(batch.logit_rows), value.width, native.li_cpu_hidden(self._model))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        native, model = library(), self._handle()
        flat = array("i", (block for pair in pairs for block in pair))
        if native.li_cpu_copy_blocks(model, _address(flat), len(pairs)):
            raise ValueError(f"the copy was refused: {native.li_cpu_error(model).decode()}")

    def _run(self, step: Callable[..., int], batch: Batch) -> None:
        native = library()
        arrays = (
            batch.tokens,
            batch.positions,
            batch.starts,
            batch.block_table,
            batch.table_starts,
            batch.logit_rows,
        )
        if batch.types and len(batch.types) != len(batch.tokens):
            raise ValueError("tokens and types differ in length")
        if len(batch.positions) != len(batch.tokens) or len(batch.table_starts) != len(batch.starts):
            raise ValueError("tokens and positions, or starts and table_starts, differ in length")
        view = BatchView(
            len(batch.tokens),
            len(batch.starts) - 1,
            len(batch.logit_rows),
            len(batch.block_table),
            *(_address(a) for a in arrays),
            _address(batch.types) if batch.types else None,
        )
        model = self._handle()
        outcome = step(model, ctypes.byref(view))
        if outcome == 1:
            raise Cancelled
        if outcome:
            raise ValueError(f"the step was refused: {native.li_cpu_error(model).decode()}")

    def collect(self, sums: Mapping[Linear, InputSums]) -> None:
        """From now on steps add the inputs of these ops of the program to the sums; an empty mapping ends that.

        What one input adds is the same for any number of threads, instruction set, and division into steps. ValueError
        if sums are of another size than their input.
        """
        from localinfer.kernels.cpu.statistics import statistics_library

        native, model = statistics_library(), self._handle()
        linears = [op for op in self._program.ops if isinstance(op, Linear)]
        places = [index for index, op in enumerate(self._ops) if op.kind == "linear"]
        for op, place in zip(linears, places, strict=True):
            found = sums.get(op)
            arguments = (0, op.x.width, 0, 0, 0) if found is None else found.arguments
            if native.li_cpu_collect(model, place, *arguments):
                raise ValueError(f"{op}: {native.li_cpu_error(model).decode()}")
        self._sums = dict(sums)  # native code writes into them

    def cancel(self) -> None:
        with self._lock:
            if self._model is not None:
                library().li_cpu_cancel(self._model)

    def close(self) -> None:
        with self._lock:
            model, self._model = self._model, None
            if model is not None:
                library().li_cpu_destroy(model)

    def profile(self) -> list[tuple[Lowered, float]]:
        """Seconds that thread 0 spent in each native op since the last call; the first call only starts the clock."""
        seconds = array("d", bytes(8 * len(self._ops)))
        library().li_cpu_profile(self._handle(), seconds.buffer_info()[0], len(self._ops))
        return list(zip(self._ops, seconds, strict=True))

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()

    def _handle(self) -> int:
        if self._model is None:
            raise RuntimeError("the model is closed")
        if os.getpid() != self._process:  # its threads did not come along
            raise LocalInferError("a loaded model cannot be used after fork()", "load it in the new process")
        return self._model


class CpuLogits:
    """The logits of one step; see `kernels.base.Logits`."""

    def __init__(self, rows: int, vocab_size: int, address: int) -> None:
        self.rows = rows
        self.vocab_size = vocab_size
        self.address = address

    def numpy(self) -> npt.NDArray[Any]:
        return _matrix_at(self.address, self.rows, self.vocab_size)


class CpuHidden:
    """The hidden states of one step; see `kernels.base.Hidden`."""

    def __init__(self, rows: int, size: int, address: int) -> None:
        self.rows = rows
        self.size = size
        self.address = address

    def numpy(self) -> npt.NDArray[Any]:
        return _matrix_at(self.address, self.rows, self.size)


def _matrix_at(address: int, rows: int, columns: int) -> npt.NDArray[Any]:
    """A view of float32 `[rows, columns]` in native memory."""
    import numpy as np

    if rows * columns == 0:
        return np.zeros((rows, columns), np.float32)
    values = (ctypes.c_float * (rows * columns)).from_address(address)
    return np.frombuffer(memoryview(values), np.float32).reshape(rows, columns)


class _Building:
    """A native model between creation and the first step."""

    def __init__(
        self,
        isa: str,
        program: Program,
        lowered: LoweredProgram,
        ops: ctypes.Array[NativeOp],
        config: LoadConfig,
    ) -> None:
        self.program = program
        self.lowered = lowered
        self.ops = ops
        self.native = library()
        self.isa = isa.encode()
        self.threads = config.threads
        if config.block_size % 8 or CHUNK % config.block_size:
            raise UnsupportedError(
                f"KV blocks of {config.block_size} tokens", "the cpu backend takes 8, 16, 32, 64, 128 or 256"
            )
        native_config = Config(
            config.max_tokens,
            config.max_rows,
            config.max_sequences,
            config.context,
            config.kv_blocks,
            config.block_size,
            _kv_type(config.kv_type_k),
            _kv_type(config.kv_type_v),
            self.threads,
            _pool_of(self.threads),
            self.isa,
        )
        self.model: int = self.native.li_cpu_create(ctypes.byref(native_config))
        if not self.model:
            raise MemoryPlanError("out of memory", "close other programs or use a smaller model")
        self.files: dict[str, int] = {}
        self.weight_bytes = 0  # in the file

    def describe(self, tensors: TensorSource, only_plan: bool) -> None:
        """Declares matrices, vectors, ropes and KV layers. Who only plans opens no file: it may not be written yet."""
        for matrix in self.lowered.matrices:
            tensor = tensors.tensor(matrix.name)
            self._add_matrix(matrix, tensor, -1 if only_plan else self._open(tensor))
        for vector in self.lowered.vectors:
            values = _vector_values(tensors.tensor(vector.name), vector)
            self._check(self.native.li_cpu_add_vector(self.model, _address(values), len(values)))
        for rope in self.lowered.ropes:
            frequencies = array("d", rope.inverse_frequencies)
            self._check(
                self.native.li_cpu_add_rope(
                    self.model, _address(frequencies), len(frequencies), rope.magnitude, rope.pairs == "adjacent"
                )
            )
        for layer in self.program.kv:
            self._check(self.native.li_cpu_add_kv_layer(self.model, layer.n_kv_heads, layer.head_dim))

    def _open(self, tensor: Tensor) -> int:
        path = str(tensor.path)
        if path not in self.files:
            self.files[path] = os.open(path, os.O_RDONLY)
        return self.files[path]

    def _add_matrix(self, matrix: Matrix, tensor: Tensor, file: int) -> None:
        if self.native.li_cpu_group_bytes(self.isa, tensor.type.id, matrix.cols) == 0:
            raise UnsupportedError(
                f"tensor {tensor.name} is {tensor.type.name} with {matrix.cols} columns, which the cpu backend lacks",
                f"use a file quantized to another type, or {USE_REFERENCE}",
            )
        offset, size = row_range(tensor, matrix.start, matrix.rows)
        self.weight_bytes += size
        self._check(
            self.native.li_cpu_add_matrix(
                self.model,
                tensor.type.id,
                matrix.rows,
                matrix.cols,
                file,
                tensor.offset + offset,
                tensor.type.row_bytes(matrix.cols),
            )
        )

    def reserve(self, only_plan: bool) -> None:
        low = self.lowered
        widths, cols = array("i", low.slot_widths), array("i", low.quantized_cols)
        self.native.li_cpu_set_hidden(self.model, low.first_of_rows, low.hidden)
        self._check(
            self.native.li_cpu_reserve(
                self.model, self.ops, len(self.ops), _address(widths), len(widths), _address(cols), len(cols), only_plan
            )
        )

    def reserved(self) -> dict[str, int]:
        numbers = self.native.li_cpu_reserved(self.model)
        return {purpose: int(numbers[i]) for i, purpose in enumerate(PURPOSES)}

    def load_weights(self, progress: Progress | None) -> None:
        """Reads and packs the weights; with `progress`, a thread watches the native counter meanwhile."""
        total = self.weight_bytes
        finished = threading.Event()

        def watch(report: Progress) -> None:
            while not finished.wait(0.1):
                report(self.native.li_cpu_progress(self.model), total)

        watcher = threading.Thread(target=watch, args=(progress,)) if progress else None
        if watcher:
            watcher.start()
        try:
            failed = self.native.li_cpu_load_weights(self.model)
        finally:
            finished.set()
            if watcher:
                watcher.join()
        if failed:
            raise FormatError(
                f"the weights could not be read: {self.native.li_cpu_error(self.model).decode()}",
                "check the file with `localinfer show`, or download it again",
            )
        if progress:
            progress(total, total)

    def finish(self) -> CpuExecutable:
        model, self.model = self.model, 0
        memory = MemoryPlan({p: int(n) for p, n in zip(PURPOSES, self.native.li_cpu_reserved(model), strict=False)})
        return CpuExecutable(model, self.program, self.lowered.ops, memory, self.threads)

    def close(self) -> None:
        if self.model:
            self.native.li_cpu_destroy(self.model)
        for file in self.files.values():
            os.close(file)

    def _check(self, result: int) -> None:
        if result < 0:
            raise MemoryPlanError(
                f"the model could not be set up: {self.native.li_cpu_error(self.model).decode()}",
                "use a smaller context (--context) or a smaller model",
            )


@cache
def _pool() -> int | None:
    """The native pool: one per process, shared by every model. None if there was no memory for it."""
    pool: int | None = library().li_cpu_pool_create()
    return pool


def _pool_of(threads: int) -> int:
    """The process's pool, with at least that many threads."""
    pool = _pool()
    if pool is None or library().li_cpu_pool_grow(pool, threads) < 0:
        raise LocalInferError(f"{threads} threads could not be started", "use fewer: --threads")
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _kv_type(name: KvType) -> int:
    if name not in KV_TYPES:
        raise UnsupportedError(f"KV type {name!r} on the cpu backend", f"it has {', '.join(KV_TYPES)}")
    return KV_TYPES.index(name)


def _address(values: array[Any]) -> int:
    return values.buffer_info()[0]


def _vector_values(tensor: Tensor, vector: Vector) -> array[float]:
    """A norm's gain or a bias as float32."""
    if tensor.type.name not in ("F32", "F16", "BF16"):
        raise UnsupportedError(
            f"tensor {tensor.name} is a vector of type {tensor.type.name}", "F32, F16 or BF16 are read"
        )
    size = tensor.type.block_bytes
    data = bytes(tensor.buffer[vector.start * size : (vector.start + vector.size) * size])
    if tensor.type.name == "F16":
        import struct

        return array("f", struct.unpack(f"<{vector.size}e", data))
    if tensor.type.name == "BF16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    values = array("f")
    values.frombytes(data)
    return values


def _native_op(op: Lowered) -> NativeOp:
    native = NativeOp(
        kind=KINDS.index(op.kind),
        barrier_single=op.barrier_single,
        barrier_batch=op.barrier_batch,
        by_columns=op.by_columns,
        n_matrices=len(op.matrices),
        activations=op.activations,
        vector=op.vector,
        bias=op.bias,
        rope=op.rope,
        layer=op.layer,
        group=op.group,
        heads=op.heads,
        head_dim=op.head_dim,
        window=op.window,
        activation=ACTIVATIONS.index(op.activation),
        index=INDEXES.index(op.index),
        factor=op.factor,
        softcap=op.softcap,
    )
    for target, places in ((native.inputs, op.inputs), (native.outputs, op.outputs)):
        for i, place in enumerate(places):
            target[i] = _value_ref(place)
    for i, matrix in enumerate(op.matrices):
        native.matrices[i] = matrix
        native.biases[i] = op.biases[i] if op.biases else -1
    return native


def _value_ref(place: Place) -> ValueRef:
    return ValueRef(place.slot, place.width, 0 if place.dim == "tokens" else 1, place.private)
