"""Recovery of a task's state: from a snapshot or from nothing, then from commit to commit.

Theory
    From one commit record to a later one, in this order:

        1. the output that was committed meanwhile is replayed,
        2. replicas that came, left or started over are attached, detached, attached again,
        3. the replicas' records, up to where they were merged, are replayed.

    That is the same after a crash, where the last commit record is the last one ever, and for a
    standby, which advances from commit record to commit record while the active task writes them.
    A snapshot that cannot be used for whatever reason is skipped: the one before, or the beginning,
    does as well.

    A standby that has not followed for long begins with the latest snapshot again, where that is
    less work than what it has missed.

    From nothing is no way once the output has lost its beginning. Then a snapshot of another case
    or policy still has what the output held, so that the replicas are merged anew against it. If
    there is none, it can only be decided that the output starts over (`output_restart`): from then
    on the beginning is where its new incarnation begins, and nothing of former ones is read.

What is missing
    If a replica cannot be followed (its topic is gone, recreated, or begins too late) it is not
    merged any more, and the others go on. Where a state that is older than the latest snapshot
    lacks records of a replica, that snapshot may have them merged, so that it is tried first. If
    the output cannot be followed there is no state.

Who owns what
    The `Source` is borrowed; its positions are undefined afterwards.
"""

import asyncio
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from typing import Protocol

import structlog
from msgspec.structs import replace

from lmerge_service.config.topology import Replica
from lmerge_service.core import Case, LMerge, lmerge
from lmerge_service.errors import ElementError, FencedError, LostOutputError, StateError
from lmerge_service.formats.headers import incarnation_of, seq_of
from lmerge_service.formats.payload import DEEPEST
from lmerge_service.formats.repeats import content_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.lookups import Lookups
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.sightings import is_another
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import TopicInfo, Topics
from lmerge_service.merge.commit_record import (
    CommitRecord,
    OutputBeginning,
    ReplicaCheckpoint,
    SnapshotPlace,
)
from lmerge_service.merge.decisions.ledger import OutputIncarnation
from lmerge_service.merge.replicas import ReplicaState
from lmerge_service.merge.snapshots.reading import read_commit, read_snapshot
from lmerge_service.merge.task_state import OpenedState, RestoringState, TaskState

__all__ = ("JointReplay", "Recovery")

log = structlog.get_logger()

_LATE_TRIES, _LATE_PAUSE = 300, 0.05
"""How often, and at which interval, a follower looks for output that a commit record counts."""
_OPEN_SECONDS, _OPEN_PAUSE = 5.0, 0.1
"""How long, and how often, a leader looks whether a transaction ends that hides its output."""
_FEW_RECORDS, _RECORD_BYTES = 20_000, 64
"""To follow a record takes about as long as to restore so many bytes of a snapshot; so few records
are always followed."""
_LOOK_SECONDS = 2.0
"""While nothing is committed, the replicas' topics are looked for this often."""


class JointReplay(Protocol):
    """Replays input for several tasks at once (`service.reading.shared_replay`)."""

    def alone(
        self, state: TaskState, upto: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """What of a state is to be replayed alone, and up to where."""

    async def advance(self, state: TaskState) -> None:
        """Replays the rest, as far as it goes now."""

    def part(self, state: TaskState, name: str) -> None:
        """A replica of a state is about to change otherwise than by replay."""


class Recovery:
    """Advances the state of one task to its last commit record, again and again."""

    def __init__(
        self,
        source: Source,
        topics: Topics | Lookups,
        *,
        output: TopicPartition,
        state: TopicPartition,
        fresh: Callable[[], TaskState],
        replicas: Callable[[], Mapping[str, Replica]],
        joint: JointReplay | None = None,
        lookups: Lookups | None = None,
    ):
        """`fresh` makes an empty state; `replicas` gives those that may be merged, by name. With
        `joint`, a state that is not fenced may advance together with others; `lookups` asks for
        several tasks at once where their commit records end."""
        self._joint, self._lookups = joint, lookups
        self._source = source
        self._topics = topics
        self._output = output
        self._state_topic = state
        self._fresh = fresh
        self._replicas = replicas
        self._seen: tuple[int, CommitRecord | None] = (-1, None)
        """Where the commit records ended, and the last one."""
        self._followed: tuple[weakref.ref[TaskState], CommitRecord, float] | None = None
        """The state that was advanced last, to which commit record, and when."""
        # What we wrote is read as it is, whatever limits the topology has now.
        self._decoder = WireDecoder(max_record_bytes=1 << 30, max_depth=DEEPEST)

    async def last_commit(self, *, fenced: bool) -> CommitRecord | None:
        """The task's last commit record. `fenced`: no producer from before can write one any more;
        then nothing that is open may hide one.

        Raises:
            StateError: it is of another version.
            FencedError: a transaction is open, see `_closed_end`.
        """
        tp = self._state_topic
        asks = self._lookups or self._source
        ends = {tp: await self._closed_end(tp)} if fenced else await asks.ends([tp])
        if not fenced and ends[tp] == self._seen[0]:
            return self._seen[1]
        commit = await read_commit(self._source, tp, ends[tp])
        self._seen = (ends[tp], commit)
        return commit

    async def _closed_end(self, tp: TopicPartition) -> int:
        """The high watermark, before which nothing is open: an open transaction hides what was
        committed behind it.

        Who fences ends the transaction of the owner before. So one that stays open is of a producer
        that has fenced us since, and may stand still for as long as it may be open; or of one that
        is none of ours.

        Raises:
            FencedError: one is open for some seconds; to fence again ends it, if it is ours.
        """
        high = (await self._source.high_watermarks([tp]))[tp]
        until = asyncio.get_running_loop().time() + _OPEN_SECONDS
        while (end := (await self._source.ends([tp]))[tp]) < high:
            if asyncio.get_running_loop().time() >= until:
                raise FencedError(
                    f"{tp.topic}-{tp.partition}: a transaction is open from offset {end} on: "
                    "another worker has taken the task over, or something else writes there"
                )
            await asyncio.sleep(_OPEN_PAUSE)
        return high

    async def recover(self, commit: CommitRecord | None, *, fenced: bool) -> TaskState:
        """The state at a commit record, in the shortest way that there is.

        Raises:
            LostOutputError: the output lacks its beginning, and no snapshot has what it held.
            StateError: the output is not what this task has written.
            TransportError: Kafka went away.
        """
        places = () if commit is None else commit.snapshots
        unusable = set[SnapshotPlace]()
        for place in places:
            assert commit is not None
            found = await self._from_snapshot(place, commit, fenced=fenced)
            if found is not None:
                return _beside(found, unusable)
            unusable.add(place)
        state = self._begun(commit)
        try:
            await self.follow(state, commit, fenced=fenced)
        except StateError as error:  # who led before may have deleted the beginning meanwhile
            begins = (await self._source.beginnings([self._output]))[self._output]
            if begins <= state.begun.offset:
                raise
            state = await self._merged_anew(commit or CommitRecord(), begins, error, fenced=fenced)
        return _beside(state, unusable)

    def _begun(self, commit: CommitRecord | None) -> TaskState:
        """An empty state of the incarnation of the output that a commit record is of."""
        state = self._fresh()
        if commit is not None:
            state.begin(commit.output)
        return state

    async def started_over(
        self, commit: CommitRecord | None, output: OutputIncarnation, *, fenced: bool
    ) -> TaskState:
        """The state with which a new incarnation of the output begins behind the last commit
        record: nothing is merged, and of what is there nothing counts.

        Raises:
            TransportError: Kafka went away.
        """
        tp, last = self._output, commit or CommitRecord()
        end = await self._closed_end(tp) if fenced else (await self._source.ends([tp]))[tp]
        # Without a commit record nobody has counted what there was: not more than offsets.
        records = end if commit is None else last.output_records
        state = self._fresh()
        state.begin(OutputBeginning(output.number, output.correct_from, end, records))
        state.transaction, state.decided = last.transaction, output.since
        return state

    async def _merged_anew(
        self, commit: CommitRecord, begins: int, cause: StateError, *, fenced: bool
    ) -> TaskState:
        """The state at a commit record, from what a snapshot has of the output and all that the
        replicas have; `cause` is why there is no other way."""
        for place in commit.snapshots:
            try:
                opened, state = OpenedState(), self._begun(commit)
                await read_snapshot(self._source, self._state_topic, place, opened)
                state.begin_with_output(opened)
                await self.follow(state, commit, fenced=fenced)
            except StateError as error:
                cause = error
                log.warning(
                    "output of a snapshot not used", transaction=place.transaction, error=str(error)
                )
            else:
                log.info("merged anew", output_of=place.transaction)
                return state
        tp = self._output
        raise LostOutputError(
            f"{tp.topic}-{tp.partition} begins at offset {begins}, and none of "
            f"{len(commit.snapshots)} snapshots can be used ({cause}): what it held before is "
            "lost; `lmerge restart-output TOPOLOGY.yaml` shows from when on it can go on, as a new "
            "incarnation"
        ) from cause

    async def advanced(
        self, state: TaskState, commit: CommitRecord | None, *, fenced: bool
    ) -> TaskState:
        """The state at a later commit record than `state` is, which is undefined afterwards if it
        is another.

        Raises:
            StateError: see `follow`, and a replica has lost what is missing in a state that is
                older than the latest snapshot; `recover` may still find a way.
        """
        if commit is not None:
            _require_incarnation(state, commit)
        if commit is not None and _prefers_snapshot(state, commit):
            newest = await self._from_snapshot(commit.snapshots[0], commit, fenced=fenced)
            if newest is not None:
                return newest
        whole = commit is not None and _newer_snapshot(state, commit) is not None
        joint = None if fenced else self._joint
        await self.follow(state, commit, fenced=fenced, joint=joint, whole=whole)
        return state

    async def _from_snapshot(
        self, place: SnapshotPlace, commit: CommitRecord, *, fenced: bool
    ) -> TaskState | None:
        """The state at a commit record, by way of a snapshot; None if that cannot be used."""
        try:
            state = await self.restored(place)
            _require_incarnation(state, commit)
            await self.follow(state, commit, fenced=fenced)
        except StateError as error:
            log.warning("snapshot not used", transaction=place.transaction, error=str(error))
            return None
        return state

    async def output_at(self, commit: CommitRecord) -> LMerge:
        """An operator that has processed nothing but the output up to a commit record, all of which
        is read; it keeps what may still change, whatever the case keeps.

        Raises:
            StateError: the output does not contain the records that the commit record counts.
            TransportError: Kafka went away.
        """
        state = self._begun(commit)
        state.use(lmerge(Case.R4))
        await self._load_output(state, commit, fenced=False)
        return state.merge

    async def restored(self, place: SnapshotPlace) -> TaskState:
        """The state as a snapshot has it.

        Raises:
            StateError: it is damaged, of another version, or of another merge.
        """
        restoring = RestoringState(self._fresh())
        await read_snapshot(self._source, self._state_topic, place, restoring)
        state = restoring.finished(self._replicas())
        state.restored_from = place.transaction
        return state

    async def follow(
        self,
        state: TaskState,
        commit: CommitRecord | None,
        *,
        fenced: bool,
        joint: JointReplay | None = None,
        whole: bool = False,
    ) -> None:
        """Advances to a later commit record (None: there is none, but there may be output). With
        `joint`, some of the input may be left for the next time. A replica that has lost records
        which are to be replayed is excluded, unless the state has to be `whole`.

        Raises:
            StateError: the output does not contain the records that the commit record counts, or
                the state is not whole; it is undefined.
        """
        await self._load_output(state, commit, fenced=fenced)
        if commit is None or (not fenced and self._has_followed(state, commit)):
            return
        merging = await self._reconcile(state, commit.replicas, joint)
        await self._replay_input(state, merging, joint, whole=whole)
        state.transaction, state.decided = commit.transaction, commit.decided
        state.quarantined, state.snapshots = dict(commit.quarantined), commit.snapshots
        state.diverged, state.table = commit.diverged, commit.table
        state.know(commit.stated)
        state.merge.breaches()  # they were reported before
        self._followed = weakref.ref(state), commit, asyncio.get_running_loop().time()

    def _has_followed(self, state: TaskState, commit: CommitRecord) -> bool:
        """The state is that of the commit record, and the replicas were looked up a moment ago."""
        if self._followed is None:
            return False
        known, at, when = self._followed
        recent = asyncio.get_running_loop().time() - when < _LOOK_SECONDS
        return recent and known() is state and at is commit

    # --- the output -----------------------------------------------------------------------------

    async def _load_output(
        self, state: TaskState, commit: CommitRecord | None, *, fenced: bool
    ) -> None:
        tp, upto = self._output, None if commit is None else commit.output_records
        if state.counted == upto and not fenced:
            return
        begins = (await self._source.beginnings([tp]))[tp]
        if begins > state.output:
            if upto is None or state.counted < upto:
                raise StateError(
                    f"{tp.topic}-{tp.partition} begins at offset {begins}, and what is needed of "
                    f"it begins at {state.output}: it was deleted"
                )
            state.output = begins  # all that was published is known
        tries = 0
        while not await self._load_backlog(state, upto, fenced=fenced):
            tries += 1
            if fenced or tries > _LATE_TRIES:
                raise StateError(
                    f"{tp.topic}-{tp.partition} has {state.counted} records, and {upto} were "
                    "written: some were deleted; use a new output topic"
                )
            await asyncio.sleep(_LATE_PAUSE)  # the commit record was seen before its output

    async def _load_backlog(self, state: TaskState, upto: int | None, *, fenced: bool) -> bool:
        """Replays the output that exists; whether that is all that was written."""
        tp = self._output
        ends = {tp: await self._closed_end(tp)} if fenced else await self._source.ends([tp])
        if fenced and not ends[tp]:  # else only the next owner would detect it
            await self._source.require_readable(tp, 0)
        async with aclosing(self._source.backlog({tp: state.output}, ends)) as backlog:
            async for _, records in backlog:
                for record in records:
                    if state.counted == upto and not self._is_repeat(state, record):
                        if fenced:
                            raise self._foreign(
                                record.offset, "it is behind the last commit record's end"
                            )
                        return True
                    self._load(state, record)
        return upto is None or state.counted >= upto

    def _load(self, state: TaskState, record: Record) -> None:
        self._require_ours(state, record)
        if self._is_repeat(state, record):
            state.output = record.offset + 1
            return
        if state.counted == state.output_records:
            try:
                state.merge.replay_output([self._decoder.decode(record.value)])
            except (ElementError, StateError) as error:
                raise self._foreign(record.offset, str(error)) from error
            state.output_records += 1
        state.counted += 1
        state.output = record.offset + 1
        state.written.read(state.counted, content_of(record.value))

    def _require_ours(self, state: TaskState, record: Record) -> None:
        number = state.begun.incarnation
        if not (record.headers or number):
            return
        try:
            found, _ = incarnation_of(record.headers)
        except ElementError as error:
            raise self._foreign(record.offset, str(error)) from error
        if found != number:
            why = f"it is of incarnation {found}, and the output is in {number}"
            raise self._foreign(record.offset, why)

    def _is_repeat(self, state: TaskState, record: Record) -> bool:
        """A merge in Spark wrote it before: its numbers count the records of the output. What is
        known of that one has to be the same."""
        try:
            seq = seq_of(record.headers)
        except ElementError as error:
            raise self._foreign(record.offset, str(error)) from error
        if seq is None or seq > state.counted:
            return False
        known = state.written.known(seq)
        if known is not None and known != content_of(record.value):
            raise self._foreign(record.offset, f"it is not the record number {seq} that was there")
        return True

    def _foreign(self, offset: int, why: str) -> StateError:
        tp = self._output
        return StateError(
            f"{tp.topic}-{tp.partition} at offset {offset}: {why} (something else writes to this "
            "output)"
        )

    # --- the replicas ---------------------------------------------------------------------------

    async def _reconcile(
        self,
        state: TaskState,
        standings: Mapping[str, ReplicaCheckpoint],
        joint: JointReplay | None,
    ) -> dict[str, ReplicaCheckpoint]:
        """Attaches and detaches so that the replicas of the commit record are merged; returns
        those of them that can be."""
        replicas, desired = state.replicas, self._replicas()
        standings = {
            name: standing
            for name, standing in standings.items()
            if name in desired and desired[name].topic == standing.topic
        }
        for name in list(replicas.states):
            if name not in standings:
                if joint is not None:
                    joint.part(state, name)
                replicas.leave(name)
        infos = await self._topics.describe([each.topic for each in standings.values()])
        for name, standing in standings.items():
            self._stand(state, desired[name], standing, infos.get(standing.topic), joint)
        return {name: standings[name] for name in replicas.merged}

    def _stand(
        self,
        state: TaskState,
        replica: Replica,
        standing: ReplicaCheckpoint,
        info: TopicInfo | None,
        joint: JointReplay | None,
    ) -> None:
        replicas, name = state.replicas, replica.name
        have = replicas.states.get(name)
        if info is None or is_another(standing.topic_id, info.id):
            if have is None:
                replicas.expect(replica, epoch=standing.epoch)
            if info is None:
                replicas.states[name].topic_id = standing.topic_id  # another id: it is recreated
                replicas.exclude(name, "is gone")
            else:  # the leading task merges it from there
                replicas.states[name].topic_id = info.id
                why = "was recreated: what it holds is merged from its beginning"
                replicas.exclude(name, why, recreated=True)
            return
        # Of a co-partitioned replica the task reads one partition, whatever the topic's width.
        width = info.partitions if replica.co_partitioned else max(standing.partitions) + 1
        if have is None or have.step is None or _attachment(have) != _attachment(standing):
            replicas.expect(replica, epoch=standing.epoch)
            replicas.resume(name, standing, width)
            return
        widens = not replica.co_partitioned and width > have.width
        if joint is not None and (widens or standing.incarnation > have.step.decoder.incarnation):
            joint.part(state, name)
        if standing.incarnation > have.step.decoder.incarnation:
            have.step.start_over(standing.incarnation, standing.joining_at)
        if standing.gap_accepted and not have.step.gap_accepted:
            have.step.accept_gap()
        if widens:
            begins = {
                TopicPartition(standing.topic, number): each.begins
                for number, each in standing.partitions.items()
            }
            replicas.widen(name, TopicInfo(info.id, width), begins)

    async def _replay_input(
        self,
        state: TaskState,
        standings: Mapping[str, ReplicaCheckpoint],
        joint: JointReplay | None,
        *,
        whole: bool,
    ) -> None:
        """Replays the records that were merged up to the commit record."""
        upto = {
            TopicPartition(standing.topic, number): each.next
            for standing in standings.values()
            for number, each in standing.partitions.items()
        }
        alone = upto if joint is None else joint.alone(state, upto)
        if alone:
            await self._replay_alone(state, alone, whole=whole)
        if joint is not None:
            await joint.advance(state)

    async def _replay_alone(
        self, state: TaskState, upto: Mapping[TopicPartition, int], *, whole: bool
    ) -> None:
        replicas = state.replicas
        begins, ends = (
            await self._source.beginnings(list(upto)),
            await self._source.ends(list(upto)),
        )
        for tp, end in upto.items():
            if (at := replicas.merging(tp)) is None:
                continue
            start = at.next[tp.partition]
            if start < end and begins[tp] > start:
                why = f"begins at offset {begins[tp]}, and {start} is needed to rebuild the merge"
                _exclude(state, at.name, why, whole=whole)
            elif ends[tp] < end:
                replicas.exclude(at.name, f"holds {ends[tp]} records, and {end} were merged")
        while not await self._replayed(state, upto):
            for tp, why in self._source.lost.items():
                if (lost := replicas.merging(tp)) is not None:
                    _exclude(state, lost.name, f"partition {tp.partition} {why}", whole=whole)
        for tp in replicas.positions().keys() & upto.keys():
            replicas.arrive(tp, upto[tp])

    async def _replayed(self, state: TaskState, upto: Mapping[TopicPartition, int]) -> bool:
        """Whether all could be read; if not, the source's `lost` has those which could not."""
        replicas = state.replicas
        starts = {tp: at for tp, at in replicas.positions().items() if at < upto.get(tp, at)}
        self._source.lost = {}
        try:
            async with aclosing(self._source.backlog(starts, upto)) as backlog:
                async for tp, records in backlog:
                    state.missed += replicas.replay_input(tp, records)
                    replicas.arrive(tp, records[-1].offset + 1)
        except StateError:
            if not starts.keys() & self._source.lost.keys():
                raise
            return False
        return True


def _exclude(state: TaskState, name: str, why: str, *, whole: bool) -> None:
    """Goes on without a replica that has lost records, unless the state has to be `whole`.

    Raises:
        StateError: it has to be.
    """
    if whole:
        raise StateError(f"replica {name} {why}: a snapshot may have it merged")
    state.replicas.exclude(name, why)


def _require_incarnation(state: TaskState, commit: CommitRecord) -> None:
    """Raises StateError: a state is of another incarnation of the output than a commit record."""
    if state.begun != commit.output:
        raise StateError(
            f"the state is of incarnation {state.begun.incarnation} of the output, which is in "
            f"{commit.output.incarnation} by now"
        )


def _beside(state: TaskState, unusable: Collection[SnapshotPlace]) -> TaskState:
    """Has a state rely on none of these snapshots: without them it would need all of the output."""
    state.snapshots = tuple(
        replace(place, output=0, records=0) if place in unusable else place
        for place in state.snapshots
    )
    return state


def _attachment(of: ReplicaState | ReplicaCheckpoint) -> tuple[int, int, str | None]:
    """Differs once a replica has been merged again from its beginning."""
    return of.since, of.epoch, of.topic_id


def _newer_snapshot(state: TaskState, commit: CommitRecord) -> SnapshotPlace | None:
    """The commit record's latest snapshot, if it is of a later state than this one."""
    newest = next(iter(commit.snapshots), None)
    return None if newest is None or newest.transaction <= state.transaction else newest


def _prefers_snapshot(state: TaskState, commit: CommitRecord) -> bool:
    """Whether a state is so old that to restore the commit record's latest snapshot is less work
    than to follow from the state to it. The records between are estimated by transactions."""
    if (newest := _newer_snapshot(state, commit)) is None:
        return False
    behind = 0
    for name, standing in commit.replicas.items():
        have = state.replicas.states.get(name)
        at = {} if have is None else have.next
        behind += sum(
            each.next - at.get(number, each.begins) for number, each in standing.partitions.items()
        )
    skipped = newest.transaction - state.transaction
    saved = behind * skipped / (commit.transaction - state.transaction)
    return saved > _FEW_RECORDS + newest.size / _RECORD_BYTES
