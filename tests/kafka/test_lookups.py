"""Questions of many tasks share requests, and no answer is older than its question."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lmerge_service.errors import RefusedError, TransportError
from lmerge_service.kafka import lookups
from lmerge_service.kafka.lookups import Lookups
from lmerge_service.kafka.topics import TopicInfo


class Kafka:
    """Answers when `answers` is set; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.errors: list[Exception] = []
        self.opened = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.refused: set[str] = set()
        self.there = {"a", "b", "c"}
        self.hopeless = ""

    @asynccontextmanager
    async def topics(self) -> AsyncIterator["Kafka"]:
        self.opened += 1
        yield self

    @asynccontextmanager
    async def source(self, *, max_record_bytes: int) -> AsyncIterator["Kafka"]:
        yield self

    async def describe(self, names: Iterable[str], *, seconds: float) -> dict[str, TopicInfo]:
        self.asked.append(sorted(names))
        there = set(self.there)
        await self.answers.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.hopeless in self.asked[-1]:
            raise TransportError("it has no leader")
        return {name: TopicInfo(name, 1) for name in names if name in there}


def played(test: Callable[[Kafka, Lookups], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        kafka = Kafka()
        asking = Lookups(cast(Any, kafka))
        running = asyncio.create_task(asking.run())
        try:
            async with asyncio.timeout(10):
                await test(kafka, asking)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_what_is_asked_at_the_same_moment_is_one_request_and_each_gets_its_own_answer() -> None:
    async def test(kafka: Kafka, asking: Lookups) -> None:
        answers = await asyncio.gather(
            asking.describe(["a", "b"]), asking.describe(["b", "c"]), asking.describe(["no"])
        )
        assert [sorted(each) for each in answers] == [["a", "b"], ["b", "c"], []]
        assert kafka.asked == [["a", "b", "c", "no"]]

    played(test)


def test_who_asks_while_a_request_is_under_way_gets_a_later_answer() -> None:
    async def test(kafka: Kafka, asking: Lookups) -> None:
        kafka.answers.clear()
        first = asyncio.create_task(asking.describe(["a"]))
        await asyncio.sleep(0.01)
        assert kafka.asked == [["a"]]
        kafka.there.discard("a")
        later = [asyncio.create_task(asking.describe([name])) for name in "ab"]
        await asyncio.sleep(0.01)
        kafka.answers.set()
        assert [len(each) for each in await asyncio.gather(first, *later)] == [1, 0, 1]
        assert kafka.asked == [["a"], ["a", "b"]]

    played(test)


def test_an_error_that_may_pass_is_tried_again_and_in_the_end_with_other_clients() -> None:
    async def test(kafka: Kafka, asking: Lookups) -> None:
        kafka.errors = [TransportError("away")]
        assert list(await asking.describe(["a"])) == ["a"]
        assert (len(kafka.asked), kafka.opened) == (2, 1)
        kafka.errors = [TransportError("away")] * 3
        assert list(await asking.describe(["a"])) == ["a"]
        assert kafka.opened == 2

    played(test)


def test_what_cannot_be_answered_for_one_is_answered_for_the_others() -> None:
    """As the end of a partition that has no leader."""

    async def test(kafka: Kafka, asking: Lookups) -> None:
        kafka.hopeless = "b"
        patient = [asyncio.create_task(asking.describe([name], seconds=1.0)) for name in "abc"]
        found = await asyncio.gather(*patient, return_exceptions=True)
        assert [type(each) for each in found] == [dict, TransportError, dict]

    played(test)


def test_who_asks_when_the_worker_ends_is_answered_with_an_error() -> None:
    async def test(kafka: Kafka, asking: Lookups) -> None:
        kafka.answers.clear()
        waiting = asyncio.create_task(asking.describe(["a"]))
        await asyncio.sleep(0.01)
        await asking._described.end()
        with pytest.raises(TransportError, match="the worker ends"):
            await waiting

    played(test)


def test_a_refusal_is_everybodys_at_once() -> None:
    async def test(kafka: Kafka, asking: Lookups) -> None:
        kafka.errors = [RefusedError("no")]
        found = await asyncio.gather(
            asking.describe(["a"]), asking.describe(["b"]), return_exceptions=True
        )
        assert [type(each) for each in found] == [RefusedError, RefusedError]
        assert len(kafka.asked) == 1

    played(test)


def test_whoever_cannot_wait_longer_is_gone_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "CONNECT_SECONDS", 5.0)

    async def test(kafka: Kafka, asking: Lookups) -> None:
        kafka.answers.clear()
        patient = asyncio.create_task(asking.describe(["a"]))
        with pytest.raises(TransportError, match=r"no answer from Kafka within 0\.05 s"):
            await asking.describe(["a"], seconds=0.05)
        kafka.answers.set()
        assert list(await patient) == ["a"]

    played(test)
