"""Records to elements and back, whatever the bytes are."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable, defect
from lmerge_service.errors import ElementError
from lmerge_service.formats import wire
from lmerge_service.formats.payload import PayloadCache
from lmerge_service.formats.reasons import Reason
from lmerge_service.formats.wire import WireDecoder, encode
from tests.formats.oracle import element_meaning, meaning
from tests.formats.strategies import damaged, elements, records


def decoded(record: bytes) -> Element:
    return WireDecoder().decode(record)


def refusal(record: bytes | None, decoder: WireDecoder | None = None) -> str:
    with pytest.raises(ElementError) as refused:
        (decoder or WireDecoder()).decode(record)
    assert refused.value.reason in set(Reason)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400
    return refused.value.reason


def refused_message(record: bytes) -> str:
    with pytest.raises(ElementError) as refused:
        decoded(record)
    return str(refused.value)


@pytest.mark.parametrize(
    ("record", "element"),
    [
        (b'{"op":"insert","payload":{"b":1,"a":2.0},"vs":1,"ve":9}',
         Insert(b'{"a":2,"b":1}', 1, 9)),
        (b'{"op":"adjust","payload":"A","vs":1,"vold":9,"ve":5}', Adjust(b'"A"', 1, 9, 5)),
        (b'{"op":"adjust","payload":"A","vs":1,"vold":9,"ve":1}', Adjust(b'"A"', 1, 9, 1)),
        (b'{"op":"stable","vc":7}', Stable(7)),
        (b'\r\n{"vc" : -7 ,\t"op":"stable"}\r\n', Stable(-7)),
        (b'{"ve":9,"vs":1,"payload": [ 1 ] ,"op":"insert"}', Insert(b"[1]", 1, 9)),
        (b'{"op":"insert","payload":null,"vs":-0,"ve":9}', Insert(b"null", 0, 9)),
        (rb'{"\u006fp":"\u0069nsert","payload":"\u0041","vs":1,"ve":9}', Insert(b'"A"', 1, 9)),
        (b'{"op":"insert","payload":{"op":"x","vs":1,"vs2":[]},"vs":1,"ve":9}',
         Insert(b'{"op":"x","vs":1,"vs2":[]}', 1, 9)),
    ],
)  # fmt: skip
def test_a_record_is_an_element_in_any_order_and_spacing(record: bytes, element: Element) -> None:
    assert decoded(record) == element
    assert type(decoded(record)) is type(element)


@pytest.mark.parametrize(
    ("element", "record"),
    [
        (Insert(b'{"a":1}', 1, 9), b'{"op":"insert","payload":{"a":1},"vs":1,"ve":9}'),
        (Insert(b"1", START, INFINITY), b'{"op":"insert","payload":1,"vs":%d,"ve":null}' % START),
        (Adjust(b"1", 1, 9, 5), b'{"op":"adjust","payload":1,"vs":1,"vold":9,"ve":5}'),
        (
            Adjust(b"1", 1, INFINITY, 5),
            b'{"op":"adjust","payload":1,"vs":1,"vold":null,"ve":5}',
        ),
        (
            Adjust(b"1", 1, 9, INFINITY),
            b'{"op":"adjust","payload":1,"vs":1,"vold":9,"ve":null}',
        ),
        (Stable(7), b'{"op":"stable","vc":7}'),
        (Stable(INFINITY), b'{"op":"stable","vc":null}'),
    ],
)
def test_an_element_is_written_compactly_with_null_for_infinity(
    element: Element, record: bytes
) -> None:
    assert encode(element) == record
    assert decoded(record) == element


def test_only_elements_can_be_written() -> None:
    with pytest.raises(ValueError, match="not an element"):
        encode("stable")  # type: ignore[arg-type]


@given(elements())
def test_what_is_written_is_read_back(element: Element) -> None:
    assert defect(element) is None
    assert decoded(encode(element)) == element


# Times


@pytest.mark.parametrize("end", [b"null", b"9223372036854775807"])
def test_infinity_is_null_or_by_rule_the_largest_int64(end: bytes) -> None:
    """W9 of the faults: the two must not be two different ends."""
    assert decoded(b'{"op":"insert","payload":1,"vs":0,"ve":%b}' % end) == Insert(b"1", 0, INFINITY)
    assert decoded(b'{"op":"stable","vc":%b}' % end) == Stable(INFINITY)
    for vold, ve in ((end, b"5"), (b"5", end), (end, end)):
        adjust = decoded(b'{"op":"adjust","payload":1,"vs":0,"vold":%b,"ve":%b}' % (vold, ve))
        assert encode(adjust).count(b"null") == (vold, ve).count(end)


@pytest.mark.parametrize(
    "time", [-1, 0, 2**53, 2**53 + 1, 2**63 - 2, -(2**63), -(2**63) + 1, 10**18, -(10**18)]
)
def test_an_int64_time_is_read_exactly(time: int) -> None:
    record = b'{"op":"insert","payload":1,"vs":%d,"ve":null}' % time
    assert decoded(record) == Insert(b"1", time, INFINITY)
    assert encode(decoded(record)) == record


@pytest.mark.parametrize(
    "time",
    [
        b"1.0", b"1e2", b"0.5", b"-0.0", b"true", b"false", b'"1"', b'"Infinity"', b"[1]", b"{}",
        b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1e400",
        b"1" * 50, b"1" * 5000,
    ],
)  # fmt: skip
def test_a_time_that_is_not_an_int64_integer_is_refused(time: bytes) -> None:
    for record in (
        b'{"op":"insert","payload":1,"vs":%b,"ve":null}',
        b'{"op":"insert","payload":1,"vs":-9,"ve":%b}',
        b'{"op":"adjust","payload":1,"vs":-9,"vold":9,"ve":%b}',
        b'{"op":"adjust","payload":1,"vs":-9,"vold":%b,"ve":9}',
        b'{"op":"stable","vc":%b}',
    ):
        assert refusal(record % time) == "not_an_element"


@pytest.mark.parametrize("time", [b"NaN", b"Infinity", b"01", b"+1", b"0x1", b"1_0"])
def test_a_time_that_is_no_json_is_refused(time: bytes) -> None:
    assert refusal(b'{"op":"stable","vc":%b}' % time) == "not_json"


@pytest.mark.parametrize("spaced", [b"", b"                                      "])
@pytest.mark.parametrize(
    "record",
    [
        b'{"op":"insert","payload":1,"vs":null,"ve":9}',
        b'{"op":"insert","payload":1,"vs":9,"ve":9}',
        b'{"op":"insert","payload":1,"vs":9,"ve":8}',
        b'{"op":"insert","payload":1,"vs":9223372036854775807,"ve":null}',
        b'{"op":"adjust","payload":1,"vs":null,"vold":9,"ve":9}',
        b'{"op":"adjust","payload":1,"vs":9,"vold":9,"ve":9}',
        b'{"op":"adjust","payload":1,"vs":9,"vold":8,"ve":9}',
        b'{"op":"adjust","payload":1,"vs":9,"vold":10,"ve":8}',
        b'{"op":"adjust","payload":1,"vs":9223372036854775807,"vold":null,"ve":null}',
    ],
)
def test_times_in_an_order_that_no_element_has_are_refused(record: bytes, spaced: bytes) -> None:
    """E2 of `elements`, on the way that trusts lengths and on the one that counts quotes."""
    assert refusal(spaced + record) == "not_an_element"


def test_the_message_names_what_is_wrong() -> None:
    assert refused_message(b'{"op":"insert","payload":1,"vs":9,"ve":9}') == (
        "an insert needs vs < ve, got vs=9, ve=9"
    )
    assert (
        refused_message(b'{"op":"stable","vc":1.5}')
        == "Expected `int | null`, got `float` - at `$.vc`"
    )


# Shapes


@pytest.mark.parametrize(
    "record",
    [
        b"{}", b"[]", b"1", b"null", b'"insert"', b'[{"op":"stable","vc":1}]',
        b'{"op":"stable"}', b'{"vc":1}', b'{"op":"stables","vc":1}', b'{"op":1,"vc":1}',
        b'{"op":null,"vc":1}', b'{"op":"stable","vc":1,"x":1}', b'{"op":"stable","vc":1,"vs":1}',
        b'{"op":"insert","vs":1,"ve":9}', b'{"op":"insert","payload":1,"vs":1}',
        b'{"op":"insert","payload":1,"vs":1,"vold":9,"ve":9}',
        b'{"op":"adjust","payload":1,"vs":1,"ve":9}', b'{"OP":"stable","vc":1}',
        b'{"op":"stable","vc":1,"":1}', rb'{"op":"stable","vc":1,"op\"":1}',
        rb'{"op":"stable","vc":1,"x\n' + b"y" * 9999 + b'":1}',
        b'{"op":"' + b"x" * 9999 + b'","vc":1}',
    ],
)  # fmt: skip
def test_json_that_is_no_element_is_refused(record: bytes) -> None:
    assert refusal(record) == "not_an_element"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "tombstone"),
        (b"", "not_json"),
        (b" ", "not_json"),
        (b"null", "not_an_element"),
        (b'{"op":"insert","payload":{"a":1},"vs":1,"ve"', "not_json"),
        (b'{"op":"stable","vc":1}{"op":"stable","vc":2}', "not_json"),
        (b'{"op":"stable","vc":1}\n{"op":"stable","vc":2}', "not_json"),
        (b'{"op":"stable","vc":1}\x00', "not_json"),
        (b'\xef\xbb\xbf{"op":"stable","vc":1}', "not_json"),
        (b"\x00\x00\x00\x00\x07avro", "not_json"),
        (b"\xff\xfe\x00", "not_utf8"),
        (b'{"op":"stable","vc":1,"\xff":1}', "not_utf8"),
        (b'{"op":"insert","payload":"\xff","vs":1,"ve":9}', "not_utf8"),
        (b'{"op":"insert","payload":{"\xed\xa0\x80":1},"vs":1,"ve":9}', "lone_surrogate"),
        (rb'{"op":"insert","payload":"\ud800","vs":1,"ve":9}', "lone_surrogate"),
        (rb'{"op":"insert","payload":{"\udead":1},"vs":1,"ve":9}', "lone_surrogate"),
        (b'{"op":"insert","payload":NaN,"vs":1,"ve":9}', "not_json"),
        (b'{"op":"insert","payload":1e400,"vs":1,"ve":9}', "number"),
        (b'{"op":"insert","payload":{"a":1,"a":2},"vs":1,"ve":9}', "duplicate_key"),
        (b'{"op":"insert","payload":"\x01","vs":1,"ve":9}', "not_json"),
        (rb'{"op":"insert","payload":"\x","vs":1,"ve":9}', "not_json"),
        (b'{"op":"insert","payload":%b1%b,"vs":1,"ve":9}' % (b"[" * 65, b"]" * 65), "nesting"),
        (b'{"op":"insert","payload":%b%b,"vs":1,"ve":9}' % (b"[" * 9_999, b"]" * 9_999), "nesting"),
        (b'{"op":"insert","payload":' + b'{"a":' * 10_000, "nesting"),
        (b"[" * 10_000, "nesting"),
        (b'{"x":' * 100_000, "nesting"),
        (b'"' + b"x" * (10 << 20) + b'"', "too_large"),
    ],
    ids=range(27),
)  # fmt: skip
def test_every_poison_pill_has_its_reason(record: bytes | None, reason: str) -> None:
    """X14, X15, E1, E5 and E6 of the faults; a decoder goes on after each."""
    decoder = WireDecoder()
    for _ in range(2):
        assert refusal(record, decoder) == reason
        assert decoder.decode(b'{"op":"stable","vc":1}') == Stable(1)


def test_a_payload_may_nest_as_deep_as_the_limit() -> None:
    payload = b"[" * 64 + b"]" * 64
    assert decoded(b'{"op":"insert","payload":%b,"vs":1,"ve":9}' % payload) == Insert(payload, 1, 9)
    decoder = WireDecoder(max_depth=1)
    assert decoder.decode(b'{"op":"insert","payload":[],"vs":1,"ve":9}') == Insert(b"[]", 1, 9)
    assert refusal(b'{"op":"insert","payload":[[]],"vs":1,"ve":9}', decoder) == "nesting"


def test_a_record_may_be_as_large_as_the_limit() -> None:
    record = b'{"op":"insert","payload":1,"vs":1,"ve":9}'
    assert WireDecoder(max_record_bytes=len(record)).decode(record) == Insert(b"1", 1, 9)
    assert refusal(record, WireDecoder(max_record_bytes=len(record) - 1)) == "too_large"


# A field given twice


FIELDS = {
    "insert": [b"op", b"payload", b"vs", b"ve"],
    "adjust": [b"op", b"payload", b"vs", b"vold", b"ve"],
    "stable": [b"op", b"vc"],
}


@pytest.mark.parametrize("op", FIELDS)
def test_a_field_given_twice_is_refused_whatever_hides_it(op: str) -> None:
    """Every field again at every place, with short and long values, names and times."""
    escaped = {name: b"\\u%04x%b" % (name[0], name[1:]) for name in FIELDS[op]}
    payloads = [b"1", b'""', rb'"\"\\\""', b'{"a":"b"}', rb'"\u0022"', b"[" + b"1," * 60 + b"1]"]
    tried = 0
    for payload, digits in product(payloads, [1, 2, 5, 13, 18, 19]):
        earliest = 10 ** (digits - 1) if digits > 1 else 0
        for vold, ve in product([b"null", b"%d" % (earliest + 2)], repeat=2):
            values: dict[bytes, bytes] = {
                b"op": b'"%b"' % op.encode(), b"payload": payload,
                b"vs": b"%d" % earliest, b"vold": vold, b"ve": ve, b"vc": ve,
            }  # fmt: skip
            once = [b'"%b":%b' % (name, values[name]) for name in FIELDS[op]]
            assert decoded(b"{" + b",".join(once) + b"}")
            for name, place in product(FIELDS[op], range(len(once) + 1)):
                for value, again in product(
                    [values[name], values[name] if name == b"op" else b"0"],
                    [name, escaped[name]],
                ):
                    twice = [*once[:place], b'"%b":%b' % (again, value), *once[place:]]
                    assert refusal(b"{" + b",".join(twice) + b"}") in TWICE
                    tried += 1
    assert tried > 1000 or op == "stable"


TWICE = {"duplicate_key", "not_an_element"}
"""The second value may also be a wrong one, such as a ve that is not beyond vs."""


def test_a_field_given_twice_is_blamed_as_such() -> None:
    """E5 of the faults: Python's json would keep the last."""
    for record in (
        b'{"op":"insert","payload":1,"vs":1,"ve":8,"ve":9}',
        b'{"op":"insert","payload":1,"vs":1,"ve":9,"payload":2}',
        b'{"op":"insert","op":"insert","payload":1,"vs":1,"ve":9}',
        b'{"op":"stable","vc":1,"vc":1}',
    ):
        assert refusal(record) == "duplicate_key"


@given(st.integers(0, 19), st.integers(0, 19), st.integers(0, 19), st.integers(0, 40))
def test_lengths_prove_that_nothing_is_there_twice_only_when_7_bytes_are_not_left(
    vs_digits: int, vold_digits: int, ve_digits: int, spare: int
) -> None:
    """The tables by which most records need no counting, against their definition."""
    vs, vold, ve = (
        10 ** (digits - 1) if digits > 1 else 0
        for digits in sorted((vs_digits, vold_digits, ve_digits))
    )
    for table, record in (
        (wire._CLOSED_INSERT, f'{{"op":"insert","payload":,"vs":{vs},"ve":{ve}}}'),
        (wire._OPEN_INSERT, f'{{"op":"insert","payload":,"vs":{vs},"ve":null}}'),
        (wire._CLOSED_ADJUST, f'{{"op":"adjust","payload":,"vs":{vs},"vold":{vold},"ve":{ve}}}'),
        (wire._CLOSING_ADJUST, f'{{"op":"adjust","payload":,"vs":{vs},"vold":null,"ve":{ve}}}'),
    ):
        outside = len(record) + spare
        if outside < len(table) and table[outside] <= vs:
            assert spare < 7


def test_compact_records_need_no_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cost is asserted by the way taken, not by time."""
    monkeypatch.setattr(wire, "_check_quotes", None)
    for vs in (123_456, 1_700_000_000_000, 10**18):
        for element in (
            Insert(b'"A"', vs, vs + 60_000),
            Insert(b'"A"', vs, INFINITY),
            Adjust(b'"A"', vs, vs + 60_000, vs + 30_000),
            Adjust(b'"A"', vs, vs + 60_000, vs),
            Adjust(b'"A"', vs, INFINITY, vs + 30_000),
        ):
            assert decoded(encode(element)) == element


# Whatever the bytes


@given(damaged(records() | elements().map(encode)) | st.binary(max_size=60))
@example(b'{"op":"insert","payload":-0.0,"vs":-0,"ve":1}')
@example(b'{"op":"insert","payload":1,"vs":1e0,"ve":2}')
@example(b'{"op":"insert","payload":1,"vs":0,"ve":1,"\\u006fp":"insert"}')
def test_a_record_means_what_the_oracle_reads_or_is_refused_with_a_reason(record: bytes) -> None:
    expected = element_meaning(record)
    try:
        element = decoded(record)
    except ElementError:
        assert refusal(record)
        assert expected is None
    else:
        assert defect(element) is None
        assert expected == parts_of(element)
        assert decoded(encode(element)) == element


def parts_of(element: Element) -> tuple[Any, ...]:
    match element:
        case Insert(payload, vs, ve):
            return "insert", meaning(payload), vs, ve
        case Adjust(payload, vs, vold, ve):
            return "adjust", meaning(payload), vs, vold, ve
        case Stable(vc):
            return "stable", vc


@given(st.lists(damaged(elements().map(encode)), max_size=4))
@settings(max_examples=40)
def test_what_a_decoder_has_seen_changes_nothing_of_what_it_decodes(records: list[bytes]) -> None:
    decoders = [WireDecoder(cache=PayloadCache(max_entries=4)), WireDecoder()]
    for record in [*records, *records]:
        outcomes = []
        for decoder in (*decoders, WireDecoder()):
            try:
                outcomes.append(repr(decoder.decode(record)))
            except ElementError as refused:
                outcomes.append(f"{refused.reason}: {refused}")
        assert len(set(outcomes)) == 1


# Sharing


def test_decoders_of_several_replicas_share_payload_objects() -> None:
    cache = PayloadCache()
    one, two = WireDecoder(cache=cache), WireDecoder(cache=cache)
    first = one.decode(b'{"op":"insert","payload":{"a":1},"vs":1,"ve":9}')
    second = two.decode(b'{"op":"adjust","payload":{"a": 1.0},"vs":1,"vold":9,"ve":5}')
    assert isinstance(first, Insert)
    assert isinstance(second, Adjust)
    assert first.payload is second.payload


def test_a_payload_does_not_keep_its_record_in_memory() -> None:
    record = b'{"op":"insert","payload":{"a":1},"vs":1,"ve":9}' + b" " * 100_000
    element = decoded(record)
    assert isinstance(element, Insert)
    assert type(element.payload) is bytes
    assert len(element.payload) == 7


def test_a_cache_of_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="another rule"):
        WireDecoder(nfc=True, cache=PayloadCache())
    assert WireDecoder(nfc=True, cache=PayloadCache(nfc=True))


# What is kept of records


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes | None]:
    """Records that come again: sound, damaged and none, short and long, also in other objects."""
    sound = elements().map(encode) | elements().map(encode).map(lambda record: record + b" " * 400)
    distinct = draw(
        st.lists(damaged(sound | records()) | sound | st.none(), min_size=1, max_size=6)
    )
    again = draw(st.lists(st.sampled_from(distinct), max_size=24))
    return [record and bytes(bytearray(record)) for record in again]


@given(conversations(), st.integers(0, 9), st.sampled_from([0, 500, 700, 1400, 4000, 1 << 20]))
@example([b'{"op":"insert","payload":1,"vs":1,"ve":9}'] * 3, 1, 1 << 20)
@example([b'{"op":"stable","vc":1}'] * 3, 9, 1 << 20)
def test_what_is_looked_up_is_what_would_be_read(
    consumed: list[bytes | None], kept_records: int, kept_bytes: int
) -> None:
    """W4, against a decoder that has seen nothing."""
    decoder = WireDecoder(max_record_bytes=600, kept_records=kept_records, kept_bytes=kept_bytes)
    for record in consumed:
        kept = found(decoder, record)
        outcome = fate(decoder.seen.__getitem__, record)
        assert outcome == fate(WireDecoder(max_record_bytes=600).decode, record)
        if kept is not None:
            assert found(decoder, record) is kept
        decoder.check()
        everything = {**decoder._old, **decoder.seen}
        assert len(everything) <= kept_records
        assert sum(map(len, everything)) + wire._ENTRY_BYTES * len(everything) <= kept_bytes


def found(decoder: WireDecoder, record: bytes | None) -> Element | None:
    """The element of a record that is kept; asks without having it made."""
    return {**decoder._old, **decoder.seen}.get(record)  # type: ignore[arg-type]


def fate(read: Callable[[Any], Element], record: bytes | None) -> str:
    try:
        return repr(read(record))
    except ElementError as refused:
        return f"{refused.reason}: {refused}"


def insert(payload: int) -> bytes:
    return b'{"op":"insert","payload":%d,"vs":1,"ve":9}' % payload


ONE = len(insert(1)) + wire._ENTRY_BYTES
"""What is charged for a record of `insert`."""


def keepers(decoder: WireDecoder) -> list[int]:
    """Which of ten inserts are kept."""
    return [number for number in range(10) if found(decoder, insert(number)) is not None]


def test_a_record_that_comes_again_gives_the_same_object() -> None:
    decoder = WireDecoder()
    first = decoder.seen[insert(1)]
    assert decoder.seen[insert(1)] is first
    assert decoder.decode(insert(1)) == first


def test_no_stable_is_kept_and_none_takes_the_place_of_another_record() -> None:
    decoder = WireDecoder(kept_records=2)
    first = decoder.seen[insert(1)]
    for vc in range(9):
        assert decoder.seen[b'{"op":"stable","vc":%d}' % vc] == Stable(vc)
    assert len(decoder.seen) == 1
    assert decoder.seen[insert(1)] is first


def test_what_is_refused_is_refused_again_and_not_kept() -> None:
    decoder = WireDecoder(kept_records=2)
    for _ in range(2):
        for record in (b'{"op":"insert","payload":1,"vs":9,"ve":1}', b"", None):
            with pytest.raises(ElementError):
                decoder.seen[record]  # type: ignore[index]
    assert not decoder.seen


@pytest.mark.parametrize(
    "build", [partial(WireDecoder, kept_records=6), partial(WireDecoder, kept_bytes=6 * ONE)]
)
def test_of_a_full_generation_and_the_one_before_all_is_kept(
    build: Callable[[], WireDecoder],
) -> None:
    decoder = build()
    kept = []
    for number in range(8):
        assert decoder.seen[insert(number)]
        decoder.check()
        kept.append(keepers(decoder))
    assert kept[5:] == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6], [3, 4, 5, 6, 7]]


def test_what_is_asked_for_outlives_its_generation() -> None:
    decoder = WireDecoder(kept_records=4)
    first = decoder.seen[insert(0)]
    for number in range(1, 10):
        assert decoder.seen[insert(number)]
        assert decoder.seen[insert(0)] is first
    decoder.check()


def test_a_record_larger_than_a_generation_is_not_kept_and_drives_nothing_out() -> None:
    decoder = WireDecoder(kept_bytes=4 * ONE)
    first = decoder.seen[insert(1)]
    large = insert(2) + b" " * 2 * ONE
    assert decoder.seen[large] == decoder.seen[large] == Insert(b"2", 1, 9)
    assert keepers(decoder) == [1]
    assert decoder.seen[insert(1)] is first
    decoder.check()


@pytest.mark.parametrize("build", [partial(WireDecoder, kept_records=n) for n in (0, 1)])
def test_a_decoder_may_keep_nothing(build: Callable[[], WireDecoder]) -> None:
    decoder = build()
    for _ in range(2):
        assert decoder.seen[insert(1)] == Insert(b"1", 1, 9)
        assert not decoder.seen
    decoder.check()


def test_no_decoder_returns_what_only_another_has_read() -> None:
    """They may go by other limits, and by another rule of equality."""
    record = '{"op":"insert","payload":"e\u0301","vs":1,"ve":9}'.encode()
    assert WireDecoder().seen[record] == Insert('"e\u0301"'.encode(), 1, 9)
    assert WireDecoder(nfc=True).seen[record] == Insert('"\xe9"'.encode(), 1, 9)
    small = WireDecoder(max_record_bytes=10)
    with pytest.raises(ElementError):
        small.seen[record]


def test_records_are_looked_up_as_long_as_some_have_been_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas with other writers never write the same bytes: to keep their records would cost more
    than it saves."""
    monkeypatch.setattr(wire, "_WINDOW", 64)
    decoder, at = WireDecoder(), iter(range(10**9))

    def read(records: int, *, again: bool) -> None:
        for _ in range(records // 2):
            record = b'{"op":"insert","payload":%d,"vs":1,"ve":2}' % next(at)
            other = record if again else record.replace(b"1,", b"1, ")
            for each in (record, other):
                element = decoder.seen[each] if decoder.keeps else decoder.decode(each)
                assert isinstance(element, Insert)
        decoder.weigh(records)

    kept = []
    for again in (True, False, *[True] * 8, True):
        read(64, again=again)
        kept.append(decoder.keeps)
        assert decoder.keeps or not decoder.seen
        decoder.check()
    assert kept == [True, False, *[False] * 7, True, True]
