"""Reporting: notifications of a task, counted, logged, and as evidence for the events topic.

Theory
    Evidence is part of the task's transactions, beside the output that it is about. After a failed
    commit the task continues from its last commit record and finds the same again; so uncommitted
    evidence is forgotten, but for what is not found again (`evidence.LASTING`): nothing is lost,
    and nothing is published or counted twice.

    A divergence is reported with the place of each replica's record, which has to be looked up in
    the topics. That is done in the background, one after the other and for a bounded time; while
    too many wait, further ones are reported without places.

Who owns what
    `run` owns the search that is under way; on a crash, what waits for it is lost, but logged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog
from msgspec.structs import replace

from lmerge_service.core import Breach
from lmerge_service.errors import StateError, TransportError
from lmerge_service.kafka.find import FoundRecord
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.findings.evidence import (
    LASTING,
    Evidence,
    NotificationKind,
    NotificationTally,
    RecordPlace,
    ReportedVersion,
    found,
    with_versions,
)
from lmerge_service.merge.guards.evaluator import Finding
from lmerge_service.merge.guards.verdicts import Action
from lmerge_service.tdb import Event

__all__ = ("Before", "Reporting", "Search")

log = structlog.get_logger()

_SEARCH_SECONDS: Final = 20.0
_WAITING: Final = 4
_LOOKED_UP: Final = 16
_REMEDY: Final = 'docs/operations.md, "Breaches", has what each kind means and what to do'

Before: TypeAlias = Mapping[TopicPartition, int]
"""The partitions of a replica, and up to where each has been read."""

Search: TypeAlias = Callable[[Before, Event], Awaitable[FoundRecord | None]]
"""Finds the latest record about an event before these offsets."""


@dataclass(frozen=True, slots=True)
class _Divergence:
    evidence: Evidence
    event: Event
    before: Mapping[str, Before]


_BeforeAll: TypeAlias = Mapping[str, Before]


class Reporting:
    """Of one task, for the life of the process."""

    def __init__(self, task: int, *, unix_ns: Callable[[], int]) -> None:
        self.tally = NotificationTally()
        self._breaches = NotificationTally()
        """Of breaches, by kind and replica, to know which to publish."""
        self.pending: list[tuple[bytes | None, bytes]] = []
        """Keys and values of records that are not committed yet."""
        self._lasting: list[bool] = []
        """Of each of them, whether it stays over a rebuild."""
        self._begun = 0
        """So many of them are in the commit that is under way."""
        self._task = task
        self._unix_ns = unix_ns
        self._divergences: asyncio.Queue[_Divergence] = asyncio.Queue(_WAITING)

    def begin(self) -> list[tuple[bytes | None, bytes]]:
        """A commit of what is pending begins; gives that."""
        self.tally.begin()
        self._breaches.begin()
        self._begun = len(self.pending)
        return list(self.pending)

    def committed(self) -> None:
        """It took place."""
        self.tally.commit()
        self._breaches.commit()
        del self.pending[: self._begun], self._lasting[: self._begun]
        self._begun = 0

    def settle(self, *, took_place: bool) -> None:
        """The task continues from its last commit record; `took_place`: the commit under way wrote
        it."""
        if took_place:
            self.committed()
        self._begun = 0
        self.tally.forget()
        self._breaches.forget()
        while not self._divergences.empty():
            self._divergences.get_nowait()
        self.pending = [
            each for each, lasts in zip(self.pending, self._lasting, strict=True) if lasts
        ]
        self._lasting = [True] * len(self.pending)

    def notify(self, kind: NotificationKind, replica: str | None, reason: str) -> int | None:
        """Reports what is no finding of a guard; its count, if that is worth a line in the log."""
        count = self.tally.admit(kind, replica)
        if count is not None:
            self._put(
                Evidence(
                    kind=kind.value, at_ms=self._at_ms(), task=self._task, replica=replica,
                    count=count, reason=reason,
                )
            )  # fmt: skip
        return count

    def broke(
        self, breach: Breach, output_stable: int, place: Callable[[], RecordPlace] | None
    ) -> None:
        """Reports a breach: the 1st, 2nd, 4th, 8th … of its kind. `place` looks up the record that
        shows it; None where it is another replica's."""
        count = self._breaches.admit(breach.kind, breach.input)
        if count is None:
            return
        evidence = Evidence(
            kind=breach.kind.value, at_ms=self._at_ms(), task=self._task, replica=breach.input,
            action=Action.REPORT, count=count, reason=f"it broke a rule ({breach.kind.value})",
            remedy=_REMEDY, first=None if place is None else place(),
            output=ReportedVersion(output_stable),
        )  # fmt: skip
        kept = breach.kept
        self._put(evidence if kept is None else with_versions(evidence, breach, kept))

    def found(
        self, finding: Finding, output_stable: int, breach: Breach | None, before: _BeforeAll
    ) -> None:
        """Reports the finding of a guard; of a divergence, with the breach behind it. `before` has
        the positions of each replica that can be searched."""
        verdict, place = finding.verdict, finding.place
        count = self.tally.admit(verdict.guard, verdict.replica)
        log.warning(
            "guard", guard=verdict.guard.value, action=verdict.action.value,
            replica=verdict.replica, topic=place.topic, partition=place.partition,
            offset=place.offset, reason=verdict.reason, remedy=verdict.remedy,
            count=self.tally.counts[verdict.guard.value, verdict.replica],
        )  # fmt: skip
        if count is None:
            return
        evidence = found(
            verdict, count=count, at_ms=self._at_ms(), task=self._task,
            output_stable=output_stable, first=place,
        )  # fmt: skip
        if breach is None or breach.kept is None:
            self._put(evidence)
            return
        evidence = with_versions(evidence, breach, breach.kept)
        contributed = [name for name, ends in breach.versions if ends and name in before]
        searched = {name: before[name] for name in contributed[:_LOOKED_UP]}
        try:
            self._divergences.put_nowait(_Divergence(evidence, breach.kept, searched))
        except asyncio.QueueFull:
            self._put(evidence)

    def _put(self, evidence: Evidence) -> None:
        self.pending.append(evidence.to_record())
        self._lasting.append(evidence.kind in LASTING)

    def _at_ms(self) -> int:
        return self._unix_ns() // 1_000_000

    async def run(self, search: Search) -> None:
        """Looks divergences up, until cancelled."""
        while True:
            each = await self._divergences.get()
            places: dict[str, RecordPlace] = {}
            try:
                async with asyncio.timeout(_SEARCH_SECONDS):
                    await _look_up(each, search, places)
            except (TimeoutError, StateError, TransportError) as error:
                log.warning("divergence not looked up", error=repr(error))
            self._put(_with_places(each.evidence, places))


async def _look_up(each: _Divergence, search: Search, places: dict[str, RecordPlace]) -> None:
    for name, before in each.before.items():
        if (found := await search(before, each.event)) is not None:
            places[name] = RecordPlace.of(found.topic, found.partition, found.offset, found.value)


def _with_places(evidence: Evidence, places: Mapping[str, RecordPlace]) -> Evidence:
    """With the place of each replica's record; `first` is that of the replica it is about."""
    located = {
        name: replace(each, place=places.get(name)) for name, each in evidence.replicas.items()
    }
    first = places.get(evidence.replica or "", evidence.first)
    return replace(evidence, first=first, replicas=located)
