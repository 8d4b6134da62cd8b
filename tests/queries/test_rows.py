"""Rows: what enters a column, and that rows are equal where their canonical texts are."""

import json
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.payload import canonical
from lmerge_service.queries.order import payload_order
from lmerge_service.queries.rows import Kind, Refusal, RefusalReason, Schema

EVERY = Schema.of({"b": bool, "i": int, "f": float, "s": str})


@pytest.mark.parametrize(
    ("fact", "reason", "column"),
    [
        ("text", RefusalReason.NOT_A_FACT, None),
        ([1], RefusalReason.NOT_A_FACT, None),
        (None, RefusalReason.NOT_A_FACT, None),
        ({"b": 1}, RefusalReason.WRONG_TYPE, "b"),
        ({"b": "true"}, RefusalReason.WRONG_TYPE, "b"),
        ({"i": True}, RefusalReason.WRONG_TYPE, "i"),
        ({"i": 1.5}, RefusalReason.WRONG_TYPE, "i"),
        ({"i": "1"}, RefusalReason.WRONG_TYPE, "i"),
        ({"i": 2**63}, RefusalReason.OVERFLOW, "i"),
        ({"i": -(2**63) - 1}, RefusalReason.OVERFLOW, "i"),
        ({"i": 1e30}, RefusalReason.OVERFLOW, "i"),
        ({"i": float("inf")}, RefusalReason.NAN, "i"),
        ({"f": False}, RefusalReason.WRONG_TYPE, "f"),
        ({"f": float("nan")}, RefusalReason.NAN, "f"),
        ({"f": float("-inf")}, RefusalReason.NAN, "f"),
        ({"f": 2**53 + 1}, RefusalReason.OVERFLOW, "f"),
        ({"f": 2**62}, RefusalReason.OVERFLOW, "f"),  # as a float it is written ...388000
        ({"f": 10**400}, RefusalReason.OVERFLOW, "f"),
        ({"s": 1}, RefusalReason.WRONG_TYPE, "s"),
        ({"s": "\ud800"}, RefusalReason.WRONG_TYPE, "s"),
        ({"s": {"deep": 1}}, RefusalReason.WRONG_TYPE, "s"),
    ],
)
def test_what_fits_no_column_is_refused_with_its_column(
    fact: object, reason: RefusalReason, column: str | None
) -> None:
    refused = EVERY.row(fact)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.column) == (reason, column)


def test_what_a_column_carries_exactly_enters() -> None:
    assert EVERY.row({}) == (None, None, None, None)
    assert EVERY.row({"b": None, "more": 1}) == (None, None, None, None)
    for fact, row in (
        ({"b": False, "i": START, "f": 2**53, "s": "Köln"}, (False, START, 2.0**53, "Köln")),
        ({"b": True, "i": 3.0, "f": -0.0, "s": ""}, (True, 3, 0.0, "")),
        ({"b": True, "i": 2.0**62, "f": 1, "s": ""}, (True, 4611686018427388000, 1.0, "")),
        ({"b": True, "i": INFINITY, "f": 10**18, "s": ""}, (True, INFINITY, 1e18, "")),
    ):
        taken = EVERY.row(fact)
        assert taken == row
        assert [type(item) for item in taken] == [bool, int, float, str]


FLOATS = (0.0, -0.0, 1.0, 1.5, 1e16, 1e15, 1e-5, 1e300, 2.0**63, -(2.0**63), 0.1, 5e-324)
STRINGS = ("", "a", 'say "x"', "\\", "\x00\x1f", "Köln", "\u2028", "\U0001f600")


def drawn(rng: Random) -> dict[str, Any]:
    fact: dict[str, Any] = {
        "b": rng.choice((True, False, None)),
        "i": rng.choice((0, 1, -1, START, INFINITY, None)),
        "f": rng.choice((*FLOATS, 7, rng.uniform(-1e3, 1e3), rng.uniform(-1, 1) * 1e20, None)),
        "s": rng.choice((*STRINGS, None)),
    }
    return dict(rng.sample(sorted(fact.items()), len(fact)))


def test_the_text_of_a_row_is_canonical_and_gives_the_row_back() -> None:
    for seed in range(2_000):
        fact = drawn(Random(seed))
        row = EVERY.row(fact)
        assert not isinstance(row, Refusal)
        text = EVERY.payload(row)
        assert text == canonical(json.dumps(fact).encode())
        assert EVERY.row(json.loads(text)) == row
        assert EVERY.fact(row) == {name: fact[name] for name in EVERY.names}


def test_rows_are_equal_where_their_texts_are() -> None:
    rng = Random(1)
    rows = [EVERY.row(drawn(rng)) for _ in range(100)]
    known = [(row, EVERY.payload(row), payload_order(row)) for row in rows if type(row) is tuple]
    assert len(known) == 100
    for one, text, order in known:
        for two, other_text, other_order in known:
            assert (one == two) == (text == other_text) == (order == other_order)


def test_a_schema_names_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match="top: there is no column 'x'; there is b, i, f"):
        EVERY.position("x", "top")
    with pytest.raises(ConfigurationError, match="'b' is bound twice"):
        EVERY.only(["b", "i", "b"])
    with pytest.raises(ConfigurationError, match="bool, int, float or str"):
        Schema.of({"at": bytes})
    assert EVERY.only(["s", "b"]) == Schema.of({"s": "str", "b": Kind.BOOL})
    assert str(EVERY) == "(b: bool, i: int, f: float, s: str)"
    assert EVERY.kind("f") is Kind.FLOAT


def test_kinds_are_ordered_before_values() -> None:
    kinds = [None, False, True, -1, 0, 0.5, 1, "", "a", b"", (), (None,), (1, "x")]
    keys = [payload_order(each) for each in kinds]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert payload_order(1) == payload_order(1.0)


@pytest.mark.parametrize(
    ("wrong", "error"), [((1, 2j), TypeError), ((1, float("nan")), ValueError), ([1], TypeError)]
)
def test_what_has_no_place_in_the_order(wrong: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        payload_order(wrong)
