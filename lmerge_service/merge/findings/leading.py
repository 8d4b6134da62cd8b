"""The leading replica: whose stable moved the output last; since when, after which, and why.

Theory
    The operator knows only the current leader. When another one takes over, the reason is the state
    of the previous leader at that moment: gone, excluded, held, or merely behind.

        a: stable(90)   b: stable(97) at in.b-0@12      b leads from a: a is at 90
        a is detached   b: stable(98)                   b leads from a: a is not merged any more

    After a rebuild the operator does not know the previous leader; the state here outlives that.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lmerge_service.core import LMerge
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.guards.verdicts import in_words
from lmerge_service.merge.replicas import Replicas

__all__ = ("LeaderChange", "Leading")


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The last change of leader."""

    leader: str
    before: str | None
    """None: none has led before, as far as this process knows."""
    at_ms: int
    """Wall clock, milliseconds since the epoch."""
    why: str


class Leading:
    """Of one task, for the life of the process."""

    def __init__(self, unix_ns: Callable[[], int]) -> None:
        self.change: LeaderChange | None = None
        self._unix_ns = unix_ns

    def look(
        self, merge: LMerge, replicas: Replicas, tp: TopicPartition, first: int, last: int
    ) -> LeaderChange | None:
        """Whether another replica leads than before, now that the records of a partition from one
        offset to another have been merged."""
        leader = merge.stats().leader
        before = None if self.change is None else self.change.leader
        if leader is None or leader == before:
            return None
        at = f"{first}" if first == last else f"{first} to {last}"
        why = f"stable({merge.max_stable}) at offset {at} of {tp.topic}-{tp.partition}"
        if before is not None:
            why += f"; {_of(before, merge, replicas)}"
        at_ms = self._unix_ns() // 1_000_000
        self.change = LeaderChange(leader, before, at_ms, why)
        return self.change


def _of(name: str, merge: LMerge, replicas: Replicas) -> str:
    """Why a replica does not lead any more, in words."""
    state, source = replicas.states.get(name), merge.inputs.get(name)
    if state is not None and (why := state.quarantined or state.excluded) is not None:
        return f"{name} is not merged: {why}"
    if source is None:
        return f"{name} is detached"
    if not source.joined:
        return f"{name} has started over and is joining"
    return f"{name} is {in_words(source.stable)}"
