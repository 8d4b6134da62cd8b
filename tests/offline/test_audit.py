"""The audit: legality with the place of the first fault, and equivalence as `tdb` judges it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, IllegalStreamError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.offline.audit import Audited, TopicAudit, audit_elements, compare
from lmerge_service.tdb import TDB, Difference, differences, reconstitute
from tests.offline.streams import on_the_wire
from tests.strategies import any_elements, logical_streams, presentations


def audited(elements: Sequence[Element], name: str = "x.ndjson") -> Audited:
    return audit_elements(name, enumerate(elements, 1))


# Legality


@pytest.mark.parametrize(
    ("element", "why"),
    [
        (Insert("A", 6, 9), "insert with vs=6 below the stream's own stable(7)"),
        (
            Adjust("A", 2, 20, 6),
            "adjust from 20 to 6 touches what the stream's own stable(7) made final",
        ),
        (Adjust("A", 2, 19, 21), "adjust of an event [2, 19) that the stream does not hold"),
        (Stable(6), "stable(6) after stable(7)"),
    ],
)
def test_the_first_element_that_is_not_legal_is_named_with_file_and_line(
    element: Element, why: str
) -> None:
    with pytest.raises(IllegalStreamError) as refused:
        audited([Insert("A", 2, 20), Stable(7), element, Stable(1)])
    assert str(refused.value) == f"x.ndjson:3: not a legal stream: {why}"


@given(st.lists(any_elements(), max_size=8))
def test_a_stream_is_legal_for_the_audit_when_it_is_for_tdb(elements: list[Element]) -> None:
    try:
        expected = reconstitute(elements)
    except IllegalStreamError:
        with pytest.raises(IllegalStreamError, match=r"^x\.ndjson:\d+: not a legal stream: "):
            audited(elements)
        return
    found = audited(elements)
    assert found.tdb == expected
    assert found.tdb.stable == expected.stable
    counts = [sum(type(e) is kind for e in elements) for kind in (Insert, Adjust, Stable)]
    assert [found.inserts, found.adjusts, found.stables] == counts


# Equivalence


@given(st.data())
def test_presentations_of_one_stream_are_equivalent(data: st.DataObject) -> None:
    one, two = data.draw(presentations(data.draw(logical_streams()), 2))
    verdict = compare(audited(one), audited(two))
    assert verdict.equivalent
    assert verdict.differences == []


@given(st.data())
def test_the_verdict_is_the_equality_of_tdbs(data: st.DataObject) -> None:
    logical = [data.draw(logical_streams(3)) for _ in range(2)]
    one, two = (data.draw(presentations(each, 1, closed=False))[0] for each in logical)
    verdict = compare(audited(one), audited(two))
    assert verdict.equivalent == (reconstitute(one) == reconstitute(two))
    assert verdict.differences == differences(reconstitute(one), reconstitute(two))


def test_differences_name_payload_vs_and_the_ends_on_either_side() -> None:
    left = audited([Insert("A", 6, 20), Insert("B", 8, 9), Insert("C", 3, 4)])
    right = audited([Insert("A", 6, 25), Insert("C", 3, 4), Insert("D", 1, INFINITY)])
    assert compare(left, right).differences == [
        Difference("D", 1, ((), (INFINITY,))),
        Difference("A", 6, ((20,), (25,))),
        Difference("B", 8, ((9,), ())),
    ]


def test_a_stream_that_has_not_ended_is_compared_as_it_stands_and_named() -> None:
    ended = audited([Insert("A", 6, 20), Stable(INFINITY)], "ended")
    prefix = audited([Insert("A", 6, 20), Stable(7)], "prefix")
    assert compare(ended, prefix).equivalent
    assert ended.complete
    assert not prefix.complete


@given(st.data())
def test_prefixes_of_one_stream_are_equivalent_as_far_as_both_are_final(
    data: st.DataObject,
) -> None:
    streams = data.draw(presentations(data.draw(logical_streams()), 3))
    prefixes = [audited(each[: data.draw(st.integers(0, len(each)))]) for each in streams]
    verdict = compare(*prefixes, clipped=True)
    assert verdict.before == min(each.stable for each in prefixes)
    assert verdict.equivalent


def test_clipped_what_is_final_must_agree() -> None:
    ended = audited([Insert("A", 6, 20), Insert("B", 8, 9), Stable(INFINITY)])
    prefix = audited([Insert("A", 6, 21), Insert("B", 8, 12), Stable(10)])
    assert compare(ended, prefix, clipped=True).differences == [Difference("B", 8, ((9,), (10,)))]


# Topics


class _Partition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class _Record:
    value: bytes | None
    offset: int
    headers: Sequence[tuple[str, bytes]] = ()
    topic: str = "t"
    partition: int = 0
    key: bytes | None = None


ZERO, ONE = (_Partition("t", number) for number in range(2))


def topic_audit() -> TopicAudit:
    return TopicAudit("t", [ZERO, ONE], WireDecoder())


def take(
    audit: TopicAudit,
    partition: Any,
    elements: Sequence[Element],
    incarnation: int = 0,
    since: int = 0,
) -> None:
    headers = incarnation_headers(incarnation, since) if incarnation else []
    records = [
        _Record(encode(on_the_wire(element)), offset, headers)
        for offset, element in enumerate(elements)
    ]
    audit.take(partition, records)


def test_each_partition_of_a_topic_is_held_to_its_own_stables() -> None:
    audit = topic_audit()
    take(audit, ZERO, [Insert("A", 6, 20), Stable(7)])
    take(audit, ONE, [Insert("B", 2, 20), Stable(3)])  # below the stable of partition 0
    found = audit.result()
    assert found.name == "kafka:t"
    assert found.tdb == TDB([(b'"A"', 6, 20), (b'"B"', 2, 20)])
    assert found.tdb.stable == 3
    assert (found.inserts, found.adjusts, found.stables) == (2, 0, 2)


def test_a_topic_is_complete_when_all_its_partitions_are() -> None:
    audit = topic_audit()
    take(audit, ZERO, [Stable(INFINITY)])
    assert not audit.result().complete
    take(audit, ONE, [Stable(INFINITY)])
    assert audit.result().complete


def test_of_a_topic_only_the_last_incarnation_counts() -> None:
    audit = topic_audit()
    take(audit, ZERO, [Insert("A", 6, 20), Stable(7)])
    take(audit, ONE, [Insert("B", 6, 20)])
    take(audit, ONE, [Insert("B", 5, 20)], incarnation=1)
    take(audit, ZERO, [Insert("C", 9, 20)])  # an old one's, still on its way
    take(audit, ZERO, [Insert("A", 6, 25)], incarnation=1)
    assert audit.result().tdb == TDB([(b'"B"', 5, 20), (b'"A"', 6, 25)])
    assert audit.result().inserts == 2


@pytest.mark.parametrize("other_first", [False, True])
def test_each_incarnation_is_judged_by_itself_and_what_none_covers_is_named(
    other_first: bool,
) -> None:
    """However the partitions interleave."""
    audit = topic_audit()
    old: list[Element] = [Insert("A", 6, 20), Stable(40), Stable(3)]
    new: list[Element] = [Insert("A", 6, 60), Stable(55)]
    if other_first:
        take(audit, ONE, new, incarnation=1, since=50)
    take(audit, ZERO, old)
    if not other_first:
        take(audit, ONE, [Stable(45)])
        take(audit, ONE, new, incarnation=1, since=50)
    take(audit, ZERO, [Insert("B", 2, 70), Stable(51)], incarnation=1, since=50)
    found = audit.result()
    (restart,) = found.restarts
    assert (restart.incarnation, restart.correct_from) == (1, 50)
    assert restart.former_stable == (START if other_first else 40)
    assert restart.gap == (restart.former_stable, 50)
    assert (found.since, found.stable) == (50, 51)
    whole = Audited("whole", TDB([(b'"A"', 6, 60), (b'"B"', 2, 70), (b'"C"', 1, 45)], 51))
    verdict = compare(found, whole)
    assert (verdict.equivalent, verdict.since) == (True, 50), "C ends before it is correct"
    assert not compare(found, Audited("lacks", TDB([(b'"A"', 6, 60)], 51))).equivalent


def test_a_partition_that_has_not_come_to_the_new_incarnation_shows_how_far_the_old_one_was() -> (
    None
):
    audit = topic_audit()
    take(audit, ZERO, [Stable(40)])
    take(audit, ONE, [Stable(45)])
    take(audit, ZERO, [Stable(60)], incarnation=1, since=50)
    (restart,) = audit.result().restarts
    assert (restart.former_stable, restart.gap) == (40, (40, 50))


def test_a_topic_that_begins_with_an_incarnation_has_not_started_over() -> None:
    audit = topic_audit()
    take(audit, ZERO, [Stable(9)], incarnation=3, since=5)
    assert (audit.result().restarts, audit.result().since) == ((), 5)


def test_a_former_incarnation_that_was_not_legal_is_named_as_such() -> None:
    audit = topic_audit()
    take(audit, ZERO, [Stable(7), Insert("A", 6, 20)])
    take(audit, ONE, [Stable(9)])
    take(audit, ZERO, [Stable(8)], incarnation=2, since=5)
    take(audit, ONE, [Stable(8)], incarnation=2, since=5)
    (restart,) = audit.result().restarts
    assert (restart.former_stable, restart.gap) == (7, None)
    assert restart.former_illegal is not None
    assert "t-0 at offset 1: not a legal stream" in restart.former_illegal


def test_the_first_illegal_record_of_each_partition_is_named_with_partition_and_offset() -> None:
    audit = topic_audit()
    take(audit, ONE, [Stable(7), Insert("A", 6, 20), Stable(3)])
    take(audit, ZERO, [Adjust("A", 6, 20, 25)])
    errors = [str(error).partition(": not a legal stream: ") for error in audit.illegal().values()]
    assert sorted((where, why) for where, _, why in errors) == [
        ("t-0 at offset 0", "adjust of an event [6, 20) that the stream does not hold"),
        ("t-1 at offset 1", "insert with vs=6 below the stream's own stable(7)"),
    ]
    with pytest.raises(IllegalStreamError, match=r"^t-0 at offset 0: not a legal stream: adjust"):
        audit.result()


@pytest.mark.parametrize("partitions", [(ZERO, ONE), (ONE, ZERO)])
def test_what_was_not_legal_is_of_no_matter_once_the_replica_starts_over(
    partitions: tuple[_Partition, _Partition],
) -> None:
    audit = topic_audit()
    for partition in partitions:
        if partition is ONE:
            take(audit, ONE, [Stable(7), Insert("A", 6, 20)])
        else:
            take(audit, ZERO, [Insert("B", 6, 20)], incarnation=1)
    assert audit.result().tdb == TDB([(b'"B"', 6, 20)])


def test_what_its_writer_has_written_before_does_not_count() -> None:
    audit = topic_audit()
    published: list[Element] = [Insert("A", 6, 20), Stable(7), Insert("A", 6, 20), Stable(7)]
    numbered = [
        _Record(encode(on_the_wire(element)), offset, [("lmerge-seq", b"%d" % seq)])
        for offset, (seq, element) in enumerate(zip((1, 2, 1, 2), published, strict=True))
    ]
    audit.take(ZERO, numbered)
    found = audit.result()
    assert (found.inserts, found.stables) == (1, 1)
    assert found.tdb == TDB([(b'"A"', 6, 20)])


def test_n4_what_only_uses_its_numbers_counts_and_is_reported() -> None:
    audit = topic_audit()
    published: list[Element] = [Insert("A", 6, 20), Stable(2), Insert("B", 7, 20), Stable(3)]
    numbered = [
        _Record(encode(on_the_wire(element)), offset, [("lmerge-seq", b"%d" % seq)])
        for offset, (seq, element) in enumerate(zip((1, 2, 1, 2), published, strict=True))
    ]
    audit.take(ZERO, numbered)
    found = audit.result()
    assert sorted(found.tdb) == [(b'"A"', 6, 20), (b'"B"', 7, 20)]
    assert found.contradicted is not None
    assert found.contradicted.startswith("1 records are other ones")
    assert found.contradicted.endswith("the first in t-0 at offset 2")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (_Record(None, 8), "tombstone"),
        (_Record(b"junk", 8), "not_json"),
        (_Record(b'{"op":"stable","vc":1}', 8, [("lmerge-incarnation", b"x")]), "header"),
    ],
)
def test_a_record_that_is_no_element_is_named_with_partition_and_offset(
    record: _Record, reason: str
) -> None:
    with pytest.raises(ElementError, match=r"^t-0 at offset 8: ") as refused:
        topic_audit().take(ZERO, [record])
    assert refused.value.reason == reason


@given(st.data())
def test_events_spread_over_partitions_mean_what_the_whole_stream_means(
    data: st.DataObject,
) -> None:
    (stream,) = data.draw(presentations(data.draw(logical_streams()), 1))
    assume(stream)
    audit = topic_audit()
    for number, partition in enumerate((ZERO, ONE)):
        take(audit, partition, [e for e in stream if _partition_of(e) in (None, number)])
    assert audit.result().tdb == reconstitute(map(on_the_wire, stream))
    assert audit.result().complete


def _partition_of(element: Element) -> int | None:
    return None if isinstance(element, Stable) else ord(element.payload) % 2
