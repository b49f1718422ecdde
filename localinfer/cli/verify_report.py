"""What `localinfer verify` says on one screen: what was proven, and what was not."""

from collections.abc import Iterator

from localinfer.cli.output import emit, emit_table
from localinfer.verify.examine import Verdict
from localinfer.verify.report import Exit, Report, TensorReport

# What blocks break, in words.
BROKEN = {
    "equality": "other numbers",
    "nearest": "weights that are not on the level nearest to them",
    "coarse": "weights that are not on the level nearest to them",
    "rounded": "weights that are not on the level nearest to them",
    "rescaled": "weights that are not on the level nearest to them, under any scale",
    "signs": "weights with another sign",
    "parity": "weights with another sign",
    "book": "groups with another entry of the code book, or with other signs",
    "split": "groups with another entry of the code book",
}
MOST_TOLD = 8  # tensors that are told one by one

HEADLINES = {
    Exit.PROVEN: "PROVEN",
    Exit.UNPROVEN: "NOT PROVEN",
    Exit.REFUTED: "REFUTED",
}
# What rests on a rule, in words for people; docs/verify.md has more.
RULES = {
    "nearest": "every weight lies on the level that is nearest to it",
    "rounded": "every weight lies on the level that is nearest to it",
    "rescaled": "every weight lies on the level that is nearest to it, under one scale per block",
    "signs": "every weight has its sign",
    "parity": "every weight has its sign, but one of eight where the format wants it so",
    "book": "every group has the entry of the code book that its weights lead to, and its signs",
    "split": "every group has the entry of the code book that its weights lead to",
}


def print_report(report: Report) -> None:
    """Data, on standard output."""
    emit(f"{HEADLINES[report.exit]}: {_headline(report)}\n\n")
    _print_origin(report)
    _print_hashes(report)
    if report.source:
        _print_tensors(report)
        _print_limits(report)
    _print_not_proven(report)


def _headline(report: Report) -> str:
    if report.exit is Exit.REFUTED:
        wrong = sum(not check.right for check in report.checks)
        different = report.count(Verdict.DIFFERENT)
        parts = [f"{_hashes(wrong)} wrong"] * bool(wrong)
        parts += [f"{_tensors(different)} not from {report.source}"] * bool(different)
        return "; ".join(parts)
    if not report.source:
        return "all hashes that the file carries are right" if report.checks else "the file carries no hashes"
    looked = "" if report.share >= 1 else f", in the {report.share:.0%} of rows looked at"
    if report.exit is Exit.PROVEN:
        return f"{report.path} was made from {report.source}{looked}"
    return f"{_tensors(report.count(Verdict.UNPROVEN))} of {len(report.tensors)} could not be tied to {report.source}"


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' * (count != 1)}"


def _hashes(count: int) -> str:
    return f"{count} hash{'es' * (count != 1)}"


def _print_origin(report: Report) -> None:
    if report.provenance is None:
        emit("origin    the file says nothing of it\n")
        return
    origin, recipe = report.provenance["source"], report.provenance["recipe"]
    where = f"{origin['repository']}@{origin['revision']}" if origin["repository"] else origin["name"]
    emit(f"origin    it says: {where}, {recipe.get('name', '')}, by {report.provenance['tool']}\n")


def _print_hashes(report: Report) -> None:
    if report.share < 1:
        emit("hashes    not looked at (--sample)\n")
        return
    right = sum(check.right for check in report.checks)
    if report.checks:
        kinds = {kind: sum(check.kind == kind for check in report.checks) for kind in ("tensor", "file", "source file")}
        told = ", ".join(f"{count} of a {kind}" for kind, count in kinds.items() if count)
        emit(f"hashes    {right} of {len(report.checks)} right ({told})\n")
    for check in [check for check in report.checks if not check.right][:MOST_TOLD]:
        found = check.found or "nothing"
        emit(
            f"  wrong: {check.kind} {check.name}: {check.told_by} says {check.expected[:16]}…, there is {found[:16]}…\n"
        )


def _print_tensors(report: Report) -> None:
    groups: dict[tuple[str, str, str], list[TensorReport]] = {}
    for tensor in report.tensors:
        finding = tensor.finding
        how = f"not in {tensor.missing}" if finding is None else finding.how
        how = "another shape" if how.startswith("shape ") else how
        if finding is not None and finding.way:
            how += f", by way of {finding.way}"
        groups.setdefault((str(tensor.verdict), tensor.type, how), []).append(tensor)
    order = [str(verdict) for verdict in Verdict]
    rows = [
        (verdict, kind, len(tensors), _because(how))
        for (verdict, kind, how), tensors in sorted(groups.items(), key=lambda group: order.index(group[0][0]))
    ]
    emit("\n")
    emit_table(("verdict", "type", "tensors", "because"), rows)
    doubtful = [t for t in report.tensors if t.verdict in (Verdict.UNPROVEN, Verdict.DIFFERENT)]
    for tensor in sorted(doubtful, key=lambda t: order.index(str(t.verdict)), reverse=True)[:MOST_TOLD]:
        emit(f"  {tensor.name} ({tensor.type}): {tensor.verdict}{_details(tensor)}\n")
    if len(doubtful) > MOST_TOLD:
        emit(f"  and {len(doubtful) - MOST_TOLD} more; --json lists them\n")


def _because(how: str) -> str:
    """What a finding rests on, in words for people."""
    rule, comma, way = how.partition(",")
    if rule in RULES:
        return RULES[rule] + comma + way
    return BROKEN.get(how.removeprefix("breaks "), how)


def _details(tensor: TensorReport) -> str:
    """How far off, and where."""
    if tensor.finding is None:
        return f", {tensor.missing} has no such tensor"
    tally, change = tensor.finding.tally, tensor.finding.change
    parts = [_because(tensor.finding.how)]
    if tally.broken:
        parts.append(f"{tally.broken} of {tally.blocks} blocks, in {tally.broken_rows} of {tally.rows} rows")
    if tally.lavish:
        parts.append(f"{tally.lavish} blocks lose too much")
    if tally.worst:
        worst = tally.worst[0]
        parts.append(f"worst at row {worst.row}, column {worst.column}, {worst.excess:.2g} steps beyond")
    if tally.blocks:
        parts.append(f"correlation {tally.correlation:.4f}")
    if change is not None:
        who = "the weights differ" if tensor.verdict is Verdict.DIFFERENT else "other weights would differ"
        parts.append(f"{who} by about {_percent(change)}")
    return ", " + "; ".join(parts)


def _print_limits(report: Report) -> None:
    if not report.limits:
        return
    emit("\nwhat would have been found (measured here, on rows of one tensor of each type)\n")
    emit_table(
        ("type", "noise on all weights", "one row scaled by", "one bit flipped"),
        [
            (limit.type, f"{_percent(limit.noise)}", f"1 + {_percent(limit.scaled)}", f"{limit.flips:.0%} found")
            for limit in report.limits
        ],
    )


def _print_not_proven(report: Report) -> None:
    open_ends = [*_open_ends(report), *report.notes]
    emit("\nnot proven\n")
    for text in open_ends[:MOST_TOLD]:
        emit(f"  {text}\n")


def _open_ends(report: Report) -> Iterator[str]:
    if report.share < 1:
        yield f"rows that were not looked at: {1 - report.share:.0%} of them (--sample, seed {report.seed})"
    if not report.source:
        yield "that the file was made from the weights that it names: --source SOURCE looks at them"
        yield "who wrote the hashes: whoever changes a file can change those in it"
        return
    if report.metadata:
        told = ", ".join(report.metadata[:MOST_TOLD])
        more = f" and {len(report.metadata) - MOST_TOLD} more" if len(report.metadata) > MOST_TOLD else ""
        yield f"metadata, which differs from the source's: {told}{more}"
    if any(tensor.verdict is Verdict.CONSISTENT for tensor in report.tensors):
        yield "the scales of consistent tensors, within limits; changes smaller than those above"
    yield f"that {report.source} is what it should be: compare its hash with its publisher's"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
