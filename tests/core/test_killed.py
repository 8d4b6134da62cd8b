"""What mutants of the operators (`tests.mutants`) got away with, or nearly, in literal tests.

Nearly: drawn examples noticed them only."""

import gc

import pytest

from lmerge_service.core import BreachKind, Gap, LMerge, Policy, lmerge, quorum, restore, weakened
from lmerge_service.core.inputs import Input
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.core.lmr4 import LMR4
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event

UNKNOWN = BreachKind.UNKNOWN_EVENT
EAGER, FOLLOW, LEADER = Policy(adjust="eager"), Policy(adjust="leader"), Policy(insert="leader")
INDEXED = pytest.mark.parametrize("case", ["R3", "R4"])


def merge_of(*names: str, case: str = "R3", policy: Policy = Policy()) -> LMerge:
    merge = lmerge(case, policy)
    for name in names:
        merge.attach(name)
    return merge


def kinds(merge: LMerge) -> list[BreachKind]:
    return [breach.kind for breach in merge.breaches()]


# --- who is judged by what ----------------------------------------------------------------------


@INDEXED
def test_an_element_is_judged_by_the_stable_of_its_own_partition(case: str) -> None:
    merge = lmerge(case)
    merge.attach("a", partitions=2)
    merge.process("a", Stable(10), 0)
    assert merge.process_batch("a", [Insert("A", 5, 20)], 0) == []
    assert merge.process("a", Insert("B", 5, 20), 1) == [Insert("B", 5, 20)]
    assert merge.process("a", Adjust("B", 5, 20, 8), 0) == []
    assert kinds(merge) == [BreachKind.BROKE_OWN_STABLE] * 2


@INDEXED
def test_a_joiner_that_takes_the_lead_within_a_batch_counts_for_what_follows(case: str) -> None:
    merge = merge_of("a", case=case)
    merge.attach("b", joining_at=10)
    merge.process("b", Stable(50))
    emitted = merge.process_batch("a", [Stable(10), Insert("A", 20, 60), Insert("B", 50, 60)])
    assert emitted == [Stable(10), Stable(50), Insert("B", 50, 60)]
    assert merge.inputs["a"].late == 1


@INDEXED
def test_a_joiner_that_ends_the_stream_within_a_batch_leaves_nothing_to_be_found(case: str) -> None:
    merge = merge_of("a", case=case)
    merge.attach("b", joining_at=10)
    merge.attach("c", joining_at=50)
    merge.process_batch("b", [Insert("A", 20, 100), Stable(50)])
    merge.process("c", Stable(INFINITY))
    emitted = merge.process_batch("a", [Stable(10), Insert("A", 20, 100)])
    assert emitted == [Stable(10), Stable(50), Stable(INFINITY)]
    assert merge.inputs["a"].late == 1
    merge.check()


@INDEXED
def test_in_a_batch_an_input_is_counted_whether_or_not_it_publishes_anything_new(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    for name in ("a", "b"):
        merge.process_batch(name, [Insert("A", 5, 20)])
    assert [(each.inserts, each.first) for each in merge.inputs.values()] == [(1, 1), (1, 0)]


@INDEXED
def test_feedback_goes_to_those_that_lag_only(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case)
    merge.process("a", Stable(10))
    merge.process("b", Stable(10))
    assert merge.feedback() == {"c": 10}


@INDEXED
def test_what_an_input_has_taken_back_is_reported_in_the_order_of_start_too(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 1, 30), Insert("B", 2, 30), Stable(10)])
    merge.process_batch("b", [Insert("A", 1, 30), Adjust("A", 1, 30, 1), Stable(12)])
    assert [each.kept for each in merge.breaches()] == [Event("A", 1, 30), Event("B", 2, 30)]


@INDEXED
def test_a_gap_excuses_what_started_before_its_end(case: str) -> None:
    merge = lmerge(case)
    merge.attach("a", joining_at=50)
    merge.accept_gap()
    merge.attach("b")
    merge.process_batch("b", [Insert("A", 49, 90), Insert("B", 50, 90), Stable(60)])
    merge.process("a", Stable(70))
    assert [each.kept for each in merge.breaches()] == [Event("B", 50, 90)]


# --- what is contradicted, and whom it follows --------------------------------------------------


@INDEXED
def test_a_newcomer_is_held_to_what_is_half_frozen(case: str) -> None:
    merge = merge_of("a", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.attach("b")
    merge.process("b", Stable(15))
    assert kinds(merge) == [BreachKind.HALF_FROZEN_MISSING]


@INDEXED
def test_a_batch_emits_ends_of_what_is_half_frozen(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 20)])
    merge.check()
    assert merge.process("b", Stable(30)) == [Adjust("A", 2, 90, 20), Stable(30)]


@INDEXED
def test_a_joining_input_is_followed_by_no_event_that_a_joined_one_has(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.attach("c", joining_at=40)
    merge.process_batch("c", [Insert("A", 2, 70), Stable(20)])
    assert merge.process("b", Stable(80)) == [Stable(80)]


@INDEXED
def test_an_end_before_its_joining_time_is_not_followed(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.detach("a")
    merge.attach("c", joining_at=40)
    merge.process("c", Insert("A", 2, 30))
    assert merge.process("b", Stable(35)) == [Stable(35)]


@INDEXED
def test_a_contradicted_event_follows_an_end_that_is_published_later(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.process("b", Stable(15))
    merge.process_batch("c", [Insert("A", 2, 40), Stable(14)])
    assert merge.process("b", Stable(50)) == [Adjust("A", 2, 90, 40), Stable(50)]


@INDEXED
def test_a_contradicted_event_that_moves_back_follows_ends_before_it(case: str) -> None:
    merge = merge_of("a", "b", "c", "d", case=case)
    merge.process("c", Insert("A", 2, 20))
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.process("d", Insert("A", 2, 60))
    merge.process("b", Stable(15))
    assert merge.process("b", Stable(30)) == [Adjust("A", 2, 20, 90), Stable(30)]
    merge.process("d", Stable(25))
    assert merge.process("b", Stable(70)) == [Adjust("A", 2, 90, 60), Stable(70)]


@INDEXED
def test_a_contradiction_that_is_met_again_is_not_reported_again(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 5), Stable(15)])
    merge.process("a", Adjust("A", 2, 90, 30))
    assert merge.process("b", Stable(40)) == [Adjust("A", 2, 90, 30), Stable(40)]
    assert [each.input for each in merge.breaches()] == ["b"]


@INDEXED
def test_contradicted_events_are_found_after_a_storm_of_revisions(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Insert("B", 2, 90), Stable(10)])
    merge.process("b", Stable(12))
    merge.process_batch("c", [Insert("A", 2, 20), Insert("B", 2, 15), Stable(11)])
    for _ in range(150):
        merge.process_batch("c", [Adjust("A", 2, 20, 30), Adjust("A", 2, 30, 20)])
    assert merge.process("b", Stable(18)) == [Adjust("B", 2, 90, 15), Stable(18)]


def test_a_breach_names_the_event_of_several_that_is_missing() -> None:
    merge = merge_of("a", "b", case="R4")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 30), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 20), Stable(12)])
    assert [each.kept for each in merge.breaches()] == [Event("A", 2, 30)]


@INDEXED
def test_a_contradiction_is_over_when_its_event_is_final(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    assert merge.process("b", Stable(15)) == [Stable(15)]
    assert merge.process("b", Stable(25)) == [Stable(25)]
    merge.check()
    assert merge.process("b", Stable(30)) == [Stable(30)]


@INDEXED
def test_an_end_that_a_contradicted_event_might_have_followed_is_over_with_it(case: str) -> None:
    """Here 25, which is beyond the end that the event gets before it is final."""
    merge = merge_of("a", "b", "c", case=case)
    merge.process("a", Insert("A", 2, 30))
    merge.process("b", Insert("A", 2, 25))
    merge.process("a", Stable(5))
    assert merge.process("c", Stable(10)) == [Stable(10)]
    assert kinds(merge) == [BreachKind.HALF_FROZEN_MISSING]
    revised = Adjust("A", 2, 30, 20)
    assert merge.process_batch("a", [revised, Stable(22)]) == [revised, Stable(22)]
    assert len(merge) == 0
    assert merge.process("a", Stable(26)) == [Stable(26)]
    merge.check()


def test_an_end_at_the_stable_stays_where_another_of_its_key_becomes_final() -> None:
    merge = merge_of("a", case="R4")
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 10), Stable(10)])
    emitted = merge.process_batch("a", [Adjust("A", 2, 10, 20), Stable(12)])
    assert emitted == [Adjust("A", 2, 10, 20), Stable(12)]


def test_within_one_start_adjusts_come_in_the_order_of_arrival() -> None:
    merge = merge_of("a", "b", case="R4")
    merge.process_batch("a", [Insert("A", 2, 15), Insert("B", 2, 12), Stable(10)])
    emitted = merge.process_batch("b", [Insert("B", 2, 90), Insert("A", 2, 90), Stable(20)])
    assert emitted == [Adjust("A", 2, 15, 90), Adjust("B", 2, 12, 90), Stable(20)]


@pytest.mark.parametrize("later", [1, 2])
def test_at_the_end_adjusts_come_in_the_order_of_start_and_arrival(later: int) -> None:
    """Whichever of the events a stable has looked at meanwhile: here A, which b ends before 12."""
    merge = merge_of("a", "b", case="R4")
    merge.process_batch("a", [Insert("A", 1, 20), Insert("B", later, 20)])
    merge.process_batch("b", [Insert("A", 1, 10), Insert("B", later, 20)])
    revised = [Adjust("A", 1, 20, 15), Adjust("B", later, 20, 16)]
    assert merge.process_batch("a", [Stable(5), Stable(12), *revised]) == [Stable(5), Stable(12)]
    assert merge.process("a", Stable(INFINITY)) == [*revised, Stable(INFINITY)]


def test_what_a_leader_has_of_what_is_final_is_not_emitted_again() -> None:
    merge = merge_of("a", case="R4")
    merge.process_batch("a", [Insert("A", 2, 5), Insert("A", 2, 20), Stable(10)])
    emitted = merge.process_batch("a", [Adjust("A", 2, 20, 30), Stable(25)])
    assert emitted == [Adjust("A", 2, 20, 30), Stable(25)]


# --- claims -------------------------------------------------------------------------------------


def test_an_event_that_another_input_claimed_goes_out_with_its_first_insert() -> None:
    merge = merge_of("a", "b")
    assert merge.process("b", Adjust("A", 5, 9, 12)) == []
    assert merge.process_batch("a", [Insert("A", 5, 9)]) == [Insert("A", 5, 9)]


def test_an_insert_makes_a_claim_good() -> None:
    merge = merge_of("a")
    merge.process("a", Adjust("A", 5, 9, 12))
    assert merge.process("a", Insert("A", 5, 12)) == [Insert("A", 5, 12)]
    assert kinds(merge) == [UNKNOWN]


def test_a_claim_of_the_leader_puts_nothing_out() -> None:
    merge = merge_of("a", "b", policy=LEADER)
    merge.process("a", Stable(3))
    merge.process("a", Adjust("A", 5, 9, 12))
    assert merge.process("b", Insert("A", 5, 9)) == []
    assert merge.process("a", Insert("A", 5, 12)) == [Insert("A", 5, 12)]


def test_a_quorum_of_inserts_counts_no_claims() -> None:
    merge = merge_of("a", "b", "c", policy=Policy(insert=quorum(3)))
    merge.process("a", Insert("A", 5, 9))
    assert merge.process("b", Adjust("A", 5, 9, 12)) == []
    assert merge.process("c", Insert("A", 5, 9)) == []
    assert merge.process("b", Insert("A", 5, 12)) == [Insert("A", 5, 12)]


def test_a_claim_that_was_taken_back_is_none() -> None:
    merge = merge_of("a", "b", policy=Policy(insert=quorum(2)))
    merge.process("a", Insert("A", 5, 9))
    merge.process_batch("b", [Adjust("A", 5, 9, 12), Adjust("A", 5, 12, 5)])
    assert merge.process("b", Insert("A", 5, 9)) == [Insert("A", 5, 9)]


def test_a_snapshot_remembers_what_was_claimed_only() -> None:
    merge = merge_of("a", "b", policy=Policy(insert=quorum(2)))
    merge.process("b", Adjust("A", 5, 9, 12))
    merge = restore(merge.snapshot())
    assert merge.process("a", Insert("A", 5, 9)) == []


@INDEXED
def test_of_an_event_that_was_held_back_nothing_stays_when_its_input_leaves(case: str) -> None:
    merge = merge_of("a", case=case, policy=Policy(insert="half_frozen"))
    merge.process("a", Insert("A", 5, 9))
    merge.detach("a")
    assert len(merge) == 0
    merge.check()


# --- policies -----------------------------------------------------------------------------------


@INDEXED
def test_a_joining_input_leads_no_inserts(case: str) -> None:
    merge = merge_of("a", case=case, policy=LEADER)
    merge.process("a", Stable(5))
    merge.attach("b", joining_at=40)
    merge.process("b", Stable(50))
    assert merge.process("b", Insert("A", 60, 70)) == []
    assert merge.process("a", Insert("A", 60, 70)) == [Insert("A", 60, 70)]


def test_what_a_new_leader_had_held_back_goes_out_with_its_next_insert() -> None:
    merge = merge_of("a", "b", case="R4", policy=LEADER)
    merge.process("a", Stable(1))
    held = [Insert("A", 3, 5), Insert("A", 3, 8)]
    assert merge.process_batch("b", [*held, Stable(2)]) == [Stable(2)]
    assert merge.process("b", Insert("A", 3, 9)) == [Insert("A", 3, 9), *held]


@INDEXED
def test_where_the_output_moves_back_inputs_that_end_the_event_earlier_are_found(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=FOLLOW)
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Insert("A", 2, 30))
    assert merge.process("a", Adjust("A", 2, 20, 90)) == [Adjust("A", 2, 20, 90)]
    assert merge.process("b", Stable(40)) == [Adjust("A", 2, 90, 30), Stable(40)]


@INDEXED
def test_what_is_half_frozen_is_not_withdrawn_after_a_restore_either(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=EAGER)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge = restore(merge.snapshot())
    assert merge.process_batch("b", [Insert("A", 2, 90), Adjust("A", 2, 90, 2)]) == []


@pytest.mark.parametrize("share", ["quorum(0.5)", "quorum(0)"])
def test_a_quorum_of_stables_counts_inputs(share: str) -> None:
    with pytest.raises(ValueError, match="stable must be one of"):
        Policy(stable=share)


def test_a_quorum_of_inserts_is_rounded_up_and_may_be_all_of_them() -> None:
    assert Policy(insert=quorum(0.5)).witnesses(3) == 2
    assert Policy(insert=quorum(1.0)).witnesses(3) == 3
    assert Policy(insert=quorum(0.07)).witnesses(100) == 7


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
@pytest.mark.parametrize("policy", [Policy(stable=quorum(2)), Policy(insert="half_frozen")])
def test_a_policy_that_remembers_is_had_in_an_ordered_case_too(case: str, policy: Policy) -> None:
    assert policy.remembers
    merge = merge_of("a", "b", case=case, policy=policy)
    for name in ("a", "b"):
        emitted = merge.process_batch(name, [Insert("A", 1, 5), Stable(2)])
    assert emitted[-1:] == ([Stable(2)] if policy.insert == "first" else [])


def test_without_a_key_an_event_that_comes_twice_is_two_also_where_it_is_held_back() -> None:
    merge = merge_of("a", case="R1", policy=Policy(insert="half_frozen"))
    emitted = merge.process_batch("a", [Insert("A", 1, 5), Insert("A", 1, 5), Stable(2)])
    assert emitted == [Insert("A", 1, 5), Insert("A", 1, 5), Stable(2)]


@INDEXED
def test_eagerly_an_end_that_is_final_on_the_output_is_not_reflected(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=EAGER)
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    assert merge.process("b", Insert("A", 2, 9)) == []
    assert merge.process("b", Adjust("A", 2, 9, 10)) == [Adjust("A", 2, 20, 10)]


@INDEXED
def test_what_was_revised_eagerly_is_found_by_its_new_end(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=EAGER)
    merge.process("b", Insert("A", 2, 30))
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    assert merge.process("a", Adjust("A", 2, 20, 12)) == [Adjust("A", 2, 20, 12)]
    assert merge.process("b", Stable(15)) == [Adjust("A", 2, 12, 30), Stable(15)]


@INDEXED
def test_the_majority_overrules_the_furthest_voter_also_where_that_agrees_with_the_output(
    case: str,
) -> None:
    merge = merge_of("a", "b", "c", case=case, policy=Policy(stable=quorum(3)))
    for name in ("a", "b", "c"):
        merge.process_batch(name, [Insert("A", 2, 20), Stable(10)])
    for name in ("a", "b"):
        merge.process_batch(name, [Adjust("A", 2, 20, 12), Stable(15)])
    assert merge.process("c", Stable(16)) == [Adjust("A", 2, 20, 12), Stable(15)]
    assert kinds(merge) == [BreachKind.FROZEN_END_DISAGREES]


@INDEXED
def test_each_voter_is_held_to_what_is_half_frozen(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case, policy=Policy(stable=quorum(2)))
    for name in ("a", "b"):
        merge.process_batch(name, [Insert("A", 2, 50), Stable(10)])
    merge.process("a", Stable(20))
    assert merge.process("c", Stable(20)) == [Stable(20)]
    assert [(each.input, each.kind) for each in merge.breaches()] == [
        ("c", BreachKind.HALF_FROZEN_MISSING)
    ]


def test_no_voter_is_to_blame_for_lacking_what_was_claimed_only() -> None:
    merge = merge_of("a", "b", policy=Policy(stable=quorum(2)))
    merge.process_batch("a", [Adjust("A", 2, 20, 30), Stable(10)])
    assert merge.process("b", Stable(10)) == [Stable(10)]
    assert kinds(merge) == [UNKNOWN]


def test_eagerly_nothing_is_removed_while_its_input_has_as_many_events() -> None:
    merge = merge_of("a", "b", case="R4", policy=Policy(insert=quorum(2), adjust="eager"))
    merge.process("a", Insert("A", 2, 5))
    emitted = merge.process_batch("b", [Insert("A", 2, 8), Insert("A", 2, 9), Adjust("A", 2, 8, 2)])
    assert emitted == [Insert("A", 2, 8)]


@INDEXED
def test_what_no_voter_has_is_withdrawn_without_blame(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case, policy=Policy(stable=quorum(2)))
    merge.process("c", Insert("A", 2, 20))
    merge.process("a", Stable(10))
    assert merge.process("b", Stable(10)) == [Adjust("A", 2, 20, 2), Stable(10)]
    assert merge.breaches() == []


@INDEXED
def test_voters_that_differ_beyond_the_stable_agree(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case, policy=Policy(stable=quorum(3)))
    for name, ve in (("a", 12), ("b", 30), ("c", 40)):
        emitted = merge.process_batch(name, [Insert("A", 2, ve), Stable(15)])
    assert emitted == [Adjust("A", 2, 12, 30), Stable(15)]
    assert [each.input for each in merge.breaches()] == ["a"]


def test_ends_that_are_final_on_the_output_are_no_votes() -> None:
    merge = merge_of("a", "b", "c", policy=Policy(stable=quorum(3)))
    for name in ("a", "b", "c"):
        merge.process_batch(name, [Insert("A", 2, 30), Stable(10)])
    for name in ("d", "e"):
        merge.attach(name)
        merge.process_batch(name, [Insert("A", 2, 5), Stable(20)])
    assert merge.process("c", Stable(20)) == [Stable(20)]
    assert [each.input for each in merge.breaches()] == ["d", "e"]


@INDEXED
def test_a_tie_of_votes_goes_to_the_input_attached_first_and_not_to_the_furthest(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=Policy(stable=quorum(2)))
    merge.process_batch("b", [Insert("A", 2, 14), Stable(20)])
    emitted = merge.process_batch("a", [Insert("A", 2, 12), Stable(15)])
    assert emitted == [Adjust("A", 2, 14, 12), Stable(15)]


# --- recalling ----------------------------------------------------------------------------------


@INDEXED
def test_what_was_withdrawn_eagerly_is_not_recalled(case: str) -> None:
    received: list[tuple[str, Element]] = [
        ("a", Insert("A", 5, 9)),
        ("b", Insert("A", 5, 9)),
        ("b", Adjust("A", 5, 9, 5)),
        ("a", Adjust("A", 5, 9, 5)),
    ]
    first = merge_of("a", "b", case=case, policy=EAGER)
    emitted = [each for name, element in received for each in first.process(name, element)]
    assert emitted == [Insert("A", 5, 9), Adjust("A", 5, 9, 5)]
    again = lmerge(case, EAGER)
    again.replay_output(emitted)
    again.attach("a")
    again.attach("b")
    assert [again.replay_input(name, [element]) for name, element in received] == [[]] * 4


@INDEXED
def test_what_was_revised_eagerly_is_not_revised_back_by_what_is_recalled(case: str) -> None:
    again = lmerge(case, EAGER)
    again.replay_output([Insert("A", 5, 9), Adjust("A", 5, 9, 12)])
    again.attach("a")
    assert again.replay_input("a", [Insert("A", 5, 9), Adjust("A", 5, 9, 12)]) == []


@INDEXED
def test_what_a_policy_held_back_stays_held_back_while_recalling(case: str) -> None:
    again = lmerge(case, LEADER)
    again.replay_output([Stable(3)])
    again.attach("a")
    again.attach("b")
    assert again.replay_input("b", [Insert("A", 5, 9)]) == []
    assert again.replay_input("a", [Stable(3)]) == []
    assert again.process("a", Insert("A", 5, 9)) == [Insert("A", 5, 9)]


@INDEXED
def test_what_the_output_has_withdrawn_is_not_loaded(case: str) -> None:
    again = lmerge(case)
    again.replay_output([Insert("A", 5, 9), Adjust("A", 5, 9, 5)])
    assert len(again) == 0


# --- memory -------------------------------------------------------------------------------------


@INDEXED
def test_an_end_that_comes_and_goes_makes_no_queue_grow(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("b", [Insert("A", 2, 90), Stable(10)])
    merge.process("a", Insert("A", 2, 20))
    for _ in range(200):
        merge.process_batch("a", [Adjust("A", 2, 20, 95), Adjust("A", 2, 95, 20)])
    merge.check()


@INDEXED
def test_ends_that_the_output_revises_without_a_stable_make_no_queue_grow(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=FOLLOW)
    merge.process_batch("a", [Insert("A", 2, 900), Insert("B", 2, 15), Stable(10)])
    merge.process("b", Insert("B", 2, 90))
    merge.process_batch("a", [Adjust("A", 2, end, end - 1) for end in range(900, 600, -1)])
    merge.check()
    assert merge.process("b", Stable(12)) == [Stable(12)]
    emitted = merge.process("b", Stable(18))
    assert emitted == [Adjust("B", 2, 15, 90), Stable(18)], "its end is found after the storm"


@INDEXED
def test_ends_that_the_output_moves_back_make_no_queue_grow(case: str) -> None:
    merge = merge_of("a", case=case, policy=EAGER)
    merge.process_batch("a", [Insert("A", 2, 100), Stable(10)])
    merge.process_batch("a", [Adjust("A", 2, end, end + 1) for end in range(100, 400)])
    merge.check()


@INDEXED
def test_ends_that_were_revised_go_with_their_events(case: str) -> None:
    merge = merge_of("a", case=case, policy=EAGER)
    merge.process_batch("a", [*(Insert(k, 2, 90) for k in range(200)), Stable(10)])
    merge.process_batch("a", [*(Adjust(k, 2, 90, 20) for k in range(200)), Stable(25)])
    assert len(merge) == 0
    merge.check()


@INDEXED
def test_a_stable_at_an_end_that_the_output_revised_does_not_look_at_the_event(case: str) -> None:
    merge = merge_of("a", case=case, policy=EAGER)
    assert isinstance(merge, LMR3 | LMR4)
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10), Adjust("A", 2, 20, 40)])
    before = merge._index.touched
    merge.process("a", Stable(25))
    assert merge._index.touched == before


@INDEXED
def test_a_stable_at_an_end_that_its_input_revised_does_not_look_at_the_event(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    assert isinstance(merge, LMR3 | LMR4)
    merge.process_batch("a", [Insert("A", 2, 90), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 20), Adjust("A", 2, 20, 80)])
    before = merge._index.touched
    merge.process("b", Stable(30))
    assert merge._index.touched == before


@INDEXED
def test_a_contradicted_event_is_not_looked_at_for_an_end_that_is_final(case: str) -> None:
    merge = merge_of("a", "b", "c", case=case)
    assert isinstance(merge, LMR3 | LMR4)
    merge.process("a", Insert("A", 2, 90))
    merge.process("b", Insert("A", 2, 8))
    merge.process("a", Stable(5))
    assert merge.process("c", Stable(10)) == [Stable(10)]
    assert kinds(merge) == [BreachKind.HALF_FROZEN_MISSING]
    touched = merge._index.touched
    for t in range(11, 20):
        assert merge.process("c", Stable(t)) == [Stable(t)]
    assert merge._index.touched == touched


@INDEXED
def test_early_ends_are_found_after_a_storm_of_revisions(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.process_batch("a", [Insert("A", 2, 90), Insert("B", 2, 90), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 20), Insert("B", 2, 15)])
    for _ in range(100):
        merge.process_batch("b", [Adjust("A", 2, 20, 30), Adjust("A", 2, 30, 20)])
    emitted = merge.process("b", Stable(18))
    assert emitted == [Adjust("B", 2, 90, 15), Stable(18)]


@INDEXED
def test_of_an_input_that_left_nothing_is_kept(case: str) -> None:
    merge = merge_of("a", "leaver", case=case)
    merge.process_batch("a", [*(Insert(payload, 2, 90) for payload in "ABC"), Stable(10)])
    merge.process_batch("leaver", [Insert("A", 2, 20), Adjust("B", 2, 90, 15), Stable(12)])
    merge.process("a", Insert("D", 20, 90))
    merge.process("leaver", Adjust("D", 20, 90, 95))
    merge.detach("leaver")
    merge.check()
    gc.collect()
    inputs = [each for each in gc.get_objects() if type(each) is Input]
    assert not [each for each in inputs if each.name == "leaver"]


# --- gaps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
def test_what_an_ordered_input_published_before_its_gap_was_accepted_goes_out(case: str) -> None:
    merge = lmerge(case)
    merge.attach("a", joining_at=50)
    assert merge.process_batch("a", [Insert("A", 50, 70), Stable(60)]) == []
    _, emitted = merge.accept_gap()
    assert emitted == [Insert("A", 50, 70), Stable(60)]


@INDEXED
def test_under_a_quorum_there_is_a_gap_where_fewer_are_joined_than_decide(case: str) -> None:
    merge = merge_of("a", case=case, policy=Policy(stable=quorum(2)))
    merge.attach("b", joining_at=50)
    merge.process("a", Stable(60))
    accepted, _ = merge.accept_gap()
    assert accepted == Gap(START, 50, "b")
    assert merge.process("b", Stable(55)) == [Stable(55)]


def test_a_weaker_operator_takes_over_what_was_counted() -> None:
    strong = merge_of("a", case="R0")
    received: list[Element] = [Insert("A", 1, 5), Stable(2)]
    emitted = strong.process_batch("a", received)
    weak, _ = weakened(strong, "R3", [("a", 0, element) for element in received], emitted)
    assert (weak.stats().inserts, weak.stats().stables, weak.stats().leader) == (1, 1, "a")


def test_an_accepted_gap_is_accepted_under_a_weaker_case_too() -> None:
    strong = lmerge("R0")
    strong.attach("a", joining_at=50)
    strong.accept_gap()
    weak, _ = weakened(strong, "R3", [], [])
    assert weak.gap is None
    assert weak.process("a", Stable(60)) == [Stable(60)]


# --- ordered cases ------------------------------------------------------------------------------


def test_in_r0_a_repeated_insert_is_a_breach() -> None:
    merge = merge_of("a", case="R0")
    assert merge.process_batch("a", [Insert("A", 1, 5)] * 2) == [Insert("A", 1, 5)]
    assert kinds(merge) == [BreachKind.BROKE_CASE]


def test_in_r2_a_repeated_insert_is_a_breach_whoever_was_first() -> None:
    merge = merge_of("a", "b", case="R2")
    merge.process("a", Insert("A", 1, 5))
    assert merge.process_batch("b", [Insert("A", 1, 5)] * 2) == []
    assert kinds(merge) == [BreachKind.DUPLICATE_KEY]
    merge.detach("b")
    merge.check()


def test_in_r2_an_output_with_several_events_at_one_time_is_loaded() -> None:
    merge = lmerge("R2")
    merge.replay_output([Insert("A", 1, 5), Insert("B", 1, 5)])
    assert len(merge) == 2


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
def test_of_a_joiner_that_left_nothing_waits(case: str) -> None:
    merge = lmerge(case)
    merge.attach("a", joining_at=50)
    merge.process("a", Insert("A", 60, 70))
    merge.detach("a")
    assert restore(merge.snapshot()).inputs == {}


@pytest.mark.parametrize("case", ["R0", "R1", "R2"])
def test_in_batches_too_inputs_are_held_to_their_order_where_all_is_remembered(case: str) -> None:
    merge = merge_of("a", "b", case=case, policy=Policy(stable=quorum(2)))
    emitted = merge.process_batch("a", [Insert("A", 5, 9), Insert("B", 3, 9)])
    assert emitted == [Insert("A", 5, 9)]
    assert kinds(merge) == [BreachKind.BROKE_CASE]


@INDEXED
def test_an_event_that_ended_earlier_than_first_emitted_concerns_no_stable_at_its_old_end(
    case: str,
) -> None:
    merge = merge_of("a", case=case)
    merge.process_batch("a", [Insert("A", 5, 20), Stable(8), Adjust("A", 5, 20, 10)])
    assert merge.process("a", Stable(12)) == [Adjust("A", 5, 20, 10), Stable(12)]
    assert merge.process("a", Stable(25)) == [Stable(25)]
    merge.check()


def test_a_lag_is_a_number_of_time_units() -> None:
    assert Policy(stable="lag(0)").lag == 0
    assert Policy(stable=f"lag({INFINITY})").lag == INFINITY
    for text in (f"lag({INFINITY + 1})", "lag(2.5)"):
        with pytest.raises(ValueError, match="stable must be one of"):
            Policy(stable=text)


@pytest.mark.parametrize("case", ["R1", "R2"])
def test_of_a_joiner_that_a_loaded_stable_joins_the_next_insert_at_that_time_is_emitted(
    case: str,
) -> None:
    merge = lmerge(case)
    merge.attach("a", joining_at=5)
    assert merge.process_batch("a", [Insert("A", 5, 9), Insert("B", 5, 9)]) == []
    merge.replay_output([Insert("A", 5, 9), Stable(5)])
    assert merge.replay_input("a", ()) == [Insert("B", 5, 9)]


@INDEXED
def test_each_emitted_adjust_is_counted_once(case: str) -> None:
    merge = merge_of("a", case=case, policy=EAGER)
    elements: list[Element] = [Insert("A", 1, 5), Adjust("A", 1, 5, 7), Adjust("A", 1, 7, 1)]
    assert merge.process_batch("a", elements) == elements
    assert (merge.stats().adjusts, merge.stats().removals) == (2, 1)


@INDEXED
def test_each_element_of_an_input_that_left_is_a_breach(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    merge.detach("a")
    assert merge.process_batch("a", [Insert("A", 1, 5), Stable(3)]) == []
    assert kinds(merge) == [BreachKind.AFTER_DETACH] * 2


@INDEXED
def test_a_stable_joins_all_inputs_whose_time_it_reaches(case: str) -> None:
    merge = merge_of("a", case=case)
    for name in "bcd":
        merge.attach(name, joining_at=7)
    merge.process("a", Stable(7))
    assert all(source.joined for source in merge.inputs.values())


@INDEXED
def test_the_versions_of_all_events_are_given(case: str) -> None:
    merge = merge_of("a", case=case)
    merge.process_batch("a", [Insert("A", 1, 5), Insert("B", 2, 6)])
    versions = merge.versions()
    assert versions is not None
    assert sorted(versions) == [("A", 1, [5], [("a", [5])]), ("B", 2, [6], [("a", [6])])]


@INDEXED
def test_another_payload_at_the_time_of_a_lone_event_is_an_event_of_its_own(case: str) -> None:
    merge = merge_of("a", "b", case=case)
    assert merge.process_batch("a", [Insert("A", 5, 9)]) == [Insert("A", 5, 9)]
    assert merge.process_batch("b", [Insert("B", 5, 9)]) == [Insert("B", 5, 9)]
    merge.check()


def test_a_quorum_is_at_most_all_inputs() -> None:
    with pytest.raises(ValueError, match="insert must be one of"):
        Policy(insert="quorum(1.5)")


@INDEXED
def test_an_input_has_a_partition(case: str) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        lmerge(case).attach("a", partitions=0)


@INDEXED
def test_while_no_input_is_joined_none_leads(case: str) -> None:
    merge = lmerge(case, LEADER)
    merge.attach("a", joining_at=5)
    assert merge.process("a", Insert("A", 6, 9)) == []
