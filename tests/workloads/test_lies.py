"""Lies are still elements, falsify only what their kind names, and only as often as asked."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable, defect
from lmerge_service.workloads.lies import KINDS, Lie, falsified, lie
from tests.strategies import any_elements

AMOUNTS = st.integers(-50, 50).filter(bool)
TRUTH: list[Element] = [
    element
    for n in range(500)
    for element in (Insert("A", n, n + 9), Adjust("A", n, n + 9, n + 8), Stable(n))
]


@pytest.mark.parametrize(
    ("kind", "element", "by", "expected"),
    [
        ("drop", Stable(4), 1, []),
        ("repeat", Insert("A", 1, 5), 1, [Insert("A", 1, 5), Insert("A", 1, 5)]),
        ("shift", Insert("A", 1, 5), -3, [Insert("A", -2, 2)]),
        ("shift", Adjust("A", 1, 5, 9), -99, [Adjust("A", 1, 5, 1)]),
        ("shift", Stable(4), 2, [Stable(4)]),
        ("early", Stable(4), -2, [Stable(6)]),
        ("early", Stable(INFINITY), 2, [Stable(INFINITY)]),
        ("wrong_vold", Adjust("A", 1, 5, 9), 2, [Adjust("A", 1, 7, 9)]),
        ("unknown", Insert("A", 1, 5), 2, [Insert("A", 1, 5), Adjust("A", 3, 5, 4)]),
        ("regress", Stable(4), 3, [Stable(4), Stable(1)]),
    ],
)
def test_each_kind_publishes_its_own_falsehood(
    kind: str, element: Element, by: int, expected: list[Element]
) -> None:
    assert falsified(kind, element, by) == expected


@given(st.sampled_from(KINDS), any_elements(), AMOUNTS)
def test_whatever_is_published_is_an_element(kind: str, element: Element, by: int) -> None:
    assert not any(map(defect, falsified(kind, element, by)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [-9, 9])
@pytest.mark.parametrize(
    "element",
    [
        Insert("A", INFINITY - 1, INFINITY),
        Insert("A", START, START + 1),
        Adjust("A", START, START + 1, START),
        Adjust("A", INFINITY - 1, INFINITY, INFINITY - 1),
        Stable(START),
    ],
)
def test_so_it_is_at_both_ends_of_int64(kind: str, by: int, element: Element) -> None:
    assert not any(map(defect, falsified(kind, element, by)))


def test_an_unknown_kind_of_lie_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no such lie"):
        falsified("white", Stable(1), 1)


def test_the_truthful_publish_what_is() -> None:
    assert list(lie(TRUTH, Lie(), 0)) == TRUTH


def test_a_fraction_is_a_fraction() -> None:
    assert 1000 < len(list(lie(TRUTH, Lie(drop=0.2), 0))) < 1400
    assert 1600 < len(list(lie(TRUTH, Lie(repeat=0.2), 0))) < 2000
    kinds = Counter(type(element) for element in lie(TRUTH, Lie(unknown=1.0, regress=1.0), 0))
    assert kinds == {Insert: 500, Adjust: 1500, Stable: 1000}


@pytest.mark.parametrize("wrong", [{"drop": 2.0}, {"by": 0}])
def test_impossible_lies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="fractions"):
        Lie(**wrong)  # type: ignore[arg-type]
