"""Topics of many partitions, each a stream of its own, and what was known of them, by an oracle."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.formats.bulk import Rule
from lmerge_service.tdb import TDB, reconstitute
from lmerge_service.workloads.lifetime import lives_of
from lmerge_service.workloads.presentation import Variation, present

__all__ = (
    "EPOCH",
    "PARQUET",
    "Record",
    "frame",
    "history",
    "known_by_offset",
    "known_by_time",
    "store",
    "true_of",
)

EPOCH = 1_700_000_000_000
_TEXT, _LONG = pa.string(), pa.int64()
PARQUET = pa.schema(
    [
        ("source", _TEXT),
        ("partition", pa.int32()),
        ("offset", _LONG),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        *(("incarnation", _LONG), ("joining_at", _LONG), ("op", _TEXT), ("payload", _TEXT)),
        *(("vs", _LONG), ("vold", _LONG), ("ve", _LONG), ("vc", _LONG), ("rule", _TEXT)),
    ]
)


@dataclass(frozen=True)
class Record:
    """A record of a topic."""

    partition: int
    offset: int
    time: int
    incarnation: int
    element: Element


def history(seed: int, partitions: int, *, restarting: bool) -> list[Record]:
    """Of each partition a stream of any kind; offsets have holes, times go back and forth.

    `restarting`: some partitions go over to a further incarnation, in which the old one still
    publishes now and then.
    """
    rng = Random(seed)
    records = []
    for partition in range(partitions):
        published = [(0, each) for each in _stream(rng, partition)]
        if restarting and rng.random() < 0.5:
            published = _restarted(rng, published, _stream(rng, partition))
        offset, time = rng.randint(0, 3), EPOCH
        for incarnation, element in published:
            records.append(
                Record(partition, offset, time + rng.randint(-2, 2), incarnation, element)
            )
            offset += rng.choice((1, 1, 1, 2, 5))
            time += rng.choice((0, 1, 3))
    return records


def _stream(rng: Random, partition: int) -> list[Element]:
    keys = {(rng.choice("ABC"), rng.randint(-5, 30)) for _ in range(rng.randint(0, 12))}
    events = [
        (f'"{name}{partition}"', vs, rng.choice((vs + rng.randint(1, 20), INFINITY)))
        for name, vs in sorted(keys)
    ]
    if events and rng.random() < 0.5:
        events += rng.choices(events, k=2)  # a multiset, for which R4 is needed
    variation = Variation(
        provisional=rng.choice((0.0, 0.5, 1.0)),
        revisions=3,
        spread=15,
        endless=0.2,
        reinserted=rng.choice((0.0, 0.4)),
        phantoms=rng.choice((0.0, 0.4)),
        doubled=rng.choice((0.0, 0.5)),
        disorder=rng.choice((0.0, 0.5)),
        displacement=20,
        stable_probability=rng.choice((0.0, 0.2, 1.0)),
        stable_lag=rng.randint(0, 3),
        closed=rng.random() < 0.5,
    )
    return list(present(lives_of(events), variation, rng.randint(0, 1 << 30)))


def _restarted(
    rng: Random, old: list[tuple[int, Element]], fresh: list[Element]
) -> list[tuple[int, Element]]:
    at = rng.randint(0, len(old))
    late = [each for each in old[at:] if rng.random() < 0.3]  # still under way, read by nobody
    new = [(3, each) for each in fresh]
    return old[:at] + (new[:1] + late + new[1:] if new else [])


def rows_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """As `write_elements` takes them, and as it writes them."""
    return [
        {
            **dict.fromkeys(PARQUET.names),
            "source": "t",
            "partition": each.partition,
            "offset": each.offset,
            "timestamp": datetime.fromtimestamp(each.time / 1000, UTC),
            "incarnation": each.incarnation,
            "joining_at": START,
            "op": type(each.element).__name__.lower(),
            **msgspec.structs.asdict(each.element),
            "rule": Rule().version,
        }
        for each in records
    ]


def frame(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    """For `write_elements`."""
    table = pa.Table.from_pylist(rows_of(records), PARQUET)
    return spark.createDataFrame(table.drop_columns(["key", "rule"]))


def store(records: Iterable[Record], folder: Path) -> None:
    """As `write_elements` would append them to a folder of Parquet, without Spark."""
    folder.mkdir(exist_ok=True)
    name = f"part-{len([*folder.iterdir()]):05}.parquet"
    pq.write_table(pa.Table.from_pylist(rows_of(records), PARQUET), folder / name)


def known_by_offset(records: Iterable[Record], known: Mapping[int, int]) -> TDB:
    """The TDB of a prefix, that record of each partition included."""
    return _known(each for each in records if each.offset <= known.get(each.partition, -1))


def known_by_time(records: Iterable[Record], known: int) -> TDB:
    """The same, of each partition up to where a record's time is beyond."""
    prefix, over = [], set[int]()
    for each in records:
        if each.time > known:
            over.add(each.partition)
        if each.partition not in over:
            prefix.append(each)
    return _known(prefix)


def _known(prefix: Iterable[Record]) -> TDB:
    """Of the last incarnation that anybody has begun, each partition by itself."""
    prefix = list(prefix)
    last = max((each.incarnation for each in prefix), default=0)
    streams: dict[int, list[Element]] = {}
    for each in prefix:
        if each.incarnation == last:
            streams.setdefault(each.partition, []).append(each.element)
    return TDB(event for stream in streams.values() for event in reconstitute(stream))


def true_of(tdb: TDB, valid: int | None) -> TDB:
    """Those of its events that are true then."""
    return TDB(each for each in tdb if valid is None or each.vs <= valid < each.ve)
