"""Mistakes that were made once."""

from datetime import date
from typing import Any

import pytest

from lmerge_service.core import (
    BreachKind,
    Gap,
    Policy,
    StreamProperties,
    lag,
    lmerge,
    quorum,
    restore,
    weakened,
)
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import reconstitute

every_case = pytest.mark.parametrize("case", ["R0", "R1", "R2", "R3", "R4"])
indexed = pytest.mark.parametrize("case", ["R3", "R4"])


def merge_of(case: str, *names: str, policy: Policy = Policy()) -> Any:
    merge = lmerge(case, policy)
    for name in names:
        merge.attach(name)
    return merge


# Gaps


@every_case
def test_under_a_quorum_too_few_joined_inputs_are_a_gap(case: str) -> None:
    """Two of three start over: the one that is left could wait for ever."""
    merge = merge_of(case, "a", "b", "c", policy=Policy(stable=quorum(2)))
    for name in "abc":
        merge.process(name, Stable(50))
    merge.attach("a", joining_at=90)
    assert not merge.gap
    merge.attach("b", joining_at=80)
    assert merge.gap == Gap(50, 80, "b")
    for name in "abc":
        assert merge.process(name, Stable(100)) == []
    gap, emitted = merge.accept_gap()
    assert gap == Gap(50, 80, "b")
    assert emitted == [Stable(100)]
    merge.check()
    assert merge.inputs["a"].joined


def test_under_a_quorum_of_two_that_both_start_over_two_gaps_are_accepted() -> None:
    merge = merge_of("R3", "a", "b", policy=Policy(stable=quorum(2)))
    for name in "ab":
        merge.process(name, Stable(50))
    for name in "ab":
        merge.attach(name, joining_at=80)
        merge.process(name, Stable(100))
    assert merge.accept_gap() == (Gap(50, 80, "a"), [])
    assert merge.accept_gap() == (Gap(50, 80, "b"), [Stable(100)])


def test_with_too_few_inputs_for_the_quorum_there_is_no_gap_to_accept() -> None:
    merge = merge_of("R3", policy=Policy(stable=quorum(2)))
    merge.attach("a", joining_at=80)
    assert merge.gap is None, "another input must be attached first"


def test_an_accepted_gap_is_part_of_what_is_attached() -> None:
    merge = merge_of("R3")
    merge.attach("d", joining_at=90)
    merge.accept_gap()
    assert merge.process("d", Stable(95)) == [Stable(95)]
    rebuilt = lmerge("R3")
    rebuilt.replay_output([Stable(95)])
    rebuilt.attach("d", joining_at=90, accepted_gap=True)
    assert rebuilt.replay_input("d", [Stable(95)]) == []
    assert rebuilt.inputs["d"].gap_until == merge.inputs["d"].gap_until == 90
    fresh = lmerge("R3")
    fresh.attach("d", joining_at=90, accepted_gap=True)
    fresh.attach("e", joining_at=40)
    assert fresh.process("d", Stable(88)) == [Stable(88)]


@indexed
def test_after_an_accepted_gap_a_stable_costs_no_more_than_before(case: str) -> None:
    merge = merge_of(case, "a")
    merge.process_batch("a", [Insert(k, k % 7, INFINITY) for k in range(2_000)])
    merge.process("a", Stable(200))
    merge.detach("a")
    merge.attach("b", joining_at=300)
    merge.accept_gap()
    merge.process("b", Stable(301))
    before = merge._index.touched
    for t in range(302, 350):
        assert merge.process("b", Stable(t)) == [Stable(t)]
    assert merge._index.touched == before
    merge.check()


# Contradicted events


def test_a_contradicted_event_still_follows_others_when_it_falls_due() -> None:
    merge = merge_of("R3", "a", "b", "c")
    merge.process_batch("a", [Insert("A", 5, 90), Stable(10)])
    merge.process_batch("c", [Insert("A", 5, 90), Stable(9)])
    assert merge.process("b", Stable(20)) == [Stable(20)]
    merge.process("c", Adjust("A", 5, 90, 30))
    merge.process("c", Stable(19))
    merge.detach("a")
    assert merge.process("b", Stable(31)) == [Adjust("A", 5, 90, 30), Stable(31)]
    merge.check()


@indexed
def test_a_joining_input_is_not_asked_about_what_it_does_not_vouch_for(case: str) -> None:
    merge = merge_of(case, "leader", "honest", "lacks")
    merge.attach("joiner", joining_at=40)
    merge.process_batch("leader", [Insert("A", 5, 60), Stable(7)])
    merge.process_batch("honest", [Insert("A", 5, 35), Stable(6)])
    merge.process_batch("joiner", [Insert("A", 5, 30), Stable(50)])
    merge.detach("leader")
    emitted = merge.process("lacks", Stable(38))
    assert emitted == [Adjust("A", 5, 60, 35), Stable(38)]


# Elements that are none


@every_case
@pytest.mark.parametrize("policy", [Policy(), Policy(insert="half_frozen")])
def test_times_that_make_no_event_are_a_breach(case: str, policy: Policy) -> None:
    elements: list[Element] = [Insert("a", 5, 4), Insert("a", 5, 5)]
    if case in ("R3", "R4"):
        elements += [Adjust("a", 5, 5, 9), Adjust("a", 5, 9, 4)]
    for process in ("process_batch", "process"):
        merge = merge_of(case, "a", policy=policy)
        for element in elements:
            argument = element if process == "process" else [element]
            assert getattr(merge, process)("a", argument) == []
        assert [b.kind for b in merge.breaches()] == [BreachKind.MALFORMED] * len(elements)
        assert merge.process("a", Stable(7)) == [Stable(7)]


# Snapshots


@every_case
@pytest.mark.parametrize("payload", [frozenset({1}), date(2026, 1, 1), (1, frozenset()), 2**70])
def test_a_payload_that_would_not_come_back_is_not_saved(case: str, payload: Any) -> None:
    merge = merge_of(case, "a")
    merge.process("a", Insert(payload, 5, 9))
    with pytest.raises(StateError, match="a snapshot cannot hold the payload"):
        merge.snapshot()


@every_case
@pytest.mark.parametrize("payload", [None, True, 1.5, "a", b"a", (1, ("b", None)), 2**63])
def test_a_payload_that_is_saved_comes_back_as_it_was(case: str, payload: Any) -> None:
    merge = merge_of(case, "a", "b")
    merge.process("a", Insert(payload, 5, 9))
    twin = restore(merge.snapshot())
    assert twin.process("b", Insert(payload, 5, 9)) == []


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
def test_what_a_joining_input_has_waiting_is_counted(case: str) -> None:
    merge = merge_of(case, "a")
    merge.attach("b", joining_at=5)
    merge.process_batch("b", [Insert(k, k, k + 1) for k in range(5, 105)])
    assert len(merge) == 100


# Weakening


def test_weakening_keeps_what_was_counted_and_who_was_attached() -> None:
    merge = merge_of("R0", "a", "z")
    merge.detach("z")
    received: list[tuple[str, int, Element]] = [
        ("a", 0, Insert("A", 5, 9)), ("a", 0, Adjust("A", 5, 9, 8)), ("a", 0, Stable(6)),
    ]  # fmt: skip
    emitted = [out for name, _, element in received for out in merge.process(name, element)]
    assert len(merge.breaches()) == 1
    weak, missed = weakened(merge, "R3", received, emitted)
    assert (missed, weak.breaches(), weak.stats()) == ([], [], merge.stats())
    assert weak.process("z", Stable(1)) == []
    assert [b.kind for b in weak.breaches()] == [BreachKind.AFTER_DETACH]


@pytest.mark.parametrize(("case", "other"), [("R3", "R3"), ("R3", "R0"), ("R4", "R3")])
def test_only_a_weaker_case_weakens(case: str, other: str) -> None:
    with pytest.raises(ValueError, match="is not weaker than"):
        weakened(lmerge(case), other, [], [])


# Feedback


def test_in_r4_an_input_may_leave_out_events_that_it_has_not_published() -> None:
    merge = merge_of("R4", "fast", "slow")
    merge.process("slow", Insert("A", 5, 40))
    merge.process_batch("fast", [Insert("A", 5, 12), Insert("A", 5, 40), Stable(20)])
    assert merge.feedback() == {"slow": 20}
    emitted = merge.process_batch("slow", [Stable(25), Adjust("A", 5, 40, 50), Stable(60)])
    assert emitted == [Stable(25), Adjust("A", 5, 40, 50), Stable(60)]
    assert merge.breaches() == []


# Policies


def test_a_share_of_the_inputs_is_exact() -> None:
    assert Policy(insert=quorum(0.28)).witnesses(25) == 7
    assert Policy(insert=quorum(1.0)).witnesses(3) == 3
    assert Policy(insert=quorum(1)).witnesses(3) == 1


def test_a_quorum_that_is_never_reached_is_refused() -> None:
    Policy(insert=quorum(2), stable=quorum(2)).check_inputs(2)
    with pytest.raises(ValueError, match=r"stable=quorum\(3\) of 2 inputs is never reached"):
        Policy(stable=quorum(3)).check_inputs(2)
    with pytest.raises(ValueError, match=r"insert=quorum\(3\) of 2 inputs is never reached"):
        Policy(insert=quorum(3), stable=lag(3)).check_inputs(2)


def test_a_case_that_is_stronger_than_the_properties_is_refused() -> None:
    with pytest.raises(ValueError, match="allow R4 only, not R3"):
        lmerge("R3", properties=[StreamProperties()])


def test_events_of_one_vs_keep_their_order_across_a_restart() -> None:
    def fed(merge: Any) -> list[Element]:
        out: list[Element] = merge.process("b", Stable(45))
        return out

    merge = merge_of("R3", "a", "b")
    merge.process_batch("a", [Insert(k, 1, 50 - k) for k in range(10)])
    merge.process_batch("b", [Insert(k, 1, 40 - k) for k in range(10)])
    merge.process("a", Stable(2))
    twin = restore(merge.snapshot())
    emitted = fed(merge)
    assert emitted == fed(twin)
    assert [e.payload for e in emitted if isinstance(e, Adjust)] == list(range(10))


# The normaliser


def test_what_is_removed_leaves_nothing_with_the_normaliser() -> None:
    pieces = Normaliser()
    emitted: list[Element] = []
    for k in range(300):
        emitted += pieces.process(Insert(k, 1, INFINITY))
    for k in range(300):
        emitted += pieces.process(Adjust(k, 1, INFINITY, 1))
    pieces.check()
    assert len(pieces) == 0
    assert list(reconstitute(emitted)) == []


# Multisets


def test_a_first_word_that_is_final_already_is_no_live_event() -> None:
    merge = merge_of("R4", "a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    assert merge.process_batch("b", [Insert("A", 2, 8)]) == []
    merge.check()
    assert merge.process("b", Stable(15)) == [Stable(15)]
    assert [(b.input, b.kind) for b in merge.breaches()] == [("b", BreachKind.HALF_FROZEN_MISSING)]
