"""Who reads a table topic as other languages do: rows by key, then the output behind them.

Nothing of the service is used but the names of the headers, so that what the page promises is what
is checked (docs/table-topic.md). `Row` is what a row of `upsert-kafka` is.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmerge_service.elements import INFINITY, START

__all__ = ("TableRecord", "TableView", "TopicEvents", "live", "reconstituted", "sorted_events")

TopicEvents = Counter[tuple[str, int, int]]
"""How often there is which event: payload as text, vs, ve."""


class TableRecord(Protocol):
    """A Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Any: ...


def _incarnation(record: TableRecord) -> int:
    return int(dict(record.headers).get("lmerge-incarnation", 0))


def _latest(output: Iterable[TableRecord], least: int = 0) -> list[TableRecord]:
    """Those of the last incarnation, which is `least` at the least: it may have none yet."""
    records = list(output)
    last = max(least, *map(_incarnation, records), 0)
    return [each for each in records if _incarnation(each) == last]


def _text(payload: Any) -> str:
    return json.dumps(payload, sort_keys=True)


def _end(element: Mapping[str, Any], name: str = "ve") -> int:
    return INFINITY if element[name] is None else int(element[name])


@dataclass(slots=True)
class TableView:
    """One partition, loaded from the table and then followed in the output."""

    rows: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """By record key: the latest value, unless that is a tombstone."""
    follow_from: int | None = None
    """What `lmerge-output-from` of the last record is; None: it had none."""
    contains_to: int | None = None
    """What `lmerge-output-to` of the last record is."""
    incarnation: int = 0
    """Of the output, by the last record."""
    seen: int = 0

    def load(self, record: TableRecord) -> None:
        """The next record of the table topic."""
        assert record.key is not None
        headers = dict(record.headers)
        start, end = headers.get("lmerge-output-from"), headers.get("lmerge-output-to")
        assert (start is None) == (end is None), headers
        self.follow_from = None if start is None else int(start)
        self.contains_to = None if end is None else int(end)
        if _incarnation(record) > self.incarnation:
            self.rows, self.incarnation = {}, _incarnation(record)
        self.seen += 1
        if record.value is None:
            self.rows.pop(record.key, None)
            return
        key, value = json.loads(record.key), json.loads(record.value)
        assert key["vs"] == value["vs"], (key, value)
        assert value["op"] == "insert", value
        self.rows[record.key] = value

    @property
    def is_whole(self) -> bool:
        """The last record has offsets."""
        return self.contains_to is not None

    def events(self) -> TopicEvents:
        """What the rows are."""
        return Counter((_text(e["payload"]), e["vs"], _end(e)) for e in self.rows.values())

    def followed(self, output: Iterable[TableRecord], *, start: int, keyed: bool) -> TopicEvents:
        """What they become with the output's records from an offset on, as upserts: what is not
        there cannot be revised, and is not removed. Where the output starts over, so do they.
        `keyed`: no two events have the same payload and vs (R3), which no row may be left to
        show."""
        incarnation = self.incarnation
        following = _Following(self.events(), keyed=keyed)
        for record in output:
            if record.offset >= start and record.value is not None:
                if _incarnation(record) > incarnation:
                    following = _Following(Counter(), keyed=keyed)
                    incarnation = _incarnation(record)
                following.apply(json.loads(record.value))
        return following.events()

    def stable(self, output: Iterable[TableRecord]) -> int:
        """The highest stable in the output's last incarnation."""
        records = _latest(output, self.incarnation)
        stables = (json.loads(r.value) for r in records if r.value is not None)
        return max((_end(e, "vc") for e in stables if e["op"] == "stable"), default=START)


class _Following:
    """Events, and what elements make of them."""

    def __init__(self, events: TopicEvents, *, keyed: bool) -> None:
        self._events, self._keyed = events, keyed
        self._ends = {(payload, vs): ve for payload, vs, ve in events} if keyed else {}

    def apply(self, element: Mapping[str, Any]) -> None:
        if element["op"] == "stable":
            return
        payload, vs, ve = _text(element["payload"]), element["vs"], _end(element)
        if self._keyed:  # (payload, vs) is a key: the latest end holds
            self._ends.pop((payload, vs), None)
            if ve != vs:
                self._ends[payload, vs] = ve
            return
        if element["op"] == "adjust":
            vold = _end(element, "vold")
            if not self._events[payload, vs, vold]:
                return
            self._events[payload, vs, vold] -= 1
        if ve != vs:
            self._events[payload, vs, ve] += 1

    def events(self) -> TopicEvents:
        if self._keyed:
            return Counter((payload, vs, ve) for (payload, vs), ve in self._ends.items())
        return +self._events


def reconstituted(
    output: Iterable[TableRecord], *, keyed: bool, incarnation: int = 0
) -> TopicEvents:
    """What the whole output is, in its last incarnation, which may have begun already without a
    record."""
    following = _Following(Counter(), keyed=keyed)
    for record in _latest(output, incarnation):
        if record.value is not None:
            following.apply(json.loads(record.value))
    return following.events()


def live(events: TopicEvents, stable: int) -> TopicEvents:
    """Those of which a stable leaves anything open."""
    if stable == INFINITY:
        return Counter()
    return Counter({each: count for each, count in events.items() if each[2] >= stable})


def sorted_events(events: TopicEvents) -> list[tuple[str, int, int]]:
    """For messages."""
    return sorted(events.elements())
