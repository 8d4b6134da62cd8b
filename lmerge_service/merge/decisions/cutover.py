"""A cutover: one replica takes another's place, as a table and as what is known of the latest one.

Theory
    A cutover goes from *joining* over *watching* to *done*. In each of the first two every task
    must report that it is ready; the report of the last task is the transition, in the control log
    (`ledger`), and so there is one place at which everybody sees it:

        cutover a → b      joining     b is attached, if it is not
        task 0: ready      joining     b is joined there, and no further behind than agreed
        task 1: ready      watching    from here on divergence is watched, in each task
        task 1: ready      watching    b has come through the whole span there
        task 1: unready    watching    it lags: the task's report is revoked
        task 1: ready      watching
        task 0: ready      done        and a is detached, by this very record

    The span is one of the streams' time and not of the clock's: it is how much was compared. A
    night without data, or a backlog read within seconds, would make any time of the clock mean
    nothing.

    >>> move(CutoverState.WATCHING, CutoverEvent.AGREE), move(CutoverState.DONE, CutoverEvent.ABORT)
    (<CutoverState.DONE: 'done'>, None)

Invariants
    C1  Out of done and aborted nothing leads but another cutover: once done, it is final.
    C2  A task's report counts in the state that it was made in, and only there.
    C3  While it runs both replicas are attached as they were when it began, and what would be
        left without the one that leaves is a valid topology.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from lmerge_service.elements import INFINITY

__all__ = ("MOVES", "Cutover", "CutoverEvent", "CutoverState", "as_markdown", "move")


class CutoverState(StrEnum):
    """How far a cutover is."""

    JOINING = "joining"
    """The coming replica is not ready in every task."""
    WATCHING = "watching"
    """It is merged beside the leaving one, and divergence is watched."""
    DONE = "done"
    """The leaving one is detached."""
    ABORTED = "aborted"


class CutoverEvent(StrEnum):
    """What changes that."""

    BEGIN = "begin"
    AGREE = "agree"
    """The last task reports that it is ready."""
    CHANGE = "change"
    """Another case or policy was decided: what suffices is another question."""
    DIVERGE = "diverge"
    """A task has seen more contradictions than agreed."""
    WITHDRAW = "withdraw"
    """One of the two was detached, quarantined or attached again, or the policy needs the leaving
    one again."""
    ABORT = "abort"
    """A person has aborted it."""


_ENDS: Final = {
    CutoverEvent.DIVERGE: CutoverState.ABORTED,
    CutoverEvent.WITHDRAW: CutoverState.ABORTED,
    CutoverEvent.ABORT: CutoverState.ABORTED,
}
MOVES: Final[Mapping[CutoverState, Mapping[CutoverEvent, CutoverState]]] = {
    CutoverState.JOINING: {
        CutoverEvent.AGREE: CutoverState.WATCHING,
        CutoverEvent.CHANGE: CutoverState.JOINING,
        **_ENDS,
    },
    CutoverState.WATCHING: {
        CutoverEvent.AGREE: CutoverState.DONE,
        CutoverEvent.CHANGE: CutoverState.JOINING,
        **_ENDS,
    },
    CutoverState.DONE: {CutoverEvent.BEGIN: CutoverState.JOINING},
    CutoverState.ABORTED: {CutoverEvent.BEGIN: CutoverState.JOINING},
}
"""All transitions; no other is possible. The first cutover begins without a state before it."""


def move(state: CutoverState, event: CutoverEvent) -> CutoverState | None:
    """The state that the event leads to; None where it is not possible in this one."""
    return MOVES[state].get(event)


@dataclass(frozen=True, slots=True)
class Cutover:
    """The latest cutover of a merge, as the control log has it."""

    leaving: str
    coming: str
    watch: int
    """How much of the streams' time is watched, in the topology's unit."""
    max_behind: int
    """Seconds: the coming one must be where the output was so long ago."""
    max_divergences: int
    """More contradictions of either replica to the output, in any task, end it."""
    tasks: int
    """How many there are."""
    who: str
    began: int
    """The version that began it, by which it is known."""
    epochs: tuple[int, int]
    """The attachments of the leaving and of the coming one."""
    rules: tuple[str, ...]
    """Case and policy."""
    state: CutoverState
    since: int
    """The version that brought it into its state."""
    why: str | None = None
    """Why it was aborted, or began to join once more."""
    ready: Mapping[int, int] | None = None
    """By task that is ready in this state: where the output was when it reported that."""
    watched_from: Mapping[int, int] | None = None
    """By task: from where the span is counted, while it is watched."""

    @property
    def runs(self) -> bool:
        """It may still be aborted."""
        return self.state in {CutoverState.JOINING, CutoverState.WATCHING}

    def reported(self, task: int, at: int, *, ready: bool) -> "Cutover":
        """A task reports that it is ready with its output at `at`, or revokes that."""
        others = {each: at for each, at in (self.ready or {}).items() if each != task}
        return replace(self, ready={**others, task: at} if ready else others)

    @property
    def agreed(self) -> bool:
        """Every task is ready."""
        return len(self.ready or {}) == self.tasks

    def moved(self, event: CutoverEvent, version: int, why: str | None = None) -> "Cutover":
        """After an event that is possible (`move`), which made this version."""
        state = MOVES[self.state][event]
        watched_from = self.ready if state is CutoverState.WATCHING else None
        return replace(
            self, state=state, since=version, why=why, ready=None, watched_from=watched_from
        )

    def watched_until(self, task: int) -> int | None:
        """Up to where a task watches; None unless it is watching."""
        if self.watched_from is None:
            return None
        return min(self.watched_from[task] + self.watch, INFINITY)

    def __str__(self) -> str:
        return f"{self.leaving} → {self.coming}"


def as_markdown() -> str:
    """The table as docs/operations/cutover.md has it: for each state the events that leave it."""
    rows = ["| state | event → next state |", "|---|---|"]
    for state, moves in MOVES.items():
        targets = ", ".join(f"{event} → {target}" for event, target in moves.items())
        rows.append(f"| {state} | {targets} |")
    return "\n".join(rows)
