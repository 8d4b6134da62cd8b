"""What was read from Kafka, as data: records and topics.

A history is made of these, whether a real broker, a simulated one or a test wrote them. Offsets
may have holes: markers and aborted records take places too.
"""

from dataclasses import dataclass

__all__ = ("CommittedRecord", "CommittedTopic")


@dataclass(frozen=True, slots=True)
class CommittedRecord:
    """One committed record, as a read_committed consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch."""
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def place(self) -> str:
        """topic-partition@offset."""
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class CommittedTopic:
    """A topic's committed records; each partition's in the order of their offsets."""

    name: str
    records: tuple[CommittedRecord, ...]
    partitions: int = 1
    beginning_lost: bool = False
    """Some partition no longer begins at offset 0."""

    def of(self, partition: int) -> list[CommittedRecord]:
        return [record for record in self.records if record.partition == partition]
