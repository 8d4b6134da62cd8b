"""The normaliser: one canonical form for all streams that are the same at every instant.

Theory
    Two plans of a query may be only *snapshot* equivalent: at every instant the same payloads are
    valid, but cut into other intervals. Merged as they are they contradict each other: ⟨b, [1, 15)⟩
    of one and ⟨b, [7, 15)⟩ of the other are two events. So each input is brought to a canonical
    form first. Let f(t) be the number of a payload's events that are valid at t; the canonical
    events are the maximal intervals of its layers {t : f(t) >= k} (`core.layers`). They depend on f
    alone, so snapshot-equivalent inputs become equivalent:

    >>> whole, pieces = Normaliser(), Normaliser()
    >>> whole.process(Insert("b", 1, 15))
    [Insert(payload='b', vs=1, ve=15)]
    >>> pieces.process(Insert("b", 7, 15))
    [Insert(payload='b', vs=7, ve=15)]
    >>> for element in pieces.process(Insert("b", 1, 7)): print(element)
    Adjust(payload='b', vs=7, vold=15, ve=7)
    Insert(payload='b', vs=1, ve=15)

    Every element adds 1 to f, or takes 1 away, on one interval [x, y): an insert on [vs, ve), an
    adjust between vold and ve, a removal on [vs, vold). The change is always legal behind the
    stream's own stable(c). For what arrives after it must have vs >= c, or vold >= c and ve >= c,
    hence x >= c. At x and y, where alone canonical events come and go, inserts and removals are
    legal; the ends of the others move within [x, …). And ve = c, half frozen still, may be
    extended:

    >>> pieces.process(Stable(15))
    [Stable(vc=15)]
    >>> pieces.process(Insert("b", 15, 20))
    [Adjust(payload='b', vs=1, vold=15, ve=20)]

    No more canonical events start at t than events of the input do. So where (payload, vs) is a
    key of the input (case R3), it is one of the canonical form, in every prefix.

What cannot be applied
    An insert or adjust below the input's own stable, and an adjust of an event that the input
    doesn't hold, are left out and kept in `refused`, for which `blame` has a merge blame its input.
    Whatever the input sends, the output is a legal stream, and the canonical form of what the
    input legally sent. A stable that does not rise is handed on, for the merge to judge.

Invariants
    Y1  Of the input's events those with ve >= c are held, and no others; a payload that has none
        holds no memory.
    Y2  The canonical events with end >= c are held, and no others, each once by end and once by
        start. Their number is at most that of the input's events that are held.
    Y3  From c on, held and canonical events give the same f.
    Y4  Every payload waits (`core.expiry`) under a time that is no later than its first end.
    The state and the output are a function of the input's prefix, and of nothing else.

Cost
    With n events of the payload alive, an element takes O(log n) steps and those of
    `core.layers`. If events of one payload never overlap, that is O(1). A stable costs what it
    makes final.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeAlias

from lmerge_service.core.base import LMerge
from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.expiry import Expiry
from lmerge_service.core.layers import Interval, Layers, discard
from lmerge_service.core.snapshots import (
    Items,
    NormaliserHead,
    hashable,
    normaliser_headed,
    opened,
    parted,
    portable,
    sealed,
    unsealed,
)
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError

__all__ = ("Normaliser",)

_Saved: TypeAlias = list[tuple[Any, list[Interval], list[Interval]]]
"""Payload, events held, canonical events; each as (end, start), sorted."""


class Normaliser:
    """Turns one input, or one partition of one, into its canonical form; see the module's text."""

    __slots__ = ("_expiry", "_lines", "_live", "refused", "stable", "touched")

    def __init__(self) -> None:
        self.stable = START
        self.refused: list[tuple[BreachKind, Element]] = []
        """What could not be applied, and why, until `blame` has been called."""
        self.touched = 0
        """Boundaries and payloads looked at, for tests of cost."""
        self._lines: dict[Hashable, _Line] = {}
        self._live = 0
        self._expiry: Expiry[Hashable] = Expiry()

    def __len__(self) -> int:
        """The number of the input's events that are not fully frozen."""
        return self._live

    def process(self, element: Element) -> list[Element]:
        """What the element changes in the canonical form, in as few elements as possible.

        Complexity: see Cost.
        """
        kind = type(element)
        if kind is Insert:
            return self._insert(element)  # type: ignore[arg-type]
        if kind is Adjust:
            return self._adjust(element)  # type: ignore[arg-type]
        assert type(element) is Stable, element
        if element.vc > self.stable:
            self.stable = element.vc
            self._forget()
        return [element]

    def process_batch(self, elements: Iterable[Element]) -> list[Element]:
        """The same for many elements, in order."""
        process = self.process
        return [change for element in elements for change in process(element)]

    def blame(self, merge: LMerge, name: str) -> None:
        """Has `merge` blame its attached input for what was refused, and forgets that."""
        for kind, element in self.refused:
            merge.blame(name, kind, element)
        self.refused.clear()

    def _insert(self, element: Insert[Any]) -> list[Element]:
        payload, vs, ve = element.payload, element.vs, element.ve
        if vs < self.stable:
            self.refused.append((BreachKind.BROKE_OWN_STABLE, element))
            return []
        line = self._lines.get(payload)
        if line is None:
            line = self._lines[payload] = _Line()
        self._hold(payload, line, vs, ve)
        emitted = line.raised(payload, vs, ve)
        self.touched += line.take_steps()
        return emitted

    def _adjust(self, element: Adjust[Any]) -> list[Element]:
        payload, vs, vold, ve = element.payload, element.vs, element.vold, element.ve
        line = self._lines.get(payload)
        if wrong := self._violation(line, vs, vold, ve):
            self.refused.append((wrong, element))
            return []
        assert line is not None
        if ve == vold:
            return []
        alone = line.held == line.by_end == [(vold, vs)]
        discard(line.held, (vold, vs))
        self._live -= 1
        if ve > vs:
            self._hold(payload, line, vs, ve)
        elif not line.held:
            del self._lines[payload]
            self._expiry.cancel(payload)
        if alone:  # as most events are: the canonical one is the same
            line.by_end[:] = line.held
            line.by_start[:] = [(vs, ve)] if ve > vs else []
            return [element]
        changed, x, y = (line.raised, vold, ve) if ve > vold else (line.lowered, ve, vold)
        emitted = changed(payload, x, y)
        self.touched += line.take_steps()
        return emitted

    def _violation(self, line: "_Line | None", vs: int, vold: int, ve: int) -> BreachKind | None:
        if min(vold, ve) < self.stable:
            return BreachKind.BROKE_OWN_STABLE
        if line is None:
            return BreachKind.UNKNOWN_EVENT
        if _has(line.held, (vold, vs)):
            return None
        held = any(start == vs for _, start in line.held)
        return BreachKind.WRONG_VOLD if held else BreachKind.UNKNOWN_EVENT

    def _hold(self, payload: Hashable, line: "_Line", vs: int, ve: int) -> None:
        insort(line.held, (ve, vs))
        self._live += 1
        self._expiry.schedule(payload, ve)

    # --- state --------------------------------------------------------------------------------

    def parts(self, payloads: int = 2_000) -> Iterator[bytes]:
        """The whole state, but for what was refused and not handed over, in parts: first one that
        describes it, then its events, those of at most so many payloads in each. `restore_parts`
        makes a normaliser of them that goes on the same. It must stay as it is meanwhile.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        head = normaliser_headed(items=len(self._lines), stable=self.stable)
        return parted(head, self._lines.items(), payloads, _packed)

    @classmethod
    def restore_parts(cls, parts: Iterable[bytes]) -> "Normaliser":
        """The normaliser of which these are the `parts`; looks at one at a time.

        Raises:
            StateError: they are damaged, of another version, or not all, in order.
        """
        left = iter(parts)
        first = next(left, b"")
        head = opened(first, NormaliserHead)
        items, restored = Items(first, head.items, _Saved), cls()
        restored.stable = head.stable
        for part in left:
            for payload, held, by_end in items.take(part):
                restored._load(payload, held, by_end)
        items.finish()
        return restored

    def _load(self, payload: Any, held: list[Interval], by_end: list[Interval]) -> None:
        line = _Line()
        line.held, line.by_end = held, by_end
        line.by_start = sorted((start, end) for end, start in by_end)
        try:
            self._lines[hashable(payload)] = line
            self._expiry.schedule(hashable(payload), line.held[0][0])
        except (LookupError, TypeError) as error:
            raise StateError(f"the snapshot is damaged: {error!r}") from error
        self._live += len(held)

    def snapshot(self) -> bytes:
        """All `parts` in one, behind a digest.

        Raises:
            StateError: a payload is of a kind that would not come back as it was.
        """
        return sealed(self.parts())

    @classmethod
    def restore(cls, saved: bytes) -> "Normaliser":
        """The normaliser of which `saved` is a snapshot.

        >>> pieces = Normaliser()
        >>> pieces.process(Insert("b", 1, 7))
        [Insert(payload='b', vs=1, ve=7)]
        >>> Normaliser.restore(pieces.snapshot()).process(Insert("b", 7, 9))
        [Adjust(payload='b', vs=1, vold=7, ve=9)]

        Raises:
            StateError: the bytes are damaged, or of another version.
        """
        return cls.restore_parts(unsealed(saved))

    # --- forgetting ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """Lets go of what the stable has made final."""
        c = self.stable
        if c == INFINITY:
            self._lines.clear()
            self._expiry.clear()
            self._live = 0
            return
        for payload in self._expiry.before(c):
            line = self._lines[payload]
            final = line.let_go(c)
            self._live -= final
            self.touched += 1 + final
            if line.held:
                self._expiry.schedule(payload, line.held[0][0])
            else:
                del self._lines[payload]

    def check(self) -> None:
        """Asserts every invariant, in words."""
        self._expiry.check()
        assert len(self._expiry) <= len(self._lines), "Y4: one waits that has no events"
        assert self._live == sum(len(line.held) for line in self._lines.values()), "Y1: the count"
        for payload, line in self._lines.items():
            assert line.held, f"Y1: {payload!r} has no events"
            assert line.held[0][0] >= self.stable, f"Y1: {payload!r} holds what is final"
            due = self._expiry.due(payload)
            assert due <= line.held[0][0], f"Y4: {payload!r} is forgotten too late"
            line.check_from(self.stable)


class _Line(Layers):
    """What is not final of one payload: the input's events, and the canonical ones."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Interval] = []
        """(end, start) of the input's events, sorted, as often as each is there."""

    def let_go(self, c: int) -> int:
        """Drops what ended before c; returns how many events of the input that were."""
        final = bisect_left(self.held, (c, START))
        del self.held[:final]
        self.forget(c)
        return final

    def check_from(self, c: int) -> None:
        """Asserts Y1 to Y3 of one payload, c being the output's stable point."""
        self.check()
        assert self.held == sorted(self.held), "Y1: held is sorted"
        assert len(self.by_end) <= len(self.held), "Y2: more canonical events than events"
        assert all(end >= c for end, _ in self.by_end), "Y2: holds what is final"
        assert _steps_from(self.held, c) == _steps_from(self.by_end, c), "Y3: another f"


def _packed(lines: list[tuple[Hashable, _Line]]) -> _Saved:
    return [(portable(payload), line.held, line.by_end) for payload, line in lines]


def _steps_from(ends_and_starts: list[Interval], c: int) -> dict[int, int]:
    """By how much f changes at each time >= c."""
    steps: Counter[int] = Counter()
    for end, start in ends_and_starts:
        steps[max(start, c)] += 1
        steps[max(end, c)] -= 1
    return {t: change for t, change in steps.items() if change}


def _has(pairs: list[Interval], pair: Interval) -> bool:
    at = bisect_left(pairs, pair)
    return at < len(pairs) and pairs[at] == pair
