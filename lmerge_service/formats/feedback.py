"""The records of a feedback topic: up to where a replica's events do not matter any more.

Theory
    The topic `{output}.feedback` is compacted; the key is replica and task, so that the latest
    record of each task for each replica stays:

    >>> record = FeedbackRecord("a", task=0, tasks=2, point=700, stable=700)
    >>> record.key()
    b'["a",0]'
    >>> record.value()
    b'{"replica":"a","task":0,"tasks":2,"point":700,"stable":700,"output_id":null}'
    >>> FeedbackRecord.of(record.value()) == record
    True

    Times are integers here, also the end of the stream: 9223372036854775807.
"""

import msgspec

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ElementError

__all__ = ("FeedbackRecord", "feedback_topic")


def feedback_topic(output: str) -> str:
    """The name of the feedback topic that belongs to an output topic."""
    return f"{output}.feedback"


class FeedbackRecord(msgspec.Struct, frozen=True):
    """The feedback of one task for one replica."""

    replica: str
    task: int
    """The output partition whose task published it."""
    tasks: int
    """How many there are: the replica's point is the lowest of all of theirs."""
    point: int
    """No event with a final ve below it matters to this task any more."""
    stable: int
    """The stable point of the task's output, as committed."""
    output_id: str | None = None
    """Which topic the output is: one that was recreated has another id, and feedback about the old
    one does not hold for it."""

    def key(self) -> bytes:
        """The record's key: a replica and a task have one record each in the compacted topic."""
        return msgspec.json.encode((self.replica, self.task))

    def value(self) -> bytes:
        """The record's value: JSON, which `of` reads."""
        return msgspec.json.encode(self)

    @classmethod
    def of(cls, value: bytes) -> "FeedbackRecord":
        """Reads what `value` wrote.

        Raises:
            ElementError: it is something else.
        """
        try:
            record = msgspec.json.decode(value, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ElementError("not_feedback", f"not a feedback record: {error}") from None
        if not (0 <= record.task < record.tasks and START <= record.point <= INFINITY):
            raise ElementError("not_feedback", f"not a feedback record: {record}")
        return record
