"""Decoding many facts at once gives what the definition gives of each."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.queries.expressions import col
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.plan import Query, facts
from lmerge_service.queries.rows import Refusal, RefusalReason
from lmerge_service.replicas.facts import END, Fact, FactDecoder, Heartbeat

FIELDS = {"fact": str, "n": int, "x": float, "ok": bool}
POINTS = facts("f", time="time", fields=FIELDS, ends=col.fact == "end")
SPANS = facts("f", time="n", until="until", fields=FIELDS)
QUOTED = facts("f", time="time", fields={'n"': int})
BEATING = facts("f", time="n", until="until", fields=FIELDS, heartbeats=col.fact == "a")
QUERIES = st.sampled_from([POINTS, SPANS, QUOTED, BEATING])

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 1.5, 5.0, -0.0, 1e300]),
    st.sampled_from([float("nan"), float("inf")]),
    st.sampled_from(["end", "a", "\ud800", "ö", "line\nbreak", ""]),
    st.lists(st.integers(0, 1), max_size=1),
)
OBJECTS = st.dictionaries(
    st.sampled_from(["fact", "n", "x", "ok", "time", "until", "more"]), VALUES, max_size=7
)
TEXTS = st.builds(
    lambda each, plain, indent: json.dumps(each, ensure_ascii=plain, indent=indent).encode(
        errors="surrogatepass"
    ),
    st.one_of(OBJECTS, VALUES),
    st.booleans(),
    st.sampled_from([None, None, None, 1]),
)
RECORDS = st.one_of(
    TEXTS,
    TEXTS,
    TEXTS,
    st.sampled_from(
        [None, b"", b" ", b"{", b"\xff", b"{}\n{}", b'{"n":1e999}', b'{"more":"\xff"}']
    ),
    st.sampled_from([b'{"time":1,"time":2}', b"[" * 3000, b'{"n":1E2,"time":1}', b"null"]),
)


def defined(query: Query, value: bytes | None) -> Fact:
    """D1, as it stands."""
    try:
        fact: Any = json.loads((value or b"").decode())
    except (ValueError, RecursionError):
        return Refusal(RefusalReason.NOT_A_FACT, None, "")
    reader = FactReader(query.plan, 1)  # type: ignore[arg-type]
    row = reader.schema.row(fact)
    if not isinstance(row, Refusal) and reader.ends(row):
        return END
    if not isinstance(row, Refusal) and reader.is_heartbeat(row):
        time = reader.time(fact)
        return time if isinstance(time, Refusal) else Heartbeat(time)
    return reader.event(fact)


def without_excerpt(fact: Fact) -> Any:
    return (fact.reason, fact.column) if isinstance(fact, Refusal) else fact


@given(QUERIES, st.lists(RECORDS, max_size=6))
def test_many_facts_are_decoded_as_each_is_defined(
    query: Query, values: list[bytes | None]
) -> None:
    decoder = FactDecoder(query.plan)  # type: ignore[arg-type]
    expected = [without_excerpt(defined(query, value)) for value in values]
    assert [without_excerpt(fact) for fact in decoder.decode(values)] == expected
    assert [without_excerpt(decoder.decode([value])[0]) for value in values] == expected


def test_a_row_has_the_types_of_its_columns() -> None:
    (fact,) = FactDecoder(POINTS.plan).decode([b'{"time":3,"n":5.0,"x":2,"ok":true}'])  # type: ignore[arg-type]
    assert repr(fact) == "Insert(payload=(None, 5, 2.0, True), vs=3, ve=4)"


def test_a_fact_that_ends_its_partition_needs_no_time() -> None:
    (fact,) = FactDecoder(POINTS.plan).decode([b'{"fact":"end"}'])  # type: ignore[arg-type]
    assert fact is END
