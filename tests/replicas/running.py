"""`lmerge query run` as its users run it, topics of facts for it, and what its topic comes to."""

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lmerge_service.formats.dialects import Written
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.state import last_with_key
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.commit_record import COMMIT_KEY
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.logical import Source as FactsSource
from lmerge_service.queries.logical import schema_of, sources
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.plan import Query
from lmerge_service.queries.rows import Refusal, Row
from lmerge_service.replicas.commit_record import ReplicaCommit, state_topic
from lmerge_service.tdb import TDB, reconstitute
from tests.cli.conftest import LMERGE, environment

__all__ = (
    "END",
    "QUERIES",
    "Running",
    "calls",
    "last_commit",
    "meant",
    "published",
    "records_in",
    "send_facts",
    "tdb_of",
)

QUERIES = Path(__file__).with_name("sample_queries.py")
Fact = Mapping[str, Any]
END: Fact = {"kind": "end"}


# Facts


def calls(rng: random.Random, number: int, *, begin: int = 1_000, first: int = 0) -> list[Fact]:
    """Facts that come a little out of order, none of them late (by the lateness of 60)."""
    found, time = list[Fact](), begin
    for at in range(first, first + number):
        time += rng.randrange(4)
        fact = {
            "id": at,
            "kind": rng.choice(["call", "call", "note"]),
            "at": rng.choice("ABCDE"),
            "n": rng.randrange(6),
            "time": time - rng.randrange(25),
        }
        found.append(fact)
    return found


def send_facts(
    bootstrap: str,
    topic: str,
    facts: Iterable[Fact],
    *,
    partitions: int = 1,
    ended: bool = True,
    rate: float | None = None,
) -> None:
    """Publishes facts, each with its own time; those of one id go to one partition."""

    def written(fact: Fact) -> Sequence[Written]:
        if fact is END:
            return [Written(None, json.dumps(fact).encode(), everywhere=True)]
        key = str(fact.get("id")).encode()
        time = fact.get("time")  # of a record it must be one that Kafka takes
        return [Written(key, json.dumps(fact).encode(), time if 0 <= (time or 0) < 2**40 else None)]

    asyncio.run(
        publish(
            Connection(bootstrap),
            topic,
            [*facts, *([END] if ended else [])],
            partitions=partitions,
            rate=rate,
            written=written,
        )
    )


def meant(query: Query, given: Mapping[str, Iterable[Fact]]) -> TDB:
    """What the query means over facts none of which is late; payloads are canonical texts."""
    tdbs = {}
    for name, source in sources(query.plan).items():
        assert isinstance(source, FactsSource)
        reader = FactReader(source)
        events = [reader.event(fact) for fact in given[name]]
        tdbs[name] = TDB(
            (event.payload, event.vs, event.ve)
            for event in events
            if not isinstance(event, Refusal)
        )
    schema = schema_of(query.plan)
    found = cast(Iterable[tuple[Row, int, int]], meaning(query.plan, tdbs))
    return TDB((schema.payload(row), vs, ve) for row, vs, ve in found)


# What is published


def records_in(bootstrap: str, topic: str) -> list[list[Record]]:
    """All committed records, by partition."""

    async def read() -> list[list[Record]]:
        async with Topics(Connection(bootstrap)) as topics:
            width = await topics.width(topic) or 0
        places = [TopicPartition(topic, number) for number in range(width)]
        found: list[list[Record]] = [[] for _ in places]
        async with Source(Connection(bootstrap)) as source:
            whole = await source.beginnings(places), await source.settled(places)
            async for place, records in source.backlog(*whole):
                found[place.partition] += records
        return found

    return asyncio.run(read())


def published(bootstrap: str, topic: str, incarnation: int | None = None) -> list[list[Any]]:
    """The elements of each partition, of one incarnation or of all."""
    decoder = WireDecoder()
    return [
        [
            decoder.decode(record.value)
            for record in records
            if incarnation in (None, incarnation_of(record.headers)[0])
        ]
        for records in records_in(bootstrap, topic)
    ]


def tdb_of(bootstrap: str, topic: str, incarnation: int | None = None) -> TDB:
    """What a topic comes to as it stands: each partition must be a legal stream by itself."""
    parts = [reconstitute(elements) for elements in published(bootstrap, topic, incarnation)]
    return TDB((event for part in parts for event in part), min(part.stable for part in parts))


def last_commit(bootstrap: str, topic: str) -> ReplicaCommit | None:
    """The last commit record."""

    async def read() -> ReplicaCommit | None:
        place = TopicPartition(state_topic(topic), 0)
        async with Source(Connection(bootstrap)) as source:
            end = (await source.settled([place]))[place]
            record = await last_with_key(source, place, COMMIT_KEY, end=end)
        return None if record is None else ReplicaCommit.of(record.value)

    return asyncio.run(read())


# Processes


class Running:
    """A replica's process; use as `with`: it is killed, if it runs still."""

    def __init__(self, bootstrap: str, query: str, to: str, *options: str, **topics: str):
        """`topics` are those of the sources."""
        of = [part for each in topics.items() for part in ("--topic", "=".join(each))]
        self.command = [
            *(*LMERGE, "query", "run", f"{QUERIES}:{query}", "--to", to),
            *("--bootstrap", bootstrap, "--json", *of, *options),
        ]
        self.lines: list[dict[str, Any]] = []
        """What it has logged."""
        self.error = ""
        """The line that it ended with, if it was none of its log."""

    def __enter__(self) -> "Running":
        self.process = subprocess.Popen(
            self.command, env=environment(), stderr=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def await_line(self, event: str | tuple[str, ...]) -> dict[str, Any]:
        """The next line of its log that begins so."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if (found := self._take(line)) and found["event"].startswith(event):
                return found
        raise AssertionError(f"it has ended without {event!r}: {self.lines} {self.error}")

    def wait(self, seconds: float = 90.0) -> int:
        """Its exit code."""
        _, err = self.process.communicate(timeout=seconds)
        for line in err.splitlines():
            self._take(line)
        return self.process.returncode

    def _take(self, line: str) -> dict[str, Any] | None:
        if not line.startswith("{"):
            self.error += line
            return None
        self.lines.append(json.loads(line))
        return self.lines[-1]

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    @property
    def events(self) -> list[str]:
        """What it has logged, in few words."""
        return [line["event"] for line in self.lines]
