"""One attached input of a merge: its stable point, whether it is joined, and what it has done.

Theory
    An input may be spread over partitions. Order holds within a partition only, so what the
    input has declared final as a whole is the *minimum* over its partitions' stables; a partition
    that has not sent a stable holds it back at the beginning of time. Each element is judged
    against its own partition's stable, so that the judgement does not depend on how partitions
    interleave.

    `attach(name, joining_at=t)` promises correctness for every event with ve >= t (paper V-B).
    Until the output's stable point reaches t the input is joining: its stables are remembered
    but do not lead.

Invariants
    N1  stable == min(stables), and no entry of `stables` ever falls.
"""

from collections import Counter
from typing import TYPE_CHECKING

from lmerge_service.elements import START

if TYPE_CHECKING:
    from lmerge_service.core.breaches import BreachKind

__all__ = ("Input",)


class Input:
    """One incarnation of an input; compared by identity, so that a new one shares nothing."""

    __slots__ = (
        "adjusts",
        "at_front",
        "breaches",
        "first",
        "front",
        "gap_until",
        "incarnation",
        "inserts",
        "joined",
        "joining_at",
        "late",
        "name",
        "stable",
        "stables",
        "stables_in",
    )

    def __init__(self, name: str, incarnation: int, joining_at: int, partitions: int):
        if partitions < 1:
            raise ValueError(f"an input has at least one partition, got {partitions}")
        self.name = name
        self.incarnation = incarnation
        self.joining_at = joining_at
        self.joined = False
        self.gap_until = START
        """After an accepted gap: events that started before this may be missing without blame."""
        self.stables = [START] * partitions
        self.stable = START
        self.front = START - 1
        """Cases R0 to R2: the highest vs this input has inserted; before START: none."""
        self.at_front = 0
        """Case R1: how many events at `front` it has inserted."""
        self.inserts = self.adjusts = self.stables_in = 0
        self.first = 0
        """Inserts that this input delivered before any other."""
        self.late = 0
        """Elements about what the output had already made final: what a laggard normally sends."""
        self.breaches: Counter[BreachKind] = Counter()

    def __repr__(self) -> str:
        state = "joined" if self.joined else f"joining at {self.joining_at}"
        return (
            f"Input({self.name!r}, incarnation={self.incarnation}, {state}, stable={self.stable})"
        )

    def advance(self, partition: int, vc: int) -> None:
        """Notes that a partition's stable rose to vc. Complexity: O(partitions)."""
        self.stables[partition] = vc
        self.stable = min(self.stables)

    def accept_gap(self) -> None:
        """It is joined before its time; what it lacks of before is no fault of its."""
        self.joined = True
        self.gap_until = self.joining_at

    def add_partitions(self, count: int) -> None:
        """Widens the input to `count` partitions; the new ones hold it back until their first
        stable."""
        self.stables.extend([START] * (count - len(self.stables)))
        self.stable = min(self.stables)

    def check(self) -> None:
        """Asserts N1."""
        assert self.stable == min(self.stables), f"N1: {self} has partitions at {self.stables}"
