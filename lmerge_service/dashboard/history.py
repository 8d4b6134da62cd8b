"""The last minutes of a merge: bounded in time, and a gap stays a gap.

Theory
    A sample is what was known at one moment: numbers by the name of their series, and who led. A
    sample of nothing (`blank`): nobody answered then. Between two samples that are further
    apart than `gap_seconds` nothing is known either.

Cost
    A sample holds what it was given; older ones than the span are dropped, so that memory is
    bounded by the span, the rate of asking and the number of series.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

__all__ = ("SPAN_SECONDS", "History", "Points", "Sample", "Span")

SPAN_SECONDS: Final = 600.0

Points: TypeAlias = list[tuple[float, float | None]]
"""Of a series: Unix time in seconds, and its value; None is a gap."""
Span: TypeAlias = tuple[float, float, str | None]
"""From, to, and who led meanwhile; None: nobody."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known at a time (Unix, in seconds)."""

    at: float
    values: Mapping[str, float] = field(default_factory=dict)
    leader: str | None = None
    blank: bool = False
    """Nobody has answered."""


class History:
    """Samples of one merge, the oldest first."""

    def __init__(self, span: float = SPAN_SECONDS, gap_seconds: float = 5.0) -> None:
        self._span, self.gap_seconds = span, gap_seconds
        self._samples: list[Sample] = []

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """The next sample; one of an earlier time than the last (a clock was set back) forgets
        those that would be later."""
        while self._samples and self._samples[-1].at >= sample.at:
            self._samples.pop()
        self._samples.append(sample)
        del self._samples[: self._from(sample.at - self._span)]

    def oldest(self) -> Sample | None:
        """The first one that is kept."""
        return self._samples[0] if self._samples else None

    def latest(self) -> Sample | None:
        """The last one."""
        return self._samples[-1] if self._samples else None

    def names(self, since: float) -> list[str]:
        """Series that have a value since then, in the order of their first one."""
        found: dict[str, None] = {}
        for sample in self._since(since):
            found.update(dict.fromkeys(sample.values))
        return list(found)

    def points(self, name: str, since: float, most: int) -> Points:
        """A series with about `most` points: of each bucket of time the last value. A bucket in
        which the value was not known is a gap.

        >>> kept = History()
        >>> for at in range(6):
        ...     kept.add(Sample(at, {"a": at * 10.0} if at != 3 else {}))
        >>> kept.points("a", 0.0, 100)
        [(0, 0.0), (1, 10.0), (2, 20.0), (3, None), (4, 40.0), (5, 50.0)]
        """
        found: Points = []
        for bucket in self._buckets(since, most):
            values = [sample.values.get(name) for sample in bucket]
            lost = len(found) > 0 and bucket[0].at - found[-1][0] > self._gap(bucket)
            if lost:
                found.append(((found[-1][0] + bucket[0].at) / 2, None))
            found.append((bucket[-1].at, None if None in values else values[-1]))
        return found

    def leaders(self, since: float) -> list[Span]:
        """Who led, as spans without overlap; where nothing is known, none."""
        found: list[Span] = []
        for sample in self._since(since):
            if sample.blank:
                continue
            if found and sample.at - found[-1][1] <= self.gap_seconds:
                start, end, leader = found[-1]
                found[-1] = (start, sample.at if leader == sample.leader else end, leader)
                if leader == sample.leader:
                    continue
                found[-1] = (start, sample.at, leader)
            found.append((sample.at, sample.at, sample.leader))
        return found

    def _since(self, since: float) -> Sequence[Sample]:
        return self._samples[self._from(since) :]

    def _from(self, since: float) -> int:
        return bisect_left(self._samples, since, key=lambda sample: sample.at)

    def _buckets(self, since: float, most: int) -> Iterable[list[Sample]]:
        samples = self._since(since)
        if not samples:
            return
        width = max((samples[-1].at - samples[0].at) / most, 1e-9)
        bucket: list[Sample] = []
        number = -1
        for sample in samples:
            if (at := int((sample.at - samples[0].at) / width)) != number and bucket:
                yield bucket
                bucket = []
            number = at
            bucket.append(sample)
        yield bucket

    def _gap(self, bucket: Sequence[Sample]) -> float:
        """The longest pause that is none, to the first sample of a bucket."""
        return self.gap_seconds + (bucket[-1].at - bucket[0].at)
