r"""Stages as a streaming query: from topics of facts to records of elements.

Theory
        Kafka ─▶ reading ─▶ prefix in SQL ─▶ packing ─┐
                 rows, summaries                      ├─▶ (shuffle) ─▶ stage 0 ─▶ (shuffle) ─▶ …
        Kafka ─▶ packing ─▶ (shuffle) ─▶ intake      ─┘

    Reading is Python: which event a fact is, or why it is none, is defined there
    (`replicas.facts`), and so is the bucket (`replicas.routing`) and how far a task has come
    (`row_lateness`). What is selected and projected of a source first of all is columns of
    Spark's (`queries.sql_text`); where a source has no such prefix, its rows are packed as they are
    read. Each partition of a source is read once, whatever the plan makes of it. A source that has
    no prefix at all goes through an intake first (`intake_bucket`): elements, and facts of which
    duplicates are dropped. Records that are no facts travel with the others, as dead letters.

    A stage is one `transformWithStateInPandas`: neither Spark's watermarks nor its timers are used.
    All buckets of a stage get how far each partition of a source is, and each bucket of a stage
    before it. The last stage's get feedback, too, and what the output held of a query that is to go
    on with it. No row passes through the driver.

    Buckets are alone in the shuffle partition of their number (`merge.keys`). How many there are is
    that of the output's partitions, in each stage; their number is fixed by the checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY, START, Insert
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.feedback import FeedbackRecord
from lmerge_service.queries import logical
from lmerge_service.queries.rows import Kind, Refusal, Schema
from lmerge_service.queries.sql_text import quoted, sql_text
from lmerge_service.replicas.facts import END, Fact, FactDecoder, Heartbeat
from lmerge_service.replicas.routing import Route
from lmerge_service.spark.io.elements import headers_text
from lmerge_service.spark.merge.keys import bucket_keys
from lmerge_service.spark.queries.intake_bucket import Intake
from lmerge_service.spark.queries.moves import Letters, Points, Records, Rows, Summary, packed
from lmerge_service.spark.queries.row_lateness import RowReader
from lmerge_service.spark.queries.stage_processor import (
    MOVED,
    RECORDS,
    TAKEN,
    IntakeProcessor,
    IntakeTask,
    StageProcessor,
    StageTask,
    Target,
)
from lmerge_service.spark.queries.stages import Branch, Stage

__all__ = (
    "FeedbackReader",
    "IntakeReader",
    "Packing",
    "SourceReader",
    "StagesQuery",
    "facts_frame",
    "records",
)

_CHUNKS: Final = "bucket int, chunk binary"
_ARROW: Final = {
    Kind.BOOL: pa.bool_(),
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.STR: pa.string(),
}
_TYPES: Final = {Kind.BOOL: "boolean", Kind.INT: "long", Kind.FLOAT: "double", Kind.STR: "string"}


class StagesQuery(msgspec.Struct, frozen=True):
    """A plan in stages, and what it is run over."""

    stages: tuple[Stage, ...]
    widths: dict[str, int]
    """How many partitions each source has."""
    buckets: int
    """Partitions of the output."""
    tasks: int
    """How many shuffle partitions share the buckets."""
    headroom: int
    """How far the plan moves times (`logical.headroom`)."""
    identity: str = ""
    """What distinguishes its state from that of other queries in one worker."""
    topics: dict[str, str] = {}
    """By source its topic, where that is not the source's name."""
    skip: int = START
    """What ends before it does not matter."""

    @property
    def keys(self) -> tuple[int, ...]:
        """By bucket, the key of its group."""
        return bucket_keys(self.buckets, self.tasks)

    def topic_of(self, source: str) -> str:
        """The topic that a source is."""
        return self.topics.get(source, source)


def records(
    query: StagesQuery, facts: Mapping[str, DataFrame], aside: Sequence[DataFrame] = ()
) -> DataFrame:
    """The output: rows (partition, seq, key, value, letter), of raw records of each source
    (partition, offset, key, value, and of elements headers), and of chunks for the buckets of the
    last stage (bucket, chunk). Rows with a letter are dead letters, `letter` being their headers.

    What was counted is observed: `output`, of each stage before (`stage N …`), and of each source
    (`facts N …`).
    """
    return _Compiling(query, facts).stage(len(query.stages) - 1, None, aside)


class _Compiling:
    def __init__(self, query: StagesQuery, facts: Mapping[str, DataFrame]) -> None:
        self._query, self._facts = query, facts
        self._serial = count()
        self._lettered: set[str] = set()
        """Sources whose dead letters are on their way already."""

    def stage(
        self, number: int, target: Target | None, aside: Sequence[DataFrame] = ()
    ) -> DataFrame:
        """What a stage emits: moves for another one, or records. A stage that several read runs
        for each of them."""
        query = self._query
        stage = query.stages[number]
        inputs = [*self.of_sources(number), *self.of_intakes(number), *aside]
        columns = dict(stage.columns)
        for each in stage.upstreams:
            of_input = Target(each.name, columns[each.name])
            inputs.append(self.stage(each.stage, of_input).select("bucket", "chunk"))
        whole = inputs[0]
        for other in inputs[1:]:
            whole = whole.unionByName(other)
        serial = next(self._serial)
        identity = f"{query.identity} {number} {serial}"
        skip = query.skip if target is None else START
        task = StageTask(stage, query.widths, query.keys, identity, target, skip)
        schema = RECORDS if target is None else MOVED
        grouped = whole.groupBy("bucket")
        emitted = grouped.transformWithStateInPandas(StageProcessor(task), schema, "Append", "None")
        counted = emitted.observe(
            "output" if target is None else f"stage {number} {serial}",
            F.sum("late").alias("late"),
            F.sum("kept").alias("kept"),
            F.min("stable").alias("stable"),
            F.min("watermark").alias("watermark"),
            F.count("emitted").alias("records"),
        )
        wanted = F.col("chunk").isNotNull() if target else F.coalesce("letter", "value").isNotNull()
        return counted.drop("late", "kept", "stable", "watermark", "emitted").where(wanted)

    def of_sources(self, number: int) -> list[DataFrame]:
        """What a stage gets, of each of its sources."""
        query = self._query
        stage = query.stages[number]
        columns = dict(stage.columns)
        found = []
        for name, source in stage.sources.items():
            branches = [each for each in stage.branches if each.source == source]
            letters = query.topic_of(name) if self._has_letters(name) else None
            reader = SourceReader(source, query.headroom, columns[name], query.keys, letters)
            metric = f"facts {next(self._serial)} {name}"
            found.append(facts_frame(self._facts[name], reader, branches, metric))
        return found

    def _has_letters(self, name: str) -> bool:
        """Whether dead letters of a source come from where it is read now: the first time."""
        known = name in self._lettered
        self._lettered.add(name)
        return not known

    def of_intakes(self, number: int) -> list[DataFrame]:
        """What a stage gets of the sources that have intakes."""
        query = self._query
        stage = query.stages[number]
        columns = dict(stage.columns)
        found = []
        for source in stage.intakes:
            name, serial = source.name, next(self._serial)
            width = query.widths[name]
            task = IntakeTask(
                Intake(source, query.topic_of(name), width, query.headroom),
                bucket_keys(width, query.tasks),
                query.keys,
                f"{query.identity} {name} {serial}",
                Target(name, columns[name]),
                self._has_letters(name),
            )
            raw = self._facts[name].select(
                "partition",
                "offset",
                "key",
                "value",
                headers_text(F.col("headers")).alias("headers"),
            )
            chunks = raw.mapInArrow(IntakeReader(name, task.partitions).chunks, _CHUNKS)
            taken = chunks.groupBy("bucket").transformWithStateInPandas(
                IntakeProcessor(task), TAKEN, "Append", "None"
            )
            counted = taken.observe(
                f"facts {serial} {name}",
                F.sum("rows").alias("rows"),
                F.sum("refused").alias("refused"),
                F.sum("late").alias("late"),
                F.sum("kept").alias("kept"),
            )
            found.append(counted.where(F.col("chunk").isNotNull()).select("bucket", "chunk"))
        return found


# From records to chunks


class SourceReader(msgspec.Struct, frozen=True):
    """What is needed to read the facts of a source."""

    source: logical.Source
    headroom: int
    columns: tuple[str, ...]
    """That divide it; none: all is in one bucket."""
    keys: tuple[int, ...]
    topic: str | None = None
    """What its dead letters are of; None: none are made."""

    @property
    def schema(self) -> str:
        """Of what `rows` yields."""
        fields = [f"c{at} {_TYPES[each.kind]}" for at, each in enumerate(self.source.fields)]
        return ", ".join((_PLACES, *fields))

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows, of (partition, offset, key, value), then a summary for each partition in each
        bucket. Dead letters take the place of summaries, too."""
        decoder = FactDecoder(self.source, self.headroom)
        route = Route(self.source.fields, self.columns, len(self.keys)) if self.columns else None
        readers: dict[int, RowReader] = {}
        for batch in batches:
            values = batch.column("value").to_pylist()
            facts = decoder.decode(values)
            partitions, offsets = (
                batch.column(name).to_numpy(zero_copy_only=False)
                for name in ("partition", "offset")
            )
            times = np.fromiter(map(_time, facts), np.int64, len(facts))
            for partition in np.unique(partitions).tolist():
                its = partitions == partition
                reader = readers.setdefault(partition, RowReader(self.source.lateness))
                reader.take(offsets[its], times[its])
            at = [at for at, fact in enumerate(facts) if type(fact) is Insert]
            if at:
                events = [fact for fact in facts if type(fact) is Insert]
                yield self._events(events, route, partitions[at], offsets[at], times[at])
            if self.topic is not None and len(at) < len(facts):
                yield from self._letters(batch, facts)
        yield self._summaries(readers)

    def _events(
        self, events: list[Insert[Any]], route: Route | None, *places: Any
    ) -> pa.RecordBatch:
        if route is None:
            buckets = [self.keys[0]] * len(events)
        else:
            buckets = [self.keys[route.partition_of(event.payload)] for event in events]
        partitions, offsets, starts = places
        return self._batch(
            bucket=pa.array(buckets, pa.int32()),
            partition=pa.array(partitions, pa.int32()),
            offset=pa.array(offsets, pa.int64()),
            vs=pa.array(starts, pa.int64()),
            ve=pa.array([event.ve for event in events], pa.int64()),
            columns=list(zip(*(event.payload for event in events), strict=True)),
        )

    def letters(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[DeadLetter]]:
        """The dead letters of (partition, offset, key, value)."""
        decoder = FactDecoder(self.source, self.headroom)
        for batch in batches:
            if found := self._dead(batch, decoder.decode(batch.column("value").to_pylist())):
                yield found

    def _letters(self, batch: pa.RecordBatch, facts: Sequence[Fact]) -> Iterator[pa.RecordBatch]:
        """One row for the dead letters of a batch, if there are any."""
        if found := self._dead(batch, facts):
            yield self._batch(
                bucket=pa.array([self.keys[0]], pa.int32()),
                summary=pa.array([packed(Letters(found))], pa.binary()),
                rows=pa.array([0], pa.int64()),
                refused=pa.array([0], pa.int64()),
            )

    def _dead(self, batch: pa.RecordBatch, facts: Sequence[Fact]) -> list[DeadLetter]:
        def at(column: str, place: int) -> Any:
            return batch.column(column)[place].as_py()

        return [
            DeadLetter(
                self.source.name,
                self.topic or self.source.name,
                at("partition", place),
                at("offset", place),
                fact.reason,
                f"column {fact.column}: {fact.value}" if fact.column else fact.value,
                at("key", place),
                at("value", place),
            )
            for place, fact in enumerate(facts)
            if isinstance(fact, Refusal)
        ]

    def _summaries(self, readers: Mapping[int, RowReader]) -> pa.RecordBatch:
        """One row for each bucket; what was read is counted in the first."""
        found = [(number, each.piece()) for number, each in sorted(readers.items())]
        rows = [
            (
                key,
                packed(Summary(self.source.name, number, piece)),
                0 if at else piece.rows,
                0 if at else piece.refused,
            )
            for number, piece in found
            if piece is not None
            for at, key in enumerate(self.keys)
        ]
        buckets, chunks, counts, refused = zip(*rows, strict=True) if rows else [()] * 4
        return self._batch(
            bucket=pa.array(buckets, pa.int32()),
            summary=pa.array(chunks, pa.binary()),
            rows=pa.array(counts, pa.int64()),
            refused=pa.array(refused, pa.int64()),
        )

    def _batch(self, *, columns: Sequence[Any] = (), **places: pa.Array) -> pa.RecordBatch:
        length = len(places["bucket"])
        arrays = [
            places[name] if name in places else pa.nulls(length, type_)
            for name, type_ in _PLACE_TYPES.items()
        ]
        names = [*_PLACE_TYPES]
        for at, column in enumerate(self.source.fields):
            type_ = _ARROW[column.kind]
            arrays.append(pa.array(columns[at], type_) if columns else pa.nulls(length, type_))
            names.append(f"c{at}")
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _time(fact: Fact) -> int:
    """As `RowReader` takes them."""
    if type(fact) is Insert or type(fact) is Heartbeat:
        return fact.vs
    return INFINITY if fact is END else START


_PLACE_TYPES: Final[dict[str, pa.DataType]] = {
    "bucket": pa.int32(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "vs": pa.int64(),
    "ve": pa.int64(),
    "summary": pa.binary(),
    "rows": pa.int64(),
    "refused": pa.int64(),
}
_PLACES: Final = (
    "bucket int, partition int, offset long, vs long, ve long, summary binary, rows long, "
    "refused long"
)


def facts_frame(
    raw: DataFrame, reader: SourceReader, branches: Sequence[Branch], metric: str
) -> DataFrame:
    """(bucket, chunk) of the facts of a source, for each of its branches."""
    fields = [f"c{at}" for at in range(len(reader.source.fields))]
    values = raw.select("partition", "offset", "key", "value")
    if not any(each.prefix for each in branches):
        packing = Packing([(each.name, None, fields) for each in branches])
        chunks = values.mapInArrow(
            lambda batches: packing.chunks(reader.rows(batches)), _COUNTED_CHUNKS
        )
    else:
        prefix = _Prefix(values.mapInArrow(reader.rows, reader.schema), reader.source.fields)
        packing = Packing([prefix.branch(at, each) for at, each in enumerate(branches)])
        chunks = prefix.rows().mapInArrow(packing.chunks, _COUNTED_CHUNKS)
    observed = chunks.observe(
        metric, F.sum("rows").alias("rows"), F.sum("refused").alias("refused")
    )
    return observed.select("bucket", "chunk")


_COUNTED_CHUNKS: Final = _CHUNKS + ", rows long, refused long"


class IntakeReader(msgspec.Struct, frozen=True):
    """Packs the records of a source for its intake."""

    source: str
    partitions: tuple[int, ...]
    """By partition, the key of its group."""

    def chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """(bucket, chunk), of (partition, offset, key, value, headers)."""
        for batch in batches:
            partitions = batch.column("partition").to_numpy()
            for partition in np.unique(partitions).tolist():
                if partition >= len(self.partitions):
                    raise StateError(
                        f"{self.source} has more than the {len(self.partitions)} partitions that "
                        "it had when the checkpoint was begun: begin a new incarnation (--rejoin)"
                    )
                some = batch.filter(pa.array(partitions == partition))
                columns = (
                    some.column(name).to_pylist() for name in ("offset", "key", "value", "headers")
                )
                chunk = packed(Records(partition, *columns))
                yield _chunks([self.partitions[partition]], chunk)


class FeedbackReader(msgspec.Struct, frozen=True):
    """Reads the feedback for a replica."""

    replica: str
    output_id: str | None
    """Which topic the merge's output is: feedback about another one of its name does not count."""
    keys: tuple[int, ...]

    def chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """(bucket, chunk) for each bucket, of (value)."""
        for batch in batches:
            points: dict[int, tuple[int, int, int]] = {}
            for value in batch.column("value").to_pylist():
                if (found := self._read(value)) is not None:
                    known = points.get(found.task, (0, 0, START))[2]
                    points[found.task] = found.task, found.tasks, max(known, found.point)
            if points:
                yield _chunks(self.keys, packed(Points([*points.values()])))

    def _read(self, value: bytes | None) -> FeedbackRecord | None:
        try:
            found = FeedbackRecord.of(value or b"")
        except ElementError:
            return None  # a replica that is forgotten, or not by a merge
        ids = {found.output_id, self.output_id} - {None}
        return found if found.replica == self.replica and len(ids) < 2 else None


def _chunks(keys: Sequence[int], chunk: bytes) -> pa.RecordBatch:
    """The same for each of these buckets."""
    buckets, chunks = pa.array(keys, pa.int32()), pa.array([chunk] * len(keys), pa.binary())
    return pa.RecordBatch.from_arrays([buckets, chunks], ["bucket", "chunk"])


class _Prefix:
    """The columns of Spark's that the prefixes of one source are."""

    def __init__(self, frame: DataFrame, schema: Schema) -> None:
        self._frame = frame
        self._schema = schema
        self._needed: list[str] = []
        self._any: list[Column] = [F.col("summary").isNotNull()]

    def branch(self, at: int, branch: Branch) -> tuple[str, str | None, list[str]]:
        """(input, column that is true of its own rows, columns of these) of a branch."""
        columns = {name: f"c{at}" for at, name in enumerate(self._schema.names)}
        schema, chosen = self._schema, "TRUE"
        for step, node in enumerate(branch.prefix):
            match node:
                case logical.Select(_, where):
                    chosen = f"({chosen} AND {sql_text(where, schema, columns)})"
                case logical.Project(_, projected):
                    made = {name: f"b{at}_{step}_{n}" for n, (name, _) in enumerate(projected)}
                    self._frame = self._frame.withColumns(
                        {
                            made[name]: F.expr(sql_text(tree, schema, columns))
                            for name, tree in projected
                        }
                        | {f"b{at}_{step}": F.expr(chosen)}
                    )
                    chosen, columns = f"b{at}_{step}", made
            schema = logical.schema_of(node)
        own = f"b{at}"
        self._frame = self._frame.withColumn(own, F.expr(f"coalesce({chosen}, FALSE)"))
        self._any.append(F.col(own))
        needed = [columns[name] for name in schema.names]
        self._needed += [each for each in (own, *needed) if each not in self._needed]
        return branch.name, own, needed

    def rows(self) -> DataFrame:
        """What any branch needs."""
        wanted = self._any[0]
        for other in self._any[1:]:
            wanted = wanted | other
        places = [name for name in _PLACE_TYPES if name not in self._needed]
        return self._frame.where(wanted).select(*places, *map(quoted, self._needed))


class Packing:
    """Packs rows of several branches: (input, column of its own rows, columns) of each."""

    def __init__(self, branches: Sequence[tuple[str, str | None, list[str]]]) -> None:
        self._branches = branches

    def chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [*self._summaries(batch), *self._rows(batch)]
            buckets, chunks, rows, refused = zip(*found, strict=True) if found else [()] * 4
            yield pa.RecordBatch.from_pydict(
                {
                    "bucket": pa.array(buckets, pa.int32()),
                    "chunk": pa.array(chunks, pa.binary()),
                    "rows": pa.array(rows, pa.int64()),
                    "refused": pa.array(refused, pa.int64()),
                }
            )

    def _summaries(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, int, int]]:
        if batch.column("summary").null_count == len(batch):
            return
        names = ("bucket", "summary", "rows", "refused")
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            if row[1] is not None:
                yield row

    def _rows(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, int, int]]:
        if batch.column("partition").null_count == len(batch):
            return
        places = {
            name: batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False)
            for name in ("bucket", "partition")
        }
        is_row = batch.column("summary").is_null().to_numpy(zero_copy_only=False)
        for name, own, columns in self._branches:
            mine = is_row
            if own is not None:
                mine = mine & batch.column(own).to_numpy(zero_copy_only=False)
            for bucket in np.unique(places["bucket"][mine]).tolist():
                of_bucket = mine & (places["bucket"] == bucket)
                for partition in np.unique(places["partition"][of_bucket]).tolist():
                    some = of_bucket & (places["partition"] == partition)
                    at = pa.array(np.flatnonzero(some))
                    taken = [
                        batch.column(each).take(at).to_pylist()
                        for each in ("offset", "vs", "ve", *columns)
                    ]
                    rows = Rows(name, partition, taken[0], taken[1], taken[2], taken[3:])
                    yield bucket, packed(rows), 0, 0
