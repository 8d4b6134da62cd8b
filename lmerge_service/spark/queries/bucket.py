"""One output partition of a query: rows, pieces and points in, elements out, and what is kept.

Theory
    A batch is taken as a whole: first which rows count, then these, then the watermark. Elements
    that are emitted together are in a fixed order, the stable is the last. So the same batch on the
    same state has the same output, byte for byte: that is what a job does which was killed before
    it had committed.

    *Feedback* comes as records of the merge's own topic, with offsets like all else, and so is part
    of what is repeated. The highest point ever received holds for good: what was left out once
    cannot be emitted any more. The time from which an incarnation is correct is a first point, for
    what ends before it is not to be emitted.

Invariants
    B1  The output after `load(save())` is what it would have been without.
    B2  Over all batches, the elements are a legal stream; up to its stable its TDB is the query's,
        less whole events that end before a point.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec

from lmerge_service.elements import START, Element
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.feedback import FeedbackRecord
from lmerge_service.kafka.feedback import FeedbackBoard
from lmerge_service.replicas.lateness import FactsLateness, RowSummary
from lmerge_service.spark.queries.plans import QueryPlan, Shape
from lmerge_service.tdb import TDB

__all__ = ("BatchResult", "InputRow", "QueryBucket", "QuerySettings")

_VERSION: Final = 2


class InputRow(NamedTuple):
    """What a bucket is given: a row of the query, the piece it is from, or a feedback record."""

    kind: Literal["row", "piece", "point"]
    partition: int
    offset: int
    time: int
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """What must not change while the state is kept."""

    shape: Shape
    plan: QueryPlan
    lateness: int
    partitions: int
    """Of the facts."""
    joining_at: int = START
    output: str = ""
    """The merge's output, whose feedback to `replica` counts."""
    replica: str = ""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a batch comes to."""

    elements: list[Element]
    rows: int
    """That were for this partition and counted."""
    late: int
    skipped: int
    """Left out for feedback's sake: contributions and results."""
    watermark: int
    point: int
    kept: int
    """How much state is left."""


class QueryBucket:
    """Goes from batch to batch."""

    def __init__(self, settings: QuerySettings, saved: bytes | None = None) -> None:
        self._settings = settings
        self._operator = settings.shape.begin(settings.plan)
        self._points: list[dict[str, Any]] = []
        self._point = settings.joining_at
        self._since = START
        """The results of earlier rows were emitted before: by the replica it has resumed from."""
        seen: list[int] = []
        if saved is not None:
            version, *kept = msgspec.msgpack.decode(saved)
            if version != _VERSION:
                raise StateError(f"state of version {version}, not {_VERSION}: begin anew")
            seen, self._since, self._point, self._points, operator = kept
            self._operator.load(operator)
        self._lateness = FactsLateness(settings.lateness, settings.partitions, seen)

    @classmethod
    def resumed(cls, settings: QuerySettings, output: TDB) -> Self | None:
        """One that has this output, for the facts from its stable on; None: the query by this plan
        cannot (`Shape.resume`)."""
        operator = settings.shape.resume(settings.plan, output)
        if operator is None:
            return None
        bucket = cls(settings)
        bucket._operator, bucket._since = operator, output.stable
        return bucket

    def save(self) -> bytes:
        """The state as msgpack, with a version; `QueryBucket(settings, saved)` goes on from it."""
        state = (self._lateness.seen, self._since, self._point, self._points, self._operator.save())
        return msgspec.msgpack.encode([_VERSION, *state])

    def batch(self, given: Iterable[InputRow]) -> BatchResult:
        """All of a micro-batch, in any order."""
        rows, pieces, points = _sorted(given)
        self._receive(points)
        self._lateness.begin(pieces)
        before, late = self._operator.skipped, 0
        for row in rows:
            if row.time < self._since:
                continue
            if self._lateness.counts(row.partition, row.offset, row.time):
                self._operator.take(row.time, msgspec.json.decode(row.data), self._point)
            else:
                late += 1
        watermark = self._lateness.watermark
        return BatchResult(
            elements=self._operator.advance(watermark, self._point),
            rows=len(rows) - late,
            late=late,
            skipped=self._operator.skipped - before,
            watermark=watermark,
            point=self._point,
            kept=len(self._operator),
        )

    def _receive(self, points: list[InputRow]) -> None:
        """A point counts once each task has published one, about the present output."""
        replica, output = self._settings.replica, self._settings.output
        for each in points:
            try:
                record = FeedbackRecord.of(each.data.encode())
            except ElementError:  # of another writer, not meant for replicas
                continue
            if record.replica != replica:
                continue
            point = msgspec.to_builtins(record)
            others = [
                old for old in self._points
                if old["task"] != record.task and old["output_id"] == record.output_id
            ]  # fmt: skip
            self._points = [*others, point]
        board = FeedbackBoard([output])
        for old in self._points:
            board.note(output, msgspec.convert(old, FeedbackRecord))
        self._point = max(self._point, board.point(replica))


def _sorted(
    given: Iterable[InputRow],
) -> tuple[list[InputRow], dict[int, list[RowSummary]], list[InputRow]]:
    rows, points = [], []
    pieces: dict[int, list[RowSummary]] = {}
    for each in given:
        if each.kind == "row":
            rows.append(each)
        elif each.kind == "piece":
            piece = msgspec.json.decode(each.data, type=RowSummary)
            pieces.setdefault(each.partition, []).append(piece)
        else:
            points.append(each)
    order = attrgetter("partition", "offset")
    return sorted(rows, key=order), pieces, sorted(points, key=order)
