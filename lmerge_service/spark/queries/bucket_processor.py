"""What Spark's stateful processors of buckets share: how they are called, and what they yield."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = ("BucketProcessor",)


class BucketProcessor(StatefulProcessor, ABC):
    """Runs the buckets that a task has; `schema` is that of its rows, in Spark's words."""

    def __init__(self, schema: str) -> None:
        self._names = [each.split()[0] for each in schema.split(", ")]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Takes the handle of Spark's state store. Called by Spark before anything else."""
        self.open(handle)

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Runs a batch of the bucket whose group is `key[0]`; yields frames of what it emits."""
        for columns in self.run(int(key[0]), rows):
            missing = dict.fromkeys(name for name in self._names if name not in columns)
            frame = pd.DataFrame(columns).assign(**missing)[self._names]
            if len(frame):  # Spark does not take an empty one, which has no types
                yield frame

    def close(self) -> None:
        """Spark closes what is the store's."""

    @abstractmethod
    def open(self, handle: StatefulProcessorHandle) -> None:
        """Gets its state from the store."""

    @abstractmethod
    def run(self, key: int, frames: Iterator[pd.DataFrame]) -> Iterator[Mapping[str, Any]]:
        """Columns of rows, of the rows of a group in a batch; those that are not given are null."""
