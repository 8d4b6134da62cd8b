"""Recovery on a real broker: from a snapshot, from an older one, from nothing, and from what else
is left when topics were damaged, shortened or deleted."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from msgspec.structs import replace

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge import recovery as recovering
from lmerge_service.merge.commit_record import (
    COMMIT_KEY,
    CommitRecord,
    PartitionCheckpoint,
    ReplicaCheckpoint,
    SnapshotPlace,
)
from lmerge_service.merge.decisions.records import Quarantine, Release
from lmerge_service.merge.recovery import Recovery, _prefers_snapshot
from lmerge_service.merge.task_state import TaskState
from lmerge_service.tdb import TDB
from tests.merge.judged import topology_of
from tests.service.cluster import Merge, Worker, decided, logical, meaning, replica_streams
from tests.service.test_worker import _send_a_broken_header

pytestmark = pytest.mark.kafka


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    """Of one replica, with snapshots as often as possible."""
    merge = Merge(bootstrap, tmp_path, replicas=("a", "b"))
    merge.extra = {"snapshot_seconds": 0.3}
    merge.write()
    return merge


def wait_for_snapshots(
    merge: Merge, worker: Worker, beyond: int = 1, count: int = 1
) -> CommitRecord:
    """The first commit record with so many snapshots, the newest of a transaction from `beyond` on;
    a merge that is idle takes none."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert worker.process.poll() is None, worker.text()
        commit = merge.last_commit()
        places = () if commit is None else commit.snapshots
        if commit and len(places) >= count and places[0].transaction >= beyond:
            return commit
        nudge(merge)
    raise AssertionError(f"no snapshots: {commit}")


def nudge(merge: Merge) -> None:
    """Something that is merged and changes nothing: a transaction with a commit record."""
    merge.publish("b", [Insert(b'"nudge"', 900, 1_000)])
    time.sleep(0.05)


def rebuilt(worker: Worker) -> dict[str, Any]:
    """What the log of a worker contains of its only recovery."""
    (line,) = worker.logged("rebuilt")
    return line


def commit_again(merge: Merge, commit: CommitRecord) -> None:
    """What only a disk that forgets could do: the last commit record is another one."""
    merge.send_raw(f"{merge.output}.state", [commit.encoded()], key=COMMIT_KEY)


def spoilt(commit: CommitRecord, *which: int) -> CommitRecord:
    """A commit record of snapshots some of which are not what was written."""
    places = [
        replace(place, digest="0" * 64) if number in which else place
        for number, place in enumerate(commit.snapshots)
    ]
    return replace(commit, snapshots=tuple(places))


def last_commit(merge: Merge) -> CommitRecord:
    commit = merge.last_commit()
    assert commit is not None
    return commit


ETERNAL = Insert(b'"eternal"', 1, INFINITY)
SHORT = Insert(b'"short"', 15, 20)
LATER = Insert(b'"later"', 30, 40)


@pytest.mark.full
def test_a_restart_goes_on_from_the_best_snapshot_that_is_whole(merge: Merge) -> None:
    """The newest; if it is damaged, the one before; if both are, or the state topic is gone, all
    is read again. What is alive since the beginning is there each time."""

    def restarted(worker: Worker, live: int) -> int | None:
        status = worker.wait(
            lambda s: s["state"] == "running" and s["output"]["live_events"] == live, f"{live}"
        )
        assert status["tasks"][0]["restored_from"] == rebuilt(worker)["from_snapshot_of"]
        assert status["output"]["inserts"] == 0, "nothing is emitted again"
        return rebuilt(worker)["from_snapshot_of"]  # type: ignore[no-any-return]

    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        wait_for_snapshots(merge, worker, count=2)
        nudge(merge)
        merge.wait_until_committed("b", 1)
        merge.publish("a", [LATER])
        merge.wait_until_committed("a", 4)
        worker.kill()
    commit, live = last_commit(merge), 4
    with merge.worker() as worker:
        assert restarted(worker, live) == commit.snapshots[0].transaction
        worker.kill()
    commit = last_commit(merge)
    assert len(commit.snapshots) == 2
    found = verified(merge, 0)
    assert [each["damage"] for each in found] == [None, None]
    assert all(each["live_events"] <= live for each in found), "they are of some time before"
    commit_again(merge, spoilt(commit, 0))
    damaged, whole = verified(merge, 4)
    assert "damaged" in damaged["damage"]
    assert (whole["damage"], whole["transaction"]) == (None, commit.snapshots[1].transaction)
    with merge.worker() as worker:
        assert restarted(worker, live) == commit.snapshots[1].transaction
        (line,) = worker.logged("snapshot not used")
        assert (line["transaction"], "damaged" in line["error"]) == (
            commit.snapshots[0].transaction,
            True,
        )
        worker.kill()
    commit_again(merge, spoilt(last_commit(merge), 0, 1))
    with merge.worker() as worker:
        assert restarted(worker, live) is None
        worker.kill()
    asyncio.run(delete(merge, f"{merge.output}.state"))
    with merge.worker() as worker:
        assert restarted(worker, live) is None
        merge.publish("a", [Stable(INFINITY)])
        worker.wait_until_ended()
        assert worker.terminate() == 0
    assert merge.output_is(TDB([(e.payload, e.vs, e.ve) for e in (ETERNAL, SHORT, LATER)]))
    commit_again(merge, replace(last_commit(merge), version=4))
    with merge.worker() as worker:
        assert worker.process.wait(30) == 4
        (error,) = [line for line in worker.text().splitlines() if line.startswith("error")]
        assert "of version 4, and versions 2 and 3 are known here" in error


def verified(merge: Merge, code: int) -> list[dict[str, Any]]:
    """What `lmerge state verify` reports of the snapshots."""
    command = [sys.executable, "-m", "lmerge_service.cli", "state", "verify", str(merge.path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    (task,) = json.loads(done.stdout)
    assert task["commit"]["transaction"] == last_commit(merge).transaction
    found: list[dict[str, Any]] = task["snapshots"]
    return found


async def delete(merge: Merge, topic: str) -> None:
    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics.delete(topic)
        async with asyncio.timeout(20):
            while await topics.partitions([topic]):  # noqa: ASYNC110 - nothing reports when
                await asyncio.sleep(0.05)


@pytest.mark.full
def test_a_snapshot_of_another_policy_is_passed_over(merge: Merge) -> None:
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, Stable(10)])
        wait_for_snapshots(merge, worker)
        worker.kill()
    merge.extra["policy"] = {"adjust": "eager"}
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        assert rebuilt(worker)["from_snapshot_of"] is None
        assert "is of" in worker.logged("snapshot not used")[0]["error"]
        worker.wait(lambda status: status["output"]["live_events"] >= 1, "the event to be live")


@pytest.mark.full
def test_a_replica_that_lost_its_beginning_lives_on_by_the_snapshot_alone(merge: Merge) -> None:
    """With it nothing is needed of the beginning; without it, it is excluded, with the reason."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, SHORT, Stable(10)])
        merge.wait_until_committed("a", 3)
        wait_for_snapshots(merge, worker, beyond=last_commit(merge).transaction)
        worker.kill()
    asyncio.run(truncate(merge, "a", 3))
    with merge.worker() as worker:
        worker.wait(lambda s: s["replicas"][0]["state"] == "joined", "a to be merged on")
        assert rebuilt(worker)["from_snapshot_of"] is not None
        merge.publish("a", [LATER])
        worker.wait(lambda s: s["output"]["inserts"] == 1, "what a publishes now")
        worker.kill()
    commit_again(merge, replace(last_commit(merge), snapshots=()))
    with merge.worker() as worker:
        status = worker.wait(lambda s: s["state"] == "running", "a to be excluded")
        assert status["replicas"][0]["state"] == "excluded"
        assert "begins at offset 3: what was before is gone" in status["replicas"][0]["why"]
        (first, *_) = worker.logged("replica excluded")
        assert "begins at offset 3, and 0 is needed to rebuild the merge" in first["why"]
        merge.publish("b", [ETERNAL, SHORT, LATER, Stable(INFINITY)])
        worker.wait_until_ended()
    found = merge.audit().tdb
    assert {(b'"eternal"', 1, INFINITY), (b'"short"', 15, 20), (b'"later"', 30, 40)} <= set(found)


@pytest.mark.full
def test_a_joining_time_says_nothing_of_what_a_topic_has_left_when_more_of_it_is_gone(
    merge: Merge,
) -> None:
    """Whoever stated it knew what the topic had then. Of an event that began in what was deleted
    since, and goes on, the topic has nothing: it would be taken for removed."""
    merge.extra["replicas"] = [
        {"name": "a", "topic": merge.topics["a"], "joining_at": 5},
        {"name": "b", "topic": merge.topics["b"]},
    ]
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("b", [ETERNAL, Stable(10)])
        merge.publish("a", [ETERNAL, Stable(10)])
        merge.wait_until_committed("a", 2)
        decided(merge, Quarantine("a", "it is looked at"))
        worker.wait(lambda s: s["replicas"][0]["state"] == "quarantined", "a to be out")
        worker.kill()
    asyncio.run(truncate(merge, "a", 1))
    decided(merge, Release("a"))
    with merge.worker() as worker:
        why = (
            f"topic {merge.topics['a']} begins at offset 1 of partition 0, and began at 0 when it "
            "was stated to be correct from 5 on: what was between is gone; state from which later "
            "time on it is correct (`lmerge release --joining-at`), or give it a new topic"
        )
        worker.wait(lambda s: s["replicas"][0]["why"] == why, "a to be excluded")
        worker.kill()
    with merge.worker() as worker:  # nor is it believed by the next one
        worker.wait(lambda s: s["replicas"][0]["why"] == why, "a to be excluded still")
        decided(merge, Quarantine("a", "again"), Release("a", joining_at=15))
        worker.wait(lambda s: s["replicas"][0]["state"] == "joining", "a to be merged again")
        merge.publish("a", [Stable(20)])
        merge.publish("b", [Stable(INFINITY)])
        worker.wait_until_ended()
    assert {(b'"eternal"', 1, INFINITY)} == set(merge.audit().tdb)


async def truncate(merge: Merge, replica: str, before: int) -> None:
    class Until:
        before_offset = before

    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics._admin.delete_records({TopicPartition(merge.topics[replica], 0): Until()})


@pytest.mark.full
def test_a_replica_that_cannot_be_read_again_is_held_out_of_the_recovery(merge: Merge) -> None:
    """A batch that has become unreadable since it was merged is no reason to stop everybody."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, Stable(10)])
        merge.publish("b", [SHORT])
        merge.wait_until_committed("a", 2)
        worker.kill()
    asyncio.run(_send_a_broken_header(merge.bootstrap, merge.topics["a"]))
    commit = last_commit(merge)
    a = commit.replicas["a"]
    read = replace(a, partitions={0: replace(a.partitions[0], next=3)})
    commit_again(merge, replace(commit, replicas={**commit.replicas, "a": read}, snapshots=()))
    with merge.worker() as worker:
        worker.wait_until_running()
        (first, *_) = worker.logged("replica excluded")
        assert "cannot be read at offset" in first["why"]
        merge.publish("b", [ETERNAL, Stable(INFINITY)])
        worker.wait_until_ended()
    assert merge.output_is(TDB([(b'"eternal"', 1, INFINITY), (b'"short"', 15, 20)]))


@pytest.mark.full
def test_kill_9_at_random_points_while_snapshots_are_taken(merge: Merge) -> None:
    """The replicas publish all the time, and the audit is equal in the end."""
    chance = random.Random(seed := time.time_ns())
    print("seed", seed)
    merge.extra |= {"limits": {"batch_records": 40}, "snapshot_seconds": 0.05}
    merge.write()
    lives = logical(1_200, seed=41)
    streams = {name: replica_streams(lives, seed=41)[name] for name in "ab"}
    sources: list[int | None] = []
    with merge.publishing(streams, {"b": 3}, elements=3):
        for _ in range(4):
            with merge.worker() as worker:
                worker.wait_until_it("leads")
                time.sleep(chance.uniform(0, 0.6))
                worker.kill()
                sources.append(rebuilt(worker)["from_snapshot_of"])
    with merge.worker() as worker:
        worker.wait_until_ended()
        assert worker.terminate() == 0
    known = [each for each in sources if each is not None]
    print("restored from", sources)
    assert known == sorted(known)
    assert known, "snapshots were taken between the kills, and used"
    assert merge.output_is(meaning(lives))


# --- one recovery, in this process ----------------------------------------------------------------


async def recovery_of(
    merge: Merge, stack: AsyncExitStack, source: Source | None = None, partition: int = 0
) -> Recovery:
    topology, connection = load(merge.path), Connection(merge.bootstrap)
    return Recovery(
        await stack.enter_async_context(source or Source(connection)),
        await stack.enter_async_context(Topics(connection)),
        output=TopicPartition(merge.output, partition),
        state=TopicPartition(f"{merge.output}.state", partition),
        fresh=lambda: TaskState(topology, partition, tallies={}, clock=time.monotonic),
        replicas=lambda: {each.name: each for each in topology.replicas},
    )


class Late(Source):
    """Sees the end of a topic late, as while the markers of a transaction are being written."""

    topic, asked = "", 0

    async def ends(
        self, partitions: Sequence[TopicPartition], *, seconds: float = 15
    ) -> dict[TopicPartition, int]:
        found = await super().ends(partitions, seconds=seconds)
        for tp in partitions:
            if tp.topic == self.topic:
                self.asked += 1
                found[tp] = found[tp] if self.asked > 3 else 0
        return found


@pytest.mark.full
def test_n4_a_numbered_record_in_the_output_that_is_no_repeat_is_no_secret(merge: Merge) -> None:
    """A merge in Spark writes some records twice; what only uses their numbers is another's."""
    stream = [ETERNAL, Insert(b'"next"', 3, 20)]
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", stream)
        merge.wait_until_committed("a", 2)
        worker.kill()
    merge.topics["out"] = merge.output

    async def followed() -> TaskState:
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack)
            return await recovery.recover(None, fenced=True)

    merge.publish("out", stream[:1], seq=1)
    assert asyncio.run(followed()).counted == 2
    merge.publish("out", [Insert(b'"another"', 4, 20)], seq=1)
    with pytest.raises(StateError, match="not the record number 1 that was there"):
        asyncio.run(followed())


@pytest.mark.full
def test_a_follower_waits_for_output_that_is_visible_later_than_its_mark(merge: Merge) -> None:
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, Stable(10)])
        merge.wait_until_committed("a", 2)
        worker.kill()

    async def follow() -> None:
        source = Late(Connection(merge.bootstrap))
        source.topic = merge.output
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack, source)
            commit = await recovery.last_commit(fenced=False)
            state = await recovery.recover(commit, fenced=False)
            assert (state.merge.max_stable, len(state.merge), source.asked) == (10, 1, 4)

    asyncio.run(asyncio.wait_for(follow(), 30))


def commit_record(
    transaction: int, next_: int, snapshot: int | None = None, size: int = 0
) -> CommitRecord:
    """Of replica a, read up to an offset; with a snapshot of a transaction, so many bytes long."""
    place = SnapshotPlace(0, snapshot or 0, 0, 0, 1, size, "", 0)
    return CommitRecord(
        transaction=transaction,
        replicas={"a": ReplicaCheckpoint("t.a", {0: PartitionCheckpoint(0, next_)}, "id")},
        snapshots=() if snapshot is None else (place,),
    )


@pytest.mark.parametrize(
    ("record", "prefers"),
    [
        (commit_record(900, 900_000), False),
        (commit_record(900, 900_000, snapshot=100, size=1), False),  # as old as the state
        (commit_record(900, 900_000, snapshot=800, size=1), True),
        (commit_record(900, 900_000, snapshot=800, size=1 << 30), False),  # too large
        (commit_record(900, 900_000, snapshot=101, size=1), False),  # hardly newer
        (commit_record(101, 101_000, snapshot=101, size=1), False),  # not far
    ],
)
def test_a_standby_that_is_far_behind_goes_on_from_a_snapshot_where_that_is_less_work(
    record: CommitRecord, prefers: bool
) -> None:
    topology = topology_of("a")
    state = TaskState(topology, 0, tallies={}, clock=time.monotonic)
    (replica,) = topology.replicas
    state.replicas.expect(replica)
    state.replicas.resume("a", commit_record(100, 0).replicas["a"], 1)
    state.replicas.arrive(TopicPartition("in.a", 0), 100_000)
    state.transaction = 100
    assert _prefers_snapshot(state, record) is prefers


@pytest.mark.full
def test_a_standby_that_has_rested_goes_on_from_a_newer_snapshot_and_without_it_by_itself(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering, "_FEW_RECORDS", -1_000)

    async def followed(*records: CommitRecord) -> tuple[TaskState, TaskState]:
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack)
            first = await recovery.recover(records[0], fenced=False)
            return first, await recovery.advanced(first, records[1], fenced=False)

    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, Stable(10)])
        early = wait_for_snapshots(merge, worker)
        merge.publish("a", [SHORT, Stable(20)])
        late = wait_for_snapshots(merge, worker, beyond=early.transaction + 2)
        worker.kill()
    first, then = asyncio.run(followed(early, late))
    assert then is not first
    assert then.restored_from == late.snapshots[0].transaction
    damaged = replace(late, snapshots=spoilt(late, 0).snapshots[:1])
    first, again = asyncio.run(followed(early, damaged))
    assert again is first
    last = Stable(INFINITY)
    assert again.merge.process("a", last) == then.merge.process("a", last) != []


@pytest.mark.full
def test_a_standby_that_lacks_what_a_replica_has_lost_goes_on_from_a_newer_snapshot(
    merge: Merge,
) -> None:
    """As one that stood still for longer than the replica's topic keeps anything. It went on
    without that replica, also when it led."""

    async def played(early: CommitRecord, late: CommitRecord) -> None:
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack)
            first, other = [await recovery.recover(early, fenced=False) for _ in range(2)]
            await truncate(merge, "a", 5)
            lost = "replica a begins at offset 5, and 2 is needed .*: a snapshot may have it merged"
            with pytest.raises(StateError, match=lost):
                await recovery.advanced(first, late, fenced=False)
            state = await recovery.recover(late, fenced=False)
            assert "a" in state.replicas.merged
            older = replace(late, snapshots=early.snapshots)
            await recovery.advanced(other, older, fenced=False)
            assert "begins at offset 5" in str(other.replicas.states["a"].excluded)

    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, Stable(10)])
        merge.wait_until_committed("a", 2)
        early = last_commit(merge)
        merge.publish("a", [SHORT, LATER, Stable(20)])
        merge.wait_until_committed("a", 5)
        late = wait_for_snapshots(merge, worker, beyond=last_commit(merge).transaction)
        worker.kill()
    asyncio.run(asyncio.wait_for(played(early, late), 30))


@pytest.mark.full
def test_a_replica_that_was_merged_anew_is_merged_anew_by_who_follows(merge: Merge) -> None:
    """As after its topic could not be seen for a while: the same topic, the same attachment, and
    the operator has forgotten all of it."""
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL, Insert(b'"x"', 15, 20), Stable(12)])
        merge.wait_until_committed("a", 3)
        worker.kill()
    commit = last_commit(merge)
    a = commit.replicas["a"]
    again = replace(
        a, since=commit.transaction + 2, partitions={0: replace(a.partitions[0], next=1)}
    )
    anew = replace(
        commit, transaction=commit.transaction + 2, replicas={**commit.replicas, "a": again}
    )

    async def follow() -> None:
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack)
            state = await recovery.recover(commit, fenced=False)
            assert (state.merge.inputs["a"].stable, state.merge.inputs["a"].inserts) == (12, 2)
            await recovery.follow(state, anew, fenced=False)
            replica = state.merge.inputs["a"]
            assert (replica.stable, replica.inserts) == (-(2**63), 1)
            assert state.commit_record().replicas["a"] == again

    asyncio.run(asyncio.wait_for(follow(), 30))


@pytest.mark.full
def test_a_co_partitioned_replica_is_as_wide_after_a_restart_as_before(merge: Merge) -> None:
    """The task reads one partition of it: its number does not show how many there are."""
    topic = merge.topics["a"]
    merge.extra = {
        "output": {"topic": merge.output, "partitions": 3},
        "replicas": [{"name": "a", "topic": topic, "co_partitioned": True}],
    }
    merge.write()
    with merge.worker() as worker:
        merge.publish("a", [Stable(10)], partitions=3)
        worker.wait(lambda s: s["output"]["stable_point"] == 10, "stable(10)")
        worker.kill()

    async def recover() -> tuple[int, int, int]:
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack, partition=1)
            commit = await recovery.last_commit(fenced=False)
            state = await recovery.recover(commit, fenced=False)
            a = state.replicas.states["a"]
            assert a.step is not None
            return a.width, a.step.decoder.partitions, state.merge.inputs["a"].stable

    assert asyncio.run(asyncio.wait_for(recover(), 30)) == (3, 1, 10)


@pytest.mark.full
def test_what_another_policy_would_have_emitted_is_missed_once_however_often_it_is_tried(
    merge: Merge,
) -> None:
    """An event that `half_frozen` holds back goes out at once under `first`."""
    merge.extra["policy"] = {"insert": "half_frozen"}
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [ETERNAL])
        merge.wait_until_committed("a", 1)
        wait_for_snapshots(merge, worker, count=2)
        worker.kill()
    del merge.extra["policy"]
    merge.write()

    async def recover() -> list[Element]:
        async with AsyncExitStack() as stack:
            recovery = await recovery_of(merge, stack)
            commit = await recovery.last_commit(fenced=False)
            assert commit is not None
            for _ in range(2):
                state = await recovery.recover(commit, fenced=False)
            return [each for each in state.missed if each == ETERNAL]

    assert asyncio.run(asyncio.wait_for(recover(), 30)) == [ETERNAL]
