"""An operator that replays what the original emitted and received goes on as it, as small."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.core import (
    BreachKind,
    Case,
    LMerge,
    Policy,
    Restoring,
    lag,
    lmerge,
    quorum,
    restore,
    restore_parts,
)
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from tests.core.following import Pick, Run, followed, fresh, in_order, restarted, state
from tests.strategies import any_elements, logical_streams, lying_presentations, presentations

INSERTS = ("first", "leader", "half_frozen", quorum(2), quorum(0.5))
ADJUSTS = ("lazy", "eager", "leader")
STABLES = ("max", lag(3), quorum(2))
POLICIES = [Policy(), *(Policy(*choices) for choices in product(INSERTS, ADJUSTS, STABLES))]
INDEXED = pytest.mark.parametrize("case", [Case.R3, Case.R4])
LEAN = pytest.mark.parametrize("case", [Case.R0, Case.R1, Case.R2])

every_case = pytest.mark.parametrize("case", Case)

Feed = list[list[Element]]
"""What an incarnation of an input has yet to publish, by partition."""


class Life:
    """An original to which things happen, drawn one by one, and a follower of it."""

    def __init__(self, data: st.DataObject, case: Case) -> None:
        self.draw = data.draw
        self.run = Run(lmerge(case, self.pick(POLICIES)))
        self.merge = self.run.merge
        self.follower = fresh(self.merge)
        keyed = case not in (Case.R1, Case.R4)
        logical = self.draw(logical_streams(unique_keys=keyed, unique_vs=case is Case.R0))
        self.streams = presentations(logical, 1, case) | lying_presentations(logical, 1, case)
        self.streams |= st.lists(any_elements(), max_size=15).map(lambda stream: [stream])
        self.feeds: dict[str, Feed] = {}
        for name in "abc"[: self.pick([2, 3, 1])]:
            self.attach(name, self.pick([START, START, 12]))

    def pick(self, several: Iterable[Any]) -> Any:
        return self.draw(st.sampled_from(list(several)))

    def attach(self, name: str, joining_at: int) -> None:
        partitions = self.pick([1, 2]) if self.merge.any_partitions else 1
        self.run.attach(name, joining_at, partitions)
        (stream,) = self.draw(self.streams)
        self.feeds[name] = [
            [
                e
                for e in stream
                if isinstance(e, Stable) or "ABCD".index(e.payload) % partitions == k
            ]
            for k in range(partitions)
        ]

    def go_on(self) -> None:
        """Something happens to the original."""
        what = self.pick(["process"] * 12 + ["attach", "detach", "accept"])
        if what == "accept" and self.merge.gap:
            self.run.accept_gap()
        elif what == "detach" and self.merge.inputs:
            name = self.pick(self.merge.inputs)
            self.run.detach(name)
            del self.feeds[name]
        elif what == "attach":
            self.attach(self.pick("abcd"), self.pick([START, 5, 12, 18]))
        elif left := self.left():
            name, partition = self.pick(left)
            self.run.process(name, partition, self.feeds[name][partition].pop(0))

    def left(self) -> list[tuple[str, int]]:
        return [
            (n, k) for n, feed in self.feeds.items() for k, elements in enumerate(feed) if elements
        ]

    def follow(self) -> None:
        followed(self.follower, self.run.cut(), self.pick)
        assert state(self.follower) == state(self.merge)
        assert len(self.follower) == len(self.merge)


@pytest.mark.full
@every_case
@given(st.data())
def test_a_follower_is_like_the_original_after_every_step(case: Case, data: st.DataObject) -> None:
    """Lies, joining, leaving, coming back, gaps, partitions and restarts of the follower included;
    in the end both go on by themselves."""
    life = Life(data, case)
    for _ in range(data.draw(st.integers(0, 40))):
        life.go_on()
        if data.draw(st.booleans()):
            life.follow()
            if life.pick([False, False, True]):
                life.follower = restarted(life.follower, life.pick([1, 3, 2_000]))
    life.follow()
    while left := life.left():
        name, partition = life.pick(left)
        element = life.feeds[name][partition].pop(0)
        emitted = life.merge.process(name, element, partition)
        assert in_order(life.follower.process(name, element, partition)) == in_order(emitted)
        life.follower.check()
        assert state(life.follower) == state(life.merge)


@every_case
@given(st.data())
@settings(max_examples=settings().max_examples // 2)
def test_parts_make_the_operator_that_they_were_taken_of(case: Case, data: st.DataObject) -> None:
    life = Life(data, case)
    for _ in range(data.draw(st.integers(0, 25))):
        life.go_on()
    parts = list(life.merge.parts(life.pick([1, 2, 5])))
    twin = restore_parts(iter(parts))
    twin.check()
    assert list(twin.parts(5)) == list(life.merge.parts(5))
    assert restore(life.merge.snapshot()).snapshot() == life.merge.snapshot()
    if len(parts) > 2:
        for damaged in (parts[:-1], [*parts[:1], *parts[2:]], parts[1:], [*parts, parts[-1]]):
            with pytest.raises(StateError):
                restore_parts(damaged)


def first(several: Any) -> Any:
    return several[0]


PICK: Pick = first


def followers(run: Run) -> tuple[LMerge, LMerge]:
    """One that followed from the beginning, and one from here on."""
    one, other = fresh(run.merge), restarted(run.merge, 1)
    followed(one, run.cut(), PICK)
    return one, other


def run_of(case: str, *names: str, policy: Policy = Policy()) -> Run:
    run = Run(lmerge(case, policy))
    for name in names:
        run.attach(name)
    return run


def fed(run: Run, *elements: tuple[str, Element]) -> list[Element]:
    return [out for name, element in elements for out in run.process(name, 0, element)]


@INDEXED
def test_a_standby_stays_as_small_as_the_original_for_hundreds_of_steps(case: str) -> None:
    run = run_of(case, "a", "b")
    standby = fresh(run.merge)
    for k in range(300):
        fed(run, ("a", Insert(k, k, k + 9)), ("a", Insert(-k - 1, k, k + 30)))
        fed(run, ("b", Insert(k, k, k + 12)), (("a", "b")[k % 2], Stable(k - 3)))
        followed(standby, run.cut(), PICK)
        assert state(standby) == state(run.merge)
    index = standby._index  # type: ignore[attr-defined]
    assert index.count() == run.merge._index.count() < 60  # type: ignore[attr-defined]
    queues = [index._by_out, *index._by_end.values()]
    assert all(queue.size < 2 * 60 + 64 for queue in queues)


@INDEXED
def test_of_an_event_that_the_output_took_back_inputs_hold_nothing_either(case: str) -> None:
    run = run_of(case, "a", "b")
    fed(run, ("a", Insert("phantom", 5, 9)), ("a", Insert("A", 5, 90)), ("b", Insert("A", 5, 90)))
    for follower in followers(run):
        follower.replay_output([Adjust("phantom", 5, 9, 5)])
        follower.replay_output([Stable(7)])
        assert len(follower) == 1
        assert follower.replay_input("b", [Stable(7)]) == []
        assert follower.replay_input("a", [Adjust("phantom", 5, 9, 8)]) == []
        assert [b.kind for b in follower.breaches()] == []
        assert follower.inputs["a"].late == 1
        follower.check()


@INDEXED
def test_what_the_output_took_back_is_still_what_the_others_have(case: str) -> None:
    run = run_of(case, "a", "b", policy=Policy(adjust="eager"))
    fed(run, ("a", Insert("A", 5, 9)), ("b", Insert("A", 5, 9)))
    one, other = followers(run)
    assert fed(run, ("a", Adjust("A", 5, 9, 5))) == [Adjust("A", 5, 9, 5)]
    step = run.cut()
    for follower in (one, other):
        followed(follower, step, PICK)
        assert state(follower) == state(run.merge)
        assert follower.process("b", Stable(7)) == [Insert("A", 5, 9), Stable(7)]


@INDEXED
def test_what_a_policy_holds_back_goes_out_from_the_follower_too(case: str) -> None:
    run = run_of(case, "a", "b", policy=Policy(insert=quorum(2)))
    fed(run, ("a", Insert("A", 5, 9)))
    for follower in followers(run):
        assert follower.process("b", Insert("A", 5, 9)) == [Insert("A", 5, 9)]
        follower.check()


@INDEXED
def test_an_event_held_back_here_is_loaded_when_the_output_has_it(case: str) -> None:
    run = run_of(case, "a", "b", policy=Policy(insert="half_frozen"))
    fed(run, ("a", Insert("A", 5, 20)))
    one, other = followers(run)
    fed(run, ("a", Stable(9)))
    step = run.cut()
    assert step.emitted == [Insert("A", 5, 20), Stable(9)]
    for follower in (one, other):
        followed(follower, step, PICK)
        assert state(follower) == state(run.merge)
        assert follower.process("b", Stable(12)) == [Stable(12)]
        assert [b.kind for b in follower.breaches()] == [BreachKind.HALF_FROZEN_MISSING]


def test_an_event_twice_on_the_output_is_none_of_ours_also_where_inputs_hold_it() -> None:
    run = run_of("R3", "a")
    fed(run, ("a", Insert("A", 5, 9)))
    for follower in followers(run):
        with pytest.raises(StateError, match="something else writes"):
            follower.replay_output([Insert("A", 5, 9)])


def test_what_was_claimed_only_is_claimed_also_of_a_half_frozen_event() -> None:
    """Else a follower, which receives it when it is half frozen, would find the insert a second."""
    run = run_of("R3", "a", "b")
    fed(run, ("b", Adjust("A", 5, 9, 12)), ("a", Insert("A", 5, 90)), ("a", Stable(7)))
    one, other = followers(run)
    one.breaches()
    for merge in (run.merge, one, other):
        merge.breaches()
        assert merge.process("b", Insert("A", 5, 90)) == []
        assert merge.breaches() == []
        merge.check()


@INDEXED
def test_a_loaded_stable_half_freezes_without_asking_who_has_the_event(case: str) -> None:
    run = run_of(case, "a", "b")
    fed(run, ("a", Insert("A", 5, 20)), ("b", Insert("A", 5, 30)))
    for follower in followers(run):
        follower.replay_output([Stable(10)])
        follower.check()
        assert follower.breaches() == []
        assert len(follower) == 1
        follower.replay_output([Adjust("A", 5, 20, 30), Stable(25)])
        follower.check()
        assert follower.replay_input("b", [Stable(25)]) == []
        follower.replay_output([Stable(31)])
        follower.check()
        assert len(follower) == 0


@INDEXED
def test_the_end_of_the_output_empties_a_follower(case: str) -> None:
    run = run_of(case, "a", "b")
    fed(run, ("a", Insert("A", 5, INFINITY)), ("b", Insert("A", 5, 30)), ("a", Stable(9)))
    for follower in followers(run):
        follower.replay_output([Stable(INFINITY)])
        assert follower.replay_input("a", [Stable(INFINITY)]) == []
        assert len(follower) == 0
        follower.check()


@every_case
def test_an_input_is_joined_by_what_is_loaded(case: str) -> None:
    run = run_of(case, "a")
    run.attach("b", joining_at=10)
    for follower in followers(run):
        joined = []
        for t in (9, 10):
            follower.replay_output([Stable(t)])
            joined.append(follower.inputs["b"].joined)
        assert joined == [False, True]
        assert follower.process("b", Stable(12)) == [Stable(12)]


@LEAN
def test_what_waits_of_a_joining_input_is_taken_up_as_the_output_emits_it(case: str) -> None:
    run = run_of(case, "a")
    run.attach("b", joining_at=10)
    fed(run, ("b", Insert("A", 11, 20)), ("b", Insert("B", 13, 20)))
    for follower in followers(run):
        for emitted in (Stable(10), Insert("A", 11, 20), Insert("B", 13, 20)):
            follower.replay_output([emitted])
        follower.check()
        assert follower.replay_input("a", [Stable(10)]) == []
        assert follower.inputs["b"].front == 13
        assert follower.process("b", Insert("C", 14, 20)) == [Insert("C", 14, 20)]


@LEAN
def test_what_waits_and_was_cut_off_the_output_is_emitted(case: str) -> None:
    run = run_of(case, "a")
    run.attach("b", joining_at=10)
    fed(run, ("b", Insert("A", 11, 20)), ("b", Insert("B", 13, 20)))
    for follower in followers(run):
        follower.replay_output([Stable(10), Insert("A", 11, 20)])
        assert follower.replay_input("b", [Insert("C", 14, 20)]) == [
            Insert("B", 13, 20),
            Insert("C", 14, 20),
        ]
        follower.check()


@every_case
def test_a_follower_accepts_the_gap_that_the_original_accepted(case: str) -> None:
    run = run_of(case)
    run.attach("b", joining_at=20)
    fed(run, ("b", Insert("A", 21, 30)))
    one, other = followers(run)
    run.accept_gap()
    fed(run, ("b", Stable(15)))
    step = run.cut()
    for follower in (one, other):
        followed(follower, step, PICK)
        assert state(follower) == state(run.merge)
        follower.accept("b", 20)
        assert state(follower) == state(run.merge)
        for name, end in (("b", 21), ("c", 20)):
            with pytest.raises(ValueError, match="that joins at"):
                follower.accept(name, end)


def test_of_an_input_that_has_left_nothing_is_recalled() -> None:
    run = run_of("R3", "a", "b")
    run.detach("b")
    for follower in followers(run):
        assert follower.replay_input("b", [Insert("A", 1, 5), Stable(9)]) == []
        assert follower.breaches() == []
        with pytest.raises(ValueError, match="ever attached"):
            follower.replay_input("c", [Stable(1)])


def test_what_the_output_has_carried_is_counted_when_it_is_loaded() -> None:
    run = run_of("R3", "a", "b")
    fed(run, ("a", Insert("A", 1, 5)), ("a", Insert("B", 2, 5)), ("b", Insert("A", 1, 3)))
    fed(run, ("b", Stable(4)))
    follower = fresh(run.merge)
    followed(follower, run.cut(), PICK)
    stats = follower.stats()
    assert (stats.inserts, stats.adjusts, stats.removals, stats.stables) == (2, 2, 1, 1)


# --- parts --------------------------------------------------------------------------------------


@every_case
def test_a_part_holds_no_more_than_it_may_and_no_state_is_lost_between(case: str) -> None:
    run = run_of(case, "a", "b")
    run.attach("c", joining_at=900)
    for k in range(7):
        fed(run, ("a", Insert(f"p{k}", 1 if case in ("R1", "R2") else k, 20)))
        fed(run, ("c", Insert(f"p{k}", 900 + k, 990)))
    parts = list(run.merge.parts(3))
    assert len(parts) == 1 + -(-len(run.merge) // 3)
    restoring = Restoring()
    for part in parts:
        restoring.add(part)
    assert state(restoring.finish()) == state(run.merge)


def test_a_part_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one item"):
        list(lmerge().parts(0))


def test_parts_of_two_states_do_not_mix() -> None:
    run = run_of("R3", "a")
    fed(run, ("a", Insert("A", 1, 5)))
    one = list(run.merge.parts())
    fed(run, ("a", Adjust("A", 1, 5, 7)))
    other = list(run.merge.parts())
    with pytest.raises(StateError, match="is not part 0 of this one"):
        restore_parts([one[0], other[1]])
    with pytest.raises(StateError, match="lacks 1 items"):
        restore_parts(one[:1])
    with pytest.raises(StateError, match="no parts"):
        restore_parts([])


@pytest.mark.parametrize("change", ["process", "attach", "detach", "replay_output"])
def test_the_operator_must_not_go_on_while_parts_are_taken(change: str) -> None:
    run = run_of("R3", "a", "b")
    fed(run, *(("a", Insert(k, k, 50)) for k in range(9)))
    parts = run.merge.parts(2)
    next(parts)
    match change:
        case "process":
            run.merge.process("b", Insert(3, 3, 50))
        case "attach":
            run.merge.attach("a")
        case "detach":
            run.merge.detach("b")
        case _:
            run.merge.replay_output([Insert("new", 8, 50)])
    with pytest.raises(ValueError, match="went on"):
        list(parts)


# --- evidence -----------------------------------------------------------------------------------


@INDEXED
def test_a_breach_about_an_event_contains_what_each_input_has_of_it(case: str) -> None:
    run = run_of(case, "a", "b", "c")
    fed(run, ("a", Insert("A", 5, 20)), ("c", Insert("A", 5, 30)), ("a", Stable(10)))
    fed(run, ("b", Stable(12)))
    fed(run, ("c", Adjust("A", 5, 25, 28)))
    assert [(b.kind, b.versions) for b in run.merge.breaches()] == [
        (BreachKind.HALF_FROZEN_MISSING, (("a", (20,)), ("b", ()), ("c", (30,)))),
        (BreachKind.WRONG_VOLD, (("a", (20,)), ("b", ()), ("c", (30,)))),
    ]
