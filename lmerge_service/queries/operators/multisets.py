"""Coalesce, distinct and the set operators: functions of how often a payload is valid.

Meaning
    With f1(t), f2(t) the numbers of a payload's events that are valid at t in the inputs, the
    output is the canonical form of g = h(f1, f2): the maximal intervals of {t : g(t) >= k} for
    k = 1, 2, … It depends on g alone, hence on no cutting of the inputs and on no ties.

    | combine       | h                          |           | h                          |
    |---------------|----------------------------|-----------|----------------------------|
    | coalesce      | f1                         | distinct  | 1 if f1 > 0                |
    | except_all    | f1 - f2, at least 0        | except    | 1 if f1 > 0 and f2 = 0     |
    | intersect_all | the lesser of f1 and f2    | intersect | 1 if f1 > 0 and f2 > 0     |
    | union_max     | the greater of f1 and f2   |           |                            |
State
    Of a payload with one event: that, and which input has it. Of others: of each input the starts
    and ends of its events (`queries.multiplicity`), and the canonical events (`core.layers`), whose
    starts stay while they are open.
Stable
    m, the least of the inputs' stables.
Retention
    Input events with ve >= m, and no more canonical events than these have endpoints; a payload
    without input events holds nothing.  need(T) = T on each side, but an event that covers T may
    then start at another time below T.
Cost
    O(log n + boundaries of the payload between x and y) for what changes on [x, y), where y is
    where that of the output ends. Where h asks only whether there are any, boundaries beneath
    events that stay are passed over, a chain of events at a time. A batch sweeps what it changes of
    a payload once. A stable costs what it makes final.

An element changes its f by 1 on one interval, and g by 1 on some pieces of it, everywhere in the
same direction. For each h these are the pieces where the input leads, f >= the other's, or those
where it is behind; if h asks only whether there are any, then within those where it has no other
event, and the other counts as 0 or 1. All pieces of a batch are added up; the layers take the sum.

    >>> from lmerge_service.elements import Stable
    >>> rest = MultisetOps("except_all")
    >>> rest.process_batch([Insert("a", 1, 9), Insert("a", 3, 20)])
    [Insert(payload='a', vs=1, ve=20), Insert(payload='a', vs=3, ve=9)]
    >>> for element in rest.process(Insert("a", 5, 12), port=1): print(element)
    Adjust(payload='a', vs=1, vold=20, ve=9)
    Adjust(payload='a', vs=3, vold=9, ve=5)
    Insert(payload='a', vs=12, ve=20)
    >>> rest.process(Stable(10)), rest.process(Stable(10), port=1)
    ([], [Stable(vc=10)])
    >>> rest.process(Adjust("a", 5, 12, 11), port=1)
    [Adjust(payload='a', vs=12, vold=20, ve=12), Insert(payload='a', vs=11, ve=20)]
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.layers import Layers
from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, Adjust, Insert
from lmerge_service.errors import StateError
from lmerge_service.queries.multiplicity import Multiplicity, Pieces
from lmerge_service.queries.operators.protocol import Changes, Operator

__all__ = ("COMBINATIONS", "Combination", "MultisetOps")


class Combination(NamedTuple):
    """What an event more of one input does to g."""

    any: bool
    """Whether h asks only if there are any events of an input."""
    leads: tuple[bool, ...]
    """Per input: g changes where its f is at least the other's, or where it is less."""
    rises: tuple[bool, ...] = (True, True)
    """Per input: g rises when its f does, or falls."""


COMBINATIONS: Final = {
    "coalesce": Combination(any=False, leads=(True,)),
    "distinct": Combination(any=True, leads=(True,)),
    "union_max": Combination(any=False, leads=(True, True)),
    "except_all": Combination(any=False, leads=(True, False), rises=(True, False)),
    "except": Combination(any=True, leads=(True, False), rises=(True, False)),
    "intersect_all": Combination(any=False, leads=(False, False)),
    "intersect": Combination(any=True, leads=(False, False)),
}
"""The functions h, by name."""


class MultisetOps(Operator):
    """The canonical form of h = `combine` of one or two inputs, h being of `COMBINATIONS`.

    Raises:
        ValueError: there is no such h, or it has another number of inputs than `ports`.
    """

    __slots__ = ("_changing", "_expiry", "_lines", "_live", "_shown", "_way", "combine", "ports")

    def __init__(self, combine: str, ports: int | None = None) -> None:
        way = COMBINATIONS.get(combine)
        if way is None:
            raise ValueError(f"there is no {combine!r}, there are {', '.join(COMBINATIONS)}")
        if ports not in (None, len(way.leads)):
            raise ValueError(f"{combine} has {len(way.leads)} inputs, not {ports}")
        self.ports = len(way.leads)
        super().__init__()
        self.combine = combine
        self._way = way
        self._shown = [leads and rises for leads, rises in zip(way.leads, way.rises, strict=False)]
        """Per input: whether an event that is alone is one of the output."""
        self._lines: dict[Hashable, _Alone | _Line] = {}
        self._changing: dict[Hashable, _Line] = {}
        self._expiry: Expiry[Hashable] = Expiry()
        self._live = 0

    def __len__(self) -> int:
        """How many input events are held."""
        return self._live

    def check(self) -> None:
        """Asserts the invariants of the state."""
        super().check()
        self._expiry.check()
        assert not self._changing, "something is not settled"
        lines = [line for line in self._lines.values() if isinstance(line, _Line)]
        alone = len(self._lines) - len(lines)
        assert self._live == alone + sum(map(len, lines)), "the count is wrong"
        for payload, line in self._lines.items():
            due = line.due() if isinstance(line, _Line) else line[2]
            assert self.stable <= due, f"{payload!r} holds what is final"
            assert self._expiry.due(payload) <= due, f"{payload!r} is forgotten too late"
        for line in lines:
            line.check(self.stable)

    def _insert(self, element: Insert[Any], port: int, changes: Changes) -> None:
        payload, ve = element.payload, element.ve
        line = self._lines.get(payload)
        self._live += 1
        self._expiry.schedule(payload, ve)
        if line is None:
            self._lines[payload] = (port, element.vs, ve)
            if self._shown[port]:
                changes.append(element)
            return
        if not isinstance(line, _Line):
            line = self._joined(payload, line)
        pieces = self._pieces(line, port, element.vs, ve)  # before f rises
        line.counts[port].add(element.vs, ve)
        self._note(payload, line, pieces, self._way.rises[port])

    def _adjust(self, element: Adjust[Any], port: int, changes: Changes) -> None:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        line = self._lines.get(payload)
        if line == (port, vs, vold):
            if self._shown[port]:
                changes.append(element)
            if ve > vs:
                self._lines[payload] = (port, vs, ve)
                self._expiry.schedule(payload, ve)
            else:
                self._drop(payload, 1)
        elif not isinstance(line, _Line) or not self._move(payload, line, port, vs, vold, ve):
            self._refuse(port, BreachKind.UNKNOWN_EVENT, element)

    def _move(
        self, payload: Hashable, line: "_Line", port: int, vs: int, vold: int, ve: int
    ) -> bool:
        """Moves the end of an event; False if it is not there."""
        rises = self._way.rises[port]
        if ve > vold:
            pieces = self._pieces(line, port, vold, ve)  # before f rises
            if not line.counts[port].move(vs, vold, ve):
                return False
            self._note(payload, line, pieces, rises)
        elif not line.counts[port].move(vs, vold, ve):
            return False
        elif ve < vold:
            self._note(payload, line, self._pieces(line, port, ve, vold), not rises)
            self._live -= ve == vs
            self._expiry.schedule(payload, max(ve, vs + 1))
        return True

    def _joined(self, payload: Hashable, alone: "_Alone") -> "_Line":
        """Of a payload with one event what another one needs."""
        port, vs, ve = alone
        line = self._lines[payload] = _Line(self.ports)
        line.counts[port].add(vs, ve)
        if self._shown[port]:
            line.layers.raised(payload, vs, ve)
        return line

    def _note(self, payload: Hashable, line: "_Line", pieces: Pieces, rises: bool) -> None:
        """Notes by how much g changes, until the batch is settled."""
        self._changing[payload] = line
        steps, up = line.steps, 1 if rises else -1
        for x, y in pieces:
            steps[x] = steps.get(x, 0) + up
            steps[y] = steps.get(y, 0) - up

    def _settle(self, changes: Changes) -> None:
        for payload, line in self._changing.items():
            if line.steps:
                layers = line.layers
                for steps in line.take_changes():
                    changes += layers.changed(payload, steps)  # type: ignore[arg-type]
                self.touched += layers.take_steps()
            if not line.counts[0].ends and line.empty():
                self._drop(payload, 0)
        self._changing.clear()

    def _pieces(self, line: "_Line", port: int, x: int, y: int) -> Pieces:
        """Where in [x, y) one event more or less of the input, which is not counted now, changes
        g."""
        mine, leads = line.counts[port], self._way.leads[port]
        pieces = [(x, y)]
        if self._way.any:
            if mine.ends:
                pieces, steps = mine.uncovered(x, y)
                self.touched += steps
            if self.ports == 2:
                other = line.counts[1 - port]
                found: Pieces = []
                for piece in pieces:
                    some, steps = other.uncovered(*piece) if leads else other.covered(*piece)
                    self.touched += steps
                    found += some
                return found
        elif self.ports == 2:
            pieces, steps = _where(mine, line.counts[1 - port], x, y, leads)
            self.touched += steps
        return pieces

    def _drop(self, payload: Hashable, events: int) -> None:
        del self._lines[payload]
        self._expiry.cancel(payload)
        self._live -= events

    def _advance(self, changes: Changes) -> int:
        point = min(self.stables)
        if point == INFINITY:
            self._lines.clear()
            self._expiry.clear()
            self._live = 0
            return point
        for payload in self._expiry.before(point):
            line = self._lines[payload]
            if isinstance(line, _Line):
                gone, due = line.forget(point), line.due()
            else:
                due = line[2]
                gone = int(due < point)
            self._live -= gone
            self.touched += 1 + gone
            if point <= due < INFINITY:
                self._expiry.schedule(payload, due)
            elif due < point or not len(line):
                del self._lines[payload]
        return point

    def _state(self) -> Any:
        lines = [
            [portable(payload), *(line.state() if isinstance(line, _Line) else [line])]
            for payload, line in self._lines.items()
        ]
        return [self.combine, lines]

    def _load(self, state: Any) -> None:
        combine, lines = state
        if combine != self.combine:
            raise StateError(f"the snapshot is of {combine}, this is {self.combine}")
        self._lines, self._expiry, self._live = {}, Expiry(), 0
        for saved, *parts in lines:
            payload = hashable(saved)
            if len(parts) == 1:
                port, vs, ve = parts[0]
                self._lines[payload] = (port, vs, ve)
                self._expiry.schedule(payload, ve)
                self._live += 1
            else:
                line = self._lines[payload] = _Line(self.ports)
                line.load(*parts)
                self._expiry.schedule(payload, line.due())
                self._live += len(line)


_Alone = tuple[int, int, int]
"""(port, vs, ve) of the one event of a payload."""


class _Line:
    """What is held of one payload that has, or had, several events."""

    __slots__ = ("counts", "layers", "steps")

    def __init__(self, ports: int) -> None:
        self.counts = tuple([Multiplicity() for _ in range(ports)])
        self.layers = Layers()
        self.steps: dict[int, int] = {}
        """By how much more, or less, g rises at t than the layers do yet."""

    def __len__(self) -> int:
        return sum([len(count) for count in self.counts])

    def empty(self) -> bool:
        """Whether no events are held."""
        return not any(count.ends for count in self.counts)

    def take_changes(self) -> list[list[tuple[int, int]]]:
        """The steps of each interval in which g changes, apart from those of the others."""
        steps = sorted(self.steps.items())
        self.steps.clear()
        if len(steps) == 2 and steps[0][1]:  # as most are
            return [steps]
        found: list[list[tuple[int, int]]] = []
        change = 0
        for t, by in steps:
            if by:
                if not change:
                    found.append([])
                found[-1].append((t, by))
                change += by
        return found

    def due(self) -> int:
        """The first end of an event."""
        return min([count.due() for count in self.counts])

    def forget(self, point: int) -> int:
        """Drops what ended before `point`; returns how many input events that were."""
        self.layers.forget(point)
        return sum([count.forget(point) for count in self.counts])

    def state(self) -> list[Any]:
        return [[[count.starts, count.ends] for count in self.counts], self.layers.by_end]

    def load(self, counts: Any, by_end: Any) -> None:
        for count, (starts, ends) in zip(self.counts, counts, strict=True):
            count.starts, count.ends = starts, ends
        self.layers.by_end = [(end, start) for end, start in by_end]
        self.layers.by_start = sorted((start, end) for end, start in by_end)

    def check(self, point: int) -> None:
        """Asserts the invariants of its fields."""
        assert len(self), "a line has no events"
        assert not self.steps, "a change is not settled"
        self.layers.check()
        for count in self.counts:
            count.check()
        endpoints = {t for count in self.counts for t in (*count.starts, *count.ends)}
        open_ends = {end for end, _ in self.layers.by_end if end >= point}
        assert open_ends <= endpoints, "the output changes where no event does"
        assert len(self.layers) <= 2 * len(self), "more canonical events than endpoints"


def _where(
    mine: Multiplicity, other: Multiplicity, x: int, y: int, leads: bool
) -> tuple[Pieces, int]:
    """Where in [x, y) there are at least as many of `mine` as of `other`, or where not, and the
    steps that took. Complexity: O(boundaries between, sorted)."""
    ahead = mine.valid(x) - other.valid(x)
    steps = [
        (t, by)
        for times, by in ((mine.starts, 1), (mine.ends, -1), (other.starts, -1), (other.ends, 1))
        for t in times[bisect_right(times, x) : bisect_left(times, y)]
    ]
    steps.sort()
    pieces: Pieces = []
    begin = x if (ahead >= 0) == leads else None
    for at, (t, by) in enumerate(steps, 1):
        ahead += by
        if at < len(steps) and steps[at][0] == t:
            continue
        if (ahead >= 0) != leads:
            if begin is not None:
                pieces.append((begin, t))
            begin = None
        elif begin is None:
            begin = t
    if begin is not None:
        pieces.append((begin, y))
    return pieces, 1 + len(steps)
