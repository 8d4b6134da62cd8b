"""Dialects, whatever the records: legal streams, functions of prefixes, and the way back."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError, IllegalStreamError
from lmerge_service.formats.dialects import WRITTEN, Decoder, Written, writer
from lmerge_service.tdb import TDB, Event, reconstitute
from tests.formats.dialects import Record, decoded, decoder, options, read, value
from tests.formats.strategies import damaged
from tests.strategies import logical_streams, presentations, seeded_presentations

TIMES = st.integers(0, 20)
KEYS = st.sampled_from([1, 2, 3])
NAMES = st.sampled_from(["A", "B", None])
"""None: no row."""
KINDS = st.sampled_from(["+I", "-U", "+U", "-D"])


def openclose_record(k: int, n: str | None, t: int, u: int) -> Record:
    if n is None and u % 4 == 0:
        return Record(value(op="stable", vc=t))
    if n is None:
        return Record(value(op="close", payload=k, ve=max(t, u)))
    both = value(op="close", payload=k, vs=t, ve=t + u % 5) if u % 2 else None
    return Record(both or value(op="open", payload=k, vs=t))


def debezium_record(k: int, n: str | None, t: int, u: int) -> Record:
    key = value(id=k)
    if u == 0:
        return Record(value(op="t", source={"ts_ms": t}))
    if u == 1:
        return Record(value(ts_ms=t))
    if u == 2:
        return Record(value(status="END", id="1"))
    after = None if n is None else {"id": k, "n": n}
    op = "d" if n is None else "cur"[u % 3]
    transaction = {"id": str(u // 6)}
    return Record(
        value(op=op, after=after, source={"ts_ms": t}, transaction=transaction, w=t - u), key
    )


def flink_record(k: int, n: str | None, t: int, u: int) -> Record:
    kind = ["-U", "-D"][u % 2] if n is None else ["+I", "+U"][u % 2]
    return Record(value(op=kind, id=k, n=n or "A", w=t - u, vs=t, ve=t + 1 + u), timestamp=t)


def canal_record(k: int, n: str | None, t: int, u: int) -> Record:
    rows = [{"id": key, "n": n or "A"} for key in range(k)]
    return Record(value(type="DELETE" if n is None else "INSERT", data=rows), timestamp=t)


def upserts_record(k: int, n: str | None, t: int, u: int) -> Record:
    if n is None:
        return Record(None, b"%d" % k, t)
    return Record(value(id=k, n=n, w=t - u, vs=t, ve=t + 1 + u), b"%d" % k, t)


LATENESS = {"lateness": 4}
MARK = {"watermark": "w"}
LIFETIME = {"lifetime": {"vs": "vs", "ve": "ve"}}
RECORDS_OF: dict[str, tuple[dict[str, Any], Any]] = {
    "openclose": ({"dialect": "openclose"}, openclose_record),
    "openclose late": ({"dialect": "openclose", "stable": LATENESS}, openclose_record),
    "debezium": ({"dialect": "debezium", "stable": LATENESS}, debezium_record),
    "debezium beating": (
        {"dialect": "debezium", "stable": {**LATENESS, "heartbeats": True}},
        debezium_record,
    ),
    "debezium by transaction": (
        {"dialect": "debezium", "stable": {"transactions": True}},
        debezium_record,
    ),
    "debezium marked": ({"dialect": "debezium", "stable": MARK}, debezium_record),
    "flink": (
        {"dialect": "flink", "encoding": "rowkind", "key": ["id"], "stable": MARK},
        flink_record,
    ),
    "flink without keys": (
        {"dialect": "flink", "encoding": "rowkind", "stable": LATENESS},
        flink_record,
    ),
    "canal": ({"dialect": "flink", "encoding": "canal-json", "stable": LATENESS}, canal_record),
    "upserts": ({"dialect": "upserts", "stable": MARK}, upserts_record),
    "upserts with lifetimes": ({"dialect": "upserts", "stable": MARK, **LIFETIME}, upserts_record),
}
of_each_dialect = pytest.mark.parametrize(("fields", "record"), RECORDS_OF.values(), ids=RECORDS_OF)
DRAWS = st.lists(st.tuples(KEYS, NAMES, TIMES, TIMES), max_size=14)


def outcome_of(one: Decoder, record: Record) -> list[Element] | str:
    """The elements of a record, or why it is refused, which changes nothing."""
    before = one.snapshot()
    try:
        elements = list(one.decode(record))
    except ElementError as refused:
        if one.snapshot() != before:
            raise AssertionError(f"refusing {record} changed the state") from refused
        return refused.reason
    one.check()
    return elements


@of_each_dialect
@settings(max_examples=50)
@given(draws=DRAWS)
def test_what_a_decoder_returns_is_legal(fields: Any, record: Any, draws: Any) -> None:
    one, tdb = decoder(**fields), TDB()
    for draw in draws:
        outcome = outcome_of(one, record(*draw))
        for element in outcome if isinstance(outcome, list) else []:
            tdb.apply(element)


@of_each_dialect
@settings(max_examples=50)
@given(draws=DRAWS, cut=st.integers(0, 14))
def test_a_restored_decoder_goes_on_as_one_that_has_read_the_prefix(
    fields: Any, record: Any, draws: Any, cut: int
) -> None:
    records = [record(*draw) for draw in draws]
    one, again = decoder(**fields), decoder(**fields)
    for each in records[:cut]:
        outcome_of(one, each)
    again.restore(one.snapshot())
    assert again.snapshot() == one.snapshot()
    again.check()
    for each in records[cut:]:
        assert outcome_of(again, each) == outcome_of(one, each)
    assert again.snapshot() == one.snapshot()


@of_each_dialect
@settings(max_examples=50)
@given(data=st.data(), draw=st.tuples(KEYS, NAMES, TIMES, TIMES))
def test_whatever_the_bytes_there_are_elements_or_a_reason(
    fields: Any, record: Any, draw: Any, data: st.DataObject
) -> None:
    one, tdb = decoder(**fields), TDB()
    for broken in data.draw(
        st.lists(damaged(st.just(record(*draw).value or b"{}")), min_size=1, max_size=3)
    ):
        outcome = outcome_of(one, Record(broken, b'{"id":1}', 7))
        for element in outcome if isinstance(outcome, list) else []:
            tdb.apply(element)


# The meaning of a changing table, by definition


def history(steps: Sequence[tuple[int, str | None, int, int]]) -> TDB:
    """Per key the row at each instant, by the last change at it; time stands rather than go back.

    The deletion of what is not there is no change.
    """
    rows: dict[int, dict[int, str | None]] = {}
    for k, n, t, _ in steps:
        own = rows.setdefault(k, {})
        last = max(own, default=START)
        if n is not None or own.get(last) is not None:
            own[max(t, last)] = n
    events: list[Event] = []
    for k, own in rows.items():
        instants = [*sorted(own), INFINITY]
        for vs, ve in pairwise(instants):
            if (n := own[vs]) is None:
                continue
            before = events[-1] if events else None
            if before is not None and (before.payload, before.ve) == (payload(k, n), vs):
                events[-1] = before._replace(ve=ve)
            else:
                events.append(Event(payload(k, n), vs, ve))
    return TDB(events)


def payload(k: int, n: str) -> bytes:
    return value(id=k, n=n)


@given(st.lists(st.tuples(KEYS, NAMES, TIMES, st.just(0)), max_size=12))
def test_a_table_is_the_history_of_its_keys(steps: Any) -> None:
    upserts = decoder(dialect="upserts", stable=MARK)
    debezium = decoder(dialect="debezium", stable=MARK)
    flink = decoder(dialect="flink", encoding="debezium-json", key=["id"], stable=MARK)
    read_back: list[list[Element]] = [[], [], []]
    for k, n, t, _ in steps:
        row = None if n is None else {"id": k, "n": n}
        old = {"id": k, "n": "?"}
        op = "d" if n is None else "u"
        read_back[0] += decoded(
            upserts, Record(None if row is None else value(**row), b"%d" % k, t)
        )
        read_back[1] += decoded(
            debezium, Record(value(op=op, after=row, source={"ts_ms": t}), b"%d" % k)
        )
        read_back[2] += decoded(flink, Record(value(op=op, before=old, after=row), timestamp=t))
    expected = history(steps)
    assert [reconstitute(each) for each in read_back[:2]] == [expected, expected]
    assert reconstitute(read_back[2]) == expected, (
        "deletion and insertion are distinguished from nothing"
    )


# The way back


def as_rows(elements: Sequence[Element]) -> list[Element]:
    """The payloads of the strategies as rows of the wire."""
    rows: list[Element] = []
    for element in elements:
        match element:
            case Insert(payload, vs, ve):
                rows.append(Insert(b'{"id":"%b"}' % payload.encode(), vs, ve))
            case Adjust(payload, vs, vold, ve):
                rows.append(Adjust(b'{"id":"%b"}' % payload.encode(), vs, vold, ve))
            case Stable():
                rows.append(element)
    return rows


def apart(logical: Sequence[Event]) -> list[Event]:
    """The events that neither overlap nor touch an earlier one of their payload."""
    kept: list[Event] = []
    ends: dict[object, int] = {}
    for event in sorted(logical, key=lambda event: event.vs):
        if ends.get(event.payload, START) < event.vs:
            kept.append(event)
            ends[event.payload] = event.ve
    return kept


def up_to(tdb: TDB, c: int) -> TDB:
    """What stable(c) has made final: an end at c or later is open."""
    return TDB((p, vs, ve if ve < c else INFINITY) for p, vs, ve in tdb if vs < c)


@pytest.mark.parametrize("name", ["debezium", "flink", "upserts"])
@given(data=st.data())
def test_what_is_written_reads_back_up_to_the_stable(name: str, data: st.DataObject) -> None:
    logical = apart(data.draw(logical_streams()))
    drawn = data.draw(st.sampled_from((presentations, seeded_presentations)))
    (stream,) = data.draw(drawn(logical, 1))
    elements = as_rows(stream)[: data.draw(st.integers(0, len(stream)))]
    write = writer(name).write
    one = decoder(WRITTEN[name])
    read_back, written = TDB(), TDB()
    for element in elements:
        written.apply(element)
        for each in read(one, write(element)):
            read_back.apply(each)
        if type(element) is Stable:
            assert read_back.stable == written.stable
            assert up_to(read_back, read_back.stable) == up_to(written, written.stable) == read_back


@given(data=st.data())
def test_open_and_close_read_back_element_by_element(data: st.DataObject) -> None:
    (stream,) = data.draw(
        data.draw(st.sampled_from((presentations, seeded_presentations)))(
            data.draw(logical_streams()), 1
        )
    )
    write, one = writer("openclose").write, decoder(WRITTEN["openclose"])
    read_back, written = TDB(), TDB()
    for element in as_rows(stream):
        written.apply(element)
        for each in read(one, write(element)):
            read_back.apply(each)
        assert (read_back, read_back.stable) == (written, written.stable)


def row(n: int) -> bytes:
    return b'{"id":1,"n":%d}' % n


UPDATED: list[Element] = [
    Insert(row(1), 3, INFINITY), Insert(row(2), 5, 9), Adjust(row(1), 3, INFINITY, 5), Stable(7),
    Stable(INFINITY),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "debezium",
            [
                b'{"before":null,"after":{"id":1,"n":1},"source":{"ts_ms":3},"op":"c","transaction":null}',
                b'{"before":{"id":1,"n":1},"after":{"id":1,"n":2},"source":{"ts_ms":5},"op":"u","transaction":null}',
                b'{"ts_ms":7}',
                b'{"before":{"id":1,"n":2},"after":null,"source":{"ts_ms":9},"op":"d","transaction":null}',
                None,
                b'{"ts_ms":9223372036854775807}',
            ],
        ),
        (
            "flink",
            [
                b'{"at":3,"id":1,"n":1,"op":"+I"}',
                b'{"at":5,"id":1,"n":1,"op":"-U"}',
                b'{"at":5,"id":1,"n":2,"op":"+U"}',
                b'{"watermark":7}',
                b'{"at":9,"id":1,"n":2,"op":"-D"}',
                b'{"watermark":9223372036854775807}',
            ],
        ),
        (
            "upserts",
            [row(1), row(2), b'{"watermark":7}', None, b'{"watermark":9223372036854775807}'],
        ),
    ],
)  # fmt: skip
def test_with_a_key_a_row_that_follows_another_is_an_update(
    name: str, expected: list[bytes | None]
) -> None:
    write = writer(name, ["id"]).write
    records: list[Written] = [record for element in UPDATED for record in write(element)]
    assert [record.value for record in records] == expected
    keys = {record.key for record in records if not record.everywhere}
    assert keys == {b'{"id":1}'}
    assert reconstitute(read(decoder(WRITTEN[name]), records)) == reconstitute(UPDATED)


@pytest.mark.parametrize(
    ("name", "elements", "message"),
    [
        ("debezium", [Insert(row(1), 3, 9), Insert(row(2), 5, 7), Stable(8)], "two rows of key"),
        ("debezium", [Insert(row(1), 3, 9), Insert(row(1), 3, 9)], "needs case R3"),
        ("debezium", [Adjust(row(1), 3, 9, 8)], "an adjust of no event"),
        ("debezium", [Insert(b"7", 3, 9), Stable(8)], "has no id"),
        ("flink", [Insert(b'{"id":1,"op":2}', 3, 9), Stable(8)], 'has a field "op" of its own'),
        ("upserts", [Insert(b'{"id":1,"watermark":2}', 3, 9), Stable(8)], "of its own"),
        ("upserts", [Insert(b'{"id":1}', -3, 9), Stable(8)], "no timestamps before 0"),
    ],
)
def test_what_a_dialect_cannot_express_is_an_error(
    name: str, elements: list[Element], message: str
) -> None:
    write = writer(name, ["id"]).write
    with pytest.raises(IllegalStreamError, match=message):
        _ = [write(element) for element in elements]


def test_the_written_formats_are_those_of_a_topology() -> None:
    for name, form in WRITTEN.items():
        assert options(**form.model_dump(exclude_unset=True)) == form
        assert form.dialect == name
