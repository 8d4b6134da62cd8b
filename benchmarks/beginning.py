"""How long a reader takes that begins in the middle of an output, at a snapshot.

A worker merges a backlog, of which the same number of events is live at the end however long it is,
and takes snapshots. Then readers in this process begin at the last one: what counts is the time
from the first request to Kafka until the live events and the first stable have been handed out, and
the processor time of this process in it. In turn with them others read the same output from its
first record to its end.
"""

import time
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.fleet import Merge, Report, by_topic, log_line, staged
from benchmarks.inputs import lazily
from benchmarks.sizes import Sizes
from benchmarks.traffic import Replicas
from lmerge_service.elements import Insert, Stable
from lmerge_service.errors import LMergeError
from lmerge_service.kafka.connection import Connection
from lmerge_service.reader.read_merged import read_merged

__all__ = ("beginning",)

_ENDLESS: Final = 10**9
"""Events; they are made when they are asked for."""
_ELEMENTS_PER_EVENT: Final = 1.2
_PAYLOAD_BYTES: Final = 46


@dataclass(frozen=True, slots=True)
class _Read:
    """What a reader took."""

    seconds: float
    cpu: float
    inserts: int


async def beginning(runs: int, sizes: Sizes, report: Report) -> None:
    """It must not take longer because there is more history."""
    for times in (1, sizes.longer):
        await _beginnings(sizes.live[-1], times, runs, report)


async def _beginnings(live: int, times: int, runs: int, report: Report) -> None:
    limits = {"max_live_events": 4 * live + 100_000, "max_live_bytes": 1 << 36}
    streams = lazily(_ENDLESS, payload_bytes=_PAYLOAD_BYTES, active=live, closed=False)
    found: dict[str, list[_Read]] = {"snapshot": [], "first record": []}
    async with (
        staged() as stage,
        Replicas(Connection(stage.bootstrap), by_topic(streams)) as replicas,
    ):
        total = await replicas.publish(int(_ELEMENTS_PER_EVENT * live * times))
        merge = Merge(stage, "beginning", limits=limits, snapshot_seconds=1)
        worker = await merge.worker()
        status = await worker.until(lambda s: s.elements_in >= total, "all to be merged", every=0.1)
        covered = len(worker.logged("snapshot")) + 1  # the next one begins behind all that is there
        await worker.until(lambda _: len(worker.logged("snapshot")) > covered, "a snapshot")
        await worker.end()
        for _ in range(runs):
            for how, reads in found.items():
                reads.append(await _read(merge, "snapshot" if how == "snapshot" else "beginning"))
                log_line(f"begun at the {how} in {reads[-1].seconds:.2f} s")
    what = f"history × {times}"
    if any(each.inserts < live / 2 for each in found["snapshot"]):
        raise LMergeError("the snapshot has less than is live")
    report(f"{what}: live events", "", [status.output.live_events])
    for how, reads in found.items():
        report(f"{what}: begun at the {how}", "s", [each.seconds for each in reads])
        report(f"{what}: the same, processor time", "s", [each.cpu for each in reads])
        report(f"{what}: inserts that were read", "", [each.inserts for each in reads])


async def _read(merge: Merge, start: Literal["snapshot", "beginning"]) -> _Read:
    """To the first stable behind a snapshot; from the first record to the end."""
    began, cpu, inserts = time.perf_counter(), time.process_time(), 0
    reading = read_merged(merge.connection, [merge.output], start=start, follow=False)
    async with reading as reader:
        async for element in reader:
            inserts += type(element) is Insert
            if start == "snapshot" and type(element) is Stable:
                break
    return _Read(time.perf_counter() - began, time.process_time() - cpu, inserts)
