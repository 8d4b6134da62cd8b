"""Control over a merge: the shared ledger, and making decisions.

Who owns what
    A `LoggedControl` owns the control log of one output and the ledger that folds it. Entering
    folds all there is and declares the worker's topology file; `run` goes on folding, and must
    run for anything to be decided.

What happens on a crash at each await
    While a decision is being written: it is in the log, or is not; whoever reads the log finds out
    by its id (`Ledger.entry`), and the same decision may be written again.

What happens when Kafka is away
    `decide` fails in time, with the message that the outcome is unknown. `run` starts over from
    where the ledger ends, with pauses; the ledger stays as it was; `unreachable` has the reason.
    If the log begins later by then, the ledger goes on from its latest fold (`reading`).
"""

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import Final, Protocol

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.errors import ConfigurationError, TransportError
from lmerge_service.kafka.log import Log
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.ledger import Entry, Ledger
from lmerge_service.merge.decisions.reading import FoundFold, catch_up, latest_fold, unread
from lmerge_service.merge.decisions.records import Decision, decide, encode, words

__all__ = ("Control", "LoggedControl")

log = structlog.get_logger()

_DECIDE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 1.0


class Control(Protocol):
    """What deciding needs."""

    @property
    def ledger(self) -> Ledger:
        """What has been decided, as far as it is known here."""
        ...

    async def decide(self, decision: Decision) -> Entry:
        """The verdict, when it is known here.

        Raises:
            TransportError: not in time. If retriable, the decision may hold or come to hold, and
                only the log shows which; if not, it was not made.
        """
        ...


class LoggedControl:
    """Control over one output through its control log; use as `async with`, beside `run`.

    Raises:
        ConfigurationError: on entering, when the topology contradicts what was decided, or the
            log's topic is not as it must be.
        StateError: on entering, when the log has lost records that no fold carries.
        TransportError: on entering, when Kafka cannot be reached, or refuses.
    """

    def __init__(self, topology: Topology, log: Log, *, seconds: float = _DECIDE_SECONDS):
        self.ledger = Ledger(topology)
        self.unreachable: str | None = None
        """Why the log cannot be followed at the moment."""
        self._topology = topology
        self._seconds = seconds
        self._log = log
        self._folded = asyncio.Condition()

    async def __aenter__(self) -> "LoggedControl":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._log)
            await catch_up(self._log, self.ledger)
            await self._declare()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _declare(self) -> None:
        """Declares the topology file's content, unless it is declared already."""
        declared = self.ledger.declaring(self._topology)
        if declared is None:
            return
        decision = decide(declared, "the topology file")
        await self._log.append(encode(decision))
        await catch_up(self._log, self.ledger)
        entry = self.ledger.entry(decision.id)
        if self.ledger.declaring(self._topology) and entry and entry.refusal:
            raise ConfigurationError(
                f"the topology contradicts what was decided: {entry.refusal.reason} (`lmerge "
                "decisions` lists that)"
            )

    async def run(self) -> None:
        """Folds what comes, until cancelled.

        Raises:
            StateError: the log has lost records, or was recreated.
        """
        interrupted = False
        while True:
            try:
                if interrupted:
                    await self._overtake()
                following = self._log.follow(self.ledger.offset, begun=self._reached)
                async with aclosing(following) as records:
                    async for record in records:
                        await self._fold(record.offset, record.value)
            except TransportError as error:
                if self.unreachable is None:
                    topic = self._log.topic
                    log.warning("cannot follow the decisions", topic=topic, error=str(error))
                self.unreachable, interrupted = str(error), True
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _overtake(self) -> None:
        """Folds what has come meanwhile; where it is gone, the latest fold instead."""
        async with aclosing(unread(self._log, self.ledger)) as records:
            async for record in records:
                await self._fold(record.offset, record.value)

    def _reached(self) -> None:
        if self.unreachable is not None:
            log.info("the decisions can be followed again", topic=self._log.topic)
        self.unreachable = None

    async def _fold(self, offset: int, value: bytes | None) -> None:
        before, lacking = self.ledger.cutover, offset - self.ledger.offset
        count = self.ledger.unreadable
        entry = self.ledger.fold(offset, value)
        unreadable = self.ledger.unreadable > count
        if folds.is_fold(value):
            self._note_fold(offset, lacking, unreadable=unreadable)
        elif unreadable:
            log.warning(
                "not a decision",
                topic=self._log.topic,
                offset=offset,
                why=self.ledger.last_unreadable,
            )
        if entry is not None:
            log.info(
                "decided" if entry.accepted else "decision refused",
                what=words(entry.decision.action),
                who=entry.decision.who,
                id=entry.decision.id,
                version=entry.version,
                offset=entry.offset,
                why=None if entry.refusal is None else entry.refusal.reason,
            )
        cutover = self.ledger.cutover
        if cutover is not None and (before is None or before.since != cutover.since):
            log.info(
                "cutover",
                leaving=cutover.leaving,
                coming=cutover.coming,
                state=cutover.state.value,
                version=cutover.since,
                who=cutover.who,
                why=cutover.why,
            )
        async with self._folded:
            self._folded.notify_all()

    def _note_fold(self, offset: int, lacking: int, *, unreadable: bool) -> None:
        topic, ledger = self._log.topic, self.ledger
        if ledger.disagrees is not None:
            log.warning("fold differs", topic=topic, offset=offset, why=ledger.disagrees)
        elif ledger.folded == offset:
            if lacking:
                log.warning(
                    "decisions taken from a fold", topic=topic, offset=offset, records=lacking
                )
        elif unreadable:
            why = ledger.last_unreadable
            log.warning("fold not used", topic=topic, offset=offset, why=why)

    async def write_fold(self, who: str, made: int) -> int | None:
        """Appends a fold of what was read so far, made at a time (ms) by a worker; its offset, or
        None if the log was longer by then, so that it does not hold.

        Raises:
            ValueError: no record has room for it.
            TransportError: Kafka cannot be reached, or refuses; if retriable, it may hold.
        """
        fold = folds.fold(self.ledger.state(), self.ledger.offset, who, made)
        at = await self._log.append(folds.encode(fold), seconds=self._seconds)
        return at if at == fold.offset else None

    async def fold_of(self, begins: int, before: int) -> FoundFold:
        """See `latest_fold`."""
        return await latest_fold(self._log, begins, before)

    async def newer(self, than: int) -> int:
        """Waits until the version is higher; returns it."""
        async with self._folded:
            await self._folded.wait_for(lambda: self.ledger.version > than)
        return self.ledger.version

    async def decide(self, decision: Decision) -> Entry:
        """See `Control`."""
        if (known := self.ledger.entry(decision.id)) is not None:
            return known
        doing = f"decision {decision.id}"
        try:
            async with asyncio.timeout(self._seconds):
                await self._log.append(encode(decision), seconds=self._seconds)
                return await self._verdict(decision.id)
        except TimeoutError:
            raise TransportError(f"{doing}: no answer from the control log in time") from None
        except TransportError as error:
            raise TransportError(f"{doing}: {error}", retriable=error.retriable) from error

    async def _verdict(self, decision_id: str) -> Entry:
        async with self._folded:
            await self._folded.wait_for(lambda: self.ledger.entry(decision_id) is not None)
        entry = self.ledger.entry(decision_id)
        assert entry is not None
        return entry
