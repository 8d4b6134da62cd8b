"""Guards of the stable point: honest replicas are not stopped for good, lies never get through."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.merge.guards.guards import Guards, Now
from lmerge_service.merge.guards.verdicts import Action, Guard
from lmerge_service.tdb import TDB, reconstitute
from tests.merge.judged import UNIX_NS, Judged, topology_of
from tests.strategies import interleavings, logical_streams, presentations

NOW_MS = UNIX_NS // 10**6
HOUR, DAY = 3_600_000, 86_400_000
NAMES = ("a", "b", "c")


def kinds(judged: Judged) -> list[tuple[Guard, Action]]:
    return [(verdict.guard, verdict.action) for verdict in judged.verdicts]


def test_a_stable_far_ahead_of_the_clock_quarantines_its_replica_before_it_is_merged() -> None:
    streams: dict[str, list[Element]] = {
        "a": [
            Stable(NOW_MS - 5),
            Insert("far", NOW_MS + DAY, NOW_MS + 2 * DAY),
            Stable(NOW_MS + DAY),
        ],
        "b": [Stable(NOW_MS - 9), Insert("A", NOW_MS - 2, NOW_MS), Stable(NOW_MS)],
    }
    judged = Judged(streams, topology_of(streams, unit="ms"))
    judged.read("b")
    judged.read("a", 3)
    judged.read("b", 2)
    assert kinds(judged) == [(Guard.SKEW, Action.QUARANTINE)]
    verdict = judged.verdicts[0]
    assert (verdict.replica, verdict.partition, verdict.offset) == ("a", 0, 2)
    assert "86400000 ahead of the wall clock (b is at" in verdict.reason
    assert judged.merge.max_stable == NOW_MS
    assert Insert("A", NOW_MS - 2, NOW_MS) in judged.out


@pytest.mark.parametrize(("ahead", "trips"), [(HOUR, False), (HOUR + 1, True)])
@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_the_clock_is_compared_in_the_unit_of_the_topology(
    unit: str, ahead: int, trips: bool
) -> None:
    scale = {"ns": 10**6, "us": 10**3, "ms": 1}.get(unit)
    now, off = (NOW_MS * scale, ahead * scale) if scale else (NOW_MS // 1000, -(-ahead // 1000))
    guards = Guards(topology_of("ab", unit=unit))
    guards.attach("a", [now], Now(UNIX_NS, 0))
    verdict = guards.stable("a", 0, now + off, 7, Now(UNIX_NS, 0))
    assert (verdict is not None) == trips


times = st.sampled_from([*range(NOW_MS, NOW_MS + 4 * DAY, 9 * HOUR), INFINITY])
chunks = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.lists(times, max_size=5)), max_size=9
)


@given(chunks, st.integers(0, 4), st.sampled_from(["max_skew", "max_leap"]))
def test_stables_that_are_calm_are_those_that_would_have_been_merged_one_by_one(
    published: list[tuple[str, int, list[int]]], ahead: int, limit: str
) -> None:
    limits: dict[str, Any] = {limit: DAY}
    topology = topology_of("ab", unit="ms", **limits)
    each, some = Guards(topology), Guards(topology)
    now = Now(UNIX_NS + ahead * DAY * 10**6, 0)
    for guards in (each, some):
        for name in "ab":
            guards.attach(name, [START, START], now)
    for name, partition, stables in published:
        calm, passed = some.calm(name, partition, now), list[int]()
        for offset, vc in enumerate(stables):
            verdict = each.stable(name, partition, vc, offset, now)
            if vc <= calm:
                assert verdict is None
                passed.append(vc)
                continue
            if passed:
                some.passed(name, partition, passed)
                passed = []
            assert some.stable(name, partition, vc, offset, now) == verdict
            if verdict is not None:
                break
        if passed:
            some.passed(name, partition, passed)
        for guards in (each, some):
            guards.after(name, partition, len(stables), {}, 0, now)
        assert some.held() == each.held()
        assert some.watches(name, partition) == each.watches(name, partition)


def test_no_stable_is_calm_that_may_leap_or_end() -> None:
    guards, now = Guards(topology_of("ab", unit="ms", max_leap=HOUR, max_skew=DAY)), Now(0, 0)
    guards.attach("a", [START], now)
    guards.attach("b", [START], now)
    assert guards.calm("a", 0, now) == START, "the first one is where leaps begin"
    assert guards.stable("a", 0, 5, 0, now) is None
    assert guards.calm("a", 0, now) == 5 + HOUR
    guards.passed("a", 0, [6, 7])
    assert guards.calm("a", 0, now) == 7 + HOUR
    assert guards.stable("a", 0, INFINITY, 3, now) is not None
    assert guards.calm("a", 0, now) == START, "one is held"


def test_reading_a_backlog_far_ahead_of_the_others_is_no_leap() -> None:
    streams: dict[str, list[Element]] = {
        name: [Stable(step * HOUR) for step in range(1000)] for name in NAMES
    }
    judged = Judged(streams, topology_of(streams, unit="ms"))
    judged.read("a", 1000)
    judged.read("b", 500)
    judged.read_all()
    assert judged.verdicts == []


def test_a_leap_waits_for_another_that_comes_as_far() -> None:
    streams: dict[str, list[Element]] = {
        "a": [Stable(50), Stable(9_000), Insert("A", 9_000, 9_001)],
        "b": [Stable(60), Stable(8_899), Stable(8_900)],
    }
    judged = Judged(streams, topology_of(streams, max_leap=9_000 - 60 - 1))
    judged.read("b")
    judged.read("a", 3)
    assert kinds(judged) == [(Guard.LEAP, Action.HOLD)]
    assert "leaps 8940 beyond" in judged.verdicts[0].reason
    assert (judged.merge.max_stable, judged.at["a"]) == (60, 1)
    assert [(held.replica, held.vc) for held in judged.guards.held()] == [("a", 9_000)]
    judged.read("b")
    assert judged.stopped == set()
    judged.read("a", 2)
    assert judged.out[-1] == Insert("A", 9_000, 9_001)
    assert judged.guards.held() == ()


def test_two_that_leap_together_are_believed() -> None:
    streams: dict[str, list[Element]] = {name: [Stable(5), Stable(10**9)] for name in "ab"}
    streams["c"] = [Stable(5), Stable(6), Stable(7)]
    judged = Judged(streams, topology_of(streams, max_leap=100))
    for _ in range(2):
        for name in "cab":
            judged.read(name)
    judged.read("a")
    assert judged.merge.max_stable == 10**9


def test_of_replicas_that_leap_differently_the_lowest_goes_first() -> None:
    streams: dict[str, list[Element]] = {
        "a": [Stable(5), Stable(9_000), Stable(9_050)],
        "b": [Stable(5), Stable(2_000), Stable(2_001)],
    }
    judged = Judged(streams, topology_of(streams, max_leap=100))
    judged.read_all()
    assert judged.out == [Stable(5), Stable(2_000), Stable(2_001)]
    judged.pass_time(301)  # b had nothing more unread, and is waited for no longer
    judged.read_all()
    assert judged.out[3:] == [Stable(9_000), Stable(9_050)]


def test_an_early_end_does_not_end_the_output() -> None:
    streams: dict[str, list[Element]] = {
        "a": [Stable(50), Stable(51), Insert("A", 60, 70), Stable(INFINITY)],
        "b": [Stable(45), Stable(INFINITY)],
        "c": [Stable(40), Stable(42), Stable(43)],
    }
    judged = Judged(streams, topology_of(streams))
    for name in NAMES:
        judged.read(name)
    judged.read("b")
    assert kinds(judged) == [(Guard.EARLY_END, Action.HOLD)]
    assert judged.verdicts[0].reason == "it ends, and the others have not (a is at 50, c is at 40)"
    assert "detach replicas that are gone for good" in judged.verdicts[0].remedy
    judged.read("a", 2)
    assert (judged.merge.max_stable, judged.stopped) == (51, {"b"})
    judged.read("a", 1)
    assert judged.out[-2:] == [Insert("A", 60, 70), Stable(INFINITY)]
    assert judged.stopped == set()


def test_a_lone_replica_ends_at_once() -> None:
    streams: dict[str, list[Element]] = {"a": [Stable(5), Stable(INFINITY)], "b": []}
    judged = Judged(streams, topology_of(streams))
    judged.read_all()  # b is attached, but never published and has nothing unread
    assert judged.out[-1] == Stable(INFINITY)
    assert judged.verdicts == []


@pytest.mark.parametrize("patience", [300, None])
def test_a_replica_that_died_is_waited_for_as_long_as_patience_lasts(patience: int | None) -> None:
    streams: dict[str, list[Element]] = {"a": [Stable(5), Stable(INFINITY)], "b": [Stable(4)]}
    judged = Judged(streams, topology_of(streams, patience_seconds=patience))
    judged.read_all()
    assert judged.stopped == {"a"}
    judged.pass_time(300)
    judged.read_all()
    assert judged.stopped == {"a"}
    judged.pass_time(1)
    judged.read_all()
    assert (judged.out[-1] == Stable(INFINITY)) == (patience is not None)


def test_a_quorum_is_its_own_second_opinion() -> None:
    streams: dict[str, list[Element]] = {
        "a": [Stable(5), Stable(9_000), Stable(INFINITY)],
        "b": [Stable(4), Stable(6)],
    }
    judged = Judged(streams, topology_of(streams, stable="quorum(2)", max_leap=100))
    judged.read_all()
    assert judged.verdicts == []
    assert judged.merge.max_stable == 6


def test_zero_turns_the_guards_of_stables_off() -> None:
    streams: dict[str, list[Element]] = {
        "a": [Stable(5), Stable(NOW_MS + DAY), Stable(INFINITY)],
        "b": [Stable(4), Stable(6)],
    }
    off = topology_of(streams, unit="ms", max_skew=0, max_leap=0, early_end=False)
    judged = Judged(streams, off)
    judged.read("b")
    judged.read("a", 3)
    assert judged.out[-1] == Stable(INFINITY)


def test_a_new_incarnation_is_not_bound_by_what_the_old_one_published() -> None:
    guards = Guards(topology_of("ab", max_leap=100))
    now = Now(UNIX_NS, 0)
    for name in "ab":
        guards.attach(name, [5, 5], now)
    assert guards.stable("a", 1, 9_000, 3, now) is not None
    guards.attach("a", [-(2**63)] * 2, now)
    assert guards.held() == ()
    assert guards.stable("a", 1, 80, 4, now) is None


def test_each_partition_is_held_by_itself() -> None:
    guards = Guards(topology_of("ab", max_leap=100))
    now = Now(UNIX_NS, 0)
    for name in "ab":
        guards.attach(name, [5, 5], now)
    assert guards.stable("a", 0, 9_000, 3, now) is not None
    assert guards.stable("a", 1, 60, 3, now) is None
    assert guards.stable("b", 0, 9_010, 7, now) is not None
    assert guards.stable("b", 1, 9_010, 7, now) is not None  # a is at 60 as a whole
    assert [held.replica for held in guards.let_go()] == ["a"]  # b is beyond
    assert guards.stable("a", 0, 9_000, 3, now) is None


def test_an_end_of_one_partition_opens_no_way_for_the_end_of_its_replica() -> None:
    """a has ended with all it had, b early, and of b one partition is read later: its end must not
    pass unjudged since the other's has."""
    guards = Guards(topology_of("ab"))
    now = Now(UNIX_NS, 0)
    guards.attach("a", [90], now)
    guards.attach("b", [5, 5], now)
    assert guards.stable("b", 0, INFINITY, 7, now) is not None
    assert guards.stable("a", 0, INFINITY, 30, now) is not None
    assert [held.replica for held in guards.let_go()] == ["b"], "a has ended, so b's may go"
    assert guards.stable("b", 0, INFINITY, 7, now) is None
    assert guards.stable("b", 1, INFINITY, 8, now) is not None
    assert [held.replica for held in guards.let_go()] == ["a"], "who has published more goes first"


def test_a_partition_that_appears_late_is_judged_by_the_front_of_all() -> None:
    guards = Guards(topology_of("ab", max_leap=100))
    now = Now(UNIX_NS, 0)
    for name in "ab":
        guards.attach(name, [5_000], now)
    guards.widen("a", 2)
    assert guards.stable("a", 1, 5_050, 0, now) is None
    assert guards.stable("a", 1, 5_200, 1, now) is not None


@st.composite
def honest(draw: st.DrawFn) -> tuple[TDB, dict[str, list[Element]], list[tuple[int, Element]]]:
    logical = draw(logical_streams())
    streams = draw(presentations(logical, 3))
    order = draw(interleavings(streams))
    return TDB(logical), dict(zip(NAMES, streams, strict=True)), order


def follow(judged: Judged, order: list[tuple[int, Element]]) -> None:
    for number, _ in order:
        judged.read(NAMES[number])
    judged.read_all()


def check_output(judged: Judged, logical: TDB) -> None:
    assert judged.out[-1] == Stable(INFINITY)
    assert reconstitute(judged.out) == logical


@given(honest())
def test_honest_replicas_are_held_at_most_for_a_while(
    drawn: tuple[TDB, dict[str, list[Element]], list[tuple[int, Element]]],
) -> None:
    logical, streams, order = drawn
    judged = Judged(streams, topology_of(NAMES, max_leap=5, patience_seconds=None))
    follow(judged, order)
    assert judged.quarantined == set()
    assert all(verdict.action is Action.HOLD for verdict in judged.verdicts)
    assert judged.stopped == set()
    assert all(judged.at[name] == len(streams[name]) for name in NAMES)
    check_output(judged, logical)


@given(honest(), st.data())
def test_an_early_end_never_harms_the_output(
    drawn: tuple[TDB, dict[str, list[Element]], list[tuple[int, Element]]], data: st.DataObject
) -> None:
    logical, streams, order = drawn
    cut = data.draw(st.integers(0, len(streams["a"]) - 1))
    streams["a"] = [*streams["a"][:cut], Stable(INFINITY)]
    for name in "bc":  # who ends in time has published more
        streams[name].insert(-1, Stable(1_000))
    judged = Judged(streams, topology_of(NAMES, patience_seconds=None))
    follow(judged, order)
    check_output(judged, logical)


@given(honest(), st.data())
def test_a_leap_never_harms_the_output(
    drawn: tuple[TDB, dict[str, list[Element]], list[tuple[int, Element]]], data: st.DataObject
) -> None:
    logical, streams, order = drawn
    place = data.draw(st.integers(0, len(streams["a"]) - 1))
    streams["a"].insert(place, Stable(1_000))
    streams["b"].insert(0, Stable(-1))
    judged = Judged(streams, topology_of(NAMES, max_leap=100, patience_seconds=None))
    judged.read("b")  # the first stable of all cannot be judged
    follow(judged, order)
    assert (Guard.LEAP, Action.HOLD) in kinds(judged) or judged.merge.max_stable == INFINITY
    check_output(judged, logical)
