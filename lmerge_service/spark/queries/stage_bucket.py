"""One bucket of a stage as a function of batches: rows, summaries and elements in, elements out.

Theory
    A batch is taken as a whole: of its facts first which are in time (`replicas.lateness`), by
    offsets alone; then all of them in the order of their places; then how far each input is. An
    input that is another stage is as far as the least of all its buckets: their number is
    configured, so that one that has not spoken yet holds it back. All inputs pass the network, and
    what that emits is netted and numbered.

Invariants
    U1  What `take` emits is a function of the plan, and of the batches so far, however these were
        packed.
    U2  Over all batches the elements are a legal stream, whose numbers have no gap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from lmerge_service.core.snapshots import sealed, unsealed
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.replicas.lateness import FactsLateness, RowSummary
from lmerge_service.spark.queries.moves import Moved, Rows, Summary, unpacked
from lmerge_service.spark.queries.stages import Stage
from lmerge_service.spark.state import Counted

__all__ = ("StageBucket", "StageResult", "StageSettings")

_VERSION: Final = 1


class StageSettings(msgspec.Struct, frozen=True):
    """What must not change while the state is kept."""

    stage: Stage
    widths: dict[str, int]
    """How many partitions each source has."""
    buckets: int
    """Of every stage."""


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


_Given: TypeAlias = dict[str, list[Element]]


class StageBucket:
    """Goes from batch to batch."""

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        stage = settings.stage
        self.network = stage.plan.begin()
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
        self._stables = {
            each.name: stables.get(each.name) or [START] * settings.buckets
            for each in stage.upstreams
        }

    def take(self, batch: int, chunks: Iterable[bytes]) -> StageResult:
        """Takes a batch: chunks in any order."""
        rows, summaries, moved = _sorted(chunks)
        for name, lateness in self._lateness.items():
            of_source = summaries.get(name, {})
            if max(of_source, default=0) >= (width := self._settings.widths[name]):
                raise StateError(
                    f"{name} has more than the {width} partitions that it had when the checkpoint "
                    "was begun: use another folder to begin anew"
                )
            lateness.begin(of_source)
        given: _Given = {}
        late = self._take_facts(rows, given)
        self._take_elements(moved, given)
        emitted = self.network.process_batches({n: e for n, e in given.items() if e})
        result = StageResult(
            self.emitted + 1, emitted, late, self.network.stable, len(self.network)
        )
        self.transaction += 1
        self.emitted += len(emitted)
        return result

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
        for upstream in self._settings.stage.upstreams:
            stables = self._stables[upstream.name]
            elements: list[Element] = []
            for some in moved.get(upstream.name, ()):
                for element in some.elements():
                    if type(element) is Stable:
                        stables[some.bucket] = element.vc
                    else:
                        elements.append(element)
            elements.append(Stable(min(stables)))
            given[upstream.name] = elements

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
        try:
            saved = msgspec.msgpack.decode(head, type=_Saved)
        except msgspec.MsgspecError as error:
            raise StateError(f"the checkpoint's state is damaged: {error}") from error
        if saved.version != _VERSION:
            raise StateError(
                f"the checkpoint's state is of version {saved.version}, this is {_VERSION}"
            )
        self.network.restore(network)
        self.transaction, self.emitted = saved.transaction, saved.emitted
        self._begin(saved.seen, saved.stables)


def _in_time(rows: Rows, lateness: FactsLateness) -> list[Insert[Any]]:
    counts, partition = lateness.counts, rows.partition
    return [event for at, event in rows.events() if counts(partition, at, event.vs)]


_Summaries: TypeAlias = dict[str, dict[int, list[RowSummary]]]


def _sorted(
    chunks: Iterable[bytes],
) -> tuple[dict[str, list[Rows]], _Summaries, dict[str, list[Moved]]]:
    """By input, in the order of their places."""
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
    for facts in rows.values():
        facts.sort(key=lambda some: (some.partition, some.offsets[0]))
    for elements in moved.values():
        elements.sort(key=lambda some: (some.bucket, some.first))
    return rows, summaries, moved
