"""Takeover on a real broker: standbys follow, and lead when the one that led is gone, whichever
way; nothing is lost or doubled while the replicas publish all the time.

Bounds of time are generous, since the machine may be busy; what was measured is printed.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.merge.decisions.records import SetPolicy
from lmerge_service.tdb import TDB
from tests.service.cluster import (
    SESSION_SECONDS,
    Merge,
    Worker,
    decided,
    logical,
    meaning,
    replica_streams,
)

BUSY = 8.0
"""Seconds that a busy machine may need beyond what is promised."""


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)


def output_of(status: Any) -> tuple[Any, ...]:
    """What two workers must agree on."""
    (task,) = status["tasks"]
    return task["output"]["stable_point"], task["output"]["live_events"]


def agrees(expected: tuple[Any, ...], status: Any) -> bool:
    return output_of(status) == expected


def has_read_all(status: Any) -> bool:
    return all(each["lag_records"] == 0 for each in status["replicas"])


def commits(worker: Worker, beyond: int = 0) -> float:
    """Waits until a worker has made more commits; the moment at which that was seen."""
    worker.wait(lambda s: s["output"]["transactions"] > beyond, "a commit", SESSION_SECONDS + BUSY)
    return time.monotonic()


def measured(what: str, gone: Callable[[], object], heir: Worker) -> float:
    """Seconds from an owner's end to the first commit of the next one."""
    had = heir.status()["output"]["transactions"]
    begun = time.monotonic()
    gone()
    seconds = commits(heir, had) - begun
    print(f"takeover after {what}: {seconds:.2f} s")
    return seconds


def halves(streams: dict[str, list[Element]]) -> tuple[dict[str, list[Element]], ...]:
    cut = {name: len(stream) // 2 for name, stream in streams.items()}
    return (
        {name: stream[: cut[name]] for name, stream in streams.items()},
        {name: stream[cut[name] :] for name, stream in streams.items()},
    )


@pytest.mark.full
def test_g1_a_standby_follows_without_publishing_and_holds_no_more_than_the_active(
    merge: Merge,
) -> None:
    """Also materialize#37233: a passive copy whose state grows with each write."""
    lives = logical(600, seed=31)
    before, after = halves(replica_streams(lives, seed=31))
    with merge.worker() as active, merge.worker("--standby") as standby:
        active.wait_until_it("leads")
        for half in (before, after):
            for name, stream in half.items():
                merge.publish(name, stream)
            for name in half:
                had = len(before[name]) if half is after else 0
                merge.wait_until_committed(name, had + len(half[name]))
            expected = output_of(active.wait(has_read_all, "no lag"))
            followed = standby.wait(partial(agrees, expected), f"{expected}")
            assert [each["role"] for each in followed["tasks"]] == ["follows"]
            assert (followed["state"], followed["output"]["transactions"]) == ("standby", 0)
            assert followed["output"]["inserts"] == 0
        assert output_of(followed)[1] == 0, "nothing is alive when all is final"
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_after_kill_9_the_standby_goes_on_within_the_session(merge: Merge) -> None:
    lives = logical(1_500, seed=32)
    with merge.worker() as first, merge.worker() as second:
        with merge.publishing(replica_streams(lives, seed=32)):
            leads, follows = ordered(first, second)
            commits(leads)
            assert measured("kill -9", leads.kill, follows) < SESSION_SECONDS + 1 + BUSY
        follows.wait_until_ended()
        assert len(follows.logged("rebuilt")) == 1, "it was warm, and went on from there"
    assert merge.output_is(meaning(lives))


def ordered(one: Worker, other: Worker) -> tuple[Worker, Worker]:
    """The one that leads, and the one that follows; both are warm."""
    roles: dict[str, Worker] = {}
    for worker in (one, other):
        status = worker.wait(
            lambda s: [each["phase"] for each in s["tasks"]] in (["leading"], ["following"]),
            "a warm task",
        )
        roles[status["tasks"][0]["role"]] = worker
    return roles["leads"], roles["follows"]


@pytest.mark.full
def test_after_sigterm_the_standby_goes_on_at_once(merge: Merge) -> None:
    lives = logical(1_500, seed=33)
    with merge.worker() as first, merge.worker() as second:
        with merge.publishing(replica_streams(lives, seed=33)):
            leads, follows = ordered(first, second)
            commits(leads)
            assert measured("SIGTERM", leads.process.terminate, follows) < 1 + BUSY
            assert leads.process.wait(15) == 0
        follows.wait_until_ended()
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_an_owner_that_stood_still_is_fenced_reports_it_and_stands_by(merge: Merge) -> None:
    """It is stopped for longer than its session, in the middle of its work, and goes on."""
    lives = logical(2_500, seed=34)
    with merge.worker() as first, merge.worker() as second:
        with merge.publishing(replica_streams(lives, seed=34)):
            leads, follows = ordered(first, second)
            commits(leads)
            assert measured("SIGSTOP", leads.stop, follows) < SESSION_SECONDS + 1 + BUSY
            leads.go_on()
            leads.wait_until_it("follows")
            reports = [
                leads.logged("fenced"),
                leads.logged("this worker was taken for dead; it joins anew"),
            ]
            assert any(reports)
            assert (
                measured("kill -9 of the second", follows.kill, leads) < SESSION_SECONDS + 1 + BUSY
            )
        leads.wait_until_ended()
        assert leads.terminate() == 0
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_a_worker_that_is_for_standing_by_leads_only_while_it_is_alone(merge: Merge) -> None:
    """The task moves from it to a worker that comes, once that one is warm, under load."""
    lives = logical(1_500, seed=35)
    with merge.worker("--standby") as standby:
        with merge.publishing(replica_streams(lives, seed=35)):
            standby.wait_until_it("leads")
            commits(standby)
            with merge.worker() as worker:
                worker.wait_until_it("leads")
                commits(worker)
                standby.wait_until_it("follows")
                assert standby.logged("fenced") == []
                assert worker.terminate() == 0
            standby.wait_until_it("leads")
        standby.wait_until_ended()
    assert merge.output_is(meaning(lives))


@pytest.mark.full
def test_a_policy_that_is_decided_just_before_the_owner_dies_is_the_heirs(merge: Merge) -> None:
    """What the new policy emits and the old one held back is emitted once, by whoever leads: the
    standby rebuilds under the new policy too, and has then taken it for emitted. In case R4
    it would not notice that it receives it again."""
    merge.topics = {"a": merge.topics["a"]}
    merge.extra = {"policy": {"insert": "half_frozen"}, "case": "R4"}
    merge.write()
    held_back = [Insert(b'"%d"' % k, 10 + k, 20) for k in range(5)]
    with merge.worker() as first, merge.worker() as second:
        merge.publish("a", held_back)
        leads, follows = ordered(first, second)
        merge.wait_until_committed("a", len(held_back))
        decided(merge, SetPolicy("first", "lazy", "max"))
        leads.stop()  # it may have known, or not
        follows.wait_until_it("leads")
        leads.kill()
        follows.wait(lambda s: s["output"]["policy"]["insert"] == "first", "the policy")
        merge.publish("a", [Stable(INFINITY)])
        follows.wait_until_ended()
        assert follows.terminate() == 0
    assert merge.output_is(TDB([(each.payload, each.vs, each.ve) for each in held_back]))
