"""The service as its users run it: worker processes on a local broker, beside a pass-through.

Each measurement has a broker and a folder of its own and leaves nothing behind. What is merged is a
backlog, sent once and merged again in each run into an output of its own, timed from the worker's
log entry `running` to the status that shows that all is merged; starting processes does not count.
Broker, workers and this process share the machine.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final, TypeAlias

from benchmarks import recovery
from benchmarks.beginning import beginning
from benchmarks.fleet import NEVER, TOPICS, Merge, Report, by_topic, log_line, staged
from benchmarks.idle import idle
from benchmarks.inputs import lazily
from benchmarks.pass_through import plain_pass_through
from benchmarks.retention import forgetting
from benchmarks.sizes import Sizes
from benchmarks.streams import deduplicated
from benchmarks.traffic import Receipts, Replicas, following, quantile, waits
from benchmarks.watched import watched
from lmerge_service.config.topology import Topology
from lmerge_service.demo.throughput import pass_through
from lmerge_service.elements import Element
from lmerge_service.errors import LMergeError
from lmerge_service.formats.dialects import Written
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import on_the_wire
from lmerge_service.local.stage import Stage
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.merge.tuning import quieten_garbage_collector
from lmerge_service.service.status.document import Status

__all__ = ("NAMES", "run")

_POLL_SECONDS: Final = 0.1
_RARELY_SECONDS: Final = 0.5
"""Where processor time is measured: to answer for 64 tasks takes a worker 20 ms."""
_PASSING_STARTS_SECONDS: Final = 5.0
_MB: Final = 1e6
_MICRO: Final = 1e6
_PAYLOAD_BYTES: Final = 46
"""Of a payload's longest field: its elements have some 120 bytes."""

Measurement: TypeAlias = Callable[[int, Sizes, Report], Awaitable[None]]
PassThrough: TypeAlias = Callable[[Connection, Sequence[str], str], Awaitable[float]]


async def run(names: Sequence[str], runs: int, sizes: Sizes, report: Report) -> None:
    """Measures what is named, one after the other.

    Raises:
        LMergeError: a process could not be started, ended, or stopped moving.
    """
    for name in names:
        log_line(name)
        await _MEASUREMENTS[name](runs, sizes, report)


# --- merging a backlog ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Merged:
    """A backlog that was merged: input elements a second, and what the workers took."""

    rate: float
    peak: int
    """Bytes resident, of the largest worker."""
    snapshots: int
    cpu: float
    """Seconds of processor time, of all workers from when they run."""
    native: list[float]
    """Of each worker, the share of records that did not go back to Python; none in Python."""


async def _merged(
    merge: Merge, total: int, *, workers: int = 1, reads: Sequence[int] = ()
) -> _Merged:
    """Starts workers on a backlog of `total` elements, and ends them when it is merged; `reads`
    are how many of them each task reads, if there are several."""
    reads = reads or [total]
    started = await asyncio.gather(*(merge.worker() for _ in range(workers)))
    await asyncio.gather(*(worker.running() for worker in started))
    cpu = -sum(worker.cpu_seconds for worker in started)
    merging = [_until_merged(worker, len(reads) // workers, reads) for worker in started]
    statuses, end = await asyncio.gather(*merging), time.time()
    if rebuilds := sum(each.rebuilds for each in statuses):
        log_line(f"{merge.name}: rebuilt {rebuilds} times, so this run is slower than it would be")
    running = [entry["at"] for worker in started for entry in worker.logged("running")]
    snapshots = sum(len(worker.logged("snapshot")) for worker in started)
    cpu += sum(worker.cpu_seconds for worker in started)
    for worker in started:
        await worker.end()
    rate = total / (end - min(running))
    log_line(f"{merge.name}: {total:,} elements, {rate:,.0f} a second")
    shares = [each.engine.native_share for each in statuses]
    native = [share for share in shares if share is not None]
    return _Merged(rate, max(worker.peak for worker in started), snapshots, cpu, native)


async def _until_merged(worker: WorkerProcess, tasks: int, reads: Sequence[int]) -> Status:
    """Its status then."""
    leading = len(_outputs(await worker.running()))
    if leading != tasks:
        raise LMergeError(f"worker {worker.name} leads {leading} tasks at once, not {tasks}")

    def merged(status: Status) -> bool:
        led = [task.partition for task in status.tasks if task.role == "leads"]
        return status.elements_in >= sum(reads[p] for p in led) and all(_outputs(status))

    return await worker.until(merged, "all to be merged", every=_POLL_SECONDS)


def _outputs(status: Status) -> list[bool]:
    """Of each task that is led, whether its output has ended."""
    return [task.output.ended for task in status.tasks if task.role == "leads"]


async def _filled(
    stage: Stage, events: int, payload_bytes: int, *, active: int = 10_000, revised: float = 0.2
) -> int:
    """Sends the backlogs; how many elements that are."""
    streams = lazily(events, payload_bytes=payload_bytes, active=active, revised=revised)
    async with Replicas(Connection(stage.bootstrap), by_topic(streams)) as replicas:
        total = await replicas.publish()
    log_line(f"{total:,} elements in {len(streams)} topics")
    return total


@dataclass(frozen=True, slots=True)
class _Passed:
    """A backlog that was copied: elements a second, and seconds of processor time."""

    rate: float
    cpu: float


async def _passed(stage: Stage, tag: str, how: PassThrough = plain_pass_through) -> _Passed:
    quieten_garbage_collector()
    topics, cpu = list(TOPICS.values()), time.process_time()
    rate = await how(Connection(stage.bootstrap), topics, f"passed.{tag}")
    log_line(f"passed through: {rate:,.0f} elements a second")
    return _Passed(rate, time.process_time() - cpu)


async def _small_payloads(runs: int, sizes: Sizes, report: Report) -> None:
    await _throughput("120 bytes", sizes.events, _PAYLOAD_BYTES, 0, runs, report)


async def _revised(runs: int, sizes: Sizes, report: Report) -> None:
    what = "120 bytes, a fifth of the events revised"
    await _throughput(what, sizes.events, _PAYLOAD_BYTES, 0.2, runs, report)


async def _large_payloads(runs: int, sizes: Sizes, report: Report) -> None:
    size = sizes.payload_bytes
    await _throughput(f"payloads of {size:,} bytes", sizes.events, size, 0, runs, report)


async def _throughput(
    what: str, events: int, size: int, revised: float, runs: int, report: Report
) -> None:
    """One worker on three backlogs, in turn with pass-throughs of the same topics."""
    plain, lean, merged = [], [], []
    async with staged() as stage:
        total = await _filled(stage, events, size, revised=revised)
        await _passed(stage, "warm")
        for n in range(runs):
            plain.append(await _passed(stage, f"{n}"))
            merged.append(await _merged(Merge(stage, f"m{n}"), total))
            lean.append(await _passed(stage, f"{n}.lean", pass_through))
    report(f"merge, exactly once, {what}", "k elements/s", [each.rate / 1000 for each in merged])
    report(f"merge: processor time, {what}", "µs an element",
           [each.cpu / total * _MICRO for each in merged])  # fmt: skip
    if native := [share for each in merged for share in each.native]:
        report(f"native share, {what}", "of the records", native)
    for name, passed in (("pass-through", plain), ("pass-through by our source and sink", lean)):
        report(f"{name} in transactions, {what}", "k elements/s", [p.rate / 1000 for p in passed])
        report(f"{name}: processor time, {what}", "µs an element",
               [p.cpu / total * _MICRO for p in passed])  # fmt: skip
        pairs = list(zip(merged, passed, strict=True))
        report(f"ratio of each pair to the {name}, {what}", "", [m.rate / p.rate for m, p in pairs])
        report(f"the same in processor time, {what}", "", [p.cpu / m.cpu for m, p in pairs])
    report(f"peak resident memory of the worker, {what}", "MB", [m.peak / _MB for m in merged])


async def _table(runs: int, sizes: Sizes, report: Report) -> None:
    """One worker on one backlog without a table, with one, and with one that also forgets, in turn;
    events of which a fifth are revised."""
    kinds: Mapping[str, Mapping[str, object]] = {
        "without a table": {},
        "with a table": {"table": True},
        "with a table, keep 1s": {"table": True, "keep": "1s"},
    }
    merged: dict[str, list[_Merged]] = {kind: [] for kind in kinds}
    async with staged() as stage:
        total = await _filled(stage, sizes.events, _PAYLOAD_BYTES)
        await _merged(Merge(stage, "warm"), total)
        for n in range(runs):
            for number, (kind, options) in enumerate(kinds.items()):
                name = f"m{n}.{number}"
                output = {"topic": f"{name}.out", **options}
                merged[kind].append(await _merged(Merge(stage, name, output=output), total))
    without, *others = kinds
    for kind, found in merged.items():
        report(f"merge {kind}", "k elements/s", [each.rate / 1000 for each in found])
    for kind in others:
        pairs = zip(merged[kind], merged[without], strict=True)
        report(f"ratio {kind} to {without}", "", [one.rate / other.rate for one, other in pairs])
    for kind in others:
        pairs = zip(merged[kind], merged[without], strict=True)
        ratios = [one.cpu / other.cpu for one, other in pairs]
        report(f"processor time of the worker {kind} to {without}", "", ratios)
    for kind, found in merged.items():
        took = [each.cpu / total * _MICRO for each in found]
        report(f"processor time of the worker {kind}", "µs an element", took)
    for kind, found in merged.items():
        report(f"peak resident memory {kind}", "MB", [each.peak / _MB for each in found])


async def _streams(runs: int, sizes: Sizes, report: Report) -> None:
    """One worker in turn with Kafka Streams, which drops what it has seen and cannot revise."""
    merged, rivals = [], []
    async with staged() as stage:
        total = await _filled(stage, sizes.events, _PAYLOAD_BYTES, revised=0)
        await _passed(stage, "warm")
        for n in range(runs):
            merged.append(await _merged(Merge(stage, f"m{n}"), total))
            rivals.append(await deduplicated(stage, list(TOPICS.values()), f"streams.{n}", total))
    report("merge, exactly once", "k elements/s", [each.rate / 1000 for each in merged])
    report("Kafka Streams, exactly once", "k elements/s", [each.rate / 1000 for each in rivals])
    report("Kafka Streams, when warm", "k elements/s", [each.warm / 1000 for each in rivals])
    ratios = [one.rate / other.warm for one, other in zip(merged, rivals, strict=True)]
    report("merge to Kafka Streams when warm", "", ratios)
    report("peak resident memory of the worker", "MB", [each.peak / _MB for each in merged])
    report("of Kafka Streams", "MB", [each.peak / _MB for each in rivals])


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a merge of two output partitions is worked at."""

    co_partitioned: bool
    workers: int
    standbys: int

    def __str__(self) -> str:
        replicas = "co-partitioned" if self.co_partitioned else "each of one partition"
        who = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        follows = ", each following the other's task" if self.standbys else ""
        return f"replicas {replicas}, {who}{follows}"


async def _workers(runs: int, sizes: Sizes, report: Report) -> None:
    """Workers on two output partitions, in turn. The broker waits for all before it shares.

    Of replicas that are partitioned as the output is, each task reads its part; of others, all.
    """
    shapes = [
        _Shape(co_partitioned, workers, standbys)
        for co_partitioned in (True, False)
        for workers, standbys in ((1, 0), (2, 0), (2, 1))
    ]
    rates: dict[_Shape, list[float]] = {shape: [] for shape in shapes}
    for co_partitioned in (True, False):
        async with staged(group_initial_rebalance_delay_ms="6000") as stage:
            reads = await _spread(stage, sizes.events, partitions=2 if co_partitioned else 1)
            total = sum(reads)
            reads = reads if co_partitioned else 2 * reads
            for n in range(runs):
                for number, shape in enumerate(shapes):
                    if shape.co_partitioned == co_partitioned:
                        merge = _shaped(stage, f"w{n}.{number}", shape)
                        found = await _merged(merge, total, workers=shape.workers, reads=reads)
                        rates[shape].append(found.rate)
    for shape, found_rates in rates.items():
        report(f"{shape}", "k elements/s", [rate / 1000 for rate in found_rates])
        alone = rates[_Shape(shape.co_partitioned, 1, 0)]
        report(f"{shape}: ratio to 1 worker", "",
               [r / one for r, one in zip(found_rates, alone, strict=True)])  # fmt: skip


async def _spread(stage: Stage, events: int, *, partitions: int) -> list[int]:
    """Sends the backlogs; how many records each partition number of the three topics has in all."""
    streams = by_topic(lazily(events, payload_bytes=_PAYLOAD_BYTES, active=10_000))
    connection = Connection(stage.bootstrap)
    async with Replicas(connection, streams, partitions=partitions) as replicas:
        await replicas.publish()
        return replicas.records


def _shaped(stage: Stage, name: str, shape: _Shape) -> Merge:
    replicas = [
        {"name": name, "topic": topic, "co_partitioned": shape.co_partitioned}
        for name, topic in TOPICS.items()
    ]
    return Merge(stage, name, partitions=2, standbys=shape.standbys, replicas=replicas)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How many output partitions there are, and who merges them."""

    partitions: int
    workers: int = 1
    standbys: int = 0

    def __str__(self) -> str:
        who = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        follows = ", standbys: 1" if self.standbys else ""
        return f"{self.partitions} output partitions, {who}{follows}"


_LAYOUTS: Final = (
    *(_Layout(partitions) for partitions in (1, 2, 4, 8, 16, 64)),
    _Layout(8, workers=2),
    _Layout(8, workers=2, standbys=1),
)


async def _partitions(runs: int, sizes: Sizes, report: Report) -> None:
    """What an element costs, by the number of output partitions and workers, in turn; from when
    the first task is led, replicas of one partition each."""
    found: dict[_Layout, list[_Cost]] = {layout: [] for layout in _LAYOUTS}
    async with staged(group_initial_rebalance_delay_ms="6000") as stage:
        total = await _filled(stage, sizes.events // 3, _PAYLOAD_BYTES)
        for n in range(runs):
            for number, layout in enumerate(_LAYOUTS):
                merge = Merge(
                    stage, f"p{n}.{number}", partitions=layout.partitions, standbys=layout.standbys
                )
                found[layout].append(await _cost(merge, layout))
    for layout, costs in found.items():
        report(f"{layout}: processor time", "µs an element",
               [each.cpu_seconds / total * _MB for each in costs])  # fmt: skip
        report(f"{layout}: rate", "k elements/s", [total / each.seconds / 1000 for each in costs])
        report(f"{layout}: resident, the largest worker", "MB", [c.peak / _MB for c in costs])


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of merging a backlog."""

    seconds: float
    cpu_seconds: float
    """Of all workers."""
    peak: int


async def _cost(merge: Merge, layout: _Layout) -> _Cost:
    """Merges a backlog; what it costs from when every worker has begun."""
    workers = await asyncio.gather(*(merge.worker() for _ in range(layout.workers)))
    for worker in workers:
        await worker.running()
    before, started = sum(each.cpu_seconds for each in workers), time.time()
    mine = layout.partitions // layout.workers

    def merged(status: Status) -> bool:
        ended = _outputs(status)
        return len(ended) == mine and all(ended)

    for worker in workers:
        await worker.until(merged, "all to be merged", every=_RARELY_SECONDS)
    seconds = time.time() - started
    cost = _Cost(
        seconds, sum(each.cpu_seconds for each in workers) - before,
        max(worker.peak for worker in workers),
    )  # fmt: skip
    for worker in workers:
        await worker.end()
    log_line(f"{merge.name}: {layout}, {seconds:.1f} s, {cost.cpu_seconds:.1f} s of processor time")
    return cost


async def _snapshots(runs: int, sizes: Sizes, report: Report) -> None:
    """The rate with no snapshots, with some, and with as many as a worker will take."""
    default = Topology.model_fields["snapshot_seconds"].default
    every = {"no snapshots": NEVER, f"a snapshot every {default:g} s, the default": default,
             "a snapshot every 1 s, or when it may": 1.0}  # fmt: skip
    found: dict[str, list[_Merged]] = {what: [] for what in every}
    async with staged() as stage:
        total = await _filled(
            stage, sizes.snapshot_events, _PAYLOAD_BYTES, active=sizes.snapshot_active
        )
        for n in range(runs):
            for number, (what, seconds) in enumerate(every.items()):
                merge = Merge(stage, f"s{n}.{number}", snapshot_seconds=seconds)
                found[what].append(await _merged(merge, total))
    first = next(iter(found.values()))
    for what, merged in found.items():
        report(what, "k elements/s", [each.rate / 1000 for each in merged])
        report(f"{what}: taken in a run", "", [each.snapshots for each in merged])
        ratios = [each.rate / none.rate for each, none in zip(merged, first, strict=True)]
        report(f"{what}: ratio to none", "", ratios)


async def _backlog(runs: int, sizes: Sizes, report: Report) -> None:
    """Memory must not grow with the backlog, so a tenth of it is merged too."""
    for events in (sizes.backlog // 10, sizes.backlog):
        async with staged() as stage:
            total = await _filled(stage, events, _PAYLOAD_BYTES)
            merged = [await _merged(Merge(stage, f"b{n}"), total) for n in range(runs)]
        what = f"backlog of 3 × {total // 3:,} elements"
        report(f"{what}, peak resident", "MB", [each.peak / _MB for each in merged])
        report(what, "k elements/s", [each.rate / 1000 for each in merged])


# --- latency --------------------------------------------------------------------------------------


async def _latency(runs: int, sizes: Sizes, report: Report) -> None:
    """From when the first replica's record was made to a read_committed consumer."""
    for rate in sizes.rates:
        what = f"at 3 × {rate:,} elements/s"
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(runs):
            for name, begin in (("added", _merging), ("pass-through's", _passing)):
                async with staged() as stage:
                    added = await _added(stage, begin, rate, sizes)
                for quantity, value in added.items():
                    found[name, quantity].append(value)
        for name in ("added", "pass-through's"):
            report(f"{name} latency {what}, p50", "ms", found[name, "p50"])
            report(f"{name} latency {what}, p99", "ms", found[name, "p99"])
        report(f"rate that was sent {what}", "of it", found["added", "held"])


_Reached: TypeAlias = Callable[[int], Awaitable[None]]


async def _merging(merge: Merge) -> _Reached:
    """A worker, and what waits until it has merged so many elements."""
    worker = await merge.worker()
    await worker.running()

    async def reached(total: int) -> None:
        await worker.until(lambda status: status.elements_in >= total, "all to be merged")

    return reached


async def _passing(merge: Merge) -> _Reached:
    """The pass-through instead."""
    stage, topics = merge.stage, TOPICS.values()
    where = (stage.bootstrap, merge.output, *topics)
    await stage.python("benchmarks.pass_through", *where, log="passing.log")
    await asyncio.sleep(_PASSING_STARTS_SECONDS)

    async def reached(_: int) -> None:
        await asyncio.sleep(1)

    return reached


async def _added(
    stage: Stage, begin: Callable[[Merge], Awaitable[_Reached]], rate: int, sizes: Sizes
) -> Mapping[str, float]:
    """One run: the quantiles in ms once it is warm, and which part of the rate was held."""
    seconds = sizes.warm_seconds + sizes.latency_seconds
    count = int(rate * seconds)
    merge = Merge(stage, "latency")
    await merge.topics()
    reached = await begin(merge)
    receipts = Receipts(merge.connection, merge.output)
    streams = [[_written(each) for each in islice(stream, count)] for stream in lazily(count)]
    quieten_garbage_collector()
    sending = Replicas(merge.connection, by_topic(streams), written=lambda each: (each,))
    async with following(receipts), sending as replicas:
        began = time.time()
        total = await replicas.publish(rate=rate)
        took = time.time() - began
        await reached(total)
        await asyncio.sleep(1)  # for the last commit, and for the consumer
    warm = began + sizes.warm_seconds
    arrived = receipts.inserts()
    found = await waits(merge.connection, list(TOPICS.values()), arrived, since=warm)
    return {"p50": quantile(found, 0.5), "p99": quantile(found, 0.99), "held": seconds / took}


def _written(element: Element) -> Written:
    (record,) = on_the_wire(element)
    return record


_MEASUREMENTS: Final[Mapping[str, Measurement]] = MappingProxyType(
    {
        "merge": _small_payloads,
        "revised": _revised,
        "payloads": _large_payloads,
        "table": _table,
        "workers": _workers,
        "partitions": _partitions,
        "idle": idle,
        "watched": watched,
        "latency": _latency,
        "recovery": recovery.by_live_events,
        "history": recovery.by_history,
        "beginning": beginning,
        "forgetting": forgetting,
        "snapshots": _snapshots,
        "takeover": recovery.takeover,
        "backlog": _backlog,
        "streams": _streams,  # the last, since it asks for more than the others: a JDK
    }
)
NAMES: Final = tuple(_MEASUREMENTS)
