"""The verdicts of guards: each with the action to take, and the reason in words.

A verdict is data. The task acts on it (it holds a record back, or asks for a quarantine through
the control log), and `evidence` makes of it what is published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from lmerge_service.elements import INFINITY, START
from lmerge_service.merge.decoding import Contradiction, Outdated

__all__ = (
    "Action",
    "Guard",
    "HeldStable",
    "Ruling",
    "Verdict",
    "in_words",
    "of_contradiction",
    "of_held",
    "of_outdated",
)


class Guard(StrEnum):
    """The guards; the values are labels of metrics and kinds of events."""

    SKEW = "clock_skew"
    """A stable is ahead of the wall clock."""
    LEAP = "leap"
    """A stable goes far beyond the stables of all replicas."""
    EARLY_END = "early_end"
    """A replica ends while others have not."""
    BREACH_RATE = "breach_rate"
    """Too many of the replica's elements break the rules."""
    DIVERGENCE = "divergence"
    """The replica contradicts what the output has made final."""
    DUPLICATE_WRITER = "duplicate_writer"
    """Two producers seem to write the replica's topic."""
    NUMBERING = "numbering"
    """A record is another one than was read under its number."""
    OUTDATED = "outdated"
    """An older incarnation publishes behind a newer one."""


class Action(StrEnum):
    """What a verdict asks for."""

    REPORT = "report"
    """Only to report."""
    HOLD = "hold"
    """Not to merge the record nor what is behind it in its partition, for now."""
    QUARANTINE = "quarantine"
    """Not to merge the replica any more, from this record on, until a person decides."""


class Ruling(Enum):
    """What becomes of a stable that is about to be merged."""

    MERGE = "merge"
    MERGE_AND_STOP = "merge and stop"
    """It is the last of what is taken at once."""
    WAIT = "wait"
    """It is not merged, nor what is behind it."""


@dataclass(frozen=True, slots=True)
class HeldStable:
    """A stable that waits; the records of its partition wait behind it."""

    replica: str
    partition: int
    offset: int
    vc: int
    guard: Guard
    since: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding about one replica."""

    guard: Guard
    action: Action
    replica: str
    reason: str
    remedy: str
    partition: int | None = None
    offset: int | None = None
    """Of the stable that was judged; None where it was the replica's conduct."""
    vc: int | None = None
    """The stable that was judged."""
    others: Mapping[str, int] = field(default_factory=dict)
    """How far each other replica has come: its stable, also one that is held."""


def in_words(time: int) -> str:
    """A stable point in words.

    >>> in_words(17), in_words(START), in_words(INFINITY)
    ('at 17', 'silent', 'ended')
    """
    if time == INFINITY:
        return "ended"
    return "silent" if time == START else f"at {time}"


def of_held(
    held: HeldStable, ahead: int, others: Mapping[str, int], patience: float | None
) -> Verdict:
    """The verdict on a stable that is not merged, for now; it is `ahead` of what it was compared
    with."""
    where = ", ".join(f"{name} is {in_words(claim)}" for name, claim in others.items())
    action = Action.HOLD
    match held.guard:
        case Guard.SKEW:
            action = Action.QUARANTINE
            reason = f"stable({held.vc}) is {ahead} ahead of the wall clock"
            remedy = (
                "mend the replica, or this machine's clock, and release it: stables that it has "
                "sent by then do not count; if times in the future are meant, raise guards.max_skew"
            )
        case Guard.LEAP:
            reason = f"stable({held.vc}) leaps {ahead} beyond all stables so far"
            remedy = _wait("has come as far", patience)
        case _:
            reason = "it ends, and the others have not"
            remedy = _wait("ends too", patience)
    return Verdict(
        held.guard,
        action,
        held.replica,
        f"{reason} ({where or 'there is no other replica'})",
        remedy,
        held.partition,
        held.offset,
        held.vc,
        others,
    )


def _wait(until: str, patience: float | None) -> str:
    idle = (
        ""
        if patience is None
        else (f", or no other has anything unread or has made progress for {patience:g} s")
    )
    return (
        f"it is merged once another replica {until}{idle}; detach replicas that are gone for "
        "good; if it is wrong, quarantine and release its replica: it is read again without it"
    )


def of_contradiction(
    replica: str, partition: int, found: Contradiction, count: int, others: Mapping[str, int]
) -> Verdict:
    """The verdict on a record that is another one than was read under its number, one of so many
    so far."""
    reason = (
        f"record number {found.number} in partition {partition} at offset {found.offset} is "
        f"another one than was read under that number (the last was {found.last}), {count} so far"
    )
    if found.trusted:
        reason += (
            f"; the {found.trusted} numbered records before it were left out as repeats, too far "
            "back to be compared"
        )
    remedy = (
        "it is merged, as what an unannounced restart publishes; give a writer that starts over a "
        "higher lmerge-incarnation, and stop a second writer of the topic"
    )
    return Verdict(
        Guard.NUMBERING, Action.REPORT, replica, reason, remedy, partition, found.offset,
        others=others,
    )  # fmt: skip


def of_outdated(
    replica: str, partition: int, run: Outdated, incarnation: int, others: Mapping[str, int]
) -> Verdict:
    """The verdict on records of an older incarnation behind those of the one that counts."""
    reason = (
        f"{run.records} records in partition {partition} from offset {run.first} on are of "
        f"incarnation {run.incarnation}, behind records of incarnation {incarnation}: they are "
        "left out"
    )
    remedy = (
        "stop the writer that was replaced; an incarnation must not fall: start a replica again "
        "with a higher lmerge-incarnation"
    )
    return Verdict(
        Guard.OUTDATED, Action.REPORT, replica, reason, remedy, partition, run.first, others=others
    )
