"""Debezium's mark for a value that the log does not repeat, in each form and dialect."""

from typing import Any

import pytest
from pydantic import ValidationError

from lmerge_service.elements import Adjust, Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects import build_decoder
from lmerge_service.formats.dialects.unavailable import PLACEHOLDER, Unavailable
from lmerge_service.formats.payload import PayloadCache, canonical
from tests.formats.dialects import Record, decoded, decoder, options, refusal, value

KEY = b'{"id":1}'
P = "__debezium_unavailable_value"
OCTETS = [95, 95, 100, 101, 98, 101, 122, 105, 117, 109, 95, 117, 110, 97, 118, 97, 105, 108, 97]
OCTETS += [98, 108, 101, 95, 118, 97, 108, 117, 101]
SINGLE = ["Xw==", "Xw==", "ZA==", "ZQ==", "Yg==", "ZQ==", "eg==", "aQ==", "dQ==", "bQ=="]
SINGLE += ["Xw==", "dQ==", "bg==", "YQ==", "dg==", "YQ==", "aQ==", "bA==", "YQ==", "Yg=="]
SINGLE += ["bA==", "ZQ==", "Xw==", "dg==", "YQ==", "bA==", "dQ==", "ZQ=="]

MARKS: dict[str, Any] = {
    "text": P,
    "bytea": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    "blob as hex": "5f5f646562657a69756d5f756e617661696c61626c655f76616c7565",
    "hstore as map": {P: P},
    "hstore as json": f'{{"{P}":"{P}"}}',
    "text array": [P],
    "bytea array": ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="],
    "uuid array": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    "int array": OCTETS,
    "float array": [float(each) for each in OCTETS],
    "numeric(10,2) array": [each / 100 for each in OCTETS],
    "numeric(10,2) array as bytes": SINGLE,
    "numeric array": [{"scale": 0, "value": each} for each in SINGLE],
    "bool array": [True] * len(OCTETS),
}
"""By the type of the column, as JSON."""

DATA: dict[str, Any] = {
    "another text": P + ".",
    "text with it": f"see {P}",
    "array of two": [P, P],
    "object of two": {P: P, "a": 1},
    "numbers but one": [*OCTETS[:-1], 7],
    "numbers with another factor": [*(each / 100 for each in OCTETS[:-1]), 10.1],
    "nested": [OCTETS],
    "nothing": None,
    "zeros": [0] * len(OCTETS),
}


def change(op: str, t: int, after: Any, key: bytes | None = KEY, **more: Any) -> Record:
    return Record(value(op=op, after=after, source={"ts_ms": t}, **more), key)


def debezium(**fields: Any) -> Any:
    return decoder(dialect="debezium", stable={"lateness": 100}, **fields)


def rows(one: Any, *records: Record) -> list[Any]:
    """The payloads of the rows that begin."""
    return [each.payload for each in decoded(one, *records) if type(each) is Insert]


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_n12_each_form_of_the_mark_is_taken_over_or_refused(mark: Any) -> None:
    before = {"id": 1, "n": 1, "big": [True] * 3000}
    update = change("u", 2000, {"id": 1, "n": 2, "big": mark})
    emitted = rows(debezium(), change("c", 1000, before), update)
    whole = b'{"big":[%b],"id":1,"n":2}' % b",".join([b"true"] * 3000)
    assert emitted[1:] == [whole]
    assert refusal(debezium(), update) == "unavailable"


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_n12_what_only_resembles_the_mark_is_data(data: Any) -> None:
    one = debezium()
    emitted = rows(one, change("c", 1000, {"big": 1}), change("u", 2000, {"big": data}))
    assert emitted == [b'{"big":1}', canonical(value(big=data))]


def test_n12_so_many_true_are_data_where_nothing_large_was_before() -> None:
    flags = [True] * len(OCTETS)
    assert rows(debezium(), change("c", 1000, {"flags": flags})) == [value(flags=flags)]
    emitted = rows(
        debezium(), change("c", 1000, {"flags": [False]}), change("u", 2000, {"flags": flags})
    )
    assert emitted[1:] == [value(flags=flags)]


def test_n12_an_insertion_has_nothing_to_take_over_from() -> None:
    """The row that is there under its key is another one's."""
    one = debezium()
    decoded(one, change("c", 1000, {"id": 1, "big": "x"}))
    assert refusal(one, change("c", 2000, {"id": 1, "big": P})) == "unavailable"


def test_n12_the_row_before_is_the_one_under_the_old_key() -> None:
    one = debezium(key=["id"])
    decoded(one, change("c", 1000, {"id": 1, "big": "x"}, None))
    decoded(one, change("c", 1000, {"id": 2, "big": "other"}, None))
    moved = change("u", 2000, {"id": 3, "big": P}, None, before={"id": 1, "big": None})
    assert rows(one, moved) == [b'{"big":"x","id":3}']
    emitted = decoded(one, change("u", 2001, {"id": P, "n": 1}, None, before={"id": 3}))
    assert [each.payload for each in emitted if type(each) is Insert] == [b'{"id":3,"n":1}']
    assert len([each for each in emitted if type(each) is Adjust]) == 1, "the key is the one before"
    unknown = change("u", 2002, {"id": 2, "big": P}, None, before={"id": 9})
    assert refusal(one, unknown) == "unavailable"


@pytest.mark.parametrize(
    ("placeholder", "marks"),
    [
        ("none", ["none", ["none"], "bm9uZQ==", [110, 111, 110, 101], {"none": "none"}]),
        ("hex:fbff", ["+/8=", "-_8=", "fbff", "FBFF", [-5, -1], "\ufffd\ufffd", [-0.5, -0.1]]),
    ],
)
def test_n12_the_placeholder_is_the_connectors(placeholder: str, marks: list[Any]) -> None:
    for mark in marks:
        one = debezium(unavailable_value_placeholder=placeholder)
        update = change("u", 2000, {"big": mark, "n": 1})
        assert refusal(one, update) == "unavailable", mark
        emitted = rows(one, change("c", 1000, {"big": 5, "n": 0}), update)
        assert emitted == [b'{"big":5,"n":0}', b'{"big":5,"n":1}'], mark
    assert rows(one, change("c", 2000, {"big": P}, b"2")) == [value(big=P)], "not its mark"


@pytest.mark.parametrize("wrong", ["", "hex:", "hex:f", "hex:xy"])
def test_n12_a_placeholder_that_no_connector_takes_is_refused(wrong: str) -> None:
    for dialect in ("debezium", "upserts"):
        with pytest.raises(ValidationError, match="placeholder"):
            options(dialect=dialect, stable={"lateness": 1}, unavailable_value_placeholder=wrong)


def test_n12_rows_without_their_envelope_take_over_as_well() -> None:
    """Debezium's ExtractNewRecordState leaves the row alone, keyed by the primary key."""
    upserts: Any = {"dialect": "upserts", "stable": {"lateness": 100}, "key_into": "key"}
    before = Record(value(n=1, big="AAEC", tags=["a", "b"]), b"7", 1000)
    update = Record(value(n=2, big=MARKS["bytea"], tags=[P]), b"7", 2000)
    emitted = rows(decoder(**upserts), before, update)
    assert emitted[1:] == [b'{"big":"AAEC","key":7,"n":2,"tags":["a","b"]}']
    assert refusal(decoder(**upserts), update) == "unavailable"
    other = decoder(**upserts, unavailable_value_placeholder="?")
    assert rows(other, before, Record(value(n=2, big="?"), b"7", 2000))[1:] == [
        b'{"big":"AAEC","key":7,"n":2}'
    ]


def test_a_placeholder_is_found_in_the_form_that_rows_are_brought_to() -> None:
    mark = "o\u0308"  # two code points; one in NFC
    for dialect in ("debezium", "upserts"):
        more: Any = {"key_into": "key"} if dialect == "upserts" else {}
        form = options(
            dialect=dialect,
            stable={"lateness": 100},
            unavailable_value_placeholder=mark,
            **more,
        )
        one = build_decoder(form, PayloadCache(nfc=True), 1 << 20)
        before, update = (
            (Record(value(big=5, n=0), b"7", 1000), Record(value(big=mark, n=1), b"7", 2000))
            if dialect == "upserts"
            else (change("c", 1000, {"big": 5, "n": 0}), change("u", 2000, {"big": mark, "n": 1}))
        )
        assert all(b'"big":5' in row for row in rows(one, before, update)), dialect


def test_an_octet_of_zero_is_no_factor() -> None:
    mark = Unavailable("\0a")
    assert mark.whole(b'{"n":[5,97]}', b'{"n":[1]}', update=True) == b'{"n":[5,97]}'
    assert mark.whole(b'{"n":[0,970]}', b'{"n":[1]}', update=True) == b'{"n":[1]}'


def test_n12_a_refusal_names_the_column_and_what_to_do() -> None:
    with pytest.raises(ElementError, match=r"value of 'big' is unavailable.*REPLICA IDENTITY"):
        Unavailable(PLACEHOLDER).whole(b'{"big":["%b"]}' % P.encode(), b'{"n":1}', update=True)
