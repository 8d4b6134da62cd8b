"""Measures what units of work and entries of state cost on this machine.

Theory
    Each of a set of small plans, whose streams are known, runs over facts that are drawn, and each
    of its operators is timed. The model says how much work of which unit that was. The unit costs
    are those, none of them negative, that make of this work what was measured, with the least sum
    of squares of relative errors. So a unit is what the model calls so: what it counts wrongly
    everywhere, its cost makes up for. State is measured by what the interpreter has allocated
    when a plan has taken in all, the rows that it holds among it.

Cost
    A few seconds of processor time; it should have the machine for itself.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median
from typing import Final

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.costs.estimating import NodeEstimate, estimate
from lmerge_service.queries.costs.measuring import measured
from lmerge_service.queries.costs.units import KINDS, UNITS, UnitCosts
from lmerge_service.queries.expressions import col
from lmerge_service.queries.physical import Choice, Emit, PhysicalPlan, WindowPlan, physical
from lmerge_service.queries.plan import (
    average,
    count,
    elements,
    facts,
    hopping,
    max_,
    sum_,
    tumbling,
)
from lmerge_service.queries.sampling import OperatorSample, sampled

__all__ = ("calibrated",)

_EVENTS: Final = 800
_GAP: Final = 10
_VALUES: Final = 100
_RUNS: Final = 2
_ROUNDS: Final = 100
_FIELDS: Final = {"k": int, "v": int}
_one, _two = (facts(name, time="t", fields=_FIELDS) for name in ("one", "two"))
_right = _two.rename(w="v")

_EMITS: Final[tuple[Emit, ...]] = ("on_update", "on_close")

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class _Trial:
    """A plan, how many keys its facts have, and how many it takes in at once."""

    plan: PhysicalPlan
    keys: int = 20
    batch: int = 100


def calibrated(
    clock: Clock, progress: Callable[[int, int], None] = lambda _a, _b: None
) -> UnitCosts:
    """The costs by a clock of the processor's nanoseconds; `progress` is called with how many
    plans of how many have run."""
    trials = list(_trials())
    work: list[tuple[Mapping[str, float], float]] = []
    for at, trial in enumerate(trials):
        work += _timed(trial, clock)
        progress(at + 1, len(trials))
    nanoseconds = _fitted(work)
    ratios = [
        max(made / took, took / made) - 1
        for counts, took in work
        if (made := sum(nanoseconds[unit] * number for unit, number in counts.items()))
    ]
    return UnitCosts(nanoseconds, _bytes(), median(ratios))


def _trials() -> Iterator[_Trial]:
    """Plans of every unit, each unit in several proportions to others."""
    yield from _stateless()
    yield from _paired()
    yield from _aggregated()
    yield from _windowed()


def _stateless() -> Iterator[_Trial]:
    below = col.v < 50
    for query in (
        _one.where(below),
        _one.where(below & (col.v > 1) & (col.v != 7) & (col.k >= 0)),
        _one.select("k"),
        _one.select("k", v=col.v + 1, w=col.v * 2, x=col.k + col.v),
        _one.window(50),
        _one.quantise(50),
        _one.union(_one.where(col.v < 20)),
        elements("one", _FIELDS),
    ):
        for batch in (100, 5):
            yield _Trial(physical(query), batch=batch)
    for align in (INFINITY, 100):
        yield _Trial(physical(_one, align=align))
        yield _Trial(physical(_one.window(200), align=align))


def _paired() -> Iterator[_Trial]:
    for keys in (5, 50):
        for width in (100, 400):
            left, right = _one.window(width), _right.window(width)
            for query in (
                left.join(right, "k"),
                left.join(right, "k", where=col.v < col.w),
                left.join(right, "k", where=col.v + 90 < col.w),
                left.semi_join(right, "k"),
                left.anti_join(right, "k"),
                left.clip(right, "k"),
                left.select("k").distinct(),
                left.select("k").coalesce(),
                left.select("k").except_(right.select("k")),
                left.select("k").intersect_all(right.select("k")),
            ):
                yield _Trial(physical(query), keys)
        for rows in (1, 4):
            yield _Trial(physical(_one.by("k").last_rows(rows)), keys)
            yield _Trial(physical(_one.last_rows(rows)), keys)


def _aggregated() -> Iterator[_Trial]:
    emits: tuple[Emit, ...] = ("on_update", "ordered", "on_close")
    for width in (50, 400):
        moving = _one.window(width)
        for query in (
            moving.by("k").aggregate(n=count()),
            moving.by("k").aggregate(n=count(), s=sum_("v"), m=average("v")),
            moving.by("k").aggregate(m=max_("v")),
            moving.aggregate(n=count()),
            moving.aggregate(n=count(), m=max_("v")),
            _one.quantise(width).by("k").aggregate(n=count(), s=sum_("v")),
        ):
            for emit in emits if width == 400 else ("on_update",):
                yield _Trial(physical(query, emit=emit))
        yield _Trial(physical(moving.by("k").aggregate(n=count())), 200)
        yield _Trial(physical(moving.aggregate(n=count())), batch=10)


def _windowed() -> Iterator[_Trial]:
    plans: tuple[WindowPlan, ...] = ("grid", "panes", "expand")
    for grid in (tumbling(200), hopping(600, every=50)):
        windowed = _one.windows(grid)
        for query in (
            windowed.by("k").aggregate(n=count()),
            windowed.by("k").aggregate(n=count(), s=sum_("v"), m=average("v")),
            windowed.aggregate(n=count(), m=max_("v")),
        ):
            for plan in plans:
                for emit in _EMITS:
                    chosen = physical(query, emit=emit, choices={query: Choice(windows=plan)})
                    yield _Trial(chosen)
        counted = windowed.by("k").aggregate(n=count())
        yield _Trial(physical(counted), keys=200)
        for emit in _EMITS:
            yield _Trial(physical(counted, emit=emit, choices={counted: Choice(windows="replay")}))
    over = _one.window(100).windows(hopping(200, every=50)).by("k").aggregate(n=count())
    yield from (_Trial(physical(over, emit=emit)) for emit in _EMITS)


def _drawn(trial: _Trial, events: int) -> Iterator[Step]:
    """Facts, of all sources in turn, each with a stable behind it."""
    rng, names, at = Random(f"{trial.keys}"), sorted(logical.sources(trial.plan.plan)), 0.0
    for number in range(events):
        at += rng.expovariate(len(names) / _GAP)
        row = (rng.randrange(trial.keys), rng.randrange(_VALUES))
        event = Insert(row, int(at), int(at) + 1)
        yield Step("", names[number % len(names)], [event, Stable(int(at))])


# Time


def _timed(trial: _Trial, clock: Clock) -> Iterator[tuple[Mapping[str, float], float]]:
    """The work of each node, and its time: the least of several runs."""
    steps = list(_drawn(trial, _EVENTS))
    span = steps[-1].elements[0].vs - steps[0].elements[0].vs  # type: ignore[union-attr]
    known = measured([trial.plan.plan], steps, lambda: 0, trial.batch)
    found = estimate(trial.plan, known)
    runs = []
    for _ in range(_RUNS):
        gc.collect()
        runs.append(sampled(trial.plan, steps, clock, batch=trial.batch).operators)
    fastest = [min(each.nanoseconds for each in same) for same in zip(*runs, strict=True)]
    for node, operators in _by_node(
        trial.plan, found.nodes, list(zip(fastest, runs[0], strict=True))
    ):
        took = sum(nanoseconds for nanoseconds, _ in operators)
        if took:
            yield {unit: n * span for unit, n in node.work.items()}, float(took)


def _by_node(
    plan: PhysicalPlan,
    nodes: Sequence[NodeEstimate],
    operators: list[tuple[int, OperatorSample]],
) -> Iterator[tuple[NodeEstimate, list[tuple[int, OperatorSample]]]]:
    """The operators that compute each node, which stand in the same order."""
    choices = dict(plan.choices)
    for each in nodes:
        choice = choices.get(each.node, Choice())
        facts_below = isinstance(each.node, logical.Source)
        number = (0 if facts_below else 1) + (choice.align is not None)
        number += choice.windows == "expand"
        yield each, [operators.pop(0) for _ in range(number)]


def _fitted(rows: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Least squares of relative errors without negative costs, unit by unit until all stay."""
    found = dict.fromkeys(UNITS, 0.0)
    shares = [{unit: n / took for unit, n in counts.items()} for counts, took in rows]
    errors = [1.0] * len(rows)
    of_unit = {
        unit: [(at, share[unit]) for at, share in enumerate(shares) if share.get(unit)]
        for unit in UNITS
    }
    for _ in range(_ROUNDS):
        most = 0.0
        for unit, uses in of_unit.items():
            squares = sum(share * share for _, share in uses)
            if not squares:
                continue
            step = sum(share * errors[at] for at, share in uses) / squares
            step = max(step, -found[unit])
            found[unit] += step
            most = max(most, abs(step))
            for at, share in uses:
                errors[at] -= share * step
        if most < 1e-3:
            break
    return found


# Memory


def _bytes() -> dict[str, float]:
    """Of an entry of each kind, on average over plans that hold little else."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind, plan in _holding():
        found[kind].append(_allocated(_Trial(plan, keys=50)))
    return {kind: fmean(each) for kind, each in found.items()}


def _holding() -> Iterator[tuple[str, PhysicalPlan]]:
    long, other = _one.window(8_000), _right.window(8_000)
    yield "element", physical(elements("one", _FIELDS))
    yield "align", physical(long, align=INFINITY)
    yield "join", physical(long.join(other, "k", where=col.v > col.w + 98))
    yield "support", physical(long.semi_join(other, "k"))
    yield "clip", physical(long.clip(_right.where(col.w < 2), "k"))
    yield "layer", physical(long.select("k").coalesce())
    yield "last", physical(_one.by("k").last_rows(20))
    windows = _one.windows(hopping(8_000, every=400)).by("k")
    counted = windows.aggregate(n=count())
    yield "fact", physical(counted, choices={counted: Choice(windows="replay")})
    for emit in _EMITS:
        yield "cell", physical(long.by("k").aggregate(n=count(), s=sum_("v")), emit=emit)
        yield "window", physical(windows.aggregate(n=count(), s=sum_("v")), emit=emit)


def _allocated(trial: _Trial) -> float:
    """Bytes for each entry that a plan holds in the end, with the rows in them."""
    network = trial.plan.begin()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name, batch in _batches(trial):
            network.process_batch(name, batch)
            del batch
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / max(len(network), 1)


def _batches(trial: _Trial) -> Iterator[tuple[str, list[Element]]]:
    """Facts, and lasting events of a topic, as they are taken in: in batches by source."""
    found = logical.sources(trial.plan.plan)
    waiting: dict[str, list[Element]] = {}
    for step in _drawn(trial, _EVENTS):
        lasts = isinstance(found[step.source], logical.Elements)
        waiting.setdefault(step.source, []).extend(
            map(_lasting, step.elements) if lasts else step.elements
        )
        if len(waiting[step.source]) >= trial.batch:
            yield step.source, waiting.pop(step.source)
    yield from waiting.items()


def _lasting(element: Element) -> Element:
    if isinstance(element, Insert):
        return Insert(element.payload, element.vs, element.vs + 8_000)
    return element
