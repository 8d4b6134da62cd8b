"""Netting: the sum of changes stays, in as few elements as express it."""

from random import Random

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.queries.netting import net
from lmerge_service.tdb import TDB
from tests.queries.promises import not_chatty, tdb_of
from tests.queries.streams import legal_stream


def test_net_changes_are_the_change() -> None:
    for seed in range(3_000):
        rng = Random(seed)
        stream = legal_stream(rng, payloads=("a", "b"), length=16, close=False)
        cut = rng.randrange(len(stream) + 1)
        before = tdb_of(stream[:cut])
        netted = net(stream[cut:])
        data = [element for element in stream[cut:] if type(element) is not Stable]
        after = TDB(before)
        for element in netted:
            after.apply(element)
        assert after == tdb_of(stream)
        if any(type(element) is Adjust for element in data):
            not_chatty(before, after, netted)


def test_no_prefix_has_a_key_twice_that_neither_end_has() -> None:
    """What takes another's place never stands beside it."""
    batch: list[Element] = [Insert("a", 1, 9), Adjust("a", 1, 5, 1)]
    assert net(batch) == [Adjust("a", 1, 5, 9)]


def test_shorter_before_longer_before_new() -> None:
    batch: list[Element] = [
        Insert("new", 1, 9),
        Adjust("long", 2, 5, 7),
        Adjust("short", 3, 9, 4),
        Stable(1),
        Adjust("gone", 1, 5, 1),
    ]
    assert net(batch) == [
        Adjust("gone", 1, 5, 1),
        Adjust("short", 3, 9, 4),
        Adjust("long", 2, 5, 7),
        Insert("new", 1, 9),
        Stable(1),
    ]


def test_ends_that_go_and_come_pair_in_order() -> None:
    batch: list[Element] = [Adjust("a", 1, 3, 9), Adjust("a", 1, 4, 7)]
    assert net(batch) == [Adjust("a", 1, 3, 7), Adjust("a", 1, 4, 9)]


def test_an_empty_change_is_no_element() -> None:
    assert net([Adjust("a", 1, 5, 5)]) == []
    assert net([Insert("a", 1, 5), Adjust("a", 1, 5, 1)]) == []
