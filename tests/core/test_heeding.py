"""Feedback that is heeded: what a replica leaves out below its point harms and blames nobody.

The point is `LMerge.feedback()` of any earlier moment. A replica leaves out whole events; one
that it has begun to publish it publishes to the end.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import LMerge, Policy, lag, lmerge, quorum
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event, compatibility, reconstitute
from tests.strategies import interleavings, logical_streams, presentations, seeded_presentations

CASES = ("R0", "R1", "R2", "R3", "R4")
NAMES = ("a", "b", "c")
POLICIES = (
    Policy(),
    Policy(adjust="eager"),
    Policy(insert="leader", adjust="leader"),
    Policy(insert="half_frozen", stable=lag(3)),
    Policy(insert=quorum(2), stable=quorum(2)),
)


class Heeding:
    """Replicas that publish what they are to, but for what the feedback lets them leave out."""

    def __init__(self, case: str, policy: Policy, logical: Sequence[Event]):
        self.merge: LMerge = lmerge(case, policy)
        self.points = dict.fromkeys(NAMES, START)
        self.emitted: list[Element] = []
        self.received: list[tuple[str, Element]] = []
        self.left_out: set[tuple[str, object, int]] = set()
        self.begun: set[tuple[str, object, int]] = set()
        self.whole = {name: TDB() for name in NAMES}
        self.final: dict[tuple[object, int], int] = {}
        for payload, vs, ve in logical:
            self.final[payload, vs] = max(ve, self.final.get((payload, vs), vs))
        for name in NAMES:
            self.merge.attach(name)

    def publish(self, name: str, element: Element) -> None:
        self.whole[name].apply(element)
        if self._leaves_out(name, element):
            return
        self.received.append((name, element))
        self.emitted += self.merge.process(name, element)
        self.merge.check()
        assert self.merge.breaches() == []

    def _leaves_out(self, name: str, element: Element) -> bool:
        if type(element) is Stable:
            return False
        event = (name, element.payload, element.vs)  # type: ignore[union-attr]
        ends = self.final.get(event[1:], element.vs)  # type: ignore[union-attr]
        if event not in self.begun and ends < self.points[name]:
            self.left_out.add(event)
        self.begun.add(event)
        return event in self.left_out

    def listen(self) -> None:
        """Each replica learns its point."""
        self.points |= self.merge.feedback()

    def rebuild(self) -> None:
        """Promise 7 with what was left out missing from the prefixes."""
        rebuilt = lmerge(self.merge.case, self.merge.policy)
        rebuilt.replay_output(self.emitted)
        rebuilt.attach_like(self.merge)
        missed = [out for name, one in self.received for out in rebuilt.replay_input(name, [one])]
        assert missed == []
        rebuilt.breaches()
        self.merge = rebuilt


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_what_is_left_out_below_the_point_changes_nothing_and_is_nobodys_fault(
    case: str, data: st.DataObject
) -> None:
    logical = data.draw(
        logical_streams(unique_keys=case not in ("R1", "R4"), unique_vs=case == "R0")
    )
    revised = [seeded_presentations(logical, 3, case)] if case in ("R3", "R4") else []
    streams = data.draw(st.one_of(presentations(logical, 3, case), *revised))
    heeding = Heeding(case, data.draw(st.sampled_from(POLICIES)), logical)
    moves = st.sampled_from((*["listen"] * 4, "", "rebuild"))
    for number, element in data.draw(interleavings(streams)):
        heeding.publish(NAMES[number], element)
        if case == "R3":
            assert not compatibility(list(heeding.whole.values()), reconstitute(heeding.emitted))
        move = data.draw(moves)
        if move:
            getattr(heeding, move)()
    assert reconstitute(heeding.emitted) == TDB(logical)


@pytest.mark.parametrize("case", ["R3", "R4"])
@given(data=st.data())
def test_of_several_events_with_one_key_those_below_the_point_may_be_left_out(
    case: str, data: st.DataObject
) -> None:
    """In R4 some events of a key may be final while others live on."""
    logical = data.draw(logical_streams(unique_keys=case == "R3"))
    whole = data.draw(presentations(logical, 2, case))
    merge = lmerge(case)
    for name in NAMES:
        merge.attach(name)
    emitted: list[Element] = []
    arriving = data.draw(interleavings(whole))
    first = data.draw(st.integers(0, len(arriving)))
    for number, element in arriving[:first]:
        emitted += merge.process(NAMES[number], element)
    point = merge.feedback().get("c", START)
    dropped = data.draw(st.lists(st.booleans(), min_size=len(logical), max_size=len(logical)))
    kept = [e for e, drop in zip(logical, dropped, strict=True) if not drop or e.ve >= point]
    (late,) = data.draw(presentations(kept, 1, case))
    rest: list[tuple[int, Element]] = arriving[first:]
    for which, (number, element) in data.draw(interleavings([rest, [(2, e) for e in late]])):
        assert which in (0, 1)
        emitted += merge.process(NAMES[number], element)
        merge.check()
    assert merge.breaches() == []
    assert reconstitute(emitted) == TDB(logical)


def test_a_replica_that_left_out_what_was_final_leads_without_blame() -> None:
    merge = lmerge()
    merge.attach("fast")
    merge.attach("slow")
    merge.process_batch("fast", [Insert("A", 2, 5), Insert("B", 4, 30), Stable(10)])
    assert merge.feedback() == {"slow": 10}
    assert merge.process_batch("slow", [Insert("B", 4, 30), Stable(20)]) == [Stable(20)]
    assert merge.breaches() == []


def kinds(merge: LMerge) -> list[str]:
    return [breach.kind.value for breach in merge.breaches()]


def half_published(merge: LMerge) -> list[Element]:
    """slow inserts two events of a key, provisionally, and never revises the one that is final."""
    merge.attach("fast")
    merge.attach("slow")
    out = merge.process_batch("slow", [Insert("A", 2, 20), Insert("A", 2, 30)])
    out += merge.process_batch("fast", [Insert("A", 2, 5), Insert("A", 2, 30), Stable(10)])
    assert merge.feedback() == {"slow": 10}
    return out + merge.process("slow", Stable(25))


def test_an_event_that_was_begun_must_be_published_to_its_end_in_case_r4() -> None:
    """Half published, it is a live event that the output does not have: a breach, absorbed."""
    merge = lmerge("R4")
    out = half_published(merge)
    assert kinds(merge) == ["frozen_end_disagrees"]
    assert reconstitute(out) == TDB([("A", 2, 5), ("A", 2, 30)]), "the output is not harmed"


def test_in_case_r3_an_event_that_was_begun_goes_with_the_output() -> None:
    merge = lmerge()
    merge.attach("fast")
    merge.attach("slow")
    out = merge.process("slow", Insert("A", 2, 20))
    out += merge.process_batch("fast", [Insert("A", 2, 5), Stable(10)])
    out += merge.process("slow", Stable(25))  # and never Adjust("A", 2, 20, 5)
    assert merge.breaches() == []
    assert reconstitute(out) == TDB([("A", 2, 5)])


def test_a_point_of_one_output_means_nothing_for_another() -> None:
    """Why a replica that several outputs merge goes by the lowest of their points."""
    behind = lmerge()
    behind.attach("fast")
    behind.attach("slow")
    heeding: list[Element] = [Stable(20)]  # A [2, 5) left out, since another output was at 10
    out = behind.process_batch("slow", heeding)
    out += behind.process_batch("fast", [Insert("A", 2, 5), Stable(25)])
    assert reconstitute(out) == TDB(), "A is lost where nobody had published it yet"


def test_a_replica_that_is_normalised_must_not_heed() -> None:
    """What it leaves out is a part of a longer interval, of which the rest then differs."""
    merge = lmerge()
    merge.attach("fast")
    merge.attach("slow")
    out: list[Element] = []

    def merge_normalised(name: str, normaliser: Normaliser, elements: list[Any]) -> None:
        nonlocal out
        out += merge.process_batch(name, normaliser.process_batch(elements))

    fast, slow = Normaliser(), Normaliser()
    merge_normalised("fast", fast, [Insert("A", 2, 5), Insert("A", 5, 20), Stable(10)])
    assert merge.feedback() == {"slow": 10}
    merge_normalised("slow", slow, [Insert("A", 5, 20), Stable(30)])  # its A [2, 5) ends below 10
    assert kinds(merge) == ["half_frozen_missing"]


def test_an_adjust_without_its_insert_is_not_a_way_to_leave_out() -> None:
    merge = lmerge()
    merge.attach("fast")
    merge.attach("slow")
    merge.process_batch("fast", [Insert("A", 2, 50), Stable(10)])
    merge.process("slow", Adjust("A", 2, 40, 50))
    assert kinds(merge) == ["unknown_event"]


@pytest.mark.parametrize("case", ["R3", "R4"])
def test_an_event_that_ends_at_the_point_is_not_below_it(case: str) -> None:
    """It is half frozen: left out, it is missing, which is a breach."""
    merge = lmerge(case)
    merge.attach("fast")
    merge.attach("slow")
    merge.process_batch("fast", [Insert("A", 2, 10), Stable(10)])
    assert merge.feedback() == {"slow": 10}
    assert merge.process("slow", Stable(15)) == [Stable(15)]
    assert kinds(merge) == ["half_frozen_missing"]
