"""What the figures of speculation show holds on a small input: output, latency, state."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.instants import Answers
from benchmarks.speculation import (
    PICTURES,
    SECOND,
    Outcome,
    Setting,
    arrivals,
    draw,
    outcome,
    played,
    run,
)
from lmerge_service.elements import INFINITY, Adjust, Insert
from lmerge_service.tdb import reconstitute
from tests.queries.vectors import vectors

_READINGS = 240


@cache
def _found(setting: Setting) -> Outcome:
    return outcome(setting, _READINGS)


def _fall(values: Sequence[float]) -> bool:
    return all(one >= other for one, other in pairwise(values)) and values[0] > values[-1]


def _rise(values: Sequence[float]) -> bool:
    return _fall(values[::-1])


@pytest.mark.parametrize("disorder", [0, 0.3])
def test_output_falls_and_latency_rises_from_on_update_to_on_close(disorder: float) -> None:
    """Theorems 8 and 9 of Goldstein and Hong. (Between ordered and on_update Theorem 9 is false,
    `sp-theorem9`; on these readings it holds.)"""
    levels = [
        _found(Setting(level, disorder=disorder))
        for level in ("on_update", "ordered", "on_watermark", "on_close")
    ]
    assert _fall([each.output for each in levels])
    answered = [levels[0].first, *(each.first for each in levels[2:])]
    assert _rise(answered)
    assert _rise([each.right for each in levels])
    assert levels[-1].first == levels[-1].right  # it takes nothing back
    assert len({each.state for each in levels}) == 1


def test_disorder_costs_output_where_it_is_revised_and_nothing_on_close() -> None:
    for level in ("ordered", "on_watermark"):
        found = [_found(Setting(level, disorder=each)) for each in (0, 0.1, 0.3, 0.5)]
        assert _rise([each.output for each in found])
        assert _rise([each.right for each in found])
    closing = [_found(Setting("on_close", disorder=each)) for each in (0, 0.3)]
    assert abs(closing[0].output - closing[1].output) < 0.1
    assert abs(closing[0].right - closing[1].right) < 1


def test_the_longer_align_blocks_the_later_and_the_less_comes_out() -> None:
    found = [
        _found(Setting("on_watermark", blocking=each * SECOND)) for each in (0, 10, 20, 30, 45)
    ]
    assert _fall([each.output for each in found])
    assert _rise([each.first for each in found])
    assert _rise([each.right for each in found])
    assert all(each.wrong == 0 for each in found)


def test_align_without_bound_is_as_quiet_as_on_close() -> None:
    strong = _found(Setting("on_watermark", blocking=INFINITY))
    assert strong.output == pytest.approx(_found(Setting("on_close")).output, abs=0.05)
    assert strong.first == strong.right


def test_the_longer_finalize_remembers_the_less_is_wrong_and_the_more_is_held() -> None:
    found = [_found(Setting(memory=each * SECOND)) for each in (0, 10, 20, 30, 40)]
    assert _fall([each.wrong for each in found])
    assert _rise([each.state for each in found])
    assert found[0].wrong > 50
    assert found[-1].wrong == 0


def test_on_close_waits_for_stables_and_on_update_does_not() -> None:
    """ "Its output latency is inversely proportional to the frequency of CTI events\""""
    closing, eager = (
        [_found(Setting(level, every=each * SECOND)) for each in (1, 10, 40)]
        for level in ("on_close", "on_update")
    )
    assert _rise([each.right for each in closing])
    assert len({each.right for each in eager}) == 1
    assert _rise([each.state for each in eager])


def _adjusts(setting: Setting) -> int:
    return sum(type(element) is Adjust for element in played(setting, _READINGS)[0])


def test_the_corners_and_edges_of_the_triangle() -> None:
    """`sp-levels`: how long it blocks, and how long it remembers."""
    case = vectors("speculative")["sp-levels"]["expect"]
    high, middle, low = (
        Setting("on_watermark", blocking=INFINITY),
        Setting("on_update"),
        Setting("on_update", memory=0),
    )
    assert case["high"] == "B = M = unbounded, no speculation"
    assert (_adjusts(high), _found(high).wrong) == (0, 0)
    assert case["middle"] == "B = 0, M unbounded, speculative and eventually correct"
    results = [reconstitute(played(each, _READINGS)[0]) for each in (high, middle)]
    assert _adjusts(middle) > _READINGS
    assert results[0] == results[1]
    assert case["low"] == "B = 0 and M = 0"
    assert _found(low).wrong > 50
    assert case["diagonal"] == "no speculation"
    for each in (0, 10 * SECOND, 25 * SECOND):
        assert _adjusts(Setting("on_watermark", blocking=each, memory=each)) == 0
    assert case["right_leg"] == "eventual correctness"
    for each in (0, 10 * SECOND, 25 * SECOND):
        assert reconstitute(played(Setting(blocking=each), _READINGS)[0]) == results[0]
    assert case["bottom_leg"] == "zero latency"
    for memory in (0, 10 * SECOND, None):
        assert _found(Setting(memory=memory)).first < 1


def test_arrivals_are_legal_however_many_are_late() -> None:
    for disorder in (0, 0.5, 1):
        stream = [element for _, element in arrivals(100, disorder, 5 * SECOND)]
        assert len(reconstitute(stream)) == 100  # and it raises where one is not legal


def test_an_answer_that_comes_back_at_once_has_not_changed() -> None:
    answers = Answers([5, 7], group=lambda row: row)
    answers.take(4, [Insert("a", 4, 6)])
    answers.take(9, [Adjust("a", 4, 6, 4), Insert("a", 5, 8)])
    assert answers.waits() == ([0, 2], [0, 2])


@pytest.mark.full
def test_each_picture_is_reported_and_drawn_the_same_again(tmp_path: Path) -> None:
    reported: list[str] = []
    run(60, lambda name, _unit, _values: reported.append(name), tmp_path)
    assert {each.split(":")[0] for each in reported} == set(PICTURES)
    drawn = tmp_path / "speculation-memory.svg"
    before, picture = drawn.read_bytes(), PICTURES["memory"]
    small = {n: {x: outcome(s, 60) for x, s in line.items()} for n, line in picture.lines.items()}
    draw(picture, small, drawn)
    assert drawn.read_bytes() == before
