"""Replays of replicas that come and go by decision, on the real service."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from lmerge_service.config.topology import load
from lmerge_service.drills.history import Interval, ProgressDemand
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.records import Action, Attach, Detach
from lmerge_service.merge.decisions.records import decide as decision
from lmerge_service.tdb import TDB
from tests.faults.bench import assert_valid
from tests.faults.stage import judged
from tests.service.cluster import Merge, Worker


def events(ks: Iterable[int], *, longer: int = 0) -> list[Element]:
    """Event k begins at k; each is followed by its stable."""
    return [e for k in ks for e in (Insert(b"%d" % k, k, k + 5 + longer), Stable(k))]


def truth(ks: Iterable[int]) -> TDB:
    return TDB((b"%d" % k, k, k + 5) for k in ks)


def decide(merge: Merge, action: Action) -> None:
    """Makes a decision that holds, as another worker would."""
    topology = load(merge.path)
    cluster = Cluster(connection_of(topology.kafka))

    async def make() -> None:
        log = cluster.log(topology.output.control_topic)
        async with LoggedControl(topology, log) as control:
            running = asyncio.create_task(control.run())
            entry = await control.decide(decision(action, "the test"))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert entry.accepted, entry

    asyncio.run(make())


def reached(worker: Worker, stable: int) -> Any:
    return worker.wait(lambda s: s["output"]["stable_point"] == stable, f"stable({stable})")


def wait_until_left(merge: Merge, replica: str) -> None:
    """The task has committed that it merges the replica no more; the status shows the decision."""
    deadline = time.monotonic() + 20
    while (commit := merge.last_commit()) is None or replica in commit.replicas:
        assert time.monotonic() < deadline, commit
        time.sleep(0.05)


def now() -> int:
    return int(time.time() * 1_000)


@pytest.mark.full
def test_t5_a_replica_that_is_detached_and_attached_again_leaves_no_hole(merge: Merge) -> None:
    """thanos#7807: one receiver restarts, and the penalty for it leaves holes."""
    with merge.worker() as worker:
        merge.publish("a", events(range(1, 50)))
        merge.publish("b", events(range(1, 50)))
        reached(worker, 49)
        decide(merge, Detach("a"))
        merge.publish("b", events(range(50, 80)))
        reached(worker, 79)
        decide(merge, Attach({"name": "a", "topic": merge.topics["a"]}))
        merge.publish("a", events(range(50, 120)))
        reached(worker, 119)
        merge.publish("b", [*events(range(80, 120)), Stable(INFINITY)])
        worker.wait_until_ended()
    assert_valid(judged(merge, silent=["c"], reference=truth(range(1, 120))))


@pytest.mark.full
def test_t7_a_late_replica_that_is_left_alone_changes_nothing_of_the_past(merge: Merge) -> None:
    """mimir#12331: a failover by the time of receipt lets in a mix of older and newer values."""
    with merge.worker() as worker:
        merge.publish("a", events(range(1, 100)))
        reached(worker, 99)
        merge.publish("b", events(range(1, 41)))
        decide(merge, Detach("a"))
        merge.publish("b", [*events(range(41, 60)), *events(range(60, 63), longer=2)])
        merge.publish("b", events(range(63, 110)))
        status = reached(worker, 109)
        assert status["output"]["inserts"] == 109
    assert_valid(judged(merge, liars=["b"], silent=["c"], reference=truth(range(1, 110))))


@pytest.mark.full
def test_t9_a_name_that_comes_back_is_merged_after_a_restart_too(merge: Merge) -> None:
    """mimir#10443, #12440: an update of a re-appearing replica was refused as no change."""
    with merge.worker() as worker:
        merge.publish("a", events(range(1, 10)))
        reached(worker, 9)
        decide(merge, Detach("a"))
        decide(merge, Attach({"name": "a", "topic": merge.topics["a"]}))
        worker.kill()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", events(range(10, 20)))
        reached(worker, 19)
    assert_valid(judged(merge, silent=["b", "c"], kills=1))


@pytest.mark.full
def test_t11_what_was_detached_stays_so_though_the_other_pauses(merge: Merge) -> None:
    """flink-kubernetes-operator#1154: a late blip of health aborts the new side when the old one
    is gone already: nothing runs."""
    started = now()
    with merge.worker() as worker:
        merge.publish("a", events(range(1, 20)))
        merge.publish("b", events(range(1, 15)))
        reached(worker, 19)
        decide(merge, Detach("a"))
        wait_until_left(merge, "a")
        detached = now()
        merge.publish("a", events(range(20, 40)))  # nobody listens any more
        time.sleep(1.2)  # b's pause, longer than a poll
        assert worker.status()["output"]["stable_point"] == 19
        merge.publish("b", events(range(15, 30)))
        reached(worker, 29)
    report = judged(
        merge,
        silent=["c"],
        attached={"a": [Interval(started, detached)]},
        progress=ProgressDemand(10_000),
    )
    assert report["K4"].outcome is Outcome.VALID
    assert {report[k].outcome for k in ("K1", "K2", "K3")} == {Outcome.VALID}, str(report)
