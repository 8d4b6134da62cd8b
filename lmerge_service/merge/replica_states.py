"""The states of a replica and the transitions between them, as a table.

Theory
    A replica is *joining* until the output has reached the time from which it is correct, then
    *joined*. Out of either it may be *paused* (it runs too far ahead), *excluded* (its records
    cannot be read) or *quarantined* (it is not trusted); whatever ends that attaches it again, and
    it joins at once when its time has been reached. One that was detached is *leaving* while
    there is something of it left, then *gone*.

    >>> after(ReplicaPhase.JOINED, ReplicaEvent.QUARANTINE)
    <ReplicaPhase.QUARANTINED: 'quarantined'>
    >>> after(ReplicaPhase.QUARANTINED, ReplicaEvent.RELEASE)
    <ReplicaPhase.JOINING: 'joining'>
    >>> after(ReplicaPhase.GONE, ReplicaEvent.RELEASE) is None
    True

    Four events are decisions and are in the control log; the others occur in a merge task. The log
    itself determines only the `DesiredState` of a replica: `desired_of` maps the seven states so.

Invariants
    L1  The desired state after a decision depends on the one before alone, whatever the task sees:
        one decision takes all states of one desired state to states of one (checked on import).
    L2  An event that is no decision never changes the desired state.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = (
    "DECISIONS",
    "LIFE",
    "DesiredState",
    "ReplicaEvent",
    "ReplicaPhase",
    "after",
    "as_markdown",
    "desired_after",
    "desired_of",
    "seen",
)


class ReplicaPhase(StrEnum):
    """Where a replica stands, as `/status` shows it."""

    JOINING = "joining"
    JOINED = "joined"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    QUARANTINED = "quarantined"
    LEAVING = "leaving"
    GONE = "gone"


class ReplicaEvent(StrEnum):
    """What changes that."""

    ATTACH = "attach"
    DETACH = "detach"
    QUARANTINE = "quarantine"
    RELEASE = "release"
    JOIN = "join"
    """The output's stable point reaches the time from which the replica is correct."""
    PAUSE = "pause"
    RESUME = "resume"
    EXCLUDE = "exclude"
    TAKE_IN = "take in"
    LEAVE = "leave"
    """Nothing of it is left."""


class DesiredState(StrEnum):
    """What was decided about a replica."""

    ATTACHED = "attached"
    QUARANTINED = "quarantined"
    DETACHED = "detached"


DECISIONS: Final = frozenset(
    {ReplicaEvent.ATTACH, ReplicaEvent.DETACH, ReplicaEvent.QUARANTINE, ReplicaEvent.RELEASE}
)

_WITHDRAWN: Final = {
    ReplicaEvent.QUARANTINE: ReplicaPhase.QUARANTINED,
    ReplicaEvent.DETACH: ReplicaPhase.LEAVING,
}

LIFE: Final[Mapping[ReplicaPhase, Mapping[ReplicaEvent, ReplicaPhase]]] = {
    ReplicaPhase.JOINING: {
        ReplicaEvent.JOIN: ReplicaPhase.JOINED,
        ReplicaEvent.PAUSE: ReplicaPhase.PAUSED,
        ReplicaEvent.EXCLUDE: ReplicaPhase.EXCLUDED,
        **_WITHDRAWN,
    },
    ReplicaPhase.JOINED: {
        ReplicaEvent.PAUSE: ReplicaPhase.PAUSED,
        ReplicaEvent.EXCLUDE: ReplicaPhase.EXCLUDED,
        **_WITHDRAWN,
    },
    ReplicaPhase.PAUSED: {
        ReplicaEvent.RESUME: ReplicaPhase.JOINING,
        ReplicaEvent.EXCLUDE: ReplicaPhase.EXCLUDED,
        **_WITHDRAWN,
    },
    ReplicaPhase.EXCLUDED: {ReplicaEvent.TAKE_IN: ReplicaPhase.JOINING, **_WITHDRAWN},
    ReplicaPhase.QUARANTINED: {
        ReplicaEvent.RELEASE: ReplicaPhase.JOINING,
        ReplicaEvent.DETACH: ReplicaPhase.LEAVING,
    },
    ReplicaPhase.LEAVING: {
        ReplicaEvent.LEAVE: ReplicaPhase.GONE,
        ReplicaEvent.ATTACH: ReplicaPhase.JOINING,
    },
    ReplicaPhase.GONE: {ReplicaEvent.ATTACH: ReplicaPhase.JOINING},
}
"""All transitions; no other is possible."""


def after(state: ReplicaPhase, event: ReplicaEvent) -> ReplicaPhase | None:
    """The state that the event leads to; None where it is not possible in this one."""
    return LIFE[state].get(event)


def desired_of(state: ReplicaPhase) -> DesiredState:
    """What was decided about a replica that is in this state."""
    if state is ReplicaPhase.QUARANTINED:
        return DesiredState.QUARANTINED
    return (
        DesiredState.DETACHED
        if state in {ReplicaPhase.LEAVING, ReplicaPhase.GONE}
        else DesiredState.ATTACHED
    )


def _of_decisions() -> dict[tuple[DesiredState, ReplicaEvent], DesiredState]:
    found: dict[tuple[DesiredState, ReplicaEvent], DesiredState] = {}
    for state in ReplicaPhase:
        for event in DECISIONS & LIFE[state].keys():
            desired = desired_of(LIFE[state][event])
            assert found.setdefault((desired_of(state), event), desired) is desired, (state, event)
    return found


_DESIRED: Final = _of_decisions()


def desired_after(desired: DesiredState, event: ReplicaEvent) -> DesiredState | None:
    """The same for a decision and what the control log knows; None when it is refused.

    >>> desired_after(DesiredState.DETACHED, ReplicaEvent.ATTACH)
    <DesiredState.ATTACHED: 'attached'>
    >>> desired_after(DesiredState.ATTACHED, ReplicaEvent.ATTACH) is None
    True
    """
    return _DESIRED.get((desired, event))


def seen(
    desired: DesiredState, *, excluded: bool, paused: bool, joined: bool, left: bool
) -> ReplicaPhase:
    """The state, from what was decided and what a task sees of its replica.

    `left`: nothing of the replica is left in the task; it only matters if detached.
    """
    if desired is DesiredState.QUARANTINED:
        return ReplicaPhase.QUARANTINED
    if desired is DesiredState.DETACHED:
        return ReplicaPhase.GONE if left else ReplicaPhase.LEAVING
    if excluded:
        return ReplicaPhase.EXCLUDED
    if paused:
        return ReplicaPhase.PAUSED
    return ReplicaPhase.JOINED if joined else ReplicaPhase.JOINING


def as_markdown() -> str:
    """The table as docs/operations/control.md has it: for each state the events that leave it."""
    rows = ["| state | event → next state |", "|---|---|"]
    for state in ReplicaPhase:
        moves = ", ".join(f"{event} → {target}" for event, target in LIFE[state].items())
        rows.append(f"| {state} | {moves} |")
    return "\n".join(rows)
