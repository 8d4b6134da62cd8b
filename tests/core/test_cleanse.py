"""Cleanse: its output is ordered, final, and the same for every presentation of one stream."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import lmerge
from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.cleanse import Cleanse, Cleansed, by_text
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, reconstitute
from tests import vectors
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)


@pytest.mark.parametrize("case", vectors.cases("cleanse"), ids=lambda case: case["id"])
def test_outputs_are_the_vectors(case: Any) -> None:
    cleanse = Cleanse()
    outputs = []
    for element in vectors.elements(case["given"]["stream"]):
        outputs.append(cleanse.process(element))
        cleanse.check()
    assert outputs == [vectors.elements(rows) for rows in case["expect"]["outputs"]]


@st.composite
def _presented(draw: st.DrawFn) -> tuple[TDB, list[list[Element]]]:
    """A logical stream, and presentations of it as R3 or R4 allows."""
    case = draw(st.sampled_from(("R3", "R4")))
    logical = draw(logical_streams(unique_keys=case == "R3"))
    made = draw(presentations(logical, 3, case) | seeded_presentations(logical, 3, case))
    return TDB(logical), made


def cleansed(elements: list[Element]) -> list[Element]:
    """What a Cleanse releases, checked after each element."""
    cleanse, output, received = Cleanse(), TDB(), TDB()
    out = []
    for element in elements:
        received.apply(element)
        for emitted in cleanse.process(element):
            output.apply(emitted)
            out.append(emitted)
        cleanse.check()
        final = sum(ve < received.stable for _, _, ve in received)
        assert len(cleanse) == len(received) - len(output)
        assert len(output) <= final or received.stable == INFINITY
    assert not cleanse.ignored
    return out


def inserts(elements: list[Element]) -> list[Element]:
    return [element for element in elements if type(element) is Insert]


@given(_presented())
def test_every_presentation_comes_out_as_the_same_ordered_inserts(
    made: tuple[TDB, list[list[Element]]],
) -> None:
    logical, streams = made
    outputs = [cleansed(stream) for stream in streams]
    for output in outputs:
        assert reconstitute(output) == logical
        assert not [e for e in output if type(e) is Adjust]
        starts = [e.vs for e in output if type(e) is Insert]
        assert starts == sorted(starts)
        assert output[-1] == Stable(INFINITY)
    assert inserts(outputs[0]) == inserts(outputs[1]) == inserts(outputs[2])


@given(_presented(), st.data())
def test_at_any_time_it_has_released_all_that_it_may(
    made: tuple[TDB, list[list[Element]]], data: st.DataObject
) -> None:
    """All final events up to the first vs of an open one, and the stable up to there."""
    _, (stream, *_) = made
    prefix = stream[: data.draw(st.integers(0, len(stream)))]
    received, released = reconstitute(prefix), reconstitute(cleansed(prefix))
    ended = received.stable == INFINITY
    first_open = min(
        (vs for _, vs, ve in received if ve >= received.stable and not ended), default=None
    )
    reach = received.stable if first_open is None else min(received.stable, first_open)
    assert released == TDB(event for event in received if event.vs < reach)
    assert released.stable == reach


@given(
    logical_streams().flatmap(lambda logical: lying_presentations(logical, 1)).map(lambda s: s[0])
    | st.lists(any_elements(), max_size=25)
)
def test_whatever_comes_in_an_ordered_legal_stream_goes_out(stream: list[Element]) -> None:
    cleanse, output, last = Cleanse(), TDB(), START
    received = TDB()
    refused = 0
    for element in stream:
        if received.violation(element) is None:
            received.apply(element)
        else:
            refused += 1
        for emitted in cleanse.process(element):
            output.apply(emitted)
            if type(emitted) is Insert:
                assert emitted.vs >= last
                last = emitted.vs
        cleanse.check()
        assert cleanse.ignored.total() == refused, "what the oracle refuses, and nothing else"
        assert cleanse.stable == received.stable


@given(_presented(), st.data())
def test_batches_emit_what_single_elements_emit(
    made: tuple[TDB, list[list[Element]]], data: st.DataObject
) -> None:
    _, (stream, *_) = made
    cut = data.draw(st.integers(0, len(stream)))
    cleanse = Cleanse()
    emitted = cleanse.process_batch(stream[:cut]) + cleanse.process_batch(stream[cut:])
    assert emitted == cleansed(stream)


def test_what_is_ignored_is_counted_by_kind() -> None:
    cleanse = Cleanse()
    cleanse.process_batch([Insert("A", 5, 20), Stable(10)])
    wrong: list[tuple[Element, BreachKind]] = [
        (Insert("B", 9, 30), BreachKind.BROKE_OWN_STABLE),
        (Adjust("A", 5, 20, 9), BreachKind.BROKE_OWN_STABLE),
        (Adjust("B", 5, 20, 30), BreachKind.UNKNOWN_EVENT),
        (Adjust("A", 6, 20, 30), BreachKind.UNKNOWN_EVENT),
        (Adjust("A", 5, 21, 30), BreachKind.WRONG_VOLD),
        (Stable(9), BreachKind.STABLE_REGRESSION),
    ]
    for element, kind in wrong:
        before = cleanse.ignored[kind]
        assert cleanse.process(element) == []
        assert cleanse.ignored[kind] == before + 1, element
    assert cleanse.process(Stable(10)) == [], "an equal stable changes nothing"
    assert cleanse.ignored.total() == 6
    assert cleanse.process(Stable(21)) == [Insert("A", 5, 20), Stable(21)]


def test_ties_follow_a_given_order() -> None:
    tied: list[Element] = [Insert(n, 1, 5) for n in (2, 10, 3)]
    assert [e.payload for e in Cleanse().process_batch([*tied, Stable(9)])[:3]] == [10, 2, 3]  # type: ignore[union-attr]
    by_value = Cleanse(order=lambda payload: payload)
    assert [e.payload for e in by_value.process_batch([*tied, Stable(9)])[:3]] == [2, 3, 10]  # type: ignore[union-attr]


def test_payloads_of_any_type_have_an_order() -> None:
    mixed = [("b", 1), b"z", "a", None, ("a", 2), b"a"]
    backwards = mixed[::-1]
    assert sorted(mixed, key=by_text) == sorted(backwards, key=by_text)


def test_a_stable_that_releases_nothing_looks_at_nothing() -> None:
    """Counted by the ends that are compared: a held group is looked through once."""
    looked = 0

    class End(int):
        def __lt__(self, other: int) -> bool:
            return int.__lt__(self, other)

        def __gt__(self, other: int) -> bool:
            nonlocal looked
            looked += 1
            return int.__gt__(self, other)

    cleanse = Cleanse()
    cleanse.process_batch([Insert(n, 1, End(100_000 + n)) for n in range(1_000)])
    cleanse.process(Stable(2))
    assert looked >= 999
    looked = 0
    for c in range(3, 500):
        assert cleanse.process(Stable(c)) == []
    assert looked == 0


@given(logical_streams(unique_keys=False), st.data())
def test_a_cleanse_at_each_input_of_lmr1_merges_any_stream(logical: Any, data: Any) -> None:
    streams = data.draw(presentations(logical, 3, "R4"))
    merge = Cleansed(lmerge("R1"))
    for number in range(3):
        merge.attach(str(number))
    output = TDB()
    for number, element in data.draw(interleavings(streams)):
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
    assert output == TDB(logical)
    assert output.stable == INFINITY
    assert len(merge) == 0
    assert merge.merge.breaches() == []


def test_a_new_incarnation_begins_with_nothing_held() -> None:
    merge = Cleansed(lmerge())
    merge.attach("a")
    merge.process_batch("a", [Insert("A", 1, 5), Stable(3)])
    assert len(merge) == 1
    merge.attach("a")
    assert len(merge) == 0
    assert merge.process_batch("a", [Insert("B", 3, 4), Stable(9)]) == [
        Insert("B", 3, 4),
        Stable(9),
    ]
    merge.detach("a")
    assert merge.process("a", Stable(10)) == []
    assert [b.kind for b in merge.merge.breaches()] == [BreachKind.AFTER_DETACH]


def test_a_stable_that_falls_opens_nothing_again() -> None:
    cleanse = Cleanse()
    cleansed = [*cleanse.process(Insert("A", 5, 9)), *cleanse.process(Stable(20))]
    assert cleansed == [Insert("A", 5, 9), Stable(20)]
    assert cleanse.process(Stable(10)) == cleanse.process(Insert("B", 15, 30)) == []
    assert cleanse.ignored == {BreachKind.STABLE_REGRESSION: 1, BreachKind.BROKE_OWN_STABLE: 1}


def test_bytes_and_texts_are_ordered_as_they_are() -> None:
    assert by_text(b"z") < by_text(b"\x80")
    assert by_text("z") < by_text("\x80")
