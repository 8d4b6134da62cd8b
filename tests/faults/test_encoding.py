"""Replays of values that are equal and do not look so, or cannot be written again."""

import pytest

from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import Stable
from tests.faults.bench import Bench, assert_valid


def insert(payload: str, vs: str = "1", ve: str = "9", extra: str = "") -> bytes:
    return f'{{"op":"insert","payload":{payload},"vs":{vs},"ve":{ve}{extra}}}'.encode()


@pytest.mark.parametrize(
    "record",
    [
        insert("1", vs="NaN"),
        insert("1", ve="NaN"),
        insert("NaN"),
        insert('{"price":NaN}'),
        insert('{"k":[1,-Infinity]}'),
    ],
)
def test_e1_a_nan_is_refused_wherever_it_stands(record: bytes) -> None:
    """sortedcontainers#73, gren-lang#139: after one NaN among its keys an order is wrong."""
    bench = Bench("a", "b")
    bench.publish_bytes("a", record)
    assert [letter.offset for letter in bench.dead] == [0]
    for k in (5, 2, 9):
        bench.publish_bytes("a", insert(str(k), vs=str(k), ve=str(k + 1)))
    bench.publish("a", Stable(20))
    assert len(bench.merge) == 0, "the order of what came later is whole"
    assert_valid(bench.report())


def test_e2_zeros_are_one_value_however_they_are_written() -> None:
    """spark#55088, StreamFusion#73: streaming deduplication kept 0.0 and -0.0 apart."""
    bench = Bench("a", "b", "c", "d")
    for name, zero in (("a", "0.0"), ("b", "-0.0"), ("c", "0"), ("d", "0e5")):
        bench.publish_bytes(name, insert(f'{{"x":{zero}}}'))
        bench.publish(name, Stable(5))
    assert sum(b'"insert"' in (record.value or b"") for record in bench.emitted) == 1
    assert not any(bench.breaches(name) for name in "abcd")
    assert_valid(bench.report())


@pytest.mark.parametrize(
    "record",
    [
        b'{"op":"insert","payload":1,"vs":0,"ve":1,"ve":2}',
        insert('{"a":1,"a":2}'),
        insert('{"a":1,"\\u0061":2}'),
        b'{"op":"stable","vc":1,"vc":2}',
    ],
)
def test_e5_a_key_that_is_given_twice_is_refused(record: bytes) -> None:
    """zish#3: which of the two counts is undefined."""
    bench = Bench("a")
    assert bench.publish_bytes("a", record) == []
    assert [letter.reason for letter in bench.dead] == ["duplicate_key"]


@pytest.mark.parametrize(
    "record",
    [insert('"\\ud800"'), insert('{"\\udfff":1}'), insert('"x"').replace(b"x", b"\xed\xa0\x80")],
)
def test_e6_half_a_character_is_caught_where_it_comes_in(record: bytes) -> None:
    """Python's json reads lone surrogates, which cannot be written again."""
    bench = Bench("a", "b")
    assert bench.publish_bytes("a", record) == []
    assert [letter.reason for letter in bench.dead] == ["lone_surrogate"]
    bench.publish_bytes("b", insert('"whole"'))
    bench.publish("b", Stable(5))
    assert bench.report().outcome is Outcome.VALID
