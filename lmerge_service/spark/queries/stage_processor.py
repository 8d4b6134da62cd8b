"""A stage in Spark: a stateful processor around its buckets.

Theory
    The key of a group is a bucket; its rows are chunks (`moves`). What comes out are records of the
    output, numbered, or moves for the buckets of the next stage: data to those that the next
    stage's columns divide it to, stables to all. Behind them is one row of counts.

What happens on a crash
    Spark runs the batch again, from the state before it. Its output is the same, with the same
    numbers, by which readers have each record once (`formats.headers`).
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from lmerge_service.queries.rows import Schema
from lmerge_service.replicas.encoding import RowEncoder
from lmerge_service.replicas.routing import Route
from lmerge_service.spark.queries.moves import divided, moved, packed
from lmerge_service.spark.queries.stage_bucket import StageBucket, StageResult, StageSettings
from lmerge_service.spark.queries.stages import Stage
from lmerge_service.spark.silence import silence_stdout
from lmerge_service.spark.state import run
from lmerge_service.spark.state_variables import SparkVariables

__all__ = ("MOVED", "RECORDS", "StageProcessor", "StageTask", "Target")

silence_stdout()

_COUNTS: Final = ("late", "kept", "stable", "watermark")
_COUNT_TYPES: Final = ", ".join(f"{name} long" for name in _COUNTS)
RECORDS: Final = f"partition int, seq long, key binary, value binary, emitted int, {_COUNT_TYPES}"
"""Of records of the output, and in rows without a value, what a bucket has counted."""
MOVED: Final = f"bucket int, chunk binary, emitted int, {_COUNT_TYPES}"
"""Of what goes to the next stage, and in rows without a chunk, what a bucket has counted."""
_ROWS: Final = 20_000


class Target(msgspec.Struct, frozen=True):
    """Where a stage's output goes, unless it is the last."""

    input: str
    columns: tuple[str, ...]
    """That divide it; none: all goes to one bucket."""


class StageTask(msgspec.Struct, frozen=True):
    """All that the workers need of a stage."""

    stage: Stage
    widths: dict[str, int]
    keys: tuple[int, ...]
    """By bucket, the key of its group."""
    identity: str
    """What distinguishes its state from that of other stages in one worker."""
    target: Target | None

    @property
    def settings(self) -> StageSettings:
        return StageSettings(self.stage, self.widths, len(self.keys))


class StageProcessor(StatefulProcessor):
    """Runs the buckets of a stage."""

    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._numbers = {key: number for number, key in enumerate(task.keys)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Takes the handle of Spark's state store. Called by Spark before anything else."""
        task = self._task
        self._variables = SparkVariables(handle)
        schema: Schema = task.stage.schema
        self._encoder = RowEncoder(schema)
        self._route: Route | None = None
        if task.target is not None and task.target.columns:
            self._route = Route(schema, task.target.columns, len(task.keys))

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Runs a batch of bucket `key[0]`; yields frames of what it emits, then its counts."""
        task, number = self._task, self._numbers[int(key[0])]
        chunks = [chunk for frame in rows for chunk in frame["chunk"]]
        bucket, result = run(
            self._variables, task.identity, number, lambda: StageBucket(task.settings), 0, chunks
        )
        counts = [result.late, result.kept, result.stable, bucket.watermark]
        if task.target is None:
            yield from self._records(number, result)
            empty: list[Any] = [number, 0, None, None, None]
        else:
            yield self._moves(task.target, number, result)
            empty = [task.keys[0], None, None]
        names = [
            field.split()[0] for field in (RECORDS if task.target is None else MOVED).split(",")
        ]
        yield pd.DataFrame([[*empty, *counts]], columns=names)

    def close(self) -> None:
        """Spark closes what is the store's."""

    def _records(self, number: int, result: StageResult) -> Iterator[pd.DataFrame]:
        for start in range(0, len(result.elements), _ROWS):
            some = self._encoder.records(result.elements[start : start + _ROWS])
            first = result.first + start
            yield _framed(
                {
                    "partition": number,
                    "seq": range(first, first + len(some)),
                    "key": [key for key, _ in some],
                    "value": [value for _, value in some],
                    "emitted": 1,
                }
            )

    def _moves(self, target: Target, number: int, result: StageResult) -> pd.DataFrame:
        keys = self._task.keys
        chunks = [
            (keys[to], packed(moved(target.input, number, result.first + start, part)))
            for start in range(0, len(result.elements), _ROWS)
            for to, part in enumerate(
                divided(result.elements[start : start + _ROWS], self._route, len(keys))
            )
            if part
        ]
        return _framed(
            {
                "bucket": [bucket for bucket, _ in chunks],
                "chunk": [chunk for _, chunk in chunks],
                "emitted": 1,
            }
        )


def _framed(columns: dict[str, Any]) -> pd.DataFrame:
    """Rows without counts."""
    frame = pd.DataFrame(columns)
    return frame.assign(**dict.fromkeys(_COUNTS))
