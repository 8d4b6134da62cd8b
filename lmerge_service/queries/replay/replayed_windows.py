"""Windows over facts that keep no state but the facts: a physical plan of memory against work.

Meaning
    That of `operators.grids` with an aggregate, over events of length 1.
State
    An archive of the facts, packed in memory (`archive`), and nothing per window or group. A batch
    replays what its windows hold: their results without the batch, which were emitted, and with it;
    the difference is emitted. At `on_close` nothing was, so that each window is computed once, when
    it closes.
Stable
    As for grids: the least of c and the first window that ends behind c.
Retention
    Facts of windows with l + size > c, by whole buckets.  need(T) = T - size + 1.
Cost
    A batch computes each window that it touches twice, from all of its facts: so batches should be
    large. Bytes: about 20 a fact and what its columns take, whatever windows and groups there are.

    >>> from lmerge_service.elements import Stable
    >>> from lmerge_service.queries.aggregates import Count
    >>> from lmerge_service.queries.operators.grids import Grid, GridWindows
    >>> grid = Grid(10, 5)
    >>> windows = ReplayedWindows(grid, lambda: GridWindows(grid, Count(), emit="on_close"))
    >>> windows.process_batch([Insert(("a",), 6, 7), Insert(("b",), 7, 8)])
    [Insert(payload=(2,), vs=0, ve=10), Insert(payload=(2,), vs=5, ve=15)]
    >>> windows.process_batch([Insert(("c",), 3, 4)])
    [Adjust(payload=(2,), vs=0, vold=10, ve=0), Insert(payload=(1,), vs=-5, ve=5), \
Insert(payload=(3,), vs=0, ve=10)]
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.operators.grids import Grid
from lmerge_service.queries.operators.protocol import Changes, Operator
from lmerge_service.queries.operators.windowing import Emit
from lmerge_service.queries.replay.archive import Archived, BucketArchive, MemoryStore, events_of
from lmerge_service.queries.replay.difference import Events, difference

__all__ = ("ReplayedWindows",)

_BUCKET: Final = 4_096


class ReplayedWindows(Operator):
    """A grid of windows over facts. `begin` makes the operator that computes windows of the grid
    from whole input, and emits on close; `bucket` is how many facts are packed together."""

    __slots__ = (
        *("_archive", "_begin", "_bucket", "_entries", "_limit", "_next", "_store"),
        *("emit", "grid"),
    )

    def __init__(
        self,
        grid: Grid,
        begin: Callable[[], Operator],
        *,
        emit: Emit = "on_update",
        bucket: int = _BUCKET,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.emit = emit
        self._begin = begin
        self._bucket = bucket
        self._store = MemoryStore()
        self._archive = BucketArchive(self._store, bucket)
        self._entries: list[Archived] = []
        """Of the batch at hand."""
        self._next = 0
        """The number of the next fact."""
        self._limit = INFINITY if emit == "on_update" else START
        """Windows that end by it have been emitted."""

    def __len__(self) -> int:
        return len(self._archive)

    def emits_inserts_only(self, inputs: Iterable[bool]) -> bool:
        return self.emit == "on_close"

    def process_batch(self, elements: Iterable[Element], port: int = 0) -> list[Element]:
        """As for every operator; user code runs before anything has changed."""
        refused, changes = len(self.refused), Changes()
        self._entries, point, reached = [], self.stables[0], START
        for element in elements:
            if type(element) is Stable:
                point = max(point, element.vc)
            elif type(element) is Insert:
                reached = max(reached, element.vs)
                self._insert(element, port, changes)
            else:
                self._adjust(element, port, changes)  # type: ignore[arg-type]
        limit = self._limit_at(point, reached)
        try:
            changes = self._changes(limit)
        except Exception:
            del self.refused[refused:]
            raise
        self._archive.append(self._entries)
        self._next += len(self._entries)
        self._limit = limit
        emitted = self._netted(changes)
        if point > self.stables[0]:
            self.stables[0] = point
            stable = self._advance(changes)
            if stable > self.stable:
                self.stable = stable
                emitted.append(Stable(stable))
        return emitted

    def _limit_at(self, point: int, reached: int) -> int:
        """Windows that end by it are emitted: at a stable point, when a start has been reached."""
        if self.emit == "on_update":
            return INFINITY
        return max(self._limit, point, reached if self.emit == "on_watermark" else START)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        if element.ve > element.vs + 1:
            raise ConfigurationError(f"replayed windows are over facts, not over {element}")
        if element.vs < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
        else:
            self._enter(element.payload, element.vs, 1)

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        """A fact can only be taken back; that it is not there is seen when it is looked for."""
        if min(element.vold, element.ve) < self.stables[0]:
            self._refuse(port, BreachKind.BROKE_OWN_STABLE, element)
        elif element.ve > element.vs:
            raise ConfigurationError(f"replayed windows are over facts, not over {element}")
        elif not self._holds(element):
            self._refuse(port, BreachKind.UNKNOWN_EVENT, element)
        else:
            self._enter(element.payload, element.vs, -1)

    def _enter(self, payload: Any, vs: int, times: int) -> None:
        number = self._next + len(self._entries)
        self._entries.append(Archived(number, payload, vs, vs + 1, times))

    def _holds(self, element: Adjust[Any]) -> bool:
        vs = element.vs
        found = [*self._archive.scan(vs + 1, vs + 1), *self._entries]
        return events_of(found)[element.payload, vs, vs + 1] > 0

    # --- replay ---------------------------------------------------------------------------------

    def _changes(self, limit: int) -> Changes:
        """What the batch changes in windows that end by the limits."""
        spans = [(self.grid.first(e.vs), e.vs + self.grid.size) for e in self._entries]
        if limit > self._limit:
            spans.append(
                (self._limit - self.grid.size + 1 if self._limit > START else START, limit)
            )
        if not spans:
            return []
        since = max(min(first for first, _ in spans), self._since)
        before = min(max(end for _, end in spans), limit)
        entries = self._archive.scan(since + 1, before)
        old = events_of(entries)
        new = events_of([*entries, *self._entries])
        self.touched += len(entries) + len(self._entries)
        if self.emit == "on_close":  # what is emitted is not touched any more
            return difference({}, _between(self._results(new), self._limit, limit))
        was = Counter[tuple[Any, int, int]]() if self._limit == START else self._results(old)
        return difference(
            _between(was, START, self._limit), _between(self._results(new), START, limit)
        )

    @property
    def _since(self) -> int:
        """The first window that is not closed: what ends by its start is not replayed."""
        point = self.stables[0]
        return self.grid.first(point) if point > START else START

    def _results(self, events: Events) -> Counter[tuple[Any, int, int]]:
        """The windows of these facts."""
        if not events:
            return Counter()
        facts: list[Element] = [Insert(*e) for e, times in events.items() for _ in range(times)]
        emitted = self._begin().process_batch([*facts, Stable(INFINITY)])
        return Counter((e.payload, e.vs, e.ve) for e in emitted if type(e) is Insert)

    def _advance(self, changes: Changes) -> int:
        point = self.stables[0]
        if point == INFINITY:
            self._store = MemoryStore()
            self._archive = BucketArchive(self._store, self._bucket)
            return INFINITY
        first = self.grid.first(point)
        self._archive.forget(first + 1)
        return min(point, first)

    # --- state ----------------------------------------------------------------------------------

    def _state(self) -> Any:
        rows = [[e.sequence, portable(e.payload), *e[2:]] for e in self._archive.unwritten]
        return [self._limit, self._next, list(self._store.items()), rows]

    def _load(self, state: Any) -> None:
        self._limit, self._next, packed, rows = state
        self._store = MemoryStore(packed)
        self._archive = BucketArchive(self._store, self._bucket)
        self._archive.append(Archived(n, hashable(p), *rest) for n, p, *rest in rows)  # type: ignore[arg-type]


def _between(results: Counter[tuple[Any, int, int]], after: int, limit: int) -> Events:
    """Those that end behind a time, and by a limit."""
    return {event: times for event, times in results.items() if after < event[2] <= limit}
