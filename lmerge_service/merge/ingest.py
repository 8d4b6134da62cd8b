"""From one replica's records to its elements in the operator: incarnations, dead letters, order.

Theory
    A record that is not an element goes to the dead letters and the replica goes on. A replica
    that starts over announces it in headers (docs/semantics.md): a higher `lmerge-incarnation` on
    any partition re-attaches the replica, from `lmerge-joining-at` on, and drops what the old
    incarnation held; records of an older one that are still in flight are ignored and counted.

    Nothing here depends on how the partitions interleave: of each partition only the records of
    the highest incarnation count in the end. So the operator can be rebuilt from the partitions'
    prefixes (promise 7 of docs/semantics.md), once it is known which incarnation that is. A record
    that its producer had written before (`lmerge-seq`) is ignored and counted as well.

    Only true repeats and records in flight may be ignored. A record that contradicts the one that
    was read under its number is merged (`repeats`), and noted. An older incarnation is in flight in
    partitions that have not reached the newer one; behind that, in the same partition, a producer
    still writes that has been replaced, or that has gone back: such a run of records is *outdated*,
    and is noted.

    A replica that is normalised has a normaliser per partition and incarnation, between decoding
    and the operator. Its output is a function of the partition's prefix, too, so that a rebuilt
    operator receives what the original received. It cannot join late: an interval that is under way
    at the joining time has an unknown start, so it has no canonical form.

    A replica that publishes in a dialect (`formats.dialects`) has a decoder per partition and
    incarnation in the same way. A record may then decode to several elements, or none. A key that
    is in two partitions has no history in either (`dialects.homes`): the replica cannot be read
    beyond that record (`torn`), and has to be excluded. Replayed input is never torn, since it was
    merged.

    A `Judge` decides on new stables before they are merged. One that has to wait stops its
    partition: what is before its record is merged, and reading continues from that record later. A
    decoder has advanced beyond it by then, so the decoded elements are kept until the record is
    read again. Replayed input has been judged.

Cost
    Beside decoding and merging, an element costs one comparison of types.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from lmerge_service.core import LMerge
from lmerge_service.core.normaliser import Normaliser
from lmerge_service.elements import START, Element, Stable
from lmerge_service.errors import ElementError, StateError
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import Decoder, Homes
from lmerge_service.formats.headers import (
    JOINING_AT_HEADER,
    TimedRecord,
    incarnation_of,
    seq_of,
)
from lmerge_service.formats.payload import DEEPEST
from lmerge_service.formats.repeats import Reading, Repeats, content_of
from lmerge_service.formats.wire import WireDecoder, encode

__all__ = ("Contradiction", "Ingest", "Judge", "Outdated", "Ruling", "front_of")

_NORMALISER: Final = "normaliser"
_DECODER: Final = "decoder"
_WAITING: Final = "waiting"
_SEQ: Final = "seq"
_OUTDATED: Final = "outdated"
_HOMES: Final = "homes"
_MUST_BE_WHOLE = "a replica that is normalised must be correct from the beginning"


class Ruling(Enum):
    """What becomes of a stable."""

    MERGE = "merge"
    MERGE_AND_STOP = "merge and stop"
    """It is the last of what is taken at once."""
    WAIT = "wait"
    """It is not merged, nor what is behind it."""


class Contradiction(msgspec.Struct, frozen=True):
    """A record that is another one than was read under its number; it was merged."""

    offset: int
    number: int
    last: int
    """The highest number before."""
    trusted: int
    """How many records before it were left out as repeats without being known."""


class Outdated(msgspec.Struct, frozen=True):
    """A run of records of an older incarnation behind the newer one's, in one partition."""

    first: int
    """The offset of the first."""
    records: int
    incarnation: int
    """The last one's."""


_MERGE: Final = Ruling.MERGE
_Process = Callable[[str, list[Element], int], list[Element]]


class Judge(Protocol):
    """Judges stables before they are merged."""

    def stable(self, replica: str, partition: int, vc: int, offset: int) -> Ruling:
        """The stable in the record at an offset; `partition` is the operator's."""
        ...

    def started_over(self, replica: str) -> None:
        """A new incarnation was attached: nothing of the old one counts any more."""
        ...


def front_of(elements: Sequence[Element]) -> int:
    """How far a chunk of elements has come: the vs or vc of its last one."""
    if not elements:
        return START
    last = elements[-1]
    return last.vc if type(last) is Stable else last.vs  # type: ignore[union-attr]


def _highest(decoded: Sequence[Element]) -> int | None:
    """The last stable among a record's elements, in which stables rise."""
    return next((each.vc for each in reversed(decoded) if type(each) is Stable), None)


class Ingest:
    """Feeds one replica's records to an operator; counts what it left out."""

    def __init__(
        self,
        merge: LMerge,
        name: str,
        decoder: WireDecoder,
        *,
        topic: str,
        partitions: int,
        joining_at: int = START,
        incarnation: int = 0,
        gap_accepted: bool = False,
        normalise: bool = False,
        co_partitioned: bool = False,
        ignore_stables_before: Mapping[int, int] = MappingProxyType({}),
        mine: Callable[[list[Element]], list[Element]] | None = None,
        dialect: Callable[[], Decoder] | None = None,
        attached: bool = False,
    ):
        """`partitions` are the operator's: one if the replica is co-partitioned, since the task
        reads one. `ignore_stables_before` gives offsets by partition before which stables do not
        count; `mine` leaves out elements that are another task's; `dialect` makes a decoder for
        each partition, None if they are in the wire format. `attached`: the operator has the input
        already, from a snapshot."""
        self.name = name
        self.topic = topic
        self.incarnation = incarnation
        self.joining_at = joining_at
        self.gap_accepted = gap_accepted
        self.partitions = partitions
        self.front = START
        """The highest vs or vc that a chunk of it ended with."""
        self.stale = 0
        """Records of an incarnation that a later one had replaced."""
        self.lately: list[Element] = []
        """Elements that were processed together with late ones; the consumer clears the list."""
        self.taken: list[Element] = []
        """The elements that the operator processed last."""
        self.repeats = Repeats()
        """Which numbered records were read."""
        self.repeated = 0
        """Records that their producer had written before."""
        self.contradicted = 0
        """Records that are other ones than were read under their numbers."""
        self.contradictions: list[Contradiction] = []
        """Of what was taken last."""
        self.outdated: dict[int, Outdated | None] = {}
        """By partition that has come to this incarnation, the records of older ones behind it, as
        long as no newer one has followed."""
        self.torn: str | None = None
        """Why it cannot be read on, in words."""
        self._merge = merge
        self._decoder = decoder
        self._normalise = normalise
        self._co_partitioned = co_partitioned
        self._mutes = dict(ignore_stables_before)
        self._mine = mine
        self._normalisers: dict[int, Normaliser] = {}
        self._dialect = dialect
        self._decoders: dict[int, Decoder] = {}
        self._homes = Homes()
        self._waiting: dict[int, tuple[int, Sequence[Element]]] = {}
        """By partition, the offset of a record that was decoded and has to wait, and its
        elements."""
        if not attached:
            merge.attach(name, joining_at, partitions, accepted_gap=gap_accepted)

    def widen(self, partitions: int) -> None:
        """The replica's topic has got more partitions."""
        self.partitions = partitions
        self._merge.inputs[self.name].add_partitions(partitions)

    def slot(self, partition: int) -> int:
        """The operator's number of a partition of the topic."""
        return 0 if self._co_partitioned else partition

    def take(
        self,
        partition: int,
        records: Sequence[TimedRecord],
        out: list[Element],
        dead: list[DeadLetter],
        *,
        judge: Judge | None = None,
        replay_input: bool = False,
    ) -> int:
        """Processes records of a partition in order; appends what the operator emits.

        Without a judge every stable is merged. `replay_input` is for records that were merged
        before the output reached what was loaded.

        Returns the offset to go on from: behind the last record, unless the judge has stopped.
        """
        process = self._merge.replay_input if replay_input else self._merge.process_batch
        elements: list[Element] = []
        decoder, in_wire = self._decoder, self._dialect is None
        decode, keeps = decoder.decode, decoder.keeps
        mute = self._mutes.get(partition, 0)
        decoded: Sequence[Element] = ()
        vc: int | None
        ruling = _MERGE
        self.contradictions.clear()
        for record in records:
            try:
                if record.headers or self.incarnation:
                    incarnation, joining_at = incarnation_of(record.headers)
                    if incarnation < self.incarnation:
                        self._leave_out_stale(partition, record.offset, incarnation)
                        continue
                    if incarnation > self.incarnation:
                        out += self._process(elements, partition, process)
                        elements = []
                        self.start_over(incarnation, joining_at)
                        if judge is not None:
                            judge.started_over(self.name)
                    if incarnation:
                        self.outdated[partition] = None
                    if self._is_repeat(partition, record):
                        self.repeated += 1
                        continue
                if in_wire:
                    value = record.value
                    element = decoder.seen[value] if keeps else decode(value)  # type: ignore[index]
                    if type(element) is not Stable:
                        elements.append(element)
                        continue
                    decoded, vc = (element,), element.vc
                else:
                    decoded = self._translated(partition, record, replay_input=replay_input)
                    vc = _highest(decoded)
                    if self.torn is not None:
                        break
            except ElementError as error:
                dead.append(self._dead_letter(partition, record, error))
                continue
            if record.offset < mute:
                decoded = [each for each in decoded if type(each) is not Stable]
            elif judge is not None and vc is not None:
                ruling = judge.stable(self.name, self.slot(partition), vc, record.offset)
                if ruling is not _MERGE:
                    break
            elements += decoded
        if ruling is Ruling.MERGE_AND_STOP:
            elements += decoded
        elif ruling is Ruling.WAIT:
            self._take_back(partition, record)
            if not in_wire:
                self._waiting[partition] = record.offset, decoded
        out += self._process(elements, partition, process)
        decoder.weigh(len(records))
        if self.torn is not None:
            self._take_back(partition, record)
            return record.offset
        if ruling is _MERGE:
            return records[-1].offset + 1 if records else 0
        return record.offset + (ruling is Ruling.MERGE_AND_STOP)

    def _leave_out_stale(self, partition: int, offset: int, incarnation: int) -> None:
        self.stale += 1
        if partition in self.outdated:
            run = self.outdated[partition] or Outdated(offset, 0, incarnation)
            self.outdated[partition] = Outdated(run.first, run.records + 1, incarnation)

    def _is_repeat(self, partition: int, record: TimedRecord) -> bool:
        number = seq_of(record.headers)
        if number is None:
            return False
        numbers = self.repeats.of(partition)
        last, trusted = numbers.last, numbers.trusted
        key = None if self._dialect is None else record.key
        reading = numbers.read(number, content_of(record.value, key))
        if reading is Reading.CONTRADICTION:
            found = Contradiction(record.offset, number, last, trusted)
            self.contradictions.append(found)
            self.contradicted += 1
        return reading is Reading.REPEAT

    def _take_back(self, partition: int, record: TimedRecord) -> None:
        """The record has to wait, and will be read again."""
        if seq_of(record.headers) is not None:
            self.repeats.of(partition).take_back()
        if self.contradictions and self.contradictions[-1].offset == record.offset:
            self.contradictions.pop()
            self.contradicted -= 1

    def _translated(
        self, partition: int, record: TimedRecord, *, replay_input: bool
    ) -> Sequence[Element]:
        assert self._dialect is not None
        offset, decoded = self._waiting.pop(partition, (-1, ()))
        if offset == record.offset:
            return decoded
        decoder = self._decoders.get(partition)
        if decoder is None:
            decoder = self._decoders[partition] = self._dialect()
        decoder.changes = ()
        decoded = decoder.decode(record)
        if self.partitions > 1:
            self._compare(partition, record.offset, decoder, replay_input=replay_input)
        return decoded

    def _compare(
        self, partition: int, offset: int, decoder: Decoder, *, replay_input: bool
    ) -> None:
        """Whether the record changed what is another partition's."""
        homes, decoders = self._homes, self._decoders
        if not replay_input and (found := homes.elsewhere(partition, decoder.changes, decoders)):
            key, other = found
            self.torn = (
                f"has key {_shown(key)} at offset {offset} of partition {partition}, and in "
                f"partition {other} as well, so that neither holds its history"
            )
            return
        homes.settle(partition, decoder.changes, decoder.latest)
        passed = START
        if len(decoders) == self.partitions:
            passed = min(each.stable for each in decoders.values())
        homes.forget(max(passed, self._merge.max_stable))

    def _process(self, elements: list[Element], partition: int, process: _Process) -> list[Element]:
        self.front = max(self.front, front_of(elements))
        if self._mine is not None:
            elements = self._mine(elements)
        slot, source = self.slot(partition), self._merge.inputs[self.name]
        if self._normalise:
            normaliser = self._normalisers.setdefault(slot, Normaliser())
            elements = normaliser.process_batch(elements)
            normaliser.blame(self._merge, self.name)
        late, self.taken = source.late, elements
        out = process(self.name, elements, slot)
        if source.late > late:
            self.lately += elements
        return out

    def start_over(self, incarnation: int, joining_at: int) -> None:
        """A new incarnation of the replica: the old one's contributions are dropped.

        Raises:
            ElementError: it joins late, and is normalised.
        """
        if joining_at != START and self._normalise:
            raise ElementError("header", f"{JOINING_AT_HEADER}: {_MUST_BE_WHOLE}")
        self.incarnation, self.joining_at = incarnation, joining_at
        self.gap_accepted = False
        self._normalisers, self._decoders, self._waiting = {}, {}, {}
        self.repeats, self.outdated = Repeats(), {}
        self._homes = Homes()
        self.front, self.taken = START, []
        self._merge.attach(self.name, joining_at, self.partitions)

    def accept_gap(self) -> None:
        """Follows the original in having joined before its time; after its output is loaded."""
        self.gap_accepted = True
        self._merge.accept(self.name, self.joining_at)

    def parts(self) -> Iterator[tuple[str, int, bytes]]:
        """What is remembered beside the operator, for a snapshot: kind, partition and state."""
        for partition, normaliser in self._normalisers.items():
            yield _NORMALISER, partition, normaliser.snapshot()
        for partition, decoder in self._decoders.items():
            yield _DECODER, partition, decoder.snapshot()
        for partition, (offset, decoded) in self._waiting.items():
            yield _WAITING, partition, msgspec.msgpack.encode((offset, [*map(encode, decoded)]))
        for partition, numbers in self.repeats.saved().items():
            yield _SEQ, partition, numbers
        for partition, run in self.outdated.items():
            yield _OUTDATED, partition, msgspec.msgpack.encode(run)
        if left := self._homes.saved():
            yield _HOMES, 0, msgspec.msgpack.encode(left)

    def restore(self, kind: str, partition: int, saved: bytes) -> None:
        """Takes one of `parts`.

        Raises:
            StateError: it is damaged.
        """
        if kind == _NORMALISER:
            self._normalisers[partition] = Normaliser.restore(saved)
        elif kind == _DECODER and self._dialect is not None:
            self._decoders[partition] = self._dialect()
            self._decoders[partition].restore(saved)
        elif kind == _HOMES and self._dialect is not None:
            self._homes.load(msgspec.msgpack.decode(saved))
        elif kind == _WAITING and self._dialect is not None:
            offset, decoded = msgspec.msgpack.decode(saved, type=tuple[int, list[bytes]])
            ours = WireDecoder(max_record_bytes=1 << 30, max_depth=DEEPEST)
            self._waiting[partition] = offset, [*map(ours.decode, decoded)]
        elif kind == _SEQ:
            self.repeats.restore(partition, saved)
        elif kind == _OUTDATED:
            self.outdated[partition] = msgspec.msgpack.decode(saved, type=Outdated | None)
        else:
            raise StateError(f"the snapshot has a part {kind!r} of {self.name}, which needs none")

    def _dead_letter(self, partition: int, record: TimedRecord, error: ElementError) -> DeadLetter:
        return DeadLetter(
            replica=self.name,
            topic=self.topic,
            partition=partition,
            offset=record.offset,
            reason=error.reason,
            message=str(error),
            key=record.key,
            value=record.value,
        )


def _shown(key: bytes) -> str:
    return repr(key[:100].decode(errors="replace"))
