"""Decisions about a merge, and their records in the control log.

Theory
    What is merged is decided by people, by guards and by the topology file. Each decision is one
    record in one log, and every worker folds the log in its order (`ledger`), so that all of them
    know the same replicas, in whatever order requests came in. A decision contains the version
    against which it was made (`expects`); of two that were made against the same version, the one
    that comes first in the log holds and the other is refused.

    >>> made = Decision("d-1", Detach("b"), who="anna", made=1_700_000_000_000)
    >>> print(encode(made).decode().replace("},", "},\\n "))
    {"id":"d-1","action":{"do":"detach","replica":"b"},
     "who":"anna","made":1700000000000,"expects":null}
    >>> decode(encode(made)) == made
    True

Invariants
    D1  A record that is no decision, whatever it is, raises `ElementError` and nothing else.
    D2  A decision is never longer than a record may be: every text in it is bounded.
"""

import time
import uuid
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from lmerge_service.elements import START
from lmerge_service.errors import ElementError

__all__ = (
    "LONGEST_REASON",
    "LONGEST_WORD",
    "AbortCutover",
    "AcceptGap",
    "Action",
    "Attach",
    "BeginCutover",
    "Decision",
    "Declare",
    "Detach",
    "Quarantine",
    "Release",
    "ReportCutover",
    "RestartOutput",
    "SetPolicy",
    "decide",
    "decode",
    "encode",
    "words",
)

LONGEST_WORD: Final = 200
LONGEST_REASON: Final = 2_000
_LONGEST_RECORD: Final = 1 << 20

Word = Annotated[str, Meta(min_length=1, max_length=LONGEST_WORD)]
Reason = Annotated[str, Meta(max_length=LONGEST_REASON)]
Count = Annotated[int, Meta(ge=0)]
Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Declare(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="declare"):
    """The topology file of a worker that started, when it is another than before."""

    merge: Word
    """Its name."""
    output: dict[str, Any]
    key: list[str]
    nfc: bool
    case: Word
    policy: dict[str, Any]
    replicas: list[dict[str, Any]]
    drop_nulls: bool = False


class Attach(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="attach"):
    """Merge a replica; the fields are those of `topology.Replica`."""

    replica: dict[str, Any]


class Detach(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="detach"):
    """Merge a replica no more."""

    replica: Word


class Quarantine(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="quarantine"):
    """Keep a replica out until it is released: by a guard, or by a person."""

    replica: Word
    reason: Reason


class Release(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="release"):
    """End a quarantine; the replica is attached again, correct from `joining_at` on (null: from
    where it was correct before)."""

    replica: Word
    joining_at: Time | None = None


class AcceptGap(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="accept_gap"):
    """Go on without the times up to `until`, from which on `replica` is correct: the gap as it was
    seen by whoever accepts it."""

    replica: Word
    until: Time


class SetPolicy(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="policy"):
    """The output policy from now on: when elements are emitted."""

    insert: Word
    adjust: Word
    stable: Word


class RestartOutput(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="restart_output"
):
    """Begin a new incarnation of the output, in all of its partitions: what the merge knew of the
    one before is lost (`merge.output_restart`)."""

    incarnation: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    """Higher than the output's."""
    correct_from: Time
    """The new incarnation has every event that ends at this time or later."""
    replicas: Annotated[dict[Word, Time | None], Meta(max_length=1_000)]
    """From when on each replica is correct that is attached, by its topic as it is now; null: what
    its topic still has does not show that."""
    reason: Reason = ""
    """What was lost."""


class BeginCutover(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="cutover"):
    """Put one replica into another's place, when all tasks agree that it may be (`cutover`)."""

    leaving: Word
    coming: Word
    watch: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """How much of the streams' time divergence is watched for."""
    max_behind: Count
    """Seconds."""
    max_divergences: Count
    attach: dict[str, Any] | None = None
    """The coming one as for `Attach`; null: it is attached already."""


class ReportCutover(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="cutover_report"
):
    """The report of a task about a cutover that runs, as of what it has committed."""

    cutover: Count
    """The version that began it."""
    since: Count
    """The version that brought it into the state that this is about."""
    task: Count
    readiness: Literal["ready", "unready", "diverged"]
    at: Time
    """Where its output is."""
    why: Reason = ""


class AbortCutover(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="cutover_abort"
):
    """End a cutover that runs; both replicas stay attached."""

    reason: Reason = ""


Action = (
    Declare
    | Attach
    | Detach
    | Quarantine
    | Release
    | AcceptGap
    | SetPolicy
    | RestartOutput
    | BeginCutover
    | ReportCutover
    | AbortCutover
)


class Decision(Struct, frozen=True, forbid_unknown_fields=True):
    """An action, and who requests it."""

    id: Word
    """Unique: a record with an id that was there is the same decision once more."""
    action: Action
    who: Word
    """A person, or a guard; for people to read."""
    made: Time
    """Milliseconds since the epoch, by the clock where it was made; for people to read."""
    expects: Count | None = None
    """The version that it was made against; null: whatever the version is."""


_decoder: Final = msgspec.json.Decoder(Decision)


def decide(
    action: Action, who: str, *, expects: int | None = None, decision_id: str | None = None
) -> Decision:
    """A new decision, made now; unless one is given, with a unique id."""
    made = time.time_ns() // 1_000_000
    return Decision(decision_id or uuid.uuid4().hex, action, who, made, expects)


def words(action: Action) -> str:
    """The action in a few words.

    >>> words(Quarantine("b", "too far ahead")), words(SetPolicy("first", "lazy", "quorum(2)"))
    ('quarantine b', 'policy first, lazy, quorum(2)')
    """
    match action:
        case Declare():
            return "declare a topology"
        case Attach(replica):
            return f"attach {str(replica.get('name'))[:LONGEST_WORD]}"
        case AcceptGap(replica, until):
            return f"accept the gap until {replica} is correct, at {until}"
        case SetPolicy(insert, adjust, stable):
            return f"policy {insert}, {adjust}, {stable}"
        case RestartOutput(incarnation, correct_from):
            since = "" if correct_from == START else f", correct from {correct_from} on"
            return f"restart the output as incarnation {incarnation}{since}"
        case BeginCutover(leaving, coming):
            return f"cutover {leaving} → {coming}"
        case ReportCutover(task=task, readiness=readiness):
            return f"cutover: task {task} is {readiness}"
        case AbortCutover():
            return "abort the cutover"
        case _:
            return f"{type(action).__name__.lower()} {action.replica}"


def encode(decision: Decision) -> bytes:
    """The value of its record in the control log.

    Raises:
        ValueError: the decision is not within its bounds, so that it could not be decoded.
    """
    value = msgspec.json.encode(decision)
    try:
        decode(value)
    except ElementError as error:
        raise ValueError(str(error)) from None
    return value


def decode(value: bytes | None) -> Decision:
    """The decision in a record's value.

    Raises:
        ElementError: it is none (reason `decision`).
    """
    if value is None or len(value) > _LONGEST_RECORD:
        what = "a tombstone" if value is None else f"{len(value)} bytes long"
        raise ElementError("decision", f"no decision: the record is {what}")
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ElementError("decision", f"no decision: {error}") from None
