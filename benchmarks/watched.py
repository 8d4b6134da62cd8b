"""What it costs workers to be asked by `lmerge dashboard`, and what that takes itself.

Two workers share a merge that is idle, so that all that differs is the dashboard, which stands
still (SIGSTOP) every other time. Of processor time: wall clocks show little on a busy machine.
"""

import asyncio

from benchmarks.fleet import Merge, Report, log_line, staged
from benchmarks.sizes import Sizes
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import free_port
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess

__all__ = ("watched",)

_WORKERS = 2
_SETTLES_SECONDS = 8.0


async def watched(runs: int, sizes: Sizes, report: Report) -> None:
    """Reports shares of a core: of a worker by being asked, and of the dashboard."""
    replicas, partitions = sizes.asked
    async with staged() as stage:
        workers = await _idle(stage, replicas, partitions)
        page = await stage.lmerge(
            "dashboard", *(each.address for each in workers), "--port", f"{free_port()}",
            log="dashboard.log",
        )  # fmt: skip
        await asyncio.sleep(min(_SETTLES_SECONDS, sizes.idle_seconds))
        asked, itself = [], []
        for n in range(runs):
            busy, own = await _share(workers, page, sizes.idle_seconds)
            page.pause()
            alone, _ = await _share(workers, page, sizes.idle_seconds)
            page.resume()
            log_line(f"{n}: a worker {100 * busy:.2f} % asked, {100 * alone:.2f} % left alone")
            asked.append(busy - alone)
            itself.append(own)
    of = f"{replicas} replicas × {partitions} partitions, {_WORKERS} workers"
    report(f"{of}: asked, a worker", "% of a core", [100 * each for each in asked])
    report(f"{of}: the dashboard", "% of a core", [100 * each for each in itself])


async def _idle(stage: Stage, replicas: int, partitions: int) -> list[WorkerProcess]:
    """Workers that share the tasks of a merge without records."""
    topics = [f"asked.{number}" for number in range(replicas)]
    merge = Merge(
        stage, "asked", partitions=partitions,
        replicas=[{"name": f"r{n}", "topic": topic} for n, topic in enumerate(topics)],
    )  # fmt: skip
    async with Topics(merge.connection) as making:
        for topic in topics:
            await making.ensure(topic, partitions=partitions)
    workers = [await merge.worker() for _ in range(_WORKERS)]
    for worker in workers:
        await worker.until(
            lambda status: any(task.phase == "leading" for task in status.tasks),
            "each to lead a task", every=0.5, seconds=300,
        )  # fmt: skip
    return workers


async def _share(workers: list[WorkerProcess], page: Child, seconds: float) -> tuple[float, float]:
    """Of a core, meanwhile: of a worker on average, and of the dashboard."""
    before, own = sum(each.cpu_seconds for each in workers), page.cpu_seconds
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(seconds)
    took = loop.time() - began
    busy = (sum(each.cpu_seconds for each in workers) - before) / len(workers)
    return busy / took, (page.cpu_seconds - own) / took
