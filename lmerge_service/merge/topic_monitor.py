"""The topic monitor of a task that leads: which of the replicas' topics exist, and their ends.

Theory
    Topics come late, get more partitions, are deleted and recreated, without any notification. So
    they are looked up every other second, and the result is acted on between two batches, when
    nothing else changes the replicas. A topic that was recreated meanwhile may have had records at
    the very offsets that were read; that is found out before anything of them is committed.

    The same look-up asks for each topic's end: for the high watermark, since records of an open
    transaction are unread as well, and then for the last stable offset. In this order the second is
    below the first only where a transaction is open (`unread`).

Who owns what
    Nothing: source and topics are the task's.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from lmerge_service.errors import TransportError
from lmerge_service.kafka.connection import CONNECT_SECONDS, lacking
from lmerge_service.kafka.lookups import Lookups
from lmerge_service.kafka.sightings import Sightings, TopicChange, change_of, is_another
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo, Topics
from lmerge_service.kafka.unread import OpenTransaction, Unread
from lmerge_service.merge.commit_record import ReplicaCheckpoint
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.task_state import TaskState

__all__ = ("WATCH_SECONDS", "Positions", "TopicMonitor")

log = structlog.get_logger()

WATCH_SECONDS = 2.0


class Positions(Protocol):
    """Where topics begin and end, and up to where they were read: see `Source`."""

    lost: dict[TopicPartition, str]

    def position(self, tp: TopicPartition) -> int | None: ...

    async def beginnings(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]: ...

    async def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, seconds: float = CONNECT_SECONDS
    ) -> dict[TopicPartition, int]: ...


@dataclass(frozen=True, slots=True)
class _Ends:
    """Of a partition, at the last look-up."""

    high: int
    """The high watermark."""
    stable: int
    """The last stable offset."""


class TopicMonitor:
    """Watches the topics of one task's replicas."""

    def __init__(
        self,
        state: TaskState,
        source: Positions,
        topics: Topics | Lookups,
        *,
        clock: Callable[[], float],
        detached: Callable[[], Mapping[str, str]],
        unheeded: Counter[str],
    ):
        """`detached` gives the topics of the replicas that are detached, by name; `unheeded` counts
        what they have published since then, by name, and outlives this."""
        self._state = state
        self._clock = clock
        self._source = source
        self._topics = topics
        self._found: dict[str, TopicInfo] | None = None
        """The topics found, if that is not acted on yet."""
        self._sightings = Sightings()
        self._answers: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] = {}, {}
        """High watermarks and last stable offsets, at the last look-up."""
        self._ends: dict[TopicPartition, _Ends] = {}
        self._asked_at = 0.0
        self._logged: dict[TopicPartition, int] = {}
        """The offsets of open transactions that were logged."""
        self._detached = detached
        self._unheeded = unheeded
        self._counted: dict[TopicPartition, int] = {}
        """Of detached replicas' partitions, up to where they are counted."""

    async def look(self) -> None:
        """Looks up which topics exist, and where they end.

        Raises:
            TransportError: Kafka does not answer.
        """
        replicas = self._state.replicas
        topics = {state.replica.topic for state in replicas.states.values()}
        detached = {name: topic for name, topic in self._detached().items() if topic not in topics}
        asked = topics | set(detached.values())
        found = await self._topics.describe(asked, seconds=WATCH_SECONDS)
        self._sightings.note(topics, found)
        self._found = found
        there = [tp for tp in replicas.positions() if tp.topic in found]
        left = [
            TopicPartition(topic, number)
            for topic in dict.fromkeys(detached.values())
            if topic in found
            for number in range(found[topic].partitions)
        ]
        asked_at = self._clock()
        high = await self._source.high_watermarks(there, seconds=WATCH_SECONDS) if there else {}
        both = [*there, *left]
        stable = await self._source.ends(both, seconds=WATCH_SECONDS) if both else {}
        is_quiet = (high, stable) == self._answers
        self._answers, self._asked_at = (high, stable), asked_at
        if is_quiet:
            self._go_on_waiting()
        else:
            self._ends = {tp: _Ends(high[tp], stable[tp]) for tp in there}
            self.measure()
        self._log_open()
        self._count_unheeded(detached, stable)

    def _count_unheeded(
        self, detached: Mapping[str, str], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Counts what detached replicas have published since; where it is not known how far they
        were merged, since their topics were first looked at."""
        topics = {topic: name for name, topic in detached.items()}
        for tp in [tp for tp in self._counted if tp.topic not in topics]:
            del self._counted[tp]  # attached again
        for tp, end in ends.items():
            if (name := topics.get(tp.topic)) is None:
                continue
            merged = self._state.replicas.left.get(name, {}).get(tp.partition, end)
            counted = self._counted.get(tp, merged)
            self._unheeded[name] += max(0, end - counted)
            self._counted[tp] = end

    async def act(self) -> bool:
        """Excludes replicas that cannot be read further, takes in topics that appeared, were
        recreated or got more partitions; whether other partitions are to be read now."""
        replicas = self._state.replicas
        lost, self._source.lost = self._source.lost, {}
        infos, self._found = self._found, None
        if lost:  # a topic that was recreated may contain less than was read
            topics = {each.replica.topic for each in replicas.states.values()}
            infos = await self._topics.describe(topics)
            self._sightings.note(infos, infos)  # what is missing is for `look` to count
        for tp, why in lost.items():
            if (state := replicas.merging(tp)) is not None and _is_the_same(state, infos):
                replicas.exclude(state.name, f"partition {tp.partition} {why}", lost=True)
        compared = infos is not None and await self._compare(infos)
        return bool(lost) or compared

    async def _compare(self, infos: Mapping[str, TopicInfo]) -> bool:
        """Acts on which topics exist; whether other partitions are to be read now."""
        states = self._state.replicas.states.items()
        wanted = [(name, each) for name, each in states if each.quarantined is None]
        new = [
            tp
            for name, each in wanted
            if (info := infos.get(each.replica.topic)) is not None and _begins(each, info)
            for tp in self._state.replicas.needed(name, info.partitions)
        ]
        # Of all at once: one after the other, many replicas take long.
        begins = await self._source.beginnings(new) if new else {}
        ends = await self._source.high_watermarks(new) if new else {}
        bounds = _Bounds(begins, ends)
        return any([await self._adapt(name, each, infos, bounds) for name, each in wanted])

    async def _adapt(
        self, name: str, state: ReplicaState, infos: Mapping[str, TopicInfo], bounds: "_Bounds"
    ) -> bool:
        replicas, topic = self._state.replicas, state.replica.topic
        info, deleted = infos.get(topic), self._sightings.is_deleted(topic)
        change = change_of(state.topic_id, state.width, info, deleted=deleted)
        if info is None:
            return self._miss(name, state, deleted=change is TopicChange.DELETED)
        if change is TopicChange.RECREATED:
            why = "was recreated: what it holds is merged from its beginning"
            replicas.exclude(name, why, recreated=True)
            return self._begin(name, info, bounds)
        state.topic_id = state.topic_id or info.id  # brokers return ids by now
        if state.step is None:
            return not state.lost and self._begin(name, info, bounds)
        if change is TopicChange.WIDER:
            await self._widen(name, info)
        return change is TopicChange.WIDER

    def _miss(self, name: str, state: ReplicaState, *, deleted: bool) -> bool:
        """A replica's topic is not there; whether it was merged until now."""
        topic, merged = state.replica.topic, state.step is not None
        why = "was deleted" if merged else "does not exist yet"
        if topic in self._topics.refused:
            unseen = "cannot be seen any more" if merged else "cannot be seen"
            why = f"{unseen}: {lacking('Read', f'topic {topic}')}"
        if not merged:
            state.excluded = f"topic {topic} {why}"
        elif deleted:
            self._state.replicas.exclude(name, why)
        return merged and deleted

    def _begin(self, name: str, info: TopicInfo, bounds: "_Bounds") -> bool:
        replicas, since = self._state.replicas, self._state.transaction + 1
        replicas.begin(name, info, bounds.beginnings, bounds.ends, since=since)
        merged = name in replicas.merged
        if merged:
            topic = replicas.states[name].replica.topic
            log.info("replica merged", replica=name, topic=topic, partitions=info.partitions)
        return merged

    async def _widen(self, name: str, info: TopicInfo) -> None:
        replicas = self._state.replicas
        before = replicas.states[name].width
        fresh = replicas.needed(name, info.partitions)[before:]
        replicas.widen(name, info, await self._source.beginnings(fresh) if fresh else {})
        if name not in replicas.merged:
            return
        topic = replicas.states[name].replica.topic
        log.info("replica widened", replica=name, topic=topic, partitions=info.partitions)

    def _go_on_waiting(self) -> None:
        """Measures, where nothing has come: whoever had read everything still has."""
        for state in self._state.replicas.states.values():
            if (unread := state.unread) is not None and not unread.records and not unread.open:
                state.unread = replace(unread, asked_at=self._asked_at)
            else:
                state.unread = self._unread(state)

    def measure(self) -> None:
        """How far it is to the topics' ends, as they were seen last."""
        for state in self._state.replicas.states.values():
            state.unread = self._unread(state)

    def _unread(self, state: ReplicaState) -> Unread | None:
        records, readable, found = 0, False, list[OpenTransaction]()
        for tp in state.positions:
            ends, position = self._ends.get(tp), self._source.position(tp)
            if ends is None or position is None:
                return None
            records += max(0, ends.high - position)
            readable |= position < ends.stable
            if (transaction := self._open(state, tp, ends, position)) is not None:
                found.append(transaction)
        return Unread(records, readable, tuple(found), self._asked_at) if state.next else None

    def _open(
        self, state: ReplicaState, tp: TopicPartition, ends: _Ends, position: int
    ) -> OpenTransaction | None:
        """The transaction that is open in a partition; one that was is over when we have read on
        behind its beginning."""
        known = state.tally.open_since
        if ends.stable >= ends.high or position > ends.stable:
            known.pop(tp.partition, None)
            return None
        offset, since = known.get(tp.partition, (-1, 0.0))
        if offset != ends.stable:
            since = self._asked_at
            known[tp.partition] = ends.stable, since
        records = ends.high - ends.stable
        return OpenTransaction(tp.topic, tp.partition, ends.stable, records, since)

    def _log_open(self) -> None:
        """Logs transactions that have been open for long, once each, and when they are over."""
        before, self._logged = self._logged, {}
        for name, each in self._open_for_long():
            tp = TopicPartition(each.topic, each.partition)
            self._logged[tp] = each.offset
            if before.get(tp) != each.offset:
                log.warning(
                    "replica has left a transaction open", replica=name, topic=each.topic,
                    partition=each.partition, offset=each.offset, records=each.records,
                    open_seconds=round(each.age(self._clock()), 3),
                )  # fmt: skip
        for tp, offset in before.items():
            if self._logged.get(tp) != offset:
                log.info(
                    "open transaction is over", topic=tp.topic, partition=tp.partition,
                    offset=offset,
                )  # fmt: skip

    def _open_for_long(self) -> Iterator[tuple[str, OpenTransaction]]:
        limit, now = self._state.topology.guards.open_transaction_seconds, self._clock()
        for name, state in self._state.replicas.merged.items():
            for each in () if state.unread is None else state.unread.open:
                if 0 < limit <= each.age(now):
                    yield name, each

    async def unchanged(self, standings: Mapping[str, ReplicaCheckpoint]) -> None:
        """A topic that was recreated may have had records at the offsets that were read: they
        belong to another stream, and must not be committed.

        Raises:
            TransportError: one was; reopen the task.
        """
        infos = await self._topics.describe({each.topic for each in standings.values()})
        for name, standing in standings.items():
            info = infos.get(standing.topic)
            if info is not None and is_another(standing.topic_id, info.id):
                raise TransportError(f"topic {standing.topic} of {name} was recreated meanwhile")


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Where the partitions of topics that may be begun begin and end."""

    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def _begins(state: ReplicaState, info: TopicInfo) -> bool:
    """The replica's topic is there, and not merged: it may be begun."""
    return is_another(state.topic_id, info.id) or (state.step is None and not state.lost)


def _is_the_same(state: ReplicaState, infos: Mapping[str, TopicInfo] | None) -> bool:
    """The replica's topic is the one that is merged, as far as anybody knows."""
    info = None if infos is None else infos.get(state.replica.topic)
    return info is None or not is_another(state.topic_id, info.id)
