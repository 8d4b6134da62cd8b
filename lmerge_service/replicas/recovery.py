"""How a replica comes to its state: from nothing, from its last commit, or from its output alone.

Theory
    The state is a function of the prefixes of the inputs' partitions. So after a crash it is the
    latest whole snapshot, and the records from there to the last commit record, processed once more
    while nobody listens:

        inputs      ─────── snapshot ─────────── commit record ───▶ go on
                             restore   process,      compare
                                       emit nothing  with the output, emit the difference
        output      ─────── as the snapshot has it ─ what was committed since

    What was emitted meanwhile is in the output, committed. Plans that emit on every update, or on
    close, have the same of it again; of the others the difference is emitted
    (`RunningQuery.go_on_from`), or, in the midst of a switch of plans, they resume by the output.
    So nothing is repeated and nothing lost: the topic is a legal stream by itself.

    A snapshot that is damaged, or of another release, gives way to the one before, and that to the
    facts from the first on. Where the plan is another one, or there is no state at all, the output
    is what is left: the plan is fed with the history that it requires (`required_history`), and
    takes the output over (`queries.plan_switch`).

    Of a topic's records Kafka may have deleted some. Those that are needed are looked for before
    anything is read, and are never passed over.

Who owns what
    A `Source` is borrowed, whose positions are undefined afterwards.

What happens on a crash: nothing is written here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.errors import StateError
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.merge.snapshots.reading import read_snapshot
from lmerge_service.queries import logical
from lmerge_service.queries.live_events import LiveEvents
from lmerge_service.queries.properties import required_history
from lmerge_service.replicas.commit_record import (
    Correction,
    InputCheckpoint,
    InputPartition,
    OutputPartition,
    ReplicaCommit,
    state_topic,
)
from lmerge_service.replicas.corrections import CorrectedFacts
from lmerge_service.replicas.inputs import QueryInput, input_of
from lmerge_service.replicas.output_reader import OutputReader
from lmerge_service.replicas.own_output import OwnOutput, read_on, read_whole
from lmerge_service.replicas.partitions import Partitions
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.snapshots import OpenedSnapshot
from lmerge_service.replicas.starting import Anew, Continue, Resume, Start

__all__ = ("QueryRecovery", "Recovered")

log = structlog.get_logger()

_REPLAYED: Final = 10_000
"""So many events are processed at once while they are replayed."""
_HINT: Final = "begin a new incarnation with later ones (--since TIME, --rejoin)"


@dataclass(slots=True)
class Recovered:
    """A replica's state at a commit record, or at its beginning."""

    inputs: dict[str, QueryInput]
    partitions: Partitions
    commit: ReplicaCommit
    """Where it stands; the next commit record goes on from it."""
    first: list[list[Element]]
    """What each partition of the output emits first."""
    replayed: int = 0
    """Records that were processed once more."""
    restored_from: int | None = None
    """The transaction of the snapshot it came from."""


@dataclass(slots=True)
class QueryRecovery:
    """Makes the state of one replica."""

    request: ReplicaRequest
    widths: Mapping[str, int]
    """Of the inputs' topics."""
    ids: Mapping[str, str | None]
    """Which topics the inputs are."""
    width: int
    """Of the output."""
    source: Source
    clock: Callable[[], int] | None = None
    replayed: int = field(default=0, init=False)
    _at: dict[str, list[int]] = field(default_factory=dict, init=False)
    _restored_from: int | None = field(default=None, init=False)

    async def run(self, start: Start) -> Recovered:
        """
        Raises:
            ConfigurationError: the plan cannot be divided into the output's partitions.
            StateError: what is needed of the inputs or of the output is gone, or not what it was.
            ModuleError: user code raised.
            TransportError: Kafka went away.
        """
        match start:
            case Anew():
                return await self._begin(start)
            case Continue(commit):
                return await self._go_on(commit)
            case Resume(commit):
                return await self._resume(commit)

    # --- from nothing ---------------------------------------------------------------------------

    async def _begin(self, start: Anew) -> Recovered:
        inputs, partitions = self._inputs(start.corrections), self._partitions()
        begins = {
            name: await self._first_offsets(name, start.since or START) for name in self.widths
        }
        places = [TopicPartition(self.request.to, number) for number in range(self.width)]
        ends = await self.source.settled(places)
        if start.joining_at != START:
            partitions.skip_before(start.joining_at)
        commit = ReplicaCommit(
            query=self.request.fingerprint,
            plan=self.request.plan.fingerprint,
            transaction=0,
            incarnation=start.incarnation,
            joining_at=start.joining_at,
            since=start.since,
            inputs={
                name: self._checkpoint(name, begins[name], begins[name], inputs[name].reached)
                for name in inputs
            },
            output=tuple(OutputPartition(ends[place], 0, 0, START) for place in places),
            point=START,
            corrections=start.corrections,
        )
        return Recovered(inputs, partitions, commit, [[] for _ in places])

    async def _first_offsets(self, name: str, since: int) -> list[int]:
        """Where to begin reading an input; of elements, always with the first."""
        places = self._places(name)
        kept = await self.source.beginnings(places)
        if since == START or isinstance(self.request.sources[name], logical.Elements):
            first = dict.fromkeys(places, 0)
        else:
            first = await self.source.since(places, since)
            # what is in the first record that is left may have been before it, too
            first = {place: at if at > kept[place] else 0 for place, at in first.items()}
        for place in places:
            if first[place] < kept[place]:
                which = "those before it" if since == START else f"some from {since} on"
                raise StateError(
                    f"{place.topic}-{place.partition} begins with offset {kept[place]}: {which} "
                    f"may be gone; {_HINT}"
                )
        return [first[place] for place in places]

    # --- from the last commit -------------------------------------------------------------------

    async def _go_on(self, commit: ReplicaCommit) -> Recovered:
        inputs, partitions, outputs = await self._restored(commit)
        restored = inputs is not None
        if inputs is None:
            inputs, partitions = self._inputs(commit.corrections), self._partitions()
            begun = {n: [p.begins for p in each.partitions] for n, each in commit.inputs.items()}
            if commit.joining_at != START:
                partitions.skip_before(commit.joining_at)
            outputs = await self._whole_output(commit)
        else:
            begun = {n: self._at[n] for n in inputs}
        await self._replay(inputs, partitions, begun, commit)
        if commit.point > START:
            partitions.skip_before(commit.point)
        try:
            first = partitions.go_on_from(outputs)
        except StateError as error:  # killed while it switched plans, by operators that may differ
            log.warning("the output is what is left", why=str(error))
            return await self._resume(commit)
        if any(first):
            log.info("the output is brought up to date", elements=sum(map(len, first)))
        return Recovered(
            inputs,
            partitions,
            commit,
            first,
            self.replayed,
            self._restored_from if restored else None,
        )

    async def _restored(
        self, commit: ReplicaCommit
    ) -> tuple[dict[str, QueryInput] | None, Partitions, list[LiveEvents]]:
        """The state as of the latest snapshot that can be used, and what the output is by now; no
        inputs: there is none."""
        place = TopicPartition(state_topic(self.request.to), 0)
        for each in commit.snapshots:
            inputs, partitions = self._inputs(commit.corrections), self._partitions()
            opened = OpenedSnapshot()
            try:
                await read_snapshot(self.source, place, each, opened)
                then = opened.restore(inputs, partitions)
                outputs = [query.output.copy() for query in partitions.queries]
                await self._read_on(outputs, then, commit)
                self._at = {
                    name: [p.next for p in found.partitions] for name, found in then.inputs.items()
                }
                await self._check_kept(self._at, commit)
            except StateError as error:
                _unusable(each.transaction, error)
                continue
            self._restored_from = each.transaction
            return inputs, partitions, outputs
        return None, self._partitions(), []

    async def _whole_output(self, commit: ReplicaCommit) -> list[LiveEvents]:
        held = await self._read_whole()
        records = [each.records for each in commit.output]
        if held is None or held.incarnation < commit.incarnation:
            held_records, outputs = [0] * self.width, [LiveEvents() for _ in range(self.width)]
        else:
            held_records, outputs = held.records, held.outputs
        if held_records != records:
            raise StateError(
                f"{self.request.to} has {held_records} records of incarnation "
                f"{commit.incarnation} by partition, and {records} were committed: some are gone, "
                "or somebody else has written to it"
            )
        return outputs

    async def _replay(
        self,
        inputs: Mapping[str, QueryInput],
        partitions: Partitions,
        begun: Mapping[str, Sequence[int]],
        commit: ReplicaCommit,
    ) -> None:
        """Processes the records up to the commit record, emits nothing; then all is as far as it
        was.

        Raises:
            StateError: records are gone, or are not those of then.
        """
        await self._check_kept(begun, commit)
        starts, ends = self._span(begun, commit)
        topics = self._topics()
        waiting: dict[str, list[Element]] = {}
        held = 0
        async for place, records in self.source.backlog(starts, ends):
            name = topics[place.topic]
            events = inputs[name].take(place.partition, records)
            inputs[name].dead.clear()
            waiting.setdefault(name, []).extend(events)
            self.replayed += len(records)
            held += len(records)
            if held >= _REPLAYED:
                partitions.process(waiting, {n: each.stable for n, each in inputs.items()})
                waiting, held = {}, 0
        partitions.process(waiting, {n: each.stable for n, each in inputs.items()})
        for name, each in inputs.items():
            then = [partition.reached for partition in commit.inputs[name].partitions]
            if each.reached != then:
                raise StateError(
                    f"{each.topic}, read once more, comes to {each.reached} by partition, and had "
                    f"come to {then}: is it another topic by now? {_HINT}"
                )

    async def _check_kept(self, begun: Mapping[str, Sequence[int]], commit: ReplicaCommit) -> None:
        """
        Raises:
            StateError: records that are needed are gone.
        """
        for name, each in commit.inputs.items():
            if None not in (each.topic_id, self.ids[name]) and each.topic_id != self.ids[name]:
                raise StateError(
                    f"the topic {each.topic} is another one by now: it was deleted and made again; "
                    "begin a new incarnation with --rejoin"
                )
            places = self._places(name)
            kept, ends = await self.source.beginnings(places), await self.source.ends(places)
            for place, first, then in zip(places, begun[name], each.partitions, strict=True):
                if kept[place] > first:
                    raise StateError(
                        f"{place.topic}-{place.partition} begins with offset {kept[place]}, and is "
                        f"needed from {first} on: its retention is too short; {_HINT}"
                    )
                if ends[place] < then.next:
                    raise StateError(
                        f"{place.topic}-{place.partition} ends at {ends[place]}, and was read up "
                        f"to {then.next}: it has lost records; {_HINT}"
                    )

    # --- from the output alone ------------------------------------------------------------------

    async def _resume(self, commit: ReplicaCommit | None) -> Recovered:
        corrections = () if commit is None else commit.corrections
        inputs, partitions = self._inputs(corrections), self._partitions()
        held = None if commit is None else await self._saved_output(commit)
        held = held or await self._read_whole()
        if held is None:
            raise StateError(f"{self.request.to} has no elements to go on from")
        stable = min(output.stable for output in held.outputs)
        needed = self._needed(stable)
        begins = {
            name: await self._first_offsets(name, self._first_fact(name, needed[name]))
            for name in inputs
        }
        ends = await self._ends(commit)
        history, behind = await self._history(inputs, begins, ends)
        if commit is not None:  # a partition may have ended before its history begins
            for name, each in inputs.items():
                each.go_on([then.reached for then in commit.inputs[name].partitions])
        stables = {name: each.stable for name, each in inputs.items()}
        given = partitions.divide(history, stables)
        point = START if commit is None else commit.point
        first = partitions.resume(held.outputs, given, needed, max(held.joining_at, point))
        known = ReplicaCommit(
            query=self.request.fingerprint,
            plan=self.request.plan.fingerprint,
            transaction=0 if commit is None else commit.transaction,
            incarnation=held.incarnation,
            joining_at=held.joining_at,
            since=None if commit is None else commit.since,
            inputs={
                name: self._checkpoint(name, begins[name], behind[name], inputs[name].reached)
                for name in inputs
            },
            output=tuple(
                OutputPartition(offset, counted, records, output.stable)
                for offset, counted, records, output in zip(
                    held.offsets, held.counted, held.records, held.outputs, strict=True
                )
            ),
            point=point,
            corrections=corrections,
        )
        return Recovered(inputs, partitions, known, first, self.replayed)

    async def _saved_output(self, commit: ReplicaCommit) -> OwnOutput | None:
        """The output as a snapshot of whichever plan has it, and what was committed since; None:
        there is no snapshot that can be used."""
        place = TopicPartition(state_topic(self.request.to), 0)
        for each in commit.snapshots:
            opened = OpenedSnapshot()
            try:
                await read_snapshot(self.source, place, each, opened)
                then, outputs = opened.outputs()
                await self._read_on(outputs, then, commit)
            except StateError as error:
                _unusable(each.transaction, error)
                continue
            return OwnOutput(
                commit.incarnation,
                commit.joining_at,
                outputs,
                [known.offset for known in commit.output],
                [known.counted for known in commit.output],
                [known.records for known in commit.output],
            )
        return None

    async def _read_on(
        self, outputs: Sequence[LiveEvents], then: ReplicaCommit, now: ReplicaCommit
    ) -> None:
        """Brings outputs as of one commit record up to another."""
        to = self.request.to
        await read_on(self.source, to, outputs, then.output, now.output, self._reader())

    async def _read_whole(self) -> OwnOutput | None:
        return await read_whole(self.source, self.request.to, self.width, self._reader())

    def _reader(self) -> OutputReader:
        return OutputReader(logical.schema_of(self.request.plan.plan))

    def _needed(self, stable: int) -> dict[str, int]:
        """From which time on the plan needs each source, to go on with an output that is stable
        up to there."""
        if stable == START:
            return dict.fromkeys(self.widths, START)
        return required_history(self.request.plan.plan, stable)

    def _first_fact(self, name: str, needed: int) -> int:
        """The time of the first fact that may still be there at a time."""
        source = self.request.sources[name]
        longest = logical.longest(source)
        return START if needed == START or longest == INFINITY else needed - longest

    async def _ends(self, commit: ReplicaCommit | None) -> dict[TopicPartition, int]:
        """Up to where the history reaches: where the plan before has come, or all there is now."""
        if commit is not None:
            begun = {n: [p.begins for p in each.partitions] for n, each in commit.inputs.items()}
            return self._span(begun, commit)[1]
        return await self.source.ends([tp for name in self.widths for tp in self._places(name)])

    async def _history(
        self,
        inputs: Mapping[str, QueryInput],
        begins: Mapping[str, Sequence[int]],
        ends: Mapping[TopicPartition, int],
    ) -> tuple[dict[str, list[Element]], dict[str, list[int]]]:
        """The events of each source, and the offsets behind what was read."""
        history: dict[str, list[Element]] = {name: [] for name in inputs}
        topics = self._topics()
        behind = {name: [*each] for name, each in begins.items()}
        starts = dict[TopicPartition, int]()
        for name in inputs:
            starts |= zip(self._places(name), begins[name], strict=True)
        async for place, records in self.source.backlog(starts, ends):
            name = topics[place.topic]
            history[name] += inputs[name].take(place.partition, records)
            inputs[name].dead.clear()
            behind[name][place.partition] = records[-1].offset + 1
            self.replayed += len(records)
        return history, behind

    # --- what all need --------------------------------------------------------------------------

    def _inputs(self, corrections: Sequence[Correction] = ()) -> dict[str, QueryInput]:
        headroom = logical.headroom(self.request.query)
        found: dict[str, QueryInput] = {}
        for name, source in self.request.sources.items():
            topic, width = self.request.topic_of(name), self.widths[name]
            mine = [each for each in corrections if each.source == name]
            if mine and isinstance(source, logical.Source):
                found[name] = CorrectedFacts(source, topic, width, headroom, mine)
            else:
                found[name] = input_of(source, topic, width, headroom)
        return found

    def _partitions(self) -> Partitions:
        return Partitions(self.request.plan, self.width, self.request.columns, self.clock)

    def _topics(self) -> dict[str, str]:
        """The source that each topic is."""
        return {self.request.topic_of(name): name for name in self.widths}

    def _places(self, name: str) -> list[TopicPartition]:
        topic = self.request.topic_of(name)
        return [TopicPartition(topic, number) for number in range(self.widths[name])]

    def _span(
        self, begun: Mapping[str, Sequence[int]], commit: ReplicaCommit
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """From where to where, by partition."""
        starts, ends = dict[TopicPartition, int](), dict[TopicPartition, int]()
        for name, each in commit.inputs.items():
            places = self._places(name)
            starts |= zip(places, begun[name], strict=True)
            ends |= zip(places, (then.next for then in each.partitions), strict=True)
        return starts, ends

    def _checkpoint(
        self, name: str, begins: Sequence[int], behind: Sequence[int], reached: Sequence[int]
    ) -> InputCheckpoint:
        found = zip(begins, behind, reached, strict=True)
        return InputCheckpoint(
            self.request.topic_of(name),
            self.ids[name],
            tuple(InputPartition(*each) for each in found),
        )


def _unusable(transaction: int, why: StateError) -> None:
    log.warning("a snapshot cannot be used", transaction=transaction, why=f"{why}")
