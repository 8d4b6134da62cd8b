"""What is asked of a drill under way, as probes of the Chaos Toolkit."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from lmerge_service.drills.environment import Rig
from lmerge_service.drills.session import current, on_rig

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
    """`valid`, `invalid` or `unknown`: the judge (K1 to K8) on what the topics hold now; `unknown`
    also when an action has not done what it was to do."""
    playing = current()
    judged = playing.judge()
    return "unknown" if playing.failures and judged.outcome == "valid" else judged.outcome


def longest_hole() -> float:
    """Seconds: the longest time in which a reader of any partition got nothing, so far; as the
    last verdict has it."""
    playing = current()
    return round((playing.judged or playing.judge()).hole.seconds, 2)


def seconds_until_moving(within: float | None = None) -> float:
    """How long it takes until the output is stable beyond the present moment."""
    return _seconds(lambda rig: rig.until_moving(within))


def standstill(within: float | None = None) -> float:
    """Seconds: the longest time in which a reader of any partition got nothing, from the last
    action until the output moves on, which is waited for."""
    rig = current().rig
    since = rig.happened[-1].at if rig.happened else rig.opened
    on_rig(lambda rig: rig.until_moving(within))
    return round(rig.arrivals.longest_hole(since, time.time()).seconds, 2)


def records_in(seconds: float) -> int:
    """How many records a reader of the output gets in the next seconds."""

    async def counted(rig: Rig) -> int:
        before = sum(map(len, rig.arrivals.times))
        await asyncio.sleep(seconds)
        return sum(map(len, rig.arrivals.times)) - before

    return on_rig(counted)


def seconds_until_all_serve(within: float | None = None) -> float:
    """How long it takes until each worker leads or follows."""
    return _seconds(lambda rig: rig.until_all_serve(within))


def seconds_until_cutover(state: str, within: float | None = None) -> float:
    """How long it takes until the latest cutover is joining, watching, done or aborted."""
    return _seconds(lambda rig: rig.until_cutover(state, within))


def seconds_until_joined(replica: str, within: float = 30) -> float:
    """How long it takes until a replica has a vote."""
    return _seconds(lambda rig: rig.until_joined(replica, within))


def _seconds(waiting: Callable[[Rig], Coroutine[Any, Any, None]]) -> float:
    began = time.monotonic()
    on_rig(waiting)
    return round(time.monotonic() - began, 2)


def logged(event: str, within: float | None = None) -> str:
    """Which worker has logged an event; waits for it, and fails if none does."""
    return on_rig(lambda rig: rig.until_logged(event, within))


def worker_leads() -> str:
    """Which worker leads the first task, as the workers said last."""
    return current().rig.name_of("leader")


def leading_replica() -> str | None:
    """Which replica leads the output, as the worker that leads said last."""
    return current().rig.sightings.leading_replica(current().rig.workers)
