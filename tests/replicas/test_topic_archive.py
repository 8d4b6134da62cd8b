"""A topic of facts as an archive, on a real broker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from lmerge_service.errors import ReplayError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import facts
from lmerge_service.replicas.topic_archive import FactAt, TopicArchive
from tests.replicas.running import Fact, send_facts
from tests.replicas.test_restarting import delete_up_to

pytestmark = pytest.mark.full

TopicName = Callable[..., str]
_T = TypeVar("_T")

CALLS = facts(
    "calls", time="time", fields={"id": int, "kind": str}, ends=col.kind == "end", lateness=5
)
FACTS: list[Fact] = [{"id": at, "kind": "call", "time": 1_000 + at} for at in range(400)]
LATE: Fact = {"id": 400, "kind": "call", "time": 1_100}


def asked(bootstrap: str, topic: str, ask: Callable[[TopicArchive], Awaitable[_T]]) -> _T:
    """What an archive of the topic answers."""
    source = logical.sources(CALLS.plan)["calls"]
    assert isinstance(source, logical.Source)

    async def run() -> _T:
        async with Source(Connection(bootstrap)) as reading:
            return await ask(TopicArchive(reading, source, topic, 1, size=50))

    return asyncio.run(run())


def ids(found: list[FactAt]) -> list[int]:
    return [each.entry.payload[0] for each in found]


def test_a_scan_reads_the_ranges_that_it_takes(bootstrap: str, topic_name: TopicName) -> None:
    topic = topic_name("calls")
    send_facts(bootstrap, topic, [*FACTS, LATE])

    async def ask(archive: TopicArchive) -> list[tuple[list[int], int]]:
        found = []
        for since, before in ((1_100, 1_103), (1_300, 1_302), (1_240, 1_255)):
            already = archive.read
            found.append((ids(await archive.scan(since, before)), archive.read - already))
        whole = await archive.scan(-(2**62), 2**62)
        assert [each.entry.sequence for each in whole] == [*range(400)], "the late one is none"
        return found

    # an event that ends at the beginning of the range is of it
    assert asked(bootstrap, topic, ask) == [
        ([99, 100, 101, 102], 2),
        ([299, 300, 301], 2),
        ([*range(239, 255)], 2),
    ]


def test_what_retention_has_deleted_is_not_passed_over(
    bootstrap: str, topic_name: TopicName
) -> None:
    topic = topic_name("calls")
    send_facts(bootstrap, topic, FACTS)
    delete_up_to(bootstrap, topic, 100)

    async def ask(archive: TopicArchive) -> list[int]:
        with pytest.raises(ReplayError, match="is of time 1050 or later") as error:
            await archive.scan(1_050, 1_051)
        assert (error.value.needed, error.value.horizon) == (1_050, 1_100)
        return ids(await archive.scan(1_102, 1_103))

    assert asked(bootstrap, topic, ask) == [101, 102]
