"""Watches that every task is led, and reports when one is not for longer than a takeover takes.

Theory
    A task is led while some worker that is neither killed nor paused holds it as its leader, with
    a producer that nobody has fenced. Whoever is killed, paused or started leaves it without a
    leader for a session and a recovery at the most. So the time without a leader, counted from the
    last thing that happened to a worker, has a bound; the network's weather adds to it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from lmerge_service.config.topology import Topology
from lmerge_service.errors import LMergeError
from lmerge_service.service.task import MergeTask
from lmerge_service.service.task_phases import Phase
from tests.simulation.actors import Supervisor
from tests.simulation.memory import Broker
from tests.simulation.network import Weather

__all__ = ("Leaders",)

_LOOK_SECONDS = 0.5
_RECOVERY_SECONDS = 10.0
"""Of a recovery in good weather, however small its requests are."""
_BAD_WEATHER_SECONDS = 120.0


@dataclass(slots=True)
class Leaders:
    """Looks at the workers of all supervisors."""

    topology: Topology
    broker: Broker
    weather: Weather
    supervisors: Sequence[Supervisor]
    since: dict[int, float] = field(default_factory=dict)
    """When each task was led last, or something last happened to a worker."""
    before: object = None
    longest: float = 0.0
    """The longest time in seconds that any task had no leader."""

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LMergeError: a task is led by nobody for too long.
        """
        clock = asyncio.get_running_loop().time
        while True:
            now, happened = clock(), self._happened()
            if happened != self.before:
                self.before, self.since = happened, {}
            led = self._led()
            for task in range(self.topology.output.partitions):
                if task in led or not self._anybody:
                    self.since[task] = now
                waited = now - self.since.setdefault(task, now)
                self.longest = max(self.longest, waited)
                if waited > self._bound:
                    raise LMergeError(f"task {task} has had no leader for {waited:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def _bound(self) -> float:
        weather = self.weather
        calm = weather.slow <= 0.02 and not (weather.lost or weather.unanswered or weather.cut_off)
        takes = _RECOVERY_SECONDS if calm else _BAD_WEATHER_SECONDS
        return self.topology.session_seconds + takes

    @property
    def _anybody(self) -> bool:
        """Some worker is alive and goes on."""
        networks = [each for one in self.supervisors for each in one.networks.values()]
        return any(not (each.is_paused or each.killed.is_set()) for each in networks)

    def _happened(self) -> object:
        """Another value whenever a worker was started, killed or paused, or has gone on."""
        return [
            (name, network.paused, network.is_paused, network.killed.is_set())
            for each in self.supervisors
            for name, network in each.networks.items()
        ]

    def _led(self) -> set[int]:
        return {
            partition
            for each in self.supervisors
            for name, worker in each.workers.items()
            if not (each.networks[name].is_paused or each.networks[name].killed.is_set())
            for partition, held in worker.held.items()
            if held.role == "leads"
            and held.task.phase is Phase.LEADING
            and self._may_publish(held.task)
        }

    def _may_publish(self, task: MergeTask) -> bool:
        """Or has nothing to publish: who was fenced finds out with the first commit, and until then
        nobody waits for one."""
        transaction = getattr(
            task, "_transaction", None
        )  # it has none while it lets go of its state
        if transaction is None:
            return False
        is_idle = transaction.committing is None and not transaction.waiting
        return is_idle or self.broker.is_current(transaction._sink._producer)
