"""Reading the control log: from the latest fold on, however long the log is.

Theory
    A ledger that lacks little reads on where it stands. One that lacks much, or whose next record
    was deleted, begins with the latest fold that holds (`folds`). That one is looked for from the
    log's end, in ever longer pieces:

        begins │········ 16,000 ········│··· 4,000 ···│· 1,000 ·│ ends
                                             fold

    While folds are written one is in the last two pieces. A fold that cannot be decoded is passed
    over, with a warning, as long as the log has all that the one before it needs; else it is an
    error.

Cost
    Of a log of a million decisions a few thousand records are read.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from lmerge_service.errors import ElementError, StateError, TrimmedError
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.records import Record
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.ledger import Ledger

__all__ = ("FoundFold", "catch_up", "latest_fold", "unread")

log = structlog.get_logger()

_FAR: Final = 2_000
"""Records; a ledger that lacks more looks for a fold."""
_PIECE: Final = 1_000
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class FoundFold:
    """What a search for folds has come to."""

    offset: int | None
    """Of the latest one that holds."""
    unusable: str | None = None
    """The first one that was met and cannot be decoded, and why."""


async def catch_up(control: Log, ledger: Ledger) -> None:
    """Folds all that a ledger lacks of what is in the log now.

    Raises:
        StateError: the log does not have what the ledger needs.
        TransportError: Kafka cannot be reached, or refuses.
    """
    async with aclosing(unread(control, ledger)) as records:
        async for record in records:
            ledger.fold(record.offset, record.value)


async def unread(control: Log, ledger: Ledger) -> AsyncGenerator[Record, None]:
    """The records that a ledger lacks of what is in the log now, of which the first may be a fold.
    Each is to be folded before the next one is taken.

    Raises:
        StateError: the log does not have what the ledger needs.
        TransportError: Kafka cannot be reached, or refuses.
    """
    while True:
        try:
            async with aclosing(_unread(control, ledger)) as records:
                async for record in records:
                    yield record
        except TrimmedError as error:  # a later fold has it
            log.info("decisions deleted while they were read", why=str(error))
        else:
            return


async def _unread(control: Log, ledger: Ledger) -> AsyncGenerator[Record, None]:
    begins, ends = await control.bounds()
    start, found = ledger.offset, FoundFold(None)
    if start < begins or ends - start > _FAR:
        found = await latest_fold(control, max(begins, start), ends)
    if found.offset is not None:
        start = found.offset
    if start < begins:
        raise StateError(_lost(control, ledger, begins, found))
    async with aclosing(control.read(start, ends)) as records:
        async for record in records:
            yield record
            if record.offset == found.offset and ledger.folded != found.offset:
                raise StateError(f"{control.topic}, {ledger.last_unreadable}")


def _lost(control: Log, ledger: Ledger, begins: int, found: FoundFold) -> str:
    why = f"{control.topic} begins at offset {begins}, and what was decided before "
    if found.unusable is not None:
        return f"{why}cannot be read: {found.unusable}"
    return (
        f"{why}is in no fold: it was deleted; to go on by the topology file alone, stop all "
        f"workers, delete {control.topic} and {ledger.topology.output.state_topic}, and start them"
    )


async def latest_fold(control: Log, begins: int, before: int) -> FoundFold:
    """The latest fold that holds, of the records from `begins` up to `before`.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    unusable, piece = None, _PIECE
    while before > begins:
        start = max(begins, before - piece)
        for record in reversed(await _folds_in(control, start, before)):
            assert record.value is not None
            try:
                if folds.decode(record.value).offset == record.offset:
                    return FoundFold(record.offset, unusable)
            except ElementError as error:
                why = f"offset {record.offset} has {error}"
                log.warning("fold not used", topic=control.topic, offset=record.offset, why=why)
                unusable = unusable or why
        before, piece = start, piece * _GROWTH
    return FoundFold(None, unusable)


async def _folds_in(control: Log, start: int, end: int) -> list[Record]:
    async with aclosing(control.read(start, end)) as records:
        return [record async for record in records if folds.is_fold(record.value)]
