"""The states of a replica and the transitions between them, as a table.

Theory
    A replica is *joining* until the output has reached the time from which it is correct, then
    *joined*. Out of either it may be *paused* (it runs too far ahead), *excluded* (its records
    cannot be read) or *quarantined* (it is not trusted); whatever ends that attaches it again, and
    it joins at once when its time has been reached. One that was detached is *leaving* while
    there is something of it left, then *gone*.

    >>> after(State.JOINED, Event.QUARANTINE), after(State.QUARANTINED, Event.RELEASE)
    (<State.QUARANTINED: 'quarantined'>, <State.JOINING: 'joining'>)
    >>> after(State.GONE, Event.RELEASE) is None
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
    "Event",
    "State",
    "after",
    "as_markdown",
    "desired_after",
    "desired_of",
    "seen",
)


class State(StrEnum):
    """Where a replica stands, as `/status` shows it."""

    JOINING = "joining"
    JOINED = "joined"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    QUARANTINED = "quarantined"
    LEAVING = "leaving"
    GONE = "gone"


class Event(StrEnum):
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


DECISIONS: Final = frozenset({Event.ATTACH, Event.DETACH, Event.QUARANTINE, Event.RELEASE})

_WITHDRAWN: Final = {Event.QUARANTINE: State.QUARANTINED, Event.DETACH: State.LEAVING}

LIFE: Final[Mapping[State, Mapping[Event, State]]] = {
    State.JOINING: {
        Event.JOIN: State.JOINED,
        Event.PAUSE: State.PAUSED,
        Event.EXCLUDE: State.EXCLUDED,
        **_WITHDRAWN,
    },
    State.JOINED: {Event.PAUSE: State.PAUSED, Event.EXCLUDE: State.EXCLUDED, **_WITHDRAWN},
    State.PAUSED: {Event.RESUME: State.JOINING, Event.EXCLUDE: State.EXCLUDED, **_WITHDRAWN},
    State.EXCLUDED: {Event.TAKE_IN: State.JOINING, **_WITHDRAWN},
    State.QUARANTINED: {Event.RELEASE: State.JOINING, Event.DETACH: State.LEAVING},
    State.LEAVING: {Event.LEAVE: State.GONE, Event.ATTACH: State.JOINING},
    State.GONE: {Event.ATTACH: State.JOINING},
}
"""All transitions; no other is possible."""


def after(state: State, event: Event) -> State | None:
    """The state that the event leads to; None where it is not possible in this one."""
    return LIFE[state].get(event)


def desired_of(state: State) -> DesiredState:
    """What was decided about a replica that is in this state."""
    if state is State.QUARANTINED:
        return DesiredState.QUARANTINED
    return DesiredState.DETACHED if state in {State.LEAVING, State.GONE} else DesiredState.ATTACHED


def _of_decisions() -> dict[tuple[DesiredState, Event], DesiredState]:
    found: dict[tuple[DesiredState, Event], DesiredState] = {}
    for state in State:
        for event in DECISIONS & LIFE[state].keys():
            desired = desired_of(LIFE[state][event])
            assert found.setdefault((desired_of(state), event), desired) is desired, (state, event)
    return found


_DESIRED: Final = _of_decisions()


def desired_after(desired: DesiredState, event: Event) -> DesiredState | None:
    """The same for a decision and what the control log knows; None when it is refused.

    >>> desired_after(DesiredState.DETACHED, Event.ATTACH)
    <DesiredState.ATTACHED: 'attached'>
    >>> desired_after(DesiredState.ATTACHED, Event.ATTACH) is None
    True
    """
    return _DESIRED.get((desired, event))


def seen(desired: DesiredState, *, excluded: bool, paused: bool, joined: bool, left: bool) -> State:
    """The state, from what was decided and what a task sees of its replica.

    `left`: nothing of the replica is left in the task; it only matters if detached.
    """
    if desired is DesiredState.QUARANTINED:
        return State.QUARANTINED
    if desired is DesiredState.DETACHED:
        return State.GONE if left else State.LEAVING
    if excluded:
        return State.EXCLUDED
    if paused:
        return State.PAUSED
    return State.JOINED if joined else State.JOINING


def as_markdown() -> str:
    """The table as docs/operations/control.md has it: for each state the events that leave it."""
    rows = ["| state | event → next state |", "|---|---|"]
    for state in State:
        moves = ", ".join(f"{event} → {target}" for event, target in LIFE[state].items())
        rows.append(f"| {state} | {moves} |")
    return "\n".join(rows)
