"""Which facts are late, and up to when all that counts is known: alike in every plan.

Theory
    A fact is late when its time is more than `lateness` below the highest time before it in its
    partition. That is a property of the topic: offsets are the order, and neither the size of
    batches nor the way they are cut matters.

    The *watermark* is the least over the partitions of the highest time, less the lateness: every
    fact that is yet to come and counts has time >= watermark. A partition without facts holds it
    back; one that has ended does not.

    Whoever reads a partition from its beginning, in one process, decides by the highest time so
    far; Spark's tasks, each of which reads a piece of it, by `spark.queries.row_lateness`.
"""

from lmerge_service.elements import INFINITY, START

__all__ = ("TimeReached",)


class TimeReached:
    """How far one partition is, for who reads all of it, in order.

    >>> reached = TimeReached(10)
    >>> [reached.counts(time) for time in (20, 31, 15, 22)], reached.watermark
    ([True, True, False, True], 21)
    """

    __slots__ = ("_lateness", "highest")

    def __init__(self, lateness: int, highest: int = START) -> None:
        self._lateness = lateness
        self.highest = highest
        """The highest time so far; INFINITY once the partition has ended."""

    @property
    def watermark(self) -> int:
        """No time that counts will be below it; START as long as there was none."""
        highest = self.highest
        return highest if highest in (START, INFINITY) else max(START, highest - self._lateness)

    def counts(self, time: int) -> bool:
        """Whether the next row is in time; it may bring the partition further."""
        if time > self.highest:
            self.highest = time
            return True
        return time >= self.watermark

    def end(self) -> None:
        """Nothing comes that counts."""
        self.highest = INFINITY
