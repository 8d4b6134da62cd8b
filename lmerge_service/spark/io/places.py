"""Where elements are read from and written to: topics, files of JSON lines, Parquet.

Each is a value, so that a pipeline can be written down before there is a Spark to run it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lmerge_service.config.topology import Kafka

__all__ = ("JsonFiles", "ParquetFiles", "ReadTopics", "Sink", "Source", "WrittenTopic", "located")


@dataclass(frozen=True, slots=True)
class ReadTopics:
    """Topics to read, with one scan for all."""

    kafka: Kafka | str = field(repr=False)
    """A topology's section, or `host:port`."""
    names: str | Sequence[str]
    start: str = "earliest"
    """Or `latest`, or Spark's JSON of offsets by topic and partition; a streaming query that has a
    checkpoint goes on from there instead."""
    end: str = "latest"
    """Likewise; of no use in streaming."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's own for the source, such as maxOffsetsPerTrigger, minPartitions, failOnDataLoss."""

    @property
    def subscribed(self) -> str:
        """The names as Spark takes them."""
        return self.names if isinstance(self.names, str) else ",".join(self.names)


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """A topic to write, keyed and partitioned as the service does."""

    kafka: Kafka | str = field(repr=False)
    name: str
    key: Sequence[str] = ()
    """The payload's fields that make the record key; by default the whole payload."""
    partitions: int = 1
    """With how many it is made if it is missing; one that is there is taken as it is."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's own for the sink, such as kafka.compression.type."""


@dataclass(frozen=True, slots=True)
class JsonFiles:
    """A file of JSON lines, or a folder of them: one stream, in the order of the files' names.

    Files must appear whole (as `lmerge`'s and Spark's do); NAME.partial is not looked at.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's own for files, such as maxFilesPerTrigger, pathGlobFilter."""


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Parquet that was written here: canonical payloads, and by which rule they are."""

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Spark's own for files, such as maxFilesPerTrigger; to write, compression."""


def located(path: str) -> str:
    """A path as Spark takes it: a local one from the root on, since the JVM's folder is its own."""
    return path if ":/" in path else str(Path(path).absolute())


Source: TypeAlias = ReadTopics | JsonFiles | ParquetFiles
Sink: TypeAlias = WrittenTopic | JsonFiles | ParquetFiles
