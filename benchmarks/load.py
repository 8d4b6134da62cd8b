"""A load for a long time: three replicas as processes, and what their logical stream is.

Who owns what
    The stage owns the processes; a load knows which of them are replicas.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from benchmarks.fleet import TOPICS, Merge, log_line
from benchmarks.replica import SECOND, Part, lives
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage
from lmerge_service.offline.audit import Audited, audit_topic, compare
from lmerge_service.service.status.document import Status
from lmerge_service.workloads.lifetime import final_tdb

__all__ = ("Load", "has_a_task", "has_ended")

_TOPICS: Final = tuple(TOPICS.values())


def has_a_task(status: Status) -> bool:
    """It leads or follows what it is to."""
    return status.state in ("running", "standby")


def has_ended(status: Status) -> bool:
    """The output of every task has."""
    return all(task.output.ended for task in status.tasks)


class Load:
    """On the topics of a merge, from now on for so many seconds."""

    def __init__(self, stage: Stage, merge: Merge, *, rate: float, live: int, seconds: float):
        """`rate`: events a second of each replica; `live`: events live at a time."""
        self.began = time.time()
        self._stage, self._merge = stage, merge
        self._rate, self._live, self._seconds = rate, live, seconds
        self._processes: dict[str, Child] = {}

    async def start(self) -> None:
        """Starts all replicas."""
        self.began = time.time()
        for number in range(len(_TOPICS)):
            await self._start(self._part(number))

    async def silence(self, number: int) -> str:
        """kill -9; gives the replica's topic."""
        await self._processes.pop(f"{_TOPICS[number]}-0.log").kill()
        return _TOPICS[number]

    async def start_over(self, number: int) -> str:
        """Another incarnation, which knows nothing of what has ended before; gives the topic."""
        now = int((time.time() - self.began) * SECOND)
        part = msgspec.structs.replace(self._part(number), incarnation=1, joining_at=now)
        await self._start(part)
        return part.topic

    def check(self) -> None:
        """Raises LMergeError if a replica has ended that should not have."""
        for replica in self._processes.values():
            replica.check()

    async def audit(self, report: Callable[[str], None] = print) -> bool:
        """Whether the output is legal, complete, and equal to the logical stream; reports it."""
        log_line("reading the output back")
        found = await audit_topic(self._merge.connection, self._merge.output, WireDecoder())
        reference = final_tdb(list(lives(self._part(0))))
        verdict = compare(Audited("the logical stream", reference), found)
        for difference in verdict.differences[:5]:
            report(f"  {difference}")
        good = verdict.equivalent and found.complete
        text = "equivalent to the logical stream" if good else "NOT equivalent"
        report(f"audit: {len(found.tdb):,} events, {text}")
        return good

    def _part(self, number: int) -> Part:
        return Part(
            bootstrap=self._stage.bootstrap,
            topic=_TOPICS[number],
            number=number,
            events=int(self._rate * self._seconds),
            rate=self._rate,
            live=self._live,
            began=self.began,
        )

    async def _start(self, part: Part) -> None:
        log = f"{part.topic}-{part.incarnation}.log"
        text = msgspec.json.encode(part).decode()
        self._processes[log] = await self._stage.python("benchmarks.replica", text, log=log)
