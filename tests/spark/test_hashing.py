"""The hash of events that Python makes is Spark's, bit by bit."""

from random import Random

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from lmerge_service.elements import INFINITY, START
from lmerge_service.spark.audit.hashing import event_hashes
from lmerge_service.spark.audit.scanning import event_hash


def test_it_is_what_spark_computes_for_texts_of_any_length(spark: SparkSession) -> None:
    rng = Random(7)
    lengths = [*range(140), *(rng.randrange(5_000) for _ in range(60))]
    rng.shuffle(lengths)
    texts = ["".join(rng.choice("aZ09{}é😀") for _ in range(length)) for length in lengths]
    times = [START, INFINITY, 0, -1, *(rng.randrange(START, INFINITY) for _ in texts[4:])]
    hashed = event_hash(()).alias("hash")
    table = pa.table({"payload": texts, "vs": times})
    found = [row.hash for row in spark.createDataFrame(table).select(hashed).collect()]
    vs, payload = np.array(times), table["payload"].combine_chunks()
    assert event_hashes(payload, vs).tolist() == found
    assert event_hashes(payload.slice(50, 30), vs[50:80]).tolist() == found[50:80]


def test_nothing_and_empty_texts_have_a_hash() -> None:
    nothing = pa.array([], pa.string())
    assert event_hashes(nothing, np.array([], np.int64)).tolist() == []
    empty = event_hashes(pa.array(["", None, ""]), np.array([1, 1, 2]))
    assert empty[0] != empty[2]
