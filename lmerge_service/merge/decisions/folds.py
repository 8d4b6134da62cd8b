"""Folds: records of the control log that carry what all records before them come to.

Theory
    A reader of the log needs its last fold and what is behind it, however long the log is:

        offset 0 … 999   decisions
               1000      fold made for offset 1000       it holds: the decisions 0 … 999
               1001      decision
               1002      fold made for offset 1001       it does not hold: a decision came between
               1003      decision

    A ledger that has read the log up to a fold that holds has the fold's content already, and
    compares it; one that has not begins with it.

Invariants
    F1  A fold holds at the offset that it was made for and nowhere else, so it carries exactly the
        records before it. Whoever folds may be slow, be killed, or be two: what comes late holds
        nothing.
    F2  The ledger of a fold and of the records behind it is the ledger of all records.
    F3  What cannot be decoded raises `ElementError` and nothing else, with what to do.

Cost
    300 bytes a decision, of the last 1,000; 3 ms to encode, 10 ms to decode.
"""

from dataclasses import replace
from typing import Annotated, Any, Final, TypeGuard

import msgspec
from msgspec import Meta, Struct, structs
from pydantic import ValidationError

from lmerge_service.config.topology import Replica
from lmerge_service.errors import ElementError
from lmerge_service.merge.decisions.cutover import Cutover
from lmerge_service.merge.decisions.decided import (
    AcceptedGap,
    DecisionRefusal,
    DesiredReplica,
    Entry,
    OutputIncarnation,
    RefusalKind,
)
from lmerge_service.merge.decisions.records import Count, Declare, Time, Word

__all__ = ("LARGEST_FOLD", "Fold", "LedgerState", "agree", "decode", "encode", "fold", "is_fold")

LARGEST_FOLD: Final = 8 << 20
"""Bytes, before the client compresses them."""
_FORMAT: Final = 1
_PREFIX: Final = b'{"fold":'


class LedgerState(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a ledger has of the records that it has folded."""

    version: Count
    unreadable: Count
    last_unreadable: str | None
    refused: dict[RefusalKind, Count]
    repeated: Count
    declared: Declare | None
    case: str
    """As settled, where the declared one is auto."""
    policy: dict[str, str]
    policy_decided: bool
    replicas: list[DesiredReplica]
    accepted_gaps: list[AcceptedGap]
    cutover: Cutover | None
    output: OutputIncarnation
    entries: list[Entry]


class Fold(Struct, frozen=True, forbid_unknown_fields=True):
    """A ledger's state, as of all records before an offset."""

    format: Annotated[int, Meta(ge=_FORMAT, le=_FORMAT)] = msgspec.field(name="fold")
    offset: Count
    """It holds there and nowhere else (F1)."""
    who: Word
    """The worker that wrote it; for people to read."""
    made: Time
    """Milliseconds since the epoch, by the clock where it was made; for people to read."""
    ledger: LedgerState


class _Head(Struct):
    """What a fold of any format has."""

    fold: int


def fold(ledger: LedgerState, offset: int, who: str, made: int) -> Fold:
    """The fold of a ledger that has folded every record before `offset`."""
    return Fold(_FORMAT, offset, who, made, ledger)


def is_fold(value: bytes | None) -> TypeGuard[bytes]:
    """Whether a record is to be a fold, of this format or of another one."""
    return value is not None and value.startswith(_PREFIX)


def encode(made: Fold) -> bytes:
    """The value of its record.

    Raises:
        ValueError: it is longer than a record may be, or could not be decoded.
    """
    value = msgspec.json.encode(made, enc_hook=_plain)
    if len(value) > LARGEST_FOLD:
        raise ValueError(f"the decisions are {len(value):,} bytes, and a fold has {LARGEST_FOLD:,}")
    try:
        decode(value)
    except ElementError as error:
        raise ValueError(str(error)) from None
    return value


def decode(value: bytes) -> Fold:
    """The fold in a record's value.

    Raises:
        ElementError: it is damaged, or of another format (reason `fold`).
    """
    try:
        found = _head_decoder.decode(value).fold
        if found != _FORMAT:
            raise ElementError(
                "fold",
                f"a fold of format {found}, and this version reads format {_FORMAT}: use the "
                "version that wrote it, or a later one",
            )
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ElementError("fold", f"a damaged fold: {error}") from None


def agree(one: LedgerState, other: LedgerState) -> bool:
    """Whether two states decide alike: they may differ in texts, which another release words
    otherwise, and in how many records it can read."""
    return _essence(one) == _essence(other)


def _essence(state: LedgerState) -> LedgerState:
    kinds = [each.refusal and DecisionRefusal(each.refusal.kind, "") for each in state.entries]
    return structs.replace(
        state,
        unreadable=0,
        last_unreadable=None,
        replicas=[replace(each, reason=None) for each in state.replicas],
        cutover=state.cutover and replace(state.cutover, why=None),
        entries=[replace(e, refusal=kind) for e, kind in zip(state.entries, kinds, strict=True)],
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Replica):
        return value.model_dump(mode="json", exclude_defaults=True)
    raise NotImplementedError(type(value))


def _replica(kind: type, document: Any) -> Any:
    if kind is not Replica:
        raise NotImplementedError(kind)
    try:
        return Replica.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} faults in a replica") from None


_head_decoder: Final = msgspec.json.Decoder(_Head)
_decoder: Final = msgspec.json.Decoder(Fold, dec_hook=_replica)
