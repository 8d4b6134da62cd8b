"""The figures of the paper's evaluation (VI-C, VI-D) for this implementation: rows and pictures.

Method
    Inputs are those of `workload`, and arrive in batches of about a hundred elements as polls
    give them. Each input delivers payload objects of its own, created right before it does, as
    decoding would. *Throughput* is the paper's: events put out a second; only the merging is
    timed. *Memory* is the most that the operator holds, payloads included, traced after every
    batch, when nothing else holds a payload; in a run of its own, since tracing costs time.
    *Latency* is from the first arrival of an
    insert at any input to the output's insert of that event, element by element.

    The paper's sizes are 200,000 events and 10,000 of them active; with fewer `events` the
    active ones are fewer in proportion (`workload`).

    Lag (Figure 5) is a delay of generation, in seconds of the generator's clock: a run lasts 40 s
    whatever its size, so that with the paper's 200,000 events an input sends 5,000 a second, as
    in VI-E. It cannot be application time: an event lives 40 s of that, and while it does no
    merge may drop what a lagging input contributes to it.
"""

import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Final, Protocol

from benchmarks import workload
from benchmarks.workload import MEAN_GAP, SECOND, Batches
from lmerge_service.core import lmerge
from lmerge_service.core.baselines import LMR3Minus
from lmerge_service.core.cleanse import Cleansed
from lmerge_service.elements import Adjust, Element, Insert

__all__ = ("FIGURES", "Row", "draw", "measure")

THROUGHPUT: Final = "throughput"
MEMORY: Final = "memory"
OUTPUT: Final = "output size"
LATENCY: Final = "insert to insert"
_UNITS: Final = {
    THROUGHPUT: "k events/s",
    MEMORY: "MB",
    OUTPUT: "adjusts",
}
_INPUTS: Final = (2, 4, 6, 8, 10)
_RUN_SECONDS: Final = 40


class Merge(Protocol):
    """What is measured: the operators and their baselines alike."""

    def attach(self, name: str) -> None: ...

    def process_batch(self, name: str, elements: Iterable[Element]) -> list[Element]: ...


_MERGES: Final[dict[str, Callable[[], Merge]]] = {
    "LMR0": lambda: lmerge("R0"),
    "LMR1": lambda: lmerge("R1"),
    "LMR2": lambda: lmerge("R2"),
    "LMR3": lambda: lmerge("R3"),
    "LMR3−": LMR3Minus,
    "LMR4": lambda: lmerge("R4"),
    "C+LMR1": lambda: Cleansed(lmerge("R1")),
}
_ALL: Final = ("LMR0", "LMR1", "LMR2", "LMR3", "LMR3−", "LMR4")
_REVISING: Final = ("LMR3", "LMR3−", "LMR4", "C+LMR1")


@dataclass(frozen=True, slots=True)
class Row:
    """One point of a line of a figure, measured once or in several runs."""

    figure: str
    line: str
    x: float
    metric: str
    unit: str
    values: tuple[float, ...]

    @property
    def name(self) -> str:
        """What the row is of, for a table."""
        return f"{self.figure}: {self.metric}, {self.line}, {FIGURES[self.figure].axis} {self.x:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is measured, and the label of its axis."""

    title: str
    axis: str
    measure: Callable[[int, bool], Iterator[Row]]
    logarithmic: bool = False


def measure(name: str, events: int, runs: int) -> Iterator[Row]:
    """The rows of a figure, from so many events an input.

    Each run measures all points once, so that a machine that is slower for a while is slower for
    all of them. What does not depend on the clock (memory, output size) is measured once.
    """
    found: dict[str, Row] = {}
    for run in range(runs):
        for row in FIGURES[name].measure(events, run > 0):
            key = f"{row.name} {row.unit}"
            before = found[key].values if key in found else ()
            found[key] = replace(row, values=(*before, *row.values))
    yield from found.values()


# --- measurements ---------------------------------------------------------------------------------


def _attached(kind: str, inputs: int) -> Merge:
    merge = _MERGES[kind]()
    for number in range(inputs):
        merge.attach(str(number))
    return merge


def _throughput(kind: str, inputs: int, batches: Batches) -> float:
    """Thousand events put out a second."""
    merge = _attached(kind, inputs)
    spent, events = 0.0, 0
    gc.collect()
    for number, batch in batches:
        own = workload.with_own_payloads(batch)
        started = time.perf_counter()
        emitted = merge.process_batch(str(number), own)
        spent += time.perf_counter() - started
        events += sum(type(element) is Insert for element in emitted)
    return events / spent / 1_000


def _memory(kind: str, inputs: int, batches: Batches) -> float:
    """Megabytes that the merge holds at most between two batches."""
    peak = 0
    gc.collect()
    tracemalloc.start()
    try:
        merge = _attached(kind, inputs)
        for number, batch in batches:
            merge.process_batch(str(number), workload.with_own_payloads(batch))
            peak = max(peak, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return peak / 1e6


def _both(
    figure: str,
    kinds: Sequence[str],
    x: float,
    inputs: int,
    batches: Batches,
    again: bool,
    metrics: Sequence[str],
) -> Iterator[Row]:
    for kind in kinds:
        if MEMORY in metrics and not again:
            held = _memory(kind, inputs, batches)
            yield Row(figure, kind, x, MEMORY, _UNITS[MEMORY], (held,))
        if THROUGHPUT in metrics:
            rate = _throughput(kind, inputs, batches)
            yield Row(figure, kind, x, THROUGHPUT, _UNITS[THROUGHPUT], (rate,))


# --- figures --------------------------------------------------------------------------------------


def _figure_2(events: int, again: bool) -> Iterator[Row]:
    for inputs in _INPUTS:
        batches = workload.in_time(workload.ordered(events, inputs))
        yield from _both("fig2", _ALL, inputs, inputs, batches, again, [MEMORY])


def _figure_3(events: int, again: bool) -> Iterator[Row]:
    for inputs in _INPUTS:
        batches = workload.in_time(workload.ordered(events, inputs))
        yield from _both("fig3", _ALL, inputs, inputs, batches, again, [THROUGHPUT])


def _figure_4(events: int, again: bool) -> Iterator[Row]:
    """Three inputs; beside the output the largest input, in two forms of the query."""
    if again:
        return
    for count_in_payload, form in ((False, "lifetimes revised"), (True, "counts replaced")):
        for percent in range(0, 60, 10):
            streams = workload.sub_query(
                events, 3, disorder=percent / 100, count_in_payload=count_in_payload
            )
            merge = _attached("LMR3", len(streams))
            merged = sum(
                _adjusts(merge.process_batch(str(number), batch))
                for number, batch in workload.in_time(streams)
            )
            alone = max(_adjusts(element for _, element in stream) for stream in streams)
            unit = _UNITS[OUTPUT]
            yield Row("fig4", f"one input, {form}", percent, OUTPUT, unit, (alone,))
            yield Row("fig4", f"LMR3, {form}", percent, OUTPUT, unit, (merged,))


def _adjusts(elements: Iterable[Element]) -> int:
    return sum(type(element) is Adjust for element in elements)


def _figure_5(events: int, again: bool) -> Iterator[Row]:
    """Two of three inputs lag."""
    second = events * MEAN_GAP // _RUN_SECONDS
    for seconds in range(6):
        streams = workload.disordered(
            events,
            (0, seconds * second, seconds * second),
            stable_freq=0.001,
            lifetime=40 * SECOND,
        )
        batches = workload.in_time(streams)
        yield from _both(
            "fig5", ("LMR3", "LMR3−", "LMR4"), seconds, len(streams), batches, again, [THROUGHPUT]
        )


def _figure_6(events: int, again: bool) -> Iterator[Row]:
    """Three ordered inputs, so that all variants take part."""
    for percent in (0.001, 0.01, 0.1, 1):
        batches = workload.in_time(workload.ordered(events, 3, percent / 100))
        yield from _both("fig6", _ALL, percent, 3, batches, again, [MEMORY, THROUGHPUT])


def _figure_7(events: int, again: bool) -> Iterator[Row]:
    for inputs in _INPUTS:
        batches = workload.in_time(workload.sub_query(events, inputs))
        yield from _both("fig7", _REVISING, inputs, inputs, batches, again, [MEMORY, THROUGHPUT])


def _latency(events: int, again: bool) -> Iterator[Row]:
    """Three inputs of Figure 7's, element by element in order of sending."""
    streams = workload.sub_query(events, 3)
    arrivals = [(at, n, e) for n, stream in enumerate(streams) for at, e in stream]
    arrivals.sort(key=lambda arrival: arrival[:2])
    for kind in ("LMR3", "C+LMR1"):
        waits = _waits(kind, arrivals)
        for number, unit in enumerate(("elements", "s of application time", "µs")):
            for what, of in (("mean", fmean), ("median", median)):
                value = of(wait[number] for wait in waits)
                yield Row("latency", f"{kind}, {what}", 3, LATENCY, unit, (value,))


def _waits(
    kind: str, arrivals: Sequence[tuple[int, int, Element]]
) -> list[tuple[float, float, float]]:
    """Per event put out: the elements that arrived meanwhile, and the time that passed, in
    seconds by the inputs' clock and in microseconds by ours."""
    merge = _attached(kind, 3)
    arrived: dict[tuple[Hashable, int], tuple[int, int, float]] = {}
    waits: list[tuple[float, float, float]] = []
    for position, (at, number, element) in enumerate(arrivals):
        (own,) = workload.with_own_payloads([element])
        now = time.perf_counter()
        if isinstance(own, Insert):
            arrived.setdefault((own.payload, own.vs), (position, at, now))
        for emitted in merge.process_batch(str(number), (own,)):
            if isinstance(emitted, Insert):
                since, then, before = arrived[emitted.payload, emitted.vs]
                wall = (time.perf_counter() - before) * 1e6
                waits.append((position - since, (at - then) / SECOND, wall))
    return waits


FIGURES: Final = {
    "fig2": Figure("Memory, ordered inputs without adjusts", "inputs", _figure_2),
    "fig3": Figure("Throughput, ordered inputs without adjusts", "inputs", _figure_3),
    "fig4": Figure("Adjusts put out, 3 inputs", "disorder, %", _figure_4),
    "fig5": Figure("Throughput, 2 of 3 inputs lag", "lag, s", _figure_5),
    "fig6": Figure("Frequency of stables, 3 inputs", "StableFreq, %", _figure_6, logarithmic=True),
    "fig7": Figure("50 % disorder, 36 % adjusts", "inputs", _figure_7),
    "latency": Figure("Latency, 50 % disorder, 36 % adjusts", "inputs", _latency),
}
"""By name; "latency" (VI-D 3) is a table in the paper's prose, and has no picture."""


# --- pictures -------------------------------------------------------------------------------------

_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
_MARKS: Final = "osD^v*"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws the medians of one figure's rows as SVG, a panel per metric; same rows, same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    figure = FIGURES[rows[0].figure]
    panels = list(Counter((row.metric, row.unit) for row in rows))
    with rc_context({"svg.hashsalt": rows[0].figure, "svg.fonttype": "none", "font.size": 9}):
        canvas = Canvas(figsize=(0.4 + 4.2 * len(panels), 3.2), layout="constrained")
        canvas.suptitle(figure.title, fontsize=10)
        for number, (metric, unit) in enumerate(panels, 1):
            axes = canvas.add_subplot(1, len(panels), number)
            chosen = [row for row in rows if row.metric == metric]
            for k, line in enumerate(Counter(row.line for row in chosen)):
                points = [(row.x, median(row.values)) for row in chosen if row.line == line]
                axes.plot(
                    *zip(*points, strict=True),
                    label=line,
                    color=_COLOURS[k % len(_COLOURS)],
                    marker=_MARKS[k % len(_MARKS)],
                    linestyle="--" if k % 2 else "-",  # lines that coincide both show
                    markersize=4,
                    linewidth=1.2,
                )
            axes.set_xlabel(figure.axis)
            axes.set_ylabel(f"{metric}, {unit}")
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, linewidth=0.3)
            if figure.logarithmic:
                axes.set_xscale("log")
            axes.legend(fontsize=7, framealpha=0.6)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, format="svg", metadata={"Date": None})
