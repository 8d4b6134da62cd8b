"""The life of a replica as a table: from which state what leads where.

Theory
    A replica is *joining* until the output has reached the time from which it is correct, then
    *joined*. Out of either it may be *paused* (it runs too far ahead), *held out* (its records
    cannot be had) or *quarantined* (it is not trusted); whatever ends that attaches it anew, and
    it joins at once when its time has been reached. One that was detached is *leaving* while
    there is something of it left, then *gone*.

    >>> after(State.JOINED, Event.QUARANTINE), after(State.QUARANTINED, Event.RELEASE)
    (<State.QUARANTINED: 'quarantined'>, <State.JOINING: 'joining'>)
    >>> after(State.GONE, Event.RELEASE) is None
    True

    Four events are decisions and are in the control log; the others happen in a merge task. Who
    folds the log knows only whether a replica is wanted (`DesiredState`): the seven states seen
    through `wish_of`.

Invariants
    L1  What a decision makes of a wish depends on the wish alone, whatever the task sees: states
        of one wish go by one decision to states of one wish (checked when this is imported).
    L2  An event that is no decision never changes the wish.
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
    "seen",
    "wish_after",
    "wish_of",
)


class State(StrEnum):
    """Where a replica stands, as `/status` shows it."""

    JOINING = "joining"
    JOINED = "joined"
    PAUSED = "paused"
    EXCLUDED = "held out"
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
    HOLD_OUT = "hold out"
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
        Event.HOLD_OUT: State.EXCLUDED,
        **_WITHDRAWN,
    },
    State.JOINED: {Event.PAUSE: State.PAUSED, Event.HOLD_OUT: State.EXCLUDED, **_WITHDRAWN},
    State.PAUSED: {Event.RESUME: State.JOINING, Event.HOLD_OUT: State.EXCLUDED, **_WITHDRAWN},
    State.EXCLUDED: {Event.TAKE_IN: State.JOINING, **_WITHDRAWN},
    State.QUARANTINED: {Event.RELEASE: State.JOINING, Event.DETACH: State.LEAVING},
    State.LEAVING: {Event.LEAVE: State.GONE, Event.ATTACH: State.JOINING},
    State.GONE: {Event.ATTACH: State.JOINING},
}
"""The whole table; what is not in it does not happen."""


def after(state: State, event: Event) -> State | None:
    """The state that the event leads to; None when it does not happen in this one."""
    return LIFE[state].get(event)


def wish_of(state: State) -> DesiredState:
    """What was decided about a replica that is in this state."""
    if state is State.QUARANTINED:
        return DesiredState.QUARANTINED
    return DesiredState.DETACHED if state in {State.LEAVING, State.GONE} else DesiredState.ATTACHED


def _of_decisions() -> dict[tuple[DesiredState, Event], DesiredState]:
    found: dict[tuple[DesiredState, Event], DesiredState] = {}
    for state in State:
        for event in DECISIONS & LIFE[state].keys():
            wish = wish_of(LIFE[state][event])
            assert found.setdefault((wish_of(state), event), wish) is wish, (state, event)
    return found


_WISHES: Final = _of_decisions()


def wish_after(wish: DesiredState, event: Event) -> DesiredState | None:
    """The same for a decision and what the control log knows; None when it is refused.

    >>> wish_after(DesiredState.DETACHED, Event.ATTACH)
    <DesiredState.ATTACHED: 'attached'>
    >>> wish_after(DesiredState.ATTACHED, Event.ATTACH) is None
    True
    """
    return _WISHES.get((wish, event))


def seen(wish: DesiredState, *, excluded: bool, paused: bool, joined: bool, left: bool) -> State:
    """The state, of what was decided and what a task sees of its replica.

    `left` says that nothing of the replica is left in the task; of no matter unless detached.
    """
    if wish is DesiredState.QUARANTINED:
        return State.QUARANTINED
    if wish is DesiredState.DETACHED:
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
