"""Commit records: the positions that each transaction of a task commits beside its output.

Theory
    A commit record is the last record of each transaction in the task's partition of the state
    topic. It contains how many output records there are up to and with this transaction, up to
    which offset each partition of each replica has been merged, and what else has to be known of
    the replicas. So the last commit record, the output and the replicas' topics are all that a new
    owner needs:

        output        i i a s | i s |            (records, and the transactions' ends)
        state topic        c1 |  c2 |            c2: output_records=6, a[0] next=41, b[0] next=17

    A snapshot is the state as it was at some commit record, and saves reading what was before; the
    commit record contains the places of the latest snapshots.

Invariants
    M1  transaction, output_records and decided never fall from one commit record to the next.
    M2  Everything before `next` of a partition is merged, or needs nothing.
    M3  The output's incarnation never falls. With the first commit record of one all else but the
        counts of M1 begins again: what stands in it is of this incarnation alone.
"""

from typing import Final

import msgspec

from lmerge_service.elements import START
from lmerge_service.errors import StateError

__all__ = (
    "COMMIT_KEY",
    "CommitRecord",
    "Diverged",
    "OutputBeginning",
    "PartitionCheckpoint",
    "ReplicaCheckpoint",
    "SnapshotPlace",
    "StableSample",
    "Statement",
    "TableCheckpoint",
    "chunk_key",
)

COMMIT_KEY: Final = b"commit"

_VERSION, _RESTARTED = 2, 3
"""Of a restarted output it is the second, so that a release that knows of none refuses it."""


def chunk_key(slot: int, number: int) -> bytes:
    """The key of a snapshot's chunk. Slots are used in turn, so that the state topic, which is
    compacted, keeps as many snapshots as there are slots.

    >>> chunk_key(1, 20)
    b'snapshot/1/20'
    """
    return b"snapshot/%d/%d" % (slot, number)


class PartitionCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition of a replica's topic."""

    begins: int
    """The first offset that was merged."""
    next: int
    """The offset to go on from."""
    ignore_stables_before: int = 0
    """Stables at lower offsets do not count: the replica was in quarantine until then."""


class ReplicaCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica that is merged. Only its latest incarnation counts: what an older one contributed
    was merged against another output."""

    topic: str
    partitions: dict[int, PartitionCheckpoint]
    topic_id: str | None = None
    epoch: int = 0
    """How often it was attached or released by decisions."""
    incarnation: int = 0
    joining_at: int = START
    gap_accepted: bool = False
    """It was joined before its time: a person accepted the gap before its joining time."""
    since: int = 0
    """The first transaction that it was merged with; another one when it is merged again from its
    beginning, for whatever reason."""


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """From when on somebody has stated a replica to be correct, and what its topic had then: it
    does not hold for a topic that has less."""

    joining_at: int
    begins: dict[int, int]
    """By partition that the task reads, the offset at which the log began."""
    topic_id: str | None = None


class SnapshotPlace(msgspec.Struct, frozen=True):
    """Where a snapshot is in the state topic, and how to verify that it is whole."""

    slot: int
    transaction: int
    """It is the state as of this transaction's commit record."""
    first: int
    last: int
    """Offsets of its first and last chunk; other records stand between them."""
    chunks: int
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of all chunks, one after the other."""
    taken: int
    """Milliseconds since the epoch."""
    output: int = 0
    """A recovery by it reads the output from this offset on, …"""
    records: int = 0
    """… before which there are so many records of it."""


class Diverged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task has seen of contradictions since a cutover began."""

    cutover: int
    """The version that began it."""
    count: int
    first: str
    """The first of them, in words."""


class OutputBeginning(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the output's incarnation begins in the task's partition; what is before is of former
    ones. The first one begins where the partition does."""

    incarnation: int = 0
    correct_from: int = START
    """It has every event that ends at this time or later."""
    offset: int = 0
    """Its records are from this offset on, …"""
    records: int = 0
    """… before which there are so many of former ones."""

    @property
    def record_version(self) -> int:
        """The version of commit records beside it."""
        return _RESTARTED if self.incarnation else _VERSION


class StableSample(msgspec.Struct, frozen=True, array_like=True):
    """Where the output's stable point was at some time."""

    at: int
    """Milliseconds since the epoch."""
    stable: int
    end: int
    """An offset of the table's partition, before which is all that was committed by then."""


class TableCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The table topic's partition, which is whole with this transaction."""

    kind: str
    """By which rule rows are made (`table.writer.kind_of`)."""
    topic_id: str | None = None
    samples: tuple[StableSample, ...] = ()
    """The oldest first; they show for how long events have been final."""


class CommitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a task stands with one transaction."""

    version: int = msgspec.field(default_factory=lambda: _VERSION)  # always written
    merge: str = ""
    """The name of the merge that committed it; workers of another name are another merge."""
    transaction: int = 0
    output_records: int = 0
    """How many records the output partition contains, this transaction's included."""
    stable: int = START
    """The output's stable point."""
    decided: int = 0
    """The version of the decisions that are carried out."""
    replicas: dict[str, ReplicaCheckpoint] = {}
    quarantined: dict[str, str] = {}
    """Replicas put into quarantine by this task's guards, and why."""
    stated: dict[str, Statement] = {}
    """Of the replicas that were begun by such a statement, also if they are merged no more."""
    diverged: Diverged | None = None
    """Of the latest cutover that it has seen any of."""
    snapshots: tuple[SnapshotPlace, ...] = ()
    """The latest first."""
    output: OutputBeginning = OutputBeginning()
    """The incarnation that this transaction's output is of."""
    table: TableCheckpoint | None = None
    """None: the output has no table, or one that is not whole yet."""

    def encoded(self) -> bytes:
        """The record's value as JSON, which `of` reads."""
        return msgspec.json.encode(self)

    @classmethod
    def of(cls, value: bytes | None) -> "CommitRecord":
        """Reads what `encoded` wrote.

        Raises:
            StateError: it is no commit record, or of another version.
        """
        try:
            version = msgspec.json.decode(value or b"", type=_Version).version
            if version not in (_VERSION, _RESTARTED):
                raise StateError(
                    f"a commit record of version {version}, and versions {_VERSION} and "
                    f"{_RESTARTED} are known here"
                )
            return msgspec.json.decode(value or b"", type=cls)
        except (msgspec.MsgspecError, ValueError) as error:  # ValueError: it is no UTF-8
            raise StateError(f"not a commit record: {error}") from error


class _Version(msgspec.Struct):
    version: int = 1  # which did not write it
