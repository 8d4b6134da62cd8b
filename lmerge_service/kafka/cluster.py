"""All that the service uses of Kafka, made from one connection.

A service that is given another `Cluster` with the same methods runs on that: the tests' simulation
is one, on an in-memory log and a virtual clock.
"""

from collections.abc import Callable, Mapping

from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.find import FoundRecord, find_event
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.members import Members
from lmerge_service.kafka.sink import Sink
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.tdb import Event

__all__ = ("Cluster",)


class Cluster:
    """Makes clients; each is opened and closed by its caller."""

    def __init__(self, connection: Connection, *, native: bool = False):
        """`native`: by the engine, where there is a choice."""
        self.connection = connection
        self.is_native = native

    def topics(self) -> Topics:
        """Describes, makes and deletes topics."""
        return Topics(self.connection)

    def source(self, *, max_record_bytes: int) -> Source:
        """Reads committed records; fetches are large enough for records of `max_record_bytes`."""
        return Source(self.connection, max_record_bytes=max_record_bytes, native=self.is_native)

    def sink(
        self,
        *,
        transactional_id: str,
        output: TopicPartition,
        dead_letters: str,
        state: TopicPartition,
        events: str,
        max_record_bytes: int,
        table: str | None = None,
    ) -> Sink:
        """Publishes a task's transactions; opening it fences other owners of `transactional_id`."""
        return Sink(
            self.connection,
            transactional_id=transactional_id,
            output=output,
            dead_letters=dead_letters,
            state=state,
            events=events,
            max_record_bytes=max_record_bytes,
            table=table,
        )

    async def find_event(
        self, before: Mapping[TopicPartition, int], event: Event, decoder: WireDecoder
    ) -> FoundRecord | None:
        """See `kafka.find`."""
        return await find_event(self.connection, before, event.payload, event.vs, decoder)

    def log(self, topic: str) -> Log:
        """Reads and appends to one partition of a log, such as the control log."""
        return Log(self.connection, topic)

    def members(
        self,
        group: str,
        topic: str,
        *,
        output: str,
        worker: str,
        warm: Callable[[], Mapping[int, int]],
        standby_only: bool,
        standbys: int,
        session_timeout_ms: int,
    ) -> Members:
        """Joins a group of workers that share the tasks of `output`; `warm` returns by task how far
        behind this worker is, `session_timeout_ms` is after how long it counts as dead."""
        return Members(
            self.connection,
            group,
            topic,
            output=output,
            worker=worker,
            warm=warm,
            standby_only=standby_only,
            standbys=standbys,
            session_timeout_ms=session_timeout_ms,
        )
