"""Replicas that come, go, come back and are recreated, on a real broker, by decisions in the
control log and by what happens to their topics."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.records import AcceptGap, Attach, Detach
from lmerge_service.tdb import TDB
from tests.service.cluster import Merge, decided, logical, meaning, replica_streams

pytestmark = pytest.mark.kafka


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)


def attach(merge: Merge, name: str) -> Attach:
    return Attach({"name": name, "topic": merge.topics[name]})


def states(status: Any) -> dict[str, str]:
    return {each["name"]: each["state"] for each in status["replicas"]}


@pytest.mark.full
def test_a_replica_that_is_detached_and_attached_again_and_again_is_merged_each_time(
    merge: Merge,
) -> None:
    """thanos#7807, mimir#12440: it goes and comes back under the same name while elements of its
    old attachment are in flight, and the worker is killed in between."""
    lives = logical(1_000, seed=61)
    merge.extra = {"snapshot_seconds": 0.3, "limits": {"batch_records": 50}}
    merge.write()
    streams = replica_streams(lives, seed=61)
    with merge.worker() as worker, merge.publishing(streams, {"b": 2}, elements=4):
        worker.wait_until_it("leads")
        for _ in range(3):
            decided(merge, Detach("a"), attach(merge, "a"))  # nobody waits for the first
        worker.wait(lambda s: s["version"] >= 7, "the decisions to be known")
        decided(merge, Detach("a"))
        worker.wait(lambda s: "a" not in states(s), "a to be gone")
        worker.wait(lambda s: s["output"]["stables"] > 0, "the others to go on")
        decided(merge, attach(merge, "a"))
        worker.wait(lambda s: states(s).get("a") == "joined", "a to be back")
        worker.kill()
    with merge.worker() as worker:
        status = worker.wait_until_ended()
        worker.wait(lambda s: all(each["ended"] for each in s["replicas"]), "all to end")
        assert set(states(status)) == {"a", "b", "c"}
        assert worker.terminate() == 0
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_a_laggard_that_takes_over_from_a_leader_changes_nothing_that_is_final(
    merge: Merge,
) -> None:
    """mimir#12331: the leader goes; the other one, far behind, publishes what is frozen already,
    some of it otherwise: absorbed and counted, and the output goes on where it was."""
    events = [Insert(b'"%d"' % k, k, k + 5) for k in range(0, 100, 2)]
    lies = {10: 12, 20: 22, 96: 99, 98: 99}  # two are fully frozen by then, and two half frozen
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [*events, Stable(100)])
        worker.wait(lambda s: s["output"]["stable_point"] == 100, "stable(100)")
        decided(merge, Detach("a"))
        worker.wait(lambda s: "a" not in states(s), "a to be gone")
        late = [Insert(e.payload, e.vs, lies.get(e.vs, e.ve)) for e in events]
        merge.publish("b", [*late, Stable(90)])
        worker.wait(lambda s: s["replicas"][0]["stable_point"] == 90, "b to come nearer")
        merge.publish("b", [Insert(b'"next"', 120, 130), Stable(INFINITY)])
        status = worker.wait_until_ended()
        (b,) = [each for each in status["replicas"] if each["name"] == "b"]
        assert b["late"] >= len(events) - 5
        assert b["breaches"] == {"frozen_end_disagrees": 2}, (
            "of the others nothing is known any more"
        )
    expected = [*events, Insert(b'"next"', 120, 130)]
    assert merge.output_is(TDB([(each.payload, each.vs, each.ve) for each in expected]))


@pytest.mark.full
@pytest.mark.parametrize("size", ["smaller", "larger"])
def test_n7_a_topic_that_is_made_anew_under_a_worker_is_merged_from_its_beginning(
    merge: Merge, size: str
) -> None:
    """MirrorMaker 2's silent jump: the position is beyond the end, or valid in other data. It is
    reported as what it is, and not as a loss, with advice about retention."""
    lives = logical(200, seed=62)
    streams = replica_streams(lives, seed=62)
    a, b = streams["a"], streams["b"]
    first = 60 if size == "larger" else len(a) - 10
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", a[:first])
        worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "a to be read")
        asyncio.run(_recreate(merge, "a", 1))
        merge.publish("a", a[: first // 2] if size == "smaller" else a[:-5])
        if size == "smaller":
            worker.wait(
                lambda _: bool(worker.logged("topic recreated")), "the new topic to be seen"
            )
        merge.publish("b", b)
        worker.wait_until_ended()
        status = worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "a to be read")
        assert states(status)["a"] == "joined"
        worker.wait(
            lambda s: s["tasks"][0]["findings"].get("recreated") == {"a": 1}, "what happened"
        )
    assert not [
        each for each in worker.logged("replica excluded") if "no longer has" in each["why"]
    ]
    assert merge.output_is(meaning(lives))


async def _recreate(merge: Merge, replica: str, partitions: int) -> None:
    topic = merge.topics[replica]
    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics.delete(topic)
        async with asyncio.timeout(20):
            while await topics.partitions([topic]):  # noqa: ASYNC110 - nothing reports when
                await asyncio.sleep(0.02)
        await topics.ensure(topic, partitions=partitions)


@pytest.mark.full
def test_what_has_been_read_may_be_deleted_under_a_worker(merge: Merge) -> None:
    lives = logical(100, seed=63)
    a = replica_streams(lives, seed=63)["a"]

    class Read:
        before_offset = 30

    async def truncate() -> None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics._admin.delete_records({TopicPartition(merge.topics["a"], 0): Read()})

    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", a[:30])
        worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "a to be read")
        asyncio.run(truncate())
        merge.publish("a", a[30:])
        worker.wait_until_ended()
        assert states(worker.status())["a"] == "joined"
        assert worker.logged("replica excluded") == []
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_a_gap_that_was_accepted_stays_so_when_every_worker_is_killed(merge: Merge) -> None:
    """With and without a snapshot: the replica stays joined before its time."""
    merge.topics = {"d": merge.topics["a"]}
    merge.extra = {
        "replicas": [{"name": "d", "topic": merge.topics["d"], "joining_at": 100}],
        "snapshot_seconds": 0.3,
    }
    merge.write()
    with merge.worker() as first, merge.worker() as second:
        merge.publish("d", [Insert(b'"x"', 110, 150), Stable(120)])
        merge.wait_until_committed("d", 2)
        decided(merge, AcceptGap("d", 100))
        merge.publish("d", [Insert(b'"y"', 130, 150)])
        first.wait(lambda s: s["output"]["stable_point"] == 120, "the gap to be accepted")
        second.wait(lambda s: s["output"]["stable_point"] == 120, "the other one to follow")
        first.kill()
        second.kill()
    with merge.worker() as worker:
        status = worker.wait_until_running()
        assert states(status) == {"d": "joined"}
        assert status["output"]["gap"] is None
        merge.publish("d", [Stable(140)])
        worker.wait(lambda s: s["output"]["stable_point"] == 140, "stable(140)")
        worker.kill()
    commit = merge.last_commit()
    assert commit is not None
    assert commit.replicas["d"].gap_accepted
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("d", [Stable(INFINITY)])
        worker.wait_until_ended()
    assert merge.output_is(TDB([(b'"x"', 110, 150), (b'"y"', 130, 150)]))
