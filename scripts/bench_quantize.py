"""Speed and peak memory of quantizing a model of a real one's shape, ours against llama-quantize.

    python scripts/bench_quantize.py [--shape 8b] [--layers N] [--types q4_k_m q8_0] [--folder DIR]

Writes an F16 source of random weights (16 GB for the whole 8b; --layers makes a smaller one), then lets both quantize
it in turns, as processes of their own: the time from start to end, and the most memory that was resident, mapped pages
of files included. Beside the time stands that of all processors together, which a busy machine disturbs less. Ours
hashes the source and every tensor meanwhile, and writes its provenance. Both get as many threads as there are
processors. Needs llama.cpp built by scripts/build_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
import shutil
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import gguf
import numpy as np
from command import LOCALINFER
from measure import print_result, table
from peer import Timed, add_peer_argument, binary, run_timed
from write_random_model import SHAPES, Shape, matrices, write_metadata

from localinfer.formats.file_writer import FileWriter
from localinfer.formats.gguf import open_gguf
from localinfer.formats.gguf_writer import GGUFLayout, TensorInfo
from localinfer.kernels.types import TYPES

POOL = 1 << 24  # random weights that rows are cut from
PIECE_BYTES = 1 << 26


def write_source(path: Path, shape: Shape) -> int:
    """Writes the model in F16, piece by piece; returns the number of weights in its matrices."""
    header = path.with_suffix(".header")
    writer = gguf.GGUFWriter(str(header), "llama")
    write_metadata(writer, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    norms = ["output_norm.weight"]
    norms += [f"blk.{i}.{part}_norm.weight" for i in range(shape.layers) for part in ("attn", "ffn")]
    infos = [TensorInfo(name, TYPES["F32"], (shape.width,)) for name in norms]
    infos += [TensorInfo(name, TYPES["F16"], (rows, columns)) for name, rows, columns, _ in matrices(shape)]
    with open_gguf(header) as file:
        layout = GGUFLayout({key: file.encoded(key) for key in file.metadata}, infos)
    header.unlink()
    pool = np.random.Generator(np.random.PCG64(1)).standard_normal(POOL, np.float32)
    with FileWriter(path, layout) as out:
        for info in infos[: len(norms)]:
            out.write(info.name, 0, np.ones(shape.width, "<f4").tobytes())
        for number, info in enumerate(infos[len(norms) :]):
            data = (np.roll(pool, 7919 * number) / math.sqrt(info.shape[1])).astype("<f2").tobytes()
            for at in range(0, info.nbytes, len(data)):
                out.write(info.name, at, memoryview(data)[: info.nbytes - at])
        out.flush()
    return sum(math.prod(info.shape) for info in infos[len(norms) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--types", nargs="+", default=["q4_k_m", "q8_0"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files go meanwhile (a temporary folder)")
    add_peer_argument(parser)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.layers is not None:
        shape = dataclasses.replace(shape, layers=arguments.layers)
    program = binary(arguments.llama_cpp, "llama-quantize")
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        weights = sum(rows * columns for _, rows, columns, _ in matrices(shape))
        needed, free = int(2.0 * weights + 1.2 * weights), shutil.disk_usage(folder).free
        if needed > free:
            raise SystemExit(f"error: {needed / 1e9:.0f} GB are needed in {folder}, and {free / 1e9:.0f} GB are free")
        source, output = folder / "source-f16.gguf", folder / "out.gguf"
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # its memory counts for no one
            pool.submit(write_source, source, shape).result()
        for kind in arguments.types:
            threads = len(os.sched_getaffinity(0))
            ours = [*LOCALINFER, "quantize", source, "--to", kind, "--no-report", "-o", output]
            theirs = [program, source, output, kind, threads]
            found: dict[str, list[Timed]] = {"ours": [], "theirs": []}
            for _ in range(arguments.rounds):
                for who, command in (("ours", ours), ("theirs", theirs)):
                    found[who].append(run_timed([str(part) for part in command], until_output=False))
                    size = output.stat().st_size
                    output.unlink()
            fastest = {who: min(runs, key=lambda run: run.seconds) for who, runs in found.items()}
            pairs = list(zip(found["ours"], found["theirs"], strict=True))
            rows.append(
                {
                    "type": kind,
                    "size": size,
                    "seconds": fastest["ours"].seconds,
                    "llama_cpp_seconds": fastest["theirs"].seconds,
                    "speed_ratio": statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs),
                    "processor_ratio": statistics.median(theirs.processor / ours.processor for ours, theirs in pairs),
                    "weights_per_second": weights / fastest["ours"].seconds,
                    "peak_bytes": max(run.peak for run in found["ours"]),
                    "llama_cpp_peak_bytes": max(run.peak for run in found["theirs"]),
                }
            )
    names = (
        "type",
        "bytes",
        "seconds",
        "llama.cpp",
        "its time / ours",
        "its processor time / ours",
        "weights/s",
        "peak bytes",
        "llama.cpp peak",
    )
    print(table(names, [tuple(row.values()) for row in rows]))
    print_result({"shape": shape.name, "layers": shape.layers, "weights": weights, "rows": rows})


if __name__ == "__main__":
    main()
