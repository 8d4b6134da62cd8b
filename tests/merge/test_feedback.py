"""Feedback from commit to replica: over a real topic, and over a real HTTP server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from lmerge_service.config.http import Http
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import TransportError
from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.http.server import serve
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.feedback import Feedback, FeedbackFollower, HttpFeedback
from lmerge_service.kafka.notices import Notices
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import free_port
from lmerge_service.merge.feedback import FeedbackOut, feedback_router
from tests.waiting import come_true, vanish

SECONDS = 20.0


@pytest.fixture
def output(bootstrap: str, topic_name: Callable[..., str]) -> str:
    """The name of an output topic that exists."""
    name = topic_name("out")
    asyncio.run(_make(bootstrap, name))
    return name


async def _make(bootstrap: str, name: str) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.ensure(name)


@contextlib.asynccontextmanager
async def publishing(bootstrap: str, output: str, **settings: Any) -> AsyncIterator[FeedbackOut]:
    """A worker's feedback, published for as long as this lasts."""
    out = FeedbackOut(
        Connection(bootstrap), output, **{"tasks": 1, "replicas": lambda: ["a"], **settings}
    )
    running = asyncio.create_task(out.run())
    try:
        yield out
    finally:
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled(), running


def in_time(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 3 * SECONDS))


async def records_of(bootstrap: str, output: str) -> list[FeedbackRecord]:
    tp = TopicPartition(feedback_topic(output), 0)
    found = []
    async with Source(Connection(bootstrap)) as source:
        async for _, records in source.backlog({tp: 0}, await source.ends([tp])):
            found += [FeedbackRecord.of(record.value or b"") for record in records]
    return found


def test_a_replica_learns_the_lowest_point_of_all_tasks(bootstrap: str, output: str) -> None:
    async def play() -> None:
        async with (
            publishing(bootstrap, output, tasks=2, replicas=lambda: ["a", "b"], every=0.05) as out,
            Feedback(Connection(bootstrap), output=output, replica="a") as feedback,
            Feedback(Connection(bootstrap), output=output, replica="b") as other,
        ):
            assert feedback.point == START
            out.update(0, {"a": 10}, stable=10)
            out.update(1, {}, stable=7)  # a does not lag there
            assert await feedback.wait(START, SECONDS) == 7
            assert [feedback.allows_skipping(ve) for ve in (6, 7)] == [True, False]
            out.update(1, {"a": INFINITY}, stable=INFINITY)
            assert await feedback.wait(7, SECONDS) == 10
            assert await other.wait(7, SECONDS) == 10  # a record of its own
        async with Feedback(Connection(bootstrap), output=output, replica="b") as feedback:
            assert feedback.point == 10, "known from the start"

    in_time(play())


def test_a_point_never_passes_what_is_committed(bootstrap: str, output: str) -> None:
    """The operator has gone on while the commit was under way."""

    async def play() -> None:
        async with (
            publishing(bootstrap, output) as out,
            Feedback(Connection(bootstrap), output=output, replica="a") as feedback,
        ):
            out.update(0, {"a": 90}, stable=40)
            assert await feedback.wait(START, SECONDS) == 40

    in_time(play())


def test_records_are_few_unless_the_point_moves_far(bootstrap: str, output: str) -> None:
    async def play() -> None:
        async with (
            publishing(bootstrap, output, every=3600.0, step=100) as out,
            Feedback(Connection(bootstrap), output=output, replica="a") as feedback,
        ):
            out.update(0, {"a": 0}, stable=0)
            assert await feedback.wait(START, SECONDS) == 0
            for point in range(1, 250):
                out.update(0, {"a": point}, stable=point)
                await asyncio.sleep(0)
                if point in (100, 200):
                    assert await feedback.wait(point - 1, SECONDS) == point
        points = [record.point for record in await records_of(bootstrap, output)]
        assert points == [0, 100, 200]

    in_time(play())


def test_a_point_that_is_held_back_goes_out_when_its_time_has_come(
    bootstrap: str, output: str
) -> None:
    async def play() -> None:
        async with (
            publishing(bootstrap, output, every=0.3) as out,
            Feedback(Connection(bootstrap), output=output, replica="a") as feedback,
        ):
            out.update(0, {"a": 1}, stable=1)
            assert await feedback.wait(START, SECONDS) == 1
            for point in range(2, 50):
                out.update(0, {"a": point}, stable=point)
            assert await feedback.wait(1, SECONDS) == 49, "the latest, and nothing between"
        assert [record.point for record in await records_of(bootstrap, output)] == [1, 49]

    in_time(play())


@pytest.mark.full
def test_an_output_that_was_made_anew_takes_its_feedback_with_it(
    bootstrap: str, output: str
) -> None:
    async def play() -> None:
        async with Feedback(Connection(bootstrap), output=output, replica="a") as feedback:
            async with publishing(bootstrap, output) as out:
                out.update(0, {"a": 50}, stable=50)
                assert await feedback.wait(START, SECONDS) == 50
            async with Topics(Connection(bootstrap)) as topics:
                await vanish(topics, output)
                await topics.ensure(output)
            await come_true(lambda: feedback.point == START)
            async with publishing(bootstrap, output) as out:
                out.update(0, {"a": 5}, stable=5)
                assert await feedback.wait(START, SECONDS) == 5

    in_time(play())


@pytest.mark.full
def test_n5_a_feedback_topic_that_was_deleted_is_created_again_with_all_points(
    bootstrap: str, output: str
) -> None:
    async def play() -> None:
        topic = feedback_topic(output)
        async with publishing(bootstrap, output) as out, Topics(Connection(bootstrap)) as topics:
            out.update(0, {"a": 10}, stable=10)
            while not out.published:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await vanish(topics, topic)
            while await topics.width(topic) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while not (found := await records_of(bootstrap, output)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert {each.point for each in found} == {10}, "though nothing has happened since"
            async with Feedback(Connection(bootstrap), output=output, replica="a") as feedback:
                assert feedback.point == 10

    in_time(play())


def test_a_record_that_is_no_feedback_is_passed_over(bootstrap: str, output: str) -> None:
    async def play() -> None:
        await _make(bootstrap, feedback_topic(output))
        async with Notices(Connection(bootstrap), feedback_topic(output)) as notices:
            await notices.send(b"k", b"nonsense")
        async with (
            publishing(bootstrap, output) as out,
            Feedback(Connection(bootstrap), output=output, replica="a") as feedback,
        ):
            out.update(0, {"a": 3}, stable=3)
            assert await feedback.wait(START, SECONDS) == 3

    in_time(play())


def test_without_kafka_the_client_fails_at_once() -> None:
    async def play() -> None:
        nowhere = Connection(f"127.0.0.1:{free_port()}")
        with pytest.raises(TransportError, match="cannot be reached"):
            async with Feedback(nowhere, output="out", replica="a"):
                pass

    in_time(play())


@contextlib.asynccontextmanager
async def served(bootstrap: str, output: str) -> AsyncIterator[str]:
    """A real server with the route, over what the topic contains."""
    async with FeedbackFollower(Connection(bootstrap), [output]) as follower:
        app = FastAPI()
        app.include_router(feedback_router(follower.board, lambda: ["a", "b"]))
        async with serve(app, Http(port=0)) as address:
            yield address


def test_a_long_poll_is_answered_when_the_point_moves(bootstrap: str, output: str) -> None:
    async def play() -> None:
        async with (
            publishing(bootstrap, output, every=0.05) as out,
            served(bootstrap, output) as address,
            HttpFeedback(address, replica="a") as feedback,
            httpx.AsyncClient(base_url=address) as client,
        ):
            assert feedback.point == START
            polling = asyncio.create_task(
                client.get("/v1/feedback/a", params={"above": 5, "wait": 30}, timeout=SECONDS)
            )
            out.update(0, {"a": 4}, stable=4)
            assert await feedback.wait(START, SECONDS) == 4
            assert not polling.done()
            out.update(0, {"a": 6}, stable=6)
            answer = (await polling).json()
            assert (answer["replica"], answer["point"]) == ("a", 6)
            assert await feedback.wait(5, SECONDS) == 6
            assert [feedback.allows_skipping(ve) for ve in (5, 6)] == [True, False]

    in_time(play())


def test_a_poll_is_bounded_and_its_parameters_are_checked(bootstrap: str, output: str) -> None:
    async def play() -> None:
        async with (
            served(bootstrap, output) as address,
            httpx.AsyncClient(base_url=address) as client,
        ):
            waited = await client.get("/v1/feedback/a", params={"above": 5, "wait": 0.05})
            assert (waited.status_code, waited.json()["point"]) == (200, None)
            for query in ({"wait": 61}, {"wait": -1}, {"above": 2**63}, {"above": "x"}):
                refused = await client.get("/v1/feedback/a", params=query)
                assert refused.status_code == 422, query
            assert (await client.get("/v1/feedback/nobody")).status_code == 404

    in_time(play())


@pytest.mark.full
def test_a_worker_that_is_away_leaves_the_point_where_it_is(bootstrap: str, output: str) -> None:
    async def play() -> None:
        port = free_port()
        async with contextlib.AsyncExitStack() as stack:
            async with publishing(bootstrap, output) as out:
                out.update(0, {"a": 8}, stable=8)
                follower = FeedbackFollower(Connection(bootstrap), [output])
                await stack.enter_async_context(follower)
                assert await follower.board.wait("a", START, SECONDS) == 8
            app = FastAPI()
            app.include_router(feedback_router(follower.board, lambda: ["a"]))
            async with serve(app, Http(port=port)):
                feedback = HttpFeedback(f"http://127.0.0.1:{port}", replica="a")
                await stack.enter_async_context(feedback)
                assert feedback.point == 8
            await come_true(lambda: feedback.unreachable is not None)
            assert feedback.point == 8

    in_time(play())


def test_without_a_worker_the_http_client_fails_at_once() -> None:
    async def play() -> None:
        with pytest.raises(TransportError, match="for feedback"):
            async with HttpFeedback(f"http://127.0.0.1:{free_port()}", replica="a"):
                pass

    in_time(play())
