"""Netting: of many changes the fewest elements that express their sum.

Theory
    An operator that handles a batch may add an event and take it back, move an end twice, or
    remove an event and add it again with another end. Whoever reads its output wants the net
    change, and LMerge's case R3 demands it: δA ⋈ δB breaks the key (payload, vs) in some prefix if
    each change is emitted as it arises, and in none if batches are netted.

    >>> for element in net([Insert("a", 1, 9), Adjust("a", 1, 9, 5), Adjust("b", 2, 7, 2),
    ...                     Insert("b", 2, 8), Stable(2), Stable(3), Insert("c", 4, 5),
    ...                     Adjust("c", 4, 5, 4)]): print(element)
    Adjust(payload='b', vs=2, vold=7, ve=8)
    Insert(payload='a', vs=1, ve=5)
    Stable(vc=3)

Invariants
    T1  The net change turns the same TDB into the same TDB as the changes do.
    T2  Per (payload, vs) ends that go and come pair in sorted order, so that an event has at most
        one adjust; none is empty, and none removes what another insert brings back.
    T3  Removals and adjusts that shorten come first, then adjusts that lengthen, then inserts,
        each in order of vs; then the greatest stable. An event that takes another's place never
        stands beside it.
    T4  Elements without an adjust among them are their own net change, in the order they have.

Cost
    O(1) per element without adjusts, O(log n) with.
"""

from collections.abc import Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Any, TypeAlias

from lmerge_service.elements import Adjust, Element, Insert, Stable

__all__ = ("net", "net_change")

_VS = attrgetter("vs")

Data: TypeAlias = Insert[Any] | Adjust[Any]


def net(elements: Iterable[Element]) -> list[Element]:
    """The net change of `elements`, with their greatest stable last."""
    data: list[Data] = []
    greatest: Stable | None = None
    for element in elements:
        if type(element) is not Stable:
            data.append(element)  # type: ignore[arg-type]
        elif greatest is None or element.vc > greatest.vc:
            greatest = element
    changes: list[Element] = [*net_change(data)]
    if greatest is not None:
        changes.append(greatest)
    return changes


def net_change(data: list[Data]) -> list[Data]:
    """The net change of inserts and adjusts; the list itself where it is its own (T4)."""
    starts: dict[int, list[Data]] = {e.vs: [] for e in data if type(e) is Adjust}
    if not starts:
        return data
    inserts: list[Data] = []  # of a vs that no adjust has: they stay as they are
    for element in data:
        starts.get(element.vs, inserts).append(element)
    shorter: list[Data] = []
    longer: list[Data] = []
    for together in starts.values():
        for change in together if len(together) == 1 else _summed(together):
            if type(change) is Insert:
                inserts.append(change)
            elif change.ve < change.vold:  # type: ignore[union-attr]
                shorter.append(change)
            elif change.ve > change.vold:  # type: ignore[union-attr]
                longer.append(change)
    for phase in (shorter, longer, inserts):
        phase.sort(key=_VS)
    return [*shorter, *longer, *inserts]


def _summed(together: list[Data]) -> Iterator[Data]:
    """The net change of elements of one vs, payload by payload."""
    payloads: dict[Hashable, list[Data]] = {}
    for element in together:
        payloads.setdefault(element.payload, []).append(element)
    for payload, changes in payloads.items():
        if len(changes) == 1:
            yield changes[0]
            continue
        vs = changes[0].vs
        come = [element.ve for element in changes if element.ve > vs]
        go = [element.vold for element in changes if type(element) is Adjust]
        for new, old in _pairs(come, go):
            if old is None:
                yield Insert(payload, vs, new)
            else:
                yield Adjust(payload, vs, old, vs if new is None else new)


def _pairs(come: list[int], go: list[int]) -> Iterator[tuple[Any, Any]]:
    """(new end, old end), None where there is no partner, without those that do both."""
    if len(come) == 1 and len(go) == 1:  # as nearly all are
        if come[0] != go[0]:
            yield come[0], go[0]
        return
    for end in list(go):
        if end in come:
            come.remove(end)
            go.remove(end)
    come.sort()
    go.sort()
    both = min(len(come), len(go))
    yield from zip(come[:both], go[:both], strict=True)
    for end in go[both:]:
        yield None, end
    for end in come[both:]:
        yield end, None
