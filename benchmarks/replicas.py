"""A replica of a query, Kafka to Kafka exactly once on a local broker, and its restart.

The query is `delays` (docs/queries.md): hopping windows over flights, by origin. All facts are on
the broker before it starts, in two partitions; its rate is from its first batch to its last commit.
It restarts with many live events: flights in the air, each until it arrives. That takes from the
start to the first batch: clients, the snapshot, what came after it, and comparing the output.
"""

import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import structlog

from lmerge_service.formats.dialects import Written
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.local.broker import LocalBroker
from lmerge_service.queries.expressions import col
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import Query, count, facts, hopping, max_, sum_
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryPhase, QueryReplica

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
MINUTE = 60_000
HOUR = 60 * MINUTE
FIELDS = {"fact": str, "flight": int, "origin": str, "delay": int}

_flights = facts(
    "flights", time="time", ends=col.fact == "end", lateness=15 * MINUTE, fields=FIELDS
)
_departed = _flights.where(col.fact == "departed")
DELAYS = (
    _departed.windows(hopping(HOUR, every=20 * MINUTE))
    .by("origin")
    .aggregate(flights=count(), delay=sum_("delay"), longest=max_("delay"))
)
IN_AIR = (
    _departed.select("flight", "origin")
    .extend(10**12)
    .clip(_flights.where(col.fact == "arrived"), on="flight")
)
_END = {"fact": "end"}


async def run(runs: int, number: int, live: int, report: Report) -> None:
    """Starts a broker of its own, measures, and stops it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder:
        async with LocalBroker(Path(folder) / "kafka") as broker:
            await _throughput(broker.bootstrap, runs, number, report)
            await _restart(broker.bootstrap, runs, live, report)


def _facts(number: int) -> Iterator[dict[str, Any]]:
    """Departures, one every few seconds, of three airports; a little out of order."""
    rng, at = random.Random(1), 1_357_000_000_000
    for flight in range(number):
        at += rng.randrange(4_000)
        yield {
            "fact": "departed",
            "time": at - rng.randrange(MINUTE),
            "carrier": rng.choice(("UA", "AA", "B6", "DL")),
            "dest": rng.choice(("SFO", "ORD", "MIA")),
            "flight": flight,
            "origin": rng.choice(("EWR", "JFK", "LGA")),
            "tail": f"N{flight % 4_000:05}",
            "delay": rng.randrange(-10, 120),
        }


async def _publish(bootstrap: str, topic: str, number: int, *, ended: bool) -> None:
    def written(fact: dict[str, Any]) -> Sequence[Written]:
        if fact is _END:
            return [Written(None, msgspec.json.encode(fact), everywhere=True)]
        return [Written(b"%d" % fact["flight"], msgspec.json.encode(fact), fact["time"])]

    given = [*_facts(number), *([_END] if ended else [])]
    await publish(Connection(bootstrap), topic, given, partitions=2, written=written)


def _request(bootstrap: str, query: Query, topic: str, to: str, **more: Any) -> ReplicaRequest:
    return ReplicaRequest(
        name=to,
        query=query.plan,
        plan=physical(query),
        columns=partition_columns(query.plan),
        number="1",
        connection=Connection(bootstrap),
        to=to,
        topics={"flights": topic},
        **more,
    )


async def _throughput(bootstrap: str, runs: int, number: int, report: Report) -> None:
    await _publish(bootstrap, "flights", number, ended=True)
    rates, processor, published = [], [], []
    for each in range(runs + 1):  # the first one warms the broker up
        replica = QueryReplica(_request(bootstrap, DELAYS, "flights", f"delays.{each}"))
        spent, began = time.process_time(), time.perf_counter()
        await replica.run(lambda: False)
        took = time.perf_counter() - began
        if each:
            rates.append(number / took / 1000)
            processor.append(number / (time.process_time() - spent) / 1000)
            published.append(replica.counts.elements.total() / 1000)
    report("replica of delays, Kafka to Kafka, exactly once", "k facts/s", rates)
    report("the same by its processor time", "k facts/s", processor)
    report("elements that it published", "k", published)
    resident = psutil.Process().memory_info().rss / 1e6
    report("resident memory of this process, the facts' generator included", "MB", [resident])


async def _restart(bootstrap: str, runs: int, live: int, report: Report) -> None:
    await _publish(bootstrap, "many", live, ended=False)
    request = _request(bootstrap, IN_AIR, "many", "in-air", snapshot_seconds=1.0)
    first = QueryReplica(request)
    await first.run(lambda: _has_snapshot(first, live))
    took, processor = [], []
    for _ in range(runs):
        replica = QueryReplica(request)
        spent = time.process_time()
        await replica.run(lambda: replica.phase is QueryPhase.RUNNING)  # noqa: B023 - at once
        assert replica.recovery_seconds is not None
        took.append(replica.recovery_seconds)
        processor.append(time.process_time() - spent)
    report(f"recovery with {live:,} live events", "s", took)
    report("processor time from start to stop", "s", processor)


def _has_snapshot(replica: QueryReplica, records: int) -> bool:
    transaction = replica.transaction
    return (
        transaction is not None
        and bool(transaction.places)
        and bool(transaction.record.snapshots)
        and sum(p.next for i in transaction.record.inputs.values() for p in i.partitions) >= records
    )
