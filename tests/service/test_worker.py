"""The worker as a process on a real broker: replicas of any shape, kill -9, aborts, poison."""

import asyncio
import itertools
import random
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.record.util import calc_crc32c
from msgspec.structs import replace

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import TransportError, UnwritableError
from lmerge_service.formats.wire import encode
from lmerge_service.kafka import sink as sinks
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection, connection_of
from lmerge_service.kafka.sink import Committed, Outbox, Sink
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker
from lmerge_service.merge.commit_record import COMMIT_KEY
from lmerge_service.merge.progress import TaskProgress
from lmerge_service.service import worker as service
from lmerge_service.service.status.build import status_of
from lmerge_service.service.task_phases import Lifecycle, PhaseEvent
from lmerge_service.tdb import TDB
from tests.service.cluster import (
    Merge,
    Worker,
    logical,
    meaning,
    replica_streams,
    running,
    scattered,
)


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)


def frozen_part(tdb: TDB, stable: int) -> set[tuple[object, int, int]]:
    """What is final of a TDB at stable(c): events that started, cut where they may still move."""
    return {(payload, vs, min(ve, stable)) for payload, vs, ve in tdb if vs < stable}


def test_each_replica_alone_carries_the_output_whatever_its_partitions(merge: Merge) -> None:
    lives = logical(200)
    with merge.worker() as worker:
        merge.publish("c", replica_streams(lives)["c"], partitions=12, partitioner=scattered)
        status = worker.wait_until_ended()
        reasons = " ".join(status["reasons"])
        assert "replica a: topic" in reasons
        assert "does not exist yet" in reasons
        assert "redundancy is lost: 1 of 3" in reasons
    assert merge.output_is(meaning(lives))


@pytest.mark.full
@pytest.mark.parametrize("times", [5, pytest.param(30, marks=pytest.mark.deep)])
def test_kill_9_at_random_points_loses_and_doubles_nothing(merge: Merge, times: int) -> None:
    """Many times in a row, with the audit each time; also in the middle of recovery."""
    chance = random.Random(f"{time.time_ns()}")
    lives = logical(4_000)
    reference = meaning(lives)
    merge.extra = {"limits": {"batch_records": 25}}  # many small transactions
    merge.write()
    streams = replica_streams(lives)
    merge.publish("a", streams["a"])
    merge.publish("b", streams["b"], partitions=3)
    merge.publish("c", streams["c"], partitions=2, partitioner=scattered)
    with merge.worker() as worker:
        worker.wait_until_running()
    reached, published = [], set()
    for _ in range(times):
        with merge.worker() as worker:
            if chance.random() < 0.8:
                worker.wait_until_running()
            else:
                time.sleep(chance.uniform(0.5, 1.0))  # somewhere in start-up or recovery
            time.sleep(chance.uniform(0, 0.15))
            worker.kill()
        found = merge.audit()
        stable = found.tdb.stable
        assert frozen_part(found.tdb, stable) == frozen_part(reference, stable)
        reached.append(stable)
        published.add(found.inserts + found.adjusts)
    assert reached == sorted(reached), "the stable point never goes back"
    assert len(published) > times // 4, "the kills fell into live merging"
    with merge.worker() as worker:
        worker.wait_until_ended()
        assert worker.terminate() == 0
    assert merge.output_is(reference)


@pytest.mark.deep
def test_a_power_cut_at_random_points_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Worker and broker die at once: such a broker leaves transactions without their markers."""
    chance = random.Random(f"{time.time_ns()}")
    lives = logical(4_000)
    streams = replica_streams(lives)
    reached = []
    with LocalBroker(tmp_path / "kafka", detached=True) as broker:
        merge = Merge(broker.bootstrap, tmp_path, replicas=("a", "b"))
        merge.extra = {"limits": {"batch_records": 25}}  # many small transactions
        merge.write()
        for name in "ab":
            merge.publish(name, streams[name])
        for _ in range(12):
            with merge.worker() as worker:
                worker.wait_until_running()
                time.sleep(chance.uniform(0, 0.3))
                broker.kill()
                worker.kill()
            broker.start()
            with merge.worker() as worker:  # what is open before it leads cannot be read
                worker.wait_until_running()
                worker.kill()
            reached.append(merge.audit().tdb.stable)
        with merge.worker() as worker:
            worker.wait_until_ended()
            assert worker.terminate() == 0
        assert reached == sorted(reached), "the stable point never goes back"
        assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_kill_9_while_the_replicas_publish_and_one_starts_over(merge: Merge) -> None:
    lives = logical(600, seed=2)
    streams = replica_streams(lives, seed=2)
    a, b, c = (streams[name] for name in "abc")
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", a[: len(a) // 2])
        merge.publish("c", c[: len(c) // 2], partitions=4)
        worker.wait(lambda s: s["output"]["inserts"] > 0, "inserts")
        worker.kill()
    merge.publish("c", c, partitions=4, incarnation=1)
    merge.publish("b", b[: len(b) // 3])
    with merge.worker() as worker:
        status = worker.wait_until_ended()
        assert status["replicas"][2]["incarnation"] == 1
        worker.kill()
    assert merge.output_is(meaning(lives))
    with merge.worker() as worker:  # the incarnation survives a restart too
        status = worker.wait_until_running()
        assert status["replicas"][2]["incarnation"] == 1
        assert status["output"]["ended"]
        merge.publish("b", b[len(b) // 3 :])
        worker.wait(lambda s: s["replicas"][1]["ended"], "b to end")
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_a_replica_that_starts_over_in_silence_is_absorbed(merge: Merge) -> None:
    lives = logical(200, seed=3)
    a = replica_streams(lives, seed=3)["a"]
    with merge.worker() as worker:
        merge.publish("a", a[: len(a) // 2])
        worker.wait(lambda s: s["output"]["stables"] > 0, "stables")
        merge.publish("a", a)
        status = worker.wait_until_ended()
        assert "broke_own_stable" in status["replicas"][0]["breaches"]
        assert status["health"] == "degraded"
    assert merge.output_is(meaning(lives))


async def _read(bootstrap: str, topic: str) -> list[tuple[bytes | None, dict[str, bytes]]]:
    tp = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed"
    ) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        end = (await consumer.end_offsets([tp]))[tp]
        found = []
        while await consumer.position(tp) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [(record.value, dict(record.headers)) for record in records]
        return found


@pytest.mark.full
def test_a_record_of_somebody_else_in_the_output_is_refused(merge: Merge) -> None:
    merge.send_raw(merge.output, [encode(Insert(b'"x"', 1, 5)), encode(Insert(b'"x"', 1, 5))])
    with merge.worker() as worker:
        assert worker.process.wait(20) == 4
        assert "something else writes to this output" in worker.text()
        assert "Traceback" not in worker.text()


@pytest.mark.full
def test_a_replica_whose_beginning_is_gone_is_held_out_and_the_others_go_on(merge: Merge) -> None:
    lives = logical(150, seed=6)
    streams = replica_streams(lives, seed=6)
    merge.publish("a", streams["a"])
    asyncio.run(_truncate(merge.bootstrap, merge.topics["a"], 10))
    with merge.worker() as worker:
        status = worker.wait_until_running()
        assert status["replicas"][0]["state"] == "excluded"
        assert "begins at offset 10" in status["replicas"][0]["why"]
        assert status["health"] == "degraded"
        merge.publish("b", streams["b"])
        worker.wait_until_ended()
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_a_topic_with_fewer_records_than_were_merged_is_merged_anew(merge: Merge) -> None:
    """As after an unclean loss on the broker's side: what was merged of it is taken back."""
    lives = logical(150, seed=7)
    streams = replica_streams(lives, seed=7)
    merge.publish("a", streams["a"][:60])
    with merge.worker() as worker:
        worker.wait(lambda s: s["output"]["stables"] > 0, "stables")
        assert worker.terminate() == 0
    commit = merge.last_commit()
    assert commit is not None
    a = commit.replicas["a"]
    a = replace(a, partitions={0: replace(a.partitions[0], next=1_000)})
    commit = replace(commit, replicas={"a": a})
    merge.send_raw(f"{merge.output}.state", [commit.encoded()], key=COMMIT_KEY)
    with merge.worker() as worker:
        worker.wait(lambda s: s["replicas"][0]["state"] == "joined", "the replica")
        assert "holds 60 records, and 1000 were merged" in worker.text(100)
        merge.publish("b", streams["b"])
        worker.wait_until_ended()
    assert merge.output_is(meaning(lives))


async def _truncate(bootstrap: str, topic: str, offset: int) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics._admin.delete_records(
            {TopicPartition(topic, 0): _RecordsToDelete(before_offset=offset)}
        )


class _RecordsToDelete:
    def __init__(self, before_offset: int):
        self.before_offset = before_offset


@pytest.mark.full
def test_a_topic_that_gets_more_partitions_is_followed(merge: Merge) -> None:
    with merge.worker() as worker:
        merge.publish("a", [Insert(b'"x"', 1, 5), Stable(2)])
        worker.wait(lambda s: s["output"]["stable_point"] == 2, "stable(2)")
        asyncio.run(_widen(merge.bootstrap, merge.topics["a"], 3))
        status = worker.wait(lambda s: s["replicas"][0]["partitions"] == 3, "3 partitions")
        assert status["replicas"][0]["silent_partitions"] == [1, 2]
        merge.publish("a", [Stable(INFINITY)], partitions=3)
        worker.wait_until_ended()
    assert merge.output_is(TDB([(b'"x"', 1, 5)]))


async def _widen(bootstrap: str, topic: str, width: int) -> None:
    from aiokafka.admin import NewPartitions

    async with Topics(Connection(bootstrap)) as topics:
        await topics._admin.create_partitions({topic: NewPartitions(width)})


@pytest.mark.full
def test_a_broker_that_comes_back_is_merged_from_again(tmp_path: Path) -> None:
    lives = logical(200, seed=8)
    a = replica_streams(lives, seed=8)["a"]
    with LocalBroker(tmp_path / "kafka") as broker:
        merge = Merge(broker.bootstrap, tmp_path)
        with merge.worker() as worker:
            merge.publish("a", a[: len(a) // 2])
            worker.wait(lambda s: s["output"]["inserts"] > 0, "inserts")
            broker.kill()
            time.sleep(1)
            broker.start()
            merge.publish("a", a[len(a) // 2 :])
            worker.wait(lambda s: s["output"]["ended"], "the end", seconds=90)
        assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_without_kafka_the_worker_reports_it_and_ends(tmp_path: Path) -> None:
    merge = Merge("127.0.0.1:1", tmp_path)
    with merge.worker() as worker:
        assert worker.process.wait(60) == 3  # it waits for Kafka for a while
        assert "connecting to 127.0.0.1:1" in worker.text()
        assert "Traceback" not in worker.text()


@pytest.mark.full
def test_an_occupied_port_is_one_clear_line(merge: Merge) -> None:
    with merge.worker() as first:
        first.wait_until_running()
        port = int(first.address.rsplit(":", 1)[1])
        other = Worker(merge.path, merge.folder / "second.log", port)
        assert other.process.wait(20) == 3
        assert f"cannot serve status on 127.0.0.1:{port}" in other.text()
        assert "Traceback" not in other.text()


@pytest.mark.full
def test_only_the_last_incarnation_is_fed_to_a_rebuilt_operator(merge: Merge) -> None:
    """An older one was merged against another output: replayed, it would add what it never added.

    b's first life is joining at 50 and remembers stable(100); its second replaces it. Then a
    brings the output to 60. In a replay the first life would be joined at once, and lead."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b'"kept"', 70, 90)])
        worker.wait(lambda s: s["output"]["inserts"] == 1, "an insert")
        merge.publish("b", [Stable(100)], incarnation=1, joining_at=50)
        merge.publish("b", [Stable(1)], incarnation=2, joining_at=200)
        merge.wait_until_committed("b", 2)
        merge.publish("a", [Stable(60)])
        worker.wait(lambda s: s["output"]["stable_point"] == 60, "stable(60)")
        worker.kill()
    with merge.worker() as worker:
        status = worker.wait_until_running()
        assert status["output"]["stable_point"] == 60
        assert status["replicas"][1]["incarnation"] == 2
        assert status["replicas"][1]["state"] == "joining"
        merge.publish("a", [Stable(INFINITY)])
        worker.wait_until_ended()
    assert merge.output_is(TDB([(b'"kept"', 70, 90)]))


@pytest.mark.full
def test_records_near_the_limit_pass_or_are_dead_letters_and_never_stop_the_merge(
    merge: Merge,
) -> None:
    """An adjust of the output is longer than the insert that led to it, and a number may be
    longer in canonical form."""
    limit = 1 << 20
    shell = len(b'{"op":"insert","payload":"","vs":1,"ve":9}')
    largest = b'"' + b"x" * (limit - shell) + b'"'
    grows = b'{"op":"insert","payload":[' + b",".join([b"1e18"] * 200_000) + b'],"vs":1,"ve":2}'
    with merge.worker() as worker:
        merge.send_raw(merge.topics["a"], [encode(Insert(largest, 1, 9)), grows])
        worker.wait(lambda s: s["output"]["inserts"] == 1, "the insert")
        merge.send_raw(merge.topics["b"], [encode(Insert(largest, 1, 7)), encode(Stable(8))])
        worker.wait(lambda s: s["output"]["stable_point"] == 8, "stable(8)")
        worker.wait(lambda s: s["replicas"][0]["dead_letters"] == 1, "a dead letter")
        worker.kill()
    with merge.worker() as worker:
        worker.wait_until_running()
    ((_, headers),) = asyncio.run(_read(merge.bootstrap, merge.dead_letters))
    assert headers["lmerge-reason"] == b"too_large"


@pytest.mark.full
def test_a_record_that_the_client_cannot_read_holds_out_its_replica_only(merge: Merge) -> None:
    """A header whose name is no UTF-8 raises inside the Kafka client."""
    lives = logical(150, seed=9)
    streams = replica_streams(lives, seed=9)
    with merge.worker() as worker:
        merge.publish("a", streams["a"][:30])
        merge.publish("b", streams["b"][:30])
        worker.wait(lambda s: s["output"]["inserts"] > 0, "inserts")
        asyncio.run(_send_a_broken_header(merge.bootstrap, merge.topics["a"]))
        status = worker.wait(lambda s: s["replicas"][0]["why"], "a to be excluded")
        assert "cannot be read at offset" in status["replicas"][0]["why"]
        merge.publish("b", streams["b"][30:])
        worker.wait_until_ended()
    assert merge.output_is(meaning(lives))


async def _send_a_broken_header(bootstrap: str, topic: str) -> None:
    """A batch whose header has a name of bytes that are no UTF-8, and a right checksum."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        batch = producer.create_batch()
        batch.append(key=b"k", value=b"{}", timestamp=None, headers=[("NAME", b"x")])
        batch.close()
        build = batch._build

        def broken() -> bytes:
            data = bytearray(build())
            place = bytes(data).index(b"NAME")
            data[place : place + 4] = b"\xff\xfe\xfd\xfc"
            data[17:21] = struct.pack(">I", calc_crc32c(bytes(data[21:])))
            return bytes(data)

        batch._build = broken
        await (await producer.send_batch(batch, topic, partition=0))


@pytest.mark.full
def test_compressed_replicas_are_read(merge: Merge) -> None:
    with merge.worker() as worker:
        for replica, codec in (("a", "lz4"), ("b", "zstd"), ("c", "snappy")):
            asyncio.run(_send_compressed(merge, replica, codec))
        worker.wait(lambda s: s["output"]["inserts"] == 3, "three inserts")


async def _send_compressed(merge: Merge, replica: str, codec: str) -> None:
    topic = merge.topics[replica]
    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics.ensure(topic)
    async with AIOKafkaProducer(
        bootstrap_servers=merge.bootstrap, compression_type=codec
    ) as producer:
        element = Insert(b'"%s"' % (b"x" * 200 + codec.encode()), 1, 5)
        await producer.send_and_wait(topic, encode(element))


@pytest.mark.full
def test_a_deleted_replica_topic_is_held_out_and_the_others_go_on(merge: Merge) -> None:
    lives = logical(150, seed=10)
    streams = replica_streams(lives, seed=10)
    with merge.worker() as worker:
        merge.publish("a", streams["a"][:60])
        merge.publish("b", streams["b"][:60])
        worker.wait(lambda s: s["output"]["inserts"] > 0, "inserts")
        asyncio.run(_delete(merge.bootstrap, merge.topics["a"]))
        worker.wait(lambda s: "was deleted" in (s["replicas"][0]["why"] or ""), "the deletion")
        merge.publish("b", streams["b"][60:])
        worker.wait_until_ended()
    assert merge.output_is(meaning(lives))


async def _delete(bootstrap: str, topic: str) -> None:
    async with Topics(Connection(bootstrap)) as topics:
        await topics.delete(topic)


def make_output(merge: Merge, **config: str) -> None:
    async def make() -> None:
        keys = {key.replace("_", "."): value for key, value in config.items()}
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics.ensure(merge.output, config={"max.message.bytes": str(8 << 20)} | keys)

    asyncio.run(make())


@pytest.mark.full
def test_an_output_topic_that_is_compacted_is_refused(merge: Merge) -> None:
    make_output(merge, cleanup_policy="compact")
    with merge.worker() as worker:
        assert worker.process.wait(20) == 2
        assert "cleanup.policy=compact" in worker.text()
        assert "Traceback" not in worker.text()


@pytest.mark.full
def test_an_output_topic_that_forgets_is_merged_into(merge: Merge) -> None:
    """How long it is kept is compared with what a recovery needs: tests/merge/test_retention.py."""
    make_output(merge, retention_ms="1000")
    with merge.worker() as worker:
        worker.wait_until_running()


@pytest.mark.full
def test_two_merges_cannot_have_one_output(merge: Merge, tmp_path: Path) -> None:
    other = Merge(merge.bootstrap, tmp_path)
    other.output = merge.output
    other.write()
    with merge.worker() as first:
        first.wait_until_running()
        with other.worker() as second:
            assert second.process.wait(20) == 2
            assert f"{merge.output} is the output of the merge {merge.name}" in second.text()
        merge.publish("a", [Insert(b'"x"', 1, 5)])
        first.wait(lambda s: s["output"]["inserts"] == 1, "an insert")


@pytest.mark.full
def test_counts_do_not_fall_when_the_task_rebuilds(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = logical(200, seed=11)
    for name, stream in replica_streams(lives, seed=11).items():
        merge.publish(name, stream)
    merge.extra = {"limits": {"batch_records": 40}, "http": {"port": 0}}
    merge.write()
    seen: list[tuple[int, ...]] = []
    commit, tries = Sink._commit, 0

    async def commit_or_fail(self: Sink, outbox: Outbox, *rest: Any) -> Committed:
        nonlocal tries
        tries += 1
        if tries % 2 == 0 and tries < 8:
            raise TimeoutError
        return await commit(self, outbox, *rest)

    async def run() -> int:
        async with running(merge) as worker:
            progress = worker.held[0].task.progress
            while progress.committed_stable != INFINITY:
                status = status_of(worker)
                replicas = status.replicas
                seen.append(
                    (
                        status.output.inserts,
                        status.output.adjusts,
                        *(each.inserts for each in replicas),
                        *(each.delivered_first for each in replicas),
                        *(each.late for each in replicas),
                    )
                )
                await asyncio.sleep(0.005)
            return progress.rebuilds

    monkeypatch.setattr(Sink, "_commit", commit_or_fail)
    assert asyncio.run(run()) >= 2
    for before, after in itertools.pairwise(seen):
        assert all(x <= y for x, y in zip(before, after, strict=True)), (before, after)
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_an_outage_longer_than_a_commit_may_take_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its broker is away, closing the client cancels what closes it; that is no order to
    stop."""
    monkeypatch.setattr(sinks, "COMMIT_SECONDS", 1.0)
    lives = logical(150, seed=12)
    a = replica_streams(lives, seed=12)["a"]

    async def run(merge: Merge, broker: LocalBroker) -> int:
        published = asyncio.create_task(asyncio.to_thread(merge.publish, "a", a[:60]))
        async with running(merge) as worker:
            task = worker.held[0].task
            while not task.progress.published:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await published
            broker.kill()
            task._transaction._outbox.records.append((None, b"lost with the broker"))
            while not task.progress.rebuilds:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(5)
            await asyncio.to_thread(broker.start)
            await asyncio.to_thread(merge.publish, "a", a[60:])
            while not ended(worker):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return task.progress.rebuilds

    def ended(worker: service.Worker) -> bool:
        """Taken for dead meanwhile, it has another task."""
        return any(held.task.progress.committed_stable == INFINITY for held in worker.held.values())

    with LocalBroker(tmp_path / "kafka", detached=True) as broker:
        merge = Merge(broker.bootstrap, tmp_path, replicas=("a",))
        assert asyncio.run(run(merge, broker)) >= 1
        assert merge.output_is(meaning(lives))


def test_a_refusal_after_a_long_outage_is_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic was deleted while Kafka had not answered for long: the worker goes on, and ends
    after ten refusals more."""
    refused = UnwritableError("committing: topic t was deleted", topic="t", why="was deleted")
    failures: list[Exception] = [*(20 * [TransportError("no answer")]), *(30 * [refused])]

    async def lead(_: object) -> None:
        raise failures.pop(0)

    async def hold() -> None:
        topology = load(Merge("127.0.0.1:1", tmp_path).path)
        worker = service.Worker(topology, Cluster(connection_of(topology.kafka)))
        monkeypatch.setattr(worker, "_lead", lead)
        task: Any = SimpleNamespace(partition=0, lifecycle=Lifecycle(), progress=TaskProgress())
        task.lifecycle.move(PhaseEvent.ASSIGNED)
        worker.held[0] = cast(Any, SimpleNamespace(given_up=False))
        await worker._hold(task, "leads")

    monkeypatch.setattr(service, "_PAUSES", (0.0,))
    with pytest.raises(UnwritableError, match="was deleted"):
        asyncio.run(hold())
    assert len(failures) == 19
