"""What `localinfer bench --determinism` prints."""

from __future__ import annotations

from contextlib import ExitStack

import typer

from localinfer.cli.output import aside, emit_json, emit_table, note


def check_determinism(
    model: str, *, quant: str, draft: str, threads: int, backend: str, kv_type: str, json: bool
) -> None:
    """Runs bench/determinism.py. Exit code 1 if a token differs, or if a kind of steps did not occur.

    The JSON has model (path), requests, tokens, different, then counts of steps: steps (all), mixed, cached, preempted,
    speculated, rejected, accepted; and the same per variant.
    """
    from localinfer.bench.determinism import compare
    from localinfer.checkpoints import open_model
    from localinfer.engine.plan import kv_types
    from localinfer.hub.store import resolve
    from localinfer.text.tokenizer import load_tokenizer

    path = resolve(model)
    with ExitStack() as files:
        file = files.enter_context(open_model(path, quant))
        report = compare(
            file,
            load_tokenizer(file.metadata),
            draft=files.enter_context(open_model(resolve(draft))) if draft else None,
            threads=threads,
            backend=backend,
            kv_types=kv_types(kv_type),
            progress=aside,
        )
    if json:
        emit_json({"model": str(path)} | report.as_data())
    else:
        kinds = ("requests", "tokens", "different", "steps", "mixed", "cached", "preempted", "speculated", "rejected")
        rows = [*report.variants.items(), ("all", report.total)]
        emit_table(("", *kinds), [(name, *(getattr(counts, kind) for kind in kinds)) for name, counts in rows])
    if report.missing:
        note(f"nothing is known of steps of these kinds, since there were none: {', '.join(report.missing)}")
    if not report.passed:
        raise typer.Exit(1)
