"""The payload equality rule against an oracle that knows no canonical text, and its cache."""

import json
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.errors import ElementError
from lmerge_service.formats import payload
from lmerge_service.formats.payload import DEEPEST, PayloadCache, canonical
from lmerge_service.formats.reasons import Reason
from lmerge_service.formats.wire import WireDecoder
from tests.formats.oracle import meaning
from tests.formats.strategies import STYLES, damaged, json_texts, json_values, nfc_twins, written


def refusal(raw: bytes, **rule: bool | int) -> str:
    with pytest.raises(ElementError) as refused:
        canonical(raw, nfc=bool(rule.get("nfc")), max_depth=rule.get("max_depth", 64))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
    return refused.value.reason


def outcome(raw: bytes) -> bytes | Reason:
    try:
        return canonical(raw)
    except ElementError as refused:
        return Reason(refused.reason)


# The form


@pytest.mark.parametrize("raw", [b"1", b"1.0", b"1e0", b"1E+0", b" 10e-1", b"0.1e1", b"100e-02"])
def test_one_is_one_however_it_is_written(raw: bytes) -> None:
    assert canonical(raw) == b"1"


@pytest.mark.parametrize("raw", [b"0", b"-0", b"0.0", b"-0.0", b"0e999999999999999999999", b"-0e0"])
def test_zero_has_one_form_and_no_sign(raw: bytes) -> None:
    assert canonical(raw) == b"0"


def test_replicas_that_write_0_differently_meet_in_one_payload() -> None:
    """E2 of the faults: R1 publishes 0.0, R2 -0.0, R3 0."""
    cache = PayloadCache()
    one, two, three = (cache.young[b'{"x":%b}' % zero] for zero in (b"0.0", b"-0.0", b"0"))
    assert one is two is three


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("9007199254740993.0", "9007199254740993"),
        ("1e18", "1000000000000000000"),
        ("1e19", "1e+19"),
        ("10000000000000000000", "1e+19"),
        ("0.1", "0.1"),
        ("-2.50", "-2.5"),
        ("1234567890123456.5", "1234567890123456.5"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("-0.00005", "-5e-05"),
        ("1E-7", "1e-07"),
        ("1000000000000000.0", "1000000000000000"),
        ("-9999999999999998.0", "-9999999999999998"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("0.30000000000000004", "0.30000000000000004"),
        ("1" + "0" * 400 + "e-400", "1"),
    ],
)
def test_a_number_has_the_form_of_an_int64_or_of_repr(raw: str, text: str) -> None:
    assert canonical(raw.encode()).decode() == text
    assert canonical(f'[".",{raw}]'.encode()).decode() == f'[".",{text}]'


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r'"\u0041\/\u00e9\u007F"', '"A/é\x7f"'),
        (r'"\ud83d\ude00"', '"😀"'),
        (r'"\u0022\u005c\u0008\u000C\u000a\u000d\u0009"', r'"\"\\\b\f\n\r\t"'),
        (r'"\u001F\u0000"', r'"\u001f\u0000"'),
        ('"\u2028\ufeff\uffff"', '"\u2028\ufeff\uffff"'),
    ],
)
def test_a_string_escapes_only_what_json_demands(raw: str, text: str) -> None:
    assert canonical(raw.encode()).decode() == text


def test_keys_are_sorted_by_code_point_not_by_utf_16_unit() -> None:
    raw = '{"\U0001f600": 1, "\uffff": 2, "é": 3, "b": 4, "B": 5, "": 6}'
    assert canonical(raw.encode()).decode() == '{"":6,"B":5,"b":4,"é":3,"\uffff":2,"\U0001f600":1}'


def test_the_order_of_an_array_is_part_of_its_meaning() -> None:
    assert canonical(b"[1, 2]") != canonical(b"[2, 1]")


def test_composed_and_decomposed_letters_differ_unless_nfc_is_asked_for() -> None:
    composed, decomposed = '{"\u00e9":"\u00e9"}'.encode(), b'{"e\\u0301":"\\u0065\xcc\x81"}'
    assert canonical(composed) != canonical(decomposed)
    assert canonical(decomposed, nfc=True) == composed == canonical(composed, nfc=True)
    assert canonical(rb'{"\u0065\u0301":"e\u0301"}', nfc=True) == composed


REGISTRY = b"\0\0\0\0\7"


def test_n14_null_and_absent_are_two_payloads_unless_nulls_are_dropped() -> None:
    assert canonical(b'{"a":null}') == b'{"a":null}'
    assert canonical(b'{"a":null}', drop_nulls=True) == canonical(b"{}", drop_nulls=True) == b"{}"
    raw = b'{"b": {"c": null, "d": [null, {"e": null}]}, "a": 1e2, "t": "x:null", "z": 1e-7}'
    less = b'{"a":100,"b":{"d":[null,{}]},"t":"x:null","z":1e-07}'
    assert canonical(raw, drop_nulls=True) == less == canonical(less, drop_nulls=True)
    assert canonical(b"null", drop_nulls=True) == b"null"


def _less(value: object) -> object:
    if isinstance(value, list):
        return [_less(item) for item in value]
    if isinstance(value, dict):
        return {key: _less(item) for key, item in value.items() if item is not None}
    return value


@given(json_values())
def test_n14_dropping_nulls_leaves_the_rest_as_it_is(value: object) -> None:
    raw, less = json.dumps(value).encode(), json.dumps(_less(value)).encode()
    try:
        expected = canonical(less)
    except ElementError:
        return
    assert canonical(raw, drop_nulls=True) == expected
    assert PayloadCache(drop_nulls=True).young[raw] == expected


@pytest.mark.parametrize(
    ("behind", "what"),
    [(b'{"id":1}', "JSON behind"), (b"\x02\xc8\x01", "no JSON behind"), (b"", "no JSON behind")],
)
def test_n14_the_bytes_of_a_schema_registry_are_named(behind: bytes, what: str) -> None:
    with pytest.raises(ElementError, match=rf"schema registry, schema 7, and there is {what}") as e:
        canonical(REGISTRY + behind)
    assert e.value.reason == "not_json"
    with pytest.raises(ElementError, match="schema registry, schema 4279156991"):
        WireDecoder().decode(b"\0\xff\x0e\xc0\xff" + behind)
    assert refusal(b"\0\0\0") == "not_json"


def test_nfc_does_not_join_an_escape_with_the_accent_behind_it() -> None:
    raw = r'"\n"'[:-1].encode() + '\u0303"'.encode()
    assert canonical(raw, nfc=True) == raw


@given(nfc_twins())
def test_nfc_makes_one_payload_of_texts_that_look_the_same(twins: tuple[str, str]) -> None:
    for form in ("%s", "{%s:[%s]}", '[{"":%s}]'):
        one, two = (
            form.replace("%s", json.dumps(text, ensure_ascii=False)).encode() for text in twins
        )
        assert canonical(one, nfc=True) == canonical(two, nfc=True) == one


# What is refused


@pytest.mark.parametrize("raw", [b"NaN", b"Infinity", b"-Infinity", b'{"a":[NaN]}', b"nan", b"1e"])
def test_nan_and_infinities_are_no_json(raw: bytes) -> None:
    assert refusal(raw) == "not_json"


@pytest.mark.parametrize(
    "raw",
    [
        b"9223372036854775808",
        b"-9223372036854775809",
        b"9223372036854775808.0",
        b"18446744073709551617",
        b"1e400",
        b"-1e400",
        b"1e-400",
        b"4e-324",
        b"3.141592653589793238",
        b"0.1000000000000000055511151231257827",
        b"1e99999999999999999999999999",
        b"1e-99999999999999999999999999",
        b"9" * 5000,
        b"[0." + b"0" * 5000 + b"1]",
    ],
)
def test_a_number_that_would_have_to_be_rounded_is_refused(raw: bytes) -> None:
    assert refusal(raw) == refusal(b'{"a":[1.5,%b]}' % raw) == "number"


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a":1,"a":2}',
        rb'{"ve":1,"ve":2}',
        rb'{"a":1,"a":1}',
        rb'{"a":1,"\u0061":1}',
        rb'[{"b":{"a":1,"c":2,"a":3}}]',
        rb'{"a":1,"b\u0022":2,"\u0061":3}',
        rb'{"\"":1,"\u0022":2}',
        rb'{"":0,"":0}',
        # What is dropped is made up for, in quotes and in bytes:
        rb'{"a":1,"a":"\u0022\u0022"}',
        rb'{"a":1,"a":2,"b":1e8,"c":"."}',
        rb'{"a":1,"a":2,"b":1E8,"c":"."}',
        rb'{"a":1e5,"a":0.5}',
        rb'{ "a":1,"a":1}',
    ],
)
def test_a_key_given_twice_is_refused_at_any_depth_and_however_it_is_written(raw: bytes) -> None:
    assert refusal(raw) == "duplicate_key"


def test_a_key_that_is_there_twice_only_after_nfc_is_refused_when_nfc_is_asked_for() -> None:
    raw = '[{"\u00e9":1,"e\u0301":2}]'.encode()
    assert canonical(raw)
    assert refusal(raw, nfc=True) == "duplicate_key"


@pytest.mark.parametrize(
    "raw",
    [
        rb'"\ud800"',
        rb'{"\ud800":1}',
        rb'["\udc00\ud800"]',
        rb'"\ud83d\u0041"',
        rb'{"a":{"b":"x\uDFFF"}}',
        b'"\xed\xa0\x80"',
        b'{"\xed\xbf\xbf":1}',
        b'"\xed\xa0\xbd\xed\xb8\x80"',
    ],
)
def test_a_lone_surrogate_is_refused_as_key_as_value_and_as_bytes(raw: bytes) -> None:
    """E6 of the faults: Python's json lets it in, and then cannot write it."""
    assert refusal(raw) == refusal(raw, nfc=True) == "lone_surrogate"


@pytest.mark.parametrize(
    "raw", [b'"\xff"', b"\xfe\xff", b'{"\x80":1}', b'"\xc0\xaf"', b'"\xf4\x90\x80\x80"', b'"\xed"']
)
def test_what_is_not_utf_8_is_refused(raw: bytes) -> None:
    assert refusal(raw) == "not_utf8"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b" ", b"\x00", b"nul", b"{", b"[1,]", b'{"a":1,}', b"{'a':1}", b"01", b"+1", b".5",
        b"1.", b"1 2", b'"\x01"', b'"\n"', b'"a', rb'"\x"', rb'"\u12"', b"[1 2]", b"{1:2}", b"// 1",
        b"\xef\xbb\xbf1", b"\x0b1", b"1\x0c", "\u0661".encode(), b"1_000", b"0x1", b"]", b"True",
    ],
)  # fmt: skip
def test_what_is_not_one_json_text_is_refused(raw: bytes) -> None:
    assert refusal(raw) == "not_json"


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"":', b'{"\\"[":['])
def test_nesting_beyond_the_limit_is_refused_and_the_limit_itself_is_not(opening: bytes) -> None:
    levels = opening.count(b"[") - opening.count(b'"[') + opening.count(b"{")
    closing = opening.replace(b'"[', b"").translate(bytes.maketrans(b"[{", b"]}"), b'":\\a')[::-1]

    def nested(times: int) -> bytes:
        return opening * times + b"0" + closing * times

    assert canonical(nested(64 // levels)) == nested(64 // levels)
    assert refusal(nested(64 // levels + 1)) == "nesting"
    assert canonical(nested(DEEPEST // levels), max_depth=DEEPEST)
    assert refusal(nested(2 // levels + 1), max_depth=2) == "nesting"
    assert refusal(nested(10_000)) == refusal(nested(10_000)[:30_000]) == "nesting"
    assert refusal(opening * 200_000, max_depth=DEEPEST) == "nesting"


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    raw = b'["' + b"[{" * 500 + b'","\\\\","\\"[[[[[["]'
    assert canonical(raw, max_depth=1) == raw


def test_the_reasons_are_a_closed_set_of_plain_words() -> None:
    with pytest.raises(ElementError) as refused:
        canonical(b"NaN")
    assert isinstance(refused.value.reason, Reason)
    assert f"{refused.value.reason}" == "not_json"


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 65 + b'"' + rb"\"" * 300_000,
        b'"' + b"[" * 600_000,
        b"{" + b",".join(b'"%d":1' % i for i in range(50_000)) + b',"7":1}',
        b"1" * 600_000,
        b"0." + b"0" * 600_000 + b"1",
        b"1e" + b"1" * 600_000,
        b'{"a":' * 100_000,
    ],
    ids=["quotes", "brackets", "keys", "digits", "zeros", "exponent", "objects"],
)
@pytest.mark.timeout(5)
def test_a_large_hostile_text_is_refused_in_no_time(raw: bytes) -> None:
    assert refusal(raw) in set(Reason)


def test_a_refusal_does_not_depend_on_how_deep_the_caller_is() -> None:
    def deeper(levels: int) -> str:
        return deeper(levels - 1) if levels else refusal(b"[" * 10_000)

    assert deeper(sys.getrecursionlimit() // 2) == "nesting"


# The rule as a whole


@given(json_values(), STYLES, STYLES)
def test_two_texts_of_one_value_have_one_canonical_text(value: object, one: int, two: int) -> None:
    texts = written(value, one), written(value, two)
    assert meaning(texts[0]) == meaning(texts[1])
    assert outcome(texts[0]) == outcome(texts[1])


@given(damaged(json_texts()) | st.binary(max_size=20))
def test_a_text_is_refused_exactly_when_the_oracle_refuses_it(raw: bytes) -> None:
    expected = meaning(raw)
    text = outcome(raw)
    if isinstance(text, Reason):
        assert expected is None, text
    else:
        assert meaning(text) == expected is not None
        assert canonical(text) == text


@given(st.lists(json_texts(), min_size=2, max_size=2))
def test_canonical_texts_are_equal_exactly_when_the_meanings_are(texts: list[bytes]) -> None:
    one, two = texts
    if meaning(one) is not None and meaning(two) is not None:
        assert (canonical(one) == canonical(two)) == (meaning(one) == meaning(two))


@given(damaged(json_texts()))
def test_the_short_cut_and_the_long_way_agree(raw: bytes) -> None:
    short = payload._short_cut(raw)
    if short is not None:
        assert short == payload._long_way(raw, nfc=False, max_depth=64)


@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.decimals(-(10**6), 10**6, places=2).map(lambda number: f"{number:f}")
)
def test_the_short_cut_and_the_long_way_agree_on_numbers(number: str) -> None:
    raw = f'{{"a":"a.b","n":{number}}}'.encode()
    short = payload._short_cut(raw)
    assert short is None or short == payload._long_way(raw, nfc=False, max_depth=64)
    assert (meaning(raw) is None) == isinstance(outcome(raw), Reason)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"flight":"UA1545","origin":"EWR","delay":2,"on_time":null}',
        b'{"z":1,"a":[{"y":true,"b":"x"}]}',
        b'{"price": 12.5, "text": "K\\u00f6ln", "quoted": "\\"", "n": 1.0}',
        b'{"ns":1700000000000000000,"ratio":0.30000000000000004,"whole":100.0}',
    ],
)
def test_common_payloads_take_the_short_cut(raw: bytes) -> None:
    """Cost is asserted by the way taken, not by time."""
    assert payload._short_cut(raw) == canonical(raw)


def test_a_payload_that_is_canonical_already_is_not_copied() -> None:
    raw = b'{"a":1,"b":[true,"x"]}'
    assert canonical(raw) is raw


# The cache


def test_equal_payloads_of_different_replicas_are_one_object() -> None:
    cache = PayloadCache()
    texts = [
        b'{"a":1,"b":2}',
        b'{"b":2,"a":1}',
        b'{"a": 1.0, "b": 2}',
        bytes(bytearray(b'{"a":1,"b":2}')),
    ]
    first, *others = [cache.young[text] for text in texts]
    assert all(other is first for other in others)
    assert first == texts[0]


def test_a_payload_that_was_seen_is_not_made_canonical_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = PayloadCache()
    made = cache.young[b'{"a": 1}']
    monkeypatch.setattr(payload, "canonical", None)
    assert cache.young[b'{"a": 1}'] is made
    assert cache.young[b'{"a":1}'] is made


def test_what_is_refused_is_not_kept() -> None:
    cache = PayloadCache()
    for _ in range(2):
        with pytest.raises(ElementError):
            cache.young[b"NaN"]
    assert len(cache) == 0


def test_what_is_asked_for_outlives_what_is_not() -> None:
    cache = PayloadCache(max_entries=100)
    kept = cache.young[b'"kept"']
    for i in range(1000):
        assert cache.young[b'"kept"'] is kept
        cache.young[b"%d" % i]
    assert len(cache) <= 100


@given(
    st.lists(
        st.sampled_from([b"1", b"1.0", b"2", b" 2", b"[1]", b"[1 ]", b'"%b"' % (b"x" * 900)])
        | st.integers(0, 9).map(lambda i: b"[%d, %d]" % (i, i)),
        max_size=60,
    ),
    st.integers(0, 12),
    st.sampled_from([0, 500, 1500, 4000, 1 << 20]),
)
def test_a_cache_of_any_size_stays_within_its_limits_and_changes_no_result(
    raws: list[bytes], max_entries: int, max_bytes: int
) -> None:
    cache = PayloadCache(max_entries=max_entries, max_bytes=max_bytes)
    for raw in raws:
        assert cache.young[raw] == canonical(raw)
        cache.check()
        assert len(cache) <= max_entries
        assert sum(len(key) for key in [*cache.young, *cache._old]) <= max_bytes


@pytest.mark.parametrize(
    "form", [b'{"id":%d}', b'{"id": %d}', b'{"id":%d,"text":"' + b"x" * 300 + b'"}']
)
def test_the_memory_of_a_cache_is_bounded_by_its_limit(form: bytes) -> None:
    limit = 1 << 20
    cache = PayloadCache(max_bytes=limit)
    tracemalloc.start()
    try:
        for i in range(15_000):
            cache.young[form % i]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) > 500
    assert held <= limit


def test_a_cache_goes_by_its_own_rule() -> None:
    decomposed = '"e\u0301"'.encode()
    assert PayloadCache(nfc=True).young[decomposed] == '"\u00e9"'.encode()
    assert PayloadCache().young[decomposed] == decomposed
    with pytest.raises(ElementError):
        PayloadCache(max_depth=1).young[b"[[1]]"]
    with pytest.raises(ValueError, match="between 0 and"):
        PayloadCache(max_depth=DEEPEST + 1)
