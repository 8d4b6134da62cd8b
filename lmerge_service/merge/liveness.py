"""Liveness: whether a replica makes progress, which is more than that records of it come.

Theory
    A replica is alive as long as it brings *news*: a stable of one of its partitions that rises, or
    an element that the operator accepts and that the replica has not published before. Repeats,
    duplicates, elements about what is final, records of a replaced incarnation and records that are
    no elements are read, and are no progress: else a replica that repeats itself for ever would be
    waited for for ever.

        stable(2)                         progress: it rises
        stable(2)                         none
        ins(A,5,9)                        progress
        ins(A,5,9)                        none: a duplicate
        adj(A,5,9→12)                     progress
        adj(A,5,12→9)  adj(A,5,9→12)      progress, and none: the second was there before
        ins(B,1,3) under output 4         none: late

    The first element of all is progress even where it is late: the replica has begun, and what it
    has to contribute may come next. So is the first record that is seen in its topic, whatever it
    is: that of a transaction which is aborted, too.

    Whether an element is accepted, the operator counts; of one that is another task's, only that it
    is not late is known here. Whether it was there before is found by its
    record, of which the hashes since the last stable that rose are kept. They are looked at only
    when a chunk has no rising stable and a second has gone without progress, so that a replica
    that moves costs nothing; what is repeated may count once more for that, and not for ever.

    A replica that *starts over* repeats what it has published, and rightly: until it has come as
    far as it was. That is progress the first time. Of one that starts over again before it has
    come so far, only what goes beyond that is: it may do so for ever.

    A transaction that has ended excuses the replica for what it did not publish meanwhile, since an
    aborted one is written again; but only `_EXCUSES` times without anything new, be it late, so
    that nobody waits for ever for one that aborts for ever.

Invariants
    Y1  What a replica publishes in a loop, progress ends after at most two rounds of it, if the
        round has at most `_REMEMBERED` records.

Cost
    A chunk: O(partitions). One that is looked at: a hash a record.
"""

from collections.abc import Callable, Sequence
from typing import Final

from lmerge_service.core import BreachKind, Input
from lmerge_service.elements import START
from lmerge_service.formats.headers import RecordLike
from lmerge_service.kafka.unread import Unread

__all__ = ("Liveness",)

_REMEMBERED: Final = 1 << 16
_RECENT_SECONDS: Final = 1.0
_EXCUSES: Final = 3
_OF_ELEMENTS: Final = (
    BreachKind.BROKE_CASE,
    BreachKind.MALFORMED,
    BreachKind.BROKE_OWN_STABLE,
    BreachKind.UNKNOWN_EVENT,
    BreachKind.WRONG_VOLD,
    BreachKind.DUPLICATE_KEY,
)
"""An insert or adjust has at most one of these, and then it is not accepted."""


def _accepted(source: Input) -> int:
    """Inserts and adjusts that were neither late nor wrong."""
    breaches = source.breaches
    wrong = sum(breaches[kind] for kind in _OF_ELEMENTS) if breaches else 0
    return source.inserts + source.adjusts - source.late - wrong


def _has_begun(source: Input, elsewhere: Callable[[], int]) -> bool:
    return source.inserts + source.adjusts > 0 or elsewhere() > START


class Liveness:
    """Of one replica, as a task sees it, for the life of the process."""

    def __init__(self, now: float) -> None:
        self.at = now
        """When it made progress last, or was excused, or else when it was met, in the clock's
        seconds."""
        self.progressed = False
        """Something was written to its topic: it is not one of those that never began."""
        self._open: dict[int, int] = {}
        """By partition, the offset of the latest transaction that was seen open."""
        self._excused: dict[int, int] = {}
        """The same of those that have ended since: a look that is older may show them again."""
        self._excuses = 0
        """How many have ended since it published something new."""
        self._stables: list[int] = []
        self._accepted = 0
        self._published: set[int] = set()
        self._furthest = START
        self._restarts = 0
        """How often it has started over since it was furthest."""
        self._incarnation = 0
        """The highest one that was counted."""

    def follow(self, source: Input) -> None:
        """Continues with the replica as the operator has it: after a rebuild."""
        self._stables, self._accepted = list(source.stables), _accepted(source)
        self.progressed |= source.inserts + source.adjusts > 0 or max(source.stables) > START
        self._furthest = max(self._furthest, *source.stables)

    def start_over(self, source: Input, incarnation: int) -> None:
        """Continues with a new incarnation of it; also once more after a rebuild."""
        if incarnation > self._incarnation:
            self._restarts += 1
            self._incarnation = incarnation
        self._published = set()
        self.follow(source)

    def begin_anew(self, source: Input) -> None:
        """Restarts after a person's decision, which is no fault of the replica."""
        self._furthest, self._restarts, self._incarnation = START, 0, 0
        self._excuses, self._open, self._excused = 0, {}, {}
        self._published = set()
        self.follow(source)

    def look(
        self,
        source: Input,
        records: Sequence[RecordLike],
        now: float,
        stable: int,
        elsewhere: Callable[[], int] = lambda: START,
    ) -> bool:
        """Whether it has made progress, after these records were merged. `stable` is the output's,
        `elsewhere` returns the latest start of those of their elements that were for other tasks.
        """
        before, self._accepted = self._accepted, _accepted(source)
        if source.stables != self._stables:
            self._stables = list(source.stables)
            self._published = set()
            news = True
        else:
            due = now - self.at >= _RECENT_SECONDS or not self.progressed
            # What it repeats after starting over is late where the output has it, and no less
            # the way back to where it was.
            some = self._accepted > before or self._restarts == 1
            begins = not self.progressed and _has_begun(source, elsewhere)
            if due and (begins or some or max(stable, START + 1) <= elsewhere()):
                news = self._remember(records)
            else:
                news = False
                if self._excuses and self._remember(records):
                    self._excuses = 0
        furthest = max(self._stables)
        if furthest > self._furthest:
            self._furthest, self._restarts = furthest, 0
        if not news or self._restarts > 1:
            return False
        self.at, self.progressed, self._excuses = now, True, 0
        return True

    def know_unread(self, unread: Unread, now: float) -> None:
        """What a look at its topic has found."""
        if unread.records and not self.progressed:
            self.at, self.progressed = now, True
        if unread.open:
            self._open |= {each.partition: each.offset for each in unread.open}
            return
        ended, self._open = self._open, {}
        if all(self._excused.get(number, -1) >= offset for number, offset in ended.items()):
            return
        self._excused |= ended
        if self._excuses < _EXCUSES:
            self.at, self.progressed = now, True
            self._excuses += 1

    def _remember(self, records: Sequence[RecordLike]) -> bool:
        """Whether one of these was not published before, as far as is remembered."""
        known = self._published
        count = len(known)
        known.update(hash((record.key, record.value)) for record in records)
        new = len(known) > count
        if len(known) > _REMEMBERED:
            self._published = set()
        return new
