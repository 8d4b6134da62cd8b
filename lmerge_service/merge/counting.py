"""What a task has counted of what it merges: it counts once, when it is committed.

Theory
    A batch is merged, and counted, before its commit. If that fails the batch is merged again, so
    what was counted of it must be forgotten, or one record would count as two:

        merged 1 dead letter   begin   commit fails   settle: forgotten   merged again   commit: 1

    The outcome of a commit may be unknown. The next owner finds the last commit record: if it is
    the one that was under way, the commit took place, and so its counts hold.

Invariants
    N1  `committed` never falls, and counts nothing that is not committed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lmerge_service.merge.commit_record import CommitRecord

__all__ = ("Accounts", "Counters", "ReplicaTally")


class Counters:
    """Counts of several things, by name.

    >>> count = Counters()
    >>> count.add({"dead": 1}); count.begin(); count.add({"dead": 1})
    >>> count.total("dead"), count.committed["dead"]
    (2, 0)
    >>> count.commit(); count.forget(); count.total("dead"), count.committed["dead"]
    (1, 1)
    """

    __slots__ = ("_begun", "_fresh", "committed")

    def __init__(self) -> None:
        self.committed: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        """Of the commit that is under way."""
        self._fresh: Counter[str] = Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        """So much was merged."""
        fresh = self._fresh
        for name, count in counts.items():  # nearly all are 0, of each part of what was read
            if count:
                fresh[name] += count

    def total(self, name: str) -> int:
        """With what is not committed."""
        return self.committed[name] + self._begun[name] + self._fresh[name]

    def begin(self) -> None:
        """A commit of all that was merged begins; there is one at a time."""
        self._begun.update(self._fresh)
        self._fresh.clear()

    def commit(self) -> None:
        """It took place."""
        self.committed.update(self._begun)
        self._begun.clear()

    def forget(self) -> None:
        """What is not committed is merged again."""
        self._begun.clear()
        self._fresh.clear()


@dataclass(slots=True)
class ReplicaTally:
    """What was counted of a replica since the process began."""

    counts: Counters = field(default_factory=Counters)
    """records, dead, stale, repeated, contradicted, unusual, and what `replicas` counts of
    inputs."""
    breaches: Counters = field(default_factory=Counters)
    """By kind."""
    repeated_at: tuple[str, int] | None = None
    """Partition and offset of the last record that its writer had written before."""
    contradicted_at: tuple[str, int] | None = None
    """Partition and offset of the last record that is another one than was read under its
    number."""
    troubled: float | None = None
    """When it last broke a rule, contradicted its own numbers, or sent what is no element (the
    clock's seconds)."""
    last_record: float | None = None
    """When its last record was read (the clock's seconds)."""
    last_progress: float | None = None
    """When it made progress last (`liveness`); before it has made any, when its first record was
    read."""
    open_since: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By partition, the offset of a transaction that is open, and when it was first seen."""


class Accounts:
    """Of one task, for the life of the process."""

    def __init__(self) -> None:
        self.merged = Counters()
        """The sum over all replicas."""
        self.tallies: dict[str, ReplicaTally] = {}
        """By replica; those that are gone among them."""
        self._begun: CommitRecord | None = None

    def begin(self, record: CommitRecord) -> None:
        """The commit of a commit record begins."""
        self._begun = record
        for each in self._counts():
            each.begin()

    def commit(self) -> None:
        """It took place."""
        self._begun = None
        for each in self._counts():
            each.commit()

    def settle(self, record: CommitRecord | None) -> bool:
        """Merging restarts behind the last commit record; whether that is the one whose commit was
        under way."""
        took_place = self._begun is not None and self._begun == record
        self._begun = None
        for each in self._counts():
            if took_place:
                each.commit()
            each.forget()
        return took_place

    def _counts(self) -> list[Counters]:
        tallies = self.tallies.values()
        return [self.merged, *(count for each in tallies for count in (each.counts, each.breaches))]
