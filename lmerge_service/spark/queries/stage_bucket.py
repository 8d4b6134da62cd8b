"""One bucket of a stage as a function of batches: rows, summaries and elements in, elements out.

Theory
    A batch is taken as a whole: of its facts first which are in time (`row_lateness`), by
    offsets alone; then all of them in the order of their places; then how far each input is. An
    input that is another stage, or an intake, is as far as the least of all its buckets: their
    number is configured, so that one that has not spoken yet holds it back. All inputs pass the
    network, and what that emits is netted and numbered.

    Feedback counts from the beginning of the batch with which it comes; of a bucket that goes on
    with an output, the first batch has what that holds (`resuming`).

Invariants
    U1  What `take` emits is a function of the plan, and of the batches so far, however these were
        packed.
    U2  Over all batches the elements are a legal stream, whose numbers have no gap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.spark.queries.moves import Held, Moved, Points, Rows, Summary, unpacked
from lmerge_service.spark.queries.resuming import ResumedOutput
from lmerge_service.spark.queries.row_lateness import FactsLateness, RowSummary
from lmerge_service.spark.queries.stages import Stage
from lmerge_service.spark.state import Counted, opened_head

__all__ = ("StageBucket", "StageResult", "StageSettings")

_VERSION: Final = 1


class StageSettings(msgspec.Struct, frozen=True):
    """What must not change while the state is kept."""

    stage: Stage
    widths: dict[str, int]
    """How many partitions each source has."""
    buckets: int
    """Of every stage."""
    skip: int = START
    """What ends before it does not matter."""


@dataclass(slots=True)
class StageResult:
    """What a batch comes to."""

    first: int
    """The number of the first element."""
    elements: list[Element] = field(default_factory=list)
    late: int = 0
    """Facts for this bucket that were too late."""
    stable: int = START
    kept: int = 0
    """How much state is left."""


class _Saved(msgspec.Struct, array_like=True):
    version: int
    transaction: int
    emitted: int
    seen: dict[str, list[int]]
    stables: dict[str, list[int]]
    points: dict[int, int]
    tasks: int
    resumed: Any


_read_saved: Final = msgspec.msgpack.Decoder(_Saved).decode


_Given: TypeAlias = dict[str, list[Element]]


class StageBucket:
    """Goes from batch to batch."""

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        stage = settings.stage
        self.network = stage.plan.begin()
        if stage.heeds_feedback:
            self.network.skip_before(settings.skip)
        self._resumed: ResumedOutput | None = None
        self._points: dict[int, int] = {}
        """By task of the merge that gives feedback, its point."""
        self._tasks = 1
        self.transaction = 0
        """How many batches it has taken."""
        self.emitted = 0
        """The number of the last element that it has emitted."""
        self._begin({}, {})

    def _begin(self, seen: dict[str, list[int]], stables: dict[str, list[int]]) -> None:
        settings, stage = self._settings, self._settings.stage
        self._lateness = {
            name: FactsLateness(source.lateness, settings.widths[name], seen.get(name, ()))
            for name, source in stage.sources.items()
        }
        inputs = {each.name: settings.buckets for each in stage.upstreams}
        inputs |= {each.name: settings.widths[each.name] for each in stage.intakes}
        self._stables = {
            name: stables.get(name) or [START] * buckets for name, buckets in inputs.items()
        }

    def take(self, batch: int, chunks: Iterable[bytes]) -> StageResult:
        """Takes a batch: chunks in any order."""
        rows, summaries, moved, points, held = _sorted(chunks)
        if held:
            self.emitted = held[0].emitted
            self._resumed = ResumedOutput.of(held, self._settings.skip)
        self._take_points(points)
        for name, lateness in self._lateness.items():
            of_source = summaries.get(name, {})
            if max(of_source, default=0) >= (width := self._settings.widths[name]):
                raise StateError(
                    f"{name} has more than the {width} partitions that it had when the checkpoint "
                    "was begun: begin a new incarnation (--rejoin)"
                )
            lateness.begin(of_source)
        given: _Given = {}
        late = self._take_facts(rows, given)
        self._take_elements(moved, given)
        emitted = self.network.process_batches({n: e for n, e in given.items() if e})
        if self._resumed is not None:
            emitted = self._resumed.process_batch(emitted, self.network.stable)
            if self._resumed.is_over(self.network.stable):
                self._resumed = None
        result = StageResult(
            self.emitted + 1, emitted, late, self.network.stable, len(self.network)
        )
        self.transaction += 1
        self.emitted += len(emitted)
        return result

    def _take_points(self, given: list[Points]) -> None:
        for task, tasks, point in (each for some in given for each in some.points):
            self._tasks = max(self._tasks, tasks)
            self._points[task] = max(point, self._points.get(task, START))
        if len(self._points) == self._tasks and self._settings.stage.heeds_feedback:
            self.network.skip_before(min(self._points.values()))

    def _take_facts(self, rows: dict[str, list[Rows]], given: _Given) -> int:
        late = 0
        for branch in self._settings.stage.branches:
            lateness = self._lateness[branch.source.name]
            elements: list[Element] = []
            for some in rows.get(branch.name, ()):
                kept = _in_time(some, lateness)
                late += len(some.offsets) - len(kept)
                elements += kept
            elements.append(Stable(lateness.watermark))
            given[branch.name] = elements
        return late

    def _take_elements(self, moved: dict[str, list[Moved]], given: _Given) -> None:
        for name, stables in self._stables.items():
            elements: list[Element] = []
            for some in moved.get(name, ()):
                for element in some.elements():
                    if type(element) is Stable:
                        stables[some.bucket] = element.vc
                    else:
                        elements.append(element)
            elements.append(Stable(min(stables)))
            given[name] = elements

    @property
    def watermark(self) -> int:
        """Up to when the least far of its inputs is known."""
        facts = [each.watermark for each in self._lateness.values()]
        return min(facts + [min(each) for each in self._stables.values()])

    # State

    def pages(self) -> Iterator[bytes]:
        """The state, piece by piece."""
        head = _Saved(
            _VERSION,
            self.transaction,
            self.emitted,
            {name: [*each.seen] for name, each in self._lateness.items()},
            self._stables,
            self._points,
            self._tasks,
            None if self._resumed is None else self._resumed.state(),
        )
        yield sealed([msgspec.msgpack.encode(head), self.network.snapshot()])

    def carried(self) -> tuple[int, Counted]:
        """Nothing: the pages have all."""
        return 0, ()

    def load(self, pages: Iterable[bytes], steps: int, counted: Counted) -> None:
        """Takes over the state that pages are of.

        Raises:
            StateError: they are damaged, or of another plan.
        """
        head, network = unsealed(b"".join(pages))
        saved = opened_head(head, _read_saved, _VERSION)
        self.network.restore(network)
        self.transaction, self.emitted = saved.transaction, saved.emitted
        self._points, self._tasks = saved.points, saved.tasks
        self._resumed = None if saved.resumed is None else ResumedOutput.loaded(saved.resumed)
        self._begin(saved.seen, saved.stables)


def _in_time(rows: Rows, lateness: FactsLateness) -> list[Insert[Any]]:
    counts, partition = lateness.counts, rows.partition
    return [event for at, event in rows.events() if counts(partition, at, event.vs)]


_Summaries: TypeAlias = dict[str, dict[int, list[RowSummary]]]


class _Sorted(NamedTuple):
    """The chunks of a batch; those of inputs by input, in the order of their places."""

    rows: dict[str, list[Rows]]
    summaries: _Summaries
    moved: dict[str, list[Moved]]
    points: list[Points]
    held: list[Held]


def _sorted(chunks: Iterable[bytes]) -> _Sorted:
    points: list[Points] = []
    held: list[Held] = []
    rows: dict[str, list[Rows]] = {}
    moved: dict[str, list[Moved]] = {}
    summaries: _Summaries = {}
    for each in map(unpacked, chunks):
        match each:
            case Rows(name):
                rows.setdefault(name, []).append(each)
            case Moved(name):
                moved.setdefault(name, []).append(each)
            case Summary(name, partition, summary):
                summaries.setdefault(name, {}).setdefault(partition, []).append(summary)
            case Points():
                points.append(each)
            case Held():
                held.append(each)
    for facts in rows.values():
        facts.sort(key=lambda some: (some.partition, some.offsets[0]))
    for elements in moved.values():
        elements.sort(key=lambda some: (some.bucket, some.first))
    return _Sorted(rows, summaries, moved, points, held)
