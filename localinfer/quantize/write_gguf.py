"""Making a GGUF file: tensor by tensor, in parallel, in little memory, gone on with after an interruption."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.formats.gguf import GGUFFile
from localinfer.formats.gguf_writer import GGUFLayout, GGUFWriter, TensorInfo, encode_value
from localinfer.formats.model_file import ModelFile
from localinfer.kernels.types import TYPES
from localinfer.quantize.convert import Job, convert, pieces, source_bytes
from localinfer.quantize.provenance import KEY, UNKNOWN_HASH, TensorRecord
from localinfer.quantize.work import WorkFile

QUANTIZATION_VERSION = 2  # of the block formats, as general.quantization_version counts
_DROP_AFTER = 256 << 20  # bytes of the source that may stay mapped
# Told about the file it was in, or about how that was quantized.
_NOT_COPIED = ("split.", "quantize.imatrix.", "localinfer.")

Progress = Callable[[str, int, int], None]
Hashes = dict[str, tuple[str, str]]  # tensor name → sha256 of the source's bytes and of the result's


@dataclass(frozen=True)
class Piece:
    """A run of rows on its way: the future of its bytes."""

    job: Job
    start: int
    rows: int
    result: Future[bytes | bytearray | memoryview]

    @property
    def ends_tensor(self) -> bool:
        return self.start + self.rows == self.job.rows


def metadata_pairs(model: ModelFile, file_type: int, provenance: str) -> dict[str, bytes]:
    """All metadata of the source, exactly as it lies there if it is GGUF; file type and provenance are ours."""
    pairs = {
        key: model.encoded(key) if isinstance(model, GGUFFile) else encode_value(value)
        for key, value in model.metadata.items()
        if not key.startswith(_NOT_COPIED)
    }
    pairs["general.file_type"] = encode_value(file_type)
    pairs["general.quantization_version"] = encode_value(QUANTIZATION_VERSION)
    pairs[KEY] = encode_value(provenance)
    return pairs


def records(jobs: Sequence[Job], hashes: Hashes) -> dict[str, TensorRecord]:
    """What provenance says of every tensor; of those without hashes yet, with blanks of the same length."""
    return {
        job.tensor.name: TensorRecord(
            job.choice.type,
            job.method,
            job.calibrated,
            job.tensor.type.name,
            *hashes.get(job.tensor.name, (UNKNOWN_HASH, UNKNOWN_HASH)),
        )
        for job in jobs
    }


def layout_of(model: ModelFile, jobs: Sequence[Job], file_type: int, provenance: str) -> GGUFLayout:
    """Where everything will lie."""
    infos = [TensorInfo(job.tensor.name, TYPES[job.choice.type], job.tensor.shape) for job in jobs]
    return GGUFLayout(metadata_pairs(model, file_type, provenance), infos)


def fingerprint(jobs: Sequence[Job], layout: GGUFLayout, sources: Sequence[object], calibration: object) -> str:
    """A line that is the same exactly if an interrupted file can be gone on with."""
    parts = [
        [asdict(source) for source in sources],  # type: ignore[call-overload]
        [[job.tensor.name, job.tensor.type.name, job.choice.type, job.method, job.calibrated] for job in jobs],
        [len(layout.header), layout.size, calibration],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_room(path: Path, size: int, present: int = 0) -> None:
    """LocalInferError if `size` bytes, of which `present` are there already, do not fit the disk of `path`."""
    free = shutil.disk_usage(path.parent).free
    if size - present > free:
        raise LocalInferError(
            f"{path.parent} has {free / 1e9:.1f} GB free, and {path.name} needs {(size - present) / 1e9:.1f} GB",
            "free some space, or write to another disk with --output",
        )


def write_tensors(
    model: ModelFile, jobs: Sequence[Job], work: WorkFile, writer: GGUFWriter, threads: int, progress: Progress
) -> Hashes:
    """Makes every tensor that is not there yet; returns the hashes of all.

    Threads convert pieces; this one takes them in order, hashes and writes. At most two pieces per thread wait, so
    memory does not grow with the model.
    """
    total = sum(job.tensor.nbytes for job in jobs)
    hashes = _kept(jobs, work, writer)
    done = sum(job.tensor.nbytes for job in jobs if job.tensor.name in hashes)
    progress("quantizing", done, total)
    missing = [job for job in jobs if job.tensor.name not in hashes]
    source_hash, result_hash = hashlib.sha256(), hashlib.sha256()
    mapped = 0
    for piece in _in_order(missing, threads):
        data = piece.result.result()
        source = source_bytes(piece.job, piece.start, piece.rows)
        source_hash.update(source)
        result_hash.update(data)
        writer.write(piece.job.tensor.name, piece.start * piece.job.row_bytes, data)
        done, mapped = done + len(source), mapped + len(source)
        if piece.ends_tensor:
            name = piece.job.tensor.name
            hashes[name] = (source_hash.hexdigest(), result_hash.hexdigest())
            work.note(name, *hashes[name])
            source_hash, result_hash = hashlib.sha256(), hashlib.sha256()
        if mapped > _DROP_AFTER:
            mapped = 0
            model.drop_pages()
        progress("quantizing", done, total)
    return hashes


def _kept(jobs: Sequence[Job], work: WorkFile, writer: GGUFWriter) -> Hashes:
    """Tensors of an interrupted file whose bytes are those that its journal says."""
    kept: Hashes = {}
    for job in jobs:
        noted = work.finished.get(job.tensor.name)
        if noted is None:
            continue
        found = hashlib.sha256()
        for start, rows in pieces(job):
            found.update(writer.read(job.tensor.name, start * job.row_bytes, rows * job.row_bytes))
        if found.hexdigest() == noted[1]:
            kept[job.tensor.name] = noted
    return kept


def _in_order(jobs: Sequence[Job], threads: int) -> Iterator[Piece]:
    """Pieces of all jobs in order, while the next are being converted.

    Error feedback runs on all threads by itself; for it, pieces are converted one after the other.
    """
    waiting: deque[Piece] = deque()
    with ThreadPoolExecutor(threads, "quantize") as pool:
        try:
            for job in jobs:
                alone = job.calibration.hessian is not None
                for start, rows in pieces(job):
                    while waiting and (alone or len(waiting) >= 2 * threads):
                        yield waiting.popleft()
                    result = pool.submit(convert, job, start, rows, threads if alone else 1)
                    waiting.append(Piece(job, start, rows, result))
            while waiting:
                yield waiting.popleft()
        finally:
            pool.shutdown(cancel_futures=True)

