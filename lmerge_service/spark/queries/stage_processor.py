"""Stages and intakes in Spark: stateful processors around their buckets.

Theory
    The key of a group is a bucket; its rows are chunks (`moves`). What comes out are records of the
    output, numbered, or moves for the buckets of the next stage: data to those that the next
    stage's columns divide it to, stables to all. Dead letters pass by the buckets, and come out
    with the records. Behind all is one row of counts.

What happens on a crash
    Spark runs the batch again, from the state before it. Its output is the same, with the same
    numbers, by which readers have each record once (`formats.headers`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from lmerge_service.elements import START, Element
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.queries.rows import Schema
from lmerge_service.replicas.encoding import RowEncoder
from lmerge_service.replicas.routing import Route
from lmerge_service.spark.queries.bucket_processor import BucketProcessor
from lmerge_service.spark.queries.intake_bucket import Intake, IntakeBucket
from lmerge_service.spark.queries.moves import (
    Letters,
    divided,
    is_letters,
    moved,
    packed,
    unpacked,
)
from lmerge_service.spark.queries.stage_bucket import StageBucket, StageSettings
from lmerge_service.spark.queries.stages import Stage
from lmerge_service.spark.silence import silence_stdout
from lmerge_service.spark.state import run
from lmerge_service.spark.state_variables import SparkVariables

__all__ = (
    "MOVED",
    "RECORDS",
    "TAKEN",
    "IntakeProcessor",
    "IntakeTask",
    "StageProcessor",
    "StageTask",
    "Target",
    "letter_columns",
)

silence_stdout()

_COUNTED: Final = "late long, kept long, stable long, watermark long"
RECORDS: Final = (
    f"partition int, seq long, key binary, value binary, letter string, emitted int, {_COUNTED}"
)
"""Of records of the output; of dead letters, which have their headers in `letter`; and in rows
without a value, what a bucket has counted."""
MOVED: Final = f"bucket int, chunk binary, emitted int, {_COUNTED}"
"""Of what goes to the next stage, and in rows without a chunk, what a bucket has counted."""
TAKEN: Final = "bucket int, chunk binary, rows long, refused long, late long, kept long"
"""The same of what an intake has."""
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
    skip: int = START
    """What ends before it does not matter."""

    @property
    def settings(self) -> StageSettings:
        return StageSettings(self.stage, self.widths, len(self.keys), self.skip)


class IntakeTask(msgspec.Struct, frozen=True):
    """All that the workers need of the intake of a source."""

    intake: Intake
    partitions: tuple[int, ...]
    """By partition of the source, the key of its group."""
    keys: tuple[int, ...]
    """The same by bucket of the stage."""
    identity: str
    """What distinguishes its state from that of others in one worker."""
    target: Target
    letters: bool
    """Whether dead letters are written: of several intakes of a source, one does it."""


class StageProcessor(BucketProcessor):
    """Runs the buckets of a stage."""

    def __init__(self, task: StageTask) -> None:
        super().__init__(RECORDS if task.target is None else MOVED)
        self._task = task

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._variables = SparkVariables(handle)
        schema: Schema = self._task.stage.schema
        self._encoder = RowEncoder(schema)
        target = self._task.target
        self._moving = None if target is None else _Moving(target, schema, self._task.keys)

    def run(self, key: int, frames: Iterator[pd.DataFrame]) -> Iterator[Mapping[str, Any]]:
        """Of chunks: what the bucket emits, then its counts."""
        task, number = self._task, self._task.keys.index(key)
        chunks = _chunks(frames)
        letters = [chunk for chunk in chunks if is_letters(chunk)]
        given = [chunk for chunk in chunks if not is_letters(chunk)] if letters else chunks
        if letters and self._moving is None:
            yield letter_columns(letters)
        elif letters:
            yield {"bucket": [task.keys[0]] * len(letters), "chunk": letters}
        if given:
            bucket, result = run(
                self._variables,
                task.identity,
                number,
                lambda: StageBucket(task.settings),
                0,
                given,
            )
            if self._moving is None:
                yield from self._records(number, result.first, result.elements)
            else:
                yield self._moving.columns(number, result.first, result.elements) | {"emitted": 1}
            yield {
                "late": [result.late],
                "kept": [result.kept],
                "stable": [result.stable],
                "watermark": [bucket.watermark],
            }

    def _records(
        self, number: int, first: int, elements: Sequence[Element]
    ) -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(elements), _ROWS):
            some = self._encoder.records(elements[start : start + _ROWS])
            yield {
                "partition": number,
                "seq": range(first + start, first + start + len(some)),
                "key": [key for key, _ in some],
                "value": [value for _, value in some],
                "emitted": 1,
            }


class IntakeProcessor(BucketProcessor):
    """Runs the buckets of an intake."""

    def __init__(self, task: IntakeTask) -> None:
        super().__init__(TAKEN)
        self._task = task

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._variables = SparkVariables(handle)
        task = self._task
        self._moving = _Moving(task.target, task.intake.source.fields, task.keys)

    def run(self, key: int, frames: Iterator[pd.DataFrame]) -> Iterator[Mapping[str, Any]]:
        """Of chunks: what the bucket emits, then its counts."""
        task, number = self._task, self._task.partitions.index(key)
        _, result = run(
            self._variables,
            task.identity,
            number,
            lambda: IntakeBucket(task.intake, number),
            0,
            _chunks(frames),
        )
        yield self._moving.columns(number, result.first, result.elements)
        if result.letters and task.letters:
            yield {"bucket": [task.keys[0]], "chunk": [packed(Letters(result.letters))]}
        yield {
            "rows": [result.records],
            "refused": [len(result.letters)],
            "late": [result.late],
            "kept": [result.kept],
        }


def _chunks(frames: Iterator[pd.DataFrame]) -> list[bytes]:
    return [chunk for frame in frames for chunk in frame["chunk"]]


class _Moving:
    """Makes of elements what goes to the buckets of a stage."""

    def __init__(self, target: Target, schema: Schema, keys: Sequence[int]) -> None:
        self._input, self._keys = target.input, keys
        columns = target.columns
        self._route = Route(schema, columns, len(keys)) if columns else None

    def columns(self, number: int, first: int, elements: Sequence[Element]) -> dict[str, Any]:
        """Columns of chunks of the elements of a bucket, of which the first has that number."""
        keys = self._keys
        chunks = [
            (keys[to], packed(moved(self._input, number, first + start, part)))
            for start in range(0, len(elements), _ROWS)
            for to, part in enumerate(
                divided(elements[start : start + _ROWS], self._route, len(keys))
            )
            if part
        ]
        return {"bucket": [to for to, _ in chunks], "chunk": [chunk for _, chunk in chunks]}


def letter_columns(chunks: Sequence[bytes]) -> dict[str, Any]:
    """Columns of records of dead letters, as `RECORDS` has them."""
    found: list[DeadLetter] = []
    for chunk in chunks:
        letters = unpacked(chunk)
        assert isinstance(letters, Letters)
        found += letters.letters
    records = [letter.to_record() for letter in found]
    return {
        "partition": 0,
        "key": [key for key, _, _ in records],
        "value": [value for _, value, _ in records],
        "letter": [
            ",".join(f"{name}={text.hex()}" for name, text in headers) for _, _, headers in records
        ],
    }
