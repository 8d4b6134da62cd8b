"""Cases R0, R1 and R2: the paper's worked examples, and what these cases rule out."""

from typing import Any

import pytest

from lmerge_service.core import (
    BreachKind,
    Case,
    LMerge,
    Policy,
    lmerge,
    quorum,
    restore,
    weakened,
)
from lmerge_service.core.ordered import Ordered
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import reconstitute
from tests import vectors

ORDERED = ("R0", "R1", "R2")
UNEQUAL = "lm-r1-7"
"""As printed R1 emits q twice and p never; ours reports p, and counts nothing twice."""


def ordered_cases() -> list[Any]:
    found = vectors.cases("lmerge")
    return [case for case in found if case["given"].get("case") in ORDERED]


def play(case: Any) -> tuple[LMerge, list[list[Element]], list[Any]]:
    given = case["given"]
    merge = lmerge(given["case"])
    for stream in range(given["inputs"]):
        merge.attach(str(stream))
    outputs, states = [], []
    for stream, row in given["steps"]:
        outputs.append(merge.process(str(stream), vectors.element(row)))
        merge.check()
        states.append(state_of(merge))
    return merge, outputs, states


def state_of(merge: Any) -> dict[str, Any]:
    """The state as the vectors write it."""
    at = max(merge.max_vs, START)
    state: dict[str, Any] = {"max_stable": merge.max_stable, "max_vs": at}
    if merge.case == Case.R1:
        state["counts"] = [
            source.at_front if source.front == at else 0 for source in merge.inputs.values()
        ]
    if merge.case == Case.R2:
        state["hash"] = sorted(merge._tied)
    return state


def expected_state(row: dict[str, Any]) -> dict[str, Any]:
    times = {key: vectors.time(row[key]) for key in ("max_stable", "max_vs")}
    return {**row, **times}


@pytest.mark.parametrize(
    "case", [c for c in ordered_cases() if c["id"] != UNEQUAL], ids=lambda case: case["id"]
)
def test_outputs_and_states_are_the_vectors(case: Any) -> None:
    merge, outputs, states = play(case)
    assert isinstance(merge, Ordered)
    assert outputs == [vectors.elements(rows) for rows in case["expect"]["outputs"]]
    flat = [element for rows in outputs for element in rows]
    assert reconstitute(flat) == vectors.tdb(case["expect"]["tdb"])
    if "states" in case["expect"]:
        assert states == [expected_state(row) for row in case["expect"]["states"]]


def test_there_are_vectors_of_every_ordered_case() -> None:
    assert {c["given"]["case"] for c in ordered_cases()} == set(ORDERED)
    assert len(ordered_cases()) >= 18


def test_unequal_content_at_one_vs_is_found_out_and_doubles_nothing() -> None:
    (case,) = [c for c in ordered_cases() if c["id"] == UNEQUAL]
    merge, outputs, _ = play(case)
    flat = [element for rows in outputs for element in rows]
    assert flat == [Insert("q", 5, 9)] != case["expect"]["as_printed"]
    assert [(b.input, b.kind, b.element) for b in merge.breaches()] == [
        ("0", BreachKind.BROKE_CASE, Insert("p", 5, 9))
    ]
    received = [(str(k), 0, vectors.element(row)) for k, row in case["given"]["steps"]]
    weak, missed = weakened(merge, "R2", received, flat)
    assert reconstitute([*flat, *missed]) == vectors.tdb(case["expect"]["claimed_tdb"])
    assert weak.case == Case.R2


@pytest.mark.parametrize("case", ORDERED)
@pytest.mark.parametrize("policy", [Policy(), Policy(stable=quorum(1))])
def test_an_adjust_is_no_part_of_an_ordered_case(case: str, policy: Policy) -> None:
    (vector,) = [c for c in vectors.cases("lmerge") if c["id"] == "lm-r0-8"]
    assert case in vector["given"]["cases"]
    merge = lmerge(case, policy)
    merge.attach("0")
    emitted = [merge.process("0", vectors.element(row)) for _, row in vector["given"]["steps"]]
    assert emitted == [[Insert("a", 1, 5)], []]
    assert [b.kind for b in merge.breaches()] == [BreachKind.BROKE_CASE]
    assert merge.process("0", Stable(9)) == [Stable(9)]


@pytest.mark.parametrize("policy", [Policy(), Policy(stable=quorum(1))])
@pytest.mark.parametrize(("case", "vs"), [("R0", 4), ("R0", 5), ("R1", 4), ("R2", 4)])
def test_a_step_back_is_refused_before_anything_changes(case: str, vs: int, policy: Policy) -> None:
    merge = lmerge(case, policy)
    merge.attach("a")
    merge.process("a", Insert("A", 5, 9))
    before = merge.snapshot()
    assert merge.process("a", Insert("B", vs, 9)) == []
    assert [b.kind for b in merge.breaches()] == [BreachKind.BROKE_CASE]
    merge.inputs["a"].inserts -= 1
    merge.inputs["a"].breaches.clear()
    assert merge.snapshot() == before


def test_another_event_at_the_vs_of_r0_is_found_out() -> None:
    merge = lmerge("R0")
    merge.attach("a")
    merge.attach("b")
    merge.process("a", Insert("A", 5, 9))
    assert merge.process("b", Insert("A", 5, 8)) == []
    assert [(b.input, b.kind) for b in merge.breaches()] == [("b", BreachKind.BROKE_CASE)]


def test_r2_finds_repeats_and_other_ends() -> None:
    merge = lmerge("R2")
    merge.attach("a")
    merge.attach("b")
    merge.process_batch("a", [Insert("A", 5, 9), Insert("A", 5, 9)])
    assert merge.process("b", Insert("A", 5, 8)) == []
    assert [(b.input, b.kind, b.kept and b.kept.ve) for b in merge.breaches()] == [
        ("a", BreachKind.DUPLICATE_KEY, None),
        ("b", BreachKind.FROZEN_END_DISAGREES, 9),
    ]


@pytest.mark.parametrize("case", ORDERED)
def test_what_a_joiner_publishes_waits_until_it_is_joined(case: str) -> None:
    """Else B would make the output lose A, and what began before never comes from it."""
    merge = lmerge(case)
    merge.attach("a")
    merge.attach("b", joining_at=10)
    assert merge.process_batch("b", [Insert("half of it", 8, 12), Insert("B", 10, 12)]) == []
    assert merge.process("b", Stable(11)) == []
    assert merge.process("a", Insert("A", 9, 12)) == [Insert("A", 9, 12)]
    merge = restore(merge.snapshot())
    assert merge.process("a", Stable(10)) == [Stable(10), Insert("B", 10, 12), Stable(11)]
    assert merge.process("b", Insert("half of it", 9, 12)) == []
    assert (merge.inputs["b"].late, [b.kind.value for b in merge.breaches()]) == (
        1,
        ["broke_own_stable"],
    )


@pytest.mark.parametrize("case", ORDERED)
def test_an_ordered_input_has_one_partition(case: str) -> None:
    merge = lmerge(case)
    with pytest.raises(ValueError, match="needs an order"):
        merge.attach("a", partitions=2)


@pytest.mark.parametrize("case", ORDERED)
def test_the_earliest_time_is_a_time_like_any_other(case: str) -> None:
    merge = lmerge(case)
    merge.attach("a")
    assert merge.process("a", Insert("A", START, INFINITY)) == [Insert("A", START, INFINITY)]
    assert merge.process("a", Stable(INFINITY)) == [Stable(INFINITY)]
    assert len(merge) == 0


@pytest.mark.parametrize("case", ORDERED)
def test_an_output_that_is_not_of_the_case_is_refused(case: str) -> None:
    streams: list[list[Element]] = [
        [Insert("A", 5, 9), Insert("B", 4, 9)],
        [Insert("A", 5, 9), Adjust("A", 5, 9, 8)],
        [Stable(9), Insert("A", 5, 9)],
        [Stable(9), Stable(9)],
        [Insert("A", 5, 9), Insert("A", 5, 9)],
    ]
    for unexpected_output in streams:
        if case == "R1" and unexpected_output[0] == unexpected_output[1]:
            continue  # R1 may hold an event twice
        with pytest.raises(StateError, match="something else writes"):
            lmerge(case).replay_output(unexpected_output)


def test_weakened_goes_on_where_the_stronger_case_was() -> None:
    """All that matters is taken over: incarnations, joining, gaps, the output, the inputs."""
    strong = lmerge("R0")
    for name in ("a", "a", "b"):
        strong.attach(name)
    strong.attach("c", joining_at=50)
    received: list[tuple[str, int, Element]] = [
        ("a", 0, Insert("A", 5, 9)), ("a", 0, Stable(4)), ("b", 0, Insert("A", 5, 9)),
        ("a", 0, Adjust("A", 5, 9, 20)), ("c", 0, Stable(60)),
    ]  # fmt: skip
    emitted = [o for name, part, element in received for o in strong.process(name, element, part)]
    weak, missed = weakened(strong, "R3", received, emitted)
    weak.check()
    assert missed == []
    assert [s.incarnation for s in weak.inputs.values()] == [1, 0, 0]
    assert weak.process("a", Stable(50)) == [Adjust("A", 5, 9, 20), Stable(50), Stable(60)]
