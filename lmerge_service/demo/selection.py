"""A query by two plans, each expensive where the other is cheap: a replica that uses feedback.

Theory
    The query keeps readings that came whole (`demo.whole_readings`), by one of two functions; plans
    of it call one or the other, and both mean the same (the paper's VI-E3). Readings come in order
    and are never revised, so a filter passes stables on as they are, and an event's end is final
    from the start: it may be left out as soon as it is below the point
    (`lmerge_service.kafka.feedback`).

    What a reading takes is a wait, which this process waits for, a hundredth of a second at a time:
    functions that computed instead would share the cores of one machine, and a plan that is ahead
    would be slowed down by the other's work, which is not what a merge of plans on machines of
    their own would see. So a reading takes at least its time, reading and writing it included, and
    of the processor next to nothing.

Who owns what
    `select` owns its clients. The output topic is made when it is missing.

What happens on a crash at each await
    What is written stays. The next start is the next incarnation, from the first reading on; with
    feedback it leaves out what has become final meanwhile, and is at the front at once.

Cost
    Some 15 µs of processor a reading that is passed on, 3 µs one that is left out.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Final, NamedTuple, Protocol

import msgspec

from lmerge_service.demo.whole_readings import Costs, Ledger, entered_in, whole
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ElementError, StateError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.feedback import Feedback
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.tails import next_incarnation, tails
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.writing import TopicWriter
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.rows import Refusal

__all__ = (
    "FeedbackPoint",
    "Selected",
    "Selection",
    "SelectionReplica",
    "SelectionStep",
    "select",
)

_SOURCE: Final = "readings"
_decoded: Final = msgspec.json.Decoder().decode
_AT_ONCE: Final = 500
_POLL_SECONDS: Final = 0.2
_STEP_SECONDS: Final = 0.01
_SLACK_SECONDS: Final = 0.05
_REPORT_SECONDS: Final = 2.0


class FeedbackPoint(Protocol):
    """What a selection needs of feedback; `Feedback` and `HttpFeedback` have it."""

    @property
    def point(self) -> int: ...


class Selected(NamedTuple):
    """A record that is passed on."""

    key: bytes | None
    value: bytes


@dataclass(slots=True)
class SelectionStep:
    """What is to be passed on after some seconds of work."""

    records: list[Selected]
    seconds: float = 0.0


class Selection:
    """The query by one plan, from records to records; never awaits."""

    def __init__(
        self, plan: PhysicalPlan, costs: Costs, feedback: FeedbackPoint | None = None
    ) -> None:
        self.skipped = self.kept = 0
        """Readings that were left out; those that were passed on."""
        self.at = START
        """The last stable."""
        self._ledger, self._feedback = Ledger(costs), feedback
        self._network, self._schema = plan.begin(), whole.schema
        # So many that they are a step if all of them are expensive.
        dear = max(costs.expensive, costs.cheap)
        self._at_once = ceil(_STEP_SECONDS / dear) if dear else _AT_ONCE
        self._decode = WireDecoder().decode

    @property
    def cheap(self) -> int:
        """Readings by what they took."""
        return self._ledger.cheap

    @property
    def expensive(self) -> int:
        return self._ledger.expensive

    @property
    def ended(self) -> bool:
        return self.at == INFINITY

    @property
    def point(self) -> int:
        """Events that end below it are left out."""
        return START if self._feedback is None else self._feedback.point

    def steps(self, records: Sequence[Record]) -> Iterator[SelectionStep]:
        """Steps of a hundredth of a second's work or a little more, each with the feedback point at
        its begin: a point that rises meanwhile counts for the next.

        Raises:
            StateError: a record is no reading, or the stream is revised.
        """
        left = iter(records)
        while chunk := list(islice(left, self._at_once)):
            step, point = SelectionStep([]), self.point
            begun = self._ledger.seconds
            with entered_in(self._ledger):
                while chunk:
                    self._take(chunk, step, point)
                    step.seconds = self._ledger.seconds - begun
                    if step.seconds >= _STEP_SECONDS:
                        break
                    chunk = list(islice(left, self._at_once))
            yield step

    def _take(self, records: Sequence[Record], step: SelectionStep, point: int) -> None:
        """Adds what the plan emits of records, which are passed on as they are where it can."""
        given: dict[int, tuple[Element, Record]] = {}
        for record in records:
            try:
                element = self._read(self._decode(record.value or b""), point)
            except (ElementError, msgspec.MsgspecError) as error:
                raise StateError(f"offset {record.offset} of the readings: {error}") from error
            if element is not None:
                given[id(element)] = element, record
        elements = [element for element, _ in given.values()]
        for each in self._network.process_batch(_SOURCE, elements):
            self.kept += isinstance(each, Insert)
            if (found := given.get(id(each))) is not None:
                step.records.append(Selected(found[1].key, found[1].value or b""))
            else:
                step.records.append(self._encoded(each))

    def _read(self, element: Element, point: int) -> Element | None:
        """What the plan takes of an element: a reading as a row; nothing if it is left out."""
        if isinstance(element, Stable):
            self.at = element.vc
            return element
        if not isinstance(element, Insert):
            raise ElementError("revised", "a reading is revised, so that its end is not final")
        if element.ve < point:
            self.skipped += 1
            return None
        row = self._schema.row(_decoded(element.payload))
        if isinstance(row, Refusal):
            raise ElementError(row.reason, f"no reading: {row.reason} ({row.column})")
        return Insert(row, element.vs, element.ve)

    def _encoded(self, element: Element) -> Selected:
        if isinstance(element, Insert):
            payload = self._schema.payload(element.payload)
            return Selected(payload, encode(Insert(payload, element.vs, element.ve)))
        return Selected(None, encode(element))


class _Elsewhere:
    """Time passes. What we are late by goes off the next wait, up to a twentieth of a second, so
    that the coarseness of timers does not add up."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._free = self._clock()

    async def work(self, seconds: float) -> None:
        self._free = max(self._free, self._clock() - _SLACK_SECONDS) + seconds
        await asyncio.sleep(max(0.0, self._free - self._clock()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReplica:
    """The query by a plan, from a topic to a topic."""

    plan: PhysicalPlan
    connection: Connection
    readings: str
    to: str
    feedback: str | None = None
    """The merge's output topic, whose feedback to `name` is used."""
    name: str
    costs: Costs = field(default_factory=Costs)


async def select(
    replica: SelectionReplica,
    *,
    begun: Callable[[int], None] = lambda _: None,
    report: Callable[[Selection], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Selection:
    """Runs it until the readings end, or `stopped` is true; `begun` receives its incarnation, and
    `report` its progress every two seconds.

    Raises:
        ConfigurationError: there are no such readings, or they have several partitions.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: the readings cannot be read, or are none.
    """
    async with AsyncExitStack() as stack:
        incarnation = await _prepare(replica)
        begun(incarnation)
        feedback = None
        if replica.feedback is not None:
            feedback = await stack.enter_async_context(
                Feedback(replica.connection, output=replica.feedback, replica=replica.name)
            )
        selection = Selection(replica.plan, replica.costs, feedback)
        headers = incarnation_headers(incarnation)
        writer = await stack.enter_async_context(
            TopicWriter(replica.connection, replica.to, headers)
        )
        source = await stack.enter_async_context(Source(replica.connection))
        source.assign(await source.beginnings([TopicPartition(replica.readings, 0)]))
        await _run(selection, source, writer, report, stopped)
        report(selection)
        return selection


async def _prepare(replica: SelectionReplica) -> int:
    """Finds the readings and makes the output topic; which incarnation this is."""
    async with Topics(replica.connection) as topics:
        width = await topics.width(replica.readings)
        if width is None:
            raise ConfigurationError(f"there is no topic {replica.readings}")
        if width > 1:
            raise ConfigurationError(
                f"{replica.readings} has {width} partitions: readings in order need one"
            )
        partitions = await topics.ensure(replica.to)
    return next_incarnation(await tails(replica.connection, replica.to, partitions))


async def _run(
    selection: Selection,
    source: Source,
    writer: TopicWriter,
    report: Callable[[Selection], None],
    stopped: Callable[[], bool],
) -> None:
    clock, elsewhere = asyncio.get_running_loop().time, _Elsewhere()
    due = clock() + _REPORT_SECONDS
    while not selection.ended and not stopped():
        batches = await source.poll(_POLL_SECONDS, _AT_ONCE)
        for tp, why in source.lost.items():
            raise StateError(f"{tp.topic}-{tp.partition} {why}")
        for records in batches.values():
            for step in selection.steps(records):
                await elsewhere.work(step.seconds)
                await writer.write((0, record.key, record.value) for record in step.records)
                if stopped():
                    return
                if clock() >= due:
                    report(selection)
                    due = clock() + _REPORT_SECONDS
