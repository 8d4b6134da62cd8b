"""Beginning to read in the middle of a merge's output: what is handed out, and from when on it is
correct; on a real broker."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.snapshots.beginnings import PartitionStart, beginnings_of
from lmerge_service.reader.read_merged import MergedReader, read_merged
from lmerge_service.tdb import Event, reconstitute
from tests.reader.test_inlets import Reading
from tests.service.cluster import Merge, Worker, logical, meaning, replica_streams

B, C = Event(b'"b"', 2, 9), Event(b'"c"', 8, INFINITY)


# --- without a broker ----------------------------------------------------------------------------


def test_what_a_snapshot_holds_is_handed_out_as_inserts_and_is_correct_from_its_stable_on() -> None:
    reading = Reading()
    assert reading.begin("a", PartitionStart([B, C], 7, 40)) == [Insert(*B), Insert(*C)]
    assert reading.merge.gap is not None, "until it is accepted"
    assert reading.merge.accept_gap()[1] == [Stable(7)]
    assert reading.take("a", Stable(9)) == [Stable(9)]


def test_partitions_that_are_stable_up_to_different_times_are_correct_from_the_latest() -> None:
    reading = Reading()
    begun = reading.begin("a", PartitionStart([B], 7, 40), PartitionStart([C], 12, 3))
    assert begun == [Insert(*B), Insert(*C)]
    gap, out = reading.merge.accept_gap()
    assert (gap.end, out) == (12, [Stable(7)])
    assert reading.take("a", Stable(20)) == [Stable(12)]


def test_of_an_output_that_has_started_over_the_latest_incarnation_is_begun() -> None:
    """What a partition holds of an older one does not count, and what comes is of no new one."""
    reading = Reading()
    old, new = (
        PartitionStart([B], 7, 40),
        PartitionStart([C], 12, 3, incarnation=1, correct_from=20),
    )
    assert reading.begin("a", old, new) == [Insert(*C)]
    status = reading.status("a")
    assert (status.incarnation, status.correct_from) == (1, 20)
    assert [at for _, at in sorted(reading.inlets.positions().items())] == [40, 3]
    assert reading.merge.accept_gap()[0].end == 20
    assert reading.take("a", Stable(25), partition=0) == [], "of the older one"
    assert reading.take("a", Stable(25), partition=1, incarnation=1, joining_at=20) == []
    assert reading.take("a", Stable(22), incarnation=1, joining_at=20) == [Stable(22)]
    assert reading.inlets.started_over == []


def test_a_partition_without_a_snapshot_is_read_from_its_first_record() -> None:
    reading = Reading()
    assert reading.begin("a", PartitionStart([], START, 0), PartitionStart([B], 7, 40)) == [
        Insert(*B)
    ]
    assert [at for _, at in sorted(reading.inlets.positions().items())] == [0, 40]


def test_the_snapshot_of_a_topic_that_is_behind_takes_nothing_from_one_that_is_ahead() -> None:
    """`b` does not know of an event that ended before its snapshot, and `a` has it live."""
    reading = Reading()
    reading.begin("a", PartitionStart([B], 7, 40))
    reading.merge.accept_gap()
    assert reading.begin("b", PartitionStart([C], 12, 40)) == [Insert(*C)]
    assert reading.take("a", Insert(*C)) == []
    assert reading.take("a", Stable(12)) == [Stable(12)], "and b is joined"
    assert reading.take("b", Stable(30)) == [Stable(30)]


def test_payloads_of_a_snapshot_are_equal_by_the_rule_of_who_reads() -> None:
    decomposed = '"e\u0301"'.encode()
    beginning = PartitionStart([Event(decomposed, 2, 9), Event(b'{"a":null}', 3, 9)], 7, 0)
    plain, nulls = WireDecoder(), WireDecoder(nfc=True, drop_nulls=True)
    assert [each.payload for each in beginning.inserts(plain)] == [decomposed, b'{"a":null}']
    assert [each.payload for each in beginning.inserts(nulls)] == ['"\u00e9"'.encode(), b"{}"]


def test_a_case_without_live_events_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes case R3 or R4, not R1"):
        read_merged(Connection("127.0.0.1:1"), ["t"], case="R1", start="snapshot")


# --- on a broker ---------------------------------------------------------------------------------


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    """Two partitions that forget, with snapshots as often as possible."""
    made = Merge(bootstrap, tmp_path)
    made.extra = {
        "snapshot_seconds": 0.2,
        "output": {"topic": made.output, "keep": "1s", "partitions": 2},
    }
    made.write()
    return made


async def whole(reader: MergedReader) -> list[Element]:
    return [element async for element in reader]


def wait_until_trimmed(worker: Worker) -> None:
    def trimmed(status: Any) -> bool:
        logs = [task["log"] for task in status["tasks"]]
        return all(log is not None and log["begins"] > 0 for log in logs)

    worker.wait(trimmed, "both partitions to have lost their beginning")


@pytest.mark.full
@pytest.mark.kafka
def test_a_token_that_is_taken_at_once_has_what_was_not_handed_out(merge: Merge) -> None:
    async def play() -> list[Element]:
        connection = Connection(merge.bootstrap)
        async with read_merged(connection, [merge.output], start="snapshot") as reader:
            token = reader.token()
        async with read_merged(connection, [merge.output], token=token, follow=False) as reader:
            return [*await whole(reader), Stable(reader.status().correct_from)]

    merge.extra["output"]["partitions"] = 1
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(*B), Insert(*C), Insert(b'"d"', 3, 4), Stable(7)])
        wait_until_trimmed(worker)
        assert asyncio.run(play()) == [Insert(*B), Insert(*C), Stable(7), Stable(7)]


@pytest.mark.kafka
@pytest.mark.full
def test_a_topic_that_comes_later_and_cannot_be_begun_is_left_out_and_the_other_goes_on(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here since its state is damaged; the search must not move the reader."""
    connection, late = Connection(merge.bootstrap), f"{merge.output}.late"

    async def refused(source: Source, topic: str, width: int) -> list[PartitionStart]:
        if topic == late:
            tp = TopicPartition(topic, 0)
            await anext(source.backlog({tp: 0}, {tp: 1}))
            raise StateError("it is damaged")
        return await beginnings_of(source, topic, width)

    monkeypatch.setattr("lmerge_service.reader.read_merged.beginnings_of", refused)

    async def play() -> None:
        async with read_merged(connection, [merge.output, late], start="snapshot") as reader:
            assert await asyncio.wait_for(anext(reader), 30) == Insert(*B)
            async with Topics(connection) as topics:
                await topics.ensure(f"{late}.state")
            await publish(connection, late, [Insert(b"1", 1, 2)])
            async with asyncio.timeout(30):
                while reader.status().topics[1].state == "missing":
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(anext(reader), 0.2)
            why = reader.status().topics[1].why
            await asyncio.to_thread(merge.publish, "a", [Insert(*C), Stable(INFINITY)])
            rest = await asyncio.wait_for(whole(reader), 30)
        assert why == f"topic {late} cannot be begun at a snapshot: it is damaged"
        assert Insert(*C) in rest
        assert rest[-1] == Stable(INFINITY)

    merge.extra["output"]["partitions"] = 1
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(*B), Stable(7)])
        wait_until_trimmed(worker)
        asyncio.run(play())


@pytest.mark.kafka
@pytest.mark.full
def test_who_begins_in_the_middle_ends_with_what_the_first_reader_has(merge: Merge) -> None:
    """From the time on that it is correct from; also by way of a token."""
    lives, connection = logical(400, seed=3), Connection(merge.bootstrap)
    streams = replica_streams(lives, seed=3)

    async def play(worker: Worker) -> None:
        async with read_merged(connection, [merge.output], start="snapshot") as middle:
            begun = [await asyncio.wait_for(anext(middle), 30) for _ in range(5)]
            token, correct = middle.token(), middle.status().correct_from
        for name, stream in streams.items():
            await asyncio.to_thread(merge.publish, name, stream[len(stream) // 2 :])
        await asyncio.to_thread(worker.wait_until_ended)
        async with read_merged(connection, [merge.output], token=token) as rest:
            begun += await asyncio.wait_for(whole(rest), 60)
        assert START < correct < INFINITY
        stables = [each.vc for each in begun if type(each) is Stable]
        assert stables[0] >= correct
        assert stables[-1] == INFINITY
        expected = [event for event in meaning(lives) if event.ve >= correct]
        assert {each for each in reconstitute(begun) if each.ve >= correct} == set(expected)
        assert len(expected) < len(lives)

    with merge.worker() as worker:
        worker.wait_until_running()
        for name, stream in streams.items():
            merge.publish(name, stream[: len(stream) // 2])
        wait_until_trimmed(worker)
        asyncio.run(play(worker))
