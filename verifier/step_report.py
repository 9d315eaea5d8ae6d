"""What the replay of one step found: plain data that crosses processes and goes into reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verifier.verdict import Check, Verdict

# A cheat in one operator shows in few values, because what is committed is used downstream;
# a run of rubbish differs everywhere, and a report needs no thousand examples of that.
MAX_DIFFERENCES = 16
MAX_NAMES = 6

GRAVITY = (
    Verdict.MISMATCH,
    Verdict.INVALID_COMMITMENT,
    Verdict.NON_RESPONSE,
    Verdict.INCONCLUSIVE,
    Verdict.DECLARED_FAULT,
    Verdict.MATCH,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first differing element of one value.

    Attributes:
        rank: whose arena; -1 for the state, which all ranks share.
        node: index of the operator in the step graph.
        op: the operator.
        value: the name of the value it makes.
        index: the element.
        committed_bits: what the trainer committed, two hexadecimal digits a byte.
        recomputed_bits: what the operator gives on the committed inputs.
        differing: how many elements of this value differ.
        elements: how many it has.
        reads: names of what the operator reads.
        evidence: how well the numerics of this operator are known.

    """

    rank: int
    node: int
    op: str
    value: str
    index: tuple[int, ...]
    committed_bits: str
    recomputed_bits: str
    differing: int
    elements: int
    reads: tuple[str, ...]
    evidence: str

    def words(self, step: int) -> str:
        """Say where the difference is, in a paragraph."""
        who = f"rank {self.rank}, " if self.rank >= 0 else ""
        place = f"element {list(self.index)} of {self.value}" if self.index else self.value
        return (
            f"Step {step}, {who}operator {self.op} (node {self.node}): {place} was committed as "
            f"{self.committed_bits}, but computing it again from "
            f"{_listed(self.reads)} gives {self.recomputed_bits}. "
            f"{self.differing:,} of {self.elements:,} elements of this value differ."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The replay of one step on all its ranks.

    Attributes:
        step: which.
        checks: what was compared, in order.
        differences: the first values that differ, in execution order.
        roots: roots that the replay came to, hex by name.
        operators: operators computed again, over all ranks.
        values: committed values compared.
        elements: elements compared.
        differing: elements that differ.
        macs: multiply-accumulates of the GEMMs computed again.
        milliseconds: how long it took.

    """

    step: int
    checks: tuple[Check, ...]
    differences: tuple[Difference, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)
    operators: int = 0
    values: int = 0
    elements: int = 0
    differing: int = 0
    macs: int = 0
    milliseconds: int = 0

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict among the checks."""
        return gravest(check.verdict for check in self.checks)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown


def gravest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict that decides: failing ones first, MATCH only if all match.

    Nothing checked is INCONCLUSIVE.
    """
    found = set(verdicts) or {Verdict.INCONCLUSIVE}
    return next(verdict for verdict in GRAVITY if verdict in found)


def one_per_name(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Join the checks of all ranks: of each name the gravest stays, the first of these."""
    kept: dict[str, Check] = {}
    for check in checks:
        known = kept.get(check.name)
        if known is None or GRAVITY.index(check.verdict) < GRAVITY.index(known.verdict):
            kept[check.name] = check
    return tuple(kept.values())
