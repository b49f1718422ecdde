"""What verification found, in a form for scripts, and in sums for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from localinfer.verify.examine import Finding, Verdict
from localinfer.verify.hashes import Check


class Exit(IntEnum):
    """How the command ends. 1 and 2 are those of every command: an error, a command line that makes no sense."""

    PROVEN = 0  # everything that was looked at is as claimed
    UNPROVEN = 3  # nothing speaks against it, but not everything is proven
    REFUTED = 4  # a hash is wrong, or a tensor is not from this source


@dataclass(frozen=True)
class TensorReport:
    """One tensor of the file, or of the source only. `finding` is None where there is nothing to compare it with.

    `rows` is how many it has, `seen` how many were looked at; `missing` says in which of the two it is not.
    """

    name: str
    type: str
    source_type: str
    rows: int
    seen: int
    finding: Finding | None
    missing: str = ""

    @property
    def verdict(self) -> Verdict:
        return Verdict.UNPROVEN if self.finding is None else self.finding.verdict

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "name": self.name,
            "type": self.type,
            "source_type": self.source_type,
            "verdict": str(self.verdict),
            "rows": self.rows,
            "rows_seen": self.seen,
        }
        if self.finding is None:
            return told | {"missing": self.missing}
        finding, tally = self.finding, self.finding.tally
        told |= {"how": finding.how, "by_way_of": finding.way}
        if tally.blocks:
            told |= {
                "blocks": tally.blocks,
                "broken_blocks": tally.broken,
                "broken_rows": tally.broken_rows,
                "lavish_blocks": tally.lavish,
                "correlation": round(tally.correlation, 6),
                "relative_error": _short(tally.relative_error),
            }
        if finding.verdict in (Verdict.UNPROVEN, Verdict.DIFFERENT):
            told["worst"] = [
                {"row": place.row, "column": place.column, "steps": _short(place.excess)} for place in tally.worst
            ]
            told["change"] = None if finding.change is None else _short(finding.change)
        return told


@dataclass(frozen=True)
class Limit:
    """The smallest changes of a tensor of this type that were found, measured on rows of `tensor`.

    noise    added to all weights of the rows looked at, relative to them, both root mean square
    scaled   a factor - 1 that one row was multiplied by
    flips    the share of single flipped bits that were found, each in another block
    rows     looked at
    """

    type: str
    tensor: str
    rule: str
    rows: int
    noise: float
    scaled: float
    flips: float

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Report:
    """Everything found about a file.

    source      what it was compared with, "" if nothing
    share       of the rows that was asked for, and the seed that chose them
    checks      hashes
    provenance  what the file says of its origin, or None
    metadata    keys whose values differ from the source's
    """

    path: str
    source: str
    share: float
    seed: int
    checks: Sequence[Check] = ()
    provenance: dict[str, Any] | None = None
    tensors: Sequence[TensorReport] = ()
    metadata: Sequence[str] = ()
    limits: Sequence[Limit] = ()
    notes: Sequence[str] = field(default=())

    @property
    def exit(self) -> Exit:
        if any(not check.right for check in self.checks):
            return Exit.REFUTED
        verdicts = {tensor.verdict for tensor in self.tensors}
        if Verdict.DIFFERENT in verdicts:
            return Exit.REFUTED
        proven = bool(self.tensors) if self.source else bool(self.checks)
        return Exit.PROVEN if proven and Verdict.UNPROVEN not in verdicts else Exit.UNPROVEN

    def count(self, verdict: Verdict) -> int:
        return sum(tensor.verdict is verdict for tensor in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """What `verify --json` prints."""
        return {
            "path": self.path,
            "source": self.source,
            "outcome": self.exit.name.lower(),
            "exit_code": int(self.exit),
            "sample": None if self.share >= 1 else {"share": self.share, "seed": self.seed},
            "hashes": [
                {
                    "kind": check.kind,
                    "name": check.name,
                    "told_by": check.told_by,
                    "expected": check.expected,
                    "found": check.found,
                    "right": check.right,
                }
                for check in self.checks
            ],
            "provenance": self.provenance,
            "counts": {str(verdict): self.count(verdict) for verdict in Verdict},
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "metadata_differences": list(self.metadata),
            "limits": [limit.to_dict() for limit in self.limits],
            "notes": list(self.notes),
        }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
