"""Presentations of replicas that were not there from the start: restarts and late joiners.

Theory
    A replica that lost its state sends everything again; one that joins at t is correct for
    every event whose final end is at least t, and of older ones has some or none (paper
    V-B). Here B ends before 10, so a replica that joins at 10 may leave it out:

    >>> stream = [Insert("A", 6, 20), Insert("B", 6, 9), Stable(7), Adjust("A", 6, 20, 15)]
    >>> joining_from(stream, 10)
    [Insert(payload='A', vs=6, ve=20), Stable(vc=7), Adjust(payload='A', vs=6, vold=20, ve=15)]

Invariants
    J1  Of a legal stream `joining_from` makes a legal one that finally holds the same events with
        ve >= t; of the others it may lack some, or hold an earlier state of them with ve < t.
    J2  Stables are kept, though they may promise nothing about what lies before t: the merge
        remembers a joining input's stables and does not follow them.

Cost
    Linear in the number of elements.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, islice
from random import Random
from typing import Any

from lmerge_service.elements import Adjust, Element, Insert, Stable

__all__ = ("joining_from", "restart")

_Change = Insert[Any] | Adjust[Any]


def restart(elements: Sequence[Element], at: int) -> Iterator[Element]:
    """The first `at` elements, then all of them again: the second incarnation starts there.

    >>> list(restart([Stable(1), Stable(2)], 1))
    [Stable(vc=1), Stable(vc=1), Stable(vc=2)]
    """
    return chain(islice(elements, at), elements)


def joining_from(
    elements: Sequence[Element], t: int, *, partial: float = 0.0, seed: int | str = 0
) -> list[Element]:
    """The presentation without what it need not have when it joins at t.

    Of this fraction of the (payload, vs) that may go, the first elements stay, as many as do not
    claim an end of t or later.
    """
    rng = Random(f"{seed}")
    histories: dict[tuple[Hashable, int], list[tuple[int, _Change]]] = {}
    for position, element in enumerate(elements):
        if not isinstance(element, Stable):
            histories.setdefault((element.payload, element.vs), []).append((position, element))
    unknown: set[int] = set()
    for history in histories.values():
        lengths = _lengths_below(t, [element for _, element in history])
        if lengths[-1] == len(history):
            known = rng.choice(lengths) if rng.random() < partial else 0
            unknown.update(position for position, _ in history[known:])
    return [element for position, element in enumerate(elements) if position not in unknown]


def _lengths_below(t: int, elements: list[_Change]) -> list[int]:
    """The lengths of those prefixes after which every end held lies below t.

    `elements` are all that a stream sends for one (payload, vs).
    """
    lengths = [0]
    held: list[int] = []
    for length, element in enumerate(elements, 1):
        if isinstance(element, Adjust):
            held.remove(element.vold)
        if element.ve > element.vs:
            held.append(element.ve)
        if all(ve < t for ve in held):
            lengths.append(length)
    return lengths
