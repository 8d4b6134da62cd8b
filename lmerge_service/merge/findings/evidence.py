"""Evidence: what a guard found, as a record of the topic `{output}.events`, for people.

Theory
    A quarantine at night is read in the morning. By then the replica's topic has moved on, and the
    operator has forgotten what it held. So what a person needs to judge it is written down at once:
    the place and text of the first offending record, the output's version at that time, and the
    version of every other replica.

    A guard may find the same thing a thousand times. The 1st, 2nd, 4th, 8th … of each kind and
    replica are published, each with its count: nothing is left out silently, since a later count
    covers what was not published, and `NotificationTally.counts` are metrics. Each gap that
    somebody accepts is published: it is the only record of the range that was lost. So is each step
    of a cutover.

Invariants
    X1  A record is bounded: of a foreign one `MAX_RECORD_BYTES` are kept, and `record_size` is its
        whole size.
    X2  Times are integers as they are inside; 9223372036854775807 is the end of time.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from lmerge_service.core import Breach, BreachKind
from lmerge_service.elements import START, Stable
from lmerge_service.merge.guards.verdicts import Action, Guard, Verdict
from lmerge_service.tdb import Event

__all__ = (
    "LASTING",
    "MAX_RECORD_BYTES",
    "Evidence",
    "NotificationKind",
    "NotificationTally",
    "RecordPlace",
    "ReportedVersion",
    "found",
    "with_versions",
)

MAX_RECORD_BYTES: Final = 4_096


class NotificationKind(StrEnum):
    """Kinds of notifications other than the guards' findings; the values never change."""

    QUARANTINED = "quarantined"
    RELEASED = "released"
    EXCLUDED = "excluded"
    """The replica cannot be merged: its topic is gone, or lost its beginning."""
    RECREATED = "recreated"
    """The replica's topic was recreated: it is merged from its beginning."""
    INCARNATION = "incarnation"
    """The replica has started over."""
    GAP = "gap"
    """No joined replica covers a range of time: the output waits."""
    ACCEPTED_GAP = "accepted_gap"
    """A person let the output go on without that range."""
    LET_GO = "let_go"
    """A held stable is merged after all: another replica came as far, or none is waited for."""
    PAUSED = "paused"
    RESUMED = "resumed"
    STUCK = "stuck"
    """Too many events are live, and no replica that is read can change that."""
    REBUILD = "rebuild"
    """The operator was rebuilt: after a start, a takeover or a failed commit."""
    RESTARTED = "restarted"
    """The output has started over, as a new incarnation: what it held before is known no more."""
    LOST = "lost"
    """This replica's stable came before events that another one has: the output lacks them."""
    DISAGREES = "disagrees"
    """This replica has other events than the output; the reason has the range of time, and where
    the replica published them."""
    LEADER = "leader"
    """This replica leads from now on; the reason names the one before, and why it does not."""
    CUTOVER = "cutover"
    """A cutover to this replica has begun, has moved on, is done, or was aborted."""


_EACH: Final = frozenset(
    {NotificationKind.ACCEPTED_GAP, NotificationKind.CUTOVER, NotificationKind.RESTARTED}
)


LASTING: Final = frozenset({NotificationKind.REBUILD.value})
"""Kinds that a task which continues from its last commit record does not find again."""


class RecordPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a replica's topic."""

    topic: str
    partition: int
    offset: int
    record: str = ""
    """The record's text, cut; bytes that are no UTF-8 are escaped."""
    record_size: int = 0
    """Of the whole record, in bytes; a merge in Spark hands elements on, and gives the size of the
    record that it would write for one."""

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, value: bytes | None) -> "RecordPlace":
        """With the record's text; that of a tombstone is empty."""
        whole = value or b""
        text = whole[:MAX_RECORD_BYTES].decode(errors="backslashreplace")
        return cls(topic, partition, offset, text, len(whole))


class ReportedVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The version of a replica, or of the output: its stable point, and the event's ends in it."""

    stable: int
    ends: tuple[int, ...] | None = None
    """None: not asked, or not known."""
    place: RecordPlace | None = None
    """The last record with this version."""


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One notification."""

    kind: str
    """A `Guard`, a `NotificationKind` or a `BreachKind`."""
    at_ms: int
    """Wall clock, milliseconds since the epoch."""
    task: int
    """The output partition."""
    replica: str | None = None
    action: Action | None = None
    count: int = 1
    """How many of this kind there were about this replica, in this process."""
    reason: str = ""
    remedy: str = ""
    first: RecordPlace | None = None
    """The first offending record; of conduct, the one at which it showed."""
    payload: str | None = None
    vs: int | None = None
    """The event that it is about."""
    output: ReportedVersion | None = None
    replicas: dict[str, ReportedVersion] = {}
    """The versions of the other replicas; of a divergence, also that of the one it is about."""
    id: str = ""
    """Of a record that may be written twice: the same in both."""

    def identified(self, by: str) -> "Evidence":
        """The same, with an id."""
        return replace(self, id=by)

    def to_record(self) -> tuple[bytes | None, bytes]:
        """Key (the replica) and value."""
        return (self.replica or "").encode() or None, msgspec.json.encode(self)

    @classmethod
    def of_record(cls, value: bytes) -> "Evidence":
        """Reads what `to_record` wrote.

        Raises:
            msgspec.MsgspecError: it did not write this.
        """
        return msgspec.json.decode(value, type=cls)


class NotificationTally:
    """Counts notifications, and decides which to publish: the 1st, 2nd, 4th, 8th, …

    >>> tally = NotificationTally()
    >>> [tally.admit(Guard.LEAP, "a") for _ in range(5)]
    [1, 2, None, 4, None]
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str | None]] = Counter()
        """All notifications, by kind and replica."""
        self.shown: Counter[tuple[str, str | None]] = Counter()
        """The same as it is shown: it does not fall when a failed commit is made again."""
        self._begun: Counter[tuple[str, str | None]] = Counter()
        self._committed: Counter[tuple[str, str | None]] = Counter()

    def admit(self, kind: Guard | NotificationKind | BreachKind, replica: str | None) -> int | None:
        """Its count, if it is to be published."""
        self.counts[kind.value, replica] += 1
        count = self.counts[kind.value, replica]
        self.shown[kind.value, replica] = max(self.shown[kind.value, replica], count)
        return count if count.bit_count() == 1 or kind in _EACH else None

    def begin(self) -> None:
        """A commit of all notifications so far begins."""
        self._begun = self.counts.copy()

    def commit(self) -> None:
        """It took place."""
        self._committed = self._begun

    def forget(self) -> None:
        """Uncommitted notifications are found again, but for those that are `LASTING`."""
        for kind, replica in list(self.counts):
            if kind not in LASTING:
                self.counts[kind, replica] = self._committed[kind, replica]
        self.counts = +self.counts


def found(
    verdict: Verdict,
    *,
    count: int,
    at_ms: int,
    task: int,
    output_stable: int,
    first: RecordPlace | None = None,
    ends: Mapping[str, ReportedVersion] | None = None,
) -> Evidence:
    """The evidence of a verdict. `ends` are other replicas' versions where they were looked up."""
    reported = {name: ReportedVersion(claim) for name, claim in verdict.others.items()}
    return Evidence(
        kind=verdict.guard.value,
        at_ms=at_ms,
        task=task,
        replica=verdict.replica,
        action=verdict.action,
        count=count,
        reason=verdict.reason,
        remedy=verdict.remedy,
        first=first,
        output=ReportedVersion(output_stable),
        replicas=reported | dict(ends or {}),
    )


def with_versions(evidence: Evidence, breach: Breach, event: Event) -> Evidence:
    """With the event that it is about, and its versions in the output and in all replicas."""
    assert evidence.output is not None
    reached = {name: each.stable for name, each in evidence.replicas.items()}
    if type(breach.element) is Stable:
        reached[breach.input] = breach.element.vc
    reported = {
        name: ReportedVersion(reached.get(name, START), ends, None)
        for name, ends in breach.versions
    }
    payload = event.payload
    assert isinstance(payload, bytes)
    return replace(
        evidence,
        payload=payload[:MAX_RECORD_BYTES].decode(errors="replace"),
        vs=event.vs,
        output=replace(evidence.output, ends=(event.ve,)),
        replicas=evidence.replicas | reported,
    )
