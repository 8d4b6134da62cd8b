"""Wait for the guards: a stable beyond plausible, an early end, two writers of one replica.

The names of metric, log line and reason are the surface that is meant.
"""

from chaos.history import Progress
from chaos.seen import Fault
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from tests.faults.bench import assert_valid
from tests.faults.stage import capture, judged
from tests.faults.test_control import events
from tests.service.cluster import Merge, Worker

DAY = 86_400_000


def quarantined(worker: Worker, replica: str) -> None:
    worker.wait(
        lambda s: any(r["name"] == replica and r["state"] == "quarantined" for r in s["replicas"]),
        "the quarantine",
    )


def fault(replica: str, why: str, offset: int) -> Fault:
    return Fault(
        replica, "lmerge_replica_quarantines_total", "quarantined", why, partition=0, offset=offset
    )


def test_w6_a_stable_far_ahead_of_the_others_quarantines_its_replica(merge: Merge) -> None:
    """laminardb#388, sql-flow#358: one far-future event makes all later data late."""
    merge.extra = {"guards": {"max_skew": 1_000}}
    merge.write()
    with merge.worker() as worker:
        for name in "bc":
            merge.publish(name, events(range(1, 20)))
        merge.publish("a", [Insert(b"0", DAY, DAY + 1), Stable(DAY)])
        quarantined(worker, "a")
        for name in "bc":
            merge.publish(name, events(range(20, 40)))
        worker.wait(lambda s: s["output"]["stable_point"] == 39, "stable(39)")
        shown = capture(worker)
    faults = [fault("a", "ahead", offset=1)]
    assert_valid(
        judged(merge, liars=["a"], progress=Progress(10_000), faults=faults, capture=shown)
    )


def test_t13_an_end_far_before_the_others_quarantines_its_replica(merge: Merge) -> None:
    """materialize#25005: a replica that finished early closed the stream for all."""
    with merge.worker() as worker:
        merge.publish("a", events(range(1, 50)))
        merge.publish("c", events(range(1, 40)))
        early: list[Element] = [*events(range(1, 30)), Stable(INFINITY)]
        merge.publish("b", early)
        quarantined(worker, "b")
        merge.publish("a", events(range(50, 60)))
        worker.wait(lambda s: s["output"]["stable_point"] == 59, "stable(59)")
        shown = capture(worker)
    faults = [fault("b", "end", offset=len(early) - 1)]
    assert_valid(
        judged(merge, liars=["b"], progress=Progress(10_000), faults=faults, capture=shown)
    )


def test_d2_two_writers_of_one_replica_raise_an_alarm(merge: Merge) -> None:
    """kafka#11869: after a restart two tasks produced the same stream into one topic."""
    once = [Insert(b"%d" % k, k, k + 5) for k in range(1, 200)]
    with merge.worker() as worker:
        merge.publish("b", once)
        merge.publish("a", [element for element in once for _ in range(2)])
        quarantined(worker, "a")
        merge.publish("b", [Stable(150)])
        worker.wait(lambda s: s["output"]["stable_point"] == 150, "stable(150)")
    assert_valid(judged(merge, silent=["c"]))
