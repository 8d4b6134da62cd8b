"""A chain of a query and a merge: how long a fact takes to come out behind each.

Flights depart and arrive, 1,000 facts a second by the clock; two replicas of one query (`in_air`:
each flight until it arrives) publish what follows at once, and a worker merges them. A departure
causes an insert, an arrival an adjust. The time of a fact is that of its record; consumers of the
facts, of a replica's topic and of the merge's output note when what it has caused comes to them.
Broker, replicas, worker and this process share the machine.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

import msgspec

from benchmarks import replica_queries
from benchmarks.fleet import TOPICS, Merge, Report, staged
from benchmarks.replicas import written
from benchmarks.traffic import Receipts, Replicas, following, quantile
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.stage import Stage
from lmerge_service.merge.tuning import quieten_garbage_collector

__all__ = ("run",)

_FACTS: Final = "flights"
_FLYING: Final = 2_000
"""Flights in the air at a time."""
_WARM_SECONDS: Final = 5.0
_POLICY: Final = {"insert": "first", "adjust": "eager", "stable": "max"}
_CAUSE: Final = {"insert": "departed", "adjust": "arrived"}

_Key: TypeAlias = tuple[str, int]
"""What became known of which flight."""


async def run(runs: int, rate: int, seconds: float, report: Report) -> None:
    """Starts a broker and processes of its own for each run, measures, and stops them."""
    found: dict[str, list[list[float]]] = {}
    for _ in range(runs):
        async with staged() as stage:
            for name, waits in (await _waits(stage, rate, seconds)).items():
                found.setdefault(name, []).append(waits)
    for name, every in found.items():
        for q in (0.5, 0.99):
            values = [quantile(waits, q) for waits in every]
            report(f"{name}, {rate:,} facts/s, p{q * 100:g}", "ms", values)


async def _waits(stage: Stage, rate: int, seconds: float) -> Mapping[str, list[float]]:
    """Milliseconds from the record of a fact to what follows from it, ascending, by what that is
    and by where it comes to somebody."""
    merge = Merge(stage, "chain", key=["flight"], policy=_POLICY)
    await merge.topics()
    async with Topics(merge.connection) as topics:
        await topics.ensure(_FACTS)
    worker = await merge.worker()
    await worker.running()
    first, second, _ = TOPICS.values()
    for topic in (first, second):
        await _replica(stage, topic)
    places = {"read as it is": _FACTS, "by a query": first, "by queries, merged": merge.output}
    receipts = {name: Receipts(merge.connection, topic) for name, topic in places.items()}
    quieten_garbage_collector()
    sending = Replicas(merge.connection, {_FACTS: _facts()}, written=written)
    async with AsyncExitStack() as stack:
        for each in receipts.values():
            await stack.enter_async_context(following(each))
        replicas = await stack.enter_async_context(sending)
        began = time.time()
        await replicas.publish(int(rate * (_WARM_SECONDS + seconds)), rate)
        await asyncio.sleep(2)  # for the last commits, and for the consumers
    produced = await _produced(merge)
    warm = {key: at for key, at in produced.items() if at > began + _WARM_SECONDS}
    found = dict[str, list[float]]()
    for name, each in receipts.items():
        came = _came(each)
        for fact in ("departed", "arrived"):
            waits = [(came[key] - at) * 1000 for key, at in warm.items() if key[0] == fact]
            found[f"{fact}, {name}"] = sorted(waits)
    return found


async def _replica(stage: Stage, topic: str) -> None:
    """Runs one of the query, and returns when it reads."""
    query = f"{replica_queries.__file__}:in_air"
    options = ("--to", topic, "--bootstrap", stage.bootstrap, "--json")
    child = await stage.lmerge("query", "run", query, *options, log=f"{topic}.log")
    while b'"begins with' not in child.log.read_bytes():
        child.check()
        await asyncio.sleep(0.05)


def _facts() -> Iterator[dict[str, Any]]:
    """Departures, and arrivals in turn with them, each of now."""
    flight = 0
    while True:
        common = {"origin": ("EWR", "JFK", "LGA")[flight % 3], "delay": flight % 90}
        now = int(time.time() * 1000)
        yield {"fact": "departed", "time": now, "flight": flight, **common}
        if (landed := flight - _FLYING) >= 0:
            # a flight arrives later than it departs, however coarse the clock
            now = max(now, int(time.time() * 1000))
            yield {"fact": "arrived", "time": now, "flight": landed, "origin": None, "delay": None}
        flight += 1


async def _produced(merge: Merge) -> dict[_Key, float]:
    """When each fact was produced, in seconds of the wall clock."""
    place = TopicPartition(_FACTS, 0)
    found = dict[_Key, float]()
    async with Source(merge.connection) as source:
        span = await source.beginnings([place]), await source.ends([place])
        async for _, records in source.backlog(*span):
            for record in records:
                fact = msgspec.json.decode(record.value or b"{}")
                found[fact["fact"], fact["flight"]] = record.timestamp / 1000
    return found


def _came(receipts: Receipts) -> dict[_Key, float]:
    """When each fact, or the element that it has caused, came first."""
    found = dict[_Key, float]()
    for at, values in receipts.came:
        for value in values:
            record = msgspec.json.decode(value or b"{}")
            if "fact" in record:
                found.setdefault((record["fact"], record["flight"]), at)
            elif cause := _CAUSE.get(record["op"]):
                found.setdefault((cause, record["payload"]["flight"]), at)
    return found
