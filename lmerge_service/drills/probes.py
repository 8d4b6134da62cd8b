"""Measurements of a running drill, as probes of the Chaos Toolkit."""

import asyncio
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path

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


@in_environment
async def seconds_until_moving(env: Environment, within: float | None = None) -> float:
    """How long it takes until the output is stable beyond the present moment."""
    return await _seconds(env.until_moving(within))


@in_environment
async def standstill(env: Environment, within: float | None = None) -> float:
    """Seconds: the longest time in which a reader of any partition got nothing, from the last
    action until the output moves on, which is waited for."""
    since, _ = env.done[-1] if env.done else (env.opened, "")
    await env.until_moving(within)
    return round(env.arrivals.longest_hole(since, time.time()).seconds, 2)


@in_environment
async def records_in(env: Environment, seconds: float) -> int:
    """How many records a reader of the output gets in the next seconds."""
    before = env.arrivals.elements
    await asyncio.sleep(seconds)
    return env.arrivals.elements - before


@in_environment
async def seconds_until_all_serve(env: Environment, within: float | None = None) -> float:
    """How long it takes until each worker leads or follows."""
    return await _seconds(env.until(env.all_serve, "all workers to lead or follow", within))


@in_environment
async def seconds_until_cutover(env: Environment, state: str, within: float | None = None) -> float:
    """How long it takes until the latest cutover is joining, watching, done or aborted, by the
    leader's status."""

    async def holds() -> bool:
        cutover = (await env.decider().status_now()).cutover
        return cutover is not None and cutover.state == state

    return await _seconds(env.until_it(holds, f"the cutover to be {state}", within))


@in_environment
async def seconds_until_joined(env: Environment, replica: str, within: float = 30) -> float:
    """How long it takes until a replica has a vote, by the leader's status."""

    async def holds() -> bool:
        return (await env.decider().attached()).get(replica) == "joined"

    return await _seconds(env.until_it(holds, f"replica {replica} to be joined", within))


async def _seconds(waiting: Awaitable[None]) -> float:
    began = time.monotonic()
    await waiting
    return round(time.monotonic() - began, 2)


@in_environment
async def logged(env: Environment, event: str, within: float | None = None) -> str:
    """Which worker has logged an event; waits for it, and fails if none does."""

    def who() -> str | None:
        return next((name for name, logs in env.logs.items() if _has(event, logs)), None)

    await env.until(lambda: who() is not None, f"a worker to log {event!r}", within)
    return str(who())


def _has(event: str, logs: Iterable[Path]) -> bool:
    lines = (line for log in logs for line in log.read_text(errors="replace").splitlines())
    return any(f'"event": "{event}"' in line for line in lines)


@in_environment
async def worker_leads(env: Environment) -> str:
    """Which worker leads the first task, by the workers' last status."""
    return env.name_of("leader")


@in_environment
async def leading_replica(env: Environment) -> str | None:
    """Which replica leads the output, by the leader's last status."""
    return env.worker_monitor.leading_replica(env.workers)
