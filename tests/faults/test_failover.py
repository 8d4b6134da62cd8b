"""Replays of failovers that left gaps, or followed the wrong replica."""

from lmerge_service.core import Policy, quorum
from lmerge_service.drills.history import ProgressDemand
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.tdb import TDB
from tests.faults.bench import Bench, assert_valid


def event(k: int, *, ve: int | None = None) -> Insert[bytes]:
    """Event k begins at k."""
    return Insert(b"%d" % k, k, k + 5 if ve is None else ve)


def truth(ks: range) -> TDB:
    return TDB((b"%d" % k, k, k + 5) for k in ks)


def test_t1_a_replica_that_stops_to_deliver_does_not_leave_a_gap() -> None:
    """thanos#981: the merged series kept following a replica with missing data."""
    bench = Bench("a", "b")
    for k in range(1, 101):
        if not 40 <= k <= 60:
            bench.publish("a", event(k))
            bench.publish("a", Stable(k if k < 40 else 40))
        bench.publish("b", event(k), Stable(k))
    bench.publish("a", Stable(100))
    assert_valid(bench.report(liars=["a"], progress=ProgressDemand(20)))


def test_t1_a_replica_that_skips_data_in_silence_is_overruled_by_a_quorum() -> None:
    """thanos#981, worse: the stable passes what is missing, before another replica has it."""

    def run(policy: Policy) -> Bench:
        bench = Bench("a", "b", "c", policy=policy)
        for name, ks in (("a", [*range(1, 40), *range(61, 101)]), ("b", range(1, 101))):
            bench.publish(name, *map(event, ks), Stable(101))
        bench.publish("c", *map(event, range(1, 101)), Stable(101))
        return bench

    assert_valid(run(Policy(stable=quorum(2))).report(liars=["a"]))
    leading = run(Policy())
    lost = leading.report(liars=["a"])["K3"]
    assert (lost.outcome, lost.total) == (Outcome.INVALID, 42), "21 events, published by b and c"
    assert leading.merge.inputs["b"].late >= 21, "whoever was late can see it"


def test_t2_two_replicas_that_lose_different_halves_are_whole_together() -> None:
    """thanos#7656, #7364, #1744, #331: gaps in the output though another replica has the data."""

    def run(policy: Policy) -> Bench:
        bench = Bench("a", "b", policy=policy)
        for k in range(90, 210):
            for name, odd in (("a", 1), ("b", 0)):
                if not 100 <= k < 200 or k % 2 == odd:
                    bench.publish(name, event(k))
            bench.publish("a", Stable(k + 1))
            bench.publish("b", Stable(k + 1))
        return bench

    whole = run(Policy(stable=quorum(2)))
    assert_valid(whole.report(reference=truth(range(90, 210))))
    leading = run(Policy())
    assert leading.report()["K3"].total == 50, "each that the leader lacked is named"
    assert leading.report()["K4"].outcome is Outcome.VALID


def test_t5_a_replica_that_leaves_and_comes_back_leaves_no_hole() -> None:
    """thanos#7807: one receiver restarts, and the penalty for it leaves holes."""
    bench = Bench("a", "b")
    for k in range(1, 120):
        if k == 50:
            bench.detach("a")
            assert len(bench.merge) == len([*range(44, 50)]), "only what b holds and may revise"
        if k == 80:
            bench.attach("a", joining_at=80)
        if not 50 <= k < 80:
            bench.publish("a", event(k), Stable(k))
        bench.publish("b", event(k), Stable(k))
    assert bench.merge.inputs["a"].joined
    bench.publish("a", Stable(INFINITY))
    assert_valid(bench.report(reference=truth(range(1, 120)), progress=ProgressDemand(20)))
    assert len(bench.merge) == 0


def test_t7_what_a_new_leader_publishes_of_the_past_is_absorbed() -> None:
    """mimir#12331: after a failover older and newer samples mix into a fake counter reset."""
    bench = Bench("a", "b")
    for k in range(1, 100):
        bench.publish("a", event(k), Stable(k))
        if k <= 40:
            bench.publish("b", event(k), Stable(k))
    bench.detach("a")
    before = len(bench.emitted)
    for k in range(41, 99):
        bench.publish("b", event(k, ve=k + 7 if k in {50, 60, 70} else k + 5), Stable(k))
    assert len(bench.emitted) == before, "all of it is the past, as the output has it"
    assert bench.merge.inputs["b"].late >= 50
    for k in range(99, 110):
        bench.publish("b", event(k), Stable(k))
    assert_valid(bench.report(liars=["b"], reference=truth(range(1, 110))))
    assert bench.merge.max_stable == 109, "and goes on from there"


def test_t9_a_name_that_comes_back_is_a_new_incarnation_and_is_merged() -> None:
    """mimir#10443: an update of a re-appearing replica was refused as no change."""
    bench = Bench("a", "b")
    bench.publish("a", event(1), Stable(2))
    bench.detach("a")
    bench.attach("a")
    bench.publish("a", event(1), event(3))
    bench.kill()
    bench.publish("a", event(4), Stable(5))
    assert bench.merge.max_stable == 5
    assert_valid(bench.report())


def test_t13_an_early_end_of_one_replica_closes_nothing_for_a_quorum() -> None:
    """materialize#25005: a replica that finished early closed the stream for all."""
    bench = Bench("a", "b", "c", policy=Policy(stable=quorum(2)))
    bench.publish("b", event(1), Stable(INFINITY))
    for k in range(1, 60):
        bench.publish("a", event(k), Stable(k))
        bench.publish("c", event(k), Stable(k - 10))
    assert bench.merge.max_stable == 59
    assert_valid(bench.report(liars=["b"], progress=ProgressDemand(40, quorum=2, lag=10)))


def test_t15_a_replica_that_starts_beyond_the_output_is_merged_and_does_not_lead() -> None:
    """materialize#16615: a replica starts from data that is compacted already."""
    bench = Bench("a", "b")
    bench.detach("b")
    long_lived = [event(k, ve=k + 100) for k in range(50, 60)]
    bench.publish("a", *long_lived, Stable(60))
    bench.attach("b", joining_at=80)
    bench.publish("b", *long_lived, event(90), Stable(95))
    assert bench.merge.max_stable == 60, "it has no vote before 80"
    bench.kill()
    bench.publish("a", event(90), Stable(79))
    assert bench.merge.max_stable == 79
    bench.publish("a", Stable(80))
    assert bench.merge.max_stable == 95
    events = [(each.payload, each.vs, each.ve) for each in [*long_lived, event(90)]]
    assert_valid(bench.report(reference=TDB(events)))
