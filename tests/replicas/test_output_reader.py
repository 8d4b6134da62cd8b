"""Own records back to elements: at once what is as usual, and the rest as defined."""

from random import Random

import pytest

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, IllegalStreamError
from lmerge_service.queries.rows import Row, Schema
from lmerge_service.replicas.encoding import RowEncoder
from lmerge_service.replicas.output_reader import OutputReader

SCHEMA = Schema.of({"origin": str, "n": int, "mean": float, "late": bool})


def _drawn(rng: Random) -> Element:
    row: Row = (
        rng.choice(["JFK", "", None, "é", 'a "b"', "back\\slash", "\n"]),
        rng.choice([0, 7, None, -(2**63), 2**63 - 1]),
        rng.choice([0.5, 2.0, None, 1e300]),
        rng.choice([True, False, None]),
    )
    vs = rng.choice([START, 3])
    match rng.randrange(4):
        case 0:
            return Stable(rng.choice([4, INFINITY]))
        case 1:
            return Adjust(row, vs, rng.choice([5, INFINITY]), rng.choice([vs, 9, INFINITY]))
    return Insert(row, vs, rng.choice([5, INFINITY]))


def test_own_records_come_back_as_they_were() -> None:
    rng = Random(7)
    reader, encoder = OutputReader(SCHEMA), RowEncoder(SCHEMA)
    for _ in range(50):
        elements = [_drawn(rng) for _ in range(20)]
        values = [value for _, value in encoder.records(elements)]
        found = reader.at_once(values)
        assert [
            each or reader.element(v) for each, v in zip(found, values, strict=True)
        ] == elements
        usual = [v for v in values if b"\\" not in v]
        assert reader.at_once(usual) == [reader.element(value) for value in usual]


ROW = b'{"late":true,"mean":0.5,"n":7,"origin":"JFK"}'
NULLS = b'{"op":"insert","payload":{"n":7},"vs":3,"ve":9}'
"""By definition what is missing is null; we write it."""


@pytest.mark.parametrize(
    "value",
    [
        b'{"op":"insert","payload":' + ROW + b',"vs":3,"ve":3}',
        b'{"op":"insert","payload":' + ROW + b',"vs":3,"vs":3,"ve":9}',
        b'{"op":"adjust","payload":' + ROW + b',"vs":3,"vold":3,"ve":9}',
        b'{"op":"insert","payload":{"late":true,"mean":0.5,"n":7,"n":7,"origin":"JFK"},"vs":1,"ve":2}',
        b'{"op":"insert","payload":{"late":true,"mean":0.5,"n":7,"n":8},"vs":3,"ve":9}',
        NULLS,
        b'{"op":"insert","payload":{"late":1,"mean":0.5,"n":7,"origin":"JFK"},"vs":3,"ve":9}',
        b'{"op":"stable","vc":7,"vc":8}',
        b'{"op":"gone"}',
        b"\xff",
        None,
    ],
)
def test_what_is_unusual_is_left_to_the_definition(value: bytes | None) -> None:
    reader = OutputReader(SCHEMA)
    good = b'{"op":"insert","payload":' + ROW + b',"vs":3,"ve":9}'
    found = reader.at_once([good, value])
    assert found[0] in (None, Insert(("JFK", 7, 0.5, True), 3, 9))
    assert found[1] is None
    try:
        reader.element(value)
    except (ElementError, IllegalStreamError):
        return
    assert value == NULLS


def test_two_elements_in_one_record_are_none() -> None:
    stable = b'{"op":"stable","vc":7}'
    assert OutputReader(SCHEMA).at_once([stable + b"\n" + stable, stable]) == [None, None]


def test_columns_whose_names_json_escapes() -> None:
    schema = Schema.of({'a "b"': int, "c": int})
    elements: list[Element] = [Insert((1, 2), 3, 9)]
    values = [value for _, value in RowEncoder(schema).records(elements)]
    reader = OutputReader(schema)
    assert reader.at_once(values) == [None]
    assert [reader.element(value) for value in values] == elements
