"""Kafka to Kafka on a local broker: throughput beside a pass-through, and added latency."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import structlog

from benchmarks.inputs import replicas
from benchmarks.traffic import quantile, waits
from lmerge_service.config.topology import Kafka, Output, Replica, Topology
from lmerge_service.core.engine import EngineSetting
from lmerge_service.demo.throughput import Throughput, measure
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.local.broker import LocalBroker
from lmerge_service.local.follower import Follower
from lmerge_service.merge.decisions.ledger import undisputed
from lmerge_service.merge.internal_topics import prepare
from lmerge_service.service.task import MergeTask

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
_RATE = 1_000
_LATENCY_SECONDS = 15
_ENGINES: tuple[EngineSetting, ...] = ("native", "python")


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


async def run(runs: int, elements: int, report: Report) -> None:
    """Starts a broker of its own, measures, and stops it."""
    _quiet()
    with tempfile.TemporaryDirectory() as folder:
        async with LocalBroker(Path(folder) / "kafka") as broker:
            await _throughput(broker.bootstrap, runs, elements, report)
            await _latency(broker.bootstrap, report)


def _topology(bootstrap: str, name: str) -> Topology:
    return Topology(
        name=name,
        kafka=Kafka(bootstrap=bootstrap),
        output=Output(topic=f"{name}.out"),
        replicas=tuple(Replica(name=each, topic=f"{name}.{each}") for each in "abc"),
    )


def _merges(topology: Topology, engine: EngineSetting) -> bool:
    """Whether there is such an engine."""
    choice = topology.model_copy(update={"engine": "auto"}).engine_choice
    return engine == "python" or choice.is_native


async def _throughput(bootstrap: str, runs: int, elements: int, report: Report) -> None:
    topology, connection = _topology(bootstrap, "speed"), Connection(bootstrap)
    for replica, stream in zip(topology.replicas, replicas(elements), strict=True):
        await publish(connection, replica.topic, stream)
    engines = [each for each in _ENGINES if _merges(topology, each)]
    await measure(topology, ".warm")
    found: dict[EngineSetting, list[Throughput]] = {each: [] for each in engines}
    for number in range(runs):
        for each in engines:
            merged = topology.model_copy(update={"engine": each})
            found[each].append(await measure(merged, f".{each}{number}"))
    unit = "k elements/s"
    for engine, rates in found.items():
        what = f"Kafka to Kafka, exactly once, engine {engine}"
        report(what, unit, [each.merge / 1000 for each in rates])
    passed = [each.pass_through / 1000 for rates in found.values() for each in rates]
    report("pass-through in transactions, by our source and sink", unit, passed)
    for engine, rates in found.items():
        report(f"ratio of each pair, engine {engine}", "", [each.ratio for each in rates])
    resident = psutil.Process().memory_info().rss / 1e6
    report("resident memory of this process, inputs included", "MB", [resident])


async def _latency(bootstrap: str, report: Report) -> None:
    """Three replicas at 1,000 elements/s each; from produce to a read_committed consumer."""
    topology, connection = _topology(bootstrap, "latency"), Connection(bootstrap)
    streams = [stream[: _RATE * _LATENCY_SECONDS] for stream in replicas(20_000)]
    async with AsyncExitStack() as stack:
        cluster = Cluster(connection)
        async with cluster.topics() as topics:
            await prepare(topics, topology)
        task = MergeTask(topology, undisputed(topology), cluster)
        for replica in topology.replicas:
            await publish(connection, replica.topic, [])
        await task.lead(stack)
        follower = Follower(connection, topology.output.topic)
        running = [asyncio.create_task(task.run()), asyncio.create_task(follower.run())]
        await asyncio.gather(
            *(
                publish(connection, replica.topic, stream, rate=_RATE)
                for replica, stream in zip(topology.replicas, streams, strict=True)
            )
        )
        await asyncio.sleep(1)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    found = await waits(connection, [each.topic for each in topology.replicas], follower.first)
    for q in (0.5, 0.99):
        name = f"added latency at 3 × 1,000 elements/s, p{q * 100:g}"
        report(name, "ms", [quantile(found, q)])
