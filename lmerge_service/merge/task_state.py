"""The state of one merge task: its operator and replicas, and its positions in output and inputs.

Theory
    The state is a function of prefixes: of the records of the output partition and of the replicas'
    partitions up to a commit record. So there are two ways to the state at a commit record: from
    nothing, and from a snapshot, which is the state at an earlier one; the way on is the same
    (`recovery`).

Invariants
    T1  Between two batches: `commit_record` covers exactly what the operator has processed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.core import LMerge, Restoring, lmerge
from lmerge_service.core.engine import EngineSetting
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.formats.repeats import Numbers
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.merge.commit_record import (
    CommitRecord,
    Diverged,
    OutputBeginning,
    SnapshotPlace,
    Statement,
    TableCheckpoint,
)
from lmerge_service.merge.counting import ReplicaTally
from lmerge_service.merge.replicas import Replicas
from lmerge_service.merge.snapshots.frames import FrameReader, framed

__all__ = ("OpenedState", "RestoringState", "SnapshotHead", "TaskState", "wire_decoder")

_VERSION: Final = 1
_FEW_EVENTS: Final = 1_000
"""So many live events are written in some milliseconds, which is what a fork takes at the least."""


class SnapshotHead(msgspec.Struct, frozen=True):
    """The first frame of a snapshot."""

    version: int
    of: str
    """Whose state it is, and under what rules (`TaskState.fingerprint`)."""
    commit: bytes
    """The commit record, encoded."""
    output: int
    """An offset of the output, from which on the snapshot does not cover it …"""
    counted: int
    """… and how many records are before it. Of those behind it the snapshot covers as many as the
    commit record counts in addition."""
    widths: dict[str, int]
    """Of each replica, the partitions of its topic."""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """A further frame: a part of the operator, or (with a name) of what a replica's step
    remembers."""

    data: bytes
    replica: str = ""
    kind: str = ""
    partition: int = 0


def wire_decoder(topology: Topology) -> WireDecoder:
    """A decoder of records in wire format, as the topology has them."""
    return WireDecoder(
        nfc=topology.nfc,
        drop_nulls=topology.drop_nulls,
        max_record_bytes=topology.limits.max_record_bytes,
        max_depth=topology.limits.max_nesting,
        native=topology.engine_choice.is_native,
    )


class TaskState:
    """One task's state; see the module's text."""

    def __init__(
        self,
        topology: Topology,
        partition: int,
        *,
        tallies: dict[str, ReplicaTally],
        clock: Callable[[], float],
    ):
        """`topology` is as it was decided; `tallies` of the replicas outlive this."""
        self.topology = topology
        self.partition = partition
        self.policy = topology.policy.policy()
        self.router = Router(topology.output.partitions, topology.key)
        self.stated: dict[str, Statement] = {}
        """From when on replicas were stated to be correct, as they were begun."""
        self.begun = OutputBeginning()
        """The output's incarnation that this is the state of."""
        self._tallies = tallies
        self._clock = clock
        self.engine = topology.engine_choice
        """What merges."""
        self.use(lmerge(topology.resolved_case, self.policy, engine=self.engine.engine.value))
        self.transaction = 0
        self.output_records = 0
        """Records of the output partition that the operator knows."""
        self.output, self.counted = 0, 0
        """An offset of the output, and how many records are before it: of those behind it the
        operator knows the first `output_records - counted`."""
        self.written = Numbers()
        """The records of the output that were read in this process, by their number."""
        self.decided = 0
        self.quarantined: dict[str, str] = {}
        """By guards of this task; a decision for all tasks follows."""
        self.diverged: Diverged | None = None
        self.snapshots: tuple[SnapshotPlace, ...] = ()
        self.table: TableCheckpoint | None = None
        """Of the output's table, if it has one that is whole."""
        self.restored_from: int | None = None
        """The transaction whose snapshot this came from; None if from nothing."""
        self.missed: list[Element] = []
        """Elements that the output should contain and does not, though the operator counts them as
        emitted: the leading task emits them, and no task can follow from here."""

    def begin(self, output: OutputBeginning) -> None:
        """An empty state of another incarnation of the output, none of which is known yet."""
        self.begun = output
        self.output, self.counted = output.offset, output.records
        self.output_records = output.records
        self.use(self.merge)  # what replicas count as joined goes by the incarnation

    def use(self, merge: LMerge) -> None:
        """Begins with an operator, and no replicas yet."""
        self.merge = merge
        self.replicas = Replicas(
            merge,
            wire_decoder(self.topology),
            partition=self.partition,
            router=self.router,
            tallies=self._tallies,
            clock=self._clock,
            distrusted=self._distrust,
            correct_from=self.begun.correct_from,
            stated=self.stated,
        )

    def _distrust(self, name: str, why: str) -> None:
        self.quarantined[name] = why

    def know(self, stated: Mapping[str, Statement]) -> None:
        """Takes over what a commit record has of what was stated about replicas."""
        self.stated.clear()
        self.stated.update(stated)

    def commit_record(self) -> CommitRecord:
        """The commit record to write beside everything emitted so far."""
        return CommitRecord(
            version=self.begun.record_version,
            merge=self.topology.name,
            transaction=self.transaction,
            output_records=self.output_records,
            stable=self.merge.max_stable,
            decided=self.decided,
            # In the order in which they were attached, which decides ties.
            replicas={name: self.replicas.states[name].standing for name in self.merge.inputs},
            quarantined=self.quarantined,
            stated=self.stated,
            diverged=self.diverged,
            snapshots=self.snapshots,
            output=self.begun,
            table=self.table,
        )

    # --- snapshots ------------------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        """A snapshot takes a moment: few events are live, and no replica has a state beside them
        that may be large (a normaliser's, a dialect's)."""
        merged = self.replicas.merged.values()
        has_few = len(self.merge) <= _FEW_EVENTS
        return has_few and not any(each.replica.is_known_by_partition for each in merged)

    def fingerprint(self) -> str:
        """Two states are of one kind iff these are the same."""
        topology = self.topology
        kind = {
            "output": topology.output.topic,
            "partition": self.partition,
            "case": str(topology.resolved_case),
            "policy": str(self.policy),
            "nfc": topology.nfc,
            "drop_nulls": topology.drop_nulls,
            "key": topology.key,
            "partitions": topology.output.partitions,
        }
        return msgspec.json.encode(kind).decode()

    def begin_with_output(self, opened: "OpenedState") -> None:
        """Takes what a snapshot has of the output, whatever its case and policy, into a state that
        is empty: the replicas are merged anew against it.

        Raises:
            StateError: it is of another merge, or one of the cases keeps no events.
        """
        before, head, commit = opened.operator(), opened.head, opened.commit
        if _output_kind(head.of) != _output_kind(self.fingerprint()):
            raise StateError(f"the snapshot is of {head.of}, and not of {self.fingerprint()}")
        if commit.output != self.begun:
            raise StateError(
                f"the snapshot is of the output's incarnation {commit.output.incarnation}, and not "
                f"of {self.begun.incarnation}"
            )
        events = before.live_output()
        if events is None or self.merge.live_output() is None:
            raise StateError("in case R0, R1 or R2 a state does not hold the events that are live")
        self.merge.replay_output([Insert(*event) for event in events])
        if before.max_stable > START:
            self.merge.replay_output([Stable(before.max_stable)])
        self.transaction, self.output_records = commit.transaction, commit.output_records
        self.output, self.counted = head.output, head.counted

    def stream(self, commit: CommitRecord) -> Iterator[bytes]:
        """The bytes of a snapshot at this commit record, the latest: frames, each behind its
        length, and an empty one as the last. Nothing may be merged meanwhile."""
        return framed(self._frames(commit))

    def _frames(self, commit: CommitRecord) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(
            SnapshotHead(
                version=_VERSION,
                of=self.fingerprint(),
                commit=commit.encoded(),
                output=self.output,
                counted=self.counted,
                widths={name: state.width for name, state in self.replicas.merged.items()},
            )
        )
        for name, state in self.replicas.merged.items():
            assert state.step is not None
            for kind, partition, data in state.step.parts():
                yield msgspec.msgpack.encode(_Part(data, name, kind, partition))
        for data in self.merge.parts():
            yield msgspec.msgpack.encode(_Part(data))


def _output_kind(fingerprint: str) -> dict[str, Any]:
    """What two states have in common whose outputs are of one kind."""
    kind: dict[str, Any] = msgspec.json.decode(fingerprint)
    return {name: each for name, each in kind.items() if name not in ("case", "policy")}


class OpenedState:
    """Takes the chunks of a snapshot, in order, and returns its content, of whatever task it is."""

    def __init__(self, engine: EngineSetting = "python") -> None:
        self._head: SnapshotHead | None = None
        self._remembered: list[_Part] = []
        self._operator = Restoring(engine)
        self._frames = FrameReader()

    def take(self, chunk: bytes) -> None:
        """Takes the next chunk of the stream.

        Raises:
            StateError: it is damaged, of another version, or of another merge.
        """
        for frame in self._frames.take(chunk):
            self._frame(frame)

    def _frame(self, frame: bytes) -> None:
        try:
            if self._head is None:
                self._head = msgspec.msgpack.decode(frame, type=SnapshotHead)
                self._check(self._head)
                return
            part = msgspec.msgpack.decode(frame, type=_Part)
        except (msgspec.MsgspecError, ValueError) as error:  # ValueError: it is no UTF-8
            raise StateError(f"the snapshot is damaged: {error}") from error
        if part.replica:
            self._remembered.append(part)
        else:
            self._operator.add(part.data)

    def _check(self, head: SnapshotHead) -> None:
        if head.version != _VERSION:
            raise StateError(f"the snapshot is of version {head.version}, this is {_VERSION}")

    @property
    def head(self) -> SnapshotHead:
        """How it begins, when all has been taken.

        Raises:
            StateError: chunks are missing.
        """
        if self._head is None or not self._frames.is_whole:
            raise StateError("the snapshot is damaged: it has no end")
        return self._head

    @property
    def commit(self) -> CommitRecord:
        """The commit record at which the state was as it is here."""
        return CommitRecord.of(self.head.commit)

    def operator(self) -> LMerge:
        """The operator, when all has been taken; once.

        Raises:
            StateError: chunks are missing or do not fit together.
        """
        assert self.head  # all has been taken
        return self._operator.finish()


class RestoringState(OpenedState):
    """The same of a snapshot of ours, and gives the state that it is."""

    def __init__(self, fresh: TaskState):
        """`fresh` is an empty state of the kind that is expected."""
        super().__init__(fresh.engine.engine.value)
        self._state = fresh

    def _check(self, head: SnapshotHead) -> None:
        super()._check(head)
        if head.of != (mine := self._state.fingerprint()):
            raise StateError(f"the snapshot is of {head.of}, and not of {mine}")

    def finished(self, replicas: Mapping[str, Replica]) -> TaskState:
        """The state; `replicas` are the ones that may be merged now, by name. Those that are not
        among them any more are detached.

        Raises:
            StateError: chunks are missing or do not fit together.
        """
        state, merge, head, commit = self._state, self.operator(), self.head, self.commit
        state.begun = commit.output
        state.use(merge)
        state.transaction, state.output_records, state.decided = (
            commit.transaction,
            commit.output_records,
            commit.decided,
        )
        state.output, state.counted = head.output, head.counted
        state.quarantined, state.diverged = dict(commit.quarantined), commit.diverged
        state.know(commit.stated)
        for name, standing in commit.replicas.items():
            if name in replicas and replicas[name].topic == standing.topic:
                state.replicas.expect(replicas[name], epoch=standing.epoch)
                step = state.replicas.adopt(name, standing, head.widths[name])
                for part in self._remembered:
                    if part.replica == name:
                        step.restore(part.kind, part.partition, part.data)
            else:
                state.merge.detach(name)
        return state
