"""`localinfer bench NAME`"""

from typing import Annotated, Any

import typer

from localinfer.cli.options import Backend, Draft, Json, KvType, Model, Quant, Threads
from localinfer.cli.output import aside, emit_json, emit_table, note, size
from localinfer.errors import LocalInferError


def command(
    model: Model,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Prompt lengths to prefill, in tokens.")] = "512",
    decode: Annotated[str, typer.Option("--decode", "-n", help="Answer lengths to decode, in tokens.")] = "128",
    depth: Annotated[str, typer.Option("--depth", "-d", help="Tokens that are in the context before.")] = "0",
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="How often each case is measured.")] = 5,
    threads: Threads = 0,
    backend: Backend = "auto",
    kv_type: KvType = "f16",
    quant: Quant = "",
    determinism: Annotated[
        bool, typer.Option("--determinism", help="Compare tokens instead: alone and in crowds of every kind.")
    ] = False,
    draft: Draft = "",
    json: Json = False,
) -> None:
    """Measure how fast a model runs here.

    Prefill and decode of random tokens, at several lengths and depths if asked: --depth 0,4096.

    With --determinism, check that load changes no token: a recorded workload of mixed requests is answered one by one
    on one thread, and then in batches of up to 32, with and without prefix cache, preemption and drafts, on several
    threads. The exit code is 1 if any token differs.
    """
    if determinism:
        from localinfer.cli.determinism import check_determinism

        return check_determinism(
            model, quant=quant, draft=draft, threads=threads, backend=backend, kv_type=kv_type, json=json
        )
    if draft:
        raise typer.BadParameter("--draft goes with --determinism: the rates of a model do not depend on drafts")
    if rounds < 1:
        raise typer.BadParameter(f"--rounds is {rounds}, but must be at least 1")
    report = bench(
        model,
        prompts=_lengths("--prompt", prompt),
        decodes=_lengths("--decode", decode),
        depths=_lengths("--depth", depth),
        rounds=rounds,
        threads=threads,
        backend_name=backend,
        kv_type=kv_type,
        quant=quant,
    )
    if json:
        emit_json(report)
        return
    note(f"{report['model']['path']} ({size(report['model']['size'])}, sha256 {report['model']['sha256'][:12]}…)")
    details = "; ".join(f"{key}: {value}" for key, value in report["backend"].items())
    note(f"{report['hardware']['cpu']}; {details}; KV: {kv_type}")
    emit_table(
        ("what", "tokens", "depth", "tokens/s", "slowest", "fastest"),
        [
            (
                r["what"],
                r["tokens"],
                r["depth"],
                *(f"{r[key]:.1f}" for key in ("tokens_per_second", "slowest", "fastest")),
            )
            for r in report["results"]
        ],
    )
    aside(f"medians of {rounds} rounds; loaded in {report['load_seconds']:.2f} s; peak {size(report['peak_memory'])}")


def bench(
    model: str,
    *,
    prompts: list[int],
    decodes: list[int],
    depths: list[int],
    rounds: int,
    threads: int,
    backend_name: str,
    kv_type: str,
    quant: str = "",
) -> dict[str, Any]:
    """Loads the model, measures, and returns what `bench --json` prints:

    model         path, sha256 (of several files, several with commas), size in bytes, architecture, name
    hardware      cpu, memory in bytes
    backend       name, and what the backend says of itself (instruction sets, threads, quota)
    settings      kv_type, quant ("" for the types of the file), threads as asked for (0: by default), rounds, context,
                  chunk (tokens per step)
    versions      localinfer, python
    load_seconds (to plan, and to read and pack the weights), memory_plan (bytes by purpose), peak_memory (bytes
    resident, of the whole process)
    results       per case: what ("prefill", "decode"), tokens, depth, tokens_per_second (of the median round),
                  slowest, fastest (tokens/s), seconds (one per round)
    """
    import platform
    import time

    from localinfer import __version__
    from localinfer.bench.hardware import cpu_name, memory_bytes
    from localinfer.bench.measure import Stepper, cases, context_needed, measure
    from localinfer.checkpoints import open_model
    from localinfer.cli.progress import TerminalReport
    from localinfer.engine.load import load_model
    from localinfer.engine.memory import peak_resident
    from localinfer.engine.plan import Wishes, kv_types
    from localinfer.hub.pull import file_sha256
    from localinfer.hub.store import resolve

    wanted = cases(prompts, decodes, depths)
    if not wanted:
        raise LocalInferError("there is nothing to measure", "give --prompt or --decode a length above 0")
    path = resolve(model)
    with TerminalReport() as report, open_model(path, quant) as file:
        digest = ",".join(file_sha256(each, report) for each in file.paths)
        start = time.perf_counter()
        wishes = Wishes(context_needed(wanted), *kv_types(kv_type), threads)
        executable, backend, plan, *_ = load_model(file, wishes, backend=backend_name)
        load_seconds = time.perf_counter() - start
        try:
            stepper = Stepper(executable, plan.program.vocab_size, plan.config)
            results = measure(stepper, wanted, rounds)
        finally:
            executable.close()
        details = backend.availability().details
        if threads:
            details = {**details, "threads": str(threads)}
        return {
            "model": {
                "path": str(path),
                "sha256": digest,
                "size": file.file_size,
                "architecture": file.metadata.get_str("general.architecture"),
                "name": file.metadata.get_str("general.name", ""),
            },
            "hardware": {"cpu": cpu_name(), "memory": memory_bytes()},
            "backend": {"name": backend.name, **details},
            "settings": {
                "kv_type": kv_type,
                "quant": quant,
                "threads": threads,
                "rounds": rounds,
                "context": plan.config.context,
                "chunk": plan.config.max_tokens,
            },
            "versions": {"localinfer": __version__, "python": platform.python_version()},
            "load_seconds": load_seconds,
            "memory_plan": {**plan.parts, "total": plan.total},
            "peak_memory": peak_resident(),
            "results": [
                {
                    "what": r.case.what,
                    "tokens": r.case.tokens,
                    "depth": r.case.depth,
                    "tokens_per_second": r.rate,
                    "slowest": r.spread[0],
                    "fastest": r.spread[1],
                    "seconds": list(r.seconds),
                }
                for r in results
            ],
        }


def _lengths(option: str, text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [-1]
    if min(values) < 0:
        raise typer.BadParameter(f"{option} takes token counts separated by commas, for example 0,4096; not {text!r}")
    if max(values) >= 2**31:
        raise typer.BadParameter(f"{option} is {max(values)}, but at most {2**31 - 1} tokens can be counted")
    return values
