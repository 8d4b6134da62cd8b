"""What a replica publishes is what a merge reads."""

from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.payload import canonical
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.queries.rows import Kind, Schema
from lmerge_service.replicas.encoding import RowEncoder

ITEMS = {
    Kind.BOOL: st.booleans(),
    Kind.INT: st.integers(-(2**63), 2**63 - 1),
    Kind.FLOAT: st.floats(allow_nan=False, allow_infinity=False),
    Kind.STR: st.text(st.characters(exclude_categories=["Cs"])),
}
NAMES = st.lists(st.sampled_from(["b", "a", "B", "n 1", 'q"', "ö", "€"]), unique=True, max_size=4)


@given(st.data(), NAMES)
def test_a_payload_is_canonical_and_comes_back(data: st.DataObject, names: list[str]) -> None:
    schema = Schema.of({name: data.draw(st.sampled_from(Kind)) for name in names})
    row = tuple(data.draw(st.none() | ITEMS[column.kind]) for column in schema)
    payload = RowEncoder(schema).payload(row)
    assert payload == schema.payload(row) == canonical(payload)


def test_records_are_elements() -> None:
    encoder = RowEncoder(Schema.of({"origin": str, "n": int}))
    elements: list[Element] = [
        Insert(("JFK", 1), 2, INFINITY),
        Adjust(("JFK", 1), 2, INFINITY, 9),
        Adjust((None, 1), 2, 8, 2),
        Stable(INFINITY),
    ]
    records = encoder.records(elements)
    decoded = [WireDecoder().decode(value) for _, value in records]
    assert [key for key, _ in records] == [
        *[b'{"n":1,"origin":"JFK"}'] * 2,
        b'{"n":1,"origin":null}',
        None,
    ]
    assert [str(each).replace('b\'{"n":1,"origin":"JFK"}\'', "R") for each in decoded] == [
        f"Insert(payload=R, vs=2, ve={INFINITY})",
        f"Adjust(payload=R, vs=2, vold={INFINITY}, ve=9)",
        """Adjust(payload=b'{"n":1,"origin":null}', vs=2, vold=8, ve=2)""",
        f"Stable(vc={INFINITY})",
    ]
