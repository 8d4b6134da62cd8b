"""Retention: what of the output may be deleted, and for how long a recovery stays possible.

Theory
    A recovery needs a snapshot, and the output from the snapshot's offset on. There are two
    snapshots, since one may turn out to be damaged; so what is before the older one's offset is
    needed for readers only:

        begins        kept for readers     older snapshot      latest       end
          │··················│····················│···············│···········│
          └─ deleted once older than `keep` ──────┘ never deleted by the worker

    Where Kafka deletes by itself (`retention.ms`, `retention.bytes`), nothing stops it at the older
    snapshot. Snapshots follow each other, so that it does not get there while workers run; if they
    are down, it does after a time: the *margin*. It must be longer than the longest outage.

    Several workers may delete at the same time, one of them by what it knew before it was fenced:
    offsets of snapshots only rise, so that it deletes too little, never too much.

Invariants
    R1  Nothing is deleted from the older snapshot's offset on, nor, while there are not two, of the
        output's incarnation.
    R2  Nothing is deleted that one of the `readers` has not committed to have read.

What happens on a crash at each await
    Nothing: what is deleted is not needed, and the next look deletes the rest.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from lmerge_service.config.topology import Topology
from lmerge_service.errors import TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.commit_record import SnapshotPlace
from lmerge_service.text import span

__all__ = ("Covered", "KeptOutput", "RetainingTask", "Retention")

log = structlog.get_logger()

_LOOK_SECONDS: Final = (0.5, 30.0)
"""Between two looks; a short `keep` is looked after more often."""
_RECORD_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Covered:
    """What the snapshots of a task cover of its output, as of its last commit."""

    snapshots: tuple[SnapshotPlace, ...]
    """The latest first."""
    published: int
    """How many records the task has published."""
    begins: int = 0
    """The offset where the output's incarnation begins: former ones are read by no recovery."""

    @property
    def needed(self) -> int:
        """The offset from which on a recovery by the older of two snapshots reads the output; all
        of its incarnation while there are not two."""
        return self.snapshots[1].output if len(self.snapshots) > 1 else self.begins

    @property
    def is_whole(self) -> bool:
        """Both cover all that was published, so that nothing of the log is needed."""
        return len(self.snapshots) > 1 and self.snapshots[1].records >= self.published

    def is_short(self, begins: int) -> bool:
        """Part of what the older snapshot needs is gone, where the log begins at an offset."""
        return begins > self.needed > 0 and not self.is_whole


class RetainingTask(Protocol):
    """A task that is led here."""

    @property
    def covered(self) -> Covered | None:
        """None before its first commit."""

    def hasten_snapshot(self) -> None:
        """Has the next snapshot taken soon."""


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """What there is of one partition of the output, and what for."""

    begins: int
    """The first offset that there is, when Kafka was asked last."""
    needed: int
    """See `Covered`."""
    held_by: str | None
    """What keeps older records than `keep` from being deleted; None: nothing does."""
    margin: float | None
    """For how many seconds all workers may be down until the older snapshot is of no use; None: for
    ever."""
    is_short: bool
    """Part of what the older snapshot needs is gone."""


class Retention:
    """Of one worker; `run` it while its tasks run."""

    def __init__(
        self,
        cluster: Cluster,
        topology: Topology,
        leading: Callable[[], Mapping[int, RetainingTask]],
        *,
        unix_ns: Callable[[], int],
    ) -> None:
        """`leading` returns, by partition, the tasks that are led here."""
        self.kept: dict[int, KeptOutput] = {}
        """By partition, of the tasks that are led here."""
        self.deleted: Counter[int] = Counter()
        """By partition, how many offsets this worker has deleted."""
        self.fault: str | None = None
        """Why nothing can be deleted, or Kafka not be asked."""
        self._cluster = cluster
        self._topology = topology
        self._leading = leading
        self._unix_ns = unix_ns
        least, most = _LOOK_SECONDS
        keep = topology.output.keep
        self._seconds = most if keep is None else max(least, min(most, keep / 10))

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await self._pause()
            try:
                async with AsyncExitStack() as stack:
                    topics = await stack.enter_async_context(self._cluster.topics())
                    source = self._cluster.source(max_record_bytes=_RECORD_BYTES)
                    await stack.enter_async_context(source)
                    while True:
                        await self.look(topics, source)
                        await self._pause()
            except TransportError as error:
                if self.fault != str(error):
                    log.warning("the output cannot be trimmed", error=str(error))
                self.fault = str(error)

    async def _pause(self) -> None:
        """Until the next look; the first one at a task that is led is soon."""
        for _ in range(math.ceil(self._seconds)):
            await asyncio.sleep(min(1.0, self._seconds))
            if not self.kept.keys() >= self._leading().keys():
                return

    async def look(self, topics: Topics, source: Source) -> None:
        """Looks once, and deletes what may go.

        Raises:
            TransportError: Kafka does not answer, or refuses.
        """
        leading, output = self._leading(), self._topology.output
        covered = {p: each for p, task in leading.items() if (each := task.covered) is not None}
        places = [TopicPartition(output.topic, partition) for partition in covered]
        if not places:
            self.kept, self.fault = {}, None
            return
        begins = await source.beginnings(places)
        holders = await self._trim(topics, source, covered, begins)
        lifetime = await topics.config(output.topic, "retention.ms")
        self.kept = {
            tp.partition: self._kept(
                covered[tp.partition], begins[tp], holders.get(tp), int(lifetime or -1)
            )
            for tp in places
        }
        self.fault = None
        for partition, kept in self.kept.items():
            if kept.is_short:
                leading[partition].hasten_snapshot()

    def _kept(
        self, covered: Covered, begins: int, held_by: str | None, lifetime: int
    ) -> KeptOutput:
        needed, margin, is_whole = covered.needed, None, covered.is_whole
        if lifetime >= 0 and len(covered.snapshots) > 1 and not is_whole:
            age = self._unix_ns() // 1_000_000 - covered.snapshots[1].taken
            margin = max(0.0, (lifetime - age) / 1_000)
        return KeptOutput(begins, needed, held_by, margin, covered.is_short(begins))

    async def _trim(
        self,
        topics: Topics,
        source: Source,
        covered: Mapping[int, Covered],
        begins: dict[TopicPartition, int],
    ) -> dict[TopicPartition, str]:
        """Deletes what may go, and notes it in `begins`; returns what keeps the rest that is old
        enough."""
        keep = self._topology.output.keep
        if keep is None:
            return {}
        now = self._unix_ns() // 1_000_000
        old = await source.since(list(begins), now - keep * 1_000)
        bounds: dict[TopicPartition, tuple[int, str | None]] = {
            tp: (old[tp], None) for tp in begins
        }
        for tp in begins:
            by = None if (of := covered[tp.partition]).is_whole else "the older snapshot"
            bounds[tp] = _lower(bounds[tp], of.needed, by)
        for group in self._topology.output.readers:
            read = await topics.committed(group, list(begins))
            for tp in begins:
                bounds[tp] = _lower(bounds[tp], read.get(tp, 0), f"reader {group}")
        before = {tp: at for tp, (at, _) in bounds.items() if at > begins[tp]}
        if before:
            await topics.trim(before)
        for tp, at in before.items():
            self.deleted[tp.partition] += at - begins[tp]
            log.info("output trimmed", task=tp.partition, before=at, offsets=at - begins[tp])
            begins[tp] = at
        return {tp: by for tp, (_, by) in bounds.items() if by is not None}

    def too_short(self) -> list[str]:
        """What is wrong with how long the output is kept, in words; nothing as a rule."""
        output, found = self._topology.output, []
        if self.fault is not None:
            what = "looked at" if output.keep is None else "trimmed"
            found.append(f"the output cannot be {what}: {self.fault}")
        leading = self._leading()
        for partition, kept in sorted(self.kept.items()):
            if partition not in leading:
                continue
            name = f"{output.topic}-{partition}"
            if kept.is_short:
                found.append(
                    f"{name} begins at offset {kept.begins}, and the older of its two snapshots "
                    f"needs it from {kept.needed} on: it has been deleted too early; raise the "
                    "topic's retention.ms or retention.bytes"
                )
            elif kept.margin is not None and kept.margin < output.longest_outage:
                found.append(
                    f"once workers are down for more than {_span(kept.margin)}, {name} has lost "
                    f"what the older snapshot needs, and output.longest_outage is "
                    f"{_span(output.longest_outage)}: raise the topic's retention.ms"
                )
        return found


def _lower(bound: tuple[int, str | None], offset: int, by: str | None) -> tuple[int, str | None]:
    return bound if bound[0] <= offset else (offset, by)


def _span(seconds: float) -> str:
    return span(round(seconds), "s")
