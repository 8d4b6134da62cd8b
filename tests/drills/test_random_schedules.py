"""Faults by chance: what schedules there are, and that they can be played."""

import pytest
from chaoslib.experiment import ensure_experiment_is_valid
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.drills.plan import plan_of
from lmerge_service.drills.random_schedules import compose, experiment_of

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
