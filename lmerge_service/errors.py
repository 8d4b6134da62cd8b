"""Every error a user can meet, one root; blame is decided by the class.

A programming mistake is a plain `ValueError` or `assert`. What an input does wrong to a running
merge is data, not an exception (`core.breaches`). The rest is here: each states in one line what
is wrong, where, and what to do, and carries the exit code of the command that it ends.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

__all__ = (
    "ConfigurationError",
    "DecisionRefusedError",
    "ElementError",
    "EnvironmentMissingError",
    "FencedError",
    "IllegalStreamError",
    "LMergeError",
    "LostOutputError",
    "ModuleError",
    "OtherMergeError",
    "RefusedError",
    "ReplayError",
    "StateError",
    "TransportError",
    "TrimmedError",
    "UnwritableError",
    "fault_message",
    "single_error",
)


class LMergeError(Exception):
    """The root; its message is the one line that a user reads."""

    exit_code: ClassVar[int] = 1


class ConfigurationError(LMergeError):
    """A topology, option or argument is wrong; found before any I/O on streams."""

    exit_code = 2


class ElementError(LMergeError):
    """A record or line is not an element.

    `reason` is a short stable code for metrics and dead letters, the message explains the rest.
    """

    exit_code = 2

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class IllegalStreamError(LMergeError):
    """A stream breaks its own stable or adjusts what it does not hold; with the place."""

    exit_code = 2


class EnvironmentMissingError(LMergeError):
    """Something that the command needs is not on this machine (an extra, a JRE, a free port)."""

    exit_code = 3


class TransportError(LMergeError):
    """Kafka cannot be reached or refuses; `retriable`: whether trying again can help."""

    exit_code = 3

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


class RefusedError(TransportError):
    """Kafka does not let us in, or not that far; trying again does not help by itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=False)


class TrimmedError(TransportError):
    """What was to be read of a log was deleted while it was read: the log begins later by now."""


class UnwritableError(TransportError):
    """A topic of a transaction cannot be written; the transaction has not taken place."""

    def __init__(
        self, message: str, *, topic: str, why: str, needs_bytes: int | None = None
    ) -> None:
        """`why` is of the topic alone; `needs_bytes` is how large a batch it must take, where that
        is the reason."""
        super().__init__(message, retriable=False)
        self.topic = topic
        self.why = why
        self.needs_bytes = needs_bytes


class StateError(LMergeError):
    """The state that a merge rests on is missing, damaged or of another version."""

    exit_code = 4


class LostOutputError(StateError):
    """What the output's former records were is known no more: there is no state to go on from."""


class ReplayError(StateError):
    """A replay needs what an archive does not hold any more; nothing was emitted. `needed` is from
    where on it needs all, `horizon` up to where something is gone."""

    def __init__(self, what: str, needed: int, horizon: int) -> None:
        super().__init__(
            f"a revision reaches behind the archive: {what} {needed} or later, and some up to "
            f"{horizon} are gone; keep more of it"
        )
        self.needed = needed
        self.horizon = horizon


class ModuleError(LMergeError):
    """A query's own function or module raised, or returned what it may not. A replica ends by it:
    an error that one replica swallows is a disagreement of replicas."""

    exit_code = 4


class FencedError(LMergeError):
    """Another producer has taken this task's output over. A worker asks its consumer group who
    owns the task, and goes on accordingly; a command that has no group ends."""

    exit_code = 5


class OtherMergeError(FencedError):
    """A merge of another name publishes to the same output; the message names it."""


class DecisionRefusedError(LMergeError):
    """A decision about a merge was refused and changed nothing; the message gives the reason."""

    exit_code = 6


@contextmanager
def single_error() -> Iterator[None]:
    """Takes the one error of ours out of the groups that task groups wrap it in.

    A group that holds anything else is a bug's, and passes unchanged.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(LMergeError)
        if ours is None or others is not None:
            raise
        error: BaseException = ours
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def fault_message(fault: Mapping[str, Any]) -> str:
    """Pydantic's message about a fault, for people.

    >>> fault_message({"msg": "Value error, a token is too short"})
    'a token is too short'
    """
    return str(fault["msg"]).removeprefix("Value error, ")
