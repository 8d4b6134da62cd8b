"""Queries without Spark: facts in partitions, cut into batches and pieces at random, workers that
are killed in the middle of a batch and do it again, in two or more output partitions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.formats.routing import Router
from lmerge_service.replicas.lateness import RowReader
from lmerge_service.spark.queries.bucket import BatchResult, InputRow, QueryBucket, QuerySettings
from lmerge_service.spark.queries.plans import Query, QueryPlan
from lmerge_service.tdb import TDB
from tests.spark.queries.reference import HOUR, MINUTE

__all__ = ("CHOSEN", "Fact", "Run", "batches_of", "given_of", "random_facts", "run")

Fact = Mapping[str, Any]

FLIGHT = ("carrier", "date", "dest", "flight", "origin", "tail")
CHOSEN: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "delays": ({"departed"}, ("origin", "delay")),
    "in-air": (
        {"scheduled", "cancelled", "departed", "arrived"},
        ("fact", "departs", "arrives", *FLIGHT),
    ),
    "top-carriers": ({"departed"}, ("origin", "carrier", "delay")),
    "weather": (
        {"departed", "weather"},
        (
            *("carrier", "date", "flight", "origin", "dest", "delay"),
            *("precip", "temp", "visib", "wind_speed"),
        ),
    ),
}
"""What each query's SQL chooses: kinds of facts, columns."""


def random_facts(
    rng: Random, count: int, partitions: int, *, disorder: float = 0.3, ended: bool = True
) -> list[list[Fact]]:
    """Few flights in few hours, at times that often coincide; some facts twice, some too late."""
    timed: list[Fact] = []
    for number in range(count):
        origin, carrier = rng.choice(["EWR", "JFK"]), rng.choice(["AA", "UA", "DL", "B6"])
        it = {
            "carrier": carrier, "date": "2013-01-01", "dest": rng.choice(["BOS", "LAX"]),
            "flight": number, "origin": origin, "tail": rng.choice([None, "N1"]),
        }  # fmt: skip
        departs = rng.randrange(40) * 10 * MINUTE
        arrives = departs + rng.randrange(1, 20) * 10 * MINUTE
        timed.append(_fact("scheduled", departs - 2 * HOUR, it, departs=departs, arrives=arrives))
        if rng.random() < 0.2:
            timed.append(_fact("cancelled", departs - 30 * MINUTE, it, departs=departs))
            continue
        delay = rng.choice([0, 0, -5, 7, 20, 95])
        left = departs + delay * MINUTE
        expected = arrives + delay * MINUTE
        timed.append(_fact("departed", left, it, departs=left, arrives=expected, delay=delay))
        came = rng.choice([expected, expected + 15 * MINUTE, left + 1, left + 25 * HOUR, None])
        if came is not None:
            times = [came + by for by in (0, 0, 15 * MINUTE)[: rng.choice([1, 1, 3])]]
            timed += [_fact("arrived", each, it, departs=left, arrives=each) for each in times]
    for hour in range(8):
        for origin in ("EWR", "JFK"):
            for _ in range(rng.choice([0, 1, 1, 2])):
                measured = {"temp": rng.choice([39.02, 40.0, None]), "visib": 10.0, "precip": 0.0}
                timed.append(_fact("weather", hour * HOUR, {"origin": origin}, **measured))
    timed += rng.sample(timed, len(timed) // 10)
    sent = [
        (fact["time"] + rng.randrange(3 * HOUR) * (rng.random() < disorder), number, fact)
        for number, fact in enumerate(timed)
    ]
    topic: list[list[Fact]] = [[] for _ in range(partitions)]
    for _, _, fact in sorted(sent, key=lambda each: each[:2]):
        topic[rng.randrange(partitions)].append(fact)
    for facts in topic:
        if rng.random() < 0.2:
            facts.insert(rng.randrange(len(facts) + 1), {"fact": "departed", "time": None})
        if ended:
            facts.append({"fact": "end"})
    return topic


def _fact(kind: str, time: int, *parts: Mapping[str, Any], **more: Any) -> Fact:
    merged: dict[str, Any] = {"fact": kind, "time": time}
    for part in (*parts, more):
        merged |= part
    return {name: value for name, value in merged.items() if value is not None}


@dataclass
class Run:
    """One run of a plan."""

    query: Query
    plan: QueryPlan
    buckets: int
    lateness: int
    output: list[list[Element]] = field(default_factory=list)
    """By output partition, what was written, repeats and all."""
    clean: list[list[Element]] = field(default_factory=list)
    """The same without what a killed worker had written."""
    results: list[BatchResult] = field(default_factory=list)


def run(
    query: Query,
    plan: QueryPlan,
    topic: Sequence[Sequence[Fact]],
    rng: Random,
    *,
    buckets: int = 2,
    lateness: int = 30 * MINUTE,
    largest: int = 30,
    kills: float = 0.0,
    joining_at: int = START,
    points: Mapping[int, Sequence[str]] | None = None,
    merge_output: str = "",
    replica: str = "",
    held: Sequence[TDB] = (),
) -> Run:
    """Batches of at most `largest` rows a partition; `points` are feedback records by batch, `held`
    is what the output partitions hold already."""
    settings = QuerySettings(
        shape=query.shape, plan=plan, lateness=lateness, partitions=len(topic),
        joining_at=joining_at, output=merge_output, replica=replica,
    )  # fmt: skip
    done = Run(query, plan, buckets, lateness, [[] for _ in range(buckets)])
    done.clean = [[] for _ in range(buckets)]
    saved: list[bytes | None] = [None] * buckets
    if held:
        resumed = [QueryBucket.resumed(settings, each) for each in held]
        saved = [None if each is None else each.save() for each in resumed]
    for number, batch in enumerate(batches_of(topic, rng, largest)):
        given = given_of(query, batch, rng, buckets, lateness)
        for bucket in range(buckets):
            for offset, point in enumerate((points or {}).get(number, ())):
                given[bucket].append(InputRow("point", 0, number * 100 + offset, 0, point))
            while True:
                rng.shuffle(given[bucket])
                worker = QueryBucket(settings, saved[bucket])
                result = worker.batch(given[bucket])
                if rng.random() >= kills:
                    break
                done.output[bucket] += result.elements[: rng.randrange(len(result.elements) + 1)]
            saved[bucket] = worker.save()
            done.output[bucket] += result.elements
            done.clean[bucket] += result.elements
            done.results.append(result)
    return done


Rows = list[tuple[int, Fact]]


def batches_of(
    topic: Sequence[Sequence[Fact]], rng: Random, largest: int
) -> Iterator[dict[int, Rows]]:
    at = [0] * len(topic)
    while any(at[number] < len(facts) for number, facts in enumerate(topic)):
        batch = {}
        for number, facts in enumerate(topic):
            size = rng.randrange(largest + 1)
            rows = list(enumerate(facts))[at[number] : at[number] + size]
            at[number] += len(rows)
            if rows:
                batch[number] = rows
        yield batch


def given_of(
    query: Query, batch: Mapping[int, Rows], rng: Random, buckets: int, lateness: int
) -> list[list[InputRow]]:
    kinds, columns = CHOSEN[query.name]
    router = Router(buckets, query.key)
    given: list[list[InputRow]] = [[] for _ in range(buckets)]
    for partition, rows in batch.items():
        for piece in _cut(rows, rng):
            reading = RowReader(lateness)
            for part in _cut(piece, rng):
                offsets = np.array([offset for offset, _ in part], np.int64)
                reading.take(offsets, np.array([_time(fact) for _, fact in part], np.int64))
            measured = reading.piece()
            assert measured is not None
            data = json.dumps(
                {name: getattr(measured, name) for name in measured.__struct_fields__}
            )
            for each in given:
                each.append(InputRow("piece", partition, measured.first, 0, data))
        for offset, fact in rows:
            if fact["fact"] in kinds and fact.get("time") is not None:
                row = {name: fact[name] for name in columns if name in fact}
                key = json.dumps({name: fact.get(name) for name in query.key}).encode()
                given[router.partition_of(key)].append(
                    InputRow("row", partition, offset, fact["time"], json.dumps(row))
                )
    return given


def _cut(rows: Rows, rng: Random) -> Iterator[Rows]:
    while rows:
        size = rng.randrange(1, len(rows) + 1)
        yield rows[:size]
        rows = rows[size:]


def _time(fact: Fact) -> int:
    if fact["fact"] == "end":
        return INFINITY
    time = fact.get("time")
    return START if time is None else time
