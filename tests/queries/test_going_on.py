"""Of a process that was killed: input processed anew, in other batches, goes on with its output."""

from collections.abc import Sequence
from random import Random

import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.queries import logical
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.meaning import plans as meaning
from lmerge_service.queries.physical import PhysicalPlan, physical
from lmerge_service.queries.plan_switch import RunningQuery
from lmerge_service.tdb import TDB, differences, reconstitute
from tests.queries.switching import EQUIVALENT, POINTS, plans_of, streams_for
from tests.seeds import seeds

Given = Sequence[tuple[str, Element]]
NAMES = pytest.mark.parametrize("name", EQUIVALENT)


def run(rng: Random, query: RunningQuery, given: Given, most: int) -> list[Element]:
    """What it emits by batches of up to so many elements; of a source each."""
    emitted, left = list[Element](), list(given)
    while left:
        size = rng.randrange(1, most + 1)
        batch, left = left[:size], left[size:]
        batches: dict[str, list[Element]] = {}
        for source, element in batch:
            batches.setdefault(source, []).append(element)
        emitted += query.process_batches(batches)
    return emitted


def held(elements: Sequence[Element]) -> LiveEvents:
    live = LiveEvents()
    live.apply(elements)
    return live


def killed(rng: Random, plan: PhysicalPlan, given: Given) -> tuple[list[Element], list[Element]]:
    """The whole output of a query that is killed once; and what was emitted to go on."""
    at, saved_at = sorted(rng.randrange(len(given) + 1) for _ in range(2))[::-1]
    first = RunningQuery(plan)
    output = run(rng, first, given[:saved_at], rng.choice((1, 3)))
    saved = first.snapshot()
    output += run(rng, first, given[saved_at:at], rng.choice((1, 3)))
    second = RunningQuery(plan)
    second.restore(saved)
    run(rng, second, given[saved_at:at], rng.choice((1, 9)))  # while nobody listens
    difference = second.go_on_from(held(output))
    assert second.stable == held(output + difference).stable
    output += difference
    output += run(rng, second, given[at:], 3)
    return output, difference


@NAMES
@seeds(12)
def test_the_output_is_legal_and_means_the_query(name: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(f"{name} {seed}")
        query = EQUIVALENT[name][0]
        given = streams_for(rng, query)
        plan = plans_of(rng, [query])
        output, _ = killed(rng, plan, given)
        inputs = {source: TDB() for source in logical.sources(query.plan)}
        for source, element in given:
            inputs[source].apply(element)
        found = reconstitute(output)
        assert found.stable == min(each.stable for each in inputs.values()) == INFINITY
        assert not differences(found, meaning.meaning(query.plan, inputs)), (seed, plan)


@NAMES
@seeds(6)
@pytest.mark.parametrize("emit", ["on_update", "on_close"])
def test_plans_that_emit_on_update_or_on_close_have_nothing_to_add(
    emit: str, name: str, seeds: range
) -> None:
    for seed in seeds:
        rng = Random(f"{name} {seed}")
        query = EQUIVALENT[name][0]
        plan = physical(query, emit=emit)  # type: ignore[arg-type]
        _, difference = killed(rng, plan, streams_for(rng, query))
        assert difference == []


def test_an_output_that_is_ahead_waits_for_what_is_held_back() -> None:
    """What `align` has released depends on batches, and so does its stable."""
    query = RunningQuery(physical(POINTS))
    query.process_batch("points", [Insert(("a", 1), 13, 14)])
    assert query.go_on_from(LiveEvents([(("a", 1), 13, 14)], stable=9)) == []
    assert query.process_batch("points", [Stable(4)]) == []
    assert query.process_batch("points", [Stable(14)]) == [Stable(14)]
    assert query.stable == 14


def test_a_transient_event_that_moved_what_was_held_back() -> None:
    """A case found: one process had released by an event that another nets away."""
    rng = Random("left join 928")
    query = EQUIVALENT["left join"][0]
    given = streams_for(rng, query)
    output, _ = killed(rng, plans_of(rng, [query]), given)
    assert reconstitute(output).stable == INFINITY


def test_it_refuses_to_compare_in_the_midst_of_a_switch() -> None:
    plan = physical(POINTS)
    query, _ = RunningQuery.resume(plan, [(("a", 1), 3, 9)], 5, {"points": [Stable(4)]})
    assert query.is_switching
    with pytest.raises(StateError, match="its plan is switching"):
        query.go_on_from(LiveEvents([(("a", 1), 3, 8)], stable=5))
