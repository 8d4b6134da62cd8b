"""Folding the control log: writing folds, and deleting what is before one that is old enough.

Theory
    Whoever leads task 0 folds, so that it is one worker as a rule. A fold is due once the log has
    grown by a thousand records since the last one. It is appended as a decision is, and holds if
    nothing came between (`folds`, F1); if something did, it is due again at the next look.

    Where the topology has `output.keep`, what is older is deleted, in steps from fold to fold:

        begins        keep ago                    latest fold           ends
          │··· fold ·····│·· fold ··· fold ······· fold ················│
          └─deleted─┘    └ readable for `keep` ┘
               the latest fold that is older than `keep`

    Nothing of what recovery needs refers into the log: commit records and snapshots have versions
    of decisions, which a fold carries on, and no offsets. A worker that has not read what is
    deleted takes the latest fold (`reading`), which is never deleted.

Invariants
    L1  Nothing is deleted from the latest fold on that this worker's ledger began with or agrees
        with, nor is anything deleted while it disagrees with one.
    L2  The log begins at offset 0, or at a fold that holds.

What happens on a crash at each await
    While a fold is written: it is in the log, or is not; both are right, and the next one is due
    when it is. Between a fold and the deletion, or in it: the log has more than is needed, and the
    next look deletes the rest. Another worker that folds or deletes at the same time: of two folds
    for one offset one holds, and offsets of folds only rise, so that who knows less deletes less.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.errors import TransportError, TrimmedError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.control_log import LoggedControl

__all__ = ("Folding",)

log = structlog.get_logger()

_RECORDS: Final = 1_000
"""A fold is due after so many; a start reads twice as many at the most."""
_LOOK_SECONDS: Final = (0.5, 5.0)
"""Between two looks; a short `keep` is looked after more often."""
_IDLE_SECONDS: Final = 1.0
"""Until the first look since task 0 is led here."""
_RECORD_BYTES: Final = 1 << 20


class Folding:
    """Of one worker; `run` it while its control runs."""

    def __init__(
        self,
        cluster: Cluster,
        topology: Topology,
        leads: Callable[[], bool],
        *,
        unix_ns: Callable[[], int],
    ) -> None:
        """`leads` returns whether task 0 is led here."""
        self.begins: int | None = None
        """The first offset that the log has, when Kafka was asked last; None: it never was."""
        self.folds = 0
        """How many this worker has written that hold."""
        self.deleted = 0
        """How many offsets this worker has deleted."""
        self.fault: str | None = None
        """Why nothing can be folded or deleted."""
        self._cluster = cluster
        self._keep = topology.output.keep
        self._tp = TopicPartition(topology.output.control_topic, 0)
        self._leads = leads
        self._unix_ns = unix_ns
        self._searched = 0
        """Up to where there is no fold to begin with but where the log begins."""
        least, most = _LOOK_SECONDS
        self._seconds = most if self._keep is None else max(least, min(most, self._keep / 10))

    async def run(self, control: LoggedControl, who: str) -> None:
        """Looks until cancelled; folds have who made them."""
        while True:
            await asyncio.sleep(min(_IDLE_SECONDS, self._seconds))
            try:
                await self._look_while_leading(control, who)
            except TransportError as error:
                self._note(str(error))
                await asyncio.sleep(self._seconds)

    async def _look_while_leading(self, control: LoggedControl, who: str) -> None:
        if not self._leads():
            self.begins = self.fault = None
            return
        async with AsyncExitStack() as stack:
            topics = await stack.enter_async_context(self._cluster.topics())
            source = self._cluster.source(max_record_bytes=_RECORD_BYTES)
            await stack.enter_async_context(source)
            while self._leads():
                self._note(await self.look(control, topics, source, who))
                await asyncio.sleep(self._seconds)

    def _note(self, fault: str | None) -> None:
        if fault is not None and fault != self.fault:
            log.warning("the decisions cannot be folded", topic=self._tp.topic, error=fault)
        self.fault = fault

    async def look(
        self, control: LoggedControl, topics: Topics, source: Source, who: str
    ) -> str | None:
        """Looks once: folds if that is due, and deletes what may go. Returns why it cannot.

        Raises:
            TransportError: Kafka does not answer, or refuses.
        """
        ledger = control.ledger
        if ledger.disagrees is not None:  # L1
            return ledger.disagrees
        if ledger.offset - (ledger.folded or 0) > _RECORDS:
            try:
                await self._fold(control, who)
            except ValueError as error:
                return str(error)
        with suppress(TrimmedError):  # another worker was faster
            await self._trim(control, topics, source)
        return None

    async def _fold(self, control: LoggedControl, who: str) -> None:
        version = control.ledger.version
        at = await control.write_fold(who, self._unix_ns() // 1_000_000)
        if at is not None:
            self.folds += 1
            log.info("decisions folded", topic=self._tp.topic, offset=at, version=version)

    async def _trim(self, control: LoggedControl, topics: Topics, source: Source) -> None:
        if self._keep is None and self.begins is not None:
            return
        tp, latest = self._tp, control.ledger.folded
        self.begins = begins = (await source.beginnings([tp]))[tp]
        if self._keep is None or latest is None or latest <= begins:
            return
        now = self._unix_ns() // 1_000_000
        old = (await source.since([tp], now - self._keep * 1_000))[tp]
        before = min(old, latest) + 1  # L1
        if before <= self._searched:
            return
        at = (await control.fold_of(max(begins, self._searched), before)).offset
        if at is not None and at > begins:
            await topics.trim({tp: at})
            self.begins, self.deleted = at, self.deleted + at - begins
            log.info("decisions trimmed", topic=tp.topic, offset=at, records=at - begins)
        self._searched = before
