"""What a worker takes that has nothing to merge: start-up, processor time and memory, by how many
replicas, partitions and output partitions it watches."""

import asyncio
import time

from benchmarks.fleet import Merge, Report, log_line, staged
from benchmarks.sizes import Sizes
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.stage import Stage
from lmerge_service.service.status.document import Status

__all__ = ("idle",)


_SETTLES_SECONDS = 8.0
"""The first snapshots are taken by then."""
_MB = 1e6


async def idle(runs: int, sizes: Sizes, report: Report) -> None:
    """Starts one worker for each size in turn, and lets it wait."""
    async with staged() as stage:
        for replicas, partitions, outputs in sizes.watched:
            found = []
            for n in range(runs):
                name = f"idle{n}x{replicas}x{outputs}"
                seconds = sizes.idle_seconds
                found.append(await _waiting(stage, name, replicas, partitions, outputs, seconds))
            of = f"{replicas} replicas × {partitions} partitions, {outputs} outputs"
            up, cores, resident = zip(*found, strict=True)
            report(f"{of}: until all are led", "s", list(up))
            report(f"{of}: idle", "% of a core", [100 * each for each in cores])
            report(f"{of}: resident", "MB", list(resident))


async def _waiting(
    stage: Stage, name: str, replicas: int, partitions: int, outputs: int, seconds: float
) -> tuple[float, float, float]:
    """Seconds until all tasks are led, cores that are taken from then on, and MB."""
    topics = [f"watched{partitions}.{number}" for number in range(replicas)]
    merge = Merge(
        stage, name, partitions=outputs,
        replicas=[{"name": f"r{n}", "topic": topic} for n, topic in enumerate(topics)],
    )  # fmt: skip
    async with Topics(merge.connection) as making:
        for topic in topics:
            await making.ensure(topic, partitions=partitions)

    def leads_all(status: Status) -> bool:
        return sum(task.phase == "leading" for task in status.tasks) == outputs

    worker = await merge.worker()
    await worker.until(leads_all, "all to be led", every=0.1, seconds=120)
    up = time.time() - worker.started
    await asyncio.sleep(min(_SETTLES_SECONDS, seconds))
    before, began = worker.cpu_seconds, time.time()
    await asyncio.sleep(seconds)
    cores = (worker.cpu_seconds - before) / (time.time() - began)
    log_line(f"{name}: led after {up:.1f} s, then {100 * cores:.1f} % of a core")
    peak = worker.peak / _MB
    await worker.end()
    return up, cores, peak
