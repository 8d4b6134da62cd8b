"""Decoding: from one replica's records to its elements; incarnations, repeats, dead letters.

Theory
    A record that is not an element goes to the dead letters and the replica goes on. A replica
    that starts over announces it in headers (docs/semantics.md): with a higher
    `lmerge-incarnation` on any partition a new incarnation of it begins, correct from
    `lmerge-joining-at` on, and what the old one contributed is dropped; records of an older one
    that are still in flight are ignored and counted.

    That time holds for all that the incarnation has published. Where the log of a partition has
    lost its beginning (`cut`), nobody knows whether the incarnation that it is first seen in began
    there, unless a record of an older one comes before. Until each such log has shown a record,
    a new incarnation is therefore correct from what was known before at the earliest:

        whole   │ 0 0 1 1 1         incarnation 1 as its header has it
        cut     ┊ 0 1 1 1           likewise: all of 1 is there
        cut     ┊ 1 1 1             the later of the header's time and the stated one

    Nothing here depends on how the partitions interleave: of each partition only the records of
    the highest incarnation count in the end. So the operator can be rebuilt from the partitions'
    prefixes (promise 7 of docs/semantics.md), once it is known which incarnation that is. A record
    that its producer had written before (`lmerge-seq`) is ignored and counted as well.

    Only true repeats and records in flight may be ignored. A record that contradicts the one that
    was read under its number is merged (`repeats`), and noted. An older incarnation is in flight in
    partitions that have not reached the newer one; behind that, in the same partition, a producer
    still writes that has been replaced, or that has gone back: such a run of records is *outdated*,
    and is noted.

    A replica that publishes in a dialect (`formats.dialects`) has a decoder per partition and
    incarnation. A record may then decode to several elements, or none. A key that is in two
    partitions has no history in either (`dialects.homes`): the replica cannot be read beyond that
    record (`torn`), and has to be excluded. So has one that is declared co-partitioned, at the
    first element that is in another partition than the output would have it in: a task reads only
    one. Replayed input is never torn, since it was merged.

    Records are decoded in *pieces*, each of which is decoded when the caller asks for it: up to a
    stable, where it matters who decides on that, and up to a new incarnation. Where it is known
    beforehand that stables up to some time will be merged (`calm`), they end no piece. A caller
    that does not take a piece's stable stops there (`take_back`), and reads on from its record
    later. A dialect's decoder has advanced beyond it by then, so its elements are kept until the
    record is read again.

Cost
    Beside decoding, an element costs one comparison of types.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

import msgspec

from lmerge_service.core.batches import is_for_the_engine
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
from lmerge_service.formats.repeats import RecordReading, Repeats, content_of
from lmerge_service.formats.wire import WireDecoder, encode

if TYPE_CHECKING:
    from lmerge_engine import Batch
    from lmerge_engine import Decoder as NativeDecoder

__all__ = (
    "WHOLE",
    "Contradiction",
    "DecodedPiece",
    "DecodedRecord",
    "Outdated",
    "ReplicaDecoder",
)

_DECODER: Final = "decoder"
_WAITING: Final = "waiting"
_SEQ: Final = "seq"
_OUTDATED: Final = "outdated"
_HOMES: Final = "homes"
_UNSHOWN: Final = "unshown"
_LONGEST_PAUSE: Final = 64
WHOLE: Final = (
    "write all of it to a new topic and attach that, or, if it began a new incarnation with the "
    "new partitions, release it"
)
"""What to do with a replica that cannot be read on, as a rule."""
_AS_DECLARED: Final = (
    "attach it without co_partitioned, or write all of it to a new topic, partitioned as the output"
)
_MUST_BE_WHOLE = "a replica that is normalised must be correct from the beginning"


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


class DecodedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that may have been decoded already, by a stage that had to route it."""

    offset: int
    key: bytes | None
    value: bytes | None
    """None also where only the element is needed."""
    headers: Sequence[tuple[str, bytes]]
    timestamp: int
    element: Element | None = None
    """In the wire format; None: it is to be decoded."""
    content: int | None = None
    """`content_of` the value, where its writer numbers its records and the value is not here."""

    @property
    def text(self) -> bytes | None:
        """The value, or the one that the service would have written."""
        if self.value is None and self.element is not None:
            return encode(self.element)
        return self.value


class DecodedPiece(msgspec.Struct, frozen=True, gc=False):
    """Records of one partition, decoded, in order."""

    elements: Sequence[Element]
    """Without those of the record that ends the piece with a stable."""
    following: int
    """The offset to read on from."""
    stable: int = START
    """The highest vc in the record that ends the piece."""
    last: Sequence[Element] = ()
    """The elements of that record."""
    passed: Sequence[int] = ()
    """The stables among `elements`, where guards are to see them."""
    record: TimedRecord | None = None
    """That record; None: the piece ends otherwise, and has no `stable` and `last`."""
    began: bool = False
    """What follows is of a new incarnation."""


def _highest(decoded: Sequence[Element]) -> int | None:
    """The last stable among a record's elements, in which stables rise."""
    return next((each.vc for each in reversed(decoded) if type(each) is Stable), None)


class ReplicaDecoder:
    """Decodes one replica's records; counts what it left out."""

    def __init__(
        self,
        name: str,
        decoder: WireDecoder,
        *,
        topic: str,
        partitions: int,
        incarnation: int = 0,
        joining_at: int = START,
        cut: Iterable[int] = (),
        must_be_whole: bool = False,
        ignore_stables_before: Mapping[int, int] = MappingProxyType({}),
        dialect: Callable[[], Decoder] | None = None,
        routes: Callable[[bytes], int] | None = None,
    ):
        """`partitions` are the operator's: one if the replica is co-partitioned, since the task
        reads one; `routes` gives then in which partition a payload has to be. `cut` has the
        partitions whose logs have lost their beginning. `must_be_whole`: an incarnation that joins
        late is refused. `ignore_stables_before` gives offsets by partition before which stables do
        not count; `dialect` makes a decoder for each partition, None if they are in the wire
        format."""
        self.name = name
        self.topic = topic
        self.incarnation = incarnation
        self.joining_at = joining_at
        self.partitions = partitions
        self.stale = 0
        """Records of an incarnation that a later one had replaced."""
        self.repeats = Repeats()
        """Which numbered records were read."""
        self.repeated = 0
        """Records that their producer had written before."""
        self.repeated_at = -1
        """The offset of the last of them, in whichever partition."""
        self.contradicted = 0
        """Records that are other ones than were read under their numbers."""
        self.contradictions: list[Contradiction] = []
        """Of what was decoded last."""
        self.outdated: dict[int, Outdated | None] = {}
        """By partition that has come to this incarnation, the records of older ones behind it, as
        long as no newer one has followed."""
        self.torn: str | None = None
        """Why it cannot be read on, in words."""
        self.remedy = WHOLE
        """What to do about that."""
        self.unusual = 0
        """Records that were decoded in Python, where the engine merges."""
        self._unshown = set(cut)
        self._plain_headers: Sequence[tuple[str, bytes]] = ()
        """What the records of this incarnation have for headers that are not numbered."""
        self._routes = routes
        self._decoder = decoder
        self._must_be_whole = must_be_whole
        self._ignore_stables_before = dict(ignore_stables_before)
        self._dialect = dialect
        self._decoders: dict[int, Decoder] = {}
        self._homes = Homes()
        self._waiting: dict[int, tuple[int, Sequence[Element]]] = {}
        """By partition, the offset of a record that was decoded and has to wait, and its
        elements."""

    def pieces(
        self,
        partition: int,
        records: Sequence[TimedRecord],
        dead: list[DeadLetter],
        *,
        by_stable: bool = False,
        calm: int = START,
        final: int = START,
        replay_input: bool = False,
    ) -> Iterator[DecodedPiece]:
        """Decodes records of a partition, piece by piece; appends dead letters.

        `by_stable`: a piece ends with each stable that counts and is later than `calm`, and nothing
        behind it is decoded before the next piece is asked for. `final` is the output's stable
        point, what is before it need not be remembered. `replay_input` is for records that were
        merged before.
        """
        decoder, in_wire, elements = self._decoder, self._dialect is None, self.empty()
        element_of, keeps = self._element_of, False
        native, pause, paused = self._engine(partition, records), 1, 0
        is_decoded = bool(records) and type(records[0]) is DecodedRecord
        leaves = decoder.native is not None and not is_decoded
        if native is None and not is_decoded:
            decoder.weigh(len(records))
            keeps = decoder.keeps
        routes = None if replay_input else self._routes
        counts_from = self._ignore_stables_before.get(partition, 0)
        decoded: Sequence[Element]
        vc: int | None
        self.contradictions.clear()
        passed = list[int]()
        at, size = 0, len(records)
        unshown = bool(self._unshown)
        if unshown and size:
            self._unshown.discard(partition)  # by its first record, below
        while at < size:
            if native is not None and not paused:
                began, headers = at, self._plain_headers
                at, vc = native.take(records, at, headers, cast("Batch", elements))
                if vc is not None:
                    record, at = records[at], at + 1
                    if by_stable and vc > calm:
                        last = (Stable(vc),)
                        yield DecodedPiece(elements, record.offset + 1, vc, last, passed, record)
                        elements, passed = self.empty(), []
                    else:
                        elements.append(Stable(vc))
                        passed.append(vc)
                    continue
                if at == size:
                    break
                # Where hardly any record is for the engine, it is not asked about each.
                pause = paused = 1 if at > began else min(2 * pause, _LONGEST_PAUSE)
            record, at, paused = records[at], at + 1, max(paused - 1, 0)
            self.unusual += leaves
            try:
                if record.headers or self.incarnation:
                    incarnation, joining_at = incarnation_of(record.headers)
                    if incarnation < self.incarnation:
                        self._leave_out_stale(partition, record.offset, incarnation)
                        native = None  # the next of this incarnation ends the run
                        continue
                    if incarnation > self.incarnation:
                        if unshown and (at == 1 or self._unshown):
                            joining_at = max(joining_at, self.joining_at)
                        self.begin(incarnation, joining_at)
                        yield DecodedPiece(elements, record.offset, passed=passed, began=True)
                        elements, passed = self.empty(), []
                    if incarnation:
                        self.outdated[partition] = None
                        if seq_of(record.headers) is None:
                            self._plain_headers = record.headers
                            native = self._engine(partition, records)
                    if self._is_repeat(partition, record):
                        self.repeated += 1
                        self.repeated_at = record.offset
                        continue
                if in_wire:
                    element = decoder.seen[record.value] if keeps else element_of(record)  # type: ignore[index]
                    if type(element) is Stable:
                        decoded, vc = (element,), element.vc
                    elif routes is None:
                        elements.append(element)
                        continue
                    else:
                        decoded, vc = (element,), None
                else:
                    decoded = self._translated(partition, record, final, replay_input=replay_input)
                    vc = _highest(decoded)
                if routes is not None and self.torn is None:
                    self._find_misplaced(partition, record.offset, decoded, routes)
                if self.torn is not None:
                    self._forget(partition, record)
                    yield DecodedPiece(elements, record.offset, passed=passed)
                    return
            except ElementError as error:
                dead.append(self._dead_letter(partition, record, error))
                continue
            if record.offset < counts_from:
                decoded = [each for each in decoded if type(each) is not Stable]
            elif by_stable and vc is not None and vc > calm:
                yield DecodedPiece(elements, record.offset + 1, vc, decoded, passed, record)
                elements, passed = self.empty(), []
                continue
            elif vc is not None:
                passed.append(vc)
            elements += decoded
        yield DecodedPiece(elements, records[-1].offset + 1 if records else 0, passed=passed)

    def empty(self) -> list[Element]:
        """A sequence without elements, of the kind that pieces have."""
        if self._decoder.native is None or self._dialect is not None:
            return []
        return self._decoder.native.empty()

    def _engine(self, partition: int, records: Sequence[TimedRecord]) -> "NativeDecoder | None":
        """What decodes most of the records at once, where that is all that is to be done."""
        native = self._decoder.native
        if native is None or not records or not is_for_the_engine(records):
            return None
        if self._dialect is not None or self._routes is not None:
            return None
        if type(records) is list and type(records[0]) is DecodedRecord:
            return None
        if records[0].offset < self._ignore_stables_before.get(partition, 0):
            return None
        if self.incarnation:  # its records have headers, and none of an older one is behind
            known = self.outdated.get(partition, WHOLE) is None and self._plain_headers
            return native if known else None
        return native

    def forked(
        self, decoder: WireDecoder, dialect: Callable[[], Decoder] | None
    ) -> "ReplicaDecoder":
        """Another one that goes on from here, with its own payloads (`decoder`, `dialect`); its
        counts begin as these are."""
        fork = ReplicaDecoder(
            self.name, decoder, topic=self.topic, partitions=self.partitions,
            incarnation=self.incarnation, joining_at=self.joining_at, cut=self._unshown,
            must_be_whole=self._must_be_whole,
            ignore_stables_before=self._ignore_stables_before, dialect=dialect,
            routes=self._routes,
        )  # fmt: skip
        for kind, partition, saved in self.parts():
            fork.restore(kind, partition, saved)
        fork.repeats = deepcopy(self.repeats)  # with what `take_back` needs, which is not saved
        fork.stale, fork.repeated, fork.unusual = self.stale, self.repeated, self.unusual
        fork.repeated_at = self.repeated_at
        fork.contradicted, fork.contradictions = self.contradicted, [*self.contradictions]
        fork.torn, fork.remedy = self.torn, self.remedy
        return fork

    def widen(self, partitions: int, cut: Iterable[int]) -> None:
        """The topic has got more partitions; of those that are `cut` the beginning is gone."""
        self.partitions = partitions
        self._unshown.update(cut)

    @property
    def unshown(self) -> Sequence[int]:
        """The partitions of which a beginning is gone, and no record was decoded."""
        return sorted(self._unshown)

    def use(self, decoder: WireDecoder) -> None:
        """Decodes the wire format with another decoder, of the same rules."""
        self._decoder = decoder

    def ignores_stables(self, positions: Mapping[int, int]) -> bool:
        """Whether there are stables ahead that do not count; `positions` are by partition."""
        ignored = self._ignore_stables_before.items()
        return any(positions.get(number, 0) < before for number, before in ignored)

    def take_back(self, partition: int, piece: DecodedPiece) -> None:
        """The record that ends the piece with a stable has to wait, and will be read again."""
        assert piece.record is not None
        self._forget(partition, piece.record)
        if self._dialect is not None:
            self._waiting[partition] = piece.record.offset, piece.last

    def begin(self, incarnation: int, joining_at: int) -> None:
        """A new incarnation of the replica: what is remembered of the old one is dropped.

        Raises:
            ElementError: it joins late, and must not.
        """
        if joining_at != START and self._must_be_whole:
            raise ElementError("header", f"{JOINING_AT_HEADER}: {_MUST_BE_WHOLE}")
        self.incarnation, self.joining_at = incarnation, joining_at
        self._decoders, self._waiting = {}, {}
        self.repeats, self.outdated = Repeats(), {}
        self._homes = Homes()
        self._plain_headers = ()

    def _element_of(self, record: TimedRecord) -> Element:
        if type(record) is DecodedRecord and record.element is not None:
            return record.element
        return self._decoder.decode(record.value)

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
        content = record.content if type(record) is DecodedRecord else None
        if content is None:
            content = content_of(record.value, None if self._dialect is None else record.key)
        reading = numbers.read(number, content)
        if reading is RecordReading.CONTRADICTION:
            found = Contradiction(record.offset, number, last, trusted)
            self.contradictions.append(found)
            self.contradicted += 1
        return reading is RecordReading.REPEAT

    def _forget(self, partition: int, record: TimedRecord) -> None:
        """The record was decoded, and will be read again."""
        if seq_of(record.headers) is not None:
            self.repeats.of(partition).take_back()
        if self.contradictions and self.contradictions[-1].offset == record.offset:
            self.contradictions.pop()
            self.contradicted -= 1

    def _translated(
        self, partition: int, record: TimedRecord, final: int, *, replay_input: bool
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
            self._compare(partition, record.offset, decoder, final, replay_input=replay_input)
        return decoded

    def _compare(
        self, partition: int, offset: int, decoder: Decoder, final: int, *, replay_input: bool
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
        homes.forget(max(passed, final))

    def _find_misplaced(
        self,
        partition: int,
        offset: int,
        decoded: Sequence[Element],
        routes: Callable[[bytes], int],
    ) -> None:
        """Whether an element of a co-partitioned replica is where another task would have to read
        it, which does not."""
        for element in decoded:
            if type(element) is Stable:
                continue
            payload: bytes = element.payload  # type: ignore[union-attr]
            if (home := routes(payload)) != partition:
                self.torn = (
                    f"has {_shown(payload)} at offset {offset} of partition {partition}, which "
                    f"belongs in partition {home}, so that it is not co-partitioned as declared: "
                    "what the output lacks of it by now is not known"
                )
                self.remedy = _AS_DECLARED
                return

    def parts(self) -> Iterator[tuple[str, int, bytes]]:
        """What is remembered beside the operator, for a snapshot: kind, partition and state."""
        for partition, decoder in self._decoders.items():
            yield _DECODER, partition, decoder.snapshot()
        for partition, (offset, decoded) in self._waiting.items():
            yield _WAITING, partition, msgspec.msgpack.encode((offset, [*map(encode, decoded)]))
        for partition, numbers in self.repeats.saved().items():
            yield _SEQ, partition, numbers
        for partition in self._unshown:
            yield _UNSHOWN, partition, b""
        for partition, run in self.outdated.items():
            yield _OUTDATED, partition, msgspec.msgpack.encode(run)
        if left := self._homes.saved():
            yield _HOMES, 0, msgspec.msgpack.encode(left)

    def restore(self, kind: str, partition: int, saved: bytes) -> None:
        """Takes one of `parts`.

        Raises:
            StateError: it is damaged.
        """
        if kind == _DECODER and self._dialect is not None:
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
        elif kind == _UNSHOWN:
            self._unshown.add(partition)
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
