"""Queries: rates of operators, what a stable costs, memory per live event, beside two libraries.

Networks take batches of 4,000 elements, each with a stable at its end, built beforehand; rates are
of elements in, and of those out where they are more. Where Bytewax or Polars can do the same work
(the extra `comparison`; left out if they are not installed), they do it in turns with ours, on the
same rows:

    Bytewax   a stream processor in Rust and Python: operators of Python functions, one item at a
              time; windows by event time. A window emits once, when it is closed, and what is late
              after that is dropped: no revision, no retraction, no join of lifetimes, no snapshots.
    Polars    dataframes in Rust, in batch: it sees all rows at once, and would do all of it again
              for one that is corrected. It bounds what a columnar engine could reach.
"""

import gc
import importlib.util
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import median
from typing import Any, Final

from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.merge.tuning import without_garbage_collector
from lmerge_service.queries.expressions import col
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import build, physical
from lmerge_service.queries.plan import Query, count, elements, facts, hopping, max_, sum_, tumbling
from lmerge_service.queries.plan_switch import RunningQuery

__all__ = ("delays", "flight_batches", "run")

Report = Callable[[str, str, Sequence[float]], None]
Clock = Callable[[], float]
Batches = list[tuple[str, list[Element]]]

_BATCH: Final = 4_000
_ALIVE: Final = 10
_PERIOD, _EVERY, _SIZE = 30, 20, 60

flights = facts("flights", time="time", fields={"origin": str, "carrier": str, "delay": int})
left = elements("left", {"key": int, "one": str})
right = elements("right", {"key": int, "two": str})
rows = elements("rows", {"key": int})
others = elements("others", {"key": int})
calls = facts("calls", time="time", fields={"key": int})

late = flights.where(col.delay > 15).select("origin", late=col.delay - 15)
pairs = left.join(right, "key")
delays = (
    flights.windows(hopping(_SIZE, every=_EVERY))
    .by("origin")
    .aggregate(flights=count(), delay=sum_("delay"), longest=max_("delay"))
)
alive = rows.aggregate(n=count())
rest = rows.except_all(others)
both = rows.intersect(others)
distinct = rows.distinct()
switched = {
    "selection": rows.where(col.key >= 0),
    "distinct": distinct,
    "join": pairs,
    "count of as many groups": rows.by("key").aggregate(n=count()),
    "windows of as many groups": calls.windows(tumbling(_SIZE)).by("key").aggregate(n=count()),
}


@dataclass(slots=True)
class _Rates:
    """Rates of one kind of work by who does it, run after run."""

    taken: int
    clock: Clock
    values: dict[str, list[float]] = field(default_factory=dict)

    def time(self, who: str, work: Callable[[], int]) -> None:
        """Times a piece of work; it returns how many elements or rows it has put out."""
        gc.collect()
        begun = self.clock()
        emitted = work()
        took = self.clock() - begun
        self.values.setdefault(who, []).append(self.taken / took)
        if emitted > 2 * self.taken:
            self.values.setdefault(f"{who}, out", []).append(emitted / took)

    def report(self, name: str, report: Report) -> None:
        for who, values in self.values.items():
            report(f"{name}: {who}", "elements/s", values)


def run(
    runs: int,
    size: int,
    live: Sequence[int],
    report: Report,
    clock: Clock = time.perf_counter,
) -> None:
    """Each measure so many times, over about `size` elements, or beside so many live events."""
    given = _flights(size)
    facts_in = flight_batches(size)
    half, some = size // 2, size // 4
    _alternating(
        "select, project",
        runs,
        late,
        facts_in,
        report,
        clock,
        bytewax=lambda: _bytewax_select(given),
        polars=_polars_select(given),
    )
    _alternating(
        f"windows of {_SIZE} every {_EVERY} by origin, on update",
        runs,
        delays,
        facts_in,
        report,
        clock,
        bytewax=lambda: _bytewax_windows(given),
        polars=_polars_windows(given),
    )
    mine = _batches("left", [Insert((n, "one"), n, n + _ALIVE) for n in range(half)])
    theirs = _batches("right", [Insert((n, "two"), n, n + _ALIVE) for n in range(half)])
    _alternating("equi-join, one match each", runs, pairs, _in_turns(mine, theirs), report, clock)
    _alternating(
        f"snapshot count, {_ALIVE} alive",
        runs,
        alive,
        _batches("rows", [Insert((n % 1_000,), n, n + _ALIVE) for n in range(some)]),
        report,
        clock,
        polars=_polars_snapshots(some),
    )
    # Events of a payload overlap by half; the other input has a fifth of the time.
    ours = _batches("rows", [Insert((n % 1_000,), n, n + 1_500) for n in range(half)])
    less = _batches("others", [Insert((n % 1_000,), n + 300, n + 600) for n in range(half)])
    _alternating("distinct", runs, distinct, ours, report, clock)
    for name, query in {"intersect": both, "except_all": rest}.items():
        _alternating(name, runs, query, _in_turns(ours, less), report, clock)
    for name, query in {"join": pairs, "snapshot count": alive, "except_all": rest}.items():
        _stables(name, query, live, report, clock)
    for name, query in {
        "join": pairs,
        "snapshot count": alive,
        "distinct": distinct,
        "except_all": rest,
        "windows, an open one each": delays,
    }.items():
        values = [_memory(query, live[-1] // 5) for _ in range(runs)]
        report(f"memory per live event: {name}", "bytes", values)
    for name, query in switched.items():
        values = [_switch(query, live[-1], clock) for _ in range(runs)]
        report(f"another plan goes on, {live[-1]:,} live events: {name}", "s", values)


def _in_turns(one: Batches, two: Batches) -> Batches:
    return [batch for both in zip(one, two, strict=True) for batch in both]


def _flights(size: int) -> list[Insert[Any]]:
    """Facts in about the order of time, 30 per unit of it; every twentieth comes late."""
    rng = Random(7)
    carriers = [f"{a}{b}" for a in "ABCD" for b in "AWXY"]
    given = []
    for n in range(size):
        t = n // _PERIOD - (rng.randrange(5) if not n % 20 else 0)
        row = (rng.choice(("EWR", "JFK", "LGA")), rng.choice(carriers), rng.randrange(-10, 60))
        given.append(Insert(row, t, t + 1))
    return given


def flight_batches(size: int) -> Batches:
    """So many facts of flights, in batches."""
    return _batches("flights", _flights(size))


def _batches(source: str, given: Sequence[Insert[Any]]) -> Batches:
    """Batches with a stable at the end of each that none behind it breaks."""
    least, stables = [], 1 << 60
    parts = [list(given[at : at + _BATCH]) for at in range(0, len(given), _BATCH)]
    for part in reversed(parts):
        least.append(stables)
        stables = min(stables, *(element.vs for element in part))
    ends = [*least[:0:-1], given[-1].vs + 1]
    return [(source, [*part, Stable(end)]) for part, end in zip(parts, ends, strict=True)]


def _alternating(
    name: str,
    runs: int,
    query: Query,
    batches: Batches,
    report: Report,
    clock: Clock,
    **libraries: Callable[[], int] | None,
) -> None:
    rates = _Rates(sum(len(batch) - 1 for _, batch in batches), clock)
    for _ in range(runs):
        rates.time("ours", lambda: _fed(build(query), batches))
        for library, work in libraries.items():
            if work is not None and importlib.util.find_spec(library):
                rates.time(library, work)
    rates.report(name, report)


def _fed(network: Network, batches: Batches) -> int:
    return sum(len(network.process_batch(source, batch)) for source, batch in batches)


# What a stable costs, and an event that lives


def _stables(name: str, query: Query, live: Sequence[int], report: Report, clock: Clock) -> None:
    """How fast stables are, each behind one event that ends, beside so many that live on."""
    rates: dict[int, list[float]] = {each: [] for each in live}
    for _ in range(3):
        for each in live:
            rates[each].append(_rate_of_stables(query, each, min(4_000, live[-1]), clock))
    for each, values in rates.items():
        report(f"stables beside {each:,} live events: {name}", "stables/s", values)
    ratio = median(rates[live[-1]]) / median(rates[live[0]])
    report(f"stables, {live[-1]:,} live events to {live[0]:,}: {name}", "", [ratio])


def _rate_of_stables(query: Query, live: int, steps: int, clock: Clock) -> float:
    network = _holding(query, live)
    first = live + 1
    sources = network.sources
    fed: Batches = []
    for n in range(steps):
        event = Insert(_row(sources[0], live + n), first + n, first + n + 1)
        fed.append((sources[0], [event, Stable(first + n)]))
        fed += [(source, [Stable(first + n)]) for source in sources[1:]]
    gc.collect()
    begun = clock()
    _fed(network, fed)
    return steps / (clock() - begun)


def _holding(query: Query, live: int) -> Network:
    """A network with so many events that have begun and end far ahead, one per unit of time."""
    network = build(query)
    source = network.sources[0]
    far = 1 << 40
    step = 1 if source != "flights" else _SIZE
    end = 1 if source == "flights" else far
    given: list[Element] = [
        Insert(_row(source, n), n * step, n * step + n % 7 + end) for n in range(live)
    ]
    for at in range(0, live, _BATCH):
        network.process_batch(source, given[at : at + _BATCH])
    return network


def _row(source: str, n: int) -> tuple[Any, ...]:
    if source == "flights":
        return ("JFK", "AA", n % 60)
    return (n,) if source in ("rows", "others") else (n, source)


def _memory(query: Query, live: int) -> float:
    """Bytes that a live event takes, its payload among them; of windows, an open one."""
    gc.collect()
    tracemalloc.start()
    network = _holding(query, live)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del network
    return taken / live


def _switch(query: Query, live: int, clock: Clock) -> float:
    """Seconds until a new network has processed as many live events, and goes on with the output of
    the old one, which it does not change."""
    running = RunningQuery(physical(query))
    sources = running.network.sources
    history: dict[str, list[Element]] = {}
    for source in sources:
        given: list[Element] = []
        for n in range(live // len(sources)):
            row, begin = (n,) if source == "calls" else _row(source, n), n % (_SIZE - 1)
            given.append(Insert(row, begin, begin + (1 if source == "calls" else 1 << 40)))
        history[source] = [*given, Stable(_SIZE - 1)]
        running.process_batch(source, history[source])
    gc.unfreeze()  # else the state of the run before would stay
    gc.collect()
    with without_garbage_collector():
        begun = clock()
        changes = running.switch_plan(physical(query), history)
        took = clock() - begun
    assert not changes, changes[:3]
    return took


# The libraries


def _bytewax_select(given: list[Insert[Any]]) -> int:
    import bytewax.operators as op

    def flow(stream: Any) -> Any:
        kept = op.filter("where", stream, lambda each: each.payload[2] > 15)
        return op.map("select", kept, lambda each: (each.payload[0], each.payload[2] - 15))

    return _bytewax(flow, given)


def _bytewax_windows(given: list[Insert[Any]]) -> int:
    import bytewax.operators as op
    from bytewax.operators import windowing

    start = datetime(2013, 1, 1, tzinfo=UTC)
    clock = windowing.EventClock(
        ts_getter=lambda each: start + timedelta(seconds=each.vs),
        wait_for_system_duration=timedelta(seconds=5),
        now_getter=lambda: start,  # so that no fact waits for, or misses, the wall clock
    )
    windower = windowing.SlidingWindower(
        length=timedelta(seconds=_SIZE), offset=timedelta(seconds=_EVERY), align_to=start
    )

    def folded(state: tuple[int, int, int], each: Any) -> tuple[int, int, int]:
        delay = each.payload[2]
        return (state[0] + 1, state[1] + delay, max(state[2], delay))

    def merged(one: tuple[int, int, int], two: tuple[int, int, int]) -> tuple[int, int, int]:
        return (one[0] + two[0], one[1] + two[1], max(one[2], two[2]))

    def flow(stream: Any) -> Any:
        keyed = op.key_on("by", stream, lambda each: each.payload[0])
        return windowing.fold_window(
            "windows", keyed, clock, windower, lambda: (0, 0, -(1 << 60)), folded, merged
        ).down

    return _bytewax(flow, given)


def _bytewax(flow: Callable[[Any], Any], given: list[Any]) -> int:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    found: list[Any] = []
    whole = Dataflow("comparison")
    stream = op.input("in", whole, TestingSource(given, batch_size=_BATCH))
    op.output("out", flow(stream), TestingSink(found))
    run_main(whole)
    return len(found)


def _frame(given: list[Insert[Any]]) -> Any:
    import polars

    start = datetime(2013, 1, 1)  # noqa: DTZ001 (a column of plain times)
    return polars.DataFrame(
        {
            "time": [start + timedelta(seconds=each.vs) for each in given],
            "origin": [each.payload[0] for each in given],
            "delay": [each.payload[2] for each in given],
        }
    )


def _polars_select(given: list[Insert[Any]]) -> Callable[[], int] | None:
    if not importlib.util.find_spec("polars"):
        return None
    import polars

    frame = _frame(given)
    delay = polars.col("delay")
    return lambda: len(frame.filter(delay > 15).select("origin", late=delay - 15))


def _polars_windows(given: list[Insert[Any]]) -> Callable[[], int] | None:
    if not importlib.util.find_spec("polars"):
        return None
    import polars

    frame, delay = _frame(given), polars.col("delay")
    values = (polars.len(), delay.sum().alias("sum"), delay.max().alias("longest"))
    return lambda: len(
        frame.sort("time")
        .group_by_dynamic("time", every=f"{_EVERY}s", period=f"{_SIZE}s", group_by="origin")
        .agg(*values)
    )


def _polars_snapshots(size: int) -> Callable[[], int] | None:
    if not importlib.util.find_spec("polars"):
        return None
    import polars

    starts = polars.DataFrame({"t": range(size), "n": [1] * size})
    ends = polars.DataFrame({"t": range(_ALIVE, size + _ALIVE), "n": [-1] * size})
    n = polars.col("n")
    return lambda: len(
        polars.concat([starts, ends]).group_by("t").agg(n.sum()).sort("t").with_columns(n.cum_sum())
    )
