"""Simple records: they are what the rule defines, and what we write is simple."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats import bulk
from lmerge_service.formats.bulk import Recogniser, Rule
from lmerge_service.formats.wire import encode
from tests.formats.strategies import damaged, elements, records

MANY = 128 * 40


def recognised(*values: bytes | None, rule: Rule = Rule()) -> list[int]:  # noqa: B008
    return list(Recogniser(rule).recognise(values))


@given(
    st.lists(
        elements().map(encode) | records() | damaged(elements().map(encode)) | st.none(),
        max_size=5,
    )
)
@example([b'{"op":"stable","vc":1}\n{"op":"stable","vc":2}'])
@example([b'{"op":"stable","vc":1}\n{"op":"stable","vc":2}', b""])
@example([b'{"op":"stable","vc":1}\n', b'{"op":"stable","vc":1}'])
@example([b'{"op":"stable"', b'"vc":1}'])
@example([b'{"op":"stable","vc":9223372036854775807}'])
def test_a_simple_record_is_written_as_it_was_read(records: list[bytes | None]) -> None:
    for record, simple in zip(records, recognised(*records), strict=True):
        if simple:
            assert record is not None
            try:
                element = Rule().decoder().decode(record)
            except ElementError as refused:
                words = str(refused)
            else:
                words = "needs vs <"
                assert encode(element) == record.replace(b":%d" % INFINITY, b":null")
            assert "needs vs <" in words, "an order of times is all that is not looked at"


@pytest.mark.parametrize(
    "payload",
    [
        b'{"carrier":"UA","delay":-3,"on_time":null,"route":["EWR","IAH"]}',
        '{"quoted":"\\"","text":"Köln"}'.encode(),
        b'{"host":"a.b","n":1}',
        b"null",
        b'",\\"vs\\":1"',
    ],
)
def test_what_we_write_is_simple(payload: bytes) -> None:
    written: list[Element] = [
        Insert(payload, 1, 9),
        Insert(payload, -1, INFINITY),
        Adjust(payload, 1, 9, 1),
        Adjust(payload, 1, INFINITY, 3),
        Stable(0),
        Stable(INFINITY),
    ]
    assert recognised(*map(encode, written)) == [1] * len(written)


def test_what_the_rule_does_not_take_is_not_simple() -> None:
    accented = encode(Insert('"é"'.encode(), 1, 9))
    assert recognised(accented) == [1]
    assert recognised(accented, rule=Rule(nfc=True)) == [0]
    assert recognised(accented, rule=Rule(max_depth=5)) == [0]
    assert recognised(accented, rule=Rule(max_record_bytes=len(accented) - 1)) == [0]


def test_n14_where_nulls_are_dropped_what_may_hold_one_is_not_simple() -> None:
    rule = Rule(drop_nulls=True)
    for payload, simple in ((b'{"a":1}', 1), (b'{"a":null}', 0), (b'{"a":[{"b":null}]}', 0)):
        for ve in (9, INFINITY):
            assert recognised(encode(Insert(payload, 1, ve)), rule=rule) == [simple]
    disguised = encode(Insert(b'{"a":{"vs":1,"ve":null}}', 1, INFINITY))
    assert recognised(disguised, rule=rule) == [0]


def test_poison_costs_its_neighbours_the_short_way_and_no_more() -> None:
    simple = b'{"op":"stable","vc":7}'
    records: list[bytes | None] = [simple] * MANY
    records[1000] = b"poison"
    records[3000] = None
    assert sum(recognised(*records)) >= MANY - 4 * 128 - 2 * bulk._RETRY * 128


def test_where_none_is_simple_it_is_hardly_ever_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    read = bulk._read

    def counted(lines: bytes) -> list[Any]:
        nonlocal looked
        looked += 1
        return read(lines)

    monkeypatch.setattr(bulk, "_read", counted)
    recogniser = Recogniser()
    assert sum(recogniser.recognise([b'{"op": "stable", "vc": 1}'] * MANY)) == 0
    assert looked <= 4
    assert sum(recogniser.recognise([b'{"op":"stable","vc":7}'] * MANY)) >= MANY - 128 * 16
