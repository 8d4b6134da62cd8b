"""What a replica's topic holds that was not read: how much, and what keeps it from being read.

Theory
    A reader gets committed records only, up to the first open transaction. Records behind that
    exist all the same, and may be all that the replica has published. So *unread* counts all
    records up to the high watermark, and *readable* only the committed ones.

        position 1     offset 1 insert   2 insert (open)   3 insert   4 stable
                       unread: 4 records, readable: True, open at offset 2: 3 records
        position 2     unread: 3 records, readable: False, open at offset 2: 3 records

    How long a transaction is open is counted from when it was first seen: a reader cannot find out
    when it began.
"""

from dataclasses import dataclass

__all__ = ("OpenTransaction", "Unread")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of which, and behind which, nothing can be read in a partition."""

    topic: str
    partition: int
    offset: int
    """Of its first record."""
    records: int
    """Records and markers from there on."""
    since: float
    """When it was first seen, in the clock's seconds."""

    def age(self, now: float) -> float:
        """Seconds since it was first seen, at the time `now` of the same clock."""
        return max(0.0, now - self.since)

    def words(self, now: float) -> str:
        """For people.

        >>> OpenTransaction("in.b", 0, 10, 30, since=100.0).words(112.0)
        'a transaction is open at offset 10 of in.b-0 for 12 s, and 30 records cannot be read'
        """
        return (
            f"a transaction is open at offset {self.offset} of {self.topic}-{self.partition} for "
            f"{self.age(now):.0f} s, and {self.records:,} records cannot be read"
        )


@dataclass(frozen=True, slots=True)
class Unread:
    """Of the partitions that a task reads of one replica, by the ends that were asked for last."""

    records: int
    """Records and markers up to the high watermarks."""
    readable: bool
    """Some of them are before every open transaction of their partition."""
    open: tuple[OpenTransaction, ...]
    asked_at: float
    """When the ends were asked for, in the clock's seconds: what came later may be unread too."""
