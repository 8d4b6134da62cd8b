"""Estimates beside what is measured: random plans, and plans of which the answer is known."""

import gc
from collections.abc import Callable, Sequence
from itertools import combinations
from math import exp
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
from lmerge_service.queries.costs import calibrating, formulas
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
from lmerge_service.queries.physical import Choice, physical, replayed
from lmerge_service.queries.plan import (
    Query,
    apply,
    count,
    counting,
    hopping,
    max_,
    snapshots,
    tumbling,
)
from lmerge_service.queries.sampling import PlanSample, batches, sampled
from tests.queries.costs.plans import SOURCES, Arrivals, arrivals, chosen, drawn, steps

BATCH = 100
EVEN = UnitCosts(dict.fromkeys(UNITS, 1.0), dict.fromkeys(KINDS, 100.0))
one, two = SOURCES["one"], SOURCES["two"]


class Compared(NamedTuple):
    """A plan's estimate, by another sample of the same streams, and what it does over one."""

    seed: int
    estimated: PlanEstimate
    found: PlanSample
    given: list[Step]

    @property
    def span(self) -> int:
        """How long the sample is."""
        return self.given[-1].elements[0].vs  # type: ignore[union-attr]

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


def compared(seed: int, events: int, units: UnitCosts | None = None) -> Compared | None:
    """One random plan; None if it emits too little to have a rate."""
    rng = Random(seed)
    query = drawn(rng)
    plan, sources = chosen(rng, query), arrivals(rng)
    sources = {name: sources[name] for name in logical.sources(query.plan)}
    earlier = steps(Random(seed + 1_000), sources, events)
    known = measured([query.plan], earlier, lambda: 0, BATCH)
    given = steps(rng, sources, events)
    found = sampled(plan, given, lambda: 0, batch=BATCH)
    if found.emitted < 200:
        return None
    return Compared(seed, estimate(plan, known, units), found, given)


PLANS = 30
NEEDED = 0.9
"""Of all pairs of plans of which one is estimated more than twice as dear, so many are in order."""


def plans_compared(units: UnitCosts | None = None) -> list[Compared]:
    """The first so many random plans that have a rate."""
    found: list[Compared] = []
    for seed in range(2 * PLANS):
        if len(found) < PLANS and (each := compared(seed, 2_500, units)):
            found.append(each)
    assert len(found) == PLANS
    return found


def in_order(values: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Of (estimated, measured): how many pairs, of which one is estimated more than twice the
    other, are measured in the same order; and how many there are."""
    pairs = [(a, b) for a, b in combinations(values, 2) if _ratio(a[0], b[0]) > 2]
    return sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs), len(pairs)


@pytest.mark.parametrize("seed", [0, 10, 21, 46])
def test_rate_and_state_are_within_a_factor_of_two(seed: int) -> None:
    found = compared(seed, 1_500)
    assert found is not None
    assert max(found.ratios) < 2, found.ratios


@pytest.mark.full
@pytest.mark.timeout(600)
def test_rate_and_state_of_thirty_plans_are_within_a_factor_of_two_and_in_order() -> None:
    plans = plans_compared()
    far = [(each.seed, each.ratios) for each in plans if max(each.ratios) >= 2]
    assert not far
    rates = [(each.estimated.elements, each.found.emitted / each.span) for each in plans]
    states = [(each.estimated.held + 1, each.found.mean_held + 1) for each in plans]
    for values in (rates, states):
        right, pairs = in_order(values)
        assert pairs > len(plans)
        assert right >= NEEDED * pairs


ROUNDS = 4


def fastest(plans: Sequence[Compared]) -> list[int]:
    """Of each plan the nanoseconds of its batches, each the least of several runs: other work slows
    the machine for milliseconds, or seconds, so that all plans run once, then all again."""
    best: list[list[int]] = [[] for _ in plans]
    for _ in range(ROUNDS):
        for at, each in enumerate(plans):
            gc.collect()
            plan = each.estimated.plan
            times = sampled(plan, each.given, process_time_ns, batch=BATCH).batches
            best[at] = [*map(min, times, best[at] or times)]
    return [sum(times) for times in best]


@pytest.mark.full
@pytest.mark.timeout(1_200)
def test_times_of_thirty_plans_are_within_a_factor_of_two_and_in_order() -> None:
    """By costs that were measured just before. How fast the machine is changes meanwhile, so all
    are compared at its pace now: the median of measured by estimated."""
    found = plans_compared(calibrated(process_time_ns))
    times = [
        (each.estimated.nanoseconds or 0, took / each.found.taken)
        for each, took in zip(found, fastest(found), strict=True)
    ]
    pace = median(measured / estimated for estimated, measured in times)
    factors = {
        each.seed: _ratio(estimated * pace, measured)
        for each, (estimated, measured) in zip(found, times, strict=True)
    }
    right, pairs = in_order(times)
    assert right >= NEEDED * pairs
    assert max(factors.values()) < 2, (factors, pace)


# By how much the thesis' formulas are off, as docs/queries.md has it


def apart(query: Query, arrives: Arrivals, events: int) -> float:
    """From one event of the result to the next, on average."""
    given = steps(Random(1), {"one": arrives}, events)
    found = sampled(physical(query, emit="on_close"), given, lambda: 0, batch=BATCH)
    return given[-1].elements[0].vs / found.events  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("length", "predicted", "found"),
    [(20, 100, 83), (60, 100, 68), (100, 100, 60), (110, 50, 59), (200, 50, 53)],
)
def test_an_aggregate_is_off_where_the_gap_is_about_the_lifetime(
    length: int, predicted: float, found: float
) -> None:
    """With a gap of 100. The formula has as many rows as events up to lifetimes of 100, though some
    overlap; then a row between each two endpoints, though there are gaps."""
    query = one.window(length).aggregate(n=count())
    plan = physical(query, emit="on_close")
    estimated = estimate(plan, Characteristics({"one": Stream(100, 1)})).nodes[-1].flow.stream.gap
    assert estimated == pytest.approx(predicted, rel=0.01)
    assert apart(query, Arrivals(100, 4), 2_000) == pytest.approx(found, rel=0.02)
    assert found == pytest.approx(100 / (2 - exp(-length / 100)), rel=0.03)  # of Poisson arrivals


def test_an_aggregate_has_fewer_rows_where_values_stay() -> None:
    query = one.window(100).aggregate(m=max_("v"))
    assert formulas.aggregated(Stream(10, 100)).gap == pytest.approx(5.5, rel=0.01)
    assert apart(query, Arrivals(10, 4), 2_000) == pytest.approx(53, rel=0.05)


def test_distinct_makes_long_events_instead_of_pieces() -> None:
    query = one.select("k").window(100).distinct()
    assert formulas.distinct(Stream(10, 100), 4) == (10, 40, 1)
    assert formulas.unbroken(Stream(10, 100), 4)[:2] == pytest.approx((123, 453), rel=0.01)
    assert apart(query, Arrivals(10, 4), 2_000) == pytest.approx(124, rel=0.03)


@pytest.mark.parametrize(
    ("keys", "gap", "table", "found"), [(4, 10, 24, 22), (20, 10, 115, 89), (100, 30, 109, 63)]
)
def test_a_grid_holds_fewer_windows_than_all_groups_in_all_that_are_open(
    keys: int, gap: int, table: float, found: float
) -> None:
    query = one.windows(hopping(600, every=100)).by("k").aggregate(n=count())
    in_window = formulas.groups_among(keys, 600 / gap)
    assert formulas.windows_state(600, 100, in_window) == pytest.approx(table, rel=0.01)
    given = steps(Random(1), {"one": Arrivals(gap, keys)}, 1_500)
    plan = physical(query, emit="on_close")
    assert sampled(plan, given, lambda: 0, batch=BATCH).mean_held == pytest.approx(found, rel=0.03)
    known = measured([query.plan], given, lambda: 0, BATCH)
    assert estimate(plan, known).held == pytest.approx(found, rel=0.1)


SETS: dict[str, Callable[[Query, Query], Query]] = {
    "except": Query.except_,
    "except all": Query.except_all,
    "intersect": Query.intersect,
    "intersect all": Query.intersect_all,
    "union max": Query.union_max,
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("keys", "length", "other"), [(5, 50, 10), (20, 400, 10), (20, 400, 60)])
def test_set_operators_emit_what_is_estimated(
    name: str, keys: int, length: int, other: float
) -> None:
    """Whichever side comes more often. By the formula of `distinct`, since the thesis has none for
    them, events were off by up to 8 times, and elements by 5."""
    query = SETS[name](one.select("k").window(length), two.select("k").window(length))
    sources = {"one": Arrivals(10, keys), "two": Arrivals(other, keys)}
    given = steps(Random(3), sources, 1_500)
    found = sampled(physical(query), given, lambda: 0, batch=BATCH)
    known = measured([query.plan], given, lambda: 0, BATCH)
    estimated = estimate(physical(query), known)
    span = given[-1].elements[0].vs  # type: ignore[union-attr]
    assert estimated.nodes[-1].flow.stream.rate * span == pytest.approx(found.events, rel=0.15)
    assert _ratio(estimated.elements * span, found.emitted) < 2


def test_a_calibration_counts_the_batches_that_its_plans_take_in() -> None:
    """Its plans of two sources once were given one event of each in turn, of which the model counts
    half as many batches: so each seemed twice as dear, and what works by the batch was blamed."""
    trials = {
        (each.keys, each.batch, each.often): each
        for each in calibrating.trials()
        if len(logical.sources(each.plan.plan)) == 2
    }
    assert len(trials) > 4
    for trial in trials.values():
        given = [*calibrating.drawn(trial, 800)]
        made = sum(map(len, batches(given, trial.batch)))
        known = measured([trial.plan.plan], given, lambda: 0, trial.batch)
        nodes = estimate(trial.plan, known).nodes
        span = given[-1].elements[0].vs - given[0].elements[0].vs  # type: ignore[union-attr]
        sources = [each for each in nodes if isinstance(each.node, logical.Source)]
        assert sum(each.flow.calls for each in sources) * span == pytest.approx(made, rel=0.15)


# How far stable points are behind

widened = one.window(100)
moving = widened.by("k").aggregate(n=count())
hopped = one.windows(hopping(200, every=50)).by("k").aggregate(n=count())
mixed = one.window(200).union(one.window(20))
LAGS = {
    "snapshots on update": (physical(moving), 0),
    "snapshots on close": (physical(moving, emit="on_close"), 100),
    "snapshots behind what waits": (
        physical(moving, choices={widened: Choice(align=50)}),
        50,
    ),
    "windows": (physical(hopped), 200),
    "windows on close": (physical(hopped, emit="on_close"), 200),
    "panes": (physical(hopped, choices={hopped: Choice(windows="panes")}), 200),
    "replayed windows": (replayed(physical(hopped)), 200),
    "expanded windows": (physical(hopped, choices={hopped: Choice(windows="expand")}), 200),
    "both wait": (
        physical(hopped, emit="on_close", choices={hopped: Choice(windows="expand")}),
        400,
    ),
    "what waits, of two lengths": (physical(mixed, choices={mixed: Choice(align=INFINITY)}), 200),
    "join": (physical(one.window(50).join(one.window(80).rename(w="v"), "k")), 0),
    "last rows": (physical(one.by("k").last_rows(2)), 0),
    "grid of times": (physical(one.quantise(30)), 30),
    "shortened": (physical(one.window(50).shorten(30)), 30),
}


@pytest.mark.parametrize("name", LAGS)
def test_how_far_a_stable_is_behind_is_what_is_measured(name: str) -> None:
    plan, lag = LAGS[name]
    assert estimate(plan, Characteristics({"one": Stream(10, 1)})).lag == lag
    found = sampled(plan, steps(Random(5), {"one": Arrivals(10, 4)}, 200), lambda: 0, batch=1)
    assert found.lag is not None
    assert lag - 2 <= found.lag <= lag + 1


def test_rows_of_an_aggregate_without_groups_are_shorter_than_what_is_waited_for() -> None:
    """At the most an event's lifetime; where many overlap, no row is as long."""
    plan = physical(one.window(100).aggregate(n=count()), emit="on_close")
    assert estimate(plan, Characteristics({"one": Stream(10, 1)})).lag == 100
    found = sampled(plan, steps(Random(5), {"one": Arrivals(10, 4)}, 400), lambda: 0, batch=1)
    assert found.lag == 31


# What an estimate has, and what it takes


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


def test_an_aggregate_that_gets_nothing_has_an_estimate() -> None:
    """It has no groups, by whose number its rows were divided."""
    query = one.where(col.v > 1_000).window(9).by("k").aggregate(n=count())
    known = measured([query.plan], steps(Random(1), {"one": Arrivals(10, 4)}, 100), lambda: 0)
    assert estimate(physical(query), known).elements == 0


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
    for wrong in (b"{}", b"no", place.read_bytes().replace(b'"model": 2', b'"model": 0')):
        place.write_bytes(wrong)
        with pytest.raises(ConfigurationError, match=r"is no calibration .* calibrate"):
            read_units(place)
    with pytest.raises(ConfigurationError, match="directory"):
        read_units(tmp_path)
    with pytest.raises(ConfigurationError):
        write_units(place / "costs.json", EVEN)
