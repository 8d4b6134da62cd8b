"""Losses: events that a replica has, and the output lacks because another's stable came first.

Theory
    A stable makes final what starts before it. Where one replica leads, its stable does so for
    all, also for events that it does not have and others have not published yet: these come late,
    and the output never has them. No replica breaks a rule that the operator could check.

        a: stable(61), without 40…60   the output is at 61
        b: insert(k, 40, 45) …         late; the output has no such event: b had it, and a's
                                       stable(61) is what lost it

    So what was emitted is remembered, by hash of (payload, vs). A late insert that is not among it
    is *pending* until its replica's own stable has passed its start, since the replica may take
    it back until then; then it is lost. Where several replicas vote on stables, they decide what
    is left out, and it is no loss.

Invariants
    X1  Only events are reported that start at `since` or later: of those, all that were emitted
        are remembered.
    X2  An event is reported once, however many replicas have it.

Cost
    A hash per inserted element of the output; a comparison per element of a chunk that has late
    ones. Memory: at most 2 · `_REMEMBERED` hashes, `_PENDING` late events a replica.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lmerge_service.core import LMerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert
from lmerge_service.merge.findings.record_range import RecordRange

if TYPE_CHECKING:
    from lmerge_engine import Remembered as NativeRemembered

__all__ = ("Loss", "Losses", "Remembered")

_REMEMBERED = 50_000
"""Of all partitions of the output together, among which events are divided …"""
_FEWEST_REMEMBERED = 2_000
"""… but no fewer of each."""
_PENDING = 10_000
_STABLES = 4_096


class _Moved(NamedTuple):
    """The output's stable moved."""

    vc: int
    leader: str | None
    place: RecordRange


@dataclass(slots=True)
class Loss:
    """Events that one chunk has shown to be lost."""

    leader: str
    """Whose stable made them final."""
    vc: int
    stable: RecordRange
    """That stable, and where it was published."""
    holder: str
    """Who has them."""
    first: Insert[bytes]
    place: RecordRange
    """Where the first of them was published."""
    count: int = 1

    def __str__(self) -> str:
        return (
            f"{self.leader} published stable({self.vc}) at {self.stable} without {self.count} "
            f"events that {self.holder} has, so that the output lacks them; the first starts at "
            f"{self.first.vs}, at {self.place}"
        )


class Remembered:
    """The keys of what was emitted lately, by hash; the engine has the same for its batches.

    Two generations, of which the older is forgotten when the younger has `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._young, self._old = _Generation(), _Generation()

    def __len__(self) -> int:
        return len(self._young.hashes) + len(self._old.hashes)

    def add(self, payload: Any, vs: int) -> None:
        """One event of the output."""
        self._young.hashes.add(self.key(payload, vs))
        self._young.latest = max(self._young.latest, vs)

    def emitted(self, elements: Iterable[Element]) -> tuple[list[int], int | None]:
        """What the output has emitted. Returns the times of stables, and the latest start of what
        was forgotten now, if anything was."""
        stables, key_of, young = list[int](), self.key, self._young
        for each in elements:
            kind = type(each)
            if kind is Insert:
                young.hashes.add(key_of(each.payload, each.vs))  # type: ignore[union-attr]
                if each.vs > young.latest:  # type: ignore[union-attr]
                    young.latest = each.vs  # type: ignore[union-attr]
            elif kind is Adjust:
                if each.ve == each.vs:  # type: ignore[union-attr]
                    key = key_of(each.payload, each.vs)  # type: ignore[union-attr]
                    young.hashes.discard(key)
                    self._old.hashes.discard(key)
            else:
                stables.append(each.vc)  # type: ignore[union-attr]
        if len(young.hashes) <= self._most:
            return stables, None
        forgotten, self._old, self._young = self._old, young, _Generation()
        return stables, None if forgotten.latest == START else forgotten.latest

    def unknown(
        self, elements: Iterable[Element], begin: int, end: int
    ) -> list[Insert[Any] | Adjust[Any]]:
        """The inserts with `begin` <= vs < `end` that are not remembered, and what removes
        events."""
        found = list[Insert[Any] | Adjust[Any]]()
        young, old = self._young.hashes, self._old.hashes
        for each in elements:
            if type(each) is Insert:
                if begin <= each.vs < end:
                    key = self.key(each.payload, each.vs)
                    if key not in young and key not in old:
                        found.append(each)
            elif type(each) is Adjust and each.ve == each.vs:
                found.append(each)
        return found

    @staticmethod
    def key(payload: Any, vs: int) -> int:
        """A hash of an event's key."""
        return hash((payload, vs))


@dataclass(slots=True)
class _Generation:
    hashes: set[int] = field(default_factory=set)
    latest: int = START
    """The highest vs in it."""


class Losses:
    """Of one task, from taking over to giving up."""

    def __init__(self, merge: LMerge, since: int = START, *, partitions: int = 1) -> None:
        """The output promises nothing of what ends before `since`; it has so many `partitions`."""
        self._merge = merge
        most = max(_FEWEST_REMEMBERED, _REMEMBERED // partitions)
        self._remembered: Remembered | NativeRemembered = merge.remembering(most, Remembered)
        self._since = max(since, _begin(merge, self._remembered, most))
        self._moved: deque[_Moved] = deque(maxlen=_STABLES)
        self._pending: dict[str, dict[int, tuple[Insert[bytes], RecordRange]]] = {}
        self._incarnations: dict[str, int] = {}
        self._reported: deque[int] = deque(maxlen=most)
        self._known: set[int] = set()
        """What is in `_reported`."""

    def emitted(self, elements: Sequence[Element], place: RecordRange) -> None:
        """The output's elements that came of some records."""
        stables, forgotten = self._remembered.emitted(elements)
        leader = self._merge.stats().leader
        self._moved.extend(_Moved(vc, leader, place) for vc in stables)
        if forgotten is not None:
            self._since = max(self._since, forgotten + 1)

    def look(self, name: str, late: Sequence[Sequence[Element]], place: RecordRange) -> list[Loss]:
        """What a chunk of a replica shows to be lost; `late` are elements that were processed
        together with late ones."""
        source = self._merge.inputs.get(name)
        if source is None or self._merge.policy.voters > 1:
            return []
        if source.incarnation != self._incarnations.get(name):  # the old one's elements are gone
            self._incarnations[name], self._pending[name] = source.incarnation, {}
        pending = self._pending[name]
        if not (late or pending):
            return []
        key_of = self._remembered.key
        horizon = max(self._since, source.joining_at)
        for elements in late:
            for each in self._remembered.unknown(elements, horizon, self._merge.max_stable):
                key = key_of(each.payload, each.vs)
                if isinstance(each, Adjust):
                    pending.pop(key, None)
                elif len(pending) < _PENDING:
                    pending[key] = each, place
        return self._settle(name, pending, source.stable) if pending else []

    def _settle(
        self, name: str, pending: dict[int, tuple[Insert[bytes], RecordRange]], stable: int
    ) -> list[Loss]:
        """What the replica itself has made final."""
        losses: dict[_Moved, Loss] = {}
        final = [key for key, (event, _) in pending.items() if event.vs < stable]
        for key in final:
            event, place = pending.pop(key)
            moved = self._moved_past(event.vs)
            if moved is None or moved.leader in (None, name) or key in self._known:
                continue
            self._remember(key)
            if moved in losses:
                losses[moved].count += 1
            else:
                assert moved.leader is not None
                losses[moved] = Loss(moved.leader, moved.vc, moved.place, name, event, place)
        return list(losses.values())

    def _moved_past(self, vs: int) -> _Moved | None:
        """The stable that made final what starts then."""
        at = bisect_right(self._moved, vs, key=lambda each: each.vc)
        return self._moved[at] if at < len(self._moved) else None

    def _remember(self, key: int) -> None:
        if len(self._reported) == self._reported.maxlen:
            self._known.discard(self._reported[0])
        self._reported.append(key)
        self._known.add(key)


def _begin(merge: LMerge, remembered: "Remembered | NativeRemembered", most: int) -> int:
    """Remembers what the output holds that may be published again; gives the time from which on
    that is all."""
    live = merge.live_output()
    if live is None:
        return INFINITY if merge.max_stable > START else START
    latest = START
    for event in live:
        latest = max(latest, event.vs)
        if len(remembered) <= most:
            remembered.add(event.payload, event.vs)
    whole = len(remembered) <= most
    return merge.max_stable if whole else latest + 1
