"""Events go where the service would route elements of the same key."""

from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import Insert
from lmerge_service.formats.routing import Router
from lmerge_service.queries.rows import Schema
from lmerge_service.replicas.routing import Route

SCHEMA = Schema.of({"n": int, "at:": str, "x": float})
ROWS = st.tuples(
    st.none() | st.integers(0, 9),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(st.lists(ROWS, max_size=9), st.sampled_from([["n"], ["at:"], ["x", "n"]]), st.integers(1, 4))
def test_a_route_is_the_services(rows: list[tuple[object, ...]], by: list[str], width: int) -> None:
    events = [Insert(row, at, at + 1) for at, row in enumerate(rows)]
    found = Route(SCHEMA, by, width).split(events)
    router = Router(width, by)
    expected: list[list[object]] = [[] for _ in range(width)]
    for event in events:
        expected[router.partition_of(SCHEMA.payload(event.payload))].append(event)
    assert found == expected


def test_sources_that_are_joined_meet() -> None:
    left = Route(Schema.of({"origin": str, "n": int}), ["origin"], 5)
    right = Route(Schema.of({"wind": float, "airport": str}), ["airport"], 5)
    assert left.key_of(("JFK", 1)) == right.key_of((3.0, "JFK")) == b'"JFK"'
