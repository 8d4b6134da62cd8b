"""What speculation costs and brings: output size, latency and memory (CEDR's consistency spectrum).

Method
    A count and a sum per sensor over the last 10 s (snapshots, the operator of Goldstein and Hong),
    over readings of four sensors, one every half a second. A share of them, the disorder, arrives
    up to 40 s late; the source says so: every 5 s a stable that is 40 s behind. One reading at a
    time is fed, in order of arrival.

    levels      `emit`, from on_update (the papers' middle) by ordered (order preserving) and
                on_watermark (perfectness preserving) to on_close (ultra consistent); and
                on_watermark behind an Align that blocks until all is final (strong, or high)
    blocking    B: an Align at the source, by how long it blocks
    memory      M: a Finalize at the source in the place of its stables, by how long it remembers
    stables     how often the source sends them

    output      elements out per reading
    first       from an instant until there is an answer about it, on average over instants and
                sensors; 0 if it was there in advance, as lifetimes are known
    right       until the answer is the one that stays
    state       entries that all operators hold, on average over readings
    wrong       result time for which the right row is not there in the end

    Times are the data's and the arrivals', so that the same code gives the same figures anywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final, TypeAlias

from benchmarks.instants import Answers, difference
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.queries.operators.finalize import Finalize
from lmerge_service.queries.physical import Choice, Emit, build
from lmerge_service.queries.plan import count, facts, sum_
from lmerge_service.tdb import reconstitute

__all__ = (
    "PICTURES",
    "Outcome",
    "Setting",
    "arrivals",
    "draw",
    "measure",
    "outcome",
    "played",
    "run",
)

Report: TypeAlias = "Callable[[str, str, Sequence[float]], None]"

SECOND: Final = 1_000
_WIDTH: Final = 10 * SECOND
_LATE: Final = 40 * SECOND
_GAP: Final = SECOND // 2
_SENSORS: Final = ("a", "b", "c", "d")

readings = facts("readings", time="time", fields={"sensor": str, "value": int})
recent = readings.window(_WIDTH).by("sensor").aggregate(n=count(), total=sum_("value"))


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a plan stands, and what it is given. Times in milliseconds."""

    level: Emit = "on_update"
    disorder: float = 0.3
    """The share of readings that may be late."""
    blocking: int = 0
    memory: int | None = None
    """None: as long as the source's stables demand."""
    every: int = 5 * SECOND
    """From stable to stable."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out; times in seconds."""

    output: float
    first: float
    right: float
    state: float
    wrong: float


METRICS: Final = {
    "output": "elements out per reading",
    "first": "until an answer, s",
    "right": "until the one that stays, s",
    "state": "entries of state",
    "wrong": "wrong, % of the result",
}


def arrivals(count: int, disorder: float, every: int) -> Iterator[tuple[int, Element]]:
    """(when it arrives, element) of so many readings and their stables."""
    rng = Random(7)
    came: list[tuple[int, Element]] = []
    for n in range(count):
        t = n * _GAP
        late = rng.randrange(_LATE) if rng.random() < disorder else 0
        came.append((t + late, Insert((rng.choice(_SENSORS), rng.randrange(10)), t, t + 1)))
    end = count * _GAP + _LATE
    came += [(at, Stable(at - _LATE)) for at in range(_LATE, end, every)]
    came.sort(key=lambda each: each[0])
    yield from came
    yield end, Stable(INFINITY)


def outcome(setting: Setting, size: int) -> Outcome:
    """What a plan makes of so many readings, one at a time."""
    emitted, waits, state = played(setting, size)
    result = reconstitute(emitted)
    right = result
    if setting.memory is not None:
        right = reconstitute(played(replace(setting, memory=None), size)[0])
    return Outcome(
        output=sum(type(each) is not Stable for each in emitted) / size,
        first=fmean(waits[0]) / SECOND,
        right=fmean(waits[1]) / SECOND,
        state=state,
        wrong=100 * difference(result, right)[0],
    )


def played(setting: Setting, size: int) -> tuple[list[Element], tuple[list[int], list[int]], float]:
    """What came out, the waits for answers, and the entries of state on average."""
    network = build(
        recent, emit=setting.level, choices={readings: Choice(align=setting.blocking or None)}
    )
    finalize = None if setting.memory is None else Finalize(setting.memory)
    end = size * _GAP
    answers = Answers(range(end // 10, end * 9 // 10, SECOND), group=lambda row: row[0])
    emitted: list[Element] = []
    held: list[int] = []
    for at, element in arrivals(size, setting.disorder, setting.every):
        given = [element]
        if finalize is not None:
            if type(element) is Stable and element.vc < INFINITY:
                continue
            given = finalize.process(element)
        came = network.process_batch("readings", given)
        answers.take(at, came)
        emitted += came
        if type(element) is not Stable:
            held.append(len(network) + (0 if finalize is None else len(finalize)))
    return emitted, answers.waits(), fmean(held)


# --- pictures -------------------------------------------------------------------------------------

Line: TypeAlias = "Mapping[float, Setting]"


@dataclass(frozen=True, slots=True)
class Picture:
    """Lines of settings by what is on the x axis, and what is shown of them."""

    title: str
    axis: str
    lines: Mapping[str, Line]
    metrics: tuple[str, ...] = ("output", "first", "right", "state")


_DISORDERS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_LEVELS: Final[Mapping[str, Setting]] = {
    "on_update (middle)": Setting("on_update"),
    "ordered": Setting("ordered"),
    "on_watermark": Setting("on_watermark"),
    "on_close": Setting("on_close"),
    "on_watermark behind Align(∞) (strong)": Setting("on_watermark", blocking=INFINITY),
}
_SECONDS: Final = (0, 5, 10, 15, 20, 25, 30, 35, 40, 45)

PICTURES: Final[Mapping[str, Picture]] = {
    "levels": Picture(
        "Levels of consistency, over disorder",
        "readings that are late, %",
        {
            name: {100 * each: replace(setting, disorder=each) for each in _DISORDERS}
            for name, setting in _LEVELS.items()
        },
    ),
    "blocking": Picture(
        "Blocking: Align(B) at the source, 30 % late by up to 40 s",
        "B, s",
        {
            level: {each: Setting(level, blocking=each * SECOND) for each in _SECONDS}
            for level in ("on_update", "on_watermark")
        },
    ),
    "memory": Picture(
        "Memory: Finalize(M) at the source, 30 % late by up to 40 s",
        "M, s",
        {
            "on_update": {each: Setting("on_update", memory=each * SECOND) for each in _SECONDS},
            "on_close": {each: Setting("on_close", memory=each * SECOND) for each in _SECONDS},
            "on_watermark behind Align(M)": {
                each: Setting("on_watermark", blocking=each * SECOND, memory=each * SECOND)
                for each in _SECONDS
            },
        },
        ("output", "right", "state", "wrong"),
    ),
    "stables": Picture(
        "How often the source sends stables, 30 % late by up to 40 s",
        "s from stable to stable",
        {
            level: {each: Setting(level, every=each * SECOND) for each in (1, 5, 10, 20, 40, 80)}
            for level in ("on_update", "on_watermark", "on_close")
        },
    ),
}

Measured: TypeAlias = "Mapping[str, Mapping[float, Outcome]]"


def measure(picture: Picture, size: int) -> dict[str, dict[float, Outcome]]:
    """The outcomes of a picture's lines."""
    return {
        name: {x: outcome(setting, size) for x, setting in line.items()}
        for name, line in picture.lines.items()
    }


def run(size: int, report: Report, folder: Path) -> None:
    """Measures, reports and draws all pictures."""
    for name, picture in PICTURES.items():
        measured = measure(picture, size)
        for line, points in measured.items():
            for x, found in points.items():
                for metric in picture.metrics:
                    report(f"{name}: {line}, {x:g}: {metric}", "", [getattr(found, metric)])
        draw(picture, measured, folder / f"speculation-{name}.svg")


_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7")
_MARKS: Final = "osD^v"


def draw(picture: Picture, measured: Measured, path: Path) -> None:
    """Draws a picture as SVG, a panel per metric; same outcomes, same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9}):
        canvas = Figure(figsize=(12.4, 3.4), layout="constrained")
        canvas.suptitle(picture.title, fontsize=10)
        for number, metric in enumerate(picture.metrics, 1):
            axes = canvas.add_subplot(1, len(picture.metrics), number)
            for k, (line, points) in enumerate(measured.items()):
                axes.plot(
                    list(points),
                    [getattr(found, metric) for found in points.values()],
                    label=line,
                    color=_COLOURS[k],
                    marker=_MARKS[k],
                    linestyle="--" if k % 2 else "-",  # lines that coincide both show
                    markersize=4,
                    linewidth=1.2,
                )
            axes.set_xlabel(picture.axis)
            axes.set_ylabel(METRICS[metric])
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, linewidth=0.3)
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
        canvas.savefig(path, format="svg", metadata={"Date": None})
