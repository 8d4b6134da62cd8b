"""Estimates beside what is measured: random plans, and plans of which the answer is known."""

import gc
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median
from time import process_time_ns
from typing import NamedTuple

import pytest

from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.costs.calibrating import calibrated
from lmerge_service.queries.costs.characteristics import Characteristics, Figures
from lmerge_service.queries.costs.estimating import PlanEstimate, estimate
from lmerge_service.queries.costs.formulas import Stream
from lmerge_service.queries.costs.measuring import measured
from lmerge_service.queries.costs.units import (
    KINDS,
    UNITS,
    UnitCosts,
    read_units,
    write_units,
)
from lmerge_service.queries.expressions import col
from lmerge_service.queries.module_library import average
from lmerge_service.queries.physical import physical, replayed
from lmerge_service.queries.plan import apply, count, counting, snapshots, tumbling
from lmerge_service.queries.sampling import PlanSample, sampled
from tests.queries.costs.plans import SOURCES, Arrivals, arrivals, chosen, drawn, steps

BATCH = 100
EVEN = UnitCosts(dict.fromkeys(UNITS, 1.0), dict.fromkeys(KINDS, 100.0))
one, two = SOURCES["one"], SOURCES["two"]


class Compared(NamedTuple):
    """A plan's estimate, by another sample of the same streams, and what it does over one."""

    seed: int
    estimated: PlanEstimate
    found: PlanSample
    span: int

    @property
    def ratios(self) -> tuple[float, float]:
        """Of elements out and of state: the greater by the lesser. Up to an entry of state is the
        event at which a batch ends."""
        rate = self.found.emitted / self.span
        return _ratio(self.estimated.elements, rate), _ratio(
            self.estimated.held + 1, self.found.mean_held + 1
        )


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


def compared(
    seed: int, events: int, units: UnitCosts | None = None, clock: Callable[[], int] = lambda: 0
) -> Compared | None:
    """One random plan; None if it emits too little to have a rate."""
    rng = Random(seed)
    query = drawn(rng)
    plan, sources = chosen(rng, query), arrivals(rng)
    sources = {name: sources[name] for name in logical.sources(query.plan)}
    earlier = steps(Random(seed + 1_000), sources, events)
    known = measured([query.plan], earlier, lambda: 0, BATCH)
    given = steps(rng, sources, events)
    found = sampled(plan, given, clock, batch=BATCH)
    if found.emitted < 200:
        return None
    span = given[-1].elements[0].vs  # type: ignore[union-attr]
    return Compared(seed, estimate(plan, known, units), found, span)


PLANS = 30
NEEDED = 0.9
"""Of all pairs of plans of which one is estimated more than twice as dear, so many are in order."""


def plans_compared(
    units: UnitCosts | None = None, clock: Callable[[], int] = lambda: 0
) -> list[Compared]:
    """The first so many random plans that have a rate."""
    found: list[Compared] = []
    for seed in range(2 * PLANS):
        if len(found) < PLANS and (each := compared(seed, 2_500, units, clock)):
            found.append(each)
    assert len(found) == PLANS
    return found


@pytest.mark.parametrize("seed", [0, 10, 21, 46])
def test_rate_and_state_are_within_a_factor_of_two(seed: int) -> None:
    found = compared(seed, 1_500)
    assert found is not None
    assert max(found.ratios) < 2, found.ratios


@pytest.mark.full
@pytest.mark.timeout(600)
def test_rate_and_state_of_thirty_plans_are_within_a_factor_of_two() -> None:
    far = [(each.seed, each.ratios) for each in plans_compared() if max(each.ratios) >= 2]
    assert not far


@pytest.mark.full
@pytest.mark.timeout(1_200)
def test_times_of_thirty_plans_are_within_a_factor_of_two_and_in_order() -> None:
    """By costs that were measured just before. What the machine does beside changes how fast it is
    within seconds, so all are compared at its pace now: the median of measured by estimated."""
    units = calibrated(process_time_ns)
    gc.collect()
    found = plans_compared(units, process_time_ns)
    times = [
        (each.estimated.nanoseconds or 0, each.found.nanoseconds / each.found.taken)
        for each in found
    ]
    pace = median(measured / estimated for estimated, measured in times)
    far = [
        (each.seed, estimated, measured)
        for each, (estimated, measured) in zip(found, times, strict=True)
        if _ratio(estimated * pace, measured) >= 2
    ]
    pairs = [(a, b) for a, b in combinations(times, 2) if _ratio(a[0], b[0]) > 2]
    right = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    print(f"pace {pace:.2f}, not within 2: {far}, in order {right} of {len(pairs)}")
    assert right >= NEEDED * len(pairs)
    assert not far


def test_an_aggregate_is_off_where_events_hardly_meet() -> None:
    """The thesis' formula has as many rows as events where the gap is the lifetime or longer; with
    a gap of 100 and lifetimes of 60 they overlap now and then, and there are more, shorter ones."""
    query = one.window(60).aggregate(n=count())
    given = steps(Random(1), {"one": Arrivals(100, 4)}, 4_000)
    found = sampled(physical(query, emit="on_close"), given, lambda: 0, batch=BATCH)
    span = given[-1].elements[0].vs  # type: ignore[union-attr]
    known = Characteristics({"one": Stream(100, 1)})
    estimated = estimate(physical(query, emit="on_close"), known)
    assert estimated.nodes[-1].flow.stream.gap == 100
    assert 65 < span / found.events < 80


def test_without_costs_of_the_machine_there_is_no_time() -> None:
    known = Characteristics({"one": Stream(10, 1)})
    plan = physical(one.window(50).distinct())
    bare, priced = estimate(plan, known), estimate(plan, known, EVEN)
    assert (bare.nanoseconds, bare.bytes) == (None, None)
    assert bare.held == priced.held > 0
    assert priced.bytes == pytest.approx(100 * priced.held)
    assert priced.nanoseconds is not None
    assert priced.nanoseconds > 1


def test_every_kind_of_node_has_an_estimate() -> None:
    """And modules have a time only if a sample has shown it."""
    mean = apply(average, "v", {"v": float})
    of_modules = [
        one.windows(each).apply(mean) for each in (snapshots(), counting(2), tumbling(50))
    ]
    queries = [
        *of_modules,
        one.windows(tumbling(60)).by("k").top(2, "v", by="v"),
        one.by("k").apply(lambda group: group.window(50).distinct()),
        one.window(20).full_join(two.rename(w="v").window(20), "k"),
        one.window(20).left_join(two.rename(w="v").window(20), "k", where=col.v > col.w),
        *(one.window(20).union_max(two.window(20)), one.window(20).except_all(two.window(20))),
        *(one.window(20).intersect(two.window(20)), one.window(20).coalesce()),
        one.flat_map("builtins:list", {"k": int}),
        *(one.hop(20, 40), one.window(20).shorten(5), one.window(9).ends(), one.shift(7)),
        one.extend(20).clip(two, "k"),
        one.window(20).at_most(9).last(),
    ]
    known = Characteristics({"one": Stream(10, 1), "two": Stream(20, 1)})
    for query in queries:
        for emit in ("on_update", "on_close"):
            found = estimate(physical(query, emit=emit), known, EVEN)
            assert found.elements > 0
            user = query in of_modules or isinstance(query.plan, logical.FlatMap)
            assert (found.nanoseconds is None) == user
            assert found.unknown == (query.plan if user else None)


def test_windows_that_are_replayed_take_less_memory_for_more_work() -> None:
    query = one.windows(tumbling(600)).by("k").aggregate(n=count())
    known = Characteristics({"one": Stream(0.01, 1)}, {query.plan: Figures(groups=500_000)})
    plans = (physical(query), replayed(physical(query)))
    kept, again = (estimate(plan, known, EVEN) for plan in plans)
    assert again.held == 600 / 0.01 + 2_048
    assert again.nanoseconds is not None and kept.nanoseconds is not None  # noqa: PT018
    assert again.nanoseconds > 100 * kept.nanoseconds
    found = sampled(plans[1], steps(Random(1), {"one": Arrivals(10, 4)}, 300), lambda: 0, batch=1)
    assert found.held == 300


def test_a_source_that_sends_nothing_costs_nothing() -> None:
    known = measured([one.plan], [Step("", "one", [Stable(INFINITY)])], lambda: 0)
    found = estimate(physical(one.window(9).by("k").aggregate(n=count())), known, EVEN)
    assert (found.taken, found.elements, found.nanoseconds) == (0, 0, 0)


def test_a_sample_shows_streams_and_figures() -> None:
    """Of times that are multiples of 4, with half of all pairs of equal keys."""
    left = [Step("", "one", [Insert((at % 8, at % 4), at, at + 1)]) for at in range(0, 4_000, 4)]
    joined = one.window(8).join(one.rename(w="v").window(8), "k", where=col.v == 0)
    found = measured([joined.plan], left, lambda: 0)
    assert found.sources["one"] == pytest.approx(Stream(3.996, 1, 4))
    figures = found.of(joined.plan)
    assert figures.key_selectivity == pytest.approx(0.5)
    assert figures.groups == 2


def test_costs_are_kept_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "below" / "costs.json"
    assert read_units(place) is None
    write_units(place, EVEN)
    assert read_units(place) == EVEN
    for wrong in (b"{}", b"no", place.read_bytes().replace(b'"model": 1', b'"model": 0')):
        place.write_bytes(wrong)
        with pytest.raises(ConfigurationError, match=r"is no calibration .* calibrate"):
            read_units(place)
    with pytest.raises(ConfigurationError, match="directory"):
        read_units(tmp_path)
    with pytest.raises(ConfigurationError):
        write_units(place / "costs.json", EVEN)
