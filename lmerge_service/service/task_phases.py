"""What a task may be on one worker, and which event moves it, as a table.

Theory
    The group of workers assigns a task to one worker, which leads it, and to others, which follow
    it (`kafka.members`). Who may publish is decided by Kafka's fencing at each commit. The two can
    disagree: a worker that stood still for longer than its session (a paused machine, a cut
    network, a frozen broker) still believes that it leads, while another has led since. Its next
    commit is *fenced*. That is no error: it asks the group for an acknowledgement sent after the
    fence, and follows the current assignment.

    >>> after(Phase.LEADING, PhaseEvent.FENCED), after(Phase.FENCED, PhaseEvent.CONFIRMED)
    (<Phase.FENCED: 'fenced'>, <Phase.RECOVERING: 'recovering'>)
    >>> after(Phase.FENCED, PhaseEvent.TOOK_OVER) is None
    True

Invariants
    P1  A task leads or follows only out of `recovering`: with a state read from its topics.
    P2  Out of every phase there is a way to `leading` and to `following`: no phase is an end.
    P3  Only `leading` and `following` are warm: the group may count on them for a takeover.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, TypeAlias

__all__ = ("PHASES", "Lifecycle", "Phase", "PhaseEvent", "Role", "after", "as_markdown")

Role: TypeAlias = Literal["leads", "follows"]
"""What the group gives a worker to do with a task."""


class Phase(StrEnum):
    """What a task is on this worker, as `/status` and `lmerge_task_phase` show it."""

    GONE = "gone"
    """It is not this worker's."""
    RECOVERING = "recovering"
    """Its state is read from its topics."""
    FOLLOWING = "following"
    """A standby: it keeps the state that the task's leader commits."""
    LEADING = "leading"
    """It merges and publishes."""
    FENCED = "fenced"
    """Another producer has taken the output over; the group is asked whose the task is."""


class PhaseEvent(StrEnum):
    """What changes that."""

    ASSIGNED = "assigned"
    """The group gives the task to this worker in another role than before: to lead or follow."""
    REVOKED = "revoked"
    """The group's assignment does not name the task any more."""
    TOOK_OVER = "took over"
    """The output is this worker's, and the state is that of the last commit."""
    CAUGHT_UP = "caught up"
    """The state is that of the last commit; another worker leads."""
    FENCED = "fenced"
    """A request of the producer was refused: another has its transactional id."""
    CONFIRMED = "confirmed"
    """The group has acknowledged since that this worker is to lead the task."""
    FAILED = "failed"
    """Kafka did not answer, or the state cannot be followed: it is read again."""


PHASES: Final[Mapping[Phase, Mapping[PhaseEvent, Phase]]] = {
    # A task may be revoked before it has begun to lead or follow.
    Phase.GONE: {PhaseEvent.ASSIGNED: Phase.RECOVERING, PhaseEvent.REVOKED: Phase.GONE},
    Phase.RECOVERING: {
        PhaseEvent.TOOK_OVER: Phase.LEADING,
        PhaseEvent.CAUGHT_UP: Phase.FOLLOWING,
        PhaseEvent.FENCED: Phase.FENCED,
        PhaseEvent.FAILED: Phase.RECOVERING,
        PhaseEvent.ASSIGNED: Phase.RECOVERING,
        PhaseEvent.REVOKED: Phase.GONE,
    },
    Phase.FOLLOWING: {
        PhaseEvent.CAUGHT_UP: Phase.FOLLOWING,
        PhaseEvent.FAILED: Phase.RECOVERING,
        PhaseEvent.ASSIGNED: Phase.RECOVERING,
        PhaseEvent.REVOKED: Phase.GONE,
    },
    Phase.LEADING: {
        PhaseEvent.FENCED: Phase.FENCED,
        PhaseEvent.FAILED: Phase.RECOVERING,
        PhaseEvent.ASSIGNED: Phase.RECOVERING,
        PhaseEvent.REVOKED: Phase.GONE,
    },
    Phase.FENCED: {
        PhaseEvent.CONFIRMED: Phase.RECOVERING,
        PhaseEvent.ASSIGNED: Phase.RECOVERING,
        PhaseEvent.REVOKED: Phase.GONE,
    },
}
"""All transitions; no other is possible."""


def after(phase: Phase, event: PhaseEvent) -> Phase | None:
    """The phase that the event leads to; None where it is not possible in this one."""
    return PHASES[phase].get(event)


class Lifecycle:
    """The phase of one task on one worker; `move` is its only writer."""

    def __init__(self) -> None:
        self.phase = Phase.GONE
        self.has_begun = False
        """It has led or followed since it was assigned."""

    @property
    def is_warm(self) -> bool:
        """The task could be led from here without a recovery."""
        return self.phase in {Phase.LEADING, Phase.FOLLOWING}

    def move(self, event: PhaseEvent) -> None:
        """An event of the table; one that cannot happen in this phase is a mistake of ours."""
        phase = after(self.phase, event)
        assert phase is not None, f"{event} while {self.phase}"
        self.phase = phase
        self.has_begun = phase is not Phase.GONE and (self.has_begun or self.is_warm)


def as_markdown() -> str:
    """The table as docs/operations/running.md has it: for each phase the events that leave it."""
    rows = ["| phase | event → next phase |", "|---|---|"]
    for phase in Phase:
        moves = ", ".join(f"{event} → {target}" for event, target in PHASES[phase].items())
        rows.append(f"| {phase} | {moves} |")
    return "\n".join(rows)
