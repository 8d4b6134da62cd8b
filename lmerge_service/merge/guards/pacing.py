"""Pacing: what flow control has to know of a task, and what it has decided.

Theory
    `FlowControl` decides, once a poll, by how far each replica is and how much is live. How far a
    replica has been read is what its last chunks ended with; what live events take is estimated
    from a few records of each batch. Neither costs anything per element.

    The limits are a worker's. A task that is one of n has an n-th of them.
"""

from collections.abc import Callable, Sequence
from typing import Final

from lmerge_service.config.topology import Limits
from lmerge_service.core import LMerge
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.kafka.records import value_bytes
from lmerge_service.merge.guards.flow_control import (
    EventBytes,
    FlowControl,
    FlowOrder,
    ReplicaProgress,
)
from lmerge_service.merge.replicas import ReplicaState

__all__ = ("Pacing",)

_EVERY: Final = 64
"""Of so many records the size of one is looked at."""


class Pacing:
    """Flow control of one task's operator."""

    def __init__(self, limits: Limits, merge: LMerge, clock: Callable[[], float]) -> None:
        self._merge = merge
        self._clock = clock
        self._flow = FlowControl(
            max_live_events=limits.max_live_events,
            max_live_bytes=limits.max_live_bytes,
            voters=merge.policy.voters,
        )
        self._sizes = EventBytes()
        self.stuck: str | None = None
        """Why nothing moves, in words."""

    @property
    def paused(self) -> frozenset[str]:
        """Names of replicas."""
        return self._flow.paused

    def read(self, records: Sequence[TimedRecord]) -> None:
        """These were read."""
        if type(records) is not list:  # the engine's
            self._sizes.add(len(records), value_bytes(records))
            return
        some = [len(record.value or b"") for record in records[::_EVERY]]
        self._sizes.add(len(some), sum(some))

    def is_low(self, share: int) -> bool:
        """So little is live that nobody is paused; `share` is as for `order`."""
        live = len(self._merge) * share
        return not self.paused and self._flow.is_low(live, self._sizes.of(live))

    def order(
        self, states: Sequence[ReplicaState], *, held: frozenset[str], share: int
    ) -> FlowOrder:
        """Decides again, by the replicas that are merged; guards hold the `held`. `share` is how
        many tasks there are for the limits."""
        merge = self._merge
        live = len(merge) * share
        readings = [self._reading(each, each.name in held) for each in states]
        ordered = self._flow.order(live, self._sizes.of(live), merge.max_stable, readings)
        self.stuck = ordered.stuck
        return ordered

    def _reading(self, state: ReplicaState, held: bool) -> ReplicaProgress:
        source, step = self._merge.inputs[state.name], state.step
        assert step is not None
        front = max(step.front, source.stable)
        unread = state.unread
        readable = None if unread is None else unread.readable
        blocked = None
        if unread is not None and unread.open and not readable:
            blocked = unread.open[0].words(self._clock())
        return ReplicaProgress(
            state.name, source.stable, front, source.joined, readable, held, blocked
        )
