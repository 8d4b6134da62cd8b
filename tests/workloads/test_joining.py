"""Replicas that restart or join late."""

from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.tdb import Event, reconstitute
from lmerge_service.workloads.joining import joining_from, restart
from tests.strategies import logical_streams, presentations, times

STREAM: list[Element] = [
    Insert("old", 1, 9),
    Insert("phantom", 2, 30),
    Adjust("phantom", 2, 30, 2),
    Adjust("old", 1, 9, 8),
    Insert("new", 5, 9),
    Adjust("new", 5, 9, 10),
    Stable(7),
]


def test_a_replica_that_joins_lacks_what_ends_before() -> None:
    assert joining_from(STREAM, 10) == [Insert("new", 5, 9), Adjust("new", 5, 9, 10), Stable(7)]
    assert joining_from(STREAM, 0) == [e for e in STREAM if "phantom" not in repr(e)]


def test_or_knows_a_part_that_claims_nothing_of_the_time_after() -> None:
    known = {
        tuple(e for e in joining_from(STREAM, 10, partial=1.0, seed=seed) if "phantom" in repr(e))
        for seed in range(30)
    }
    assert known == {(), (STREAM[1], STREAM[2])}
    held = {
        event
        for seed in range(30)
        for event in reconstitute(joining_from(STREAM, 10, partial=1.0, seed=seed))
    }
    assert held == {Event("old", 1, 9), Event("old", 1, 8), Event("new", 5, 10)}


@given(st.data(), st.booleans(), times(), st.sampled_from((0.0, 0.5, 1.0)), st.integers(0, 2**16))
def test_it_is_legal_and_right_from_then_on(
    data: st.DataObject, unique: bool, t: int, partial: float, seed: int
) -> None:
    logical = data.draw(logical_streams(unique_keys=unique))
    [stream] = data.draw(presentations(logical, 1, "R3" if unique else "R4"))
    joined = reconstitute(joining_from(stream, t, partial=partial, seed=seed))
    assert sorted(e for e in joined if e.ve >= t) == sorted(e for e in logical if e.ve >= t)


def test_a_restart_repeats_everything_after_the_prefix() -> None:
    assert list(restart(STREAM, 2)) == [*STREAM[:2], *STREAM]
    assert list(restart(STREAM, 0)) == STREAM
