"""Replays of what the broker and its clients do: markers, dead writers, other partitioners, the end
of all brokers, and records that nobody can read."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from lmerge_service.drills.history import ProgressDemand
from lmerge_service.drills.observability_checks import Capture, InjectedFault, k8
from lmerge_service.drills.records import CommittedRecord
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker
from lmerge_service.tdb import TDB
from tests.faults.bench import assert_valid
from tests.faults.stage import capture, judged, letters
from tests.service.cluster import Merge, crc32, logical, meaning, replica_streams, scattered


@pytest.mark.full
def test_x3_sigterm_with_the_broker_gone_stops_within_15_seconds(tmp_path: Path) -> None:
    """aiokafka#659: stop() hangs when all brokers are down."""
    with LocalBroker(tmp_path / "kafka") as broker:
        merge = Merge(broker.bootstrap, tmp_path)
        with merge.worker() as worker:
            merge.publish("a", [Insert(b'"x"', 1, 5), Stable(2)])
            worker.wait(lambda s: s["output"]["stable_point"] == 2, "stable(2)")
            broker.kill()
            time.sleep(0.5)
            started = time.monotonic()
            code = worker.terminate(20)
            assert time.monotonic() - started < 15
            assert code == 0
            assert "Traceback" not in worker.text(50)


@pytest.mark.full
def test_x7_a_worker_restarts_on_an_output_whose_tail_is_a_commit_marker(merge: Merge) -> None:
    """risingwave#24720: waiting for high watermark − 1, which is a marker, hangs."""
    with merge.worker() as worker:
        merge.publish("a", [Insert(b'"x"', 1, 5), Stable(3)])
        worker.wait(lambda s: s["output"]["stable_point"] == 3, "stable(3)")
        assert worker.terminate() == 0
    with merge.worker() as worker:
        status = worker.wait_until_running()
        assert status["output"]["live_events"] == 1
        assert status["recovery_seconds"] < 5
        merge.publish("a", [Stable(INFINITY)])
        worker.wait_until_ended()
    assert merge.output_is(TDB([(b'"x"', 1, 5)]))


@pytest.mark.full
def test_x7_what_a_dead_writer_left_open_in_the_output_hides_nothing(merge: Merge) -> None:
    """kafka-flow#849: recovery stops at the last stable offset, below newer committed data."""
    with merge.worker() as worker:
        merge.publish("a", [Insert(b'"before"', 1, 5)])
        worker.wait(lambda s: s["output"]["inserts"] == 1, "an insert")
        asyncio.run(_leave_a_transaction_open(merge))
        merge.publish("a", [Insert(b'"behind"', 2, 5), Stable(4)])
        worker.wait(lambda s: s["output"]["stable_point"] == 4, "stable(4)")
        worker.kill()
    with merge.worker() as worker:
        worker.wait(lambda s: s["state"] == "running", "the transaction to time out", seconds=60)
        merge.publish("a", [Stable(INFINITY)])
        status = worker.wait_until_ended()
        assert status["output"]["inserts"] == 0, "nothing was emitted again"
    assert merge.output_is(TDB([(b'"before"', 1, 5), (b'"behind"', 2, 5)]))


async def _leave_a_transaction_open(merge: Merge) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=merge.bootstrap,
        transactional_id=f"{merge.name}.stranger",
        transaction_timeout_ms=3_000,
    )
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(merge.output, encode(Stable(99)), partition=0)
    await producer.client.close()  # dies without a word
    producer._sender._sender_task.cancel()
    producer._closed = True


@pytest.mark.full
def test_x10_replicas_that_write_in_transactions_are_read_at_their_markers(merge: Merge) -> None:
    """platformatic/kafka#391, aiokafka#781: offsets committed exactly at a marker; lag counts
    markers right."""
    lives = logical(120, seed=4)
    a = replica_streams(lives, seed=4)["a"]
    half = len(a) // 2
    merge.publish("a", a[:half], transactions_of=25)
    with merge.worker() as worker:
        worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "no lag")
        merge.wait_until_committed("a", half)
        worker.kill()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", a[half:], transactions_of=25)
        worker.wait_until_ended()
        worker.wait(lambda s: s["replicas"][0]["lag_records"] == 0, "no lag")
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_x17_replicas_may_be_partitioned_in_any_way(merge: Merge) -> None:
    """kafkajs#357, #1154, confluent-kafka-python#1481, kafka-python#374: same key, other partition
    by client. 1, 5 and 12 partitions."""
    lives = logical()
    streams = replica_streams(lives)
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", streams["a"])
        merge.publish("b", streams["b"], partitions=5, partitioner=crc32)
        merge.publish("c", streams["c"], partitions=12, partitioner=scattered)
        worker.wait_until_ended()
        status = worker.wait(
            lambda s: all(each["lag_records"] == 0 for each in s["replicas"]), "no lag"
        )
        assert worker.terminate() == 0
    assert_valid(judged(merge, reference=meaning(lives)))
    assert merge.output_is(meaning(lives))
    assert [each["partitions"] for each in status["replicas"]] == [1, 5, 12]
    assert all(each["breaches"] == {} for each in status["replicas"]), status
    assert status["health"] == "ok"


@pytest.mark.full
def test_x7_an_output_that_was_truncated_is_refused_at_once(merge: Merge) -> None:
    """kafka-flow#850: after a truncation recovery waits for ever."""
    merge.send_raw(merge.output, [encode(Insert(b'"x"', 1, 5)), encode(Stable(3))])
    asyncio.run(_truncate(merge, merge.output, 1))
    with merge.worker() as worker:
        assert worker.process.wait(20) == 4
        assert "begins at offset 1" in worker.text()


async def _truncate(merge: Merge, topic: str, offset: int) -> None:
    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics._admin.delete_records({TopicPartition(topic, 0): _Before(offset)})


@dataclass
class _Before:
    before_offset: int


# --- records that nobody can read -----------------------------------------------------------------

NOT_JSON = b'{"op":"insert","payl'
POISON: dict[str, bytes | None] = {
    "not_utf8": b'{"op":"insert","payload":"\xff","vs":1,"ve":2}',
    "not_json": NOT_JSON,
    "not_an_element": b'{"op":"insert","payload":1,"vs":1.0,"ve":2}',
    "tombstone": None,
    "nesting": b'{"op":"insert","payload":' + b"[" * 10_000 + b"]" * 10_000 + b',"vs":1,"ve":2}',
    "duplicate_key": b'{"op":"insert","payload":{"a":1,"a":2},"vs":1,"ve":2}',
    "lone_surrogate": b'{"op":"insert","payload":"\\ud800","vs":1,"ve":2}',
    "number": b'{"op":"insert","payload":1e400,"vs":1,"ve":2}',
    "too_large": b'{"op":"insert","payload":"' + b"x" * (10 << 20) + b'","vs":1,"ve":2}',
    "not_json, without a byte": b"",
}
EVENTS: list[Element] = [Insert(b"%d" % k, k, k + 5) for k in range(1, 31)]
TRUTH = TDB((b"%d" % k, k, k + 5) for k in range(1, 31))


@dataclass(frozen=True)
class Poisoned:
    """A run in which one replica of three is whole."""

    merge: Merge
    shown: Capture
    health: str
    letters: list[tuple[CommittedRecord, dict[str, str]]]

    def letters_of(self, replica: str) -> list[tuple[CommittedRecord, dict[str, str]]]:
        return [(r, h) for r, h in self.letters if h["lmerge-replica"] == replica]


@pytest.fixture(scope="module")
def poisoned(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Poisoned:
    """`bad` has broken JSON at offset 2, `toxic` every kind of poison in every place, `empty`
    tombstones; `whole` has everything."""
    merge = Merge(bootstrap, tmp_path_factory.mktemp("poison"), ("whole", "bad", "toxic", "empty"))
    good = [encode(element) for element in EVENTS]
    toxic = [value for k, each in enumerate([*POISON.values()] * 2) for value in (each, good[k])]
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("whole", [*EVENTS, Stable(20)])
        worker.wait(lambda s: s["output"]["stable_point"] == 20, "stable(20)")
        merge.send_raw(merge.topics["bad"], [*good[:2], NOT_JSON, *good[3:], encode(Stable(40))])
        merge.send_raw(merge.topics["toxic"], [*toxic, NOT_JSON])
        merge.send_raw(merge.topics["empty"], [None, good[0], None, good[1], None], key=None)
        merge.send_raw(merge.topics["empty"], [None, good[2], None])
        merge.publish("whole", [Stable(INFINITY)])
        worker.wait_until_ended()
        worker.wait(lambda s: all(r["lag_records"] == 0 for r in s["replicas"]), "no lag")
        worker.wait(lambda s: sum(r["dead_letters"] for r in s["replicas"]) == 27, "dead letters")
        answer = worker.get("/healthz")
        assert answer is not None
        shown = capture(worker)
        assert worker.terminate() == 0
    return Poisoned(merge, shown, answer.json()["health"], letters(merge))


@pytest.mark.full
@pytest.mark.kafka
def test_x13_one_bad_record_does_not_stop_what_is_behind_it(poisoned: Poisoned) -> None:
    """aiokafka 0.14: a deserializer that raises inside the consumer blocks its partition for
    ever."""
    ((record, headers),) = poisoned.letters_of("bad")
    assert (record.value, headers["lmerge-offset"], headers["lmerge-reason"]) == (
        NOT_JSON, "2", "not_json",
    )  # fmt: skip
    status = {each["name"]: each for each in poisoned.shown.status["replicas"]}
    assert status["bad"]["dead_letters"] == 1
    assert (status["bad"]["inserts"], status["bad"]["stables"]) == (29, 1)
    report = judged(
        poisoned.merge,
        liars=["bad"],
        reference=TRUTH,
        progress=ProgressDemand(10_000),
    )
    assert_valid(report)


@pytest.mark.full
@pytest.mark.kafka
def test_x14_poison_of_every_kind_goes_to_the_dead_letters_as_it_was(poisoned: Poisoned) -> None:
    """vertx-kafka-client#220, spring-kafka#1287, streamsx.kafka#65: poison pill loops."""
    found = poisoned.letters_of("toxic")
    wanted = [*POISON.items()] * 2 + [("not_json", NOT_JSON)]
    assert [h["lmerge-reason"] for _, h in found] == [kind.split(",")[0] for kind, _ in wanted]
    assert [int(h["lmerge-offset"]) for _, h in found] == [*range(0, 40, 2), 40]
    for (record, headers), (_, value) in zip(found, wanted, strict=True):
        assert headers["lmerge-topic"] == poisoned.merge.topics["toxic"]
        assert headers["lmerge-partition"] == "0"
        assert record.value == (None if value is None else value[: 64 << 10])


@pytest.mark.kafka
def test_x15_tombstones_are_no_elements_with_a_key_and_without(poisoned: Poisoned) -> None:
    """faust#439, #597, ksql#1100, typestream#260, spring-cloud-stream#1199,
    confluent-kafka-python#189, faststream#2933: null swallowed, turned into text, or a crash."""
    found = poisoned.letters_of("empty")
    assert [int(headers["lmerge-offset"]) for _, headers in found] == [0, 2, 4, 5, 7]
    assert [(r.key, r.value) for r, _ in found] == [(None, None)] * 3 + [(b"k", None)] * 2
    shown = {each["name"]: each["dead_letters"] for each in poisoned.shown.status["replicas"]}
    assert shown["empty"] == 5


@pytest.mark.kafka
def test_l4_poison_shows_in_health_metrics_and_log_with_its_place(poisoned: Poisoned) -> None:
    """SREGym#790: a poison pill stops the service while all of it is "healthy"."""
    assert poisoned.health == "degraded"
    faults = [
        InjectedFault(
            name, "lmerge_replica_dead_letters_total", "not an element", "are not elements",
            partition=0, offset=offset,
        )
        for name, offset in (("bad", 2), ("toxic", 0), ("empty", 0))
    ]  # fmt: skip
    found = k8(faults, poisoned.shown)
    assert found.outcome is Outcome.VALID, found
