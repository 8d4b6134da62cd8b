"""Where `state` keeps a bucket's variables while a query runs: in Spark's state store."""

from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

__all__ = ("SparkVariables",)

_DATA: Final = StructType([StructField("data", BinaryType())])
_NUMBER: Final = StructType([StructField("number", LongType())])


class SparkVariables:
    """A bucket's variables in the state store of a stateful processor."""

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
