"""The audit of a table topic: are its rows what the output is, and its offsets where they belong?

Theory
    Partition by partition the table is read to its end, and the output beside it, each record of
    the table when the output has come to its `lmerge-output-to`:

        output    ins A,9  ins B,9 │ adj A→12  stable 5 │ stable 7
        table     A,9 [0,2) B,9 [0,2)  A,12 [2,4)
                                   ▲ two records are checked here    ▲ the third one here

    Of the records of a key in a transaction the last counts. One with a value is right if its event
    is then what the value is, and was changed last within the offsets of its headers, or before
    them if the table became whole with its transaction; one without, if no event of its key is live
    then. Offsets never fall. Records of before the table was whole are read, and not checked.

    In the end whoever has loaded the table follows the output, as a consumer does
    (docs/table-topic.md). What it has by then must be all events that are live, and no event that
    the output does not have. Final ones may be gone; with `keep`, only those that have been final
    for as long, by the times of the output's stables.

    What compaction has removed is not there to be checked. Of an output that has lost its beginning
    the audit begins at a snapshot: records of before are not checked, and of the rows those that
    end at its stable point or later.

Cost
    Memory for the output's events and the table's records; O(1) for each record of either.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from lmerge_service.elements import INFINITY, START, Insert, Stable
from lmerge_service.errors import ConfigurationError, ElementError, IllegalStreamError, StateError
from lmerge_service.formats.headers import RecordLike, TimedRecord, incarnation_of
from lmerge_service.formats.table import RowKeys, number_of, offsets_of
from lmerge_service.formats.wire import WireDecoder

if TYPE_CHECKING:
    from lmerge_service.kafka.connection import Connection
    from lmerge_service.merge.snapshots.beginnings import PartitionStart

__all__ = ("PartitionAudit", "TableDivergence", "TableVerdict", "audit_table", "verdict_of")


class _RowKey(msgspec.Struct):
    vs: int
    digest: str
    ve: int | None = None
    n: int | None = None


_read_key = msgspec.json.Decoder(_RowKey).decode


@dataclass(frozen=True, slots=True)
class TableDivergence:
    """Where the table is not what the output is."""

    partition: int
    key: str
    """The row's, as it is or should be."""
    offset: int | None
    """Of the table's record; None: there is none."""
    why: str
    """With the output's offset, where there is one."""


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """What the audit of a table has found."""

    output: str
    table: str
    rows: int
    live: int
    """Events of the output that are live: all of them must be rows."""
    checked: int
    """Records of the table whose offsets were checked."""
    since: int
    """The events that end at this time or later are known; START: all are."""
    divergences: list[TableDivergence]

    @property
    def matches(self) -> bool:
        return not self.divergences


@dataclass(frozen=True, slots=True)
class _Row:
    offset: int
    key: bytes
    event: Insert[bytes] | None
    """None: it is removed, or there is a fault."""
    fault: str | None
    """Why it is no row."""
    span: tuple[int, int] | None
    incarnation: int


@dataclass(slots=True)
class _Held:
    """What the output has of a payload and vs."""

    ends: Counter[int]
    logical: bytes | None
    changed: int | None
    """The offset of the last record about it; None: it is of a snapshot."""


class PartitionAudit:
    """Of one partition: `load` the table, then `take` the output, then `finish`."""

    def __init__(self, partition: int, table: str, decoder: WireDecoder, keep: int | None) -> None:
        """`keep` is in seconds; None: nothing is known of how long final events are kept."""
        self.since = START
        self.checked = 0
        self.divergences: list[TableDivergence] = []
        self._partition, self._table, self._keep = partition, table, keep
        self._decoder = decoder
        self._rows: list[_Row] = []
        self._next = self._first = 0
        """The row that is checked next; the first one of the table since it is whole."""
        self._held: dict[tuple[bytes, int], _Held] = {}
        self._payloads: dict[tuple[str, int], bytes] = {}
        """By digest and vs."""
        self._stable, self._incarnation, self._known_from = START, 0, 0
        self._stables: list[tuple[int, int]] = []
        """Stable points, and when they were published, in milliseconds."""
        self.rows = self.live = 0
        self._superseded: set[int] = set()
        """Offsets of records that are not the last of their key in a transaction."""
        self._latest: dict[bytes, _Row] = {}
        self._followed: Counter[tuple[bytes, int, int]] | None = None
        """What a consumer has, once it follows the output."""
        self._follows_from = 0
        self._is_multiset = self._is_keyed = False

    # --- the table ------------------------------------------------------------------------------

    def load(self, records: Iterable[RecordLike]) -> None:
        """Takes the next records of the table.

        Raises:
            ElementError: a header is not what it must be.
        """
        for record in records:
            try:
                incarnation, _ = incarnation_of(record.headers)
                span = offsets_of(record.headers)
            except ElementError as error:
                where = f"{self._table}-{self._partition} at offset {record.offset}"
                raise ElementError(error.reason, f"{where}: {error}") from None
            event, fault = self._event(record.value)
            self._rows.append(
                _Row(record.offset, record.key or b"", event, fault, span, incarnation)
            )

    def _event(self, value: bytes | None) -> tuple[Insert[bytes] | None, str | None]:
        """A row's event, None where it is removed; and why it is no row."""
        if value is None:
            return None, None
        try:
            element = self._decoder.decode(value)
        except ElementError as error:
            return None, str(error)
        return (element, None) if type(element) is Insert else (None, "it is no insert")

    def loaded(self) -> None:
        """All of it.

        Raises:
            ConfigurationError: the table is not whole.
        """
        if not self._rows:
            return
        if (span := self._rows[-1].span) is None:
            raise ConfigurationError(
                f"kafka:{self._table}: partition {self._partition} is not whole, so that nobody "
                "may begin with it: its last record has no offsets of the output; audit it once a "
                "worker with `output.table: true` has filled it"
            )
        self._follows_from = span[1]
        filled = (at for at, row in enumerate(self._rows, 1) if row.span is None)
        self._next = self._first = max(filled, default=0)
        valued = (row.key for row in reversed(self._rows) if row.event is not None)
        key = next(valued, b"")  # what is removed may be another table's, of before
        self._is_multiset, self._is_keyed = number_of(key) is not None, key[:7] == b'{"key":'
        later = set[tuple[bytes, tuple[int, int] | None]]()
        for row in reversed(self._rows):
            if (row.key, row.span) in later:
                self._superseded.add(row.offset)
            later.add((row.key, row.span))

    # --- the output -----------------------------------------------------------------------------

    def begin(self, beginning: "PartitionStart", incarnation: int) -> None:
        """Begins with what a snapshot has of the output, in the latest incarnation of all."""
        self._incarnation, self._known_from = incarnation, beginning.offset
        self._stable = self.since = beginning.stable
        for insert in beginning.inserts(self._decoder):
            self._add(insert.payload, insert.vs, insert.ve, None, None)

    def take(self, records: Iterable[TimedRecord]) -> None:
        """Takes the next records of the output.

        Raises:
            ElementError, IllegalStreamError: one is none, or may not be there.
        """
        for record in records:
            self._check_before(record.offset)
            if record.offset >= self._follows_from and self._followed is None:
                self._follow()
            self._apply(record)

    def _apply(self, record: TimedRecord) -> None:
        incarnation, since = incarnation_of(record.headers)
        if incarnation < self._incarnation:
            return
        if incarnation > self._incarnation:
            self._incarnation, self.since, self._stable = incarnation, since, START
            self._held, self._stables = {}, []
            if self._followed is not None:
                self._followed.clear()
        element = self._decoder.decode(record.value)
        if isinstance(element, Stable):
            self._stable = max(self._stable, element.vc)
            self._stables.append((self._stable, record.timestamp))
            return
        payload, vs, ve = element.payload, element.vs, element.ve
        vold = None if type(element) is Insert else element.vold  # type: ignore[union-attr]
        if vold is not None:
            held = self._held.get((payload, vs))
            if held is None or not held.ends[vold]:
                raise IllegalStreamError(
                    f"offset {record.offset} of the output: not a legal stream: adjust of an event "
                    f"[{vs}, {vold}) that it does not hold"
                )
            held.ends[vold] -= 1
            held.changed = record.offset
            held.ends += Counter()
        if ve != vs:
            self._add(payload, vs, ve, record.key, record.offset)
        if self._followed is not None:
            self._revise(payload, vs, vold, ve)

    def _add(self, payload: bytes, vs: int, ve: int, logical: bytes | None, at: int | None) -> None:
        held = self._held.get((payload, vs))
        if held is None:
            held = self._held[payload, vs] = _Held(Counter(), logical, at)
            digest = _read_key(RowKeys(multiset=False, keyed=False).of(None, payload, vs, ve))
            self._payloads[digest.digest, vs] = payload
        held.ends[ve] += 1
        held.changed, held.logical = at, logical or held.logical

    # --- records where they stand ---------------------------------------------------------------

    def _check_before(self, offset: int | None) -> None:
        """Checks the rows that contain the output up to before an offset; None: all that are left.
        What the output has is as of there."""
        while self._next < len(self._rows):
            row = self._rows[self._next]
            if offset is not None and row.span is not None and row.span[1] > offset:
                return
            self._next += 1
            if row.span is not None and row.offset not in self._superseded:
                self._check(row, *row.span)

    def _check(self, row: _Row, start: int, end: int) -> None:
        before = self._rows[self._next - 2].span if self._next > self._first + 1 else None
        if start > end or (before is not None and before[1] > end):
            was = "" if before is None else f" behind [{before[0]}, {before[1]})"
            self._differs(row.key, row.offset, f"its offsets are [{start}, {end}){was}: they fell")
        if end < self._known_from or row.incarnation != self._incarnation:
            return
        self.checked += 1
        if row.fault is not None:
            return
        if (event := row.event) is None:
            self._check_removal(row, end)
            return
        if event.ve < self.since:
            return
        held = self._held.get((event.payload, event.vs))
        number = (number_of(row.key) or 0) if self._is_multiset else 0
        if held is None or held.ends[event.ve] <= number:
            has = "does not have the event" if held is None else f"has it {_ends(held)}"
            self._differs(
                row.key,
                row.offset,
                f"the row is {_until(event.ve)}, and the output {has} before offset {end}",
            )
            return
        knows_key = held.logical is not None or not self._is_keyed
        key = self._key(event.payload, event.vs, event.ve, number, held.logical)
        if knows_key and row.key != key:
            self._differs(row.key, row.offset, f"the key of its event is {key.decode()}")
        # The transaction that makes the table whole writes rows of events from before as well.
        earliest = START if (start, end) == self._rows[self._first].span else start
        if held.changed is not None and start < end and not earliest <= held.changed < end:
            self._differs(
                row.key,
                row.offset,
                f"the output's record about it is at offset {held.changed}, not in "
                f"[{start}, {end})",
            )

    def _check_removal(self, row: _Row, end: int) -> None:
        try:
            key = _read_key(row.key)
        except (msgspec.MsgspecError, ValueError):  # of others, before the table was whole
            return
        payload = self._payloads.get((key.digest, key.vs))
        held = None if payload is None else self._held.get((payload, key.vs))
        if held is None:
            return
        ve = INFINITY if key.ve is None else key.ve
        if row.key != self._key(payload or b"", key.vs, ve, key.n or 0, held.logical):
            return
        ends = held.ends if key.n is None else {ve: held.ends[ve] - key.n}
        if any(count > 0 and self._is_live(each) for each, count in ends.items()):
            what = f"the output has it {_ends(held)}, live, before offset {end}"
            self._differs(row.key, row.offset, f"the row is removed, and {what}")

    # --- who follows ----------------------------------------------------------------------------

    def _follow(self) -> None:
        """Begins with the table, as a consumer does that has loaded it."""
        incarnation = max((row.incarnation for row in self._rows), default=0)
        for row in self._rows:
            if row.incarnation == incarnation:
                self._latest[row.key] = row
        if incarnation < self._incarnation:
            self._latest.clear()
        self._followed = Counter(
            (row.event.payload, row.event.vs, row.event.ve)
            for row in self._latest.values()
            if row.event is not None
        )

    def _revise(self, payload: bytes, vs: int, vold: int | None, ve: int) -> None:
        """What is not there was removed since, and the tombstone is gone."""
        followed = self._followed
        assert followed is not None
        if vold is not None:
            if not followed[payload, vs, vold]:
                return
            followed[payload, vs, vold] -= 1
        if ve != vs:
            followed[payload, vs, ve] += 1

    def finish(self, now: int) -> None:
        """All of both was taken; `now` is in milliseconds since the epoch."""
        self._check_before(None)
        if self._followed is None:
            self._follow()
        self.rows = sum(row.event is not None for row in self._latest.values())
        for row in self._latest.values():
            if row.fault is not None:
                self._differs(row.key, row.offset, f"it is no row of a table: {row.fault}")
        followed = self._followed
        assert followed is not None
        for (payload, vs), held in self._held.items():
            for ve, count in held.ends.items():
                live = self._is_live(ve)
                self.live += count if live else 0
                if followed[payload, vs, ve] < count and (live or self._is_kept(ve, now)):
                    self._lacks(payload, vs, ve, held, "live" if live else "kept")
        for (payload, vs, ve), count in followed.items():
            there = self._held.get((payload, vs))
            if ve >= self.since and count > (0 if there is None else there.ends[ve]):
                self._is_stale(payload, vs, ve, there)

    def _lacks(self, payload: bytes, vs: int, ve: int, held: _Held, why: str) -> None:
        key = self._key(payload, vs, ve, 0, held.logical)
        at = "" if held.changed is None else f" since offset {held.changed}"
        how = "live" if why == "live" else f"final for less than {self._keep} s"
        self._differs(
            key, None, f"there is no row, and the output has the event{at}, {_until(ve)}, {how}"
        )

    def _is_stale(self, payload: bytes, vs: int, ve: int, held: _Held | None) -> None:
        rows = [
            row
            for row in self._latest.values()
            if row.event is not None and row.event == Insert(payload, vs, ve)
        ]
        key, offset = (rows[-1].key, rows[-1].offset) if rows else (b"", None)
        if held is None or not +held.ends:
            what = "the output has no such event"
        else:
            at = "" if held.changed is None else f" since offset {held.changed}"
            what = f"the output has it {_ends(held)}{at}"
        self._differs(key, offset, f"the row is {_until(ve)}, and {what}")

    # --- words ----------------------------------------------------------------------------------

    def _is_live(self, ve: int) -> bool:
        return self._stable != INFINITY and ve >= self._stable

    def _is_kept(self, ve: int, now: int) -> bool:
        """A final event, of which it is known that it has not been final for `keep`."""
        if self._keep is None or ve < self.since:
            return False
        at = bisect_right(self._stables, (ve, 1 << 63))
        passed = self._stables[at][1] if at < len(self._stables) else None
        return passed is not None and now - passed < self._keep * 1_000

    def _key(self, payload: bytes, vs: int, ve: int, number: int, logical: bytes | None) -> bytes:
        keys = RowKeys(multiset=self._is_multiset, keyed=self._is_keyed)
        return keys.of(logical, payload, vs, ve, number)

    def _differs(self, key: bytes, offset: int | None, why: str) -> None:
        text = key.decode(errors="backslashreplace")
        self.divergences.append(TableDivergence(self._partition, text, offset, why))


def _ends(held: _Held) -> str:
    ends = ", ".join(map(_until, sorted((+held.ends).elements())))
    return ends or "removed"


def _until(ve: int) -> str:
    return "without end" if ve == INFINITY else f"up to {ve}"


async def audit_table(
    connection: "Connection", topic: str, decoder: WireDecoder, *, keep: int | None, now: int
) -> TableVerdict:
    """Compares a merge's output with its table, both as they are now. Events that have been final
    for less than `keep` seconds must be there; None: final ones may be gone. `now` is in
    milliseconds since the epoch.

    Raises:
        ConfigurationError: there is no such output, or no table of it that is whole.
        TransportError: Kafka cannot be reached, or refuses; a transaction is left open.
        ElementError, IllegalStreamError: of a record that may not be there.
    """
    from lmerge_service.config.topology import Output
    from lmerge_service.kafka.source import Source, TopicPartition
    from lmerge_service.kafka.topics import Topics
    from lmerge_service.merge.snapshots.beginnings import beginnings_of, latest

    table = Output(topic=topic).table_topic
    async with Topics(connection) as topics:
        widths = {name: await topics.width(name) for name in (topic, table)}
    for name, width in widths.items():
        if width is None:
            hint = "" if name == topic else "; `output.table: true` makes one"
            raise ConfigurationError(
                f"kafka:{name}: there is no such topic at {connection.bootstrap}{hint}"
            )
    width = widths[topic] or 0
    if widths[table] != width:
        raise ConfigurationError(
            f"kafka:{table} has {widths[table]} partitions, and the output has {width}: it is of "
            "another output"
        )
    audits = [PartitionAudit(number, table, decoder, keep) for number in range(width)]
    rows, places = ([TopicPartition(n, p) for p in range(width)] for n in (table, topic))
    async with Source(connection) as source:
        starts = await source.beginnings(rows)
        async for tp, records in source.backlog(starts, await source.settled(rows)):
            audits[tp.partition].load(records)
        for each in audits:
            each.loaded()
        ends, starts = await source.settled(places), await source.beginnings(places)
        if any(starts.values()):
            try:
                begun = await beginnings_of(source, topic, width)
            except StateError as error:
                why = f"kafka:{topic} has lost its beginning, and cannot be audited: {error}"
                raise ConfigurationError(why) from None
            incarnation, _, held = latest(begun)
            starts = {tp: each.offset for tp, each in zip(places, held, strict=True)}
            for audit, beginning in zip(audits, held, strict=True):
                audit.begin(beginning, incarnation)
        async for tp, found in source.backlog(starts, ends):
            audits[tp.partition].take(found)
    for each in audits:
        each.finish(now)
    return verdict_of(f"kafka:{topic}", f"kafka:{table}", audits)


def verdict_of(output: str, table: str, audits: "Sequence[PartitionAudit]") -> TableVerdict:
    """Of all partitions."""
    return TableVerdict(
        output,
        table,
        sum(each.rows for each in audits),
        sum(each.live for each in audits),
        sum(each.checked for each in audits),
        max(each.since for each in audits),
        [found for each in audits for found in each.divergences],
    )
