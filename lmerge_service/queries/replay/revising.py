"""Revisions by replay: part of the archived input is computed twice, without and with the revision,
and what differs is emitted.

Theory
    *Replay-All* computes the whole archive, *Replay-Minimal* what the touched results rest on.
    Either way the query runs in two fresh networks, and results that stay as they were, which a
    sequence that is longer than the minimal one gives, cancel out:

        archive ── range, group ──▶ old network ──▶ results ─┐
                        │                                    ├─▶ difference: net(new - old)
                        └ revision ▶ new network ──▶ results ┘

    What the results rest on is known from the plan (`reach`), or from the archived output, whose
    rows carry the numbers of what they were made of (`lineage`). Lineage has the old results only:
    a late insertion, and a replacement of what decides where a row goes (a condition, a key, a
    group), are looked up by the plan. Where the query divides its input by columns, only rows that
    agree with the revised one there are computed.

    The revision itself is archived, so that what comes later finds history as corrected.

Invariants
    V1  What all revisions emit turns the query's meaning of the input as it was into that of the
        corrected input, by whichever technique.
    V2  A revision that raises emits nothing and changes nothing.

Cost
    Two networks over the range; buckets are read once (`Archive.read` counts them).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ReplayError
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.netting import Data, net_change
from lmerge_service.queries.physical import PhysicalPlan, physical
from lmerge_service.queries.properties import partition_columns
from lmerge_service.queries.replay.archive import Archived, BucketArchive, events_of
from lmerge_service.queries.replay.difference import Events, difference
from lmerge_service.queries.replay.lineage import (
    Interval,
    intervals_of,
    numbered,
    placing_columns,
    rows_with,
    spans,
    with_lineage,
)
from lmerge_service.queries.replay.reach import Reach, reach

__all__ = (
    "Reviser",
    "Revision",
    "RevisionKind",
    "Technique",
    "computed",
)

Technique: TypeAlias = Literal["all", "minimal"]

_BATCH: Final = 10_000
"""So many events are computed at once."""


class RevisionKind(StrEnum):
    """What a revision does to the stream that it corrects."""

    REPLACEMENT = "replacement"
    DELETION = "deletion"
    LATE_INSERTION = "late insertion"


class Revision(msgspec.Struct, frozen=True):
    """A correction of a stream: `old` was there and is not any more, `new` is there."""

    source: str
    old: Insert[Any] | None = None
    new: Insert[Any] | None = None
    number: int | None = None
    """Of the old event in the archive, where it is known."""

    def __post_init__(self) -> None:
        if self.old is None and self.new is None:
            raise ValueError("a revision takes an event away, or adds one, or both")

    @property
    def kind(self) -> RevisionKind:
        if self.old is None:
            return RevisionKind.LATE_INSERTION
        return RevisionKind.DELETION if self.new is None else RevisionKind.REPLACEMENT

    @property
    def events(self) -> list[Insert[Any]]:
        """What it is about: one or two."""
        return [each for each in (self.old, self.new) if each is not None]

    @property
    def span(self) -> tuple[int, int]:
        """The least start and the greatest end of its events."""
        return min(each.vs for each in self.events), max(each.ve for each in self.events)

    @property
    def elements(self) -> list[Element]:
        """The same in the stream, as long as its stable point is below: the direct way."""
        found: list[Element] = []
        if self.old is not None:
            found.append(Adjust(self.old.payload, self.old.vs, self.old.ve, self.old.vs))
        if self.new is not None:
            found.append(self.new)
        return found


def computed(plan: PhysicalPlan, given: Mapping[str, Events]) -> Counter[tuple[Any, int, int]]:
    """The events of a query's result over whole inputs, by source, in a fresh network.

    Raises:
        ModuleError: user code raised.
    """
    network = plan.begin()
    events = [
        (vs, name, Insert(payload, vs, ve))
        for name, found in given.items()
        for (payload, vs, ve), times in found.items()
        for _ in range(times)
    ]
    events.sort(key=lambda each: each[0])
    results: Counter[tuple[Any, int, int]] = Counter()
    for at in range(0, len(events), _BATCH):
        batches: dict[str, list[Element]] = {name: [] for name in network.sources}
        for _, name, event in events[at : at + _BATCH]:
            batches[name].append(event)
        if at:  # what went before is final: nothing earlier comes
            stable = Stable(events[at][0])
            _count(results, network.process_batches({n: [stable] for n in batches}))
        _count(results, network.process_batches(batches))
    end: list[Element] = [Stable(INFINITY)]
    _count(results, network.process_batches(dict.fromkeys(network.sources, end)))
    return +results


def _count(results: Counter[tuple[Any, int, int]], elements: Iterable[Element]) -> None:
    for element in elements:
        if type(element) is Insert:
            results[element.payload, element.vs, element.ve] += 1
        elif type(element) is Adjust:
            results[element.payload, element.vs, element.vold] -= 1
            if element.ve > element.vs:
                results[element.payload, element.vs, element.ve] += 1


class Reviser:
    """Answers revisions of the input of a query by replay, of archives by source.

    `lineage` is the archive of the output, which `archive_output` fills; without it, what a
    revision touches follows from the plan.

    Raises:
        ConfigurationError: the query has no lineage.
    """

    def __init__(
        self,
        plan: Node,
        archives: Mapping[str, BucketArchive],
        technique: Technique = "minimal",
        lineage: BucketArchive | None = None,
    ) -> None:
        self.plan = plan
        self.archives = archives
        self.technique = technique
        self.lineage = lineage
        self.replayed = 0
        """How many archived events have been computed once more, in all."""
        self._sources = list(logical.sources(plan))
        self._width = len(logical.schema_of(plan))
        self._columns = partition_columns(plan) or {}
        self._produced = 0
        runs = plan
        if lineage is not None:
            rewritten = with_lineage(plan)
            if rewritten is None:
                raise ConfigurationError("rows of this query carry no lineage")
            runs = rewritten
            self._placing = placing_columns(plan)
        self._physical = physical(runs, emit="on_close")

    def archive_output(self, elements: Iterable[Element]) -> None:
        """Archives what the rewritten query (`lineage.with_lineage`) emits."""
        assert self.lineage is not None
        rows: list[Archived] = []
        at = self._produced
        for element in elements:
            if type(element) is Insert:
                rows.append(Archived(at, element.payload, element.vs, element.ve))
            elif type(element) is Adjust:
                payload, vs = element.payload, element.vs
                rows.append(Archived(at, payload, vs, element.vold, -1))
                if element.ve > vs:
                    rows.append(Archived(at, payload, vs, element.ve))
            at += 1
        self._produced = at
        self.lineage.append(rows)

    def revise(self, revision: Revision) -> list[Data]:
        """What the output emits by a revision; both are archived.

        Raises:
            ReplayError: it needs what has expired.
            ConfigurationError: the event that it takes away is not archived.
            ModuleError: user code raised.
        """
        for archive in self.all_archives():
            archive.flush()  # a replay sees everything before it
            archive.expire()
        touched = reach(self.plan, {revision.source: revision.span})
        history, number = self._history(revision, touched)
        old = {name: events_of(entries) for name, entries in history.items()}
        self.replayed += sum(each.total() for each in old.values())
        new = {**old, revision.source: self._revised(old[revision.source], revision, number)}
        changes = difference(*(computed(self._physical, each) for each in (old, new)))
        self._archive(revision, number)
        if self.lineage is None:
            return changes
        self.archive_output(changes)
        return net_change([_without(each, self._width) for each in changes])

    def all_archives(self) -> list[BucketArchive]:
        """Those of the input, and that of the output."""
        return [*self.archives.values(), *([] if self.lineage is None else [self.lineage])]

    # --- what is replayed -----------------------------------------------------------------------

    def replay_sequence(self, revision: Revision) -> dict[str, list[Archived]]:
        """What would be computed once more, by source.

        Raises:
            ReplayError: some of it has expired.
        """
        return self._history(revision, reach(self.plan, {revision.source: revision.span}))[0]

    def _history(
        self, revision: Revision, touched: Reach | None
    ) -> tuple[dict[str, list[Archived]], int]:
        """The entries to compute, and the number of the revised event."""
        number = self._number(revision)
        found = self._found(revision, number, touched)
        keys = self._keys(revision)
        if keys is not None:
            found = {n: self._of_group(n, entries, keys) for n, entries in found.items()}
        if self.lineage is not None:
            found = {name: [*numbered(entries)] for name, entries in found.items()}
        return found, number

    def _found(
        self, revision: Revision, number: int, touched: Reach | None
    ) -> dict[str, list[Archived]]:
        if self.technique == "all" or touched is None:
            return {name: self._whole(name, touched) for name in self._sources}
        if self.lineage is not None and self._stays(revision):
            return self._by_lineage(revision.source, number, touched)
        return {
            name: self.archives[name].scan(touched.since[name], touched.before[name])
            for name in self._sources
        }

    def _whole(self, name: str, touched: Reach | None) -> list[Archived]:
        archive = self.archives[name]
        needed = START if touched is None else touched.since[name]
        if archive.horizon > START and needed <= archive.horizon:
            raise ReplayError("it rests on all events that end at", needed, archive.horizon)
        return archive.scan(archive.horizon + 1 if archive.horizon > START else START)

    def _by_lineage(self, source: str, number: int, touched: Reach) -> dict[str, list[Archived]]:
        assert self.lineage is not None
        behind = min(touched.greatest, INFINITY - 1) + 1
        rows = events_of(self.lineage.scan(touched.least, behind))
        found = [(row, intervals_of(row[0], self._sources, self._width)) for row in rows]
        touching = rows_with(found, source, number)
        itself = {source: Interval(number, number)}
        wanted = spans([itself, *(intervals for _, intervals in touching)])
        return {
            name: self.archives[name].numbered(*wanted[name]) if name in wanted else []
            for name in self._sources
        }

    def _stays(self, revision: Revision) -> bool:
        """Whether the results that it changes are those that were made of the old event."""
        old, new = revision.old, revision.new
        if old is None or new is None:
            return new is None
        if (old.vs, old.ve) != (new.vs, new.ve):
            return False
        schema = logical.sources(self.plan)[revision.source].fields
        at = [schema.position(name) for name in self._placing[revision.source]]
        return all(old.payload[each] == new.payload[each] for each in at)

    def _keys(self, revision: Revision) -> set[tuple[Any, ...]] | None:
        """What the revised rows have where the query divides its input; None: it does not."""
        if revision.source not in self._columns:
            return None
        return {self._key(revision.source, each.payload) for each in revision.events}

    def _key(self, source: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        schema = logical.sources(self.plan)[source].fields
        return tuple(row[schema.position(name)] for name in self._columns[source])

    def _of_group(
        self, source: str, entries: list[Archived], keys: set[tuple[Any, ...]]
    ) -> list[Archived]:
        schema = logical.sources(self.plan)[source].fields
        at = [schema.position(name) for name in self._columns[source]]
        return [e for e in entries if tuple([e.payload[each] for each in at]) in keys]

    # --- the revision itself --------------------------------------------------------------------

    def _number(self, revision: Revision) -> int:
        """Of the old event; of a late insertion the next."""
        old, archive = revision.old, self.archives[revision.source]
        if old is None:
            return archive.next
        if revision.number is not None:
            return revision.number
        held: Counter[int] = Counter()
        for entry in archive.scan(old.ve, old.ve):
            if (entry.payload, entry.vs, entry.ve) == (old.payload, old.vs, old.ve):
                held[entry.sequence] += entry.times
        number = next((number for number, times in held.items() if times > 0), None)
        if number is None:
            raise ConfigurationError(f"{revision.source} has no event {old} that could be revised")
        return number

    def _revised(
        self, events: Counter[tuple[Any, int, int]], revision: Revision, number: int
    ) -> Counter[tuple[Any, int, int]]:
        revised = events.copy()
        end = (number,) if self.lineage is not None else ()
        if revision.old is not None:
            old = (*revision.old.payload, *end), revision.old.vs, revision.old.ve
            if not revised[old]:
                raise ConfigurationError(
                    f"{revision.source} has no event {revision.old} that could be revised"
                )
            revised[old] -= 1
        if revision.new is not None:
            revised[(*revision.new.payload, *end), revision.new.vs, revision.new.ve] += 1
        return +revised

    def _archive(self, revision: Revision, number: int) -> None:
        signed = ((revision.old, -1), (revision.new, 1))
        self.archives[revision.source].append(
            Archived(number, e.payload, e.vs, e.ve, times) for e, times in signed if e is not None
        )


def _without(change: Data, width: int) -> Data:
    """A change of a rewritten query's row as one of the query's own."""
    return msgspec.structs.replace(change, payload=change.payload[:width])
