"""How long a start reads the control log, after how many decisions.

Decisions are written to a real broker, the most usual ones in turn: a guard quarantines a replica,
a person releases it, a gap is accepted. A ledger follows, and folds them as a worker does. Measured
is what a worker that starts waits for: to open the log and to know what was decided, with nothing
deleted and with all that may be deleted gone. Beside it, one that reads every record (`--whole`),
as each start would without folds.
"""

import time
from collections.abc import Iterator
from contextlib import aclosing
from itertools import cycle, islice
from typing import Final

from aiokafka import AIOKafkaProducer

from benchmarks.fleet import Report, log_line, staged
from lmerge_service.config.topology import Topology
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import (
    AcceptGap,
    Action,
    Quarantine,
    Release,
    decide,
    encode,
)

__all__ = ("run",)

_EVERY: Final = 1_000
_ACTIONS: Final[tuple[Action, ...]] = (
    Quarantine("b", "guard leap: a stable a day beyond all that replicas have published"),
    Release("b"),
    AcceptGap("a", 1_357_020_000_000),
)


async def run(decisions: int, runs: int, report: Report, *, whole: bool) -> None:
    """Writes the decisions, and measures."""
    async with staged() as stage:
        topology = Topology.model_validate(
            {
                "name": "decided",
                "kafka": {"bootstrap": stage.bootstrap},
                "output": {"topic": "out"},
                "replicas": [{"name": name, "topic": f"in.{name}"} for name in "abc"],
            }
        )
        log_line(f"{decisions:,} decisions are written")
        folded = await _write(topology, decisions)
        after = f"after {decisions:,} decisions"
        report(f"start, {after}", "s", [await _started(topology) for _ in range(runs)])
        if whole:
            report(f"every record read, {after}", "s", [await _read(topology)])
        async with Topics(Connection(stage.bootstrap)) as topics:
            await topics.trim({TopicPartition(topology.output.control_topic, 0): folded})
        report(f"start, {after}, trimmed", "s", [await _started(topology) for _ in range(runs)])


def _log(topology: Topology) -> Log:
    return Log(Connection(topology.kafka.bootstrap), topology.output.control_topic)


async def _write(topology: Topology, count: int) -> int:
    """The decisions with folds between them; returns where the last fold is."""
    actions, folded = cycle(_ACTIONS), 0
    async with LoggedControl(topology, _log(topology)) as control, _log(topology) as log:
        ledger = control.ledger
        producer = AIOKafkaProducer(bootstrap_servers=topology.kafka.bootstrap, linger_ms=5)
        async with producer:
            for start in range(0, count, _EVERY):
                for value in _values(islice(actions, min(_EVERY, count - start))):
                    await producer.send(log.topic, value, partition=0)
                    ledger.fold(ledger.offset, value)
                await producer.flush()
                made = folds.fold(ledger.state(), ledger.offset, "benchmark", 0)
                folded = await log.append(folds.encode(made))
                ledger.fold(folded, folds.encode(made))
                assert ledger.folded == folded
    return folded


def _values(actions: Iterator[Action]) -> Iterator[bytes]:
    return (encode(decide(action, "guard: leap")) for action in actions)


async def _started(topology: Topology) -> float:
    began = time.perf_counter()
    async with LoggedControl(topology, _log(topology)) as control:
        taken = time.perf_counter() - began
        assert control.ledger.folded is not None
        assert control.ledger.disagrees is None
    return taken


async def _read(topology: Topology) -> float:
    began, ledger = time.perf_counter(), Ledger(topology)
    async with _log(topology) as log, aclosing(log.read()) as records:
        async for record in records:
            ledger.fold(record.offset, record.value)
    return time.perf_counter() - began
