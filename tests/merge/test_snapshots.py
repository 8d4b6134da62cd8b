"""Snapshots: taken by a child process while the merge goes on, found again by a new owner."""

import asyncio
import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmerge_service.config.topology import Kafka, Output, Replica, Topology
from lmerge_service.elements import Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.merge.commit_record import (
    CommitRecord,
    PartitionCheckpoint,
    ReplicaCheckpoint,
    SnapshotPlace,
)
from lmerge_service.merge.snapshots.writer import _RECORDS, _REST, Snapshots
from lmerge_service.merge.task_state import RestoringState, TaskState


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


TOPOLOGY = Topology(
    name="t",
    kafka=Kafka(bootstrap="127.0.0.1:9092"),
    output=Output(topic="out"),
    replicas=(Replica(name="a", topic="t.a"), Replica(name="b", topic="t.b")),
)
REPLICAS = {each.name: each for each in TOPOLOGY.replicas}


def fresh(partition: int = 0, topology: Topology = TOPOLOGY) -> TaskState:
    return TaskState(topology, partition, tallies={}, clock=Clock())


def state(events: int = 50) -> TaskState:
    """A state with events alive, one of them since for ever, and two replicas that disagree."""
    made = fresh()
    for name in "ab":
        made.replicas.expect(REPLICAS[name])
        standing = ReplicaCheckpoint(f"t.{name}", {0: PartitionCheckpoint(0, 0)}, "id")
        made.replicas.resume(name, standing, 1)
    for number in range(events):
        payload = b'{"n":%d}' % number
        made.merge.process("a", Insert(payload, number, 1_000 + number))
        made.merge.process("b", Insert(payload, number, 2_000 + number))
    made.merge.process("a", Insert(b'"eternal"', 1, 2**63 - 1))
    made.merge.process("a", Stable(10))
    made.output_records, made.transaction = events + 2, 7
    return made


def restored(chunks: list[bytes], into: TaskState | None = None) -> TaskState:
    restoring = RestoringState(into or fresh())
    for chunk in chunks:
        restoring.take(chunk)
    return restoring.finished(REPLICAS)


def test_a_state_comes_back_from_its_bytes_however_they_are_cut() -> None:
    was = state()
    data = b"".join(was.stream(was.commit_record()))
    for size in (1, 3, 1_000, len(data)):
        again = restored([data[at : at + size] for at in range(0, len(data), size)])
        assert again.commit_record() == was.commit_record()
        assert again.merge.snapshot() == was.merge.snapshot()
        last = Stable(3_000)
        assert again.merge.process("b", last) == was.merge.process("b", last) != []
        was = state()


def test_bytes_that_are_cut_short_damaged_or_of_another_merge_are_refused() -> None:
    was = state(5)
    data = b"".join(was.stream(was.commit_record()))
    for wrong, why in (
        (data[:-1], "no end"),
        (data[: len(data) // 2], "no end"),
        (data + b"\0\0\0\0", "goes on behind its end"),
        (b"\x03\0\0\0abc", "damaged"),
        (b"", "no end"),
    ):
        with pytest.raises(StateError, match=why):
            restored([wrong])
    with pytest.raises(StateError, match=r"is of .*and not of"):
        restored([data], fresh(partition=1))
    for rule in ("nfc", "drop_nulls"):
        other = TOPOLOGY.model_copy(update={rule: True})
        with pytest.raises(StateError, match=r"is of .*and not of"):
            restored([data], fresh(topology=other))


def test_bytes_that_are_damaged_anywhere_are_refused_in_words_or_make_sense() -> None:
    """They are read before their digest is known to be right: nothing else may be raised."""
    was = state(6)
    data = b"".join(was.stream(was.commit_record()))
    refused = 0
    for at in range(len(data)):
        for flipped in (0x01, 0x80, 0xFF):
            restoring = RestoringState(fresh())
            try:
                restoring.take(data[:at] + bytes([data[at] ^ flipped]) + data[at + 1 :])
            except StateError:
                refused += 1
    assert refused > len(data)


def test_a_newer_version_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmerge_service.merge.task_state._VERSION", 99)
    was = state(3)
    data = b"".join(was.stream(was.commit_record()))
    monkeypatch.undo()
    with pytest.raises(StateError, match="version 99, this is 1"):
        restored([data])


async def collected(
    taking: Snapshots, *, behind: int = 100
) -> tuple[dict[bytes, bytes], SnapshotPlace]:
    """Commits what there is until it is all there, a commit record behind the chunks of each."""
    found: dict[bytes, bytes] = {}
    async with asyncio.timeout(20):
        while True:
            await taking.ready()
            if not taking.needs_transaction():
                continue
            chunks = taking.chunks()
            found |= dict(chunks)
            behind += len(chunks) + 2  # the commit record and the transaction's marker
            if (place := taking.committed(len(chunks), behind - 1)) is not None:
                return found, place


def test_one_is_due_after_many_records_however_early_once_the_last_one_has_rested() -> None:
    async def run() -> None:
        was, clock = state(), Clock()
        taking = Snapshots(every=3_600, clock=clock, counts=Counter())
        found = []
        for records in (_RECORDS - 1, 1):
            taking.merged(records)
            found.append(taking.is_due)
        assert found == [False, True]
        taking.start(1, was.stream(was.commit_record()), (), 0, 0)
        taking.merged(_RECORDS)
        clock.now = 1.0  # it takes a second
        await collected(taking)
        found.clear()
        for now in (1.0, 1.0 + _REST - 0.1, 1.0 + _REST):
            clock.now = now
            found.append(taking.is_due)
        assert found == [False, False, True]
        taking.close()

    asyncio.run(run())


def test_the_child_writes_the_state_of_the_instant_at_which_it_was_started() -> None:
    async def run() -> None:
        was = state(60_000)
        commit, expected = was.commit_record(), b"".join(was.stream(was.commit_record()))
        clock = Clock()
        taking = Snapshots(every=60, clock=clock, counts=Counter())
        assert not taking.is_due
        clock.now = 6
        assert bool(taking.is_due)
        taking.start(commit.transaction, was.stream(commit), (), 0, 0)
        assert not taking.is_due, "one at a time"
        was.merge.process("a", Stable(2**63 - 1))  # the merge goes on meanwhile
        found, place = await collected(taking)
        data = b"".join(found[b"snapshot/0/%d" % number] for number in range(place.chunks))
        assert data == expected
        assert (place.size, place.digest) == (len(data), hashlib.sha256(data).hexdigest())
        assert place.chunks == len(found) > 1
        assert place.last - place.first + 1 >= place.chunks
        assert restored([data]).commit_record() == commit
        clock.now = 65
        rested = taking.is_due
        clock.now = 66
        assert (rested, taking.is_due) == (False, True)
        taking.close()

    asyncio.run(run())


def test_a_small_state_is_written_at_once_without_a_process_and_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fork", None)

    async def run() -> None:
        was = state(1_000 - 1)
        commit, expected = was.commit_record(), b"".join(was.stream(was.commit_record()))
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        assert was.is_small
        taking.start(1, was.stream(commit), (), 0, 0, is_small=True)
        was.merge.process("a", Stable(2**63 - 1))  # the merge goes on meanwhile
        found, place = await collected(taking)
        data = b"".join(found[b"snapshot/0/%d" % number] for number in range(place.chunks))
        assert data == expected
        assert (place.size, place.digest) == (len(data), hashlib.sha256(data).hexdigest())
        assert restored([data]).commit_record() == commit
        taking.close()

    asyncio.run(run())


def test_a_state_is_small_with_few_live_events_and_nothing_beside_them_that_may_be_large() -> None:
    assert not state(1_000).is_small, "one more is alive for ever"
    normalised = state(3)
    replica = REPLICAS["a"].model_copy(update={"normalise": True})
    normalised.replicas.states["a"].replica = replica
    assert not normalised.is_small


def test_each_snapshot_has_a_slot_of_its_own_beside_those_that_stay() -> None:
    async def run() -> list[int]:
        was, slots = state(3), []
        kept: tuple[SnapshotPlace, ...] = ()
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        for _ in range(5):
            taking.start(1, was.stream(was.commit_record()), kept, 0, 0)
            _, place = await collected(taking)
            slots.append(place.slot)
            kept = (place, *kept[:1])
        return slots

    assert asyncio.run(run()) == [0, 1, 2, 0, 1]


def test_a_child_that_fails_gives_no_snapshot_and_the_next_one_is_tried() -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 10
        raise RuntimeError("out of luck")

    async def run() -> None:
        counts: Counter[str] = Counter()
        taking = Snapshots(every=0, clock=Clock(), counts=counts)
        taking.start(1, broken(), (), 0, 0)
        async with asyncio.timeout(10):
            while not taking.is_due:
                await taking.ready()
                if taking.needs_transaction():
                    assert taking.committed(len(taking.chunks()), 10) is None
        taking.start(1, iter([b"abc"]), (), 0, 0)
        _, place = await collected(taking)
        assert place.size == 3
        assert counts == {"failed": 1, "taken": 1}

    asyncio.run(run())


def test_a_child_that_ends_after_all_is_committed_asks_for_one_more_commit() -> None:
    """Else an idle merge would wait for it in a circle, and have no snapshot."""

    async def run() -> None:
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        taking.start(1, iter([b"abc"]), (), 0, 0)
        await taking.ready()
        assert taking.needs_transaction()
        assert len(taking.chunks()) == 1
        assert not taking.needs_transaction()
        assert not taking._taking._whole, "its end is not known yet"  # type: ignore[union-attr]
        assert taking.committed(1, 10) is None
        async with asyncio.timeout(10):
            await taking.ready()
        assert taking.needs_transaction()
        assert taking.chunks() == []
        place = taking.committed(0, 11)
        assert place is not None
        assert (place.first, place.last, place.size) == (8, 8, 3)

    asyncio.run(run())


def test_a_chunk_that_arrives_wakes_who_waited_before_the_snapshot_was_begun() -> None:
    async def run() -> None:
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        waiting = asyncio.create_task(taking.ready())
        await asyncio.sleep(0)
        taking.start(1, iter([b"abc"]), (), 0, 0)
        async with asyncio.timeout(10):
            await waiting
        taking.close()

    asyncio.run(run())


def test_closing_does_not_mind_that_the_child_was_waited_for_already() -> None:
    async def run() -> None:
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        taking.start(1, iter([b"abc"]), (), 0, 0)
        await taking.ready()
        for _ in range(10):  # the thread that waits for the child is under way
            await asyncio.sleep(0)
        child = taking._taking._writer.pid  # type: ignore[union-attr]
        while Path(f"/proc/{child}").exists():  # noqa: ASYNC240 - it ends while the loop is busy
            time.sleep(0.01)  # noqa: ASYNC251
        assert taking._taking._writer.pid == child  # type: ignore[union-attr]
        taking.close()

    asyncio.run(run())


def test_a_snapshot_whose_place_is_unknown_is_given_up() -> None:
    async def run() -> None:
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        taking.start(1, iter([b"abc"]), (), 0, 0)
        await taking.ready()
        assert taking.committed(len(taking.chunks()), None) is None
        assert taking.is_due

    asyncio.run(run())


def test_closing_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 100_000

    async def run() -> None:
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        taking.start(1, endless(), (), 0, 0)
        await taking.ready()
        child = taking._taking._writer.pid  # type: ignore[union-attr]
        taking.close()
        with pytest.raises(ChildProcessError):
            os.waitpid(child, 0)  # noqa: ASYNC222

    asyncio.run(run())


def test_closing_before_anything_was_read_leaves_no_pipe_behind() -> None:
    def open_files() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    async def run() -> None:
        taking = Snapshots(every=0, clock=Clock(), counts=Counter())
        there = open_files()
        taking.start(1, iter([b"abc"]), (), 0, 0)
        taking.close()
        assert open_files() == there

    asyncio.run(run())


def test_closing_when_the_child_has_ended_and_was_waited_for_already() -> None:
    async def run() -> None:
        counts: Counter[str] = Counter()
        taking = Snapshots(every=0, clock=Clock(), counts=counts)
        taking.start(1, iter([b"abc"]), (), 0, 0)
        await taking.ready()
        child = taking._taking._writer.pid  # type: ignore[union-attr]
        with contextlib.suppress(ChildProcessError):  # the thread may have been faster
            os.waitpid(child, 0)  # noqa: ASYNC222
        taking.close()
        assert taking.is_due

    asyncio.run(run())


def test_a_mark_comes_back_and_a_newer_one_is_refused() -> None:
    place = SnapshotPlace(1, 5, 10, 20, 3, 1_000, "00", 5)
    commit = CommitRecord(
        transaction=9,
        output_records=100,
        stable=-(2**63),
        decided=2,
        replicas={
            "a": ReplicaCheckpoint("t.a", {0: PartitionCheckpoint(1, 2, 3)}, "id", 1, 2, 3, True)
        },
        quarantined={"b": "why"},
        snapshots=(place,),
    )
    assert CommitRecord.of(commit.encoded()) == commit
    for other in (b"{}", b'{"version":4}'):  # version 1 was not written
        with pytest.raises(StateError, match=r"of version [14], and versions 2 and 3"):
            CommitRecord.of(other)
    for wrong in (b"", b"{", None, b"[]", b'{"version":2,"quarantined":{"\xff":"x"}}'):
        with pytest.raises(StateError, match="not a commit record"):
            CommitRecord.of(wrong)
