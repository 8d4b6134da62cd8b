"""One look at rows and the screen, without Spark: what is held together, and what is odd."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.elements import INFINITY, START
from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.audit.scanning import (
    NUMBERS,
    PACKED,
    scanned,
    scanned_records,
    scanning,
)
from lmerge_service.spark.audit.screening import screening
from lmerge_service.spark.audit.streams import placed
from lmerge_service.spark.io.elements import decode_records, raw_records
from tests.spark.audit_cases import StreamRecord, case_of, encoded, headers_of

SOURCE = ("stream", "partition", "incarnation")
SCHEMA = pa.schema([(name, pa.int64()) for name in (*SOURCE, *NUMBERS)])
NONE = START

# The scan


def batches(
    places: Sequence[int], stables: Mapping[int, int] = MappingProxyType({})
) -> Iterator[pa.RecordBatch]:
    """Inserts of one speaker with vs = place, in batches of 50; `stables` by place."""
    for start in range(0, len(places), 50):
        rows = []
        for place in places[start : start + 50]:
            row = dict.fromkeys(SOURCE, 0) | {"place": place, "slice": place >> 4}
            if place in stables:
                rows.append(row | {"vc": stables[place]})
            else:
                rows.append(row | {"vs": place, "ve": place + 20, "hash": place << 50})
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def shuffled_nearby(count: int) -> list[int]:
    rng = Random(3)
    return sorted(range(count), key=lambda place: place + rng.randrange(30))


def test_rows_out_of_order_nearby_leave_each_slice_in_one_piece() -> None:
    stables = {place: place for place in range(5, 2_000, 40)}
    scanned = list(scanning(SOURCE, 200)(batches(shuffled_nearby(2_000), stables)))
    pieces = pa.Table.from_batches([each for each in scanned if each["bucket"].null_count])
    assert pieces["slice"].to_pylist() == list(range(125))
    assert pieces["from"].to_pylist() == list(range(0, 2_000, 16))
    assert pieces["until"].to_pylist() == list(range(15, 2_000, 16))
    assert not any(pieces["doubtful"].to_pylist())
    counted = [sum(pieces[name].to_pylist()) for name in ("inserts", "stables")]
    assert counted == [1_950, 50]


def test_speakers_that_alternate_are_held_apart() -> None:
    [batch] = batches(range(48), {20: 20})
    partition = pa.array([place % 2 for place in range(48)])
    columns = {name: batch[name] for name in batch.schema.names} | {"partition": partition}
    pieces, bundles = scanning(SOURCE)(iter([pa.RecordBatch.from_pydict(columns)]))
    assert pieces["partition"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert pieces["from"].to_pylist() == [0, 16, 32, 1, 17, 33]
    assert pieces["inserts"].to_pylist() == [8, 7, 8, 8, 8, 8]
    assert bundles["partition"].to_pylist() == sorted(bundles["partition"].to_pylist())


@pytest.mark.parametrize(
    ("places", "stables", "doubtful"),
    [
        ([1, 2, 3], {}, False),
        ([1, 2, 2, 3], {}, True),
        ([1, 2, 30, 3], {2: 3}, False),
        ([1, 2, 30, 3], {2: 4}, True),
        ([2, 3, 1], {1: 2, 3: 1}, True),
    ],
)
def test_what_has_one_place_or_comes_too_late_is_doubtful(
    places: list[int], stables: dict[int, int], doubtful: bool
) -> None:
    pieces, *_ = scanning(SOURCE)(batches(places, stables))
    assert any(pieces["doubtful"].to_pylist()) == doubtful


def test_records_are_scanned_as_rows_are(spark: SparkSession) -> None:
    """The fast way to a topic finds in records what the slow one finds: pieces, and bundles."""
    published = [each for seed in range(150) for each in case_of(seed).streams[0]]
    assert {each.incarnation for each in published} == {0, 1}
    sent = spark.createDataFrame(records(published)).coalesce(1)
    rows = placed(decode_records(sent, keys="none"), bits=3).withColumn("stream", F.lit(4))
    slow = scanned(rows, ()).collect()
    fast = scanned_records(raw_records(sent, keys="none"), Rule(), 4, bits=3).collect()
    assert len(fast) > 500
    assert sorted(map(str, fast)) == sorted(map(str, slow))


def records(published: Sequence[StreamRecord]) -> pa.Table:
    times = [10_500 * number for number in range(len(published))]
    headers = [
        [{"key": key, "value": value} for key, value in headers_of(each)] for each in published
    ]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.table(
        {
            "partition": pa.array([each.partition for each in published], pa.int32()),
            "offset": pa.array(range(len(published)), pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "headers": pa.array(headers, pa.list_(header)),
            "value": pa.array([encoded(each) for each in published], pa.binary()),
        }
    )


# The screen


def bundle(stream: int, rows: Sequence[Sequence[int]], partition: int = 0) -> pa.RecordBatch:
    """(hash, vs, place, vold, ve) of one stream."""
    packed = np.array([[*row, NONE] for row in rows], np.int64)
    assert packed.shape[1] == len(PACKED)
    return pa.RecordBatch.from_pydict(
        {
            "stream": pa.array([stream], pa.int32()),
            "partition": pa.array([partition], pa.int32()),
            "bundle": pa.array([packed.tobytes()], pa.binary()),
        }
    )


def odd(*bundles: pa.RecordBatch) -> dict[int, tuple[bool, int]]:
    """By hash, whether it is wrong in itself, and the lowest end."""
    screened = screening(2, ["stream", "partition"])(iter(bundles))
    rows = [row for batch in screened for row in batch.to_pylist() if row["hash"] is not None]
    return {row["hash"]: (row["wrong"], row["lowest"]) for row in rows}


PLAIN = [[7, 6, 1, NONE, 20], [7, 6, 2, 20, 25], [8, 6, 3, NONE, 9], [8, 6, 4, 9, 6]]


def test_what_is_plain_is_let_through_in_whatever_order_bundles_come() -> None:
    other = [[7, 6, 5, NONE, 25]]
    assert odd(bundle(0, PLAIN), bundle(1, other)) == {}
    assert odd(bundle(1, other), bundle(0, PLAIN[2:]), bundle(0, PLAIN[:2])) == {}
    assert odd(bundle(0, PLAIN[1:]), bundle(0, PLAIN[:1]), bundle(1, other)) == {}


def test_ends_that_differ_are_odd_with_the_lowest_of_them() -> None:
    assert odd(bundle(0, PLAIN), bundle(1, [[7, 6, 5, NONE, 24]])) == {7: (False, 24)}
    assert odd(bundle(0, PLAIN)) == {7: (False, NONE)}
    assert odd(bundle(0, [[7, 6, 1, NONE, INFINITY]])) == {7: (False, NONE)}


@pytest.mark.parametrize(
    "rows",
    [
        [[7, 6, 1, NONE, 25], [7, 6, 2, 20, 25]],  # a chain that is broken
        [[7, 6, 1, 20, 25]],  # without a beginning
        [[7, 6, 1, NONE, 20], [7, 6, 2, NONE, 25]],  # inserted again
        [[7, 6, 1, NONE, 20], [7, 6, 1, 20, 25]],  # at one place
        [[7, 6, 1, NONE, 25], [7, 5, 2, NONE, 25]],  # two events with one hash
    ],
)
def test_what_is_not_plain_is_odd_whatever_the_others_are(rows: list[list[int]]) -> None:
    assert odd(bundle(0, rows), bundle(1, rows))[7][0]


def test_what_is_published_in_two_partitions_is_odd() -> None:
    rows = [[7, 6, 1, NONE, 25]]
    assert odd(bundle(0, rows), bundle(0, rows, 1), bundle(1, rows), bundle(1, rows, 1))[7][0]
