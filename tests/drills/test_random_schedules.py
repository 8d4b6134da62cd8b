"""Faults by chance: what schedules there are, that they can be played, and shrinking."""

import msgspec
import pytest
from chaoslib.experiment import ensure_experiment_is_valid
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.drills.plan import plan_of
from lmerge_service.drills.random_schedules import (
    Fault,
    Schedule,
    compose,
    experiment_of,
    failures,
    shrink,
)
from tests.drills.test_drills import RESULT

SEEDS = st.integers(0, 100_000)


@given(SEEDS)
def test_one_replica_is_never_hit_and_nobody_twice(seed: int) -> None:
    faults = compose(seed).faults
    victims = [fault.victim for fault in faults]
    assert 2 <= len(faults) <= 4
    assert len(set(victims)) == len(victims)
    assert len(set(victims) & {"a", "b", "c"}) <= 2
    assert all(fault.start < fault.end for fault in faults)


@given(SEEDS)
def test_no_worker_is_started_while_the_broker_is_away(seed: int) -> None:
    broker = False
    for step in experiment_of(compose(seed))["method"]:
        match step["provider"]["func"]:
            case "pause_broker" | "kill_broker":
                broker = True
            case "resume_broker" | "start_broker":
                broker = False
            case "start_worker":
                assert not broker


@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_is_an_experiment(seed: int) -> None:
    found = experiment_of(compose(seed))
    ensure_experiment_is_valid(found)  # that each action has these arguments, too
    plan_of(found["configuration"])
    assert experiment_of(compose(seed)) == found


@given(SEEDS, st.data())
def test_what_shrinking_gives_has_failed_and_is_no_longer(seed: int, data: st.DataObject) -> None:
    """Also when a run fails at one time and passes at another."""
    schedule = compose(seed)
    seen_to_fail = {schedule}

    def fails(shorter: Schedule) -> bool:
        failed = data.draw(st.booleans())
        if failed:
            seen_to_fail.add(shorter)
        return failed

    shortest = shrink(schedule, fails)
    assert shortest in seen_to_fail
    assert shortest.faults
    assert set(shortest.faults) <= set(schedule.faults)


def test_a_single_fault_that_matters_is_found() -> None:
    faults = tuple(Fault("pause", victim, 1.0, 2.0) for victim in ("a", "b", "w1", "broker"))
    found = shrink(Schedule(1, faults), lambda s: any(f.victim == "w1" for f in s.faults))
    assert [fault.victim for fault in found.faults] == ["w1"]


def test_a_drill_that_could_not_be_played_is_no_failure() -> None:
    assert failures(RESULT) == {"K2 is invalid"}
    assert not failures(msgspec.structs.replace(RESULT, unplayed=True))
    assert not failures(msgspec.structs.replace(RESULT, passed=True))
