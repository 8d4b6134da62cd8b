"""A Kafka in memory: logs with markers, transactions with epochs, topic ids, groups.

Theory
    The broker's side only, and synchronous: what a request does, it does at once and completely.
    That requests take time, get lost or are not answered is the network's doing (`network`).

    A partition is a list of entries at rising offsets. A transaction's entries are *open* until
    a marker, which takes an offset of its own, makes them committed or aborted. A read_committed
    reader sees committed entries below the last stable offset: the first open entry, or the end.

        offset   0 insert (open)   1 insert (open)   2 marker: commit   3 insert (open)
        readers  ------- nothing before 2 is there ------> 0, 1            LSO = 3, end = 4

Invariants
    M1  Offsets rise and are never given twice; truncation and compaction leave holes.
    M2  Of a transactional.id the producer with the latest epoch may write, and no other.
    M3  A topic recreated has another id, and nothing of the old one.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.kafka.source import TopicPartition
from tests.simulation.groups import Group

__all__ = ("Broker", "BrokerError", "Fenced", "OutOfRange", "Producer", "UnknownTopic")

State = Literal["open", "committed", "aborted", "marker"]
Message = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""(key, value, headers)."""

DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}


class BrokerError(Exception):
    """The broker refuses."""


class Fenced(BrokerError):  # noqa: N818 (Kafka's word)
    """Another producer has taken the transactional.id over."""


class UnknownTopic(BrokerError):  # noqa: N818
    """There is no such topic or partition."""


class OutOfRange(BrokerError):  # noqa: N818
    """An offset that the partition does not have."""


@dataclass(frozen=True, slots=True)
class Producer:
    """One life of a transactional producer."""

    transactional_id: str
    epoch: int


@dataclass(slots=True)
class _Entry:
    offset: int
    timestamp: int
    message: Message
    state: State
    writer: str | None = None


@dataclass(slots=True)
class _Partition:
    entries: list[_Entry] = field(default_factory=list)
    deleted: list[_Entry] = field(default_factory=list)
    """What retention has taken."""
    start: int = 0
    end: int = 0

    @property
    def last_stable(self) -> int:
        return next((e.offset for e in self.entries if e.state == "open"), self.end)

    def append(self, message: Message, state: State, now: int, writer: str | None = None) -> int:
        self.entries.append(_Entry(self.end, now, message, state, writer))
        self.end += 1
        return self.end - 1

    def finish(self, writer: str, state: State, now: int) -> None:
        for entry in self.entries:
            if entry.writer == writer and entry.state == "open":
                entry.state = state
        self.append((None, None, ()), "marker", now)


@dataclass(slots=True)
class _Topic:
    id: str
    partitions: list[_Partition]
    config: dict[str, str]


@dataclass(slots=True)
class _Transaction:
    epoch: int = -1
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    began: float | None = None


class Broker:
    """All there is on the server's side; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], *, transaction_seconds: float = 60.0):
        self._clock = clock
        self._transaction_seconds = transaction_seconds
        self._topics: dict[str, _Topic] = {}
        self._made = 0
        self._transactions: dict[str, _Transaction] = {}
        self.leaderless: set[str] = set()
        """Topics whose brokers are down: nobody can write them."""
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        """What consumer groups have committed."""
        self.on_arrival: list[Callable[[], None]] = []
        """Called when there may be something new to read."""

    # --- topics ---------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        if name not in self._topics:
            self._made += 1
            self._topics[name] = _Topic(
                f"id-{self._made}",
                [_Partition() for _ in range(partitions)],
                {**DEFAULTS, **(config or {})},
            )

    def delete(self, name: str) -> None:
        self._topic(name)
        del self._topics[name]
        for transaction in self._transactions.values():
            for tp in [tp for tp in transaction.partitions if tp.topic == name]:
                del transaction.partitions[tp]

    def widen(self, name: str, partitions: int) -> None:
        topic = self._topic(name)
        topic.partitions += [_Partition() for _ in range(len(topic.partitions), partitions)]

    def describe(self, name: str) -> tuple[str, int] | None:
        """(id, partitions) of a topic that exists."""
        topic = self._topics.get(name)
        return None if topic is None else (topic.id, len(topic.partitions))

    def is_writable(self, name: str) -> bool:
        return name in self._topics and name not in self.leaderless

    def config(self, name: str) -> dict[str, str]:
        return self._topic(name).config

    def names(self) -> list[str]:
        """The topics there are."""
        return list(self._topics)

    # --- reading --------------------------------------------------------------------------------

    def has_records(self, name: str) -> bool:
        """Somebody has ever written to a topic, be it in a transaction that is open."""
        topic = self._topics.get(name)
        return topic is not None and any(each.end for each in topic.partitions)

    def beginning(self, tp: TopicPartition) -> int:
        return self._partition(tp).start

    def last_stable(self, tp: TopicPartition) -> int:
        self._expire()
        return self._partition(tp).last_stable

    def high_watermark(self, tp: TopicPartition) -> int:
        self._expire()
        return self._partition(tp).end

    def since(self, tp: TopicPartition, time: int) -> int:
        """The first offset that was written at a time or later, in milliseconds; the end where
        there is none."""
        partition = self._partition(tp)
        found = (e.offset for e in partition.entries if e.timestamp >= time and e.state != "marker")
        return next(found, partition.last_stable)

    def fetch(
        self, tp: TopicPartition, offset: int, most: int
    ) -> tuple[list[CommittedRecord], int]:
        """Committed records from an offset on, and the offset to go on from: at a marker or an
        aborted record a reader goes on behind it.

        Raises:
            OutOfRange: the offset is before the beginning or behind the end.
        """
        self._expire()
        partition = self._partition(tp)
        if not partition.start <= offset <= partition.end:
            raise OutOfRange(f"{tp} has offsets {partition.start} to {partition.end}")
        found: list[CommittedRecord] = []
        first = bisect_left(partition.entries, offset, key=attrgetter("offset"))
        for entry in partition.entries[first:]:
            if entry.state == "open" or len(found) == most:
                return found, max(offset, entry.offset)
            if entry.state == "committed":
                found.append(_record(tp, entry))
        return found, partition.end

    def last(self, tp: TopicPartition, key: bytes) -> CommittedRecord | None:
        """The last committed record with a key."""
        for entry in reversed(self._partition(tp).entries):
            if entry.state == "committed" and entry.message[0] == key:
                return _record(tp, entry)
        return None

    def topic(self, name: str, *, ever: bool = False) -> CommittedTopic:
        """A topic as a history takes it; `ever`: with what retention has taken, as somebody knows
        it who has read along."""
        topic = self._topic(name)
        records = [
            _record(TopicPartition(name, number), entry)
            for number, partition in enumerate(topic.partitions)
            for entry in [*(partition.deleted if ever else ()), *partition.entries]
            if entry.state == "committed"
        ]
        lost = not ever and any(partition.start > 0 for partition in topic.partitions)
        return CommittedTopic(name, tuple(records), len(topic.partitions), lost)

    # --- writing --------------------------------------------------------------------------------

    def produce(
        self, tp: TopicPartition, messages: Iterable[Message], producer: Producer | None = None
    ) -> int:
        """Appends at once, or within the producer's transaction; the offset behind the last."""
        partition, now = self._partition(tp), int(self._clock() * 1_000)
        writer: str | None = None
        if producer is not None:
            transaction = self._begun(producer)
            transaction.partitions[tp] = None
            writer = producer.transactional_id
        for message in messages:
            partition.append(message, "open" if writer else "committed", now, writer)
        self._arrived()
        return partition.end

    def init_producer(self, transactional_id: str) -> Producer:
        """A new epoch: it fences the one before and aborts what that one left open."""
        transaction = self._transactions.setdefault(transactional_id, _Transaction())
        self._end(transactional_id, transaction, commit=False)
        transaction.epoch += 1
        return Producer(transactional_id, transaction.epoch)

    def is_current(self, producer: Producer) -> bool:
        """It may still write: no other has its transactional.id."""
        return self._transactions[producer.transactional_id].epoch == producer.epoch

    def end(self, producer: Producer, *, commit: bool) -> None:
        """Ends the producer's transaction, all of it at once."""
        self._end(producer.transactional_id, self._owned(producer), commit=commit)

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(self._clock))

    # --- what happens to logs -------------------------------------------------------------------

    def truncate(self, tp: TopicPartition, before: int) -> None:
        """Retention: everything before an offset goes."""
        partition = self._partition(tp)
        partition.start = max(partition.start, min(before, partition.last_stable))
        partition.deleted += [e for e in partition.entries if e.offset < partition.start]
        partition.entries = [e for e in partition.entries if e.offset >= partition.start]

    def lose_tail(self, tp: TopicPartition, end: int) -> None:
        """An unclean election: what is at `end` or behind it never was."""
        partition = self._partition(tp)
        partition.entries = [e for e in partition.entries if e.offset < end]
        partition.end = min(partition.end, end)

    def spoil(self, tp: TopicPartition, offset: int, value: bytes | None) -> None:
        """A disk's doing: the record at an offset is another one, or (None) is gone."""
        partition = self._partition(tp)
        at = bisect_left(partition.entries, offset, key=attrgetter("offset"))
        entry = partition.entries[at]
        assert entry.offset == offset, "there is such a record"
        if value is None:
            del partition.entries[at]
        else:
            key, _, headers = entry.message
            entry.message = (key, value, headers)

    def compact(self, name: str, *, forget_before: int = 0) -> None:
        """Of what is settled and has a key, only the last record of each key stays; no tombstone
        that was written before a time in milliseconds (`delete.retention.ms`)."""
        for partition in self._topic(name).partitions:
            settled = partition.last_stable
            last = {
                e.message[0]: e.offset
                for e in partition.entries
                if e.offset < settled and e.state == "committed"
            }
            partition.entries = [
                e
                for e in partition.entries
                if e.offset >= settled
                or (e.state == "committed" and e.message[0] is None)
                or (
                    e.state == "committed"
                    and last[e.message[0]] == e.offset
                    and (e.message[1] is not None or e.timestamp >= forget_before)
                )
            ]

    # --- inside ---------------------------------------------------------------------------------

    def _arrived(self) -> None:
        for notify in self.on_arrival:
            notify()

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            raise UnknownTopic(f"there is no topic {name}")
        return self._topics[name]

    def _partition(self, tp: TopicPartition) -> _Partition:
        partitions = self._topic(tp.topic).partitions
        if tp.partition >= len(partitions):
            raise UnknownTopic(f"there is no {tp}")
        found: _Partition = partitions[tp.partition]
        return found

    def _owned(self, producer: Producer) -> _Transaction:
        transaction = self._transactions[producer.transactional_id]
        if transaction.epoch != producer.epoch:
            raise Fenced(f"epoch {producer.epoch} of {producer.transactional_id} is over")
        return transaction

    def _begun(self, producer: Producer) -> _Transaction:
        self._expire()
        transaction = self._owned(producer)
        if transaction.began is None:
            transaction.began = self._clock()
        return transaction

    def _end(self, transactional_id: str, transaction: _Transaction, *, commit: bool) -> None:
        now = int(self._clock() * 1_000)
        for tp in transaction.partitions:
            state: State = "committed" if commit else "aborted"
            self._partition(tp).finish(transactional_id, state, now)
        transaction.partitions = {}
        transaction.began = None
        self._arrived()

    def _expire(self) -> None:
        """Aborts what has been open for too long; its producer is fenced by that."""
        oldest = self._clock() - self._transaction_seconds
        for transactional_id, transaction in self._transactions.items():
            if transaction.began is not None and transaction.began <= oldest:
                self._end(transactional_id, transaction, commit=False)
                transaction.epoch += 1
                transaction.epoch += 1


def _record(tp: TopicPartition, entry: _Entry) -> CommittedRecord:
    key, value, headers = entry.message
    return CommittedRecord(
        tp.topic, tp.partition, entry.offset, entry.timestamp, value, key, tuple(headers)
    )
