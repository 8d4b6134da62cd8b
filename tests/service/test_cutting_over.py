"""Cutovers on a real broker: workers carry them on through `kill -9` in every state, and until the
last step they can be aborted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.merge.commit_record import CommitRecord
from lmerge_service.merge.decisions.records import AbortCutover, BeginCutover, Quarantine
from lmerge_service.tdb import reconstitute
from tests.service.cluster import Merge, Worker, decided

pytestmark = pytest.mark.kafka

TASKS = 2


def events(start: int, end: int) -> list[Element]:
    """One begins at each time, for either task, and ends soon."""
    return [Insert(b'{"id":%d}' % vs, vs, vs + 3) for vs in range(start, end)]


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    """One replica, `a`, whose output is at 10; `d`, correct from 20 on, publishes beside it."""
    merge = Merge(bootstrap, tmp_path, ["a"])
    merge.extra = {
        "output": {"topic": merge.output, "partitions": TASKS},
        "time_unit": "none",
        "guards": {"patience_seconds": 0.5, "max_leap": 0},
    }
    merge.write()
    merge.topics["d"] = f"{merge.name}.d"
    merge.publish("a", [*events(0, 15), Stable(10)])
    merge.publish("d", [*events(17, 40), Stable(30)])
    return merge


def begin(merge: Merge, **fields: Any) -> BeginCutover:
    attach = {"name": "d", "topic": merge.topics["d"], "joining_at": 20}
    limits = {"watch": 20, "max_behind": 1, "max_divergences": 0, "attach": attach, **fields}
    return BeginCutover("a", "d", **limits)


def marks(merge: Merge) -> list[CommitRecord]:
    """Where the tasks stand."""
    found = [merge.last_commit(task) for task in range(TASKS)]
    return [mark for mark in found if mark is not None]


def cutover_in(worker: Worker, state: str) -> Any:
    """The status when the cutover is in a state."""

    def is_in(status: Any) -> bool:
        found = status["cutover"]
        return found is not None and found["state"] == state and status["state"] == "running"

    return worker.wait(is_in, f"a cutover that is {state}")


def until_it_waits_for(worker: Worker, lacks: str) -> None:
    """Each task reports what it waits for."""
    worker.wait(
        lambda status: all((each["cutover"] or "").startswith(lacks) for each in status["tasks"]),
        lacks,
    )


JOINING = "d is correct from 20 on, and the output is at 10"


def go_through(merge: Merge, killed_in: Sequence[str]) -> None:
    """A whole cutover; in some of its states the worker is killed, and another started."""
    steps = {"joining": (15, 25), "watching": (25, 60), "done": None}
    lacks = {
        "joining": JOINING,
        "watching": "d is at 30 and the output at 30; they are watched up ",
    }
    worker = merge.worker()
    current = worker.__enter__()
    try:
        current.wait_until_running()
        decided(merge, begin(merge))
        for state, step in steps.items():
            cutover_in(current, state)
            if state in killed_in:
                worker.__exit__(None, None, None)
                worker = merge.worker()
                current = worker.__enter__()
                cutover_in(current, state)
            if step is None:
                break
            until_it_waits_for(current, lacks[state])
            merge.publish("a", [*events(*step), Stable(step[1])])
            if state == "watching":
                merge.publish("d", [*events(40, 60), Stable(60)])
        # T11: it is final. Nothing leads back to the one that is gone, though it publishes, and the
        # one that stays may take its time.
        current.wait(
            lambda _: not any("a" in mark.replicas for mark in marks(merge)), "a to be gone"
        )
        merge.publish("a", [Insert(b'"gone"', 60, 70), Stable(65)])
        found = current.wait(lambda status: status["output"]["stable_point"] == 60, "60")
        assert found["cutover"]["state"] == "done"
        assert [each["name"] for each in found["replicas"]] == ["d"]
        merge.publish("d", [*events(60, 70), Stable(INFINITY)])
        current.wait_until_ended()
    finally:
        worker.__exit__(None, None, None)
    assert merge.output_is(reconstitute(events(0, 70)))


@pytest.mark.full
def test_a_cutover_goes_on_where_it_was_when_the_worker_is_killed(merge: Merge) -> None:
    go_through(merge, ["watching"])


@pytest.mark.deep
@pytest.mark.parametrize(
    "killed_in", [(), ("joining",), ("done",), ("joining", "watching", "done")], ids="+".join
)
def test_in_whatever_state_that_is(merge: Merge, killed_in: Sequence[str]) -> None:
    go_through(merge, killed_in)


@pytest.mark.parametrize("state", ["joining", pytest.param("watching", marks=pytest.mark.deep)])
def test_until_the_last_step_it_can_be_aborted(merge: Merge, state: str) -> None:
    with merge.worker() as worker:
        worker.wait_until_running()
        decided(merge, begin(merge))
        if state == "watching":
            merge.publish("a", [*events(15, 25), Stable(25)])
        cutover_in(worker, state)
        decided(merge, AbortCutover("not today"))
        found = cutover_in(worker, "aborted")
        assert found["cutover"]["why"] == "anna: not today"
        assert [each["name"] for each in found["replicas"]] == ["a", "d"]
        start = 15 if state == "joining" else 25
        merge.publish("a", [*events(start, 70), Stable(INFINITY)])
        merge.publish("d", [*events(40, 70), Stable(INFINITY)])
        worker.wait_until_ended()
        assert worker.logged("cutover")[-1]["state"] == "aborted"
    assert merge.output_is(reconstitute(events(0, 70)))


@pytest.mark.full
def test_a_coming_one_that_contradicts_the_output_is_not_cut_over_to(merge: Merge) -> None:
    """Nor one that a guard holds or a person suspects; what was attached stays."""
    with merge.worker() as worker:
        worker.wait_until_running()
        decided(merge, begin(merge))
        until_it_waits_for(worker, JOINING)
        merge.publish("a", [*events(15, 35), Insert(b'"only a"', 31, 50), Stable(35)])
        cutover_in(worker, "watching")
        merge.publish("d", [*events(40, 60), Stable(60)])
        found = cutover_in(worker, "aborted")["cutover"]
        assert (
            "1 contradictions to the output, the first is of d: half_frozen_missing"
            in (found["why"])
        )
        decided(merge, Quarantine("d", "it lies"), begin(merge, attach=None))
        worker.wait(lambda status: status["version"] > found["since"], "another decision")
        assert worker.status()["cutover"] == found, "one in quarantine takes nobody's place"


@pytest.mark.deep
def test_the_beginning_of_time_is_no_place_to_be(merge: Merge) -> None:
    """A replica that has published nothing is joined and suffices for nothing."""
    merge.topics["e"] = f"{merge.name}.e"
    merge.publish("e", [])
    with merge.worker() as worker:
        worker.wait_until_running()
        attach = {"name": "e", "topic": merge.topics["e"]}
        decided(merge, BeginCutover("a", "e", 0, 5, 0, attach=attach))
        until_it_waits_for(worker, "e has not sent a stable in each of its partitions yet")
        assert worker.status()["output"]["stable_point"] > START
