"""Hypothesis strategies: JSON values, the many ways to write one, and texts that are damaged."""

import json
import random
import unicodedata
from typing import Any, Final

from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.payload import canonical

__all__ = (
    "STYLES",
    "damaged",
    "elements",
    "json_texts",
    "json_values",
    "nfc_twins",
    "records",
    "written",
)

_TEXT: Final = st.text(
    st.sampled_from('ab"\\/ \x00\x1f\x7f\n\té\u0301Ω\u2028\uffff😀')
    | st.characters(exclude_categories=["Cs"]),
    max_size=8,
)
_NUMBERS: Final = st.one_of(
    st.integers(-3, 3).map(str),
    st.integers(START - 2, INFINITY + 2).map(str),
    st.sampled_from([START - 1, START, 2**53, 2**53 + 1, INFINITY, 2**63, 2**64]).map(str),
    st.sampled_from(["1.0", "1e0", "-0.0", "0e9", "-0", "10e-1", "1E5", "1.50", "0.00001", "1e-4"]),
    st.sampled_from(["1e400", "1e-400", "3.141592653589793238", "1e19", "5e-324", "4e-324"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=3).map(lambda number: f"{number:f}"),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


class Number(str):
    """The text of a number, to be written as it is."""

    __slots__ = ()


def json_values() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | _TEXT | _NUMBERS.map(Number)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
        max_leaves=6,
    )


def written(value: Any, style: int = 0) -> bytes:
    """A text of `value`; each style has its spaces, escapes, order of keys, number forms."""
    rng = random.Random(style)

    def space() -> str:
        return rng.choice(["", "", " ", "\n", "\t \r"]) if style % 4 > 1 else ""

    def character(sign: str) -> str:
        if sign not in '"\\' and sign >= " " and (style < 2 or rng.random() < 0.7):
            return sign
        units = sign.encode("utf-16-be").hex(" ", 2).split()
        ways = [json.dumps(sign)[1:-1], "".join(f"\\u{unit}" for unit in units)]
        ways += ["".join(f"\\u{unit.upper()}" for unit in units)]
        return rng.choice(ways + ["\\/"] * (sign == "/"))

    def write(value: Any) -> str:
        match value:
            case Number():
                return rng.choice(_forms(value)) if style > 1 else value
            case str():
                return '"' + "".join(map(character, value)) + '"'
            case list():
                return "[" + ",".join(space() + write(item) + space() for item in value) + "]"
            case dict():
                members = rng.sample(list(value.items()), len(value))
                pairs = [f"{space()}{write(k)}{space()}:{space()}{write(v)}" for k, v in members]
                return "{" + ",".join(pairs) + space() + "}"
        return json.dumps(value)

    return (space() + write(value) + space()).encode()


STYLES: Final = st.integers(0, 2**16)


def _forms(number: str) -> list[str]:
    """Texts of the same decimal number."""
    mantissa, _, power = number.lower().partition("e")
    forms = [number, number.upper(), f"{mantissa}e{int(power or 0):+04}"]
    whole, _, fraction = mantissa.partition(".")
    forms.append(f"{whole}.{fraction}00e{int(power or 0)}")
    forms.append(f"{whole}.{fraction}0" + (f"e{power}" if power else ""))
    if not fraction and whole.lstrip("-") != "0":
        forms.append(f"{whole}000e{int(power or 0) - 3}")
    return forms


def json_texts() -> st.SearchStrategy[bytes]:
    return st.builds(written, json_values(), STYLES)


_INSERTIONS: Final = [
    *(bytes([sign]) for sign in b'"\\{}[],:0129eE.+- \n\0\x7f\x80\xff'),
    b"\\ud800", b"\xed\xa0\x80", b"\\u0022", b"NaN", b"null", b"1e400", b'"a":1,', b'"vs":1,',
    b'"op":"stable",', b"9223372036854775808", b"[[[[[[[[[[", b"\xef\xbb\xbf",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """A text with something cut out of it, put into it or doubled."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(start + 10, len(text))))
        what = draw(st.sampled_from([*_INSERTIONS, text[start:end] * 2, b""]))
        text = text[:start] + what + text[end:]
    return text


def times() -> st.SearchStrategy[int]:
    edges = [START, START + 1, -1, 0, 1, 2**53, 2**53 + 1, INFINITY - 1, INFINITY]
    return st.sampled_from(edges) | st.integers(START, INFINITY) | st.integers(0, 10**13)


def payloads() -> st.SearchStrategy[bytes]:
    """Canonical ones."""
    return json_values().map(_carried).map(written).map(canonical)


def _carried(value: Any) -> Any:
    match value:
        case Number():
            return len(value)
        case list():
            return [_carried(item) for item in value]
        case dict():
            return {key: _carried(item) for key, item in value.items()}
    return value


@st.composite
def elements(draw: st.DrawFn) -> Element:
    kind = draw(st.sampled_from([Insert, Insert, Adjust, Stable]))
    if kind is Stable:
        return Stable(draw(times()))
    vs, *ends = sorted(draw(st.lists(times(), min_size=3, max_size=3, unique=True)))
    if kind is Insert:
        return Insert(draw(payloads()), vs, draw(st.sampled_from(ends)))
    return Adjust(
        draw(payloads()), vs, draw(st.sampled_from(ends)), draw(st.sampled_from([vs, *ends]))
    )


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Records of about the right shape: fields of elements, some of them wrong or missing."""
    time = times().map(Number) | st.none() | _NUMBERS.map(Number) | st.just(True)
    usual = {
        "insert": ["op", "payload", "vs", "ve"],
        "adjust": ["op", "payload", "vs", "vold", "ve"],
        "stable": ["op", "vc"],
        "Stable": ["op", "vc"],
    }
    op = draw(st.sampled_from(list(usual)))
    names = usual[op]
    if draw(st.integers(0, 9)) == 9:
        names = draw(st.lists(st.sampled_from([*usual["adjust"], "vc", "x"]), unique=True))
    fields = {name: draw(json_values() if name == "payload" else time) for name in names}
    return written(fields | ({"op": op} if "op" in names else {}), draw(STYLES))


def nfc_twins() -> st.SearchStrategy[tuple[str, str]]:
    """Two texts of which NFC makes one."""
    texts = st.text(st.sampled_from('aeo\u0301\u0308né\\"\u212b'), max_size=6)
    return texts.map(
        lambda text: (unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text))
    )
