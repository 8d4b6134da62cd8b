"""Refused records to a dead-letter topic, as the service writes them.

Theory
    A letter is made by the service's own code (`formats.dead_letters`), from the columns of a
    refused row. A replica is named by its topic, unless its name is given. Letters are few, so it
    matters little that a streaming query of their own reads the source once more; inside a
    `foreachBatch`, `write_dead_letters` writes those of the batch.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.connection import kafka_options
from lmerge_service.spark.io.elements import topic_width
from lmerge_service.spark.io.places import WrittenTopic, located
from lmerge_service.spark.io.schema import refused_of

__all__ = ("letters_of", "stream_dead_letters", "write_dead_letters")

_LETTER: Final = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, partition int"
)
_FIELDS: Final = ("source", "partition", "offset", "reason", "message", "key", "value")
_NOBODY: Final[Mapping[str, str]] = {}


def letters_of(records: DataFrame, replicas: Mapping[str, str] = _NOBODY) -> DataFrame:
    """The dead letters of the refused rows, for Spark's Kafka sink; all for partition 0.

    `replicas` gives names by source.
    """
    names = {located(source): name for source, name in replicas.items()} | dict(replicas)

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [_letter(row, names).to_record() for row in batch.to_pylist()]
            headers = [[{"key": k, "value": v} for k, v in headers] for _, _, headers in rows]
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            yield pa.RecordBatch.from_pydict(
                {
                    "key": pa.array([key for key, _, _ in rows], pa.binary()),
                    "value": pa.array([value for _, value, _ in rows], pa.binary()),
                    "headers": pa.array(headers, kind),
                    "partition": pa.array([0] * len(rows), pa.int32()),
                }
            )

    return refused_of(records).select(*_FIELDS).mapInArrow(written, _LETTER)


def _letter(row: Mapping[str, Any], replicas: Mapping[str, str]) -> DeadLetter:
    source = row["source"] or ""
    return DeadLetter(
        replica=replicas.get(source, source),
        topic=source,
        partition=row["partition"] or 0,
        offset=-1 if row["offset"] is None else row["offset"],
        reason=row["reason"],
        message=row["message"],
        key=row["key"],
        value=row["value"],
    )


def write_dead_letters(
    records: DataFrame, sink: WrittenTopic, replicas: Mapping[str, str] = _NOBODY
) -> None:
    """Writes the refused ones of rows that `read_elements` gave.

    Raises:
        TransportError: Kafka cannot be reached, or refuses.
    """
    topic_width(sink)
    with spark_errors(f"writing {sink.name}"):
        letters_of(records, replicas).write.format("kafka").options(**_options(sink)).save()


def stream_dead_letters(
    records: DataFrame,
    sink: WrittenTopic,
    replicas: Mapping[str, str] = _NOBODY,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Starts a query that goes on writing them; see `stream_elements`."""
    topic_width(sink)
    with spark_errors(f"writing {sink.name}"):
        writer = letters_of(records, replicas).writeStream.format("kafka")
        writer = writer.options(**_options(sink)).option("checkpointLocation", located(checkpoint))
        return (writer if trigger is None else writer.trigger(**trigger)).start()


def _options(sink: WrittenTopic) -> dict[str, str]:
    return {"topic": sink.name, **kafka_options(sink.kafka), **sink.options}
