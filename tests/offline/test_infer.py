"""The inference: the case of recorded streams, and the first element that breaks each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core.case import Case
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, IllegalStreamError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.offline.infer import Inferred, RecordedStream, TopicDecoder, infer, recorded
from lmerge_service.offline.inference import Inference, Restriction
from lmerge_service.tdb import TDB
from tests.offline.streams import on_the_wire
from tests.strategies import any_elements, logical_streams, presentations, seeded_presentations


def inferred(*streams: Any) -> Inferred:
    """Of streams a, b, c, …"""
    return infer([recorded(chr(97 + n), enumerate(each, 1)) for n, each in enumerate(streams)])


def cases(found: Inferred) -> dict[str, str]:
    """Per case "yes", the first break or why nothing is known."""
    words = {True: "yes", None: found.ties_unknown}
    return {
        str(case): words[obeys]
        if (obeys := found.obeys(case)) is not False
        else str(found.first_break(case))
        for case in Case
    }


# One stream


def test_strictly_increasing_inserts_obey_every_case() -> None:
    found = inferred([Insert("A", 1, 9), Stable(1), Insert("A", 2, 9), Stable(INFINITY)])
    assert set(cases(found).values()) == {"yes"}
    assert found.case is Case.R0


def test_adjusts_of_events_from_before_what_is_left_are_legal() -> None:
    """Others are not: of an event that is held with another end, and of what is final."""
    whole, cut = Inference("whole"), Inference("cut")
    cut.begins = {0: 7}
    elements: list[tuple[Element, bool]] = [
        (Adjust("A", 1, 9, 12), True),
        (Adjust("A", 1, 9, 13), False),
        (Adjust("A", 1, 12, 1), True),
        (Adjust("B", 2, 9, 2), True),
        (Insert("C", 3, 8), True),
        (Adjust("C", 3, 9, 10), False),
        (Stable(6), True),
        (Adjust("D", 4, 5, 9), False),
        (Adjust("E", 4, 7, 9), True),
    ]
    for number, (element, legal) in enumerate(elements):
        assert cut.take(f"{number}", element) is legal, element
        whole.take(f"{number}", element)
    assert (cut.illegal, whole.illegal) == (3, 7)
    assert (cut.max_live, cut.max_multiplicity) == (1, 1)


def test_what_is_empty_obeys_every_case() -> None:
    assert inferred([]).case is Case.R0


def test_an_adjust_breaks_all_that_allow_inserts_only() -> None:
    found = inferred([Insert("A", 1, 9), Insert("B", 2, 9), Adjust("A", 1, 9, 8)])
    adjust = "a:3: an adjust"
    assert cases(found) == {"R0": adjust, "R1": adjust, "R2": adjust, "R3": "yes", "R4": "yes"}
    assert found.case is Case.R3


def test_a_step_back_breaks_all_that_need_order() -> None:
    found = inferred([Insert("A", 7, 9), Insert("B", 5, 9), Insert("C", 1, 9)])
    back = "a:2: vs 5 after vs 7"
    assert cases(found) == {"R0": back, "R1": back, "R2": back, "R3": "yes", "R4": "yes"}


def test_a_tie_breaks_r0_and_whether_r1_holds_no_stream_shows_alone() -> None:
    found = inferred([Insert("A", 7, 9), Insert("B", 7, 9), Insert("C", 7, 9)])
    alone = "only several replicas can show it"
    assert cases(found) == {
        "R0": "a:2: vs 7 twice",
        "R1": alone,
        "R2": "yes",
        "R3": "yes",
        "R4": "yes",
    }
    assert found.case is Case.R2


def test_a_second_event_of_a_payload_and_vs_breaks_the_key() -> None:
    found = inferred([Insert("A", 7, 9), Insert("B", 7, 9), Insert("A", 7, 8), Insert("B", 7, 9)])
    second = "a:3: second insert of the payload at vs 7"
    assert [cases(found)[case] for case in ("R0", "R2", "R3", "R4")] == [
        "a:2: vs 7 twice",
        second,
        second,
        "yes",
    ]
    assert found.case is Case.R4
    assert found.streams[0].max_multiplicity == 2


def test_each_case_names_the_first_element_of_all_that_break_it() -> None:
    found = inferred(
        [
            Insert("A", 7, 9),
            Insert("A", 7, 9),
            Insert("B", 6, 9),
            Adjust("B", 6, 9, 10),
        ]
    )
    key = "a:2: second insert of the payload at vs 7"
    assert cases(found) == {
        "R0": "a:2: vs 7 twice",
        "R1": "a:3: vs 6 after vs 7",
        "R2": key,
        "R3": key,
        "R4": "yes",
    }
    first = found.first_break(Case.R1)
    assert first is not None
    assert (first.element, first.number) == (Insert("B", 6, 9), 2)


def test_an_event_that_was_removed_may_come_again() -> None:
    again: list[Element] = [
        Insert("A", 7, 9),
        Adjust("A", 7, 9, 7),
        Insert("A", 7, 8),
        Stable(INFINITY),
    ]
    assert inferred(again).case is Case.R3


def test_an_adjust_to_the_end_of_another_event_breaks_no_key_anew() -> None:
    found = inferred([Insert("A", 7, 9), Insert("A", 7, 8), Adjust("A", 7, 8, 9)])
    assert cases(found)["R3"] == "a:2: second insert of the payload at vs 7"


def test_disorder_is_counted_against_the_highest_vs_so_far() -> None:
    (stream,) = inferred(
        [Insert(c, vs, 90) for c, vs in zip("ABCD", [5, 20, 8, 19], strict=True)]
    ).streams
    assert (stream.disordered, stream.max_disorder, stream.inserts) == (2, 12, 4)


def test_what_is_illegal_is_named_counted_and_left_out() -> None:
    found = inferred(
        [Insert("A", 7, 9), Stable(8), Insert("A", 7, 9), Stable(3), Insert("B", 8, 9)]
    )
    (stream,) = found.streams
    assert not found.legal
    assert stream.illegal == 2
    assert str(stream.breaks[Restriction.LEGAL]) == (
        "a:3: insert with vs=7 below the stream's own stable(8)"
    )
    assert found.case is Case.R0


def test_an_adjust_counts_as_one_even_when_it_is_not_legal() -> None:
    found = inferred([Insert("A", 7, 9), Adjust("B", 7, 9, 10)])
    assert found.streams[0].illegal == 1
    assert cases(found)["R0"] == "a:2: an adjust"


# Invariants, against what is plain to see in a whole prefix


def plain(prefix: Sequence[Element]) -> dict[Restriction, bool]:
    """Whether a prefix obeys, judged from scratch by a TDB that forgets nothing."""
    tdb, legal, key = TDB(), True, True
    inserts: list[Insert[object]] = []
    for element in prefix:
        try:
            tdb.apply(element)
        except IllegalStreamError:
            legal = False
            continue
        inserts += [element] if isinstance(element, Insert) else []
        key = key and max(Counter(event[:2] for event in tdb).values(), default=0) < 2
    return {
        Restriction.LEGAL: legal,
        Restriction.NO_ADJUSTS: not any(isinstance(each, Adjust) for each in prefix),
        Restriction.ORDERED: all(a.vs <= b.vs for a, b in pairwise(inserts)),
        Restriction.STRICTLY_ORDERED: all(a.vs < b.vs for a, b in pairwise(inserts)),
        Restriction.KEY: key,
    }


def any_stream() -> st.SearchStrategy[list[Element]]:
    """Legal ones of any case, unclosed ones of any elements, and mixtures."""
    legal = st.sampled_from(["R0", "R1", "R2", "R3", "R4"]).flatmap(
        lambda case: logical_streams(
            unique_keys=case not in ("R1", "R4"), unique_vs=case == "R0"
        ).flatmap(lambda logical: presentations(logical, 1, case, closed=False))
    )
    noise = st.lists(any_elements(), max_size=6)
    return st.builds(lambda one, rest: [*one[0], *rest], legal, noise)


@given(any_stream())
def test_the_first_break_is_the_first(stream: list[Element]) -> None:
    (found,) = inferred(stream).streams
    for restriction, obeys in plain(stream).items():
        first = found.breaks.get(restriction)
        assert (first is None) == obeys
        if first is not None:
            assert first.where == f"a:{first.number + 1}"
            assert first.element == stream[first.number]
            assert plain(stream[: first.number])[restriction]
            assert not plain(stream[: first.number + 1])[restriction]


@given(any_stream())
def test_a_case_is_obeyed_before_its_first_break_and_not_after(stream: list[Element]) -> None:
    found = inferred(stream)
    for case in Case:
        first = found.first_break(case)
        if first is None:
            assert found.obeys(case) is not False
        else:
            assert inferred(stream[: first.number]).obeys(case) is not False
            assert inferred(stream[: first.number + 1]).obeys(case) is False


@given(any_stream())
def test_the_case_of_the_algebra_is_the_strongest_that_is_obeyed(stream: list[Element]) -> None:
    found = inferred(stream)
    assert found.case == min(case for case in Case if found.obeys(case))


@pytest.mark.parametrize("case", list(Case))
@given(data=st.data())
def test_drawn_presentations_within_a_case_obey_it(case: Case, data: st.DataObject) -> None:
    logical = data.draw(
        logical_streams(unique_keys=case not in (Case.R1, Case.R4), unique_vs=case is Case.R0)
    )
    found = inferred(*data.draw(presentations(logical, 2, case)))
    assert found.legal
    assert found.obeys(case) is True
    assert found.case <= case


@pytest.mark.parametrize("case", [Case.R3, Case.R4])
@given(data=st.data())
def test_seeded_presentations_within_a_case_obey_it(case: Case, data: st.DataObject) -> None:
    logical = data.draw(logical_streams(unique_keys=case is Case.R3))
    found = inferred(*data.draw(seeded_presentations(logical, 2, case)))
    assert found.legal
    assert found.case <= case


# Memory


def test_what_is_fully_frozen_is_forgotten() -> None:
    inference = Inference("x")
    for n in range(10_000):
        inference.take("", Insert(f"{n}", n, n + 20))
        inference.take("", Adjust(f"{n}", n, n + 20, n + 30))
        inference.take("", Adjust(f"{n}", n, n + 30, n + 10))
        inference.take("", Stable(n))
    assert inference.max_live <= 13
    assert len(inference._streams[0]._heap) <= 2 * 13 + 64
    assert len(inference._keys.counts) <= 13
    inference.take("", Stable(INFINITY))
    assert (inference._keys.counts, inference._keys.live, inference._streams[0]._heap) == (
        {},
        0,
        [],
    )


def test_an_event_is_kept_as_long_as_a_slower_partition_may_repeat_it() -> None:
    inference = Inference("x", partitions=2)
    inference.take("1", Insert("A", 7, 9), 0)
    inference.take("2", Stable(20), 0)
    inference.take("3", Insert("A", 7, 9), 1)
    assert inference.breaks[Restriction.KEY].where == "3"
    inference.take("4", Stable(20), 1)
    assert inference._keys.live == 0


# Several streams

A, B, C = (Insert(payload, 7, 9) for payload in "ABC")
LATER = Insert("D", 8, 9)
FIRST = Insert("F", 1, 9)


def ties(*streams: Any) -> str:
    return cases(inferred(*streams))["R1"]


@pytest.mark.parametrize(
    "streams",
    [
        [[A, B, LATER], [A, B, LATER]],
        [[A, B], [A, B, Stable(7), C, LATER], [A, B, C]],  # two are prefixes
        [
            [FIRST, A, B, Stable(8), LATER],
            [FIRST, Stable(3), A, Stable(5), B, Stable(INFINITY)][:5],
        ],
        [[A, B, LATER, Stable(INFINITY)], []],
    ],
)
def test_equal_orders_of_ties_obey_r1(streams: list[list[Element]]) -> None:
    shown = "yes" if all(streams) else "only several replicas can show it"
    assert ties(*streams) == shown


@pytest.mark.parametrize(
    ("streams", "why"),
    [
        ([[A, B, LATER], [B, A, LATER]], "b:1: event 1 at vs 7 is another one at a:1"),
        (
            [[FIRST, A, B, C], [FIRST, Stable(3), A, C, B], [FIRST, A, B]],
            "b:4: event 2 at vs 7 is another one at a:3",
        ),
        ([[A, B], [A, Insert("B", 7, 10)]], "b:2: event 2 at vs 7 is another one at a:2"),
        ([[A, B, C, LATER], [A, B, LATER]], "a:3: event 3 at vs 7 of a is not in b"),
        ([[A, B, Stable(8)], [A, B, C]], "b:3: event 3 at vs 7 of b is not in a"),
        ([[FIRST, A, B], [FIRST, LATER]], "a:2: event 1 at vs 7 of a is not in b"),
        ([[FIRST, A, B], [FIRST, Stable(INFINITY)]], "a:2: event 1 at vs 7 of a is not in b"),
    ],
)
def test_another_order_of_ties_breaks_r1(streams: list[list[Element]], why: str) -> None:
    assert ties(*streams) == why
    assert inferred(*streams).case is Case.R2


def test_nobody_needs_ties_where_there_are_none() -> None:
    assert inferred([FIRST, A], [FIRST, LATER]).case is Case.R0


def test_an_order_is_not_compared_when_a_stream_breaks_r1_by_itself() -> None:
    streams = [[A, B, LATER], [B, A, Adjust("A", 7, 9, 10), LATER]]
    assert ties(*streams) == "b:3: an adjust"
    found = inferred(*streams)
    assert [each.inserts for each in found.streams] == [3, 3]
    assert found.case is Case.R3


def test_what_several_streams_obey_together_may_be_weaker_than_either() -> None:
    """One has a key, the other keeps order."""
    keyed = [Insert("B", 9, 20), Insert("A", 7, 9)]
    ranked = [Insert("A", 7, 9), Insert("A", 7, 9), Insert("B", 9, 20)]
    assert inferred(keyed).case is Case.R3
    assert inferred(keyed, ranked).case is Case.R4


def test_a_case_is_broken_by_the_first_stream_that_does() -> None:
    found = inferred([FIRST, A], [A, FIRST], [A, Adjust("A", 7, 9, 10)])
    assert str(found.first_break(Case.R2)) == "b:2: vs 1 after vs 7"


@given(st.data())
def test_ties_are_compared_event_by_event(data: st.DataObject) -> None:
    logical = data.draw(logical_streams(8, unique_keys=False))
    one, two = data.draw(presentations(logical, 2, data.draw(st.sampled_from(["R1", "R2"]))))
    found = inferred(one, two)
    same = [e for e in one if isinstance(e, Insert)] == [e for e in two if isinstance(e, Insert)]
    assert found.obeys(Case.R1) is same


def test_streams_are_read_in_lock_step() -> None:
    """However long they are, none is read further ahead than by the events of one vs."""
    read = [0, 0]

    def stream(number: int) -> RecordedStream:
        def elements() -> object:
            for n in range(3_000):
                read[number] += 1
                assert abs(read[0] - read[1]) <= 4
                yield n + 1, Insert(f"{n}", n // 3, n + 9)

        return recorded(f"{number}", elements())  # type: ignore[arg-type]

    assert infer([stream(0), stream(1)]).case is Case.R1


# Topics


@dataclass(frozen=True)
class _Record:
    value: bytes | None
    offset: int
    partition: int = 0
    headers: Sequence[tuple[str, bytes]] = ()
    topic: str = "t"
    key: bytes | None = None


def topic(
    *records: tuple[int, Element] | tuple[int, Element, int], partitions: int = 2
) -> Inferred:
    """(partition, element, incarnation)"""
    decoder = TopicDecoder("t", partitions, WireDecoder())

    def decoded() -> object:
        for offset, (partition, element, *incarnation) in enumerate(records):
            headers = incarnation_headers(*incarnation) if incarnation else []
            record = _Record(encode(on_the_wire(element)), offset, partition, headers)
            if found := decoder.decode(record.partition, record):
                yield found

    return infer([RecordedStream(decoder.inference, decoded())])  # type: ignore[arg-type]


def test_several_partitions_that_hold_events_give_no_order() -> None:
    found = topic((0, FIRST), (1, Stable(5)), (1, A), (0, LATER))
    beside = "t[1]@2: partition 1 holds events beside partition 0"
    assert cases(found) == {"R0": beside, "R1": beside, "R2": beside, "R3": "yes", "R4": "yes"}
    assert found.case is Case.R3


def test_a_partition_that_holds_stables_only_takes_nothing_from_the_order_of_the_other() -> None:
    assert topic((0, FIRST), (1, Stable(5)), (0, A)).case is Case.R0


def test_each_partition_is_held_to_its_own_order_and_stables() -> None:
    found = topic((0, A), (0, Stable(8)), (1, FIRST), (1, Stable(8)), (0, LATER))
    assert found.legal
    assert found.streams[0].disordered == 0
    assert found.streams[0].stable == 8


def test_the_same_event_in_two_partitions_is_no_key() -> None:
    found = topic((0, A), (0, Stable(INFINITY)), (1, A))
    assert str(found.first_break(Case.R3)) == "t[1]@2: second insert of the payload at vs 7"


def test_of_a_replica_that_started_over_only_the_last_incarnation_counts() -> None:
    found = topic((0, A), (0, Adjust("A", 7, 9, 10)), (1, FIRST, 1), (0, A), (1, A, 1))
    (stream,) = found.streams
    assert (stream.inserts, stream.adjusts, stream.restarts) == (2, 0, 1)
    assert found.case is Case.R0


def test_what_its_writer_has_written_before_is_no_second_event() -> None:
    decoder = TopicDecoder("t", 1, WireDecoder())
    records = [
        _Record(encode(on_the_wire(element)), offset, 0, [("lmerge-seq", b"%d" % seq)])
        for offset, (seq, element) in enumerate([(1, A), (2, B), (1, A), (2, B)])
    ]
    read = filter(None, (decoder.decode(each.partition, each) for each in records))
    found = infer([RecordedStream(decoder.inference, read)])
    assert found.streams[0].inserts == 2


def test_the_order_of_a_stream_that_started_over_is_not_compared() -> None:
    decoder = TopicDecoder("t", 1, WireDecoder())
    elements = [(A, 0), (B, 0), (A, 1), (B, 1)]
    records = [
        _Record(encode(on_the_wire(element)), offset, 0, incarnation_headers(incarnation))
        for offset, (element, incarnation) in enumerate(elements)
    ]
    read = filter(None, (decoder.decode(each.partition, each) for each in records))
    other = recorded("b", enumerate(map(on_the_wire, [B, A, LATER]), 1))
    found = infer([RecordedStream(decoder.inference, read), other])
    assert cases(found)["R1"] == "kafka:t has started over, so its order was not compared"
    assert found.case is Case.R2


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (_Record(None, 8, 3), "tombstone"),
        (_Record(b"junk", 8, 3), "not_json"),
        (_Record(b'{"op":"stable","vc":1}', 8, 3, [("lmerge-incarnation", b"x")]), "header"),
    ],
)
def test_a_record_that_is_no_element_is_named(record: _Record, reason: str) -> None:
    with pytest.raises(ElementError, match=r"^t\[3\]@8: ") as refused:
        TopicDecoder("t", 4, WireDecoder()).decode(record.partition, record)
    assert refused.value.reason == reason
