"""An event loop whose clock jumps: when every task waits, time passes to the next timer at once.

Theory
    Callbacks run in the order in which they became ready, timers in the order of their times, and
    there are no threads and no sockets. So what happens is a function of the program and of the
    random numbers it draws: the same seed gives the same history. The clocks of `time` show the
    loop's time while `run` runs, since what is run asks them for its own bookkeeping; it is
    `BEGAN` when a run begins.

    When all tasks wait and no timer is set, nothing can ever happen: that is an error.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from typing import Any, Final, TypeVar
from unittest.mock import patch

__all__ = ("BEGAN", "Deadlock", "VirtualLoop", "run")

BEGAN: Final = 1_700_000_000
"""When virtual time begins, in seconds since the epoch."""

T = TypeVar("T")


class Deadlock(Exception):  # noqa: N818 (a finding about what is run)
    """Every task waits for another."""


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: the loop's clock is put forward instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end in virtual time, and cancels what it leaves behind."""
    loop = VirtualLoop()
    clocks = {
        "monotonic": loop.time,
        "time": lambda: BEGAN + loop.now,
        "time_ns": lambda: int((BEGAN + loop.now) * 10**9),
    }
    with ExitStack() as stack:
        for name, clock in clocks.items():
            stack.enter_context(patch(f"time.{name}", clock))
        try:
            return loop.run_until_complete(main)
        finally:
            while left := asyncio.all_tasks(loop):  # the end of one may begin another
                loop.run_until_complete(_cancelled(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
