"""What each policy costs and brings: how much it emits, how soon, and how far behind.

Method
    Every combination of insert, adjust and stable (docs/semantics.md, "Policies") merges the same
    three inputs under LMR3, element by element in order of sending, and has to end with the
    logical TDB. The inputs are those of `workload.sub_query`, with 20, 35 and 50 % disorder, a
    stable after 1 % of the elements, and sent 0, 5 and 15 minutes late; windows are 10 minutes,
    late elements up to 50 minutes late. Half of the results are revised by their ends, the other
    half are replaced: what stood before is a phantom that has to be removed.
    A result stands for a twentieth of the run per event that it counts, so that waits for an end
    to fall due grow with `events`.

    Counted are the elements put out per 1,000 logical events; a removal is no adjust here. Times
    are application time, so that the same code gives the same figures on any machine:

    first    from the first insert at any input until the output has inserted the event. 0 for
             insert=first, by definition.
    final    from when the first input has the final version until the output has it for good. An
             output that has it, and then takes a laggard's older one, waits again.
    behind   the highest stable of an input less the output's, at an average moment between the
             output's first stable and the end of the first input.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from benchmarks import workload
from benchmarks.workload import SECOND, Timed
from lmerge_service.core import Policy, lag, lmerge, quorum
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event, reconstitute

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

__all__ = ("HEADER", "POLICIES", "Outcome", "Wait", "draw", "inputs", "measure", "outcome")

_MINUTE: Final = 60 * SECOND
_DISORDER: Final = (0.2, 0.35, 0.5)
_LATE: Final = (0, 5 * _MINUTE, 15 * _MINUTE)
_STABLE_FREQ: Final = 0.01

_INSERT: Final = ("first", "leader", "half_frozen", quorum(2))
_ADJUST: Final = ("lazy", "eager", "leader")
_LAG: Final = 20 * _MINUTE
_STABLE: Final = ("max", lag(_LAG), quorum(2))
POLICIES: Final = tuple(Policy(*choice) for choice in product(_INSERT, _ADJUST, _STABLE))

_COLUMNS: Final = (
    "insert", "adjust", "stable", "inserts", "adjusts", "removals", "stables",
    "first", "p99", "final", "p99", "behind",
)  # fmt: skip
_WIDTHS: Final = (11, 6, 9, 7, 7, 8, 7, 5, 5, 5, 5, 6)

_Key: TypeAlias = tuple[Hashable, int]


def _as_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(str.ljust, cells, _WIDTHS)) + " |"


HEADER: Final = (
    "Elements put out per 1,000 logical events; waits (mean, p99) and the way behind in minutes\n"
    f"of application time.\n\n{_as_row(_COLUMNS)}\n{'|---' * len(_COLUMNS)}|"
)
"""Of the Markdown table whose lines are outcomes."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Of the logical events, in milliseconds of application time."""

    mean: float
    p99: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the output carried under a policy, per 1,000 logical events, and its delays."""

    policy: Policy
    inserts: float
    adjusts: float
    removals: float
    stables: float
    first: Wait
    final: Wait
    behind: float
    """Milliseconds of application time."""

    @property
    def chattiness(self) -> float:
        """Elements put out per logical event."""
        return (self.inserts + self.adjusts + self.removals + self.stables) / 1_000

    def __str__(self) -> str:
        counts = (self.inserts, self.adjusts, self.removals, self.stables)
        times = (self.first.mean, self.first.p99, self.final.mean, self.final.p99, self.behind)
        return _as_row(
            (
                self.policy.insert,
                self.policy.adjust,
                _short(self.policy.stable),
                *(f"{count:,.0f}" for count in counts),
                *(f"{time / _MINUTE:.1f}" for time in times),
            )
        )


def _short(choice: str) -> str:
    """The choice, a lag in minutes."""
    return f"lag({_LAG // _MINUTE}m)" if choice == lag(_LAG) else choice


# --- measurements ---------------------------------------------------------------------------------


def inputs(events: int) -> list[Timed]:
    """Three presentations of one logical stream of results, each counted from so many events."""
    return [
        [(at + behind, element) for at, element in _mixed(events, number, disorder)]
        for number, (disorder, behind) in enumerate(zip(_DISORDER, _LATE, strict=True))
    ]


def _mixed(events: int, number: int, disorder: float) -> Iterator[tuple[int, Element]]:
    """Both forms of the query beside each other. Their stables are the same, at the same times,
    so that those of the second, whose elements come second, hold for both."""
    revised, replaced = (
        workload.sub_query(
            events,
            number + 1,
            disorder=disorder,
            stable_freq=_STABLE_FREQ,
            count_in_payload=count_in_payload,
        )[number]
        for count_in_payload in (False, True)
    )
    unstable = ((at, element) for at, element in revised if type(element) is not Stable)
    return heapq.merge(unstable, replaced, key=_at)


def _at(timed: tuple[int, Element]) -> int:
    return timed[0]


def measure(events: int, policies: Iterable[Policy] = POLICIES) -> Iterator[Outcome]:
    """One outcome per policy."""
    streams = inputs(events)
    return (outcome(streams, policy) for policy in policies)


def outcome(streams: Sequence[Timed], policy: Policy) -> Outcome:
    """Merges presentations of one logical stream, which all end with stable(INFINITY)."""
    logical = reconstitute(element for _, element in streams[0])
    emitted, behind = _merged(streams, policy)
    _assert_presents(emitted, logical)
    input_history, output_history = (
        _History.of(heapq.merge(*streams, key=_at)),
        _History.of(emitted),
    )
    counts = Counter(_kind(element) for _, element in emitted)
    thousands = len(logical) / 1_000
    return Outcome(
        policy,
        inserts=counts["insert"] / thousands,
        adjusts=counts["adjust"] / thousands,
        removals=counts["removal"] / thousands,
        stables=counts["stable"] / thousands,
        first=_wait(
            [
                output_history.first[e.payload, e.vs] - input_history.first[e.payload, e.vs]
                for e in logical
            ]
        ),
        final=_wait(
            [output_history.settled[e.payload, e.vs] - input_history.versions[e] for e in logical]
        ),
        behind=behind,
    )


def _merged(streams: Sequence[Timed], policy: Policy) -> tuple[Timed, float]:
    """What is put out and when, and how far behind the output is on average."""
    merge = lmerge("R3", policy)
    for number in range(len(streams)):
        merge.attach(str(number))
    emitted: Timed = []
    states: list[tuple[int, int]] = []  # since when the output is how far behind
    furthest = START
    for number, at, element in _arrivals(streams):
        emitted.extend((at, each) for each in merge.process(str(number), element))
        if type(element) is Stable and furthest < INFINITY:
            furthest = max(furthest, element.vc)
            if merge.max_stable > START:
                states.append((at, furthest - merge.max_stable))
    assert not merge.breaches(), "the inputs are honest"
    return emitted, _average(states)


def _arrivals(streams: Sequence[Timed]) -> Iterator[tuple[int, int, Element]]:
    """(input, time, element) in order of time; of one time, the first input's first."""
    numbered = [[(n, *timed) for timed in stream] for n, stream in enumerate(streams)]
    return heapq.merge(*numbered, key=lambda arrival: arrival[1])


def _average(states: Sequence[tuple[int, int]]) -> float:
    """Over the time until the last state; 0 when there is no such time."""
    total = sum(behind * (until - since) for (since, behind), (until, _) in pairwise(states))
    return total / (states[-1][0] - states[0][0]) if total else 0.0


def _assert_presents(emitted: Timed, logical: TDB) -> None:
    tdb = reconstitute(element for _, element in emitted)
    assert tdb == logical, "the output is not what the inputs present"
    assert tdb.stable == INFINITY, "the output has no end"


def _kind(element: Element) -> str:
    match element:
        case Insert():
            return "insert"
        case Adjust(vs=vs, ve=ve):
            return "removal" if ve == vs else "adjust"
    return "stable"


@dataclass(frozen=True, slots=True)
class _History:
    """When each event was first inserted, when each of its versions was first emitted, and when it
    was last changed."""

    first: dict[_Key, int] = field(default_factory=dict)
    versions: dict[Event, int] = field(default_factory=dict)
    settled: dict[_Key, int] = field(default_factory=dict)

    @classmethod
    def of(cls, elements: Iterable[tuple[int, Element]]) -> "_History":
        history = cls()
        for at, element in elements:
            if isinstance(element, Stable):
                continue
            key = element.payload, element.vs
            history.first.setdefault(key, at)
            history.versions.setdefault(Event(*key, element.ve), at)
            history.settled[key] = at
        return history


def _wait(times: list[int]) -> Wait:
    times.sort()
    assert times[0] >= 0, "the output knew before any input did"
    return Wait(fmean(times), times[(len(times) * 99 - 1) // 100])


# --- picture --------------------------------------------------------------------------------------

_COLOURS: Final = dict(zip(_INSERT, ("#0072b2", "#e69f00", "#009e73", "#d55e00"), strict=True))
_SHAPES: Final = dict(zip(_ADJUST, (("o", 5.5), ("^", 8.5), ("s", 11)), strict=True))
"""With sizes, the larger ones behind, so that marks that coincide all show."""
_FILLS: Final = dict(zip(_STABLE, ("full", "none", "left"), strict=True))


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draws how much is emitted against both waits as SVG; same outcomes, same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "policies", "svg.fonttype": "none", "font.size": 9}):
        canvas = Figure(figsize=(9.4, 4), layout="constrained")
        canvas.suptitle("Policies of LMR3: what is emitted, and how soon", fontsize=10)
        panels = canvas.subplots(1, 2, sharex=True, sharey=True)
        for axes, what in zip(panels, ("first", "final"), strict=True):
            for each in outcomes:
                wait = each.first if what == "first" else each.final
                axes.plot(wait.mean / _MINUTE, each.chattiness, **_mark(each.policy))
            axes.set_xlabel(f"mean wait for the {what} version, min of application time")
            axes.grid(visible=True, linewidth=0.3)
        panels[0].set_ylabel("elements put out per logical event")
        canvas.legend(handles=list(_keys()), loc="outside right center", fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, format="svg", metadata={"Date": None})


def _mark(policy: Policy, colour: str | None = None) -> dict[str, Any]:
    (shape, size), fill = _SHAPES[policy.adjust], _FILLS[policy.stable]
    colour = colour or _COLOURS[policy.insert]
    return {
        "color": colour,
        "marker": shape,
        "markersize": size,
        "fillstyle": fill,
        "markeredgecolor": "white" if fill == "full" else colour,
        "markeredgewidth": 0.7,
        "markerfacecoloralt": "white",
        "linestyle": "",
        "zorder": 20 - size,
    }


def _keys() -> "Iterator[Line2D]":
    """What the colours, the shapes and the fillings of the marks mean."""
    from matplotlib.lines import Line2D

    for where, policies, colour in (
        ("insert", [Policy(insert=choice) for choice in _INSERT], None),
        ("adjust", [Policy(adjust=choice) for choice in _ADJUST], "grey"),
        ("stable", [Policy(stable=choice) for choice in _STABLE], "grey"),
    ):
        yield Line2D([], [], linestyle="", label=where)
        for policy in policies:
            yield Line2D([], [], label=_short(getattr(policy, where)), **_mark(policy, colour))
