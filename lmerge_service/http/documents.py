"""The documents of the control API: what is asked, what is answered, and what went wrong.

The requests accept exactly what their JSON schema allows: no text for a number, nothing unknown.
What they cannot check (versions, states, valid combinations) the ledger checks.
"""

from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lmerge_service.config.topic_names import TOPIC_NAME
from lmerge_service.config.topology import Name, OutputPolicy, Properties, Stream
from lmerge_service.http.cutover_view import CutoverView
from lmerge_service.merge.decisions.ledger import (
    AcceptedGap,
    DesiredReplica,
    Entry,
    Ledger,
    RefusalKind,
)
from lmerge_service.merge.decisions.records import LONGEST_REASON, LONGEST_WORD, words
from lmerge_service.merge.replica_states import DesiredState

__all__ = (
    "AbortRequest",
    "AttachRequest",
    "CutoverRequest",
    "Decided",
    "DecisionView",
    "Decisions",
    "Denied",
    "GapRequest",
    "GapView",
    "Made",
    "NewStream",
    "PolicyRequest",
    "Problem",
    "QuarantineRequest",
    "ReleaseRequest",
    "ReplicaView",
    "Request",
)

# An OpenAPI document has bounds as doubles: these are the same in every reading.
_HIGHEST_VERSION = 2**53
_FAR = 9_200_000_000_000_000_000
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


def _whole(value: object) -> object:
    """To JSON schema 5.0 is an integer, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Version = Annotated[int, Field(ge=0, le=_HIGHEST_VERSION), BeforeValidator(_whole)]
Moment = Annotated[int, Field(ge=-_FAR, le=_FAR), BeforeValidator(_whole)]
Word = Annotated[str, Field(min_length=1, max_length=LONGEST_WORD)]
Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]


# What is asked


class Request(BaseModel):
    """What every decision may be asked with."""

    model_config = ConfigDict(**_STRICT, json_schema_extra={"examples": [{"expects": 3}]})

    expects: Version | None = None
    """The version that was seen; the decision is refused if it is another one by then."""
    who: Word | None = None
    """Who decides, for people to read."""
    id: Identity | None = None
    """To ask once more for the same decision, when its outcome is unknown."""


class _Promises(Properties):
    model_config = _STRICT


_NOT_BOTH: Final[dict[str, Any]] = {
    "properties": {"normalise": {"const": True}, "joining_at": {"type": "integer"}},
    "required": ["normalise", "joining_at"],
}


class NewStream(Stream):
    """A replica's stream; the fields are those of the topology file."""

    model_config = ConfigDict(**_STRICT, json_schema_extra={"not": _NOT_BOTH})

    topic: Annotated[str, Field(pattern=TOPIC_NAME)]
    joining_at: Moment | None = None
    """The time from which the replica is correct; by default the beginning of time."""
    properties: _Promises = _Promises()
    format: Literal["wire"] | dict[str, Any] = "wire"  # type: ignore[assignment]
    """`wire`, or the options of a dialect as in the topology file, which are checked there: a
    schema cannot express which of them go together."""

    def replica(self, name: str) -> dict[str, Any]:
        """The replica, with the fields of the request and no more."""
        own = set(Request.model_fields)
        document = self.model_dump(mode="json", exclude_defaults=True, exclude=own)
        return {"name": name, **document}


class AttachRequest(NewStream, Request):
    """A replica to be merged; the fields are those of the topology file."""

    model_config = ConfigDict(
        **_STRICT,
        json_schema_extra={
            "examples": [{"topic": "flights.c", "joining_at": 1357020000000, "expects": 3}],
            "not": _NOT_BOTH,
        },
    )


class QuarantineRequest(Request):
    """A replica not to be trusted, and why."""

    model_config = ConfigDict(
        **_STRICT, json_schema_extra={"examples": [{"reason": "its clock is a day ahead"}]}
    )

    reason: Annotated[str, Field(max_length=LONGEST_REASON)] = ""


class ReleaseRequest(Request):
    """A replica to be trusted again, from when on."""

    model_config = ConfigDict(
        **_STRICT, json_schema_extra={"examples": [{"joining_at": 1357020000000}]}
    )

    joining_at: Moment | None = None
    """By default the replica's own."""


class GapRequest(Request):
    """The gap as it was seen: the output continues with this replica's events from that time on."""

    model_config = ConfigDict(
        **_STRICT, json_schema_extra={"examples": [{"input": "d", "until": 1357020000000}]}
    )

    input: Name
    until: Moment


class CutoverRequest(Request):
    """One replica is to take another's place."""

    model_config = ConfigDict(
        **_STRICT,
        json_schema_extra={
            "examples": [{"leaving": "a", "coming": "d", "attach": {"topic": "flights.d"}}]
        },
    )

    leaving: Name
    coming: Name
    attach: NewStream | None = None
    """The stream of the coming one; by default it is attached already."""
    watch: Annotated[int, Field(ge=0, le=_FAR), BeforeValidator(_whole)] | None = None
    """How much of the streams' time both are watched, in the topology's unit; by default a
    minute. Required where the unit is none."""
    max_behind: Annotated[int, Field(ge=0, le=86_400), BeforeValidator(_whole)] = 5
    """Seconds: where the output was so long ago, the coming one must be."""
    max_divergences: Annotated[int, Field(ge=0, le=_HIGHEST_VERSION), BeforeValidator(_whole)] = 0
    """More contradictions to the output, by either, end the cutover."""


class AbortRequest(Request):
    """A cutover is not desired any more, and why."""

    model_config = ConfigDict(
        **_STRICT, json_schema_extra={"examples": [{"reason": "the new plan is slower"}]}
    )

    reason: Annotated[str, Field(max_length=LONGEST_REASON)] = ""


_SHARE = r"0\.[0-9]{0,6}[1-9]|1\.0"
_COUNT = r"[1-9][0-9]{0,5}"


class PolicyRequest(Request):
    """The output policy: when elements are emitted."""

    model_config = ConfigDict(
        **_STRICT,
        json_schema_extra={
            "examples": [{"insert": "first", "adjust": "lazy", "stable": "quorum(2)"}]
        },
    )

    insert: Annotated[
        str, Field(pattern=rf"^(first|leader|half_frozen|quorum\(({_COUNT}|{_SHARE})\))$")
    ]
    adjust: Literal["lazy", "eager", "leader"]
    stable: Annotated[str, Field(pattern=rf"^(max|lag\([0-9]{{1,18}}\)|quorum\({_COUNT}\))$")]

    @model_validator(mode="after")
    def _known(self) -> Self:
        OutputPolicy(insert=self.insert, adjust=self.adjust, stable=self.stable)
        return self


# What is answered


class Made(BaseModel):
    """A decision that holds."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "5f0c1b2e", "version": 4, "offset": 7, "action": "detach b"}]
        }
    )

    id: str
    version: int
    """What it made."""
    offset: int
    """Where it is in the control log."""
    action: str

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """The document of an accepted entry of the control log."""
        decision = entry.decision
        action = words(decision.action)
        return cls(id=decision.id, version=entry.version, offset=entry.offset, action=action)


class ReplicaView(Stream):
    """What was decided about a replica."""

    name: str
    state: DesiredState
    since: int
    """The version that brought it there."""
    epoch: int
    """The version that attached it last."""
    reason: str | None
    who: str
    decided: bool
    """Whether something else than the topology file has decided about it."""

    @classmethod
    def of(cls, desired: DesiredReplica) -> Self:
        """The document of a replica, as the decisions want it."""
        return cls(
            **desired.replica.model_dump(),
            state=desired.state,
            since=desired.since,
            epoch=desired.epoch,
            reason=desired.reason,
            who=desired.who,
            decided=desired.decided,
        )


class GapView(BaseModel):
    """A gap that somebody has accepted."""

    input: str
    until: int
    version: int
    who: str

    @classmethod
    def of(cls, gap: AcceptedGap) -> Self:
        """The document of an accepted gap."""
        return cls(input=gap.replica, until=gap.until, version=gap.version, who=gap.who)


class Decided(BaseModel):
    """All that was decided, as this worker knows it."""

    version: int
    offset: int
    """Every record of the control log before this one has been read."""
    case: str
    policy: OutputPolicy
    replicas: list[ReplicaView]
    accepted_gaps: list[GapView]
    cutover: CutoverView | None
    """The latest one, whether it runs or has ended."""

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        """The document of a ledger, as far as it has read the control log."""
        return cls(
            version=ledger.version,
            offset=ledger.offset,
            case=ledger.topology.resolved_case,
            policy=ledger.policy,
            replicas=[ReplicaView.of(each) for each in ledger.replicas.values()],
            accepted_gaps=[GapView.of(each) for each in ledger.accepted_gaps],
            cutover=None if ledger.cutover is None else CutoverView.of(ledger.cutover),
        )


class DecisionView(BaseModel):
    """One decision, and what became of it."""

    id: str
    offset: int
    version: int
    """The version after it."""
    accepted: bool
    refusal: RefusalKind | None
    why: str | None
    """Why it was refused."""
    what: str
    action: dict[str, Any]
    """As it is in the control log."""
    who: str
    made: int
    """Milliseconds since the epoch."""
    expects: int | None

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """The document of an entry, whether it was accepted or refused."""
        decision, refusal = entry.decision, entry.refusal
        return cls(
            id=decision.id,
            offset=entry.offset,
            version=entry.version,
            accepted=entry.accepted,
            refusal=None if refusal is None else refusal.kind,
            why=None if refusal is None else refusal.reason,
            what=words(decision.action),
            action=msgspec.to_builtins(decision.action),
            who=decision.who,
            made=decision.made,
            expects=decision.expects,
        )


class Decisions(BaseModel):
    """The last decisions, the latest first."""

    version: int
    offset: int
    unreadable: int
    """Records in the control log that are no decisions."""
    last_unreadable: str | None
    decisions: list[DecisionView]

    @classmethod
    def of(cls, ledger: Ledger, limit: int) -> Self:
        """The latest `limit` entries of a ledger's history."""
        latest = list(ledger.history)[-limit:][::-1]
        return cls(
            version=ledger.version,
            offset=ledger.offset,
            unreadable=ledger.unreadable,
            last_unreadable=ledger.last_unreadable,
            decisions=[DecisionView.of(each) for each in latest],
        )


class Problem(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": "version",
                    "message": "made against version 3, but the version is 4: "
                    '"detach b" by anna came between',
                    "version": 4,
                    "id": "5f0c1b2e",
                }
            ]
        }
    )

    error: RefusalKind | Literal["id", "malformed", "starting", "outcome_unknown", "not_made"]
    """`outcome_unknown`: the decision may hold, or come to hold: look for its id, or ask again
    with that. `not_made`: it does not hold and never will."""
    message: str
    version: int | None = None
    """The version that there is."""
    id: str | None = None
    """Of the decision."""


class Denied(BaseModel):
    """The caller may not do this."""

    detail: str
