"""Replays of retractions and revisions that do not fit what was published before."""

import random

import pytest

from lmerge_service.core import BreachKind, Policy, quorum
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB
from tests.faults.bench import Bench, assert_valid
from tests.service.cluster import logical, meaning, replica_streams

K = b'"k"'


def test_r1_a_deletion_of_what_another_replica_inserted_is_applied() -> None:
    """materialize#16044, #17874: a retraction of what its source never inserted."""
    bench = Bench("a", "b")
    bench.publish("b", Insert(K, 5, 9))
    bench.publish("a", Adjust(K, 5, 9, 5))
    assert bench.publish("a", Stable(7)) == [Adjust(K, 5, 9, 5), Stable(7)]
    assert bench.breaches("a")[BreachKind.UNKNOWN_EVENT] == 1
    assert_valid(bench.report(liars=["b"], reference=TDB()))


def test_r1_a_deletion_of_what_nobody_inserted_is_counted_and_leaves_nothing() -> None:
    """materialize#18645."""
    bench = Bench("a", "b")
    assert bench.publish("a", Adjust(K, 5, 9, 5), Adjust(b'"l"', 5, 9, 12)) == []
    bench.kill()
    assert bench.publish("a", Stable(7), Stable(13)) == [Stable(7), Stable(13)]
    assert bench.breaches("a")[BreachKind.UNKNOWN_EVENT] == 2
    assert len(bench.merge) == 0
    assert_valid(bench.report())


def test_r2_the_same_insert_twice_is_one_event_or_two_by_the_case() -> None:
    """risingwave#14031: the same row twice on one input."""
    keyed, multiset = Bench("a", "b"), Bench("a", "b", case="R4")
    for bench in (keyed, multiset):
        bench.publish("a", Insert(K, 5, 9), Insert(K, 5, 9), Stable(7))
        assert_valid(bench.report())
    assert keyed.breaches("a")[BreachKind.DUPLICATE_KEY] == 1
    assert len(keyed.merge) == 1
    assert (
        sum(record.value is not None and b"insert" in record.value for record in keyed.emitted) == 1
    )
    assert len(multiset.merge) == 2


def test_r4_a_revision_from_a_wrong_old_end_is_applied_by_key_and_counted() -> None:
    """risingwave#12140, #8059, #10495: panic on a delete whose old value differs."""
    bench = Bench("a", "b")
    bench.publish("a", Insert(K, 5, 12), Adjust(K, 5, 9, 20), Stable(15))
    assert bench.breaches("a")[BreachKind.WRONG_VOLD] == 1
    assert_valid(bench.report(reference=TDB([(K, 5, 20)])))


@pytest.mark.parametrize("ve", [INFINITY, 100_000, 40])
def test_r7_replicas_that_count_differently_do_not_rewrite_the_output_for_ever(ve: int) -> None:
    """materialize#38196: each replica kept rewriting the other's output, without any input."""
    bench = Bench("a", "b", case="R4")
    bench.publish("a", Insert(K, 5, ve))
    bench.publish("b", Insert(K, 5, ve), Insert(K, 5, ve))
    for second in range(300):
        for name in ("a", "b", "a"):
            bench.publish(name, Stable(10 + second))
    about_events = [r for r in bench.emitted if r.value is not None and b'"stable"' not in r.value]
    assert len(about_events) <= 3, "two inserts and at most one decision between them"
    assert len(bench.emitted) - len(about_events) == 300
    assert bench.report()["K4"].outcome is Outcome.VALID
    blamed = sum(sum(bench.breaches(name).values()) for name in "ab")
    assert blamed <= 4, "and it is reported once, not every second"


def mutated(stream: list[Element], chance: random.Random, share: float) -> list[Element]:
    """Some inserts and adjusts are left out."""
    return [e for e in stream if type(e) is Stable or chance.random() >= share]


def interleaved(bench: Bench, streams: dict[str, list[Element]], chance: random.Random) -> None:
    waiting = {name: list(reversed(stream)) for name, stream in streams.items()}
    while waiting := {name: left for name, left in waiting.items() if left}:
        name = chance.choice(list(waiting))
        bench.publish(name, *(waiting[name].pop() for _ in range(min(5, len(waiting[name])))))


@pytest.mark.parametrize("seed", range(5))
def test_r9_a_mutated_replica_behind_a_clean_one_changes_nothing(seed: int) -> None:
    """risingwave#15802: inserts and deletes are dropped at random, and nothing may crash."""
    lives, chance = logical(150, seed=seed), random.Random(seed)
    streams = replica_streams(lives, seed=seed)
    bench = Bench("a", "b")
    bench.publish("a", *streams["a"][:-1])
    interleaved(bench, {"a": streams["a"][-1:], "b": mutated(streams["b"], chance, 0.05)}, chance)
    assert_valid(bench.report(liars=["b"], reference=meaning(lives)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stable", ["max", quorum(2)])
def test_r9_a_mutated_replica_in_front_makes_no_illegal_output(seed: int, stable: str) -> None:
    lives, chance = logical(150, seed=seed), random.Random(seed)
    streams = replica_streams(lives, seed=seed)
    streams["b"] = mutated(streams["b"], chance, 0.05)
    bench = Bench("a", "b", "c", policy=Policy(stable=stable))
    interleaved(bench, streams, chance)
    report = bench.report(liars=["b"])
    assert {report[k].outcome for k in ("K2", "K4")} == {Outcome.VALID}, str(report)
    if stable != "max":
        assert report["K3"].outcome is Outcome.VALID, str(report)
