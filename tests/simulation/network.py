"""What lies between one process and the broker: delay, loss, and the end of the process.

Theory
    Every request passes here, so every await of a process that matters does. Of each the chance
    (seeded) decides how long it takes, and whether it is lost before the broker has it or its
    answer is lost behind: then the outcome is unknown to who asked, and known to the broker.
    Now and then a process is cut off for a while, and goes on as if nothing had happened.

    A process that is paused (SIGSTOP, a machine that is moved) is paused within a request, before
    or behind its effect: until it goes on, none of its requests begins or is answered.

    A process that is killed is killed within a request, before or behind its effect. From then
    on nothing it does reaches the broker: its awaits never end, until its task is cancelled.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from lmerge_service.errors import FencedError, TransportError
from tests.simulation.memory import Broker, BrokerError, Fenced

__all__ = ("CALM", "Network", "Weather")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad it is: shares of requests, and seconds."""

    lost: float = 0.0
    """Never reach the broker."""
    unanswered: float = 0.0
    """Take effect, and their answers are lost."""
    slow: float = 0.1
    """Take up to `slowest` seconds instead of up to 10 ms."""
    slowest: float = 3.0
    cut_off: float = 0.0
    """Come when the process is cut off, as all that follow for some ten seconds: longer than a
    session, so that it may be taken for dead."""


CALM = Weather(slow=0.0)


class Network:
    """The way of one process to the broker."""

    def __init__(
        self,
        broker: Broker,
        chance: Random,
        weather: Weather = CALM,
        *,
        name: str = "",
        killed_at: int | None = None,
        killed_doing: str = "",
        pauses: Mapping[int, float] | None = None,
    ):
        """It is killed at its `killed_at`th request, of those for `killed_doing` if that is
        given; at its nth request it is paused for `pauses[n]` seconds."""
        self.broker = broker
        self.chance = chance
        self.weather = weather
        self.name = name
        self.requests = 0
        self.news = asyncio.Event()
        """Set, and replaced, when there may be something new to read."""
        self.killed = asyncio.Event()
        """The process has come to its end."""
        self._killed_at = killed_at
        self._killed_doing = killed_doing
        self.asked = 0
        """Requests of any kind."""
        self.paused = 0
        """How often it was paused."""
        self._pauses = pauses or {}
        self._never: list[asyncio.Future[None]] = []
        self._cut_off_until = 0.0
        broker.on_arrival.append(self._notify)

    def close(self) -> None:
        """The process is gone: nobody waits any more, for news or for ever."""
        for future in self._never:
            future.cancel()
        self.broker.on_arrival.remove(self._notify)

    def _notify(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    async def request(self, work: Callable[[], T], doing: str) -> T:
        """The broker's answer.

        Raises:
            FencedError: another producer has taken over.
            TransportError: no answer, or a refusal.
        """
        counts = self._killed_doing in ("", doing)
        self.requests += counts
        dies = counts and self.requests == self._killed_at
        self.asked += 1
        pause = self._pauses.get(self.asked, 0.0)
        before = self.chance.random() < 0.5 if pause else False
        self._pause(pause if before else 0.0)
        await self._travel()
        if dies and self.chance.random() < 0.5:
            await self._die()
        fate = self.chance.random()
        if fate < self.weather.lost:
            raise TransportError(f"{doing}: no answer from Kafka in time")
        try:
            answer = work()
        except Fenced as error:
            raise FencedError(f"{doing}: {error}") from error
        except BrokerError as error:
            raise TransportError(f"{doing}: {error}", retriable=False) from error
        if dies:
            await self._die()
        self._pause(0.0 if before else pause)
        await self._travel()
        if fate < self.weather.lost + self.weather.unanswered:
            raise TransportError(f"{doing}: no answer from Kafka in time")
        return answer

    @property
    def is_paused(self) -> bool:
        return asyncio.get_running_loop().time() < self._cut_off_until

    def _pause(self, seconds: float) -> None:
        if seconds:
            self.paused += 1
            self._cut_off(seconds)

    def _cut_off(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self._cut_off_until = max(self._cut_off_until, until)

    async def _travel(self) -> None:
        if self.killed.is_set():
            await self._die()
        if self.weather.cut_off and self.chance.random() < self.weather.cut_off:
            self._cut_off(self.chance.uniform(2, 20))
        slow = self.chance.random() < self.weather.slow
        takes = self.chance.uniform(0, self.weather.slowest if slow else 0.01)
        await asyncio.sleep(takes)
        while (rest := self._cut_off_until - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(rest)
        if self.killed.is_set():
            await self._die()

    async def _die(self) -> None:
        self.killed.set()
        never = asyncio.get_running_loop().create_future()
        self._never.append(never)
        await never
