"""Where something was published: some records of a partition, from the first to the last."""

from dataclasses import dataclass

from lmerge_service.kafka.source import TopicPartition

__all__ = ("RecordRange",)


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records of a partition, by their offsets.

    >>> one = RecordRange(TopicPartition("b", 0), 3, 3)
    >>> print(one, "-", one.upto(RecordRange(TopicPartition("b", 0), 7, 9)))
    offset 3 of b-0 - offsets 3 to 9 of b-0
    """

    tp: TopicPartition
    first: int
    last: int

    def upto(self, other: "RecordRange") -> str:
        """Both, and what is between them where they are of one partition, in words."""
        if self.tp != other.tp:
            return f"from {self} to {other}"
        first, last = min(self.first, other.first), max(self.last, other.last)
        return str(RecordRange(self.tp, first, last))

    def __str__(self) -> str:
        several = f"offsets {self.first} to {self.last}"
        offsets = f"offset {self.first}" if self.first == self.last else several
        return f"{offsets} of {self.tp.topic}-{self.tp.partition}"
