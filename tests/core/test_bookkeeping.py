"""Who leads, who is counted and who is blamed, and the boundaries of each, case by case.

Nearly every one was wrong in a mutant of the operator that all other tests let live; the rest
were found by drawn examples only, and not in every run."""

from hashlib import sha256

import pytest

from lmerge_service.core import Breach, BreachKind, Gap, LMerge, Stats, lmerge, restore
from lmerge_service.core.in2t import Node
from lmerge_service.core.index import EndQueue
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.tdb import Event

MISSING, DISAGREES = BreachKind.HALF_FROZEN_MISSING, BreachKind.FROZEN_END_DISAGREES


def merge_of(*names: str) -> LMR3:
    merge = lmerge()
    assert isinstance(merge, LMR3)
    for name in names:
        merge.attach(name)
    return merge


def blamed(merge: LMerge) -> list[tuple[str, BreachKind]]:
    return [(breach.input, breach.kind) for breach in merge.breaches()]


# --- who leads, and who is joined ---------------------------------------------------------------


def test_a_tie_for_the_lead_goes_to_the_input_attached_first() -> None:
    merge = merge_of("a")
    merge.attach("first", joining_at=10)
    merge.attach("second", joining_at=10)
    merge.process_batch("second", [Insert("A", 12, 15), Stable(20)])
    merge.process_batch("first", [Insert("A", 12, 16), Stable(20)])
    assert merge.process("a", Stable(10)) == [Stable(10), Adjust("A", 12, 15, 16), Stable(20)]
    assert merge.stats().leader == "first"


def test_an_input_that_starts_over_keeps_its_place_in_ties() -> None:
    merge = merge_of("first", "second", "liar", "first")
    merge.process_batch("second", [Insert("A", 2, 13), Stable(5)])
    merge.process_batch("first", [Insert("A", 2, 12), Stable(5)])
    assert merge.process("liar", Stable(20)) == [Adjust("A", 2, 13, 12), Stable(20)]


def test_an_input_that_starts_over_has_none_of_its_old_events() -> None:
    merge = merge_of("a")
    merge.process("a", Insert("A", 2, 20))
    merge.attach("a")
    merge.check()
    assert merge.process("a", Stable(10)) == [Adjust("A", 2, 20, 2), Stable(10)]


def test_an_input_that_joins_at_the_stable_point_itself_is_joined_at_once() -> None:
    merge = merge_of("a")
    merge.process("a", Stable(10))
    merge.attach("b", joining_at=10)
    merge.attach("c", joining_at=11)
    assert [source.joined for source in merge.inputs.values()] == [True, True, False]
    assert merge.process("b", Stable(12)) == [Stable(12)]


def test_the_stable_of_a_joining_input_that_is_widened_is_forgotten() -> None:
    merge = merge_of("a")
    merge.attach("b", joining_at=10)
    merge.process("b", Stable(50))
    merge.inputs["b"].add_partitions(2)
    assert merge.process("a", Stable(10)) == [Stable(10)]
    assert merge.process("b", Stable(30), 1) == [Stable(30)]


def test_a_new_partition_starts_at_the_beginning_of_time_and_holds_its_input_back() -> None:
    merge = merge_of("a")
    merge.process("a", Stable(10))
    source = merge.inputs["a"]
    source.add_partitions(3)
    assert (source.stables, source.stable) == ([10, START, START], START)
    assert merge.process("a", Stable(15), 0) == []
    assert merge.process("a", Insert("A", 5, 8), 1) == [], "late, but no breach"
    assert merge.process("a", Stable(12), 1) == []
    assert merge.process("a", Stable(11), 2) == [Stable(11)]
    assert source.late == 1
    assert blamed(merge) == []
    merge.check()


def test_adding_no_partitions_changes_nothing() -> None:
    merge = merge_of("a")
    merge.process("a", Stable(10))
    merge.inputs["a"].add_partitions(1)
    assert merge.inputs["a"].stables == [10]
    assert merge.process("a", Stable(11)) == [Stable(11)]


def test_an_input_that_a_gap_was_accepted_for_leads_within_the_gap_as_well() -> None:
    merge = merge_of()
    merge.attach("b", joining_at=20)
    merge.accept_gap()
    assert merge.process_batch("b", [Stable(12), Stable(15)]) == [Stable(12), Stable(15)]
    assert merge.inputs["b"].joined


def test_of_inputs_that_join_at_one_time_the_gap_names_the_one_attached_first() -> None:
    merge = merge_of()
    for name, joining_at in (("later", 30), ("first", 20), ("second", 20)):
        merge.attach(name, joining_at=joining_at)
    assert merge.gap == Gap(START, 20, "first")


# --- counts -------------------------------------------------------------------------------------


def test_the_output_is_counted_by_kind() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 1, 5), Insert("B", 1, 5), Insert("C", 1, 5)])
    merge.process_batch("b", [Insert("A", 1, 5), Insert("B", 1, 6), Stable(2)])
    assert merge.process("b", Stable(6)) == [Adjust("B", 1, 5, 6), Stable(6)]
    assert merge.stats() == Stats(
        inserts=3, adjusts=2, stables=2, removals=1, leader="b", switches=0, breaches_dropped=0
    )


def test_a_switch_is_a_change_from_one_leader_to_another() -> None:
    merge = merge_of("a", "b")
    seen = []
    for name, t in (("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 4), ("b", 5)):
        merge.process(name, Stable(t))
        seen.append((merge.stats().leader, merge.stats().switches))
    assert seen == [("a", 0), ("a", 0), ("b", 1), ("a", 2), ("a", 2), ("b", 3)]


def test_an_input_is_counted_by_kind_whether_or_not_it_publishes_anything_new() -> None:
    merge = merge_of("a")
    merge.process_batch("a", [Insert("A", 1, 9), Insert("A", 1, 9), Adjust("A", 1, 9, 8)])
    merge.process_batch("a", [Stable(5), Stable(5), Stable(4)])
    merge.process_batch("a", [Insert("A", 1, 9), Adjust("A", 1, 9, 4)])
    source = merge.inputs["a"]
    assert (source.inserts, source.adjusts, source.stables_in) == (3, 2, 3)


def test_an_insert_is_first_for_one_input_only() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 1, 5), Insert("B", 1, 5)])
    merge.process_batch("b", [Insert("A", 1, 5), Insert("B", 1, 5), Insert("C", 1, 5)])
    assert [source.first for source in merge.inputs.values()] == [2, 1]
    assert merge.stats().inserts == 3


def test_an_adjust_of_what_is_final_is_late_and_no_breach() -> None:
    merge = merge_of("leader", "laggard")
    merge.process("leader", Stable(100))
    batch: list[Element] = [Insert("A", 50, 60), Adjust("A", 50, 60, 55), Adjust("A", 50, 55, 50)]
    assert merge.process_batch("laggard", batch) == []
    assert merge.inputs["laggard"].late == 3
    assert blamed(merge) == []


def test_breaches_are_dropped_from_the_thousand_and_first_on_the_oldest_first() -> None:
    merge = merge_of("a")
    merge.process("a", Stable(10_000))
    merge.process_batch("a", [Insert("A", k, k + 1) for k in range(1_000)])
    assert merge.stats().breaches_dropped == 0
    merge.process_batch("a", [Insert("A", 1_000, 1_001), Insert("A", 1_001, 1_002)])
    assert merge.stats().breaches_dropped == 2
    kept = merge.breaches()
    assert [kept[0].element, kept[-1].element] == [Insert("A", 2, 3), Insert("A", 1_001, 1_002)]
    merge.process("a", Insert("A", 1, 2))
    assert len(merge.breaches()) == 1
    assert merge.stats().breaches_dropped == 2, "there was room again"


# --- blame --------------------------------------------------------------------------------------


def test_an_adjust_from_an_end_below_the_own_stable_is_ignored() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 5, 8), Stable(10)])
    assert merge.process("a", Adjust("A", 5, 8, 12)) == []
    assert blamed(merge) == [("a", BreachKind.BROKE_OWN_STABLE)]
    assert merge.inputs["a"].late == 0


def test_what_lies_at_the_own_stable_itself_is_no_breach() -> None:
    merge = merge_of("a")
    merge.process_batch("a", [Insert("A", 5, 10), Stable(10)])
    merge.process_batch("a", [Insert("B", 10, 11), Adjust("A", 5, 10, 20), Adjust("A", 5, 20, 10)])
    assert blamed(merge) == []
    assert len(merge) == 2, "both may still change"


def test_an_event_that_ends_at_the_stable_point_may_still_be_extended() -> None:
    """Half frozen: also after its end was brought forward to that point."""
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 1, 3), Stable(2)])
    merge.process_batch("b", [Insert("A", 1, 5)])
    assert merge.process("b", Stable(5)) == [Adjust("A", 1, 3, 5), Stable(5)]
    merge.process("b", Adjust("A", 1, 5, 9))
    assert merge.process("b", Stable(7)) == [Adjust("A", 1, 5, 9), Stable(7)]


def test_an_unknown_adjust_at_the_stable_point_itself_is_a_claim_and_not_late() -> None:
    merge = merge_of("a", "b")
    merge.process("a", Stable(5))
    merge.process("b", Adjust("A", 5, 9, 12))
    assert merge.inputs["b"].late == 0
    assert blamed(merge) == [("b", BreachKind.UNKNOWN_EVENT)]
    merge.process("a", Insert("A", 5, 9))
    assert merge.process("b", Stable(10)) == [Adjust("A", 5, 9, 12), Stable(10)]


def test_an_unknown_adjust_of_a_half_frozen_event_is_a_breach_and_a_claim() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Adjust("A", 2, 20, 12))
    assert blamed(merge) == [("b", BreachKind.UNKNOWN_EVENT)]
    assert merge.process("b", Stable(15)) == [Adjust("A", 2, 20, 12), Stable(15)]


def test_a_second_insert_of_a_half_frozen_event_is_a_breach_and_counts() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("b", [Insert("A", 2, 20), Stable(10)])
    merge.process_batch("a", [Insert("A", 2, 20), Insert("A", 2, 12)])
    assert blamed(merge) == [("a", BreachKind.DUPLICATE_KEY)]
    assert merge.process("a", Stable(15)) == [Adjust("A", 2, 20, 12), Stable(15)]


def test_a_kept_event_may_end_at_the_outputs_own_stable_point() -> None:
    merge = merge_of("b", "a", "liar")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 10), Stable(10)])
    assert merge.process("liar", Stable(15)) == [Adjust("A", 2, 20, 10), Stable(15)]


def test_a_kept_event_that_ends_at_the_coming_stable_is_not_touched_yet() -> None:
    """Nothing forces it: half frozen is all that the stable determines about either end."""
    merge = merge_of("a", "b", "liar")
    merge.process_batch("a", [Insert("shorter", 2, 20), Insert("longer", 2, 15), Stable(5)])
    merge.process_batch("b", [Insert("shorter", 2, 15), Insert("longer", 2, 20), Stable(6)])
    assert merge.process("liar", Stable(15)) == [Stable(15)]
    assert merge.process("liar", Stable(16)) == [
        Adjust("shorter", 2, 20, 15),
        Adjust("longer", 2, 15, 20),
        Stable(16),
    ]


def test_what_an_input_lacks_is_reported_in_the_order_of_start() -> None:
    merge = merge_of("a", "liar")
    merge.process_batch("a", [Insert("B", 3, 50), Insert("C", 4, 50), Stable(5)])
    merge.process_batch("a", [Insert("D", 5, 50), Stable(6)])
    merge.process("liar", Stable(10))
    assert [breach.kept for breach in merge.breaches()] == [
        Event("B", 3, 50),
        Event("C", 4, 50),
        Event("D", 5, 50),
    ]


def test_a_contradiction_ends_with_the_event() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Stable(15))
    assert merge.process_batch("b", [Stable(25), Stable(30)]) == [Stable(25), Stable(30)]
    assert len(merge) == 0
    assert blamed(merge) == [("b", MISSING)]
    merge.check()


def test_a_claim_after_the_blame_hides_no_second_event_that_is_missing() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Stable(15))
    merge.process("b", Adjust("A", 2, 20, 30))
    merge.process_batch("a", [Insert("B", 16, 40), Stable(17)])
    assert merge.process("b", Stable(18)) == [Stable(18)]
    assert blamed(merge) == [
        ("b", MISSING),
        ("b", BreachKind.UNKNOWN_EVENT),
        ("b", MISSING),
    ]
    merge.check()


def test_an_input_that_takes_back_a_half_frozen_event_lacks_it() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process_batch("b", [Insert("A", 2, 20), Adjust("A", 2, 20, 2)])
    assert merge.process("b", Stable(15)) == [Stable(15)]
    assert blamed(merge) == [("b", MISSING)]
    merge.check()


def test_an_input_that_takes_back_a_claim_is_still_the_one_that_was_blamed() -> None:
    """It can do so on a new partition only, where it has declared nothing final."""
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Stable(15))
    merge.inputs["b"].add_partitions(2)
    merge.process_batch("b", [Adjust("A", 2, 20, 30), Adjust("A", 2, 30, 2), Stable(16)], 1)
    merge.check()
    assert merge.process("b", Stable(16), 0) == [Stable(16)]
    assert blamed(merge) == [("b", MISSING), ("b", BreachKind.UNKNOWN_EVENT)]


def test_an_input_that_was_blamed_may_leave() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Insert("B", 2, 30), Stable(10)])
    merge.process("b", Insert("B", 2, 15))
    merge.process("b", Stable(15))
    index, left = merge._index, merge.inputs["b"]
    merge.detach("b")
    assert not [part for part in (index._differing, index._by_end) if left in part]
    assert merge.process("a", Stable(25)) == [Stable(25)]
    assert len(merge) == 1
    merge.check()


def test_who_ended_a_final_event_otherwise_is_not_asked_again() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(5)])
    merge.process("b", Insert("A", 2, 12))
    assert merge.process("a", Stable(30)) == [Stable(30)]
    assert merge.process("b", Stable(31)) == [Stable(31)]
    assert blamed(merge) == []


def test_the_end_of_the_stream_by_an_input_that_lacks_a_half_frozen_event_is_a_breach() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("half", 2, 20), Insert("no end", 3, INFINITY), Stable(10)])
    merge.process("a", Insert("un", 10, 20))
    emitted = merge.process("b", Stable(INFINITY))
    assert emitted == [Adjust("un", 10, 20, 10), Stable(INFINITY)]
    assert merge.breaches() == [
        Breach("b", 0, MISSING, Stable(INFINITY), Event("half", 2, 20), (("a", (20,)), ("b", ()))),
        Breach(
            "b",
            0,
            MISSING,
            Stable(INFINITY),
            Event("no end", 3, INFINITY),
            (("a", (INFINITY,)), ("b", ())),
        ),
    ]


def test_a_gap_excuses_what_is_missing_and_nothing_else() -> None:
    merge = merge_of("a")
    merge.process_batch("a", [Insert("cut", 5, 50), Insert("missing", 5, 50), Stable(10)])
    merge.attach("b", joining_at=20)
    merge.detach("a")
    merge.process("b", Insert("cut", 5, 8))
    merge.accept_gap()
    assert merge.process("b", Stable(25)) == [Stable(25)]
    assert merge.breaches() == [
        Breach("b", 0, DISAGREES, Stable(25), Event("cut", 5, 50), (("b", (8,)),))
    ]


def test_a_gap_excuses_what_started_before_its_end_and_no_more() -> None:
    merge = merge_of()
    merge.attach("b", joining_at=20)
    merge.accept_gap()
    merge.process("b", Stable(15))
    merge.attach("c")
    merge.process_batch("c", [Insert("in", 19, 40), Insert("after", 20, 40), Stable(25)])
    merge.process("b", Stable(26))
    assert merge.breaches() == [
        Breach("b", 0, MISSING, Stable(26), Event("after", 20, 40), (("b", ()), ("c", (40,))))
    ]


def after_a_gap() -> LMR3:
    """b went on without the range up to 20, and so without A; c has it."""
    merge = merge_of("a")
    merge.process_batch("a", [Insert("A", 5, 50), Stable(10)])
    merge.attach("b", joining_at=20)
    merge.detach("a")
    merge.accept_gap()
    return merge


def test_an_excused_event_follows_the_inputs_that_have_it() -> None:
    merge = after_a_gap()
    merge.attach("c")
    merge.process("c", Insert("A", 5, 30))
    assert merge.process("b", Stable(25)) == [Stable(25)]
    assert merge.process("b", Stable(35)) == [Adjust("A", 5, 50, 30), Stable(35)]
    assert blamed(merge) == []


def test_a_breach_names_the_incarnation_also_of_an_input_that_is_gone() -> None:
    merge = merge_of("a", "a", "a")
    merge.process_batch("a", [Stable(5), Stable(4)])
    merge.detach("a")
    merge.process("a", Stable(6))
    assert merge.breaches() == [
        Breach("a", 2, BreachKind.STABLE_REGRESSION, Stable(4)),
        Breach("a", 2, BreachKind.AFTER_DETACH, Stable(6)),
    ]


# --- state --------------------------------------------------------------------------------------


def test_a_snapshot_remembers_what_a_gap_excuses() -> None:
    twin = restore(after_a_gap().snapshot())
    twin.check()
    assert twin.process("b", Stable(25)) == [Stable(25)]
    assert blamed(twin) == []


def test_a_snapshot_remembers_who_was_blamed_and_whom_to_follow_instead() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(10)])
    merge.process("b", Stable(12))
    merge.process("a", Adjust("A", 2, 20, 15))
    twin = restore(merge.snapshot())
    twin.check()
    assert twin.process("b", Stable(13)) == [Stable(13)]
    assert twin.process("b", Stable(17)) == [Adjust("A", 2, 20, 15), Stable(17)]
    assert blamed(twin) == []


def test_a_snapshot_holds_every_count() -> None:
    merge = merge_of("a", "b", "b")
    merge.process_batch("a", [Insert("A", 1, 9), Insert("B", 1, 9), Stable(5)])
    merge.process_batch("b", [Insert("A", 1, 8), Adjust("A", 1, 8, 7), Insert("C", 1, 9)])
    merge.process_batch("b", [Insert("D", 5, 9), Stable(6), Stable(6), Stable(3), Stable(8)])
    merge.process_batch("b", [Insert("E", 9, 12)] * 1_002)
    merge.attach("c", joining_at=40)
    twin = restore(merge.snapshot())
    assert twin.stats() == merge.stats()
    assert twin.stats() == Stats(4, 1, 3, 0, "b", switches=1, breaches_dropped=3)
    a, b, c = twin.inputs.values()
    assert (a.inserts, a.adjusts, a.stables_in, a.first, a.late) == (2, 0, 1, 2, 0)
    assert (b.inserts, b.adjusts, b.stables_in, b.first, b.late) == (1_005, 1, 4, 2, 1)
    assert (b.incarnation, b.stables, b.joining_at, b.joined) == (1, [8], START, True)
    assert b.breaches == {
        BreachKind.DUPLICATE_KEY: 1_001,
        BreachKind.STABLE_REGRESSION: 1,
        MISSING: 1,
    }
    assert (c.joining_at, c.joined, c.gap_until) == (40, False, START)
    twin.attach("b", joining_at=9)
    assert twin.inputs["b"].incarnation == 2


def sealed(body: bytes) -> bytes:
    """Behind a digest that matches, so that what is in it is judged."""
    return sha256(body).digest() + body


@pytest.mark.parametrize("case", ["R0", "R9", ""])
def test_a_snapshot_of_another_case_is_refused(case: str) -> None:
    merge = merge_of("a")
    merge.process("a", Insert("A", 1, 5))
    saved = merge.snapshot()
    assert b"\xa4case\xa2R3" in saved
    text = bytes([0xA0 + len(case)]) + case.encode()
    with pytest.raises(StateError, match="damaged"):
        restore(sealed(saved[32:].replace(b"\xa4case\xa2R3", b"\xa4case" + text)))


def loaded(*elements: Element) -> LMR3:
    merge = merge_of()
    merge.replay_output(elements)
    merge.check()
    return merge


def test_a_loaded_event_is_let_go_of_once_it_is_final() -> None:
    merge = loaded(Insert("A", 2, 5), Stable(3), Insert("B", 4, 5), Stable(10))
    assert len(merge) == 0
    merge.attach("a")
    merge.process("a", Insert("A", 2, 5))
    assert merge.inputs["a"].late == 1


def test_what_lies_at_the_stable_point_itself_is_loaded() -> None:
    merge = loaded(
        Insert("A", 2, 10),
        Stable(10),
        Insert("B", 10, 11),
        Adjust("A", 2, 10, 20),
        Adjust("A", 2, 20, 10),
    )
    assert len(merge) == 2


def test_of_an_output_that_has_ended_nothing_is_loaded() -> None:
    merge = loaded(Insert("A", 2, 20), Stable(10), Insert("B", 10, INFINITY), Stable(INFINITY))
    assert len(merge) == 0
    assert merge.max_stable == INFINITY


def test_a_loaded_event_that_ends_at_the_stable_point_may_still_be_extended() -> None:
    merge = loaded(Insert("A", 2, 10), Stable(10))
    merge.attach("a")
    merge.process_batch("a", [Insert("A", 2, 10), Adjust("A", 2, 10, 20)])
    assert merge.process("a", Stable(12)) == [Adjust("A", 2, 10, 20), Stable(12)]


def test_a_loaded_adjust_of_a_half_frozen_event_is_where_later_stables_find_it() -> None:
    assert len(loaded(Insert("A", 2, 20), Stable(10), Adjust("A", 2, 20, 30), Stable(25))) == 1
    assert len(loaded(Insert("A", 2, 20), Stable(10), Adjust("A", 2, 20, 12), Stable(13))) == 0
    merge = loaded(Insert("A", 2, 20), Stable(10), Adjust("A", 2, 20, 12))
    merge.attach("a")
    merge.process("a", Insert("A", 2, 30))
    assert merge.process("a", Stable(13)) == [Adjust("A", 2, 12, 30), Stable(13)]


def test_loading_keeps_nothing_of_what_is_final() -> None:
    events = range(100)
    merge = loaded(
        *[Insert(k, 0, 1_000) for k in events],
        Stable(1),
        *[Adjust(k, 0, 1_000, 5) for k in events],
        Stable(6),
    )
    assert len(merge) == 0
    assert merge._index._by_out.size <= 64


# --- order and cost ---------------------------------------------------------------------------


def test_a_stable_at_the_end_of_an_event_itself_does_not_look_at_it() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(5)])
    merge.process("b", Insert("A", 2, 10))
    before = merge._index.touched
    assert merge.process("b", Stable(10)) == [Stable(10)], "where b ends it"
    assert merge.process("a", Stable(20)) == [Stable(20)], "where the output ends it"
    assert merge._index.touched == before


def test_a_stable_at_an_end_that_was_revised_does_not_look_at_the_event() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 30), Stable(5)])
    merge.process_batch("b", [Insert("A", 2, 10), Adjust("A", 2, 10, 25)])
    before = merge._index.touched
    assert merge.process("b", Stable(11)) == [Stable(11)]
    assert merge._index.touched == before


def test_adjusts_before_a_stable_come_in_the_order_of_start() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 1, 30), Insert("B", 2, 20), Insert("C", 3, 10)])
    merge.process("a", Stable(5))
    merge.process_batch("b", [Insert("C", 3, 50), Insert("B", 2, 50), Insert("A", 1, 50)])
    assert merge.process("b", Stable(40)) == [
        Adjust("A", 1, 30, 50),
        Adjust("B", 2, 20, 50),
        Adjust("C", 3, 10, 50),
        Stable(40),
    ]


def test_adjusts_before_the_end_of_the_stream_come_in_the_order_of_start() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("C", 3, 10), Insert("B", 2, 10), Insert("A", 1, 10)])
    assert merge.process("b", Stable(INFINITY)) == [
        Adjust("A", 1, 10, 1),
        Adjust("B", 2, 10, 2),
        Adjust("C", 3, 10, 3),
        Stable(INFINITY),
    ]


def test_many_revisions_of_one_event_without_a_stable_are_not_kept() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert("A", 2, 20), Stable(5)])
    merge.process("b", Insert("A", 2, 10))
    merge.process_batch("b", [Adjust("A", 2, 10, 11), Adjust("A", 2, 11, 10)] * 1_000)
    merge.check()
    assert merge._index._by_end[merge.inputs["b"]].size <= 66
    assert merge.process("b", Stable(11)) == [Adjust("A", 2, 20, 10), Stable(11)]


def test_events_are_found_by_their_ends_also_after_a_storm_of_revisions() -> None:
    merge = merge_of("a", "b")
    merge.process_batch("a", [Insert(k, k, 900 - k) for k in range(100)])
    merge.process_batch("b", [Insert(k, k, 800 - k) for k in range(100)])
    merge.process("a", Stable(100))
    merge.process_batch("b", [Adjust(0, 0, 800, 799), Adjust(0, 0, 799, 800)] * 500)
    emitted = merge.process("b", Stable(751))
    assert emitted == [*[Adjust(k, k, 900 - k, 800 - k) for k in range(50, 100)], Stable(751)]
    merge.check()


def test_a_revision_makes_one_new_entry_however_many_events_are_half_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merge = merge_of("a", "b")
    for name, end in (("a", 900), ("b", 800)):
        merge.process_batch(name, [Insert(k, 0, end) for k in range(1_000)])
    merge.process("a", Stable(1))
    pushed = 0
    push = EndQueue.push

    def counted(self: EndQueue[Node], end: int, node: Node) -> None:
        nonlocal pushed
        pushed += 1
        push(self, end, node)

    monkeypatch.setattr(EndQueue, "push", counted)
    merge.process_batch("b", [Adjust(0, 0, 800, 799), Adjust(0, 0, 799, 800)] * 1_000)
    assert pushed == 2_000
