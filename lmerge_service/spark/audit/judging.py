"""From rows to findings: counting, legality and equivalence, for one audit or for many at once.

Theory
    `by` names columns that identify audits; a user's audit has none, a test has thousands in one
    job. What is brought to the driver is small: a row a stream, a row a partition that is not
    legal, the first few differences.

Who owns what
    Pieces of slices, what the screen found, what is odd and disagreements are kept by Spark
    while they are needed, and released here.

Cost
    One pass over the rows, and a shuffle of 48 bytes an element. One more pass where there are
    older incarnations, one where slices are doubted, and one if there are odd events.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import START
from lmerge_service.errors import ConfigurationError
from lmerge_service.spark.audit.counting import current, heads_of
from lmerge_service.spark.audit.equivalence import (
    broken_chains,
    disagreements,
    doubled,
    elements_about,
)
from lmerge_service.spark.audit.findings import AuditFindings, IllegalElement, StreamSummary
from lmerge_service.spark.audit.legality import MOST_SLICES, beyond_stables, doubted
from lmerge_service.spark.audit.scanning import scanned
from lmerge_service.spark.audit.screening import delays_of, odd_of, pieces_of, screened
from lmerge_service.tdb import Difference

__all__ = ("Case", "Held", "JudgedAudit", "Terms", "judged")

Case: TypeAlias = tuple[Any, ...]
"""The values of `by`."""

_COLLECTED: Final = 20_000
_OF_A_PIECE: Final = 500_000
"""Elements that a task sorts at once."""


_Doubled: TypeAlias = Mapping[tuple[Case, int], int]
_Totals: TypeAlias = Mapping[Case, int]
_Differences: TypeAlias = Mapping[Case, list[Difference]]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows that take the place of records that are gone."""

    incarnation: int
    inserts: int
    stables: int


@dataclass(frozen=True, slots=True)
class Terms:
    """How streams are audited."""

    keyed: bool = False
    """(payload, vs) is a key (R3); else streams are multisets (R4)."""
    clipped: bool = False
    """What is final in all streams is compared; else all, as it stands."""
    most: int | None = 10
    """So many differences are listed."""
    widths: Mapping[int, int] = field(default_factory=dict)
    """Numbers of partitions by stream, where they are known."""
    since: int = START
    """Streams are compared by the events that end at this time or later."""
    held: Mapping[int, Held] = field(default_factory=dict)
    """By stream that begins with what a snapshot has, which of its rows are of that."""


@dataclass(frozen=True, slots=True)
class JudgedAudit:
    """An audit's findings, and what they rest on, for as long as it is kept."""

    findings: Mapping[Case, AuditFindings]
    rows: DataFrame
    """Of the last incarnations."""
    slices: DataFrame
    """Of them, in pieces (`scanning`)."""
    delays: DataFrame
    """Of the first stream (`screening`)."""
    timed: bool
    """Records of the first stream and of another one have times."""
    wider: int
    """By so many bits slices are made wider to be few."""


@contextmanager
def judged(
    rows: DataFrame,
    streams: int,
    terms: Terms,
    by: Sequence[str] = (),
    *,
    scan: DataFrame | None = None,
    count: int | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[JudgedAudit]:
    """Judges rows of `streams.COLUMNS`, and of `by`; `notify` is called with each
    step that begins.

    `scan` are their pieces and bundles (`scanning`) and `count` how many rows there are at most,
    where these are known otherwise than from the rows.

    Raises:
        ConfigurationError: rows have no places, or one is taken twice.
    """
    audit = _Audit(streams, terms, by, notify)
    try:
        yield audit.of(rows, scanned(rows, by) if scan is None else scan, count)
    finally:
        for frame in audit.kept:
            frame.unpersist()


class _Audit:
    """All steps of an audit, in order."""

    def __init__(
        self, streams: int, terms: Terms, by: Sequence[str], notify: Callable[[str], None]
    ) -> None:
        self._streams = streams
        self._terms = terms
        self._by = by
        self._notify = notify
        self._faults = _Faults(by)
        self.kept: list[DataFrame] = []

    def _keep(self, frame: DataFrame) -> DataFrame:
        self.kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return self.kept[-1]

    def of(self, rows: DataFrame, scan: DataFrame, count: int | None) -> JudgedAudit:
        by, terms = self._by, self._terms
        if count is None:
            self._notify("counting")
            count = rows.count()
        self._notify("looking at each row, and bringing events together")
        screen = self._screened(scan, count)
        slices = pieces_of(screen)
        heads = self._keep(heads_of(slices, by, terms.widths))
        streams = heads.collect()
        if unplaced := sum(row.unplaced for row in streams):
            raise ConfigurationError(
                f"{unplaced:,} rows have no offset, so that their order is unknown: "
                "write them with their offsets"
            )
        if any(row.refused for row in streams):
            self._faults.add(_refused(rows, by), 0)
        if any(row.left_out for row in streams):
            self._notify("looking again, without older incarnations")
            rows, slices = current(rows, heads, by), current(slices, heads, by)
            screen = self._screened(scanned(rows, by), count)
        self._notify("comparing each stream with its own stables")
        several = sum(row.slices for row in streams)
        wider = (several // MOST_SLICES).bit_length()
        bounds = self._keep(doubted(slices, by, wider=wider))
        if not bounds.isEmpty():
            self._faults.add(beyond_stables(rows, bounds, by, wider=wider), 1)
        twice, totals, differences = self._events(rows, heads, screen)
        found: dict[Case, dict[int, StreamSummary]] = defaultdict(dict)
        for row in streams:
            found[_case(row, by)][row.stream] = _audited(row, terms)
        findings = {}
        for case in found if by else [()]:
            known = [
                found[case].get(n, StreamSummary(keyed=terms.keyed)) for n in range(self._streams)
            ]
            again = [twice.get((case, n), 0) for n in range(self._streams)]
            faults = self._faults.of(case)
            findings[case] = AuditFindings(
                streams=[replace(a, doubled=t) for a, t in zip(known, again, strict=True)],
                faults=faults,
                differences=[] if faults else differences.get(case, []),
                differences_total=0 if faults else totals.get(case, 0),
                before=_before(known, terms),
                since=terms.since,
            )
        timed = {row.stream == 0 for row in streams if row.to is not None}
        few = (several // _COLLECTED).bit_length()
        return JudgedAudit(findings, rows, slices, delays_of(screen), timed == {False, True}, few)

    def _screened(self, scan: DataFrame, count: int) -> DataFrame:
        parallel = scan.sparkSession.sparkContext.defaultParallelism
        pieces = max(parallel, -(-count // _OF_A_PIECE))
        return self._keep(screened(scan, self._streams, pieces=pieces))

    def _events(
        self, rows: DataFrame, heads: DataFrame, screen: DataFrame
    ) -> tuple[_Doubled, _Totals, _Differences]:
        """Doubled inserts, and differences of streams that are legal."""
        by, terms, streams = self._by, self._terms, self._streams
        point = _point(heads, streams) if terms.clipped and not by else None
        hashes = odd_of(screen, point)
        if not _any_odd(hashes):
            return {}, {}, {}
        self._notify("looking at events that are not plain")
        elements = elements_about(rows, hashes, by)
        if terms.clipped:
            elements = _pointed(elements, heads, streams, by)
        elements = self._keep(elements)
        self._faults.add(broken_chains(elements, by, keyed=terms.keyed), 2)
        again = doubled(elements, by, keyed=terms.keyed).collect()
        twice = {(_case(row, by), row.stream): row.doubled for row in again}
        if self._faults.found and not by:
            return twice, {}, {}
        unlike = self._keep(
            disagreements(
                elements, by, streams, keyed=terms.keyed, clipped=terms.clipped, since=terms.since
            )
        )
        totals = _totals(unlike, by)
        if not totals:
            return twice, {}, {}
        return twice, totals, _differences(unlike, streams, by, None if by else terms.most)


def _case(row: Any, by: Sequence[str]) -> Case:
    return tuple(row[name] for name in by)


_NOTHING: Final = Held(0, 0, 0)


def _before(streams: Sequence[StreamSummary], terms: Terms) -> int | None:
    """The point before which streams are compared.

    Raises:
        ConfigurationError: nothing that is known is final in all of them.
    """
    if not terms.clipped:
        return None
    point = min(each.stable for each in streams)
    if point < terms.since:
        raise ConfigurationError(
            f"nothing can be compared: all are known from {terms.since} on only, and final before "
            f"{point} only"
        )
    return point


def _audited(row: Any, terms: Terms) -> StreamSummary:
    held = terms.held.get(row.stream, _NOTHING)
    counted = held if row.last == held.incarnation else _NOTHING
    passed = 0 if counted is held else held.inserts + held.stables
    return StreamSummary(
        inserts=row.inserts - counted.inserts,
        adjusts=row.adjusts,
        stables=row.stables - counted.stables,
        held=counted.inserts,
        removals=row.removals,
        refused=row.refused,
        left_out=row.left_out - passed,
        stable=row.stable,
        keyed=terms.keyed,
    )


class _Faults:
    """The first fault of each partition; at one place that of the lowest rank."""

    def __init__(self, by: Sequence[str]) -> None:
        self._by = by
        self.found: dict[tuple[Case, int, int], tuple[int, int, IllegalElement]] = {}

    def add(self, frame: DataFrame, rank: int) -> None:
        for row in frame.collect():
            values = row.asDict()
            if rank:
                fault = IllegalElement.of_element(values, row.stable)
            else:
                fault = IllegalElement(row.stream, row.partition, row.place, row.why)
            partition = _case(row, self._by), row.stream, row.partition
            this = row.place, rank, fault
            self.found[partition] = min(
                this, self.found.get(partition, this), key=lambda known: known[:2]
            )

    def of(self, case: Case) -> list[IllegalElement]:
        of_case = sorted(key for key in self.found if key[0] == case)
        return [self.found[key][2] for key in of_case]


def _refused(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Of each partition the first record that is no element."""
    refused = rows.where(F.col("reason").isNotNull())
    first = F.min_by(F.col("message"), F.col("place"))
    return refused.groupBy(*by, "stream", "partition").agg(
        F.min("place").alias("place"), first.alias("why")
    )


def _point(heads: DataFrame, streams: int) -> int:
    """The lowest stable point of the streams of the one audit."""
    stables = [row.stable for row in heads.collect()]
    return min(stables) if len(stables) == streams else START


def _pointed(rows: DataFrame, heads: DataFrame, streams: int, by: Sequence[str]) -> DataFrame:
    """With `point`, the lowest stable point of the streams of its audit."""
    lowest = F.when(F.count("*") == streams, F.min("stable")).otherwise(F.lit(START))
    points = F.broadcast(heads.groupBy(*by).agg(lowest.alias("point")))
    return rows.join(points, list(by)) if by else rows.crossJoin(points)


def _any_odd(hashes: DataFrame) -> bool:
    counted = hashes.agg(F.count("*").alias("keys"), F.sum("twice").alias("twice")).collect()
    [(count, twice)] = counted
    if twice:
        raise ConfigurationError(
            f"{twice:,} rows have the source, partition and offset of another: they are there twice"
        )
    return bool(count)


def _totals(unlike: DataFrame, by: Sequence[str]) -> dict[Case, int]:
    keys = unlike.select(*by, "payload", "vs").distinct()
    counted = keys.groupBy(*by).agg(F.count("*").alias("keys")).collect()
    return {_case(row, by): row["keys"] for row in counted if row["keys"]}


def _differences(
    unlike: DataFrame, streams: int, by: Sequence[str], most: int | None
) -> dict[Case, list[Difference]]:
    if most is not None:
        keys = unlike.select(*by, "vs", "payload").distinct().orderBy("vs", "payload").limit(most)
        unlike = unlike.join(F.broadcast(keys), [*by, "vs", "payload"], "left_semi")
    ends: dict[tuple[Case, int, str], list[list[int]]] = {}
    for row in unlike.collect():
        key = _case(row, by), row.vs, row.payload
        sides = ends.setdefault(key, [[] for _ in range(streams)])
        counts = [row[f"count{n}"] for n in range(streams)]
        for side, times in zip(sides, counts, strict=True):
            side.extend([row.end] * (times - min(counts)))
    found: dict[Case, list[Difference]] = defaultdict(list)
    for case, vs, payload in sorted(ends, key=lambda key: (key[1], key[2].encode())):
        sides = ends[case, vs, payload]
        held = tuple(tuple(sorted(each)) for each in sides)
        found[case].append(Difference(payload.encode(), vs, held))
    return found
