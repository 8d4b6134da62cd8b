"""Parallel Track, the negative control of migrations (ZRH04; Krämer's thesis, chapter 28).

Both plans run at once. Input is flagged: old, or new since the migration began. The new plan gets
new input only. Results of new input alone are the new plan's, and left out of the old one's; what
the new plan emits waits until the old one has let all old input go. With more than one join that
takes two windows, since there a composite is as old as its youngest part. (Our joins keep what
parts have in common, and have let it go after one; to wait for that would spare the silence.)

It is right for plans of joins, with a silence and a burst. Elsewhere it is wrong: an old result of
distinct may live beyond the moment at which the new plan begins to have the same one, and no flag
shows that (D9).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.dead import Dead
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.netting import net
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import PhysicalPlan

__all__ = ("ParallelTrack",)


class ParallelTrack:
    """Both plans at once; results of new input alone are the new plan's.

    Sources have a column `old` at the end, and results all flags behind `columns` columns.
    """

    def __init__(self, old: PhysicalPlan, new: PhysicalPlan, columns: int, waits: int) -> None:
        self.done: int | None = None
        self._columns, self._waits = columns, waits
        self._plan = new
        self._old: Network | Dead | None = old.begin()
        self._new: Network | Dead | None = None
        self._until = INFINITY
        self._buffer: list[Element] = []
        self._stable = START

    def __len__(self) -> int:
        return sum(len(each) for each in (self._old, self._new, self._buffer) if each is not None)

    def begin(self, now: int, past: Mapping[str, Sequence[Element]]) -> list[Element]:
        self._new, self._until = self._plan.begin(), now + self._waits
        for source, stream in past.items():
            self._new.process_batch(source, [each for each in stream[-1:] if type(each) is Stable])
        return []

    def process_batch(self, now: int, source: str, given: list[Element]) -> list[Element]:
        is_old = self._new is None
        flagged = [_with(element, (is_old,)) for element in given]
        emitted: list[Element] = []
        if self._old is not None:
            results = self._old.process_batch(source, flagged)
            emitted += (e for e in map(self._bare, results) if e is not None)
        if self._new is not None:
            results = self._new.process_batch(source, flagged)
            self._buffer += [_cut(e, self._columns) for e in results]
        if now >= self._until:
            self._old, self.done = None, self.done or now
            emitted, self._buffer = [*emitted, *self._buffer], []
        return net(self._in_step(emitted))

    def _bare(self, element: Element) -> Element | None:
        """A result of the old plan that has old input, without flags."""
        if type(element) is Stable:
            return element
        if self._new is not None and not any(element.payload[self._columns :]):  # type: ignore[union-attr]
            return None
        return _cut(element, self._columns)

    def _in_step(self, emitted: Iterable[Element]) -> Iterator[Element]:
        """With a stable that what waits does not break."""
        least = min((e.vs for e in self._buffer if type(e) is not Stable), default=INFINITY)  # type: ignore[union-attr]
        for element in emitted:
            if type(element) is not Stable:
                yield element
        box = self._new if self._old is None else self._old
        assert box is not None, "a plan runs"
        if (point := min(box.stable, least)) > self._stable:
            self._stable = point
            yield Stable(point)

    def kill(self, now: int, which: str) -> None:
        if (network := getattr(self, f"_{which}")) is not None:
            setattr(self, f"_{which}", Dead(network.stable))


def _with(element: Element, flags: tuple[bool, ...]) -> Element:
    if type(element) is not Insert:
        assert type(element) is Stable, "input is not revised"
        return element
    return Insert((*element.payload, *flags), element.vs, element.ve)


def _cut(element: Element, columns: int) -> Element:
    match element:
        case Insert(payload, vs, ve):
            return Insert(payload[:columns], vs, ve)
        case Adjust(payload, vs, vold, ve):
            return Adjust(payload[:columns], vs, vold, ve)
    return element
