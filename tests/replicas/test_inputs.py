"""What becomes of a record is a function of those before it in its partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.queries.expressions import col
from lmerge_service.queries.logical import Source
from lmerge_service.queries.plan import elements, facts
from lmerge_service.replicas.inputs import ElementsInput, FactsInput, input_of
from tests.replicas.records import Read, facts_of

FLIGHTS = facts(
    "flights", time="t", fields={"id": int, "fact": str}, ends=col.fact == "end", lateness=10
)
KEYED = facts("flights", time="t", fields={"id": int}, lateness=10, key="id")
MERGED = elements("merged", {"n": int})


def flights(width: int = 1, query: object = FLIGHTS) -> FactsInput:
    source = query.plan  # type: ignore[attr-defined]
    assert isinstance(source, Source)
    return FactsInput(source, source.name, width)


def merged(width: int = 1) -> ElementsInput:
    found = input_of(MERGED.plan, "merged", width, 1)  # type: ignore[arg-type]
    assert isinstance(found, ElementsInput)
    return found


def records_of(*elements: Element, **more: object) -> list[Read]:
    return [Read(at, encode(each), **more) for at, each in enumerate(elements)]  # type: ignore[arg-type]


def test_a_fact_too_far_below_the_highest_time_is_late() -> None:
    source = flights()
    times = [event.vs for event in source.take(0, facts_of(*({"t": t} for t in (20, 31, 15, 22))))]  # type: ignore[union-attr]
    assert (times, source.stable, source.dropped) == ([20, 31, 22], 21, {"late": 1})


def test_a_partition_that_has_never_spoken_holds_all_back() -> None:
    source = flights(2)
    source.take(0, facts_of({"t": 100}))
    assert source.stable == START
    source.take(1, facts_of({"t": 50}))
    assert source.stable == 40


def test_a_partition_that_has_ended_holds_nothing_back() -> None:
    source = flights(2)
    source.take(0, facts_of({"t": 100}))
    source.take(1, facts_of({"fact": "end"}, {"t": 200}))
    assert (source.stable, source.dropped) == (90, {"late": 1})
    source.take(0, facts_of({"fact": "end"}, first=1))
    assert source.stable == INFINITY


def test_what_is_no_fact_is_a_dead_letter_with_its_place() -> None:
    source = flights(2)
    given = [Read(7, b"{"), Read(8, b'{"t":5,"id":"x"}', key=b"k"), Read(9, b'{"id":5}')]
    assert source.take(1, given) == []
    assert [(each.partition, each.offset, each.reason) for each in source.dead] == [
        (1, 7, "not_a_fact"),
        (1, 8, "wrong_type"),
        (1, 9, "not_a_fact"),
    ]
    assert source.stable == START  # it changes nothing


def test_duplicates_by_key_are_dropped_within_the_lateness() -> None:
    source = flights(1, KEYED)
    given = facts_of({"t": 20, "id": 1}, {"t": 25, "id": 2}, {"t": 20, "id": 1}, {"t": 45, "id": 3})
    events = source.take(0, given)
    assert [event.payload for event in events] == [(1,), (2,), (3,)]  # type: ignore[union-attr]
    assert source.dropped == {"duplicate": 1}
    source.take(0, facts_of({"t": 45, "id": 4}))
    assert len(source) == 2  # 1 and 2 are below the watermark: a duplicate would be late
    assert source.take(0, facts_of({"t": 20, "id": 1})) == []
    assert source.dropped == {"duplicate": 1, "late": 1}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=30), st.integers(0, 30))
def test_an_input_goes_on_from_what_was_saved(drawn: list[tuple[int, int]], at: int) -> None:
    given = facts_of(*({"t": t, "id": n} for t, n in drawn))
    whole, first, second = (flights(1, KEYED) for _ in range(3))
    expected = whole.take(0, given)
    events = first.take(0, given[:at])
    second.restore(first.saved())
    second.go_on(first.reached)
    assert events + second.take(0, given[at:]) == expected
    assert (second.reached, len(second)) == (whole.reached, len(whole))


def test_elements_have_rows_and_their_partitions_least_stable() -> None:
    source = merged(2)
    given = records_of(
        Insert(b'{"n":1}', 2, 9), Stable(5), Adjust(b'{"n":1}', 2, 9, 7), Insert(b'{"n":"x"}', 6, 7)
    )
    assert source.take(0, given) == [Insert((1,), 2, 9), Adjust((1,), 2, 9, 7)]
    assert [each.reason for each in source.dead] == ["wrong_type"]
    assert source.stable == START
    source.take(1, records_of(Stable(INFINITY)))
    assert source.stable == 5


def test_records_that_their_writer_repeats_count_once() -> None:
    source = merged()
    one = Read(0, encode(Insert(b'{"n":1}', 2, 9)), headers=[(SEQ_HEADER, b"1")])
    assert source.take(0, [one, one._replace(offset=1)]) == [Insert((1,), 2, 9)]
    assert source.dropped == {"repeat": 1}


def test_another_incarnation_ends_it_with_the_place() -> None:
    source = merged()
    source.take(0, records_of(Stable(3)))
    with pytest.raises(StateError, match="merged-0, offset 0: incarnation 2 begins behind 0"):
        source.take(0, records_of(Stable(4), headers=incarnation_headers(2)))
    with pytest.raises(StateError, match="correct from 9 on only"):
        merged().take(0, records_of(Stable(4), headers=incarnation_headers(2, 9)))


def test_a_heartbeat_moves_its_partition_and_is_no_event() -> None:
    """Neither is it a duplicate of what has its key, nor is what it makes late kept."""
    source = facts(
        "flights",
        time="t",
        until="to",
        fields={"id": int, "fact": str},
        heartbeats=col.fact == "heartbeat",
        key="id",
        lateness=10,
    )
    found = flights(2, source)
    first = [
        {"t": 20, "to": 25, "id": 1, "fact": "departed"},
        {"t": 50, "id": 1, "fact": "heartbeat"},
    ]
    events = found.take(0, facts_of(*first))
    assert events == [Insert((1, "departed"), 20, 25)]
    assert (found.stables, found.stable) == ([40, START], START)
    found.take(1, facts_of({"t": 45, "fact": "heartbeat"}))
    assert (found.stable, found.dropped) == (35, {"heartbeat": 2})
    late = [{"t": 39, "to": 41, "id": 2}, {"fact": "heartbeat"}, {"t": 30, "fact": "heartbeat"}]
    assert found.take(0, facts_of(*late, first=2)) == []
    assert found.dropped == {"heartbeat": 3, "late": 1, "not_a_fact": 1}
    assert (found.stable, [each.reason for each in found.dead]) == (35, ["not_a_fact"])
