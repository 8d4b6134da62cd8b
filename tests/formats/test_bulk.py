"""Many records at once say what each says alone, whatever they are and whoever is beside them."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats import bulk
from lmerge_service.formats.bulk import BulkDecoder, Columns, Rule
from lmerge_service.formats.wire import encode
from tests.formats.strategies import damaged, elements, records

Row = tuple[Any, ...]


def rows(columns: Columns) -> list[Row]:
    """As the rule itself would tell them."""
    told: list[Row] = [
        *zip(
            columns.op,
            columns.payload,
            columns.vs,
            columns.vold,
            columns.ve,
            columns.vc,
            strict=True,
        )
    ]
    for place, refusal in columns.refused.items():
        assert told[place] == (None,) * 6
        told[place] = refusal
    return told


def by_the_rule(said: Sequence[bytes | None], rule: Rule = Rule()) -> list[Row]:  # noqa: B008
    told: list[Row] = []
    for record in said:
        try:
            match rule.decoder().decode(record):
                case Insert(payload, vs, ve):
                    told.append(("insert", payload, vs, None, ve, None))
                case Adjust(payload, vs, vold, ve):
                    told.append(("adjust", payload, vs, vold, ve, None))
                case Stable(vc):
                    told.append(("stable", None, None, None, None, vc))
        except ElementError as error:
            told.append((error.reason, str(error)))
    return told


RECORDS = st.one_of(
    elements().map(encode),
    elements().map(encode),
    records(),
    damaged(records() | elements().map(encode)),
    st.binary(max_size=30),
    st.none(),
)
RULES = st.builds(
    Rule, st.booleans(), st.sampled_from([64, 1 << 20]), st.sampled_from([1, 5, 6, 64])
)


@given(st.lists(RECORDS, max_size=6), RULES)
@example([b'{"op":"stable","vc":1}\n{"op":"stable","vc":2}'], Rule())
@example([b'{"op":"stable","vc":1}\n{"op":"stable","vc":2}', b""], Rule())
@example([b'{"op":"stable"', b'"vc":1}'], Rule())
@example([b'{"op":"insert","payload":[1.0,0.5,"."],"vs":1,"ve":9}'], Rule())
@example([b'{"op":"insert","payload":[1.5],"vs":1,"ve":9}'], Rule())
@example([b'{"op":"insert","payload":[1e-07],"vs":1,"ve":9}'], Rule())
@example([b'{"op":"insert","payload":null,"vs":1,"ve":null}', b'{"op":"stable","vc":null}'], Rule())
@example([b'{"op":"insert","payload":1,"vs":%d,"ve":null}' % INFINITY], Rule())
@example([b'{"op":"insert","payload":1,"vs":%d,"ve":%d}' % (START, INFINITY)], Rule())
@example([b'{"op":"adjust","payload":1,"vs":1,"vold":1,"ve":1}'], Rule())
@example([b'{"op":"adjust","payload":1,"vs":1,"vold":9,"ve":0}'], Rule())
def test_many_records_say_what_each_says_alone(said: list[bytes | None], rule: Rule) -> None:
    assert rows(BulkDecoder(rule).decode(said)) == by_the_rule(said, rule)
    for record in said:  # without neighbours that would send it the long way
        assert rows(BulkDecoder(rule).decode([record])) == by_the_rule([record], rule)


@given(st.lists(elements().map(encode), min_size=1, max_size=3), st.binary(max_size=9) | st.none())
def test_a_decoder_goes_on_after_poison(said: list[bytes], poison: bytes | None) -> None:
    decoder = BulkDecoder()
    many = [*said * 100, poison, *said * 100, poison, *said]
    expected = by_the_rule(said)
    bad = by_the_rule([poison])
    assert rows(decoder.decode(many)) == [*expected * 100, *bad, *expected * 100, *bad, *expected]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"carrier":"UA","delay":-3,"on_time":null,"route":["EWR","IAH"]}',
        b'{"price":12.5,"quoted":"\\"","text":"K\xc3\xb6ln"}',
        b'{"host":"a.b","n":1}',
    ],
)
def test_what_we_write_ourselves_is_never_decoded_one_by_one(
    payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cost is asserted by the way taken, not by time."""
    decoder = BulkDecoder()
    many = [
        encode(element)
        for vs in range(500)
        for element in (
            Insert(payload, vs, vs + 9),
            Insert(payload, vs, INFINITY),
            Adjust(payload, vs, vs + 9, vs),
            Adjust(payload, vs, INFINITY, vs + 3),
            Stable(vs),
        )
    ]
    expected = by_the_rule(many)
    monkeypatch.setattr(bulk.Columns, "_decode", None)
    assert rows(decoder.decode(many)) == expected


def test_where_none_is_simple_it_is_hardly_ever_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    read = bulk._read

    def counted(lines: bytes) -> list[Any] | None:
        nonlocal tried
        tried += 1
        return read(lines)

    monkeypatch.setattr(bulk, "_read", counted)
    decoder = BulkDecoder()
    spaced = [b'{"op": "stable", "vc": %d}' % vc for vc in range(128 * 160)]
    assert decoder.decode(spaced).vc == [*range(128 * 160)]
    assert tried <= 12
    assert decoder.decode([b'{"op":"stable","vc":7}'] * 128 * 40).vc == [7] * 128 * 40
    assert tried >= 30, "simple ones are noticed again"
