"""Replays of values that conflict at equal times, and of order within equal times."""

import random

from lmerge_service.core import BreachKind, Policy, quorum
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB
from tests.faults.bench import Bench, assert_valid

ONE, TWO = Insert(b'{"k":1,"p":1}', 10, 20), Insert(b'{"k":1,"p":2}', 10, 20)


def test_v1_two_values_at_one_time_are_decided_by_a_rule_and_reported() -> None:
    """VictoriaMetrics#3333: the winner was random for each node, so that graphs jumped.

    To R3 the values are two events, so the replicas contradict each other: the leader is
    followed, and whoever passes the event without having it is named."""
    for seed in range(1_000):
        chance = random.Random(seed)
        bench = Bench("a", "b")
        waiting: dict[str, list[Element]] = {
            "a": [ONE, Stable(15), Stable(16)],
            "b": [TWO, Stable(15), Stable(16)],
        }
        led = None
        while any(waiting.values()):
            name = chance.choice([name for name, left in waiting.items() if left])
            out = bench.publish(name, waiting[name].pop(0))
            led = led or (name if Stable(15) in out else None)
            if chance.random() < 0.2:
                bench.kill()
        mine = ONE if led == "a" else TWO
        loser = "b" if led == "a" else "a"
        report = bench.report(liars=[loser])
        assert {report[k].outcome for k in ("K1", "K2", "K4")} == {Outcome.VALID}, (seed, report)
        kept = {event.payload for event in bench.output()}
        assert kept == {mine.payload}, seed


def test_v1_a_replica_that_passes_a_value_it_does_not_have_is_named() -> None:
    bench = Bench("a", "b")
    bench.publish("a", ONE, Stable(15))
    bench.publish("b", TWO, Stable(16))
    assert bench.breaches("b")[BreachKind.HALF_FROZEN_MISSING] == 1
    kept = Bench("a", "b", policy=Policy(stable=quorum(2)))
    for name, element in (("a", ONE), ("b", TWO)):
        kept.publish(name, element, Stable(15))
    assert {event.payload for event in kept.output()} == {ONE.payload, TWO.payload}
    assert all(kept.breaches(name)[BreachKind.HALF_FROZEN_MISSING] == 1 for name in "ab")


def test_v5_a_replica_that_returns_with_half_computed_windows_does_not_count_yet() -> None:
    """VictoriaMetrics#4367: results are inconsistent for a while after a replica returns."""

    def window(k: int, count: int) -> Insert[bytes]:
        return Insert(b'{"n":%d,"w":%d}' % (count, k), 10 * k, 10 * k + 10)

    bench = Bench("a", "b")
    bench.publish("b", *(window(k, 100) for k in range(10)), Stable(85))
    bench.attach("a", joining_at=121)
    bench.publish("a", *(window(k, 7) for k in range(9, 12)), Stable(110))  # from partial data
    assert bench.merge.max_stable == 85
    bench.publish("a", window(12, 100), Stable(125))
    assert bench.merge.max_stable == 85
    bench.publish("b", *(window(k, 100) for k in range(10, 13)), Stable(121))
    assert bench.merge.max_stable == 125
    bench.kill()
    bench.publish("b", Stable(INFINITY))
    truth = TDB([(w.payload, w.vs, w.ve) for w in (window(k, 100) for k in range(13))])
    assert_valid(bench.report(reference=truth))


def test_v11_updates_at_one_time_keep_their_order_within_a_replica() -> None:
    """drasi-core#814: a priority queue reordered updates of equal times."""
    bench = Bench("a", "b")
    pairs: list[Element] = []
    for k in range(1_000):
        pairs += [Insert(b"%d" % k, 5, INFINITY), Adjust(b"%d" % k, 5, INFINITY, 6)]
    bench.publish("a", *pairs)
    bench.publish("b", *pairs[::2])
    bench.publish("b", *pairs[1::2], Stable(7))
    bench.publish("a", Stable(INFINITY))
    truth = TDB([(b"%d" % k, 5, 6) for k in range(1_000)])
    assert_valid(bench.report(reference=truth))
