"""A cutover as documents show it: in the control API, and in a worker's status."""

from typing import Self

from pydantic import BaseModel

from lmerge_service.merge.decisions.cutover import Cutover, CutoverState

__all__ = ("CutoverTaskView", "CutoverView")


class CutoverTaskView(BaseModel):
    """A task in a cutover."""

    partition: int
    ready: bool
    """It has reported that in this state of the cutover."""
    at: int | None
    """Where its output was when it reported that."""
    watched_until: int | None
    """Up to where it watches; null while it is not watching."""


class CutoverView(BaseModel):
    """A cutover, as the control log has it."""

    leaving: str
    coming: str
    state: CutoverState
    since: int
    """The version that brought it into this state."""
    began: int
    """The version that began it."""
    who: str
    why: str | None
    """Why it was aborted, or is joining once more."""
    watch: int
    max_behind: int
    max_divergences: int
    tasks: list[CutoverTaskView]

    @classmethod
    def of(cls, cutover: Cutover) -> Self:
        """The document of a cutover; a task that has not reported is not ready."""
        ready = cutover.ready or {}
        tasks = [
            CutoverTaskView(
                partition=task,
                ready=task in ready,
                at=ready.get(task),
                watched_until=cutover.watched_until(task),
            )
            for task in range(cutover.tasks)
        ]
        same = ("leaving", "coming", "state", "since", "began", "who", "why", "watch")
        limits = ("max_behind", "max_divergences")
        return cls(**{name: getattr(cutover, name) for name in (*same, *limits)}, tasks=tasks)
