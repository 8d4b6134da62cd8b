"""The life of a replica: the table is whole, and the documentation shows it."""

from collections import deque
from pathlib import Path

import pytest

from lmerge_service.merge.replica_states import (
    DECISIONS,
    LIFE,
    DesiredState,
    ReplicaEvent,
    ReplicaPhase,
    after,
    as_markdown,
    desired_after,
    desired_of,
    seen,
)


def test_every_state_is_reached_from_joining_and_every_event_does_something() -> None:
    reached, queue = {ReplicaPhase.JOINING}, deque([ReplicaPhase.JOINING])
    while queue:
        for target in LIFE[queue.popleft()].values():
            if target not in reached:
                reached.add(target)
                queue.append(target)
    assert reached == set(ReplicaPhase)
    assert {event for moves in LIFE.values() for event in moves} == set(ReplicaEvent)


def test_an_ordinary_life() -> None:
    state: ReplicaPhase | None = ReplicaPhase.GONE
    walked = []
    for name in (
        "ATTACH", "JOIN", "PAUSE", "RESUME", "JOIN", "EXCLUDE", "TAKE_IN", "QUARANTINE", "RELEASE",
        "DETACH", "LEAVE",
    ):  # fmt: skip
        assert state is not None
        state = after(state, ReplicaEvent[name])
        walked.append(state)
    assert walked == [
        "joining", "joined", "paused", "joining", "joined", "excluded",
        "joining", "quarantined", "joining", "leaving", "gone",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (ReplicaPhase.GONE, ReplicaEvent.DETACH),
        (ReplicaPhase.GONE, ReplicaEvent.QUARANTINE),
        (ReplicaPhase.LEAVING, ReplicaEvent.RELEASE),
        (ReplicaPhase.JOINED, ReplicaEvent.ATTACH),
        (ReplicaPhase.JOINED, ReplicaEvent.RELEASE),
        (ReplicaPhase.QUARANTINED, ReplicaEvent.ATTACH),
        (ReplicaPhase.QUARANTINED, ReplicaEvent.JOIN),
        (ReplicaPhase.QUARANTINED, ReplicaEvent.QUARANTINE),
        (ReplicaPhase.EXCLUDED, ReplicaEvent.JOIN),
    ],
)
def test_what_is_not_in_the_table_does_not_happen(state: ReplicaPhase, event: ReplicaEvent) -> None:
    assert after(state, event) is None


@pytest.mark.parametrize("state", ReplicaPhase)
def test_the_log_and_the_task_agree_about_every_move(state: ReplicaPhase) -> None:
    for event in ReplicaEvent:
        target = after(state, event)
        if event in DECISIONS:
            expected = None if target is None else desired_of(target)
            assert desired_after(desired_of(state), event) is expected
        elif target is not None:
            assert desired_of(target) is desired_of(state)


@pytest.mark.parametrize("desired", DesiredState)
def test_what_a_task_sees_never_contradicts_what_was_decided(desired: DesiredState) -> None:
    for bits in range(16):
        excluded, paused, joined, left = (bool(bits & 1 << n) for n in range(4))
        state = seen(desired, excluded=excluded, paused=paused, joined=joined, left=left)
        assert desired_of(state) is desired


def test_a_task_shows_the_gravest_of_what_it_sees() -> None:
    desired = DesiredState.ATTACHED
    assert (
        seen(desired, excluded=True, paused=True, joined=True, left=False) is ReplicaPhase.EXCLUDED
    )
    assert (
        seen(desired, excluded=False, paused=True, joined=True, left=False) is ReplicaPhase.PAUSED
    )
    assert (
        seen(desired, excluded=False, paused=False, joined=True, left=False) is ReplicaPhase.JOINED
    )
    assert (
        seen(desired, excluded=False, paused=False, joined=False, left=False)
        is ReplicaPhase.JOINING
    )


def test_the_documentation_has_the_table() -> None:
    assert as_markdown() in Path("docs/operations/control.md").read_text()
