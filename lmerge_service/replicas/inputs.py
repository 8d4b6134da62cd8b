"""The inputs of a replica: records of topics to events of the plan's sources, by partition.

Theory
    What becomes of a record depends on the records before it in its partition, and on nothing else:
    neither on batches, nor on how partitions interleave, nor on the clock. So replicas agree, and
    so does a process that reads the same records once more after it was killed.

    Facts are events of length 1 as a rule. A *late* one is dropped (`lateness`), and so is a
    *duplicate*: one whose key columns an earlier fact of its partition has, unless that is so far
    below the highest time that a fact of its time would be late. Which is why what is remembered
    has a bound, and why a duplicate, whose time is its original's, never passes. A record that is
    no fact is a dead letter. A *heartbeat* is no event: it brings its partition to its time.

    Elements have their own stable points. They are read from the topic's beginning; whether an
    element is legal is found out where it enters the plan (`queries.operators.sources`).

    The stable point of an input is the least of its partitions': a partition that has never spoken
    holds all back.

Invariants
    I1  The elements of an input are a legal stream, if those of each partition of its topic are.
    I2  After `restore` of what `saved` gave, and the partitions' `reached`, it goes on as if it had
        not been interrupted.

Cost
    Beyond decoding, O(1) per record; O(log n) where a key is declared. Memory: the keys of the
    facts within the lateness, and for elements the rows of the latest payloads.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final

import msgspec

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.repeats import Repeats
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.records import Record
from lmerge_service.queries import logical
from lmerge_service.queries.rows import Refusal, Row
from lmerge_service.replicas.facts import END, FactDecoder, Heartbeat
from lmerge_service.replicas.lateness import TimeReached

__all__ = ("ElementsInput", "FactsInput", "QueryInput", "input_of")

_ROWS: Final = 1 << 15
"""So many payloads' rows are kept."""


class QueryInput(ABC):
    """One source of the plan, and the topic that it is."""

    def __init__(self, source: logical.Source | logical.Elements, topic: str, width: int) -> None:
        self.name = source.name
        self.schema = source.fields
        self.topic = topic
        self.width = width
        self.dead: list[DeadLetter] = []
        """Of the records taken; whoever reads it empties it."""
        self.records = [0] * width
        """How many were taken, by partition."""
        self.dropped: Counter[str] = Counter()
        """Records that are no part of the input, by reason: late, duplicate, heartbeat, or as dead
        letters have it."""

    @property
    def stable(self) -> int:
        """Nothing of the input changes before it any more."""
        return min(self.stables)

    @property
    @abstractmethod
    def stables(self) -> list[int]:
        """The same of each partition."""

    @property
    @abstractmethod
    def reached(self) -> list[int]:
        """What a commit record has of how far each partition is."""

    @abstractmethod
    def go_on(self, reached: Sequence[int]) -> None:
        """Takes over how far each partition is."""

    @abstractmethod
    def take(self, partition: int, records: Sequence[Record]) -> list[Element]:
        """The next records of a partition: its inserts and adjusts, whose payloads are rows."""

    @abstractmethod
    def saved(self) -> bytes:
        """What else is remembered."""

    @abstractmethod
    def restore(self, saved: bytes) -> None:
        """Takes over what `saved` gave.

        Raises:
            StateError: it is damaged.
        """

    def __len__(self) -> int:
        """How many entries are remembered."""
        return 0

    def _refuse(self, partition: int, record: Record, reason: str, why: str) -> None:
        self.dropped[reason] += 1
        self.dead.append(
            DeadLetter(
                self.name,
                self.topic,
                partition,
                record.offset,
                reason,
                why,
                record.key,
                record.value,
            )
        )


class FactsInput(QueryInput):
    """Facts; `headroom` is how far the query moves times (`logical.headroom`)."""

    def __init__(self, source: logical.Source, topic: str, width: int, headroom: int = 1) -> None:
        super().__init__(source, topic, width)
        self._decoder = FactDecoder(source, headroom)
        self._reached = [TimeReached(source.lateness) for _ in range(width)]
        self._seen: list[_Keys] | None = None
        if source.key:
            key = itemgetter(*map(source.fields.position, source.key))
            self._seen = [_Keys(key) for _ in range(width)]

    @property
    def stables(self) -> list[int]:
        return [each.watermark for each in self._reached]

    @property
    def reached(self) -> list[int]:
        return [each.highest for each in self._reached]

    def go_on(self, reached: Sequence[int]) -> None:
        for each, highest in zip(self._reached, reached, strict=True):
            each.highest = highest

    def take(self, partition: int, records: Sequence[Record]) -> list[Element]:
        self.records[partition] += len(records)
        reached = self._reached[partition]
        seen = None if self._seen is None else self._seen[partition]
        counts = reached.counts
        events: list[Element] = []
        for at, fact in enumerate(self._decoder.decode([record.value for record in records])):
            if type(fact) is Insert:
                if not counts(fact.vs):
                    self.dropped["late"] += 1
                elif seen is not None and seen.has(fact, reached.watermark):
                    self.dropped["duplicate"] += 1
                else:
                    events.append(fact)
            elif fact is END:
                reached.end()
            elif type(fact) is Heartbeat:
                counts(fact.vs)
                self.dropped["heartbeat"] += 1
            else:
                assert isinstance(fact, Refusal)
                column = f"column {fact.column}: " if fact.column else ""
                self._refuse(partition, records[at], fact.reason, f"{column}{fact.value}")
        return events

    def __len__(self) -> int:
        return sum(map(len, self._seen or ()))

    def saved(self) -> bytes:
        return msgspec.msgpack.encode([each.state() for each in self._seen or ()])

    def restore(self, saved: bytes) -> None:
        with _damage(self.name):
            states = msgspec.msgpack.decode(saved, type=list[list[list[Any]]])
            for each, state in zip(self._seen or (), states, strict=True):
                each.load(state)


class _Keys:
    """The keys of facts that a duplicate may still follow in time."""

    def __init__(self, key: Callable[[Row], Hashable]) -> None:
        self._key = key
        self._times: dict[Hashable, int] = {}
        self._due: list[tuple[int, int, Hashable]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._times)

    def has(self, fact: Insert[Row], watermark: int) -> bool:
        """Whether the fact is a duplicate; it is remembered. Those below the watermark go."""
        times, due = self._times, self._due
        while due and due[0][0] < watermark:
            time, _, old = heappop(due)
            if times.get(old) == time:
                del times[old]
        key = self._key(fact.payload)
        if key in times:
            return True
        self._remember(key, fact.vs)
        return False

    def _remember(self, key: Hashable, time: int) -> None:
        self._times[key] = time
        self._serial += 1
        heappush(self._due, (time, self._serial, key))

    def state(self) -> list[list[Any]]:
        return [[portable(key), time] for key, time in self._times.items()]

    def load(self, state: list[list[Any]]) -> None:
        self._times, self._due = {}, []
        for key, time in state:
            self._remember(hashable(key), time)


class ElementsInput(QueryInput):
    """Elements, as a merge or another replica publishes them."""

    def __init__(self, source: logical.Elements, topic: str, width: int) -> None:
        super().__init__(source, topic, width)
        self._decoder = WireDecoder()
        self._repeats = Repeats()
        self._stables = [START] * width
        self._incarnations: list[int | None] = [None] * width
        self._rows: dict[bytes, Row | Refusal] = {}

    @property
    def stables(self) -> list[int]:
        return self._stables

    @property
    def reached(self) -> list[int]:
        return self._stables

    def go_on(self, reached: Sequence[int]) -> None:
        self._stables = [*reached]

    def take(self, partition: int, records: Sequence[Record]) -> list[Element]:
        self.records[partition] += len(records)
        events: list[Element] = []
        for record in records:
            try:
                self._check_incarnation(partition, record)
                if record.headers and self._repeats.is_repeat(partition, record):
                    self.dropped["repeat"] += 1
                    continue
                element = self._decoder.decode(record.value)
            except ElementError as error:
                self._refuse(partition, record, error.reason, str(error))
                continue
            if type(element) is Stable:
                self._stables[partition] = max(self._stables[partition], element.vc)
                continue
            assert isinstance(element, Insert | Adjust)
            row = self._row(element.payload)
            if isinstance(row, Refusal):
                self._refuse(partition, record, row.reason, f"column {row.column}: {row.value}")
            elif type(element) is Insert:
                events.append(Insert(row, element.vs, element.ve))
            else:
                assert type(element) is Adjust
                events.append(Adjust(row, element.vs, element.vold, element.ve))
        return events

    def _row(self, payload: bytes) -> Row | Refusal:
        row = self._rows.get(payload)
        if row is None:
            if len(self._rows) >= _ROWS:
                self._rows.clear()
            row = self._rows[payload] = self.schema.row(msgspec.json.decode(payload))
        return row

    def _check_incarnation(self, partition: int, record: Record) -> None:
        """What another incarnation emits is not a sequel to what was before.

        Raises:
            StateError: one begins, or the first is not correct from the beginning of time.
        """
        incarnation, joining_at = incarnation_of(record.headers) if record.headers else (0, START)
        known = self._incarnations[partition]
        if incarnation == known:
            return
        at = f"{self.topic}-{partition}, offset {record.offset}"
        if known is not None:
            raise StateError(
                f"{at}: incarnation {incarnation} begins behind {known}, so that what was read "
                "does not hold any more; a merged output has one as long as it does not start over"
            )
        if joining_at != START:
            raise StateError(
                f"{at}: the topic begins with an incarnation that is correct from {joining_at} on "
                "only; read a merged output, or a replica's that has read all"
            )
        self._incarnations[partition] = incarnation

    def saved(self) -> bytes:
        return msgspec.msgpack.encode([self._incarnations, self._repeats.saved()])

    def restore(self, saved: bytes) -> None:
        with _damage(self.name):
            self._incarnations, numbers = msgspec.msgpack.decode(
                saved, type=tuple[list[int | None], dict[int, bytes]]
            )
            self._repeats = Repeats(numbers)


@contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateError(f"the snapshot of the input {name!r} is damaged: {error}") from error


def input_of(
    source: logical.Source | logical.Elements, topic: str, width: int, headroom: int
) -> QueryInput:
    """The input of a source."""
    if isinstance(source, logical.Source):
        return FactsInput(source, topic, width, headroom)
    return ElementsInput(source, topic, width)
