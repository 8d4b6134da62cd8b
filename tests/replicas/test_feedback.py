"""A replica heeds feedback: what is final in the merge is left out, and stays so."""

import asyncio
import random
from collections.abc import Callable

import pytest

from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.kafka.writing import TopicWriter
from lmerge_service.queries.loading import load
from lmerge_service.tdb import TDB, differences
from tests.replicas.running import (
    QUERIES,
    Running,
    calls,
    last_commit,
    meant,
    send_facts,
    tdb_of,
)

TopicName = Callable[..., str]


@pytest.mark.full
@pytest.mark.parametrize("plan", [1, 2])
def test_what_ends_before_the_point_is_left_out_and_the_rest_is_whole(
    plan: int, bootstrap: str, topic_name: TopicName
) -> None:
    facts, to, merged = topic_name("calls"), topic_name("windows"), topic_name("merged")
    given = calls(random.Random(9), 500)
    send_facts(bootstrap, facts, given)
    point = given[300]["time"]
    publish_feedback(
        bootstrap, merged, FeedbackRecord("r", task=0, tasks=1, point=point, stable=point)
    )
    options = ("--plan", str(plan), "--feedback", merged, "--name", "r")
    with Running(bootstrap, "windows", to, *options, calls=facts) as replica:
        assert replica.wait() == 0, replica.error
    found = tdb_of(bootstrap, to)
    whole = meant(load(f"{QUERIES}:windows"), {"calls": given})
    assert not differences(
        TDB(event for event in found if event.ve >= point),
        TDB(event for event in whole if event.ve >= point),
    )
    assert len(found) < len(whole) - 20
    commit = last_commit(bootstrap, to)
    assert commit is not None
    assert commit.point == point


@pytest.mark.full
def test_feedback_that_nobody_publishes_is_refused(bootstrap: str, topic_name: TopicName) -> None:
    facts, to, merged = topic_name("calls"), topic_name("windows"), topic_name("merged")
    send_facts(bootstrap, facts, [])
    with Running(bootstrap, "windows", to, "--feedback", merged, calls=facts) as replica:
        assert replica.wait() == 2
    assert f"there is no topic {merged}.feedback: a merge makes it" in replica.error


def publish_feedback(bootstrap: str, merged: str, record: FeedbackRecord) -> None:
    async def write() -> None:
        connection, topic = Connection(bootstrap), feedback_topic(merged)
        async with Topics(connection) as topics:
            await topics.ensure(topic)
        async with TopicWriter(connection, topic) as writer:
            await writer.write([(0, record.key(), record.value())])

    asyncio.run(write())
