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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from lmerge_service.core.batches import as_batch
from lmerge_service.elements import Element, Stable
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import encode
from lmerge_service.merge.state_file import chunks_of
from lmerge_service.spark.merge.bucket import Bucket, BucketResult
from lmerge_service.spark.merge.packing import batch_number
from lmerge_service.spark.merge.plan import MergePlan, Work
from lmerge_service.spark.silence import silence_stdout
from lmerge_service.spark.state import Variables, run
from lmerge_service.spark.state_variables import SparkVariables

__all__ = ("EVIDENCE", "JOB", "LETTER", "RECORDS", "Counts", "MergeProcessor", "fresh", "merged")

RECORDS: Final = "target string, partition int, seq bigint, key binary, value binary, letter string"
_COLUMNS: Final = ("target", "partition", "seq", "key", "value", "letter")
LETTER: Final = "letter"
EVIDENCE: Final = "evidence"
JOB: Final = "job"
"""Where a row goes to that is no record of the output."""
_ROWS: Final = 20_000


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
        self._variables = SparkVariables(handle)

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
        bucket, result = merged(
            self._variables, work.plan, number, lambda: fresh(work, number), self.batch(), chunks
        )
        yield from _frames(bucket, result)

    def batch(self) -> int:
        """The number of the present batch."""
        return batch_number()

    def close(self) -> None:
        """Spark closes what is the store's."""


silence_stdout()


def merged(
    variables: Variables,
    plan: MergePlan,
    number: int,
    fresh: Callable[[], Bucket],
    batch: int,
    chunks: Sequence[bytes],
    **kept: Any,
) -> tuple[Bucket, BucketResult]:
    """Merges a batch into the bucket of a number, as `state.run`.

    Raises:
        StateError: what is stored is damaged, or cannot be gone on with.
    """

    def goes_on(bucket: Bucket) -> bool:
        bucket.plan = plan
        return bucket.steps >= plan.folded_steps

    def is_due(bucket: Bucket, stored: int) -> bool:
        return stored < plan.due <= bucket.steps

    return run(
        variables, plan.id, number, fresh, batch, chunks, goes_on=goes_on, is_due=is_due, **kept
    )


def fresh(work: Work, number: int) -> Bucket:
    """The bucket as it is before the first batch."""
    bucket = Bucket(work.topology, work.plan, number)
    if (origin := work.plan.adopted) is not None and work.plan.folded is None:
        chunks = chunks_of(Path(origin.path), number, origin.digests[number])
        bucket.adopt(chunks, 1, foreign=True)
    return bucket


def _frames(bucket: Bucket, result: BucketResult) -> Iterator[pd.DataFrame]:
    for start in range(0, len(result.elements), _ROWS):
        some = result.elements[start : start + _ROWS]
        first = result.first + start
        keys, values = _encoded(some, bucket.state.router)
        yield pd.DataFrame(
            {
                "target": None,
                "partition": bucket.number,
                "seq": range(first, first + len(some)),
                "key": keys,
                "value": values,
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


def _encoded(elements: Sequence[Element], router: Router) -> tuple[list[bytes | None], list[bytes]]:
    """The keys of the elements' records, and their values."""
    key_of = router.key_of
    if (batch := as_batch(elements)) is not None:
        payloads = batch.payloads_or_none()
        if router.keyed_by_payload:
            return payloads, batch.values()
        return [None if each is None else key_of(each) for each in payloads], batch.values()
    keys = [None if type(e) is Stable else key_of(e.payload) for e in elements]  # type: ignore[union-attr]
    return keys, [encode(element) for element in elements]


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
