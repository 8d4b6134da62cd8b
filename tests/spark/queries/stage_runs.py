"""Stages without Spark: facts cut into batches and tasks, and what the stages make of them; and
what queries mean, found another way."""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from random import Random
from typing import Any, cast

import pyarrow as pa

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.queries import logical
from lmerge_service.queries.compiling import Faults, condition, projection
from lmerge_service.queries.expressions import col
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import (
    Query,
    average,
    count,
    elements,
    facts,
    hopping,
    max_,
    min_,
    sum_,
    tumbling,
)
from lmerge_service.queries.properties import partition_columns
from lmerge_service.queries.rows import Refusal, Row
from lmerge_service.replicas.encoding import RowEncoder
from lmerge_service.replicas.routing import Route
from lmerge_service.spark.queries.compiling import (
    IntakeReader,
    Packing,
    SourceReader,
    StagesQuery,
)
from lmerge_service.spark.queries.intake_bucket import Intake, IntakeBucket
from lmerge_service.spark.queries.moves import Rows, divided, moved, packed, unpacked
from lmerge_service.spark.queries.stage_bucket import StageBucket, StageResult, StageSettings
from lmerge_service.spark.queries.stages import Branch, stages
from lmerge_service.tdb import TDB, reconstitute

LATENESS = 30
FIELDS = {"fact": str, "origin": str, "carrier": str, "delay": int, "fare": float}
flights = facts("flights", time="time", fields=FIELDS, ends=col.fact == "end", lateness=LATENESS)
bookings = facts(
    "bookings", time="time", fields={"id": int, "origin": str, "end": bool}, key="id",
    ends=col.end, lateness=LATENESS,
)  # fmt: skip
merged = elements("merged", {"origin": str, "n": int})
weather = facts(
    "weather", time="time", fields={"station": str, "wind": float, "end": bool},
    ends=col.end, lateness=LATENESS,
)  # fmt: skip
departed = flights.where(col.fact == "departed").select(
    "origin", "carrier", "fare", delay=col.delay * 2 - 3
)
arrived = flights.where(col.fact == "arrived").select("origin", "delay")
hourly = (
    departed.windows(hopping(60, every=20))
    .by("origin", "carrier")
    .aggregate(n=count(), late=count("delay"), delay=sum_("delay"), most=max_("fare"))
)
QUERIES: dict[str, Query] = {
    "selected": departed,
    "windows": hourly,
    "windows of all": departed.windows(tumbling(50)).aggregate(n=count(), least=min_("carrier")),
    "windows over windows": hourly.by("n").aggregate(m=count()),
    "an aggregate of all": hourly.aggregate(n=sum_("n")).where(col.n > 3),
    "three stages": hourly.by("n").aggregate(m=count()).by("m").aggregate(k=count()),
    "two branches": departed.window(40).clip(arrived, on="origin"),
    "two sources": departed.window(25)
    .join(weather.window(30), on={"origin": "station"})
    .by("origin")
    .aggregate(wind=average("wind"), n=count()),
    "no duplicates": bookings.windows(hopping(60, every=20)).by("origin").aggregate(n=count()),
    "of a merge": merged.where(col.n > 1).by("origin").aggregate(n=count(), most=max_("n")),
    "facts and elements": departed.window(25).join(merged, on="origin"),
    "a diamond": departed.window(9)
    .by("origin")
    .aggregate(n=count())
    .join(hourly.by("origin").aggregate(m=count()), on="origin"),
}
Topics = dict[str, list[list[bytes]]]
"""By source, the values of each partition."""


def random_topics(rng: Random, query: Query, length: int, width: int = 2) -> Topics:
    """Facts of each source: out of order, late, refused and selected ones; a partition may be all
    but empty."""
    return {
        name: [_partition(rng, name, length if rng.random() < 0.8 else 0) for _ in range(width)]
        for name in logical.sources(query.plan)
    }


def _partition(rng: Random, name: str, length: int) -> list[bytes]:
    if name == "merged":
        return _elements(rng, length)
    found, time = [], rng.randrange(-40, 40)
    for _ in range(rng.randrange(length + 1) if length else 0):
        time += rng.choice((0, 1, 2, 9))
        at = time - rng.randrange(2 * LATENESS) if rng.random() < 0.2 else time
        fact: dict[str, Any]
        if name == "flights":
            fact = {
                "fact": rng.choice(["departed", "departed", "departed", "arrived", "seen"]),
                "origin": rng.choice(["JFK", "EWR", "LGA", "Ö😀", None]),
                "carrier": rng.choice(["UA", "B6"]),
                "delay": rng.choice([*range(9), None, 5.0]),
                "fare": rng.choice([12, 12.5, -0.0, 1e300, None]),
            }
        elif name == "bookings":
            fact = {"id": rng.randrange(length), "origin": rng.choice(["JFK", "EWR"])}
        else:
            fact = {"station": rng.choice(["JFK", "EWR"]), "wind": rng.choice([1, 2.5, None])}
        fact["time"] = at
        if rng.random() < 0.05:
            fact[rng.choice([*fact])] = {"no": "such"}
        found.append(b"[" if rng.random() < 0.02 else json.dumps(fact).encode())
    found.append(json.dumps({"fact": "end", "end": True}).encode())
    return found


def _elements(rng: Random, length: int) -> list[bytes]:
    """A legal stream with revisions, and records that are no elements or rows."""
    found: list[Element] = []
    junk = [b"[", b'{"op":"insert","payload":{"origin":3,"n":1},"vs":1,"ve":2}']
    live: list[tuple[bytes, int, int]] = []
    stable = -40
    for _ in range(length):
        payload = b'{"n":%d,"origin":"%b"}' % (rng.randrange(4), rng.choice([b"JFK", b"EWR"]))
        vs = stable + rng.randrange(30)
        live = [event for event in live if event[2] >= stable]
        match rng.randrange(4):
            case 0 if live:
                payload, vs, vold = live.pop(rng.randrange(len(live)))
                ve = max(stable, vs) + rng.randrange(40)
                found.append(Adjust(payload, vs, vold, ve))
            case 1:
                stable += rng.randrange(20)
                found.append(Stable(stable))
                continue
            case _:
                ve = vs + rng.randrange(1, 40)
                found.append(Insert(payload, vs, ve))
        if ve > vs:
            live.append((payload, vs, ve))
    values = [encode(each) for each in (*found, Stable(INFINITY))]
    for each in junk:
        values.insert(rng.randrange(len(values)), each)
    return values


def _tdb_of_elements(query: Query, name: str, partitions: list[list[bytes]]) -> TDB:
    schema, decoder = logical.sources(query.plan)[name].fields, WireDecoder()
    found: list[tuple[Any, int, int]] = []
    for values in partitions:
        elements: list[Element] = []
        for value in values:
            with suppress(ElementError):
                element = decoder.decode(value)
                if isinstance(element, Stable) or not isinstance(
                    schema.row(json.loads(element.payload)), Refusal
                ):
                    elements.append(element)
        found += [
            (schema.row(json.loads(cast(bytes, e.payload))), e.vs, e.ve)
            for e in reconstitute(elements)
        ]
    return TDB(found)


def in_time(query: Query, topics: Topics) -> dict[str, TDB]:
    """The facts of each source that count, one by one."""
    found = {}
    for name, source in logical.sources(query.plan).items():
        if isinstance(source, logical.Elements):
            found[name] = _tdb_of_elements(query, name, topics[name])
            continue
        reader, events = FactReader(source, logical.headroom(query.plan)), []
        for values in topics[name]:
            highest, keys = None, dict[Any, int]()
            for value in values:
                try:
                    fact = json.loads(value)
                except ValueError:
                    continue
                row = reader.schema.row(fact)
                if not isinstance(row, Refusal) and reader.ends(row):
                    break
                event = reader.event(fact)
                if isinstance(event, Refusal):
                    continue
                in_time = highest is None or event.vs >= highest - source.lateness
                highest = event.vs if highest is None else max(highest, event.vs)
                if not in_time:
                    continue
                if source.key:
                    key = tuple(fact.get(name) for name in source.key)
                    if key in keys and keys[key] >= highest - source.lateness:
                        continue
                    keys[key] = event.vs
                events.append(event)
        found[name] = TDB((e.payload, e.vs, e.ve) for e in events)
    return found


def refused(query: Query, topics: Topics) -> list[bytes]:
    """The records that are no facts, or no elements over rows."""
    found, decoder = [], WireDecoder()
    for name, source in logical.sources(query.plan).items():
        for value in (value for values in topics[name] for value in values):
            try:
                if isinstance(source, logical.Elements):
                    element = decoder.decode(value)
                    if isinstance(element, Stable):
                        continue
                    refusal = isinstance(source.fields.row(json.loads(element.payload)), Refusal)
                else:
                    reader, fact = (
                        FactReader(source, logical.headroom(query.plan)),
                        json.loads(value),
                    )
                    row = source.fields.row(fact)
                    if not isinstance(row, Refusal) and reader.ends(row):
                        continue
                    refusal = isinstance(reader.event(fact), Refusal)
            except (ElementError, ValueError):
                refusal = True
            if refusal:
                found.append(value)
    return sorted(found)


def meant(query: Query, topics: Topics) -> list[tuple[bytes, int, int]]:
    """The events of a query, with payloads as records have them."""
    whole = meaning(query.plan, in_time(query, topics))
    return sorted((query.schema.payload(cast(Row, e.payload)), e.vs, e.ve) for e in whole)


def events_of(streams: Sequence[Sequence[Element]]) -> list[tuple[bytes, int, int]]:
    """The same of the streams of partitions, each of which is legal and ended."""
    found: list[tuple[bytes, int, int]] = []
    for stream in streams:
        tdb = reconstitute(stream)
        assert tdb.stable == INFINITY
        found += [(cast(bytes, e.payload), e.vs, e.ve) for e in tdb]
    return sorted(found)


def query_of(
    plan: PhysicalPlan, topics: Topics, buckets: int, identity: str = "", tasks: int = 1
) -> StagesQuery:
    return StagesQuery(
        stages=stages(plan, partition_columns, divided=buckets > 1),
        widths={name: len(partitions) for name, partitions in topics.items()},
        buckets=buckets,
        tasks=tasks,
        headroom=logical.headroom(plan.plan),
        identity=identity,
    )


Batch = dict[str, list[tuple[int, int, bytes]]]
"""By source, (partition, offset, value)."""


def batches_of(topics: Topics, rng: Random, most: int) -> list[Batch]:
    """Batches of consecutive records of each partition, of some none."""
    left = {
        (name, at): [*enumerate(values)]
        for name, partitions in topics.items()
        for at, values in enumerate(partitions)
    }
    found = []
    while any(left.values()):
        batch: Batch = {name: [] for name in topics}
        for (name, partition), records in left.items():
            size = rng.randrange(most + 1)
            batch[name] += [(partition, offset, value) for offset, value in records[:size]]
            del records[:size]
        found.append(batch)
    return found


class Simulation:
    """A query in stages, batch by batch, without Spark."""

    def __init__(self, query: StagesQuery, rng: Random) -> None:
        self.query, self._rng = query, rng
        self._sources = {each.name: each for stage in query.stages for each in stage.intakes}
        self.buckets = [
            [StageBucket(self._settings(n)) for _ in range(query.buckets)]
            for n in range(len(query.stages))
        ]
        self.streams: list[list[Element]] = [[] for _ in range(query.buckets)]
        self.late = 0
        self.letters: list[DeadLetter] = []
        self.intakes = {
            (number, source.name): [
                IntakeBucket(self._intake(source), partition)
                for partition in range(query.widths[source.name])
            ]
            for number, stage in enumerate(query.stages)
            for source in stage.intakes
        }

    def _intake(self, source: logical.Source | logical.Elements) -> Intake:
        width = self.query.widths[source.name]
        return Intake(source, source.name, width, self.query.headroom)

    def _settings(self, number: int) -> StageSettings:
        query = self.query
        return StageSettings(query.stages[number], query.widths, query.buckets)

    def restart(self) -> None:
        """Each bucket goes on from what is kept of it."""
        for number, buckets in enumerate(self.buckets):
            for at, old in enumerate(buckets):
                buckets[at] = StageBucket(self._settings(number))
                pages = b"".join(old.pages())
                cut = self._rng.randrange(len(pages))
                buckets[at].load([pages[:cut], pages[cut:]], 0, ())
        for (_, name), intakes in self.intakes.items():
            source = self._sources[name]
            for partition, one in enumerate(intakes):
                intakes[partition] = IntakeBucket(self._intake(source), partition)
                intakes[partition].load([*one.pages()], 0, ())

    def run(self, batch: Batch, aside: Sequence[Sequence[bytes]] = ()) -> None:
        """`aside`: by bucket of the last stage, chunks that are of no source."""
        query = self.query
        emitted: dict[int, list[StageResult]] = {}
        for number, stage in enumerate(query.stages):
            given = self.of_sources(number, batch)
            self._of_intakes(number, batch, given)
            for each in stage.upstreams:
                columns = dict(stage.columns)[each.name]
                for bucket, result in enumerate(emitted[each.stage]):
                    schema = query.stages[each.stage].schema
                    route = Route(schema, columns, query.buckets) if columns else None
                    for to, part in enumerate(divided(result.elements, route, query.buckets)):
                        if part:
                            given[to].append(packed(moved(each.name, bucket, result.first, part)))
            if number == len(query.stages) - 1:
                given = [[*its, *more] for its, more in zip_longest(given, aside, fillvalue=())]
            for chunks in given:
                self._rng.shuffle(chunks)
            emitted[number] = [
                bucket.take(0, chunks) if chunks else StageResult(bucket.emitted + 1)
                for bucket, chunks in zip(self.buckets[number], given, strict=True)
            ]
            self.late += sum(each.late for each in emitted[number])
        for stream, result in zip(self.streams, emitted[len(query.stages) - 1], strict=True):
            assert result.first == len(stream) + 1 or not result.elements
            stream.extend(result.elements)

    def of_sources(self, number: int, batch: Batch) -> list[list[bytes]]:
        """What each bucket of a stage gets of the facts, read by several tasks."""
        query, stage = self.query, self.query.stages[number]
        given: list[list[bytes]] = [[] for _ in range(query.buckets)]
        for name, source in stage.sources.items():
            reader = SourceReader(source, query.headroom, dict(stage.columns)[name], query.keys)
            branches = [each for each in stage.branches if each.source == source]
            fields = [f"c{at}" for at in range(len(source.fields))]
            packing = Packing([(each.name, None, fields) for each in branches])
            for task in self._tasks(batch[name]):
                for out in packing.chunks(reader.rows(iter(task))):
                    for key, chunk in zip(
                        out["bucket"].to_pylist(), out["chunk"].to_pylist(), strict=True
                    ):
                        if (chosen := _prefixed(branches, chunk)) is not None:
                            given[query.keys.index(key)].append(chosen)
        return given

    def _of_intakes(self, number: int, batch: Batch, given: list[list[bytes]]) -> None:
        query, stage = self.query, self.query.stages[number]
        for source in stage.intakes:
            buckets = self.intakes[number, source.name]
            reader = IntakeReader(source.name, tuple(range(len(buckets))))
            chunks: dict[int, list[bytes]] = {}
            for task in self._tasks(batch[source.name]):
                for out in reader.chunks(iter(task)):
                    places = out["bucket"].to_pylist(), out["chunk"].to_pylist()
                    for partition, chunk in zip(*places, strict=True):
                        chunks.setdefault(partition, []).append(chunk)
            columns = dict(stage.columns)[source.name]
            route = Route(source.fields, columns, query.buckets) if columns else None
            for partition, its in chunks.items():
                self._rng.shuffle(its)
                result = buckets[partition].take(0, its)
                self.letters += result.letters
                for to, part in enumerate(divided(result.elements, route, query.buckets)):
                    if part:
                        chunk = packed(moved(source.name, partition, result.first, part))
                        given[to].append(chunk)

    def _tasks(self, records: list[tuple[int, int, bytes]]) -> list[list[pa.RecordBatch]]:
        """By task, its batches of Arrow: a partition is read by one, in order."""
        by_task: dict[int, list[tuple[int, int, bytes]]] = {}
        tasks = self._rng.randrange(1, 4)
        for record in records:
            by_task.setdefault(record[0] % tasks, []).append(record)
        size = self._rng.randrange(1, 9)
        return [
            [_arrow(some[at : at + size]) for at in range(0, len(some), size)]
            for some in by_task.values()
        ]


def _prefixed(branches: list[Branch], chunk: bytes) -> bytes | None:
    """What Spark's SQL does: the rows that a branch selects; None: none of them."""
    rows = unpacked(chunk)
    if not isinstance(rows, Rows):
        return chunk
    [branch] = [each for each in branches if each.name == rows.input]
    kept = [*rows.events()]
    for step in branch.prefix:
        below = logical.schema_of(logical.children(step)[0])
        if isinstance(step, logical.Select):
            holds = condition(step.where, below, Faults())
            kept = [(at, e) for at, e in kept if holds(e.payload)]
        else:
            assert isinstance(step, logical.Project)
            made = projection([tree for _, tree in step.columns], below, Faults())
            kept = [(at, Insert(made(e.payload), e.vs, e.ve)) for at, e in kept]
    if not kept:
        return None
    offsets, starts, ends = zip(*((at, e.vs, e.ve) for at, e in kept), strict=True)
    columns = [list(each) for each in zip(*(e.payload for _, e in kept), strict=True)]
    return packed(Rows(rows.input, rows.partition, [*offsets], [*starts], [*ends], columns))


def _arrow(records: Sequence[tuple[int, int, bytes]]) -> pa.RecordBatch:
    partitions, offsets, values = zip(*records, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.nulls(len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(len(values), pa.string()),
        }
    )


def rows_as_records(query: Query, streams: Sequence[Sequence[Element]]) -> list[list[Element]]:
    """Elements over rows as a reader of the topic has them."""
    encoder, decoder = RowEncoder(query.schema), WireDecoder()
    return [[decoder.decode(value) for _, value in encoder.records(each)] for each in streams]
