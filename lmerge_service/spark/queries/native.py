r"""A plan that Spark itself computes: windows of a grid by its own windowed aggregation, for a
replica that shares no operator with the network.

Theory
        chunks ─▶ gate ─▶ window(time), groupBy, count/sum/min/max ─▶ numbering ─▶ records
                  rows in time, marks     (append: once, when final)    stable last

    What is alike in all plans stays so: which event a fact is, and which are late (`compiling`).
    The gate lets those pass that are in time, and gives a *mark*: up to when all is known. The
    windows are Spark's, and so are groups and aggregates; results are emitted once, when final.

    Spark closes a window when its own watermark has passed. That is the highest value of a column,
    over all partitions, as of the last batch; taken from the facts it would drop what another
    partition still counts. So the column is the mark, which is no fact's time but the least of all
    partitions: what is in time is never below it, and Spark finds nothing late.

    A record that is no fact has no place in this: it is read once more by itself, and becomes a
    dead letter.

    How far the output is must come out behind what is final by then. So marks go through the
    aggregation, too, as a group of their own whose time is in the last windows that end by the
    mark: Spark emits them with these windows, and the numbering, which has all of a bucket, puts
    the stable behind them:

        mark 100, windows of 60 every 20:   the mark's row has time 40: in [0, 60) … [40, 100)
        next batch: all windows that end by 100, and the row   →   results, stable(60)

    Spark's times begin in 1970 and have a watermark from there on; ours are moved up by 2**52.

Invariants
    N1  The output is inserts and stables; its TDB is the plan's meaning.
    N2  The records of each bucket are numbered, alike whenever a batch is run again.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import encode
from lmerge_service.queries import logical
from lmerge_service.queries.rows import Schema
from lmerge_service.queries.sql_text import COLUMN_TYPES, sql_text
from lmerge_service.spark.io.encoding import canonical_payload, record_value
from lmerge_service.spark.queries.bucket_processor import BucketProcessor
from lmerge_service.spark.queries.compiling import SourceReader, StagesQuery, facts_frame
from lmerge_service.spark.queries.moves import Letters, Rows, Summary, packed, unpacked
from lmerge_service.spark.queries.row_lateness import FactsLateness, RowSummary
from lmerge_service.spark.queries.stage_processor import letter_columns
from lmerge_service.spark.queries.stages import Branch
from lmerge_service.spark.silence import silence_stdout

__all__ = ("Gate", "Numbering", "native_records")

silence_stdout()

_FURTHEST: Final = 2**52
"""Times are less than this away from 0, and moved up by it."""
_WATERMARK: Final = "spark.watermarkDelayMs"
"""By this metadata Spark finds the column of which it has a watermark."""


def native_records(query: StagesQuery, facts: Mapping[str, DataFrame]) -> DataFrame:
    """As `compiling.records`, of a plan of one stage that `check_native` takes."""
    stage = query.stages[-1]
    (branch,) = stage.branches
    columns = dict(stage.columns)[branch.source.name]
    name = branch.source.name
    reader = SourceReader(branch.source, query.headroom, columns, query.keys)
    lettering = msgspec.structs.replace(reader, topic=query.topic_of(name))
    chunks = facts_frame(facts[name], reader, [branch], f"facts 0 {name}")
    windows = stage.plan.plan
    assert isinstance(windows, logical.Windows)
    below = logical.schema_of(windows.of)
    fields = (f"c{at} {COLUMN_TYPES[each.kind]}" for at, each in enumerate(below))
    schema = ", ".join((_PASSED, *fields))
    gate = Gate(branch, query.widths[name], windows.grid.size, schema)
    passed = chunks.groupBy("bucket").transformWithStateInPandas(gate, schema, "Append", "None")
    observed = passed.observe("stage 0 gate", F.sum("late").alias("late"))
    rows = _aggregated(observed, windows, below)
    numbering = Numbering(windows.grid, query.keys)
    numbered = rows.groupBy("bucket").transformWithStateInPandas(
        numbering, _NUMBERED, "Append", "None"
    )
    counted = numbered.observe(
        "output",
        F.min(F.when(F.col("value").isNull(), F.col("stable"))).alias("stable"),
        F.min(F.when(F.col("value").isNull(), F.col("watermark"))).alias("watermark"),
        F.count("value").alias("records"),
        F.lit(0).alias("late"),
        F.lit(0).alias("kept"),
    )
    written = counted.where(F.col("value").isNotNull()).select(
        "partition", "seq", "key", "value", F.lit(None).cast("string").alias("letter")
    )
    raw = facts[name].select("partition", "offset", "key", "value")
    return written.unionByName(raw.mapInArrow(lambda read: _letters(lettering, read), _LETTERS))


_LETTERS: Final = "partition int, seq long, key binary, value binary, letter string"


def _letters(reader: SourceReader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Records of dead letters, of (partition, offset, key, value)."""
    for letters in reader.letters(batches):
        found = letter_columns([packed(Letters(letters))])
        count = len(letters)
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([0] * count, pa.int32()),
                "seq": pa.nulls(count, pa.int64()),
                "key": pa.array(found["key"], pa.binary()),
                "value": pa.array(found["value"], pa.binary()),
                "letter": pa.array(found["letter"], pa.string()),
            }
        )


_PASSED: Final = "bucket int, mark long, time long, late long"


def _moved(time: Column) -> Column:
    return F.timestamp_millis(time + F.lit(_FURTHEST))


def _aggregated(passed: DataFrame, windows: logical.Windows, below: Schema) -> DataFrame:
    """(bucket, mark, payload, vs, value): results that are final, and marks behind them."""
    grid = windows.grid
    columns = {name: f"c{at}" for at, name in enumerate(below.names)}
    clock = F.when(F.col("mark").isNull(), F.lit(0)).otherwise(F.col("mark") + F.lit(_FURTHEST))
    ticking = passed.withColumn("clock", F.timestamp_millis(clock)).withWatermark(
        "clock", "0 seconds"
    )
    rows = ticking.select(
        "bucket",
        "mark",
        F.col("mark").isNotNull().alias("is_mark"),
        _moved(F.col("time")).alias("time", metadata={_WATERMARK: 0}),
        *columns.values(),
    )
    phase = (grid.origin + _FURTHEST) % grid.every
    window = F.window("time", *(f"{each} milliseconds" for each in (grid.size, grid.every, phase)))
    keys = [F.col(columns[name]).alias(f"k{at}") for at, name in enumerate(windows.by)]
    assert isinstance(windows.results, tuple)
    results = [
        F.expr(_aggregate(each, below, columns)).alias(f"r{at}")
        for at, (_, each) in enumerate(windows.results)
    ]
    found = rows.groupBy("bucket", "is_mark", window.alias("window"), *keys).agg(
        F.max("mark").alias("mark"), *results
    )
    names = [*windows.by, *(name for name, _ in windows.results)]
    made = [f"k{at}" for at in range(len(windows.by))]
    made += [f"r{at}" for at in range(len(windows.results))]
    fields = sorted(zip(names, made, strict=True))
    text = F.to_json(
        F.struct(*(F.col(column).alias(name) for name, column in fields)),
        {"ignoreNullFields": "false"},
    )
    start = F.unix_millis(F.col("window.start")) - F.lit(_FURTHEST)
    payload = canonical_payload(F.when(~F.col("is_mark"), text))
    elements = found.select(
        "bucket",
        "mark",
        F.lit("insert").alias("op"),
        payload.alias("payload"),
        start.alias("vs"),
        F.lit(None).cast("long").alias("vold"),
        (start + F.lit(grid.size)).alias("ve"),
        F.lit(None).cast("long").alias("vc"),
    )
    value = F.when(F.col("mark").isNull(), record_value())
    return elements.select("bucket", "mark", "payload", "vs", value.alias("value"))


def _aggregate(aggregation: logical.Aggregation, below: Schema, columns: Mapping[str, str]) -> str:
    if aggregation.of is None:
        return "count(1)"
    of = sql_text(aggregation.of, below, columns)
    match aggregation.function:
        case "count_of":
            return f"count({of})"
        case "sum":  # exact on the way: only the result may be beyond int64, and is null then
            return f"try_cast(sum(CAST({of} AS DECIMAL(19, 0))) AS BIGINT)"
    return f"{aggregation.function}({of})"


_STATE: Final = StructType([StructField("saved", BinaryType())])


class Gate(BucketProcessor):
    """Lets the facts of a bucket pass that are in time, and marks how far all are; `schema` is that
    of what it lets pass."""

    def __init__(self, branch: Branch, width: int, size: int, schema: str) -> None:
        super().__init__(schema)
        self._branch, self._width, self._size = branch, width, size

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("seen", _STATE)

    def run(self, key: int, frames: Iterator[pd.DataFrame]) -> Iterator[Mapping[str, Any]]:
        """Of chunks: the rows of a batch that are in time, then its mark."""
        kept = self._state.get()
        seen = [] if kept is None else msgspec.msgpack.decode(bytes(kept[0]), type=list[int])
        lateness = FactsLateness(self._branch.source.lateness, self._width, seen)
        summaries: dict[int, list[RowSummary]] = {}
        facts: list[Rows] = []
        for chunk in (chunk for frame in frames for chunk in frame["chunk"]):
            match unpacked(chunk):
                case Summary(_, partition, summary):
                    summaries.setdefault(partition, []).append(summary)
                case Rows() as some:
                    facts.append(some)
        lateness.begin(summaries)
        self._state.update((msgspec.msgpack.encode(lateness.seen),))
        late = 0
        for some in facts:
            of = some.partition
            events = [each for at, each in some.events() if lateness.counts(of, at, each.vs)]
            late += len(some.offsets) - len(events)
            if events:
                yield self._passed(key, events)
        mark = lateness.watermark
        if mark == START:
            mark = -_FURTHEST + self._size
        mark = min(mark, _FURTHEST - 1)
        yield {"bucket": [key], "mark": [mark], "time": [mark - self._size], "late": [late]}

    def _passed(self, bucket: int, events: list[Any]) -> Mapping[str, Any]:
        furthest = max(abs(event.vs) for event in events)
        if furthest >= _FURTHEST - self._size:
            raise ElementError(
                "time_overflow", f"a native plan takes times nearer to 0 than 2**52, not {furthest}"
            )
        columns: dict[str, Any] = {
            "bucket": bucket,
            "time": [event.vs for event in events],
            "late": 0,
        }
        for at, column in enumerate(zip(*(event.payload for event in events), strict=True)):
            columns[f"c{at}"] = pd.Series(column, dtype=object)
        return columns


_NUMBERED: Final = "partition int, seq long, key binary, value binary, stable long, watermark long"
_NUMBERS: Final = StructType(
    [StructField("emitted", LongType()), StructField("stable", LongType())]
)


class Numbering(BucketProcessor):
    """Puts what a bucket has in order, its stable last, and numbers it."""

    def __init__(self, grid: logical.Grid, keys: tuple[int, ...]) -> None:
        super().__init__(_NUMBERED)
        self._grid, self._keys = grid, keys

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("numbers", _NUMBERS)

    def run(self, key: int, frames: Iterator[pd.DataFrame]) -> Iterator[Mapping[str, Any]]:
        """Of results and marks: the records of a batch, and a row that has how far it is."""
        kept = self._state.get()
        emitted, stable = (0, START) if kept is None else kept
        results: list[tuple[int, bytes, bytes]] = []
        mark = START
        for frame in frames:
            marks = frame["mark"].dropna()
            mark = max([mark, *map(int, marks)])
            some = frame[frame["mark"].isna()]
            results += [
                (int(vs), payload.encode(), value.encode())
                for vs, payload, value in zip(
                    some["vs"], some["payload"], some["value"], strict=True
                )
            ]
        found: list[tuple[bytes | None, bytes | None]] = [
            (payload, value) for _, payload, value in sorted(results)
        ]
        if (risen := self._stable(mark)) > stable:
            stable = risen
            found.append((None, encode(Stable(stable))))
        self._state.update((emitted + len(found), stable))
        numbers = range(emitted + 1, emitted + len(found) + 1)
        yield {
            "partition": self._keys.index(key),
            "seq": [*numbers, 0],
            "key": [*(key for key, _ in found), None],
            "value": [*(value for _, value in found), None],
            "stable": stable,
            "watermark": INFINITY if mark == _FURTHEST - 1 else mark,
        }

    def _stable(self, mark: int) -> int:
        """The start of the first window that is not final."""
        if mark == _FURTHEST - 1:
            return INFINITY
        grid = self._grid
        if mark <= -_FURTHEST + grid.size:
            return START
        return (
            (mark - grid.size - grid.origin) // grid.every * grid.every + grid.every + grid.origin
        )
