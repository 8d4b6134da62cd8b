"""Monitors of a running drill: the output as its reader gets it, and the workers' status.

Who owns what
    `Arrivals.run` owns a consumer, a `watch` polls one worker. Both run until they are cancelled,
    and keep their observations.
"""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from lmerge_service.drills.merging import NO_ANSWER, Look, Merger
from lmerge_service.errors import LMergeError
from lmerge_service.local.follower import Follower

__all__ = ("Arrivals", "Hole", "Observation", "WorkerMonitor")

_ASK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Hole:
    """A time in which a reader got no record."""

    start: float
    """Seconds of the wall clock."""
    seconds: float
    partition: int
    events: int = 0
    """That replicas published meanwhile, for the first time."""


class Arrivals(Follower):
    """When records of the output came to its reader."""

    def longest_hole(self, since: float, until: float) -> Hole:
        """Of any partition, between these times of the wall clock."""
        holes = [
            Hole(a, b - a, partition)
            for partition, times in enumerate(self.times)
            for a, b in pairwise([since, *(t for t in times if since < t < until), until])
        ]
        return max(holes, key=lambda hole: hole.seconds)


@dataclass(frozen=True, slots=True)
class Observation:
    """A worker's status at one moment."""

    at: float
    worker: str
    look: Look = NO_ANSWER


@dataclass(slots=True)
class WorkerMonitor:
    """The status of all workers, polled."""

    observations: list[Observation] = field(default_factory=list)
    _last: dict[str, Look] = field(default_factory=dict)

    async def watch(self, name: str, worker: Merger) -> None:
        """Polls a worker until it has ended."""
        with suppress(LMergeError):
            while worker.ended is None:
                self._take(name, await worker.look() or NO_ANSWER)
                await asyncio.sleep(_ASK_SECONDS)
        self.gone(name)

    def _take(self, name: str, look: Look) -> None:
        self.observations.append(Observation(time.time(), name, look))
        self._last[name] = look

    def gone(self, name: str) -> None:
        """It has ended."""
        self._take(name, NO_ANSWER)

    def leaders(self, workers: Collection[str]) -> list[str]:
        """Those that lead by their last status, the one of the lowest task first."""
        found = self._leading(workers)
        return sorted(found, key=lambda name: found[name].leads)

    def leading_replica(self, workers: Collection[str]) -> str | None:
        looks = self._leading(workers).values()
        return next((look.leader for look in looks if look.leader), None)

    def all_serve(self, workers: Collection[str]) -> bool:
        """Whether each leads or follows, by its last status."""
        states = [self._last[name].state for name in workers if name in self._last]
        return len(states) == len(workers) and all(s in ("running", "standby") for s in states)

    def reasons(self) -> list[str]:
        """All that was ever a reason for degraded health, each once."""
        return list(dict.fromkeys(each for seen in self.observations for each in seen.look.reasons))

    def _leading(self, workers: Collection[str]) -> dict[str, Look]:
        return {n: look for n, look in self._last.items() if n in workers and look.leads}
