"""Every legal order of up to three elements on each of two inputs, in every interleaving."""

import itertools
from collections.abc import Iterator, Sequence

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, reconstitute
from tests.core.harness import Watched

A, B = "A", "B"

# For each logical stream, sets of at most three elements of which every legal order presents it.
PRESENTATIONS: dict[str, list[list[Element]]] = {
    "A[1,5)": [
        [Insert(A, 1, 5), Stable(3), Stable(9)],
        [Insert(A, 1, 7), Adjust(A, 1, 7, 5), Stable(6)],
        [Insert(A, 1, 3), Adjust(A, 1, 3, 5), Stable(2)],
        [Insert(A, 1, INFINITY), Adjust(A, 1, INFINITY, 5), Stable(5)],
        [Insert(A, 1, 5), Stable(1), Stable(5)],
        [Insert(A, 1, 5), Stable(INFINITY)],
        [Insert(A, 1, 5)],
    ],
    "A[1,5) B[3,4)": [
        [Insert(A, 1, 5), Insert(B, 3, 4), Stable(4)],
        [Insert(A, 1, 5), Insert(B, 3, 4), Stable(3)],
        [Insert(A, 1, 5), Insert(B, 3, 4), Stable(5)],
        [Insert(A, 1, 5), Insert(B, 3, 4), Stable(6)],
        [Insert(A, 1, 5), Insert(B, 3, 4), Stable(INFINITY)],
        [Insert(A, 1, 5), Insert(B, 3, 4)],
    ],
    "nothing": [
        [Insert(A, 2, 6), Adjust(A, 2, 6, 2), Stable(3)],
        [Insert(A, 2, 6), Adjust(A, 2, 6, 2), Stable(2)],
        [Insert(A, 2, 6), Adjust(A, 2, 6, 2)],
        [Stable(2), Stable(4), Stable(7)],
        [Stable(1), Stable(INFINITY)],
    ],
    "A[1,inf)": [
        [Insert(A, 1, 4), Adjust(A, 1, 4, INFINITY), Stable(4)],
        [Insert(A, 1, INFINITY), Stable(6), Stable(INFINITY)],
        [Insert(A, 1, INFINITY), Stable(2)],
        [Insert(A, 1, 9), Adjust(A, 1, 9, INFINITY), Stable(INFINITY)],
        [Insert(A, 1, INFINITY)],
    ],
}


def legal_orders(elements: Sequence[Element]) -> Iterator[tuple[Element, ...]]:
    """The orders that are legal streams; stables rise, since one that doesn't changes nothing."""
    for order in itertools.permutations(elements):
        if is_legal(order):
            yield order


def is_legal(order: Sequence[Element]) -> bool:
    tdb = TDB()
    for element in order:
        if tdb.violation(element):
            return False
        tdb.apply(element)
    return True


def interleavings(one: Sequence[Element], two: Sequence[Element]) -> Iterator[list[int]]:
    total = len(one) + len(two)
    for places in itertools.combinations(range(total), len(one)):
        yield [0 if place in places else 1 for place in range(total)]


@pytest.mark.parametrize("logical", PRESENTATIONS)
def test_every_order_and_interleaving_keeps_every_promise(logical: str) -> None:
    streams = [order for each in PRESENTATIONS[logical] for order in legal_orders(each)]
    assert len(streams) >= 4
    (meant,) = {frozenset(reconstitute(stream)) for stream in streams}
    for one, two in itertools.combinations_with_replacement(streams, 2):
        for places in interleavings(one, two):
            feeds = iter(one), iter(two)
            watched = Watched(["0", "1"])
            for place in places:
                watched.process(str(place), next(feeds[place]))
            held = {event for event in watched.output if event.vs < watched.output.stable}
            assert {(p, vs) for p, vs, _ in held} <= {(p, vs) for p, vs, _ in meant}
            if watched.output.stable == INFINITY:
                assert set(watched.output) == meant
                assert len(watched.merge) == 0
