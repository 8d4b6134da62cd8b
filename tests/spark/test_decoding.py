"""A row is what the merge would decode from its record, whatever the record is; without a JVM."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.headers import incarnation_of
from lmerge_service.formats.wire import encode
from lmerge_service.spark.io.decoding import _worker, decoding, rows_of
from tests.engines import ENGINES
from tests.formats.strategies import damaged, elements, records

Headers = list[tuple[str, bytes | None]] | None
Row = tuple[Any, ...]

RECORD_FIELDS = (
    *("source", "partition", "offset", "timestamp", "key", "incarnation", "joining_at"),
    *("op", "payload", "vs", "vold", "ve", "vc", "reason", "message", "value"),
)
ANY_RECORD = st.one_of(
    elements().map(encode),
    elements().map(encode),
    records(),
    damaged(records() | elements().map(encode)),
    st.binary(max_size=30),
    st.none(),
)
RULES = st.builds(
    Rule,
    st.booleans(),
    st.booleans(),
    st.sampled_from([64, 1 << 20]),
    st.sampled_from([1, 5, 6, 64]),
)


@pytest.fixture(autouse=True, params=ENGINES, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What decodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMERGE_ENGINE", request.param)
        _worker.cache_clear()
        yield str(request.param)
    _worker.cache_clear()


def batch_of(values: list[bytes | None], headers: list[Headers] | None = None) -> pa.RecordBatch:
    count = len(values)
    texts = [
        ",".join(f"{k}={'-' if v is None else v.hex()}" for k, v in each or ()) or None
        for each in headers or [None] * count
    ]
    return pa.RecordBatch.from_pydict(
        {
            "source": pa.repeat("t", count),
            "partition": pa.array(range(count), pa.int32()),
            "offset": pa.array(range(7, count + 7), pa.int64()),
            "timestamp": pa.nulls(count, pa.timestamp("us", "UTC")),
            "key": pa.array([b"%d" % at for at in range(count)], pa.binary()),
            "headers": pa.array(texts, pa.string()),
            "value": pa.array(values, pa.binary()),
        }
    )


def rows(
    values: list[bytes | None],
    rule: Rule = Rule(),  # noqa: B008
    headers: list[Headers] | None = None,
) -> list[dict[str, Any]]:
    [batch] = decoding(rule, keys="refused")(iter([batch_of(values, headers)]))
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def expected(at: int, record: bytes | None, rule: Rule, headers: Headers = None) -> dict[str, Any]:
    """By the merge's own decoder, and in its order."""
    row: dict[str, Any] = dict.fromkeys(
        (
            "timestamp",
            "key",
            "op",
            "payload",
            "vs",
            "vold",
            "ve",
            "vc",
            "reason",
            "message",
            "value",
        )
    )
    row |= {"source": "t", "partition": at, "offset": at + 7, "incarnation": 0, "joining_at": START}
    decoder = rule.decoder()
    try:
        row["incarnation"], row["joining_at"] = incarnation_of(headers or [])  # type: ignore[arg-type]
        element = decoder.decode(record)
    except ElementError as error:
        message = str(error).encode(errors="backslashreplace").decode()
        return row | {
            "reason": error.reason, "message": message, "key": b"%d" % at, "value": record,
        }  # fmt: skip
    match element:
        case Insert(payload, vs, ve):
            return row | {"op": "insert", "payload": payload.decode(), "vs": vs, "ve": ve}
        case Adjust(payload, vs, vold, ve):
            text = payload.decode()
            return row | {"op": "adjust", "payload": text, "vs": vs, "vold": vold, "ve": ve}
        case Stable(vc):
            return row | {"op": "stable", "vc": vc}
    raise AssertionError(element)


@given(st.lists(ANY_RECORD, max_size=6), RULES)
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
@example([b'{"op":"adjust","payload":1,"vs":1,"vold":null,"ve":1}'], Rule())
@example([b'{"op":"insert","payload":{"a":1,"vs":2,"ve":3},"vs":1,"ve":9}'], Rule())
@example([b'{"op":"insert","payload":{"payload":{"payload":2}},"vs":1,"ve":9}'], Rule())
@example([b'{"op":"adjust","payload":[{"vold":1,"vs":2}],"vs":1,"vold":9,"ve":5}'], Rule())
def test_rows_are_what_the_merge_would_decode(values: list[bytes | None], rule: Rule) -> None:
    assert rows(values, rule) == [expected(at, each, rule) for at, each in enumerate(values)]
    for each in values:  # without neighbours that would send it the long way
        assert rows([each], rule) == [expected(0, each, rule)]


@given(st.lists(elements().map(encode), min_size=1, max_size=3), st.binary(max_size=9) | st.none())
def test_poison_in_the_midst_of_many_stays_where_it_is(
    values: list[bytes], poison: bytes | None
) -> None:
    many = [*values * 100, poison, *values * 60, poison, poison, *values]
    assert rows(many) == [expected(at, each, Rule()) for at, each in enumerate(many)]


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("lmerge-incarnation", b"2")],
        [("lmerge-incarnation", b"2"), ("lmerge-joining-at", b"-5")],
        [("lmerge-incarnation", b"2"), ("lmerge-incarnation", b"3")],
        [("lmerge-joining-at", b"5")],
        [("lmerge-incarnation", b"x")],
        [("lmerge-incarnation", None)],
        [("lmerge-incarnation", b"99999999999999999999")],
    ],
)
@pytest.mark.parametrize("record", [b'{"op":"stable","vc":7}', b"poison", None])
def test_headers_are_read_before_the_record(headers: Headers, record: bytes | None) -> None:
    good = b'{"op":"stable","vc":8}'
    found = rows([good, record, good], headers=[None, headers, None])
    assert found == [
        expected(0, good, Rule()),
        expected(1, record, Rule(), headers),
        expected(2, good, Rule()),
    ]


def test_keys_of_elements_are_kept_if_asked_for() -> None:
    for keys, kept in (("all", [b"0", b"1"]), ("refused", [None, b"1"])):
        batches = iter([batch_of([b'{"op":"stable","vc":7}', b"x"])])
        [batch] = decoding(Rule(), keys=keys)(batches)  # type: ignore[arg-type]
        assert batch.column("key").to_pylist() == kept


def test_simple_records_are_never_decoded_one_by_one(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cost is asserted by the way taken, not by time."""
    text = b"x" if engine == "native" else b'\\"'
    many = [
        encode(element)
        for vs in range(300)
        for element in (
            Insert(b'{"a":"%b","b":15}' % text, vs, vs + 9),
            Insert(b'"x"', vs, INFINITY),
            Adjust(b"[]", vs, vs + 9, vs),
            Adjust(b"null", vs, INFINITY, vs + 3),
            Stable(vs),
        )
    ]
    fresh = Rule(max_record_bytes=1000)  # whose decoder has seen nothing yet
    wanted = [expected(at, each, fresh) for at, each in enumerate(many)]
    monkeypatch.setattr("lmerge_service.spark.io.decoding._Rows.add", None)
    assert rows([*many], fresh) == wanted


@pytest.mark.parametrize(("start", "size"), [(0, 2), (1, 3), (3, 1), (2, 0)])
def test_a_part_of_an_array_is_decoded_as_a_whole_one(start: int, size: int) -> None:
    values = [encode(Insert(b'"%b"' % (b"x" * n), n, n + 5)) for n in range(3)]
    array = pa.array([*values, b"poison"], pa.binary()).slice(start, size)
    origin = {name: pa.nulls(size) for name in ("source", "partition", "offset", "timestamp")}
    found = rows_of(array, Rule(), origin).select(["op", "payload", "vs", "ve", "value"])
    whole = rows_of(pa.array(array.to_pylist(), pa.binary()), Rule(), origin)
    assert found.to_pylist() == whole.select(found.schema.names).to_pylist()


def test_a_batch_may_be_empty() -> None:
    origin = {name: pa.nulls(0) for name in ("source", "partition", "offset", "timestamp")}
    assert rows_of(pa.array([], pa.binary()), Rule(), origin).num_rows == 0
