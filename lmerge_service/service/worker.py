"""The worker process: one merge task, its HTTP side, and its life between start and SIGTERM.

Who owns what
    `run` owns everything, in one TaskGroup: the HTTP server, the task, and the watch over topics.
    SIGTERM and SIGINT cancel it; the commit in flight is finished, bounded by a few seconds, so
    that the process ends within 15 s even when Kafka is gone.

What happens when Kafka goes away
    At the very start: the command ends with one line. Later: the task is closed and opened anew,
    with growing pauses, until it succeeds; /readyz says 503 meanwhile. A worker that was fenced
    ends: somebody else owns the output.
"""

import asyncio
import signal
from contextlib import AsyncExitStack

import structlog

from lmerge_service.errors import LMergeError, TransportError, single_error
from lmerge_service.service.access import Access
from lmerge_service.service.http import application, serve
from lmerge_service.service.status import StateSource
from lmerge_service.service.task import MergeTask
from lmerge_service.service.tuning import quieten_garbage_collector
from lmerge_service.topology import Topology

__all__ = ("run",)

log = structlog.get_logger()

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
_PATIENCE = 10


async def run(topology: Topology) -> None:
    """Merges until SIGTERM or SIGINT, then returns.

    Raises:
        LMergeError: what ended the worker: fenced, a state that cannot be rebuilt, no Kafka.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        with single_error():
            async with asyncio.TaskGroup() as group:
                worker = group.create_task(_work(topology), name="worker")
                await _first_of(stop, worker)
                worker.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if not stop.is_set():
        raise LMergeError("the worker ended without being told to; start it again")
    log.info("stopped")


async def _first_of(stop: asyncio.Event, worker: asyncio.Task[None]) -> None:
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopped, worker}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


async def _work(topology: Topology) -> None:
    task, state = MergeTask(topology), StateSource()
    app = application(task, state, Access(topology.http))
    async with serve(app, topology.http) as address:
        log.info("serving", address=address)
        try:
            await _merge_and_recover(task, state)
        finally:
            state.state = "stopping"


async def _merge_and_recover(task: MergeTask, state: StateSource) -> None:
    failures = committed = 0
    while True:
        try:
            async with AsyncExitStack() as stack:
                await task.open(stack)
                quieten_garbage_collector()
                state.state = "running"
                log.info(
                    "running",
                    case=task.merge.case.value,
                    policy=str(task.merge.policy),
                    recovery_seconds=round(task.progress.recovery_seconds, 3),
                )
                await _merge(task)
        except TransportError as error:
            # Once it has committed, whatever makes a commit fail may heal by a rebuild; the same
            # failure again and again will not.
            hopeless = failures >= _PATIENCE or not task.progress.transactions
            if state.state == "starting" or (not error.retriable and hopeless):
                raise
            state.state = "recovering"
            task.progress.rebuilds += 1
            log.warning("recovering", error=str(error))
            await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures = failures + 1 if task.progress.transactions == committed else 1
            committed = task.progress.transactions


async def _merge(task: MergeTask) -> None:
    with single_error():
        async with asyncio.TaskGroup() as group:
            group.create_task(task.run(), name="merge")
            group.create_task(task.watch(), name="watch")
