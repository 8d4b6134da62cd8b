"""What an output that forgets takes on disk, while replicas publish at a steady rate.

A worker has `output.keep` and takes snapshots; the topic has segments as small as Kafka makes them,
since Kafka frees whole ones. Now and then what the partition holds is asked for, and the files of
the output and of its state are measured. The bound of the output is `keep` times the rate, what
came since the older snapshot, and two segments: one is written, and of one a part is kept.
"""

import asyncio
import time
from pathlib import Path
from typing import Final

from benchmarks.fleet import Merge, Report, by_topic, log_line, staged
from benchmarks.inputs import lazily
from benchmarks.sizes import Sizes
from benchmarks.traffic import Replicas
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics

__all__ = ("forgetting",)

_ENDLESS: Final = 10**9
_KEEP_SECONDS: Final = 10
_RATE: Final = 1_000
"""Elements a second of each replica."""
_SEGMENT: Final = 1 << 20
_TIMES: Final = 4
"""How often it is measured, two `keep` apart, the first time after three."""
_MB: Final = 1e6


async def forgetting(runs: int, sizes: Sizes, report: Report) -> None:
    """Disk must not grow with what was published."""
    keep = min(_KEEP_SECONDS, max(1, int(sizes.latency_seconds)))
    for _ in range(runs):
        await _forgetting(keep, report)


async def _forgetting(keep: int, report: Report) -> None:
    streams = lazily(_ENDLESS, payload_bytes=46, active=1_000, closed=False)
    kept: list[float] = []
    disk: list[float] = []
    state: list[float] = []
    published: list[float] = []
    async with (
        staged(log_retention_check_interval_ms="1000", log_segment_delete_delay_ms="1000") as stage,
        Replicas(Connection(stage.bootstrap), by_topic(streams)) as replicas,
    ):
        merge = Merge(stage, "forgetting", snapshot_seconds=5,
                      output={"topic": "forgetting.out", "keep": f"{keep}s"})  # fmt: skip
        settings = {"segment.bytes": f"{_SEGMENT}", "retention.ms": "-1", "retention.bytes": "-1"}
        async with Topics(merge.connection) as topics:
            await topics.ensure(merge.output, config=settings)
        await merge.topics()
        worker, tp = await merge.worker(), TopicPartition(merge.output, 0)
        await worker.running()
        began = time.time()
        async with replicas.publishing(_RATE), Source(merge.connection) as source:
            for number in range(_TIMES):
                await asyncio.sleep(max(0.0, began + keep * (3 + 2 * number) - time.time()))
                begins = (await source.beginnings([tp]))[tp]
                ends = (await source.high_watermarks([tp]))[tp]
                kept.append(ends - begins)
                published.append(ends)
                disk.append(_bytes(stage.folder, merge.output))
                state.append(_bytes(stage.folder, f"{merge.output}.state"))
                log_line(f"{ends:,} published, {kept[-1]:,} kept, {disk[-1]:,} bytes")
        await worker.end()
    what = f"keep {keep} s, 3 × {_RATE:,} elements a second"
    report(f"{what}: offsets published", "", published)
    report(f"{what}: offsets kept", "", kept)
    report(f"{what}: the output's segments on disk", "MB", [each / _MB for each in disk])
    report(f"{what}: its state's", "MB", [each / _MB for each in state])


def _bytes(folder: Path, topic: str) -> int:
    """Of the segments of a topic of one partition."""
    return sum(each.stat().st_size for each in folder.rglob(f"{topic}-0/*.log"))
