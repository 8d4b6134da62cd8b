"""Classification of streams: sync times, order, perfection, closedness, validity."""

from random import Random
from typing import Any

import pytest

from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.queries.classify import (
    closed_up_to,
    is_ordered,
    is_perfect,
    is_valid_shrinking,
    out_of_order,
    sync,
    up_to,
)
from lmerge_service.tdb import TDB
from tests.queries.promises import tdb_of
from tests.queries.streams import legal_stream
from tests.queries.vectors import cases, elements, tdb

WHAT = {"out_of_order": out_of_order, "ordered": is_ordered, "perfect": is_perfect,
        "closed_up_to": closed_up_to}  # fmt: skip


def test_sync_times() -> None:
    (case,) = cases("speculative", "sp-table1-sync")
    stream = elements(case["given"]["stream"])
    assert [sync(element) for element in stream] == case["expect"]["sync"]


def test_sync_of_an_end_that_grows_is_the_old_one() -> None:
    assert sync(Adjust("a", 1, 5, 9)) == 5


@pytest.mark.parametrize(
    "case", cases("speculative", "sp-order-", "sp-table1-order"), ids=lambda case: case["id"]
)
def test_order(case: dict[str, Any]) -> None:
    stream = elements(case["given"]["stream"])
    assert {name: WHAT[name](stream) for name in case["expect"]} == case["expect"]


@pytest.mark.parametrize("case", cases("speculative", "sp-upto-"), ids=lambda case: case["id"])
def test_up_to(case: dict[str, Any]) -> None:
    stream = elements(case["given"]["stream"])
    assert up_to(stream, case["given"]["t"]) == elements(case["expect"]["stream"])


@pytest.mark.parametrize("case", cases("speculative", "sp-valid-"), ids=lambda case: case["id"])
def test_validity_where_ends_only_shrink(case: dict[str, Any]) -> None:
    assert is_valid_shrinking(elements(case["given"]["stream"])) == case["expect"]["valid"]


@pytest.mark.parametrize("id_", ["sp-table1", "ce-table1"])
def test_canonical_history_table(id_: str) -> None:
    (case,) = (case for case in cases("speculative", id_) if case["id"] == id_)
    assert tdb_of(elements(case["given"]["stream"])) == tdb(case["expect"]["cht"])


def test_progressive() -> None:
    """The paper's stream that is closed up to t, and its elements up to t."""
    (case,) = cases("speculative", "sp-progressive")
    stream, t = elements(case["given"]["stream"]), case["given"]["t"]
    assert closed_up_to(stream) == t
    assert [e for e in up_to(stream, t) if type(e) is not Stable] == elements(
        case["expect"]["up_to"]
    )


def test_a_stable_that_trails_puts_nothing_out_of_order() -> None:
    stream: list[Element] = [Insert("a", 5, 9), Stable(3), Insert("b", 6, 9)]
    assert out_of_order(stream) == []
    assert is_perfect(stream)


def test_nothing_is_closed_up_to_the_start() -> None:
    assert closed_up_to([]) == START


def test_of_two_elements_the_definition_marks_the_earlier() -> None:
    for seed in range(200):
        stream = legal_stream(Random(seed))
        data = [(at, sync(e)) for at, e in enumerate(stream) if type(e) is not Stable]
        marked = [at for at, s in data if any(later > at and less < s for later, less in data)]
        assert out_of_order(stream) == marked
        assert is_ordered(stream) == (not marked)
        assert is_perfect(stream) == (not marked and not any(type(e) is Adjust for e in stream))


def test_no_legal_element_has_a_sync_time_below_a_stable_before_it() -> None:
    for seed in range(200):
        stream = legal_stream(Random(seed))
        for at, element in enumerate(stream):
            assert sync(element) >= closed_up_to(stream[:at])


def test_streams_that_only_shrink_are_the_valid_ones() -> None:
    for seed in range(200):
        stream = legal_stream(Random(seed))
        grows = any(type(e) is Adjust and e.ve > e.vold for e in stream)
        assert is_valid_shrinking(stream) == (not grows)
        assert not is_valid_shrinking([*stream, Insert("a", 1, 2)])  # behind the end


def test_a_closed_stream_is_its_elements_up_to_then() -> None:
    """Before c, the elements with a sync time before c determine it."""
    for seed in range(200):
        stream = legal_stream(Random(seed), close=False)
        point = closed_up_to(stream)
        prefix, known = tdb_of(stream), TDB()
        for element in up_to(stream, point):
            if type(element) is not Stable and not known.violation(element):
                known.apply(element)
        if is_valid_shrinking(stream) and not any(
            type(e) is Adjust and e.ve >= point for e in stream
        ):
            assert known.before(point) == prefix.before(point)
