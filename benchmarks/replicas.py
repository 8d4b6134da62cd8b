"""A replica of a query, Kafka to Kafka exactly once on a local broker, and its restart.

The query is `delays` (docs/queries.md): hopping windows over flights, by origin. All facts are on
the broker before it starts, in two partitions; its rate is from its first batch to its last commit.

It restarts with many live events: flights in the air, each until it arrives. After a stop the last
snapshot has all of them; after a kill it has a quarter, and the facts behind it are processed once
more. `recovery` is from the clients' start to the first batch (snapshot, facts, comparing the
output); the process is timed from its start to there, with the interpreter and its imports.
"""

import asyncio
import contextlib
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

from benchmarks import replica_queries
from benchmarks.replica_queries import MINUTE, delays, in_air
from lmerge_service.formats.dialects import Written
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.local.stage import Stage
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import Query
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryPhase, QueryReplica

__all__ = ("departures", "publish_facts", "run", "written")

Report = Callable[[str, str, Sequence[float]], None]
_END = {"fact": "end"}


class _Killed(Exception):  # noqa: N818 (no error: it stands for a kill)
    """The replica is gone where it stands, without its orderly end."""


async def run(runs: int, number: int, live: int, report: Report) -> None:
    """Starts a broker of its own, measures, and stops it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder:
        async with Stage(Path(folder)) as stage:
            await _throughput(stage.bootstrap, runs, number, report)
            await publish_facts(stage.bootstrap, "many", live, ended=False)
            for how in ("a stop", "a kill"):
                await _restarts(stage, how, runs, live, report)


def departures(number: int) -> Iterator[dict[str, Any]]:
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


def written(fact: dict[str, Any]) -> Sequence[Written]:
    """The record of a fact."""
    if fact is _END:
        return [Written(None, msgspec.json.encode(fact), everywhere=True)]
    return [Written(b"%d" % fact["flight"], msgspec.json.encode(fact), fact["time"])]


async def publish_facts(bootstrap: str, topic: str, number: int, *, ended: bool) -> None:
    """So many departures, in two partitions."""
    given = [*departures(number), *([_END] if ended else [])]
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
    await publish_facts(bootstrap, "flights", number, ended=True)
    rates, processor, published = [], [], []
    for each in range(runs + 1):  # the first one warms the broker up
        replica = QueryReplica(_request(bootstrap, delays, "flights", f"delays.{each}"))
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


async def _restarts(stage: Stage, how: str, runs: int, live: int, report: Report) -> None:
    to = f"in-air.{how[2:]}"
    request = _request(stage.bootstrap, in_air, "many", to, snapshot_seconds=600.0)
    await _prepare(request, live, killed=how == "a kill")
    took, processor, replayed, whole = [], [], [], []
    for _ in range(runs):
        replica, spent = QueryReplica(request), time.process_time()
        await _until(replica, lambda each: each.phase is QueryPhase.RUNNING, killed=True)
        assert replica.recovery_seconds is not None
        assert replica.state is not None
        took.append(replica.recovery_seconds)
        processor.append(time.process_time() - spent)
        replayed.append(replica.state.replayed / 1000)
        whole.append(await _process(stage, to))
    what = f"after {how}, with {live:,} live events"
    report(f"recovery {what}", "s", took)
    report("its processor time", "s", processor)
    report("facts that it processed once more", "k", replayed)
    report(f"restart of the process {what}", "s", whole)


async def _prepare(request: ReplicaRequest, live: int, *, killed: bool) -> None:
    """A replica that has processed all facts, and its last snapshot a quarter of them, or all."""
    await _until(QueryReplica(request), lambda each: _processed(each) >= live // 4, killed=False)
    await _until(QueryReplica(request), lambda each: _processed(each) >= live, killed=killed)


async def _until(
    replica: QueryReplica, done: Callable[[QueryReplica], bool], *, killed: bool
) -> None:
    """Runs it so far; then it is stopped, which takes a snapshot, or killed."""

    def stopped() -> bool:
        if killed and done(replica):
            raise _Killed
        return done(replica)

    with contextlib.suppress(_Killed):
        await replica.run(stopped)


def _processed(replica: QueryReplica) -> int:
    """How many facts the last commit record covers."""
    if replica.transaction is None:
        return 0
    inputs = replica.transaction.record.inputs.values()
    return sum(each.next for one in inputs for each in one.partitions)


async def _process(stage: Stage, to: str) -> float:
    """Seconds from the start of `lmerge query run` until it reads on; then it is killed."""
    query = f"{replica_queries.__file__}:in_air"
    options = ("--topic", "flights=many", "--to", to, "--bootstrap", stage.bootstrap, "--json")
    log = f"{to}.log"
    (stage.folder / log).unlink(missing_ok=True)
    began = time.perf_counter()
    child = await stage.lmerge("query", "run", query, *options, log=log)
    while b'"goes on"' not in child.log.read_bytes():
        child.check()
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began
    await child.kill()
    return took
