"""Wait for bounded state and many workers: silent standbys, paused inputs, rolling restarts."""

import itertools

from chaos.seen import Memory, Sample
from lmerge_service.elements import INFINITY, Stable
from tests.faults.bench import assert_valid
from tests.faults.stage import judged
from tests.faults.test_control import events, now
from tests.service.cluster import Merge, Worker, logical, meaning, replica_streams


def sample(worker: Worker) -> Sample:
    status = worker.status()
    return Sample(now(), status["output"]["live_events"])


def test_g1_a_standby_keeps_no_more_than_the_one_that_publishes(merge: Merge) -> None:
    """materialize#37233: a passive sink never consolidates."""
    with merge.worker() as active:
        active.wait_until_running()
        with merge.worker() as standby:
            standby.wait(lambda s: s["state"] == "following", "the standby to follow")
            samples = [sample(standby)]
            for start in range(0, 20_000, 1_000):
                merge.publish("a", events(range(start, start + 1_000)))
                active.wait(lambda s, t=start: s["output"]["stable_point"] == t + 999, "the end")  # type: ignore[misc]
                samples.append(sample(standby))
            merge.publish("a", [Stable(INFINITY)])
            standby.wait(lambda s: s["output"]["ended"], "the standby to have followed")
            samples.append(sample(standby))
    assert_valid(judged(merge, silent=["b", "c"], memory=Memory(samples, most_live_events=20)))


def test_g3_a_backlog_that_is_read_at_full_speed_is_paused(merge: Merge) -> None:
    """numaflow#3002, #3321: one source is faster in event time, and the sorter buffers to OOM."""
    merge.extra = {"policy": {"stable": "quorum(2)"}, "limits": {"live_events": 1_000}}
    merge.write()
    merge.publish("a", [each for each in events(range(20_000)) if type(each) is not Stable])
    with merge.worker() as worker:
        samples = [sample(worker)]
        worker.wait(lambda s: s["replicas"][0]["state"] == "paused", "a to be paused")
        for batch in itertools.batched(range(20_000), 2_000):  # type: ignore[attr-defined]
            for name in "bc":
                merge.publish(name, events(batch))
            samples.append(sample(worker))
        for name in "abc":
            merge.publish(name, [Stable(INFINITY)])
        worker.wait_until_ended()
        samples.append(sample(worker))
    assert_valid(judged(merge, memory=Memory(samples, most_live_events=5_000)))


def test_d16_a_rolling_restart_of_all_workers_under_load(merge: Merge) -> None:
    """nats#3006: duplicates on a rolling restart; #3402: loss when the leader is killed."""
    lives = logical(2_000, seed=16)
    streams = replica_streams(lives, seed=16)
    merge.extra = {"limits": {"batch_records": 25}}
    merge.write()
    for name in "abc":
        merge.publish(name, streams[name])
    with merge.worker() as first, merge.worker() as second, merge.worker() as third:
        first.wait_until_running()
        for worker in (first, second):
            assert worker.terminate() == 0
        third.wait_until_ended()
    assert_valid(judged(merge, reference=meaning(lives), kills=2))
