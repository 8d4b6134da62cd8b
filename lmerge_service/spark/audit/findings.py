"""What an audit found, as plain values: of each stream, of their first faults and differences.

Theory
    Nothing here needs Spark. A fault is worded by `tdb`: the violation of a TDB that is as
    stable as the stream was.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Difference

__all__ = (
    "AuditFindings",
    "AuditReport",
    "Freshness",
    "IllegalElement",
    "StreamProgress",
    "StreamSummary",
)


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What one stream consists of; of its last incarnation only."""

    inserts: int = 0
    adjusts: int = 0
    stables: int = 0
    removals: int = 0
    """Adjusts that take an event away; they are among `adjusts`."""
    refused: int = 0
    """Records that are no elements, of any incarnation."""
    left_out: int = 0
    """Records of older incarnations."""
    stable: int = START
    held: int = 0
    """Live events of a snapshot, which it began with."""
    doubled: int = 0
    """Inserts of a (payload, vs) that the stream held already: no key, then, or a repetition."""
    restarts: ClassVar[tuple[()]] = ()
    """An audit in Spark does not judge older incarnations."""
    keyed: bool = False
    """Such an insert gives the event another end (case R3), instead of being another event."""

    @property
    def events(self) -> int:
        """How many the TDB of a legal stream holds."""
        return self.held + self.inserts - self.removals - (self.doubled if self.keyed else 0)

    @property
    def elements(self) -> int:
        return self.inserts + self.adjusts + self.stables

    @property
    def complete(self) -> bool:
        return self.stable == INFINITY


@dataclass(frozen=True, slots=True)
class IllegalElement:
    """The first thing in a partition of a stream that is not legal where it stands."""

    stream: int
    partition: int
    place: int
    why: str
    payload: str | None = None
    """Of the element, canonical."""

    @classmethod
    def of_element(cls, row: Mapping[str, Any], stable: int) -> "IllegalElement":
        """What is wrong with the element of a row, after `stable` in a stream without its event."""
        why = TDB((), stable).violation(_element(row))
        assert why is not None
        return cls(row["stream"], row["partition"], row["place"], why, row["payload"])


def _element(row: Mapping[str, Any]) -> Element:
    if row["vc"] is not None:
        return Stable(row["vc"])
    if row["vold"] is None:
        return Insert(row["payload"], row["vs"], row["ve"])
    return Adjust(row["payload"], row["vs"], row["vold"], row["ve"])


@dataclass(frozen=True, slots=True)
class AuditFindings:
    """Of streams that were audited together."""

    streams: Sequence[StreamSummary]
    faults: Sequence[IllegalElement]
    """The first of each partition, by stream and partition."""
    differences: Sequence[Difference]
    """The first few, by vs and payload; none of streams that are not legal."""
    differences_total: int
    before: int | None = None
    """They were compared as far as this point; None: as they stand."""
    since: int = START
    """They were compared by the events that end at this time or later; START: by all."""

    @property
    def legal(self) -> bool:
        return not self.faults

    @property
    def equivalent(self) -> bool:
        return self.legal and not self.differences_total


@dataclass(frozen=True, slots=True)
class Freshness:
    """How long after the first of the other streams the first stream emitted events.

    `delays` are (milliseconds, events), ascending; what is above a second has three digits.
    """

    delays: Sequence[tuple[int, int]]
    alone: int = 0
    """Events of the others that the first has not emitted."""

    @property
    def events(self) -> int:
        return sum(count for _, count in self.delays)

    def quantile(self, q: float) -> int | None:
        """The delay that a share `q` of the events does not exceed.

        >>> Freshness([(3, 98), (40, 1), (900, 1)]).quantile(0.99)
        40
        """
        left = q * self.events
        for delay, count in self.delays:
            left -= count
            if left <= 0:
                return delay
        return None


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How a stream came along: after each part of it, elements so far and its stable point."""

    timed: bool
    """`at` is the time of records, milliseconds since the epoch; else a share of the stream."""
    at: Sequence[float] = ()
    elements: Sequence[int] = ()
    stables: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that is handed on of an audit."""

    names: Sequence[str]
    findings: AuditFindings
    fault_places: Sequence[str] = ()
    """Where each fault is."""
    last_places: Mapping[tuple[Hashable, int], Sequence[Sequence[str]]] = field(
        default_factory=dict
    )
    """By (payload, vs) of a difference and by stream: where its last elements are."""
    freshness: Freshness | None = None
    """None where records have no time."""
    progress: Sequence[StreamProgress] = ()
    seconds: float = 0.0
