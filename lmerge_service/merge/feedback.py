"""The worker's side of feedback: points published to replicas, by topic and by HTTP.

Theory
    After a commit a task knows up to where its output is stable for good. It publishes that point
    to each replica, and a replica that lags leaves out events that end before it
    (`lmerge_service.kafka.feedback`).

    This is not in the transaction, and need not be: a point is published after the commit that
    made it true, and what is committed stays. A record that is lost, late or doubled has a point
    that is too low or already known, so it costs a replica some work and nothing else. Published
    before the commit, a point could be undone by an abort, after a replica had acted on it.

    A replica that does not lag receives the output's stable point as well. It publishes nothing
    about earlier times, and its point is the lowest over all tasks: it may lag in another one.

Who owns what
    `FeedbackOut.run` owns the producer, in the worker's task group. `update` only stores the
    points; it never waits, so that a commit never waits for it.

What happens on a crash at each await
    Points that were not sent are not known to replicas until the next commit: safe, see above.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

import structlog
from fastapi import APIRouter, HTTPException, Query

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import TransportError, single_error
from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.feedback import FeedbackAnswer
from lmerge_service.kafka.notices import Notices
from lmerge_service.kafka.sightings import is_another
from lmerge_service.kafka.topics import Topics

__all__ = ("FeedbackOut", "FeedbackPoints", "feedback_router")

log = structlog.get_logger()

_LONGEST_WAIT_SECONDS = 60
_PAUSE_SECONDS = 1.0
_WATCH_SECONDS = 2.0
_COMPACTED = {"cleanup.policy": "compact", "segment.ms": "600000"}


@dataclass(frozen=True, slots=True)
class _Sent:
    record: FeedbackRecord
    at: float


class FeedbackOut:
    """Publishes the points of all tasks that this worker runs.

    A replica's point goes out once every `every` seconds at the most, or at once when it has
    moved by `step` (in the unit of the elements). `replicas` gives those that may heed: not
    those that are normalised.
    """

    def __init__(
        self,
        connection: Connection,
        output: str,
        *,
        tasks: int,
        replicas: Callable[[], Collection[str]],
        every: float = 1.0,
        step: float = math.inf,
    ):
        self.published = 0
        """Records that were sent."""
        self.unreachable: str | None = None
        """Why nothing can be sent at the moment."""
        self._connection = connection
        self._output = output
        self._tasks = tasks
        self._replicas = replicas
        self._every, self._step = every, step
        self._points: dict[tuple[str, int], tuple[int, int]] = {}
        self._sent: dict[tuple[str, int], _Sent] = {}
        self._topic_id: str | None = None
        self._news = asyncio.Event()

    def update(self, task: int, points: Mapping[str, int], stable: int) -> None:
        """Stores the feedback points of a task's operator, once their output is committed.

        `stable` is the committed output's; no point above it is published, whatever is in `points`.
        """
        if stable == START:
            return
        for replica in self._replicas():
            point = min(points.get(replica, stable), stable)
            self._points[replica, task] = (point, stable)
        self._news.set()

    async def run(self) -> None:
        """Publishes until cancelled; while Kafka is away, it waits and tries again."""
        while True:
            try:
                async with Topics(self._connection) as topics:
                    output_id = await self._prepare(topics)
                    async with Notices(self._connection, feedback_topic(self._output)) as notices:
                        self.unreachable = None
                        await self._publish_and_watch(notices, topics, output_id)
            except TransportError as error:
                if self.unreachable is None:
                    topic = feedback_topic(self._output)
                    log.warning("feedback is not published", topic=topic, error=str(error))
                self.unreachable = str(error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _prepare(self, topics: Topics) -> str | None:
        """Makes the feedback topic when it is missing, in which case all points are to be sent
        again; returns the id of the output topic."""
        topic = feedback_topic(self._output)
        await topics.ensure(topic, config=_COMPACTED)
        found = await topics.describe([self._output, topic])
        if self._output not in found:
            raise TransportError(f"the output topic {self._output} is not there")
        if topic not in found:
            raise TransportError(f"topic {topic} is not there")
        if (topic_id := found[topic].id) != self._topic_id:
            self._topic_id = topic_id
            self._sent.clear()
            self._news.set()
        return found[self._output].id

    async def _publish_and_watch(
        self, notices: Notices, topics: Topics, output_id: str | None
    ) -> None:
        with single_error():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish(notices, output_id), name="points")
                group.create_task(self._watch(topics), name="feedback topic")

    async def _watch(self, topics: Topics) -> None:
        """Looks whether the topic is still there: what is sent to one that was deleted waits.

        Raises:
            TransportError: it was deleted, or Kafka does not answer.
        """
        topic = feedback_topic(self._output)
        while True:
            info = (await topics.describe([topic])).get(topic)
            if info is None or is_another(self._topic_id, info.id):
                raise TransportError(f"topic {topic} was deleted; it is created again")
            await asyncio.sleep(_WATCH_SECONDS)

    async def _publish(self, notices: Notices, output_id: str | None) -> None:
        while True:
            self._news.clear()
            for (replica, task), (point, stable) in list(self._points.items()):
                record = FeedbackRecord(replica, task, self._tasks, point, stable, output_id)
                if self._is_due(record):
                    await notices.send(record.key(), record.value())
                    self.published += 1
                    self._sent[replica, task] = _Sent(record, _now())
            await self._until_due()

    def _is_due(self, record: FeedbackRecord) -> bool:
        sent = self._sent.get((record.replica, record.task))
        if sent is None or sent.record.output_id != record.output_id:
            return True
        moved = record.point - sent.record.point
        return moved >= self._step or (moved > 0 and _now() - sent.at >= self._every)

    async def _until_due(self) -> None:
        """Waits for news; if there are points that were held back, not longer than they may be."""
        held = [
            sent.at + self._every - _now()
            for key, sent in self._sent.items()
            if self._points[key][0] > sent.record.point
        ]
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({news}, timeout=max(min(held), 0) if held else None)
        finally:
            news.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()


class FeedbackPoints(Protocol):
    """What the route asks; `lmerge_service.kafka.feedback.FeedbackBoard` has it."""

    @property
    def identity(self) -> str:
        """Another one when one of the outputs is another topic."""

    async def wait(self, replica: str, above: int, seconds: float) -> int:
        """The replica's point, as soon as it is above `above`, or after so many seconds."""


def feedback_router(points: FeedbackPoints, replicas: Callable[[], Collection[str]]) -> APIRouter:
    """`GET /v1/feedback/{replica}?above=POINT&wait=SECONDS`: the replica's point, as soon as it
    is above POINT, or what it is after SECONDS (60 at the most).

    The points are of all tasks of the output, whichever worker runs them.
    """
    router = APIRouter()

    @router.get("/v1/feedback/{replica}")
    async def feedback(
        replica: str,
        above: Annotated[int, Query(ge=START, le=INFINITY)] = START,
        wait: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_SECONDS)] = 0,
    ) -> FeedbackAnswer:
        """Nothing about events with a final ve below the point matters any more; null: unknown."""
        if replica not in replicas():
            raise HTTPException(404, f"there is no replica {replica!r} that may heed feedback")
        point = await points.wait(replica, above, wait)
        known = None if point == START else point
        return FeedbackAnswer(replica=replica, point=known, output_id=points.identity)

    return router
