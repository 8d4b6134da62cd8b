"""Measurements of a running drill, as probes of the Chaos Toolkit."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from lmerge_service.drills.environment import Environment
from lmerge_service.drills.session import current, in_environment

__all__ = (
    "leading_replica",
    "logged",
    "longest_hole",
    "records_in",
    "seconds_until_all_serve",
    "seconds_until_cutover",
    "seconds_until_joined",
    "seconds_until_moving",
    "standstill",
    "verdict",
    "worker_leads",
)


def verdict() -> str:
    """`valid`, `invalid` or `unknown`: the judge's checks (K1 to K8) of the topics now; `unknown`
    also when an action has failed."""
    session = current()
    judged = session.judge()
    return "unknown" if session.failures and judged.outcome == "valid" else judged.outcome


def longest_hole() -> float:
    """Seconds: the longest time in which a reader of any partition got nothing, so far; as the
    last verdict has it."""
    session = current()
    return round((session.judged or session.judge()).hole.seconds, 2)


def seconds_until_moving(within: float | None = None) -> float:
    """How long it takes until the output is stable beyond the present moment."""
    return _seconds(lambda env: env.until_moving(within))


def standstill(within: float | None = None) -> float:
    """Seconds: the longest time in which a reader of any partition got nothing, from the last
    action until the output moves on, which is waited for."""
    env = current().environment
    since = env.timeline_events[-1].at if env.timeline_events else env.opened
    in_environment(lambda env: env.until_moving(within))
    return round(env.arrivals.longest_hole(since, time.time()).seconds, 2)


def records_in(seconds: float) -> int:
    """How many records a reader of the output gets in the next seconds."""

    async def counted(env: Environment) -> int:
        before = sum(map(len, env.arrivals.times))
        await asyncio.sleep(seconds)
        return sum(map(len, env.arrivals.times)) - before

    return in_environment(counted)


def seconds_until_all_serve(within: float | None = None) -> float:
    """How long it takes until each worker leads or follows."""
    return _seconds(lambda env: env.until_all_serve(within))


def seconds_until_cutover(state: str, within: float | None = None) -> float:
    """How long it takes until the latest cutover is joining, watching, done or aborted."""
    return _seconds(lambda env: env.until_cutover(state, within))


def seconds_until_joined(replica: str, within: float = 30) -> float:
    """How long it takes until a replica has a vote."""
    return _seconds(lambda env: env.until_joined(replica, within))


def _seconds(waiting: Callable[[Environment], Coroutine[Any, Any, None]]) -> float:
    began = time.monotonic()
    in_environment(waiting)
    return round(time.monotonic() - began, 2)


def logged(event: str, within: float | None = None) -> str:
    """Which worker has logged an event; waits for it, and fails if none does."""
    return in_environment(lambda env: env.until_logged(event, within))


def worker_leads() -> str:
    """Which worker leads the first task, by the workers' last status."""
    return current().environment.name_of("leader")


def leading_replica() -> str | None:
    """Which replica leads the output, by the leader's last status."""
    return current().environment.worker_monitor.leading_replica(current().environment.workers)
