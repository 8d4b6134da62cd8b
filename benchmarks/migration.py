"""One plan hands over to another, in four ways, and either of them dies (Example 30.1).

Method
    The example is the one of Krämer's thesis (chapter 30): four streams of random numbers, 100 a
    second each for 50 s, uniform below 500 (A, B) and 1,000 (C, D); an equi-join over windows of
    10 s; the left-deep plan hands over to the right-deep one after 20 s. The streams are fed in
    steps of 0.1 s, each with a stable at its end, so that data's time and the consumer's are one.

    GenMig          as in the thesis (`benchmarks.genmig`): the old plan before T, the new one after
    adopt           `RunningQuery.switch_plan`: the new plan processes the input that still matters
                    at once, and goes on with the output
    LMerge          two networks and the merge operator. The new one is given its history as well,
                    both are watched for 10 s, and the old one is detached
    LMerge, cold    the same without history: joined as soon as no result can lack a part
    Parallel Track  negative control (ZRH04, chapter 28): both plans, inputs flagged old and new;
                    the new plan's output waits until the old one has let all old input go, 2 w

    Either plan may die at 25 s: what it holds is gone, and it takes and emits nothing from then on.
    Nobody replaces it, but for "adopt, resumed": another process, which has the output and the
    input, goes on after 2 s (`RunningQuery.resume`).

    What came out is compared with an uninterrupted plan's by instants: result time that is missing
    or too much, of the result time there is. Times are those of the data and do not depend on the
    machine, except for CPU time, which is that of all calls of a way.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.instants import difference
from benchmarks.migration_ways import RESUMED, SECOND, STEP, WAYS, Example
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.tdb import TDB, reconstitute

__all__ = ("DEATHS", "Played", "draw", "measure", "play", "run")

Report: TypeAlias = "Callable[[str, str, Sequence[float]], None]"

DEATHS: Final = ("old", "new")
"""Whose plan may die."""


# --- runs -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Played:
    """What a consumer got, and what it cost."""

    way: str
    example: Example
    emitted: list[tuple[int, Element]] = field(default_factory=list)
    """With when; the times of the consumer, which are those of the data."""
    held: list[tuple[int, int]] = field(default_factory=list)
    """Entries of state at the end of each second."""
    behind: list[tuple[int, int]] = field(default_factory=list)
    """How far the output's stable is behind the input's, at the end of each second."""
    done: int | None = None
    cpu: float = 0.0

    @property
    def result(self) -> TDB:
        """The output.

        Raises:
            IllegalStreamError: it is no legal stream.
        """
        return reconstitute(element for _, element in self.emitted)

    def per_second(self) -> list[tuple[int, int]]:
        """How many events came in which second, by its start."""
        counts = Counter((at - 1) // SECOND for at, e in self.emitted if type(e) is Insert)
        return [(second, counts[second]) for second in range(self.example.seconds)]

    def silence(self) -> tuple[int, int]:
        """The longest time without an event since the migration began: from when, and how long."""
        begins, end = self.example.begins, self.example.seconds * SECOND
        times = [begins, *(at for at, e in self.emitted if type(e) is Insert and at > begins), end]
        gaps = [(later - at, -at) for at, later in pairwise(times)]
        longest, since = max(gaps)
        return -since, longest


def play(way: str, example: Example, dies: str | None = None) -> Played:
    """Runs one way over the example; `dies` is whose plan dies midway."""
    runs = WAYS[way](example)
    played = Played(way, example)
    past: defaultdict[str, list[Element]] = defaultdict(list)
    stable = START
    for end, given in example.steps():
        begun = time.process_time()
        if end == example.begins + STEP:
            played.emitted += [(example.begins + 1, e) for e in runs.begin(example.begins, past)]
        if end == example.dies + STEP and dies is not None:
            runs.kill(end, dies)
        for source, batch in given.items():
            past[source] += batch
            played.emitted += [(end, e) for e in runs.process_batch(end, source, batch)]
        played.cpu += time.process_time() - begun
        if end % SECOND == 0:
            stable = max([stable, *(e.vc for _, e in played.emitted if type(e) is Stable)])
            played.held.append((end // SECOND, len(runs)))
            played.behind.append((end // SECOND, end - stable))
    played.done = runs.done
    return played


def run(runs: int, example: Example) -> dict[tuple[str, str | None], list[Played]]:
    """All ways, as often, in turns; each also with the death of either plan, once."""
    played: defaultdict[tuple[str, str | None], list[Played]] = defaultdict(list)
    for _ in range(runs):
        for way in WAYS:
            if way != RESUMED:
                played[way, None].append(play(way, example))
    for way in [*WAYS][1:]:
        for dies in DEATHS:
            if way != RESUMED or dies == "new":
                played[way, dies].append(play(way, example, dies))
    return dict(played)


def measure(all_played: Mapping[tuple[str, str | None], Sequence[Played]], report: Report) -> None:
    """Reports what each way took, and what each death cost."""
    right = all_played["uninterrupted", None][0]
    for (way, dies), runs in all_played.items():
        played = runs[0]
        name = way if dies is None else f"{way}, the {dies} plan dies"
        if played.done is not None:
            report(f"{name}: done", "s", [(played.done - played.example.begins) / SECOND])
        since, silent = played.silence()
        report(f"{name}: longest silence, from {since / SECOND:g} s", "s", [silent / SECOND])
        report(f"{name}: most events in a second", "", [max(n for _, n in _after(played))])
        report(f"{name}: stable behind, most", "s", [max(n for _, n in played.behind) / SECOND])
        missing, extra = difference(played.result, right.result)
        report(f"{name}: missing", "%", [100 * missing])
        report(f"{name}: too much", "%", [100 * extra])
        if dies is None:
            report(f"{name}: entries of state, most", "", [max(n for _, n in played.held)])
            report(f"{name}: CPU", "s", [each.cpu for each in runs])


def _after(played: Played) -> list[tuple[int, int]]:
    return [each for each in played.per_second() if each[0] >= played.example.begins // SECOND]


# --- pictures -------------------------------------------------------------------------------------

_COLOURS: Final = dict(
    zip(
        WAYS,
        ("#999999", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#d55e00", "#56b4e9"),
        strict=True,
    )
)
_STYLES: Final = dict(zip(WAYS, ("-", "--", "-.", ":", (0, (5, 1)), "-", "--"), strict=True))


def draw(all_played: Mapping[tuple[str, str | None], Sequence[Played]], folder: Path) -> None:
    """Draws migration.svg, of those that live, and migration-deaths.svg; same runs, same bytes."""
    living = {way: runs[0] for (way, dies), runs in all_played.items() if dies is None}
    _draw(
        folder / "migration.svg",
        "A plan hands over at 20 s (Example 30.1)",
        [
            ("events in a second", {way: each.per_second() for way, each in living.items()}),
            ("entries of state", {way: each.held for way, each in living.items()}),
            (
                "stable behind the input, s",
                {w: [(at, n / SECOND) for at, n in each.behind] for w, each in living.items()},
            ),
        ],
    )
    _draw(
        folder / "migration-deaths.svg",
        "A plan hands over at 20 s, and either dies at 25 s",
        [
            (
                f"events in a second, the {dies} plan dies",
                {
                    way: runs[0].per_second()
                    for (way, which), runs in all_played.items()
                    if which == dies
                },
            )
            for dies in DEATHS
        ],
    )


_Panel: TypeAlias = "tuple[str, Mapping[str, Sequence[tuple[int, float]]]]"


def _draw(path: Path, title: str, panels: Sequence[_Panel]) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9}):
        canvas = Figure(figsize=(1.6 + 3.6 * len(panels), 3.4), layout="constrained")
        canvas.suptitle(title, fontsize=10)
        for number, (what, lines) in enumerate(panels, 1):
            axes = canvas.add_subplot(1, len(panels), number)
            for way, points in lines.items():
                axes.plot(
                    *zip(*points, strict=True),
                    label=way,
                    color=_COLOURS[way],
                    linestyle=_STYLES[way],
                    linewidth=1.2,
                )
            axes.set_xlabel("s")
            axes.set_ylabel(what)
            axes.set_xlim(10, 50)
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, linewidth=0.3)
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8)
        canvas.savefig(path, format="svg", metadata={"Date": None})
