"""Flow control: which replicas are not read on while too much is live, so that memory is bounded.

Theory
    A merge keeps the events that are not fully frozen, whichever replica sent them. They are few
    as long as the output's stable point follows what is read. They are many when somebody is read
    far beyond it: a backlog at full speed beside a slow replica under `quorum(k)`, a replica whose
    stables come late, one that is joining. Only a higher stable of the output frees anything, and
    only a *mover* can bring that: a joined replica whose stable is not among the k-1 highest (that
    is any joined one under `max`), that has not ended, and that no guard holds.

    quorum(2)   a  ████████████████████▌ front      read far ahead: paused
                b  ██████▌                          the second highest: needed, read on
                c  ███▌                             behind: costs nothing, read on

    The *level* is the larger of live events and live bytes, each over its limit.

    below 80 %     everybody is read.
    80 to 100 %    who is paused stays so: no flapping.
    from 100 %     replicas with elements beyond the output's stable are paused, but for the needed
                   one: of the movers with something to be read the one with the highest stable.
                   Records of an open transaction are unread, but cannot be read: a replica that is
                   blocked by one comes before the silent only.
    from 150 %     all but one are paused. That one is a mover that is not the furthest read: nearly
                   always others have sent its elements before, so it adds next to nothing. If there
                   is none, nobody is read. Then only a person can help, and that is reported.

    So three backlogs of any length under `max` are read without a pause while the leader's own
    stables come in time. Under `quorum(2)` the fastest is paced by the second. How far ahead in
    event time someone is does not matter by itself, so there is no limit on it: an idle hour
    costs no memory.

Invariants
    F1  Below 150 % a mover is read, if there is one.
    F2  While something is paused and no mover has anything to read, `stuck` gives the reason.
    F3  The decision is a function of the arguments and of who was paused before. It may be lost.

Cost
    O(r log r) for r replicas, once a poll.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmerge_service.elements import INFINITY, START

__all__ = ("EVENT_BYTES", "EventBytes", "FlowControl", "FlowOrder", "ReplicaProgress")

EVENT_BYTES: Final = 1_200
"""What the index takes for a live event beside its payload: 800 (R3) to 1,100 bytes (R4) with two
inputs were measured, 50 to 110 more for each further one."""

_RESUME, _PAUSE, _HARD = 0.8, 1.0, 1.5
_REMEMBERED = 1 << 20


class EventBytes:
    """Estimates what live events take: their number times the mean size of records lately."""

    def __init__(self) -> None:
        self._records = self._bytes = 0

    def add(self, records: int, size: int) -> None:
        """So many records of inserts and adjusts had so many bytes."""
        self._records += records
        self._bytes += size
        if self._records > _REMEMBERED:
            self._records //= 2
            self._bytes //= 2

    def of(self, live_events: int) -> int:
        """Bytes that so many live events take, estimated."""
        mean = self._bytes // self._records if self._records else 0
        return live_events * (EVENT_BYTES + mean)


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far a replica is, in the order of attachment."""

    name: str
    stable: int
    front: int
    """The highest stable, or vs, that was read of it (`MergeStep.front`)."""
    joined: bool
    unread: bool | None
    """Whether its topic has more that can be read; None: unknown."""
    held: bool = False
    """A guard holds it, so that its stable cannot rise."""
    blocked: str | None = None
    """In words, what keeps all that is unread from being read: an open transaction."""


@dataclass(frozen=True, slots=True)
class FlowOrder:
    """Who is to be paused and resumed now, who is paused then, and why nothing moves."""

    pause: frozenset[str]
    resume: frozenset[str]
    paused: frozenset[str]
    level: float
    """Live state over its limit; 1.0 is where pausing begins."""
    stuck: str | None
    """In words, what a person has to know and do; None while the output can move."""


class FlowControl:
    """Of one task. `voters` is the k of `stable=quorum(k)`, else 1."""

    def __init__(self, *, max_live_events: int, max_live_bytes: int, voters: int = 1) -> None:
        self._max_events, self._max_bytes = max_live_events, max_live_bytes
        self._voters = voters
        self.paused: frozenset[str] = frozenset()

    def is_low(self, live_events: int, live_bytes: int) -> bool:
        """Everybody is read, however far."""
        return self._level(live_events, live_bytes) < _RESUME

    def _level(self, live_events: int, live_bytes: int) -> float:
        return max(live_events / self._max_events, live_bytes / self._max_bytes)

    def order(
        self,
        live_events: int,
        live_bytes: int,
        output_stable: int,
        readings: Sequence[ReplicaProgress],
    ) -> FlowOrder:
        """Once a poll, for all replicas that are merged."""
        level = self._level(live_events, live_bytes)
        needed = self._needed(readings, hard=level >= _HARD)
        names = frozenset(each.name for each in readings)
        before, paused = self.paused & names, frozenset[str]()
        if level >= _HARD:
            paused = names
        elif level >= _PAUSE:
            paused = frozenset(each.name for each in readings if each.front > output_stable)
        elif level >= _RESUME:
            paused = before
        if needed is not None:
            paused -= {needed.name}
        stuck = self._stuck(level, needed, paused, readings)
        self.paused = paused
        return FlowOrder(paused - before, before - paused, paused, level, stuck)

    def _movers(self, readings: Sequence[ReplicaProgress]) -> list[ReplicaProgress]:
        """Whose stable can move the output, the highest first; the first attached among equals."""
        joined = sorted((each for each in readings if each.joined), key=lambda each: -each.stable)
        return [
            each for each in joined[self._voters - 1 :] if each.stable < INFINITY and not each.held
        ]

    def _needed(self, readings: Sequence[ReplicaProgress], *, hard: bool) -> ReplicaProgress | None:
        """The one that is read in any case; None if there is none."""
        movers = self._movers(readings)
        if hard:
            furthest = max((each.front for each in readings), default=START)
            movers = [each for each in movers if each.front < furthest]
        talking = [each for each in movers if each.unread is not False]
        blocked = [each for each in movers if each.blocked is not None]
        return next(iter(talking or blocked or movers), None)

    def _stuck(
        self,
        level: float,
        needed: ReplicaProgress | None,
        paused: frozenset[str],
        readings: Sequence[ReplicaProgress],
    ) -> str | None:
        waiting = [each.name for each in readings if each.name in paused and each.unread]
        if not waiting or (needed is not None and needed.unread is not False):
            return None
        movers = [each for each in self._movers(readings) if each.name not in paused]
        could = [f"{each.name} could, and {each.blocked or 'is silent'}" for each in movers]
        why = ", ".join(could) or "no replica that is read could"
        return (
            f"{', '.join(waiting)} paused at {level:.0%} of the limit on live events, and nothing "
            f"moves the output: {why}; start or detach a replica, see to what a guard holds, or "
            "raise limits.max_live_events and max_live_bytes"
        )
