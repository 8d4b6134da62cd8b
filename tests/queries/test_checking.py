"""Checking: a plan that is wrong is found where it is first, even if it is right in the end."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from lmerge_service.core import Case
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ModuleError
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Check, Step, check
from lmerge_service.queries.judging import Judge
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import PhysicalPlan, physical
from lmerge_service.queries.plan import Query, apply, count, elements, snapshots, tumbling
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.tdb import TDB, Event, compatibility, multiset_compatibility
from tests.queries.composed import SOURCES, drawn
from tests.queries.faulty_modules import Forgetful, inverse
from tests.queries.streams import interleaved
from tests.queries.test_stream_properties import WITH_KEYS, streams_for
from tests.seeds import seeds

NUMBERS = elements("numbers", {"n": int})
points = SOURCES["points"]
HOURLY = points.windows(tumbling(4)).by("k").aggregate(n=count())


def steps_of(source: str, *stream: Element) -> list[Step]:
    return [Step(f"file:{n}", source, [element]) for n, element in enumerate(stream, 1)]


def facts_at(*times: int) -> list[Step]:
    stream: list[Element] = []
    for time in times:
        stream += [Insert(("a", 1), time, time + 1), Stable(time)]
    return steps_of("points", *stream, Stable(INFINITY))


@seeds(8, most=40)
def test_the_plans_of_random_queries_agree(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 5), of=WITH_KEYS)
        names = sorted(logical.sources(query.plan))
        feeds = interleaved(rng, *streams_for(rng, query))
        steps = [Step(f"{n}", names[port], [element]) for n, (port, element) in enumerate(feeds)]
        found = check(numbered_plans(query, 4), steps)
        assert found.agrees, (seed, found)
        assert all(plan.compared for plan in found.plans)


# Wrong for a while


FORGOTTEN = steps_of(
    "numbers",
    Insert((13,), 1, 5),
    Insert((1,), 1, 5),
    Adjust((13,), 1, 5, 1),
    Insert((2,), 7, 9),
    Adjust((1,), 1, 5, 1),
    Stable(INFINITY),
)


def test_a_plan_that_is_wrong_midway_is_found_though_it_is_right_in_the_end() -> None:
    query = NUMBERS.windows(snapshots()).apply(apply(Forgetful, "n", {"sum": int}))
    early, late = physical(query), physical(query, emit="on_close")
    found = check([early, late], FORGOTTEN)
    assert (found.agrees, found.first) == (False, 1)
    deviation = found.plans[0].deviation
    assert deviation is not None
    assert (deviation.place, deviation.step, deviation.element) == ("file:3", 2, 5)
    assert deviation.what == "it differs from the meaning"
    assert deviation.expected == (Event((1,), 1, 5),)
    assert deviation.found == ()
    assert found.plans[1].deviation is None
    assert in_the_end(early, FORGOTTEN) == in_the_end(late, FORGOTTEN) == TDB([((2,), 7, 9)])


def in_the_end(plan: PhysicalPlan, steps: Sequence[Step]) -> TDB:
    network, output = plan.begin(), TDB()
    for _, source, batch in steps:
        for element in network.process_batch(source, batch):
            output.apply(element)
    return output


class Faulty:
    """A physical plan, of which some output is another than it should be."""

    def __init__(self, plan: PhysicalPlan, change: Any) -> None:
        self.plan, self.emit, self.choices = plan.plan, plan.emit, plan.choices
        self._plan, self._change = plan, change

    def begin(self) -> Network:
        network = self._plan.begin()
        process = network.process_batch
        network.process_batch = lambda *given: self._change(process(*given))  # type: ignore[method-assign]
        return network


def checked(change: Any, query: Query = HOURLY, emit: Any = "on_update") -> Check:
    plans: list[Any] = [physical(query), Faulty(physical(query, emit=emit), change)]
    return check(plans, facts_at(1, 2, 6, 9))


def test_what_is_right_agrees() -> None:
    found = checked(lambda emitted: emitted)
    assert found.agrees
    assert (found.events, found.case) == (3, Case.R3)


def test_an_illegal_element_is_named() -> None:
    found = checked(lambda emitted: [Adjust(("a", 9), 0, 4, 2)] if emitted else emitted)
    assert found.first == 2
    assert found.plans[1].deviation is not None
    assert "that the stream does not hold" in found.plans[1].deviation.what


def test_an_early_stable_is_found() -> None:
    """Nothing is emitted wrong, but it is called final too early."""

    def early(emitted: list[Element]) -> list[Element]:
        return [Stable(min(e.vc + 4, INFINITY)) if isinstance(e, Stable) else e for e in emitted]

    found = checked(early, emit="on_close")
    assert found.first == 2


def test_a_result_that_is_left_out_is_found_when_it_is_final() -> None:
    found = checked(lambda emitted: [e for e in emitted if isinstance(e, Stable)], emit="on_close")
    deviation = found.plans[1].deviation
    assert deviation is not None
    assert (deviation.expected, deviation.found) == ((Event(("a", 2), 0, 4),), ())
    assert "before its stable(4)" in deviation.what


def test_what_a_module_raises_names_the_plan_and_the_place() -> None:
    query = NUMBERS.windows(snapshots()).apply(apply(inverse, "n", {"x": float}))
    steps = steps_of("numbers", Insert((2,), 1, 5), Insert((0,), 3, 9), Stable(INFINITY))
    with pytest.raises(ModuleError, match=r"^plan 1, file:2: .*inverse.*ZeroDivisionError"):
        check([physical(query)], steps)


def test_comparisons_may_be_rare() -> None:
    often, rarely = (check([physical(HOURLY)], facts_at(*range(40)), n) for n in (1, 10))
    assert often.plans[0].compared > 5 * rarely.plans[0].compared > 5


# The judge


class Whole:
    """The judge over whole TDBs."""

    def __init__(self, inputs: int, case: Case) -> None:
        self.inputs, self.output = [TDB() for _ in range(inputs)], TDB()
        self.keyless = case is Case.R4

    def broken(self) -> bool:
        leading = max(self.inputs, key=lambda tdb: tdb.stable)
        if self.keyless:
            wrong = multiset_compatibility(leading, self.output)
            return bool(wrong) or self.output.stable != leading.stable
        return bool(compatibility(self.inputs, self.output))


@pytest.mark.parametrize("case", [Case.R3, Case.R4])
@seeds(40)
def test_the_judge_finds_what_whole_tdbs_show(seeds: range, case: Case) -> None:
    """Two inputs of one stream, and an output that follows the first, or forgets an element."""
    seen = 0
    for seed in seeds:
        rng = Random(seed)
        stream = steady(rng)
        judge, whole = Judge(2, case), Whole(2, case)
        left = [list(stream), list(stream)]
        while any(left):
            number = rng.choice([n for n in (0, 1) if left[n]])
            element = left[number].pop(0)
            judge.received(number, element)
            whole.inputs[number].apply(element)
            if number == 0 and rng.random() < 0.95 and whole.output.violation(element) is None:
                judge.emitted(element)
                whole.output.apply(element)
            assert bool(judge.broken()) == whole.broken(), (seed, element)
            if whole.broken():
                seen += 1
                break
    assert seen


def steady(rng: Random) -> list[Element]:
    """Inserts, adjusts of ends and stables, with a key."""
    stream: list[Element] = []
    tdb = TDB()
    for number in range(30):
        at = max(tdb.stable, 0)
        live = [event for event in tdb if event.ve >= at]
        if live and rng.random() < 0.3:
            payload, vs, ve = rng.choice(live)
            element: Element = Adjust(payload, vs, ve, max(at, vs) + rng.randrange(1, 4))
        elif rng.random() < 0.3:
            element = Stable(at + rng.randrange(1, 4))
        else:
            vs = at + rng.randrange(3)
            element = Insert(number, vs, vs + rng.randrange(1, 5))
        tdb.apply(element)
        stream.append(element)
    return [*stream, Stable(INFINITY)]


def test_rows_of_gaps_are_as_long_as_these() -> None:
    """They took them for as long as the facts, and computed windows over them by panes of facts."""
    quiet = points.aggregate(cut=True, gap=True, n=count()).windows(tumbling(4))
    assert logical.longest(points.aggregate(cut=True, gap=True, n=count()).plan) == INFINITY
    found = check(numbered_plans(quiet.aggregate(n=count()), 4), facts_at(1, 9, 30))
    assert found.agrees
