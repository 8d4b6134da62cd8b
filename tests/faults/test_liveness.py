"""Replays of replicas that are read all the time, and bring nothing new."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.service.status import aggregate as together
from lmerge_service.service.status.document import ReplicaActivity
from tests.service.cluster import Merge, running
from tests.service.test_merge_loop import configured, of, publish, until
from tests.service.test_metrics import registry_of

EVERY_SECONDS = 0.2


@pytest.fixture
def two(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path, replicas=("r1", "r2"))


def events(first: int, last: int) -> list[Element]:
    return [Insert(b'"e%d"' % k, k, k + 5) for k in range(first, last + 1)]


Record = tuple[bytes | None, Sequence[tuple[str, bytes]]]


def plain(*elements: Element) -> Callable[[int], Sequence[Record]]:
    """The same elements in each round."""
    return lambda _: [(encode(element), ()) for element in elements]


def lives(number: int) -> Sequence[Record]:
    """A replica that starts over again and again, with a new incarnation."""
    headers = incarnation_headers(number + 1)
    return [(encode(each), headers) for each in [*events(3, 4), Stable(2)]]


def late(number: int) -> Sequence[Record]:
    return [(encode(Insert(b'"late %d"' % number, 1, 2 + number)), ())]


ROUNDS: dict[str, Callable[[int], Sequence[Record]]] = {
    "stables": plain(Stable(2)),
    "its stream": plain(*events(3, 6), Adjust(b'"e6"', 6, 11, 40), Stable(2)),
    "revisions": plain(Adjust(b'"e4"', 4, 9, 12), Adjust(b'"e4"', 4, 12, 9)),
    "insert and removal": plain(Insert(b'"x"', 50, 60), Adjust(b'"x"', 50, 60, 50)),
    "late elements": late,
    "no elements": lambda number: [(b"junk %d" % number, ())],
    "an old incarnation": lambda number: [
        (encode(Insert(b'"o%d"' % number, 90 + number, 200)), incarnation_headers(0))
    ],
    "new lives": lives,
}


@asynccontextmanager
async def repeating(
    merge: Merge, name: str, round_: Callable[[int], Sequence[Record]]
) -> AsyncIterator[None]:
    """The replica publishes a round five times a second."""

    async def repeat() -> None:
        async with AIOKafkaProducer(bootstrap_servers=merge.bootstrap) as producer:
            number = 0
            while True:
                for value, headers in round_(number):
                    await producer.send_and_wait(
                        merge.topics[name], value, partition=0, headers=list(headers)
                    )
                number += 1
                await asyncio.sleep(EVERY_SECONDS)

    task = asyncio.create_task(repeat())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.full
def test_n3_a_replica_that_repeats_itself_is_not_waited_for(
    two: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1 repeats stable(2); R2 reaches 29 and ends: the output stood at 29 for ever, and nothing
    reported that redundancy is lost."""
    monkeypatch.setattr(together, "IDLE_AFTER_SECONDS", 3.0)
    configured(two, guards={"patience_seconds": 3})

    async def play() -> None:
        await publish(two, "r1", *events(1, 1), Stable(2))
        async with running(two) as worker, repeating(two, "r1", plain(Stable(2))):
            await publish(two, "r2", *events(1, 28), Stable(29))
            await until(worker, lambda s: s.output.stable_point == 29)
            await publish(two, "r2", Stable(INFINITY))
            await until(worker, lambda s: bool(of(s, "r2").held))
            status = await until(worker, lambda s: s.output.ended)
            status = await until(worker, lambda s: "redundancy_lost" in s.reason_kinds)
            found = of(status, "r1")
            assert found.liveness is ReplicaActivity.NOT_PROGRESSING
            assert found.idle_seconds is not None
            assert found.silent_seconds is not None
            assert found.silent_seconds < 3 <= found.idle_seconds
            assert "not_progressing" in status.reason_kinds
            (reason,) = [each for each in status.reasons if "redundancy is lost" in each]
            assert "1 of 2 replicas are moving (r1 is not progressing for" in reason
            labels = {"replica": "r1", "partition": "0"}
            sample = registry_of(worker).get_sample_value
            idle = sample("lmerge_replica_idle_seconds", labels)
            silent = sample("lmerge_replica_silent_seconds", labels)
            assert idle is not None
            assert silent is not None
            assert silent < 3 <= idle

    asyncio.run(play())
    assert {payload for payload, *_ in two.audit().tdb} == {b'"e%d"' % k for k in range(1, 29)}


def test_n3_silence_and_standing_still_are_distinguished(
    two: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "IDLE_AFTER_SECONDS", 2.0)

    async def play() -> None:
        await publish(two, "r1", *events(1, 1), Stable(2))
        await publish(two, "r2", *events(1, 1), Stable(2))
        async with running(two) as worker, repeating(two, "r1", plain(Stable(2))):
            status = await until(worker, lambda s: of(s, "r2").liveness is ReplicaActivity.SILENT)
            status = await until(
                worker, lambda s: of(s, "r1").liveness is ReplicaActivity.NOT_PROGRESSING
            )
            (reason,) = [each for each in status.reasons if "redundancy is lost" in each]
            assert "r1 is not progressing for" in reason
            assert "r2 is silent for" in reason
            assert sum("nothing new for" in each for each in status.reasons) == 1
            await publish(two, "r2", Stable(3))
            await until(worker, lambda s: of(s, "r2").liveness is ReplicaActivity.PROGRESSING)

    asyncio.run(play())


@pytest.mark.deep
@pytest.mark.parametrize("what", ROUNDS)
def test_n3_nothing_that_is_repeated_holds_an_end_back(two: Merge, what: str) -> None:
    configured(two, guards={"patience_seconds": 3, "max_breaches": 0})
    incarnation = 1 if what == "an old incarnation" else 0

    async def play() -> None:
        headers = incarnation_headers(incarnation)
        await two._publish("r1", [*events(1, 4), Stable(2)], 1, lambda *_: 0, headers, None)
        async with running(two) as worker, repeating(two, "r1", ROUNDS[what]):
            await until(worker, lambda s: of(s, "r1").stable_point == 2)
            await publish(two, "r2", *events(1, 28), Stable(29), Stable(INFINITY))
            await until(worker, lambda s: bool(of(s, "r2").held))
            await until(worker, lambda s: s.output.ended, 40)

    asyncio.run(play())
