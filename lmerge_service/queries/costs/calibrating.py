"""Measures what units of work and entries of state cost on this machine.

Theory
    Each of a set of small plans, whose streams are known, runs over facts that are drawn, and each
    of its operators is timed. The model says how much work of which unit that was. The unit costs
    are those, none of them negative, that make of this work what was measured, with the least sum
    of squares of relative errors. So a unit is what the model calls so: what it counts wrongly
    everywhere, its cost makes up for. State is measured by what the interpreter has allocated
    when a plan has taken in all, the rows that it holds among it.

Cost
    Half a minute to a minute of processor time. Other work on the machine makes it longer, and the
    costs a little higher, all alike.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
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
from lmerge_service.queries.sampling import batches

__all__ = ("Trial", "calibrated", "drawn", "trials")

_EVENTS: Final = 800
_GAP: Final = 10
_VALUES: Final = 100
_RUNS: Final = 3
_ROUNDS: Final = 100
_FIELDS: Final = {"k": int, "v": int}
_one, _two = (facts(name, time="t", fields=_FIELDS) for name in ("one", "two"))
_right = _two.rename(w="v")

_EMITS: Final[tuple[Emit, ...]] = ("on_update", "on_close")

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan, how many keys its facts have, how many it takes in at once, and how many of its first
    source come for one of the other."""

    plan: PhysicalPlan
    keys: int = 20
    batch: int = 100
    often: int = 1


def calibrated(
    clock: Clock, progress: Callable[[int, int], None] = lambda _a, _b: None
) -> UnitCosts:
    """The costs by a clock of the processor's nanoseconds; `progress` is called with how many
    runs of how many are done."""
    timed = [_Timed(trial) for trial in trials()]
    for number in range(_RUNS):
        for at, each in enumerate(timed):
            each.run(clock)
            progress(number * len(timed) + at + 1, _RUNS * len(timed))
    work = [of_node for each in timed for of_node in each.work()]
    nanoseconds = _fitted(work)
    ratios = [
        max(made / took, took / made) - 1
        for counts, took in work
        if (made := sum(nanoseconds[unit] * number for unit, number in counts.items()))
    ]
    return UnitCosts(nanoseconds, _bytes(), median(ratios))


def trials() -> Iterator[Trial]:
    """Plans of every unit, each unit in several proportions to others."""
    yield from _stateless()
    yield from _paired()
    yield from _aggregated()
    yield from _windowed()
    yield from _idle()


def _stateless() -> Iterator[Trial]:
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
            yield Trial(physical(query), batch=batch)
    for align in (INFINITY, 100):
        yield Trial(physical(_one, align=align))
        yield Trial(physical(_one.window(200), align=align))


def _paired() -> Iterator[Trial]:
    for keys in (5, 50):
        for width in (100, 400):
            often = 1 if (keys == 5) == (width == 100) else 8
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
                yield Trial(physical(query), keys, often=often)
        for rows in (1, 4):
            yield Trial(physical(_one.by("k").last_rows(rows)), keys)
            yield Trial(physical(_one.last_rows(rows)), keys)


def _aggregated() -> Iterator[Trial]:
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
                yield Trial(physical(query, emit=emit))
        yield Trial(physical(moving.by("k").aggregate(n=count())), 200)
        yield Trial(physical(moving.aggregate(n=count())), batch=10)
        for emit in emits:
            for query in (
                moving.by("k").aggregate(n=count()),
                moving.by("k").aggregate(m=max_("v")),
            ):
                yield Trial(physical(query, emit=emit), batch=4)


def _windowed() -> Iterator[Trial]:
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
                    yield Trial(chosen)
        counted = windowed.by("k").aggregate(n=count())
        for plan in plans:
            few = physical(counted, emit="on_close", choices={counted: Choice(windows=plan)})
            yield Trial(few, batch=4)
        yield Trial(physical(counted), batch=4)
        yield Trial(physical(counted), keys=200)
        for emit in _EMITS:
            yield Trial(physical(counted, emit=emit, choices={counted: Choice(windows="replay")}))
    over = _one.window(100).windows(hopping(200, every=50)).by("k").aggregate(n=count())
    yield from (Trial(physical(over, emit=emit)) for emit in _EMITS)


def _idle() -> Iterator[Trial]:
    """Operators that are given hardly more than stable points: what a batch takes by itself."""
    few = col.v < 5
    one, other = _one.where(few).window(100), _right.where(col.w < 5).window(100)
    for query in (
        one.join(other, "k"),
        one.semi_join(other, "k"),
        one.clip(other, "k"),
        one.select("k").distinct(),
        one.select("k").except_(other.select("k")),
        one.by("k").aggregate(n=count()),
        _one.where(few).by("k").last_rows(1),
        _one.where(few).windows(tumbling(200)).by("k").aggregate(n=count()),
    ):
        yield Trial(physical(query), batch=2)


def drawn(trial: Trial, events: int) -> Iterator[Step]:
    """Facts, each with a stable behind it; which source is next is left to chance, as the model of
    batches has it."""
    rng, names, at = Random(f"{trial.keys}"), sorted(logical.sources(trial.plan.plan)), 0.0
    for _ in range(events):
        at += rng.expovariate(len(names) / _GAP)
        row = (rng.randrange(trial.keys), rng.randrange(_VALUES))
        event = Insert(row, int(at), int(at) + 1)
        (name,) = rng.choices(names, [trial.often, 1][: len(names)])
        yield Step("", name, [event, Stable(int(at))])


# Time


class _Timed:
    """A trial, and how long each of its operators took for each batch: the least of several runs.
    All trials run once, then all again, since other work makes the machine slower, for
    milliseconds or seconds."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._steps = list(drawn(trial, _EVENTS))
        self._fastest: list[list[int]] = []

    def run(self, clock: Clock) -> None:
        """Once more."""
        gc.collect()
        times = [*_batch_times(self._trial, self._steps, clock)]
        known = self._fastest or times
        self._fastest = [[*map(min, *both)] for both in zip(times, known, strict=True)]

    def work(self) -> Iterator[tuple[Mapping[str, float], float]]:
        """The work of each node, and its time."""
        trial, steps = self._trial, self._steps
        span = steps[-1].elements[0].vs - steps[0].elements[0].vs  # type: ignore[union-attr]
        known = measured([trial.plan.plan], steps, lambda: 0, trial.batch)
        nodes = estimate(trial.plan, known).nodes
        in_all = [sum(each) for each in zip(*self._fastest, strict=True)]
        for node, times in _by_node(trial.plan, nodes, in_all):
            if took := sum(times):
                yield {unit: n * span for unit, n in node.work.items()}, float(took)


def _batch_times(trial: Trial, steps: Sequence[Step], clock: Clock) -> Iterator[list[int]]:
    """Nanoseconds of each operator for each batch."""
    network = trial.plan.begin(clock)
    before = [0] * len(network.flows)
    for batch in batches(steps, trial.batch):
        for name, given in batch:
            network.process_batch(name, given)
        spent = [flow.nanoseconds for flow in network.flows]
        yield [*map(sub, spent, before)]
        before = spent


def _by_node(
    plan: PhysicalPlan, nodes: Sequence[NodeEstimate], times: list[int]
) -> Iterator[tuple[NodeEstimate, list[int]]]:
    """The times of the operators that compute each node, which stand in the same order."""
    choices = dict(plan.choices)
    for each in nodes:
        choice = choices.get(each.node, Choice())
        facts_below = isinstance(each.node, logical.Source)
        number = (0 if facts_below else 1) + (choice.align is not None)
        number += choice.windows == "expand"
        yield each, [times.pop(0) for _ in range(number)]


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
        found[kind].append(_allocated(Trial(plan, keys=50)))
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


def _allocated(trial: Trial) -> float:
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


def _batches(trial: Trial) -> Iterator[tuple[str, list[Element]]]:
    """Facts, and lasting events of a topic, as they are taken in: in batches by source."""
    found = logical.sources(trial.plan.plan)
    waiting: dict[str, list[Element]] = {}
    for step in drawn(trial, _EVENTS):
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
