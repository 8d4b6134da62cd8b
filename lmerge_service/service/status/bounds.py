"""A bounded part of the status document, for HTTP and for metrics.

Theory
    A status has a row of each replica for each task: with 100 replicas and 64 output partitions
    these are 6,400, some 10 MB. Whoever asks for all gets the tasks and the replicas, and the rows
    of both together only where they are few; else they are left out, and counted. One task, or one
    replica, is asked for by name. Metrics do alike: where the rows of a merge would be many, each
    replica is there once, as all tasks see it.

Cost
    A document has O(tasks + replicas + `MOST_ROWS`) rows. To make one of 6,400 rows takes half a
    second of the processor, in which nothing is merged; so it is shown again for 20 times as long.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from lmerge_service.service.status.document import Status, TaskStatus

__all__ = ("MOST_ROWS", "Reused", "as_one_task", "part_of")

MOST_ROWS: Final = 1_000
"""More rows, one for each replica and task, are not shown at once."""


_REST: Final = 20
"""For so many times as long as it took to make, a document is the latest."""


class Reused:
    """The status, made anew where that takes no more than 5 % of the worker's time, however
    often it is asked for."""

    def __init__(
        self,
        make: Callable[[], Status],
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.process_time,
    ) -> None:
        self._make, self._clock, self._cost = make, clock, cost
        self._latest: Status | None = None
        self._until = 0.0

    def __call__(self) -> Status:
        if self._latest is None or self._clock() >= self._until:
            began = self._cost()
            self._latest = self._make()
            self._until = self._clock() + _REST * (self._cost() - began)
        return self._latest


def part_of(
    status: Status,
    partitions: Collection[int] = (),
    replicas: Collection[str] = (),
    *,
    with_rows: bool = True,
) -> Status:
    """The tasks of these output partitions and these replicas, all where none are named, with the
    rows of both if they are wanted and not too many."""
    tasks = [each for each in status.tasks if not partitions or each.partition in partitions]
    if replicas:
        tasks = [
            each.model_copy(update={"replicas": [r for r in each.replicas if r.name in replicas]})
            for each in tasks
        ]
    rows = sum(len(each.replicas) for each in tasks)
    left_out = rows if rows > MOST_ROWS or not with_rows else 0
    if left_out:
        tasks = [each.model_copy(update={"replicas": []}) for each in tasks]
    return status.model_copy(
        update={
            "tasks": tasks,
            "replicas": [r for r in status.replicas if not replicas or r.name in replicas],
            "rows_left_out": left_out,
        }
    )


def as_one_task(status: Status) -> TaskStatus | None:
    """What all tasks that the worker leads, or else follows, have found of the replicas, as if they
    were one; None if there is no task."""
    shown = [each for each in status.tasks if each.role == "leads"] or status.tasks
    if not shown:
        return None
    findings: dict[str, Counter[str]] = {}
    for task in shown:
        for kind, found in task.findings.items():
            findings.setdefault(kind, Counter()).update(found)
    return shown[0].model_copy(
        update={
            "findings": {kind: dict(found) for kind, found in findings.items()},
            "detached": status.detached,
            "output": status.output,
            "replicas": status.replicas,
        }
    )
