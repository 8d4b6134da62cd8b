"""LMR4 case by case: the paper's worked examples, who is blamed and followed, state, and cost."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from lmerge_service.core import BreachKind, LMerge, lmerge, restore
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.core.lmr4 import LMR4
from lmerge_service.core.policy import Policy, quorum
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import Event, reconstitute
from tests import vectors

MISSING, DISAGREES = BreachKind.HALF_FROZEN_MISSING, BreachKind.FROZEN_END_DISAGREES
UNKNOWN, WRONG = BreachKind.UNKNOWN_EVENT, BreachKind.WRONG_VOLD


def merge_of(*names: str, policy: Policy = Policy()) -> LMR4:
    merge = LMR4(policy)
    for name in names:
        merge.attach(name)
    return merge


def blamed(merge: LMerge) -> list[tuple[str, BreachKind]]:
    return [(breach.input, breach.kind) for breach in merge.breaches()]


# --- the paper's examples -----------------------------------------------------------------------

CASES = [case for case in vectors.cases("lmerge", "join") if case["given"].get("case") == "R4"]
POLICIES = {
    "lm-ex2-out1": Policy(adjust="eager"),
    "lm-ex2-out2": Policy("half_frozen"),  # the paper's conservative one emits the same here
    "lm-ex2-out3": Policy(),
    "lm-policy-lazy": Policy(),
    "lm-policy-eager": Policy(adjust="eager"),
    "lm-policy-half-frozen": Policy("half_frozen"),
    "lm-policy-leading": Policy("leader"),
    "lm-policy-quorum": Policy(quorum(1.0)),
    "lm-policy-conservative": None,  # it holds back stables until all is final: not one of ours
}


def play(merge: LMerge, given: Any) -> list[list[Element]]:
    for stream in range(given["inputs"]):
        merge.attach(str(stream))
    outputs = []
    for stream, row in given["steps"]:
        outputs.append(merge.process(str(stream), vectors.element(row)))
        merge.check()
    return outputs


def index_of(merge: LMR4) -> list[Any]:
    """The index as the vectors write it: (end, count) pairs, streams as they were attached."""
    return [
        {
            "vs": node.vs,
            "payload": node.payload,
            "counts": {
                name: [[end, len(list(equal))] for end, equal in groupby(ends)]
                for name, ends in [*((s.name, e) for s, e in node.ends.items()), ("out", node.out)]
                if ends
            },
        }
        for node in merge._index
    ]


def expected_index(rows: list[Any]) -> list[Any]:
    def filled(row: Any) -> dict[str, Any]:
        """Without the entries that hold nothing."""
        return {name: counts for name, counts in row["counts"].items() if counts}

    return [row | {"counts": filled(row)} for row in rows]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_outputs_and_states_are_the_vectors(case: Any) -> None:
    """Those of inexact cases too, though they need only agree about the TDB."""
    merge = merge_of()
    given, expect = case["given"], case["expect"]
    outputs = play(merge, given)
    assert outputs == [vectors.elements(rows) for rows in expect["outputs"]]
    emitted = [element for rows in outputs for element in rows]
    assert reconstitute(emitted) == vectors.tdb(expect["tdb"])

    again = merge_of()
    for stream in range(given["inputs"]):
        again.attach(str(stream))
    for (stream, row), state in zip(given["steps"], expect["states"], strict=True):
        again.process(str(stream), vectors.element(row))
        assert again.max_stable == vectors.time(state["max_stable"])
        assert index_of(again) == expected_index(state["in3t"])


def test_there_are_vectors_of_the_case() -> None:
    assert len(CASES) >= 12


def test_an_adjust_whose_old_end_is_not_held_is_a_breach() -> None:
    (case,) = [case for case in CASES if case["id"] == "lm-r4-12"]
    merge = merge_of()
    play(merge, case["given"])
    assert blamed(merge) == [("0", WRONG)]


@pytest.mark.parametrize("operator", [LMR3, LMR4])
@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_emits_what_the_vectors_have(name: str, operator: type[LMerge]) -> None:
    policy = POLICIES[name]
    if policy is None:
        pytest.skip("the policy that emits nothing but fully frozen events is not one of ours")
    (case,) = [case for case in vectors.cases("policy") if case["id"] == name]
    outputs = play(operator(policy), case["given"])
    assert outputs == [vectors.elements(rows) for rows in case["expect"]["outputs"]]


@pytest.mark.parametrize("operator", [LMR3, LMR4])
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("lazy", Policy()),
        ("eager", Policy(adjust="eager")),
        ("half_frozen", Policy("half_frozen")),
        ("quorum", Policy(quorum(2))),
    ],
)
def test_what_its_only_source_removes_again(
    name: str, policy: Policy, operator: type[LMerge]
) -> None:
    (case,) = [case for case in vectors.cases("policy") if case["id"] == "lm-policy-spurious"]
    outputs = play(operator(policy), case["given"])
    emitted = [element for rows in outputs for element in rows]
    assert emitted == vectors.elements(case["expect"][name])


def test_every_vector_of_a_policy_is_used() -> None:
    found = {case["id"] for case in vectors.cases("policy")}
    assert found == {*POLICIES, "lm-policy-spurious"}


# --- what is emitted ----------------------------------------------------------------------------


def test_within_a_batch_each_stable_counts_for_what_follows() -> None:
    merge = merge_of("a", "b")
    assert merge.process_batch("a", [Stable(10), Insert("A", 5, 20)]) == [Stable(10)]
    assert blamed(merge) == [("a", BreachKind.BROKE_OWN_STABLE)]
    assert merge.process_batch("b", [Insert("A", 5, 20), Insert("B", 10, 20)]) == [
        Insert("B", 10, 20)
    ]
    assert merge.inputs["b"].late == 1


def test_the_output_has_as_many_events_as_the_input_with_the_most() -> None:
    merge = merge_of("a", "b")
    one = Insert("A", 2, 5)
    assert merge.process_batch("a", [one, one, one]) == [one, one, one]
    assert merge.process_batch("b", [one, one, one]) == []
    assert merge.process("b", one) == [one]
    assert len(merge) == 4


def test_ends_that_wait_need_not_agree() -> None:
    """Of two ends above the stable point none is final, so that nothing is forced."""
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 30)])
    merge.process_batch("b", [Insert("A", 2, 25), Insert("A", 2, 35)])
    assert merge.process("b", Stable(10)) == [Stable(10)]
    assert merge.process("b", Stable(22)) == [Adjust("A", 2, 20, 25), Stable(22)]


def test_one_adjust_mends_a_surplus_and_a_deficit() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 9), Insert("A", 2, 20)])
    merge.process_batch("b", [Insert("A", 2, 6), Insert("A", 2, 9), Insert("A", 2, 21)])
    assert merge.process("b", Stable(10)) == [Adjust("A", 2, 5, 6), Stable(10)]


def test_what_is_removed_is_what_would_have_to_be_moved() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 5)])
    merge.process_batch("b", [Insert("A", 2, 21)])
    assert merge.process("b", Stable(10)) == [Adjust("A", 2, 5, 2), Stable(10)]


def test_what_is_put_out_at_a_stable_is_what_becomes_final_first() -> None:
    merge = merge_of("a", policy=Policy("half_frozen"))
    merge.process_batch("a", [Insert("A", 2, 9), Insert("A", 2, 5)])
    assert merge.process("a", Stable(6)) == [Insert("A", 2, 5), Insert("A", 2, 9), Stable(6)]


def test_a_payload_goes_out_as_it_was_published_first() -> None:
    merge = merge_of("a", "b")
    (first,) = merge.process("a", Insert(True, 2, 5))
    emitted = merge.process_batch("b", [Insert(1, 2, 5), Insert(1, 2, 5)])
    assert isinstance(first, Insert)
    assert isinstance(emitted[0], Insert)
    assert emitted[0].payload is first.payload is True


def test_payloads_need_no_order() -> None:
    merge = merge_of("a", "b")
    payloads: list[Any] = [None, "A", 1, ("A", 1), b"A", frozenset({1})]
    merge.process_batch("a", [Insert(p, 2, 9) for p in payloads for _ in range(2)])
    merge.process_batch("b", [Insert(p, 2, 8) for p in payloads for _ in range(2)])
    emitted = merge.process("b", Stable(9))
    assert emitted == [Adjust(p, 2, 9, 8) for p in payloads for _ in range(2)] + [Stable(9)]


def test_revisions_before_a_stable_come_in_the_order_of_start() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("B", 3, 9), Insert("A", 2, 9), Stable(4)])
    merge.process_batch("a", [Insert("D", 6, 8), Insert("C", 5, 8)])
    ends = {"D": (6, 7), "C": (5, 7), "A": (2, 6), "B": (3, 5)}
    merge.process_batch("b", [Insert(p, *times) for p, times in ends.items()])
    emitted = merge.process("b", Stable(10))
    assert [e.payload for e in emitted if isinstance(e, Adjust)] == ["A", "B", "C", "D"]


def test_what_only_a_leaver_had_goes_and_what_is_half_frozen_stays() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 20), Stable(3)])
    merge.process_batch("a", [Insert("B", 5, 20), Insert("B", 5, 20)])
    merge.process_batch("b", [Insert("A", 2, 20), Insert("A", 2, 20), Insert("B", 5, 20)])
    merge.detach("a")
    merge.check()
    assert merge.process("b", Stable(10)) == [Adjust("B", 5, 20, 5), Stable(10)]
    assert merge.breaches() == []


def test_an_input_that_starts_over_has_none_of_its_old_events() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 20)])
    merge.attach("a")
    assert merge.process("a", Insert("A", 2, 20)) == []
    assert merge.process("a", Stable(10)) == [Adjust("A", 2, 20, 2), Stable(10)]


# --- eager adjusts ------------------------------------------------------------------------------


def test_eagerly_the_very_event_that_was_revised_is_revised() -> None:
    merge = merge_of("a", policy=Policy(adjust="eager"))
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 8), Insert("A", 2, 5)])
    assert merge.process("a", Adjust("A", 2, 8, 9)) == [Adjust("A", 2, 8, 9)]
    assert merge.process("a", Adjust("A", 2, 5, 2)) == [Adjust("A", 2, 5, 2)]
    assert merge.process("a", Stable(30)) == [Stable(30)]


def test_eagerly_of_two_events_that_an_input_lacks_the_one_it_revised_goes() -> None:
    merge = merge_of("a", "b", policy=Policy(adjust="eager"))
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 8)])
    assert merge.process("b", Insert("A", 2, 8)) == []
    assert merge.process("b", Adjust("A", 2, 8, 9)) == [Adjust("A", 2, 8, 9)]


def test_eagerly_an_insert_that_adds_no_event_counts_as_a_revision() -> None:
    merge = merge_of("a", "b", policy=Policy(adjust="eager"))
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 8)])
    assert merge.process("b", Insert("A", 2, 8)) == []
    assert merge.process("b", Insert("A", 2, 7)) == [Adjust("A", 2, 5, 7)]


def test_eagerly_a_removal_takes_no_more_than_the_input_lacks() -> None:
    merge = merge_of("a", "b", policy=Policy(adjust="eager"))
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 8)])
    merge.process_batch("b", [Insert("A", 2, 5), Insert("A", 2, 8)])
    assert merge.process("b", Adjust("A", 2, 5, 2)) == [Adjust("A", 2, 5, 2)]
    assert merge.process("a", Adjust("A", 2, 5, 2)) == []


def test_eagerly_nothing_final_is_touched() -> None:
    merge = merge_of("a", "b", policy=Policy(adjust="eager"))
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    assert merge.process("b", Insert("A", 2, 9)) == []
    assert merge.process("b", Adjust("A", 2, 9, 10)) == [Adjust("A", 2, 20, 10)]
    assert merge.process("b", Adjust("A", 2, 10, 2)) == []
    merge.check()


def test_of_two_leaders_the_one_attached_first_revises() -> None:
    merge = merge_of("a", "b", policy=Policy(adjust="leader"))
    merge.process_batch("b", [Insert("A", 2, 20), Adjust("A", 2, 20, 21)])
    assert merge.process("a", Insert("A", 2, 22)) == [Adjust("A", 2, 20, 22)]


# --- held back ----------------------------------------------------------------------------------


def test_a_quorum_lets_out_as_many_as_so_many_inputs_have() -> None:
    merge = merge_of("a", "b", "c", policy=Policy(quorum(2)))
    assert merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 6)]) == []
    assert merge.process("b", Insert("A", 2, 7)) == [Insert("A", 2, 7)]
    assert merge.process("b", Insert("A", 2, 7)) == [Insert("A", 2, 7)]
    assert merge.process("b", Insert("A", 2, 7)) == []


def test_what_goes_out_is_an_end_that_somebody_still_has_more_often() -> None:
    merge = merge_of("late", "a", "b", policy=Policy("leader"))
    merge.process("a", Stable(1))
    assert merge.process_batch("late", [Insert("A", 2, 5), Insert("A", 2, 5)]) == []
    assert merge.process("a", Insert("A", 2, 6)) == [Insert("A", 2, 6)]
    merge.process("b", Insert("A", 2, 9))
    merge.process("b", Insert("A", 2, 6))
    assert merge.process("b", Stable(1)) == []
    assert merge.process("late", Insert("A", 2, 6)) == [Insert("A", 2, 5)]


# --- who is to blame, and who is followed -------------------------------------------------------


def test_an_adjust_is_judged_by_the_inputs_own_events() -> None:
    merge = merge_of("a", "b")
    merge.process("a", Insert("A", 5, 9))
    assert merge.process("b", Adjust("A", 5, 9, 12)) == []
    assert merge.process("a", Adjust("A", 5, 8, 12)) == []
    assert merge.process("a", Adjust("B", 5, 9, 12)) == []
    assert blamed(merge) == [("b", UNKNOWN), ("a", WRONG), ("a", UNKNOWN)]
    assert merge.process("a", Stable(20)) == [Stable(20)]
    assert merge.process("b", Adjust("A", 5, 9, 12)) == []
    assert (merge.breaches(), merge.inputs["b"].late) == ([], 1)


def contradicted() -> LMR4:
    """Two events [2, 20) are half frozen on the output; `liar` has one, the others have two."""
    merge = merge_of("a", "b", "liar")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 20), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 14), Insert("A", 2, 20), Stable(11)])
    merge.process("liar", Insert("A", 2, 20))
    return merge


def test_a_key_follows_the_highest_input_that_has_as_many_events() -> None:
    merge = contradicted()
    assert merge.process("liar", Stable(16)) == [Adjust("A", 2, 20, 14), Stable(16)]
    (breach,) = merge.breaches()
    assert (breach.input, breach.kind, breach.kept) == ("liar", MISSING, Event("A", 2, 20))
    merge.check()


def test_a_contradiction_is_reported_once_and_found_again() -> None:
    merge = contradicted()
    merge.process("liar", Stable(12))
    assert blamed(merge) == [("liar", MISSING)]
    assert merge.process("liar", Stable(16)) == [Adjust("A", 2, 20, 14), Stable(16)]
    assert merge.process("liar", Stable(30)) == [Stable(30)]
    assert merge.breaches() == []
    assert len(merge) == 0


def test_without_any_input_with_as_many_events_the_key_stays() -> None:
    merge = merge_of("a", "liar")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 20), Stable(10)])
    merge.process_batch("liar", [Insert("A", 2, 15)])
    merge.detach("a")
    assert merge.process("liar", Stable(30)) == [Stable(30)]
    assert blamed(merge) == [("liar", MISSING)]


def test_an_input_with_too_many_events_disagrees() -> None:
    merge = merge_of("a", "liar")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process_batch("liar", [Insert("A", 2, 20), Insert("A", 2, 20), Insert("A", 2, 9)])
    assert merge.process("liar", Stable(15)) == [Stable(15)]
    (breach,) = merge.breaches()
    assert (breach.kind, breach.kept) == (DISAGREES, Event("A", 2, 20))


def test_what_an_input_has_of_what_is_final_makes_up_for_nothing() -> None:
    merge = merge_of("a", "liar")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 20), Stable(10)])
    merge.process_batch("liar", [Insert("A", 2, 5), Insert("A", 2, 20)])
    assert merge.process("liar", Stable(11)) == [Stable(11)]
    assert blamed(merge) == [("liar", MISSING)]
    merge.check()


def test_what_an_input_has_of_what_is_final_is_not_compared() -> None:
    """A joiner need not have it at all, and a laggard may still revise it."""
    merge = merge_of("a", "late")
    merge.attach("joiner", joining_at=10)
    merge.process_batch("a", [Insert("A", 2, 8), Insert("A", 2, 20), Stable(10)])
    merge.process_batch("late", [Insert("A", 2, 5), Insert("A", 2, 20), Adjust("A", 2, 5, 8)])
    merge.process_batch("joiner", [Insert("A", 2, 20)])
    assert merge.process("joiner", Stable(11)) == [Stable(11)]
    assert merge.process("late", Stable(12)) == [Stable(12)]
    assert merge.process("joiner", Stable(21)) == [Stable(21)]
    assert merge.breaches() == []


def test_an_end_that_was_passed_may_be_revised_in_time() -> None:
    """The laggard's end falls below the stable point, and comes back before the laggard leads."""
    merge = merge_of("a", "late")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(3)])
    merge.process("late", Insert("A", 2, 5))
    for t in (7, 8, 9):
        merge.process("a", Stable(t))
        merge.check()
    merge.process("late", Adjust("A", 2, 5, 15))
    assert merge.process("late", Stable(12)) == [Stable(12)]
    assert merge.process("late", Stable(16)) == [Adjust("A", 2, 20, 15), Stable(16)]
    assert merge.breaches() == []


def test_a_gap_excuses_what_is_missing() -> None:
    merge = merge_of("a")
    merge.process_batch("a", [Insert("A", 2, 40), Insert("A", 2, 40), Stable(10)])
    merge.detach("a")
    merge.attach("b", joining_at=20)
    merge.process_batch("b", [Insert("A", 2, 40), Stable(30)])
    assert merge.accept_gap()[1] == [Stable(30)]
    assert merge.breaches() == []


def test_the_end_by_an_input_that_lacks_a_half_frozen_event_is_a_breach() -> None:
    merge = contradicted()
    emitted = merge.process("liar", Stable(INFINITY))
    assert emitted == [Adjust("A", 2, 20, 14), Stable(INFINITY)]
    assert blamed(merge) == [("liar", MISSING)]
    assert len(merge) == 0


def voted(k: int, **ends: list[int]) -> tuple[list[Any], list[tuple[str, BreachKind]]]:
    """The ends that the output has of A[2, ...) once k voters are at 30, and who is blamed."""
    merge = merge_of(*ends, policy=Policy(stable=quorum(k)))
    emitted: list[Element] = []
    for name, ves in ends.items():
        emitted += merge.process_batch(name, [Insert("A", 2, ve) for ve in ves])
    for name in ends:
        emitted += merge.process(name, Stable(30))
        merge.check()
    return sorted(ve for _, _, ve in reconstitute(emitted)), blamed(merge)


def test_of_several_voters_the_one_with_the_most_events_counts() -> None:
    assert voted(2, a=[9], b=[8, 9]) == ([8, 9], [("a", MISSING)])
    assert voted(2, a=[], b=[7, 7]) == ([7, 7], [("a", MISSING)])


def test_of_several_voters_the_majority_decides_about_ends() -> None:
    assert voted(3, a=[9, 9], b=[8, 9], c=[8, 9]) == ([8, 9], [("a", DISAGREES)])
    assert voted(2, a=[9, 9], b=[8, 9]) == ([9, 9], [("b", DISAGREES)]), "a tie: the first"
    assert voted(2, a=[40, 9], b=[30, 9])[1] == [], "neither is final yet"


def test_a_voter_that_contradicts_what_is_half_frozen_is_outvoted() -> None:
    merge = merge_of("liar", "b", "c", policy=Policy(stable=quorum(2)))
    merge.process("liar", Insert("A", 2, 20))
    merge.process_batch("b", [Insert("A", 2, 20), Stable(10)])
    merge.process_batch("c", [Insert("A", 2, 20), Stable(10)])
    merge.process_batch("liar", [Insert("A", 2, 12), Stable(15)])
    assert merge.process("b", Stable(15)) == [Stable(15)]
    assert blamed(merge) == [("liar", DISAGREES)]


# --- state --------------------------------------------------------------------------------------


def test_a_snapshot_remembers_multisets_and_whom_to_blame_no_more() -> None:
    merge = contradicted()
    merge.process_batch("b", [Insert(("B", 1), 12, 30), Insert(("B", 1), 12, INFINITY)])
    merge.process("liar", Stable(12))
    merge.breaches()
    twin = restore(merge.snapshot())
    assert twin.snapshot() == merge.snapshot()
    assert len(twin) == len(merge) == 4
    assert twin.process("liar", Stable(16)) == merge.process("liar", Stable(16))
    assert twin.breaches() == merge.breaches() == []


@pytest.mark.parametrize(
    "emitted",
    [
        [Adjust("A", 2, 9, 12)],
        [Insert("A", 2, 9), Adjust("A", 2, 8, 12)],
        [Insert("A", 2, 9), Adjust("A", 2, 9, 12), Adjust("A", 2, 9, 12)],
        [Insert("A", 2, 9), Insert("A", 2, 20), Stable(10), Adjust("A", 2, 9, 12)],
        [Insert("A", 2, 20), Stable(10), Adjust("A", 2, 20, 2)],
    ],
)
def test_an_output_that_no_merge_has_written_is_refused(emitted: list[Element]) -> None:
    with pytest.raises(StateError, match="something else writes"):
        lmerge("R4").replay_output(emitted)


def test_loading_keeps_nothing_of_what_is_final() -> None:
    merge = lmerge("R4")
    merge.replay_output([Insert("A", 2, 9), Insert("A", 2, 9), Insert("A", 2, 20), Stable(10)])
    merge.replay_output([Insert("B", 12, 15), Adjust("B", 12, 15, 12)])
    merge.check()
    assert len(merge) == 1
    merge.replay_output([Adjust("A", 2, 20, 30), Stable(25)])
    merge.check()
    assert len(merge) == 1
    merge.replay_output([Stable(INFINITY)])
    merge.check()
    assert len(merge) == 0


def test_an_output_that_was_cut_short_is_made_up_for() -> None:
    merge = lmerge("R4")
    merge.replay_output([Insert("A", 2, 9)])
    merge.attach("a")
    assert merge.replay_input("a", [Insert("A", 2, 9), Insert("A", 2, 8)]) == [Insert("A", 2, 8)]


# --- cost ---------------------------------------------------------------------------------------


def touched_by(merge: LMR4, name: str, element: Element) -> int:
    before = merge._index.touched
    merge.process(name, element)
    return merge._index.touched - before


def with_half_frozen(h: int) -> LMR4:
    """Two inputs that agree on h keys of two events which have begun and are not over."""
    merge = merge_of("a", "b")
    for name in ("a", "b"):
        ends = (10_000, 20_000)
        merge.process_batch(name, [Insert(k, k % 100, e + k) for k in range(h) for e in ends])
        merge.process(name, Stable(200))
    return merge


def test_a_stable_touches_no_half_frozen_key_that_it_does_not_concern() -> None:
    for h in (100, 10_000):
        merge = with_half_frozen(h)
        for t in range(201, 300):
            assert touched_by(merge, "a" if t % 2 else "b", Stable(t)) == 0
        merge.process("a", Insert("new", 400, 500))
        merge.process("b", Insert("new", 400, 500))
        assert touched_by(merge, "b", Stable(401)) == 1
        assert touched_by(merge, "a", Stable(501)) == 1


def test_a_stable_at_an_end_itself_does_not_look_at_it() -> None:
    merge = with_half_frozen(100)
    assert touched_by(merge, "a", Stable(10_000)) == 0
    assert touched_by(merge, "a", Stable(10_001)) == 1


def test_a_revision_of_a_half_frozen_event_costs_one_look() -> None:
    merge = with_half_frozen(5_000)
    merge.process("a", Adjust(7, 7, 10_007, 300))
    assert touched_by(merge, "b", Stable(290)) == 0
    assert touched_by(merge, "a", Stable(301)) == 1


def test_what_an_input_lacks_is_looked_for_once() -> None:
    merge = with_half_frozen(1_000)
    merge.attach("liar")
    merge.process_batch("liar", [Insert(k, k % 100, 10_000 + k) for k in range(1_000)])
    assert touched_by(merge, "liar", Stable(201)) == 1_000
    assert touched_by(merge, "a", Stable(202)) == 0
    assert touched_by(merge, "liar", Stable(203)) == 0, "they are known, and nothing is due"


def run(n: int) -> int:
    """A stream of n keys, two events to each third, with 3 n adjusts and n / 10 stables over two
    inputs; nodes touched."""
    merge = merge_of("a", "b")

    def stream(late: int) -> Iterator[Element]:
        for k in range(n):
            yield Insert(k, k, k + 1_000 + late)
            if k % 3 == 0:
                yield Insert(k, k, k + 900)
            if k > 50:
                yield Adjust(k - 50, k - 50, k + 950 + late, k + 900)
            if k % 10 == 9 and k > 100:
                yield Stable(k - 60)

    for one, two in zip(stream(3), stream(7), strict=True):
        merge.process("a", one)
        merge.process("b", two)
    assert merge.breaches() == []
    touched = merge._index.touched
    merge.process("b", Stable(INFINITY))
    assert len(merge) == 0
    return touched


def test_work_grows_with_the_stream_and_not_with_what_is_alive() -> None:
    """The first thousand events only fill the index, so it is what each further one costs."""
    start, once, four_times = run(1_000), run(5_000), run(17_000)
    assert once > start
    assert four_times - start <= 4.4 * (once - start)


@pytest.mark.parametrize("storms", [100, pytest.param(500, marks=pytest.mark.deep)])
def test_a_storm_of_adjusts_leaves_the_heaps_compact(storms: int) -> None:
    """Adjusts of a thousand events at 500 keys, with stables in between; by night a million."""
    merge = merge_of("a", "b")
    events = [(k // 2, k % 2) for k in range(1_000)]
    for name in ("a", "b"):
        merge.process_batch(name, [Insert(k, 0, 10_000 + twin) for k, twin in events])
    merge.process("a", Stable(1))
    end = 10_000
    for storm in range(storms):
        new = 10_000 + (storm % 2 or -1) * (storm % 50 + 1)
        for name in ("a", "b"):
            merge.process_batch(name, [Adjust(k, 0, end + twin, new + twin) for k, twin in events])
        merge.process("b" if storm % 2 else "a", Stable(2 + storm))
        if storm % 50 == 0:
            merge.check()  # Y5 bounds every heap
        end = new
    merge.check()
    assert merge.breaches() == []
    assert len(merge) == 1_000
    merge.process("a", Stable(20_000))
    assert len(merge) == 0
    merge.check()


def test_a_laggard_costs_no_memory_for_what_is_final() -> None:
    merge = merge_of("leader", "laggard")
    events: list[Element] = [Insert(k // 2, k // 2, k // 2 + 5) for k in range(5_000)]
    merge.process_batch("leader", [*events, Stable(6_000)])
    assert len(merge) == 0
    merge.process_batch("laggard", events)
    assert len(merge) == 0
    assert merge.inputs["laggard"].late == 5_000


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    merge = merge_of("a", policy=Policy("half_frozen"))
    for _ in range(10_000):
        merge.process_batch("a", [Insert("A", 5, 9), Adjust("A", 5, 9, 5)])
    assert len(merge) == 0
    merge.check()
    assert len(merge._index._coming) == 1


def test_the_stable_point_is_the_earliest_time_at_first() -> None:
    merge = merge_of("a")
    assert merge.process("a", Insert("A", START, 0)) == [Insert("A", START, 0)]
    assert merge.process("a", Stable(START + 1)) == [Stable(START + 1)]
    merge.check()
