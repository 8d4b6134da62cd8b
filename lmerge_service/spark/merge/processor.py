"""The stage that merges: Spark's stateful processor around a bucket.

Theory
    The key of a group is a bucket; its rows are chunks (`packing`). What comes out are records for
    Spark's Kafka sink, of the output and of the topics of dead letters and events, and one row in
    JSON for the job, which counts what was found (`Counts`). A dead letter's headers are a string,
    as in `decoding`: an array would cost each record that has none.

What happens on a crash
    Spark runs the batch again, from the state before it. Its output is the same, with the same
    numbers.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from lmerge_service.elements import Stable
from lmerge_service.formats.wire import encode
from lmerge_service.merge.state_file import chunks_of
from lmerge_service.spark.merge.bucket import Bucket, BucketResult
from lmerge_service.spark.merge.packing import batch_number
from lmerge_service.spark.merge.plan import Work
from lmerge_service.spark.merge.store import run
from lmerge_service.spark.silence import silence_stdout

__all__ = ("EVIDENCE", "JOB", "LETTER", "RECORDS", "Counts", "MergeProcessor", "fresh")

RECORDS: Final = "target string, partition int, seq bigint, key binary, value binary, letter string"
_COLUMNS: Final = ("target", "partition", "seq", "key", "value", "letter")
LETTER: Final = "letter"
EVIDENCE: Final = "evidence"
JOB: Final = "job"
"""Where a row goes to that is no record of the output."""
_ROWS: Final = 20_000
_DATA: Final = StructType([StructField("data", BinaryType())])
_NUMBER: Final = StructType([StructField("number", LongType())])


class Counts(msgspec.Struct, frozen=True):
    """What a bucket has counted in a batch."""

    task: int
    breaches: Sequence[tuple[str, str, int]]
    """(replica, kind, count)."""


class MergeProcessor(StatefulProcessor):
    """Merges the buckets of a task."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._numbers = {key: number for number, key in enumerate(work.keys)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Takes the handle of Spark's state store. Called by Spark before anything else."""
        self._variables = _Variables(handle)

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Merges a batch's chunks of the bucket `key[0]`; yields frames of output records, then of
        what was found."""
        work, number = self._work, self._numbers[int(key[0])]
        chunks = [chunk for frame in rows for chunk in frame["chunk"]]
        bucket, result = run(
            self._variables, work.plan, number, lambda: fresh(work, number), self.batch(), chunks
        )
        yield from _frames(bucket, result)

    def batch(self) -> int:
        """The number of the present batch."""
        return batch_number()

    def close(self) -> None:
        """Spark closes what is the store's."""


silence_stdout()


def fresh(work: Work, number: int) -> Bucket:
    """The bucket as it is before the first batch."""
    bucket = Bucket(work.topology, work.plan, number)
    if (origin := work.plan.adopted) is not None:
        chunks = chunks_of(Path(origin.path), number, origin.digests[number])
        bucket.adopt(chunks, 1, foreign=True)
    return bucket


class _Variables:
    """Of `store`, in Spark's."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", _DATA)
        self._log = handle.getMapState("log", _NUMBER, _DATA)
        self._pages = handle.getMapState("pages", _NUMBER, _DATA)

    def head(self) -> bytes | None:
        return _bytes(self._head.get())

    def set_head(self, data: bytes) -> None:
        self._head.update((data,))

    def entry(self, number: int) -> bytes | None:
        return _bytes(self._log.getValue((number,)))

    def append(self, number: int, data: bytes) -> None:
        self._log.updateValue((number,), (data,))

    def page(self, number: int) -> bytes | None:
        return _bytes(self._pages.getValue((number,)))

    def set_page(self, number: int, data: bytes) -> None:
        self._pages.updateValue((number,), (data,))

    def clear(self) -> None:
        self._log.clear()
        self._pages.clear()


def _bytes(row: Any) -> bytes | None:
    return None if row is None else bytes(row[0])


def _frames(bucket: Bucket, result: BucketResult) -> Iterator[pd.DataFrame]:
    key_of = bucket.state.router.key_of
    for start in range(0, len(result.elements), _ROWS):
        some = result.elements[start : start + _ROWS]
        first = result.first + start
        yield pd.DataFrame(
            {
                "target": None,
                "partition": bucket.number,
                "seq": range(first, first + len(some)),
                "key": [None if type(e) is Stable else key_of(e.payload) for e in some],  # type: ignore[union-attr]
                "value": [encode(element) for element in some],
                "letter": None,
            },
            columns=_COLUMNS,
        )
    if result.dead:
        letters = [letter.to_record() for letter in result.dead]
        headers = [",".join(f"{n}={text.hex()}" for n, text in each) for _, _, each in letters]
        yield _aside(LETTER, [(key, value) for key, value, _ in letters], headers)
    if result.found.evidence:
        now = int(time.time() * 1000)
        stamped = (msgspec.structs.replace(each, at_ms=now) for each in result.found.evidence)
        yield _aside(EVIDENCE, [each.to_record() for each in stamped])
    if result.found.breaches:
        found = [(*key, count) for key, count in result.found.breaches.items()]
        counts = msgspec.json.encode(Counts(bucket.number, found))
        yield _aside(JOB, [(None, counts)])


def _aside(
    target: str,
    records: Sequence[tuple[bytes | None, bytes | None]],
    headers: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Rows that are no records of the output."""
    return pd.DataFrame(
        {
            "target": target,
            "partition": 0,
            "seq": 0,
            "key": [key for key, _ in records],
            "value": [value for _, value in records],
            "letter": headers,
        },
        columns=_COLUMNS,
    )
