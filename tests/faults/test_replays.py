"""Replays of streams that are published again, and of remembering that eats data."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.protocol.admin import DeleteGroupsRequest

from lmerge_service.core import BreachKind
from lmerge_service.drills.observability_checks import InjectedFault, k8
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.sink import Committed, Outbox, Sink
from lmerge_service.kafka.topics import Topics
from lmerge_service.tdb import TDB
from tests.faults.bench import Bench, assert_valid
from tests.faults.stage import capture, judged
from tests.service.cluster import Merge, logical, meaning, replica_streams, run_until_ended


def events(ks: Iterable[int]) -> list[Element]:
    return [Insert(b"%d" % k, k, k + 5) for k in ks]


def test_d1_a_second_snapshot_in_mid_stream_is_absorbed() -> None:
    """materialize#14211: a snapshot that is published again doubled the table."""
    bench = Bench("a", "b")
    bench.publish("a", *events(range(1, 101)), Stable(107))
    assert bench.publish("a", *events(range(1, 101)), Stable(107)) == []
    assert bench.breaches("a")[BreachKind.BROKE_OWN_STABLE] == 100
    bench.kill()
    bench.publish("a", *events(range(107, 120)), Stable(INFINITY))
    assert_valid(bench.report())


@pytest.mark.full
def test_d2_two_writers_of_one_replica_double_nothing_and_are_seen(merge: Merge) -> None:
    """kafka#11869: after a restart two tasks produced the same stream into one topic."""
    once = events(range(1, 40))
    twice = [element for element in once for _ in range(2)]
    diverging = [stable for k in range(30) for stable in (Stable(10 + k), Stable(5 + k))]
    with merge.worker() as worker:
        merge.publish("a", [*twice, *diverging])
        merge.publish("b", [*once, Stable(39)])
        worker.wait(lambda s: s["output"]["stable_point"] == 39, "stable(39)")
        worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "no lag")
        shown = capture(worker)
    assert_valid(judged(merge, silent=["c"]))
    faults = [
        InjectedFault("a", "lmerge_replica_breaches_total", "breach", kind, labels={"kind": kind})
        for kind in ("duplicate_key", "stable_regression")
    ]
    found = k8(faults, shown)
    assert found.outcome is Outcome.VALID, found


@pytest.mark.full
@pytest.mark.parametrize("expired", ["earliest", "latest"])
def test_d4_offsets_that_expire_or_jump_to_the_tail_lose_and_double_nothing(
    merge: Merge, expired: str
) -> None:
    """librdkafka#1442, pykafka#504, racecar#419, sarama-cluster#124: an idle group's offsets
    expire, and a restart reads all again or skips to the tail."""
    merge.publish("b", [])
    with merge.worker() as worker:
        merge.publish("a", [*events(range(1, 30)), Stable(20)])
        worker.wait(lambda s: s["output"]["stable_point"] == 20, "stable(20)")
        before = worker.status()["output"]
        merge.wait_until_committed("a", 30)
        assert worker.terminate() == 0
    merge.publish("a", [*events(range(30, 40)), Stable(35)])  # while nobody reads
    asyncio.run(_expire(merge, 41 if expired == "latest" else None))
    with merge.worker() as worker:
        worker.wait(lambda s: s["output"]["stable_point"] == 35, "stable(35)")
        assert worker.status()["output"]["inserts"] <= 40 - before["inserts"], "nothing again"
    assert_valid(judged(merge, silent=["c"], kills=1))


async def _expire(merge: Merge, offset: int | None) -> None:
    """The group has forgotten, or was moved to `offset` by somebody."""
    group, tp = f"lmerge.{merge.name}.workers", TopicPartition(merge.topics["a"], 0)
    if offset is None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            broker = await topics._admin.find_coordinator(group)
            answer = await topics._admin._client.send(broker, DeleteGroupsRequest([group]))
            assert answer.results == [(group, 0)], answer
        return
    mover = AIOKafkaProducer(
        bootstrap_servers=merge.bootstrap, transactional_id=f"{merge.name}.mover"
    )
    async with mover, mover.transaction():
        await mover.send_offsets_to_transaction({tp: offset}, group)


@pytest.mark.full
def test_d6_a_replica_whose_topic_is_made_anew_starts_over(merge: Merge) -> None:
    """kafka#23091: after a topic was recreated its mirror rewinds in silence."""
    lives = logical(150, seed=7)
    streams = replica_streams(lives, seed=7)
    with merge.worker() as worker:
        merge.publish("a", streams["a"][:60])
        worker.wait(lambda s: s["output"]["stables"] > 0, "stables")
        assert worker.terminate() == 0
    asyncio.run(_recreate(merge.bootstrap, merge.topics["a"]))
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", streams["a"])
        worker.wait_until_ended()
    assert merge.output_is(meaning(lives))


async def _recreate(bootstrap: str, topic: str) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.delete(topic)
        for _ in range(100):
            if topic not in await topics.partitions([topic]):
                break
            await asyncio.sleep(0.05)
        await topics.ensure(topic)


@pytest.mark.full
def test_d9_an_aborted_transaction_is_rebuilt_from(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pulsar#5218: emitted means committed. At first every second one is aborted."""
    lives = logical(300, seed=5)
    streams = replica_streams(lives, seed=5)
    for name in "abc":
        merge.publish(name, streams[name])
    merge.extra = {"limits": {"batch_records": 40}, "http": {"port": 0}}
    merge.write()
    aborted = 0
    commit = Sink._commit

    async def commit_or_abort(self: Sink, outbox: Outbox, *rest: Any) -> Committed:
        nonlocal aborted
        aborted += 1
        if aborted % 2 or not outbox.records or aborted > 9:
            return await commit(self, outbox, *rest)
        await self._producer.begin_transaction()
        for batch in self._batches(outbox.records):
            await (await self._send(self._output, batch))
        await self._producer.abort_transaction()
        raise TimeoutError

    monkeypatch.setattr(Sink, "_commit", commit_or_abort)
    rebuilds = asyncio.run(run_until_ended(merge))
    assert rebuilds >= 2
    assert merge.output_is(meaning(lives))


def followed(ks: Iterable[int]) -> list[Element]:
    """Each event with its stable."""
    return [each for element in events(ks) for each in (element, Stable(element.vs))]  # type: ignore[union-attr]


@pytest.mark.full
def test_d6_a_topic_that_is_made_anew_with_more_records_is_another_replica(merge: Merge) -> None:
    """kafka#23091: where a topic was recreated, a position is valid and means something else."""
    with merge.worker() as worker:
        merge.publish("a", followed(range(1, 10)))
        merge.publish("b", followed(range(1, 5)))
        worker.wait(lambda s: s["output"]["stable_point"] == 9, "stable(9)")
        asyncio.run(_recreate(merge.bootstrap, merge.topics["a"]))
        merge.publish("a", followed(range(1, 40)))
        worker.wait(lambda s: s["output"]["stable_point"] == 39, "stable(39)")
        status = worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "no lag")
        assert status["output"]["inserts"] == 39
    assert_valid(
        judged(merge, silent=["c"], reference=TDB((b"%d" % k, k, k + 5) for k in range(1, 40)))
    )
