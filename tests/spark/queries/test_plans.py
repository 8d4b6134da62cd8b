"""All plans of a query mean the same: the reference's TDB, however facts are cut into batches, come
late, and workers are killed."""

from collections.abc import Iterable, Sequence
from itertools import dropwhile
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service import lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.feedback import FeedbackRecord
from lmerge_service.formats.routing import Router
from lmerge_service.spark.queries.catalogue import QUERIES
from lmerge_service.spark.queries.plans import Query
from lmerge_service.tdb import TDB, differences, reconstitute
from tests.spark.queries.reference import MINUTE, meaning
from tests.spark.queries.simulate import Fact, Run, random_facts, run

SEEDS = st.integers(0, 2**32)
SOME = max(5, settings().max_examples // 2)
"""Each is a run of several plans, in each query."""
BY_NAME = pytest.mark.parametrize("name", QUERIES)
BOTH = ("conservative", "speculative")


def frozen(tdb: TDB, stable: int, start: int = START) -> set[tuple[object, int, int | None]]:
    """What stable(c) fixes: events, and of those that may go on only that they have begun."""
    return {
        (payload, vs, ve if ve < stable else None)
        for payload, vs, ve in tdb
        if vs < stable and ve >= start
    }


def merged(streams: Iterable[tuple[str, list[Element]]], rng: Random) -> list[Element]:
    """Through the merge, interleaved at random."""
    merge = lmerge("R3")
    waiting = {name: list(stream) for name, stream in streams}
    for name in waiting:
        merge.attach(name)
    out: list[Element] = []
    while waiting:
        name = rng.choice(sorted(waiting))
        take = rng.randrange(1, 20)
        out += merge.process_batch(name, waiting[name][:take])
        del waiting[name][:take]
        if not waiting[name]:
            del waiting[name]
    return out


def from_time(topic: Sequence[Sequence[Fact]], since: int) -> list[list[Fact]]:
    """As Kafka finds an offset by time: the first record that is not earlier."""

    def earlier(fact: Fact) -> bool:
        time = fact.get("time", INFINITY)
        return time is None or time < since

    return [list(dropwhile(earlier, facts)) for facts in topic]


def partitions_of(done: Run, expected: TDB) -> list[TDB]:
    """The reference, as an output partitioned by the query's key has it."""
    router = Router(done.buckets, done.query.key)
    parts: list[list[tuple[object, int, int]]] = [[] for _ in range(done.buckets)]
    for payload, vs, ve in expected:
        assert isinstance(payload, bytes)
        parts[router.partition_of(payload)].append((payload, vs, ve))
    return [TDB(part) for part in parts]


@BY_NAME
@settings(max_examples=SOME)
@given(seed=SEEDS)
def test_every_plan_emits_what_the_reference_emits(name: str, seed: int) -> None:
    rng = Random(seed)
    query = QUERIES[name]
    topic = random_facts(rng, rng.randrange(1, 40), rng.choice([1, 1, 2, 3]))
    expected = meaning(name, topic, 30 * MINUTE)
    for plan in query.plans.values():
        done = run(
            query, plan, topic, rng, buckets=rng.choice([1, 2, 3]), largest=rng.randrange(1, 60)
        )
        for stream, part in zip(done.clean, partitions_of(done, expected), strict=True):
            tdb = reconstitute(stream)
            assert tdb.stable == INFINITY
            assert not differences(tdb, part)


@BY_NAME
@settings(max_examples=SOME)
@given(seed=SEEDS)
def test_what_a_plan_has_frozen_is_what_comes_to_hold(name: str, seed: int) -> None:
    rng = Random(seed)
    topic = random_facts(rng, rng.randrange(1, 30), rng.choice([1, 2]))
    expected = meaning(name, topic, 30 * MINUTE)
    for plan in QUERIES[name].plans.values():
        done = run(QUERIES[name], plan, topic, rng, largest=rng.randrange(1, 20))
        for stream, part in zip(done.clean, partitions_of(done, expected), strict=True):
            prefix = TDB()
            for element in stream:
                prefix.apply(element)
                if isinstance(element, Stable):
                    assert frozen(prefix, element.vc) == frozen(part, element.vc)


@BY_NAME
@settings(max_examples=SOME)
@given(seed=SEEDS)
def test_killed_plans_merge_into_what_the_reference_emits(name: str, seed: int) -> None:
    rng = Random(seed)
    topic = random_facts(rng, rng.randrange(1, 30), 2)
    expected = meaning(name, topic, 30 * MINUTE)
    runs = [
        run(QUERIES[name], plan, topic, rng, kills=0.3, largest=20)
        for plan in QUERIES[name].plans.values()
    ]
    for bucket, part in enumerate(partitions_of(runs[0], expected)):
        streams = [(str(number), each.output[bucket]) for number, each in enumerate(runs)]
        tdb = reconstitute(merged(streams, rng))
        assert tdb.stable == INFINITY
        assert not differences(tdb, part)


@BY_NAME
def test_the_plans_behave_differently(name: str) -> None:
    """One revises and is early, the other does neither; what is kept is let go."""
    topic = random_facts(Random(7), 60, 2)
    firm, early = (run(QUERIES[name], QUERIES[name].plans[each], topic, Random(1)) for each in BOTH)
    adjusts = [
        sum(isinstance(element, Adjust) for stream in each.clean for element in stream)
        for each in (firm, early)
    ]
    assert adjusts[0] == 0
    assert adjusts[1] > 0

    def first_insert(done: Run) -> int:
        return next(
            at
            for at, each in enumerate(done.results)
            if any(type(e) is Insert for e in each.elements)
        )

    assert first_insert(early) < first_insert(firm)
    assert sum(each.late for each in firm.results) == sum(each.late for each in early.results) > 0
    for done in (firm, early):
        assert [each.kept for each in done.results[-2:]] == [0, 0]


@BY_NAME
@settings(max_examples=SOME)
@given(seed=SEEDS)
def test_a_join_in_mid_stream_is_correct_from_its_time(name: str, seed: int) -> None:
    """From a time S on all facts are read: what ends at S + memory or later is right."""
    rng = Random(seed)
    query = QUERIES[name]
    topic = random_facts(rng, rng.randrange(5, 30), rng.choice([1, 2]))
    expected = meaning(name, topic, 30 * MINUTE)
    since = rng.randrange(8 * 60) * MINUTE
    joining_at = since + query.shape.memory
    rest = from_time(topic, since)
    for plan in query.plans.values():
        done = run(query, plan, rest, rng, joining_at=joining_at, largest=25)
        for stream, part in zip(done.clean, partitions_of(done, expected), strict=True):
            tdb = reconstitute(stream)
            held = {each for each in tdb if each.ve >= joining_at}
            assert held == {each for each in part if each.ve >= joining_at}


@settings(max_examples=2 * SOME)
@given(seed=SEEDS)
def test_the_early_plan_of_flights_goes_on_from_whatever_a_plan_or_a_merge_has_emitted(
    seed: int,
) -> None:
    """Cut anywhere, each output partition at another place; resumed again and again."""
    rng = Random(seed)
    query, buckets = QUERIES["in-air"], rng.choice([1, 2])
    topic = random_facts(rng, rng.randrange(5, 30), rng.choice([1, 2]))
    runs = {
        name: run(query, plan, topic, rng, buckets=buckets, largest=20)
        for name, plan in query.plans.items()
    }
    parts = partitions_of(runs["speculative"], meaning("in-air", topic, 30 * MINUTE))
    outputs = [
        rng.choice([*streams, merged(zip(BOTH, streams, strict=True), rng)])
        for streams in zip(*(runs[name].clean for name in BOTH), strict=True)
    ]
    held = [reconstitute(stream[: rng.randrange(len(stream) + 1)]) for stream in outputs]
    for _ in range(3):
        rest = from_time(topic, min(each.stable for each in held))
        done = run(
            query, query.plans["speculative"], rest, rng, buckets=buckets, largest=20, kills=0.2,
            held=held,
        )  # fmt: skip
        for bucket, (before, part) in enumerate(zip(held, parts, strict=True)):
            begun, after = before.stable, TDB(before, before.stable)
            for element in done.clean[bucket]:
                after.apply(element)
                if isinstance(element, Stable):
                    assert frozen(after, element.vc, begun) == frozen(part, element.vc, begun)
            assert after.stable == INFINITY
            assert {each for each in after if each.ve >= begun} == {
                each for each in part if each.ve >= begun
            }
            cut = rng.randrange(len(done.clean[bucket]) + 1)
            held[bucket] = TDB(before, before.stable)
            for element in done.clean[bucket][:cut]:
                held[bucket].apply(element)


@BY_NAME
@settings(max_examples=SOME)
@given(seed=SEEDS)
def test_what_feedback_lets_it_leave_out_is_all_that_is_missing(name: str, seed: int) -> None:
    rng = Random(seed)
    query = QUERIES[name]
    topic = random_facts(rng, rng.randrange(5, 30), 1)
    expected = meaning(name, topic, 30 * MINUTE)
    times = sorted(rng.randrange(-60, 600) * MINUTE for _ in range(4))
    points: dict[int, list[str]] = {
        rng.randrange(4): [
            FeedbackRecord("a", task, 2, point, point, "id").value().decode() for task in (0, 1)
        ]
        for point in times
    }
    highest = max((p for p in times), default=START)
    for plan in query.plans.values():
        done = run(
            query, plan, topic, rng, largest=20, points=points, merge_output="o", replica="a",
            kills=0.2,
        )  # fmt: skip
        for stream, part in zip(done.clean, partitions_of(done, expected), strict=True):
            tdb = reconstitute(stream)
            assert set(tdb) <= set(part)
            assert all(each.ve < highest for each in set(part) - set(tdb))


def test_feedback_of_some_tasks_about_others_or_of_old_outputs_does_not_count() -> None:
    query = QUERIES["delays"]
    topic = random_facts(Random(3), 40, 1)

    def skipped(*records: FeedbackRecord) -> int:
        points = {0: [each.value().decode() for each in records] + ["nonsense"]}
        done = run(
            query, query.plans["speculative"], topic, Random(1),
            points=points, merge_output="o", replica="a",
        )  # fmt: skip
        return sum(each.skipped for each in done.results)

    far = 2**50
    assert skipped(FeedbackRecord("a", 0, 1, far, far, "x")) > 0
    assert skipped(FeedbackRecord("b", 0, 1, far, far, "x")) == 0
    assert skipped(FeedbackRecord("a", 0, 2, far, far, "x")) == 0
    assert skipped(*(FeedbackRecord("a", task, 2, far, far, f"{task}") for task in (0, 1))) == 0
    assert skipped(*(FeedbackRecord("a", task, 2, far, far, "x") for task in (0, 1))) > 0


def test_a_partition_without_facts_holds_everything_back() -> None:
    query: Query = QUERIES["delays"]
    topic = [*random_facts(Random(3), 40, 1), []]
    for plan in query.plans.values():
        done = run(query, plan, topic, Random(1))
        assert not any(isinstance(each, Stable) for stream in done.clean for each in stream)
        assert all(each.watermark == START for each in done.results)
