"""Feedback for replicas: which work a lagging query can leave out (the paper's V-D, fast-forward).

Theory
    Once the output is stable up to t, no element of a replica about events that end before t
    matters any more. A replica that learns t leaves out their computation and is at the front
    again, where its work counts.

        async with Feedback(connection, output="flights.merged", replica="a") as feedback:
            ...
            if not feedback.allows_skipping(ve):     # ve: the event's *final* end
                compute it, and send it

    A replica may leave out *whole events* whose final end is below its point. Of an event that it
    has begun to publish, it publishes all elements; and it goes on sending its stables as ever.
    That is all: there is nothing to announce, and it is no breach (tests/core/test_heeding.py).

    What it leaves out is missing from its topic for good. So a replica that several outputs merge
    must go by the lowest of their points: give all of them as `output`. An output that is made
    later must not merge it from its beginning: it joins at the highest point that it heeded.
    A replica that is normalised must not heed, since it leaves out parts of longer intervals.

Invariants
    F1  The point never falls while the outputs are the same topics, and is never above what every
        task of every output has committed.
    F2  As long as one task has published no point, the point is START: nothing may be left out.

Who owns what
    Each client owns one task, which follows the topic, or asks a worker again and again, for as
    long as the `async with` lasts. While Kafka or the worker is away, the point stays where it
    is, which is safe, and `unreachable` has the reason.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import structlog
from pydantic import BaseModel, ValidationError

from lmerge_service.elements import START
from lmerge_service.errors import ElementError, TransportError
from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import TopicInfo, Topics

if TYPE_CHECKING:
    import httpx  # slow to import: where it is used

__all__ = ("Feedback", "FeedbackAnswer", "FeedbackBoard", "FeedbackFollower", "HttpFeedback")

log = structlog.get_logger()

_POLL_SECONDS = 1.0
_FETCH_WAIT_MS = 500
_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_WAIT_SECONDS = 20.0
_MARGIN_SECONDS = 10.0
_NO_TOPIC = "none"  # as an id: no record is about an output that does not exist


class FeedbackBoard:
    """The latest points that every task of some outputs has published for every replica.

    >>> board = FeedbackBoard(["out"])
    >>> board.note("out", FeedbackRecord("a", task=0, tasks=2, point=9, stable=9))
    >>> board.point("a") == START
    True
    >>> board.note("out", FeedbackRecord("a", task=1, tasks=2, point=5, stable=9))
    >>> board.point("a")
    5
    """

    def __init__(self, outputs: Iterable[str]):
        self._ids: dict[str, str | None] = dict.fromkeys(outputs)
        self._points: dict[str, dict[str, dict[int, int]]] = {}
        self._tasks: dict[str, int] = {}
        for output in self._ids:
            self.identify(output, None)
        self._changed = asyncio.Event()

    @property
    def outputs(self) -> Sequence[str]:
        return tuple(self._ids)

    @property
    def identity(self) -> str:
        """Another one when one of the outputs is another topic."""
        return " ".join(str(each) for each in self._ids.values())

    def identify(self, output: str, output_id: str | None) -> None:
        """Which topic the output is by now; there are no points of it yet."""
        self._ids[output] = output_id
        self._points[output] = {}
        self._tasks[output] = 1

    def note(self, output: str, record: FeedbackRecord) -> None:
        """Takes a task's point; one below its last is an old one, come late. Points of another
        topic of the output's name are ignored."""
        if None not in (known := (self._ids[output], record.output_id)) and len(set(known)) > 1:
            return
        self._tasks[output] = max(self._tasks[output], record.tasks)
        points = self._points[output].setdefault(record.replica, {})
        points[record.task] = max(record.point, points.get(record.task, START))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def point(self, replica: str) -> int:
        """START as long as not every task has published a point."""
        return min(self._point(output, replica) for output in self._ids)

    def _point(self, output: str, replica: str) -> int:
        points = self._points[output].get(replica, {})
        return START if len(points) < self._tasks[output] else min(points.values())

    async def wait(self, replica: str, above: int, seconds: float) -> int:
        """The point, as soon as it is above that, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.point(replica) <= above:
                    await self._changed.wait()
        return self.point(replica)


class _Background(ABC):
    """A task that runs as long as an `async with` lasts; it has been at work once before that
    begins."""

    unreachable: str | None = None
    """Why no points can be read at the moment."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Raises TransportError when there is no answer."""
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self._stop()
            raise
        finally:
            ready.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()  # it ends by itself only when something is wrong with it

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except TransportError as error:
                if not self._ready.is_set():
                    raise
                if self.unreachable is None:
                    log.warning("feedback cannot be read", error=str(error))
                self.unreachable = str(error)
            await asyncio.sleep(_PAUSE_SECONDS)

    @abstractmethod
    async def _follow(self) -> None:
        """Follows until something fails; sets `_ready` when it knows all points so far."""


class FeedbackFollower(_Background):
    """Follows the feedback topics of some outputs, for all replicas; use as `async with`."""

    def __init__(self, connection: Connection, outputs: Sequence[str]):
        super().__init__()
        self.board = FeedbackBoard(outputs)
        self._connection = connection

    async def _follow(self) -> None:
        async with (
            Topics(self._connection) as topics,
            Source(self._connection, fetch_wait_ms=_FETCH_WAIT_MS) as source,
        ):
            clock = asyncio.get_running_loop().time
            seen: dict[str, TopicInfo] = {}
            looked = clock() - _LOOK_SECONDS
            ends: Mapping[TopicPartition, int] = {}
            while True:
                if clock() - looked >= _LOOK_SECONDS:
                    found = await self._look(topics)
                    if found != seen:
                        ends = await self._listen(source, seen, found)
                    seen, looked = found, clock()
                    self.unreachable = None
                for tp, records in (await source.poll(0.1 if ends else _POLL_SECONDS)).items():
                    for record in records:
                        self._note(tp.topic, record.value)
                for tp, why in source.lost.items():
                    raise TransportError(f"{tp.topic}: {why}")
                if all((source.position(tp) or 0) >= end for tp, end in ends.items()):
                    ends = {}
                    self._ready.set()

    async def _look(self, topics: Topics) -> dict[str, TopicInfo]:
        names = [*self.board.outputs, *map(feedback_topic, self.board.outputs)]
        return await topics.describe(names, seconds=_LOOK_SECONDS)

    async def _listen(
        self, source: Source, seen: Mapping[str, TopicInfo], found: Mapping[str, TopicInfo]
    ) -> dict[TopicPartition, int]:
        """Reads what there is from its beginning; gives its ends."""
        for output in self.board.outputs:
            info = found.get(output)
            if info is None or info != seen.get(output):
                self.board.identify(output, _NO_TOPIC if info is None else info.id)
        partitions = [
            TopicPartition(topic, 0)
            for topic in map(feedback_topic, self.board.outputs)
            if topic in found
        ]
        source.assign(await source.beginnings(partitions) if partitions else {})
        return await source.ends(partitions) if partitions else {}

    def _note(self, topic: str, value: bytes | None) -> None:
        if value is None:
            return  # a replica that is forgotten
        output = next(each for each in self.board.outputs if feedback_topic(each) == topic)
        try:
            self.board.note(output, FeedbackRecord.of(value))
        except ElementError as error:
            log.warning("not a feedback record", topic=topic, error=str(error))


class Feedback:
    """What a replica may leave out, by the feedback topics of the outputs that it goes into; use
    as `async with`."""

    def __init__(self, connection: Connection, *, output: str | Sequence[str], replica: str):
        self.replica = replica
        outputs = [output] if isinstance(output, str) else output
        self._follower = FeedbackFollower(connection, outputs)

    async def __aenter__(self) -> Self:
        """Raises TransportError when Kafka cannot be reached."""
        await self._follower.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._follower.__aexit__(*raised)

    @property
    def point(self) -> int:
        """Nothing about an event with a final ve below it matters any more."""
        return self._follower.board.point(self.replica)

    @property
    def unreachable(self) -> str | None:
        """Why no points can be read at the moment."""
        return self._follower.unreachable

    def allows_skipping(self, ve: int) -> bool:
        """Whether an event with this *final* end may be left out."""
        return ve < self.point

    async def wait(self, above: int, seconds: float) -> int:
        """The point, as soon as it is above that, or after so many seconds."""
        return await self._follower.board.wait(self.replica, above, seconds)


class FeedbackAnswer(BaseModel):
    """The answer of `GET /v1/feedback/{replica}`; times are integers."""

    replica: str
    point: int | None
    """None as long as nothing may be left out."""
    output_id: str
    """Another one when the output is another topic: then the point may be lower."""


class HttpFeedback(_Background):
    """The same from a worker's HTTP side, for replicas without access to Kafka's brokers.

    `client` brings what the worker asks for: certificates, a token.
    """

    def __init__(self, address: str, *, replica: str, client: "httpx.AsyncClient | None" = None):
        super().__init__()
        self.replica = replica
        self.point = START
        """Nothing about an event with a final ve below it matters any more."""
        self._risen = asyncio.Condition()
        self._url = f"{address.rstrip('/')}/v1/feedback/{quote(replica, safe='')}"
        self._client = client
        self._output_id: str | None = None

    def allows_skipping(self, ve: int) -> bool:
        """Whether an event with this *final* end may be left out."""
        return ve < self.point

    async def wait(self, above: int, seconds: float) -> int:
        """The point, as soon as it is above that, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._risen:
                await self._risen.wait_for(lambda: self.point > above)
        return self.point

    async def _follow(self) -> None:
        import httpx

        async with contextlib.AsyncExitStack() as stack:
            client = self._client
            if client is None:
                client = await stack.enter_async_context(httpx.AsyncClient())
            while True:
                wait = _WAIT_SECONDS if self._ready.is_set() else 0.0
                answer = await self._ask(client, wait)
                async with self._risen:
                    self._take(answer)
                    self._risen.notify_all()
                self.unreachable = None
                self._ready.set()

    async def _ask(self, client: "httpx.AsyncClient", wait: float) -> FeedbackAnswer:
        import httpx

        query: dict[str, str | int | float] = {"above": self.point, "wait": wait}
        try:
            answer = await client.get(self._url, params=query, timeout=wait + _MARGIN_SECONDS)
            answer.raise_for_status()
            return FeedbackAnswer.model_validate_json(answer.content)
        except (httpx.HTTPError, ValidationError) as error:
            raise TransportError(f"asking {self._url} for feedback: {error}") from error

    def _take(self, answer: FeedbackAnswer) -> None:
        if answer.output_id != self._output_id:
            self._output_id, self.point = answer.output_id, START
        if answer.point is not None:
            self.point = max(self.point, answer.point)
