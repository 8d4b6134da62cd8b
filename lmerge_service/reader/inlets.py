"""The topics that a reader merges: which are read, from where, by which incarnation, and why not.

Theory
    A topic is read when its whole history can be had: from its first offset, from where a token
    left it, from a snapshot of the merge that publishes it (`beginnings`), or from what it still
    has if its `joining_at` is given. Otherwise it is left out, with
    the reason in words, and the others go on. Nothing here waits or asks Kafka: `unplaced` returns
    the partitions whose offsets must be looked up, `admit` receives them.

        missing ──▶ reading ──▶ missing        deleted; recreated: read again from its beginning
                       └──────▶ left out       its history is not there, or cannot be read

    A topic that was recreated is another one (it has another id), so its old events are let go and
    it is read from its beginning. That is always safe: what is final on the output stays.

Invariants
    T1  A topic is an attached input of the operator iff it is read, or stands as a token left it
        and has not been seen yet.
    T2  A position is the offset behind the last record that the operator has taken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from lmerge_service.core import LMerge
from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.repeats import Repeats
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.sightings import Sightings, TopicChange, change_of, is_another
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.kafka.unread import OpenTransaction
from lmerge_service.merge.snapshots.beginnings import PartitionStart, latest
from lmerge_service.merge.step import MergeStep

__all__ = ("Inlets", "ReadPosition", "StartedOver", "TopicState", "TopicStatus")

_NO_BEGINNINGS: Final[Mapping[str, Sequence[PartitionStart]]] = MappingProxyType({})

TopicState = Literal["missing", "reading", "joining", "ended", "left out"]


class ReadPosition(msgspec.Struct, frozen=True):
    """Where the reading of a topic stands; a token holds one for each topic that is read."""

    id: str | None
    positions: list[int]
    """By partition."""
    incarnation: int
    joining_at: int
    unshown: list[int] = []
    """Partitions whose beginning is gone, and of which no record was read."""
    stated: int = START
    """The `joining_at` with which it was begun."""
    numbers: dict[int, bytes] = {}
    """By partition whose writer numbers its records, what was read under which number."""


@dataclass(frozen=True, slots=True)
class StartedOver:
    """A topic goes on as a new incarnation of its stream."""

    topic: str
    incarnation: int
    correct_from: int
    """It has every event that ends at this time or later; START: all events."""
    stable: int
    """Where the former incarnation was, as far as it was read."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """What a reader knows about one topic; None where it does not know."""

    topic: str
    state: TopicState
    why: str | None
    """Why it is not read, in words."""
    partitions: int | None
    incarnation: int | None
    correct_from: int | None
    """From when on this incarnation has every event; START: from the beginning."""
    stable: int | None
    """The minimum over its partitions; START while one has none."""
    lag: int | None
    """Records and markers that were not read when Kafka was last asked, those of open transactions
    included."""
    open: tuple[OpenTransaction, ...]
    """What cannot be read, and keeps from being read what is behind it."""
    first: int
    """Inserts that this topic delivered before any other, since it was attached."""
    late: int
    """Elements about what was final already."""
    breaches: dict[str, int]
    dead: int
    """Records that are no elements."""
    stale: int
    """Records of an incarnation that a later one had replaced."""
    repeated: int
    """Records that their writer had written before."""
    contradicted: int
    """Records that are other ones than were read under their numbers: they were merged."""


@dataclass(slots=True)
class _Inlet:
    topic: str
    joining_at: int
    place: ReadPosition | None
    """As the token left it, until the topic is seen."""
    id: str | None = None
    stated: int = START
    """The `joining_at` with which it was begun."""
    step: MergeStep | None = None
    positions: list[int] = field(default_factory=list)
    why: str | None = None
    given_up: bool = False
    lag: int | None = None
    open: dict[int, OpenTransaction] = field(default_factory=dict)
    """By partition."""
    dead: int = 0


class Inlets:
    """See the module's text."""

    def __init__(
        self,
        merge: LMerge,
        topics: Iterable[str],
        decoder: WireDecoder,
        joining_at: Mapping[str, int],
        places: Mapping[str, ReadPosition],
    ):
        self._merge = merge
        self._decoder = decoder
        self._sightings = Sightings()
        self.started_over: list[StartedOver] = []
        """What was found since the list was emptied last."""
        self._inlets = {
            topic: _Inlet(topic, joining_at.get(topic, START), places.get(topic))
            for topic in topics
        }
        for topic in merge.inputs.keys() - self._inlets.keys():
            merge.detach(topic)  # the token's, and not read any more

    @property
    def topics(self) -> Sequence[str]:
        return tuple(self._inlets)

    @property
    def all_found(self) -> bool:
        """None is missing."""
        inlets = self._inlets.values()
        return all(each.step is not None or each.given_up for each in inlets)

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of every partition that is read."""
        return {
            TopicPartition(inlet.topic, number): position
            for inlet in self._inlets.values()
            if inlet.step is not None
            for number, position in enumerate(inlet.positions)
        }

    def places(self) -> dict[str, ReadPosition]:
        """For a token."""
        found = {topic: self._place(inlet) for topic, inlet in self._inlets.items()}
        return {topic: place for topic, place in found.items() if place is not None}

    @staticmethod
    def _place(inlet: _Inlet) -> ReadPosition | None:
        if inlet.step is None:
            return inlet.place
        decoder = inlet.step.decoder
        return ReadPosition(
            inlet.id,
            list(inlet.positions),
            decoder.incarnation,
            decoder.joining_at,
            [*decoder.unshown],
            inlet.stated,
            decoder.repeats.saved(),
        )

    # --- records ------------------------------------------------------------------------------

    def take(
        self,
        tp: TopicPartition,
        records: Sequence[TimedRecord],
        out: list[Element],
        dead: list[DeadLetter],
    ) -> None:
        """Feeds records of one partition, in order."""
        inlet, before = self._inlets[tp.topic], len(dead)
        if inlet.step is None:
            return
        decoder, former = inlet.step.decoder, self._merge.inputs[tp.topic]
        incarnation, stable = decoder.incarnation, former.stable
        inlet.step.take(tp.partition, records, out, dead)
        inlet.dead += len(dead) - before
        if decoder.incarnation > incarnation:
            found = StartedOver(tp.topic, decoder.incarnation, decoder.joining_at, stable)
            self.started_over.append(found)

    def advance(self, tp: TopicPartition, position: int) -> None:
        """Everything before `position` has been taken."""
        self._inlets[tp.topic].positions[tp.partition] = position

    # --- topics that come, go and change --------------------------------------------------------

    def forget(self, found: Mapping[str, TopicInfo]) -> bool:
        """Lets go what is not there any more, or is another topic by now; whether there was any."""
        self._sightings.note(self._inlets, found)
        changed = False
        for inlet in self._inlets.values():
            info, deleted = found.get(inlet.topic), self._sightings.is_deleted(inlet.topic)
            change = change_of(inlet.id, len(inlet.positions), info, deleted=deleted)
            if inlet.step is None and not inlet.given_up:
                if info is None:
                    inlet.why = inlet.why or "does not exist yet"
            elif change in (TopicChange.DELETED, TopicChange.RECREATED):
                changed |= self._drop(inlet, f"was {change.value}")
                inlet.given_up = False
        return changed

    def leave_out(self, topic: str, why: str) -> bool:
        """Leaves a topic out until it is recreated."""
        inlet = self._inlets[topic]
        inlet.given_up = True
        return self._drop(inlet, why)

    def _drop(self, inlet: _Inlet, why: str) -> bool:
        attached = inlet.topic in self._merge.inputs
        if attached:
            self._merge.detach(inlet.topic)
        inlet.step, inlet.place, inlet.lag, inlet.why = None, None, None, why
        inlet.open = {}
        return attached

    def unplaced(self, found: Mapping[str, TopicInfo]) -> list[TopicPartition]:
        """The partitions that exist and could be read, and are not."""
        return [
            TopicPartition(topic, number)
            for topic, info in found.items()
            if not (inlet := self._inlets[topic]).given_up
            for number in range(
                0 if inlet.step is None else inlet.step.decoder.partitions, info.partitions
            )
        ]

    def admit(
        self,
        found: Mapping[str, TopicInfo],
        beginnings: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        snapshots: Mapping[str, Sequence[PartitionStart]] = _NO_BEGINNINGS,
    ) -> list[Element]:
        """Begins to read the partitions that were `unplaced`, or leaves their topic out; topics
        that are `unread` from `snapshots` where there are any. Returns what the operator emits."""
        out: list[Element] = []
        for topic in dict.fromkeys(tp.topic for tp in beginnings):
            inlet, info = self._inlets[topic], found[topic]
            if inlet.given_up:
                continue
            starts = {tp.partition: at for tp, at in beginnings.items() if tp.topic == topic}
            upto = {tp.partition: at for tp, at in ends.items() if tp.topic == topic}
            inlet.id = info.id
            if info.partitions > 1 and not self._merge.any_partitions:
                self.leave_out(topic, self._no_order(info.partitions))
            elif inlet.place is not None and _goes_on(inlet.place, info, starts, upto):
                self._resume(inlet, inlet.place, starts)
            elif inlet.step is None and topic in snapshots:
                out += self._begin_in_the_middle(inlet, snapshots[topic])
            elif why := self._incomplete(inlet, info, starts):
                self.leave_out(topic, why)
            else:
                self._begin(inlet, starts)
        return out

    def unread(self, found: Mapping[str, TopicInfo]) -> dict[str, int]:
        """Topics that exist, are not read, and have no place from a token, with their width."""
        return {
            topic: info.partitions
            for topic, info in found.items()
            if not (inlet := self._inlets[topic]).given_up
            and inlet.step is None
            and inlet.place is None
        }

    def _begin_in_the_middle(
        self, inlet: _Inlet, beginnings: Sequence[PartitionStart]
    ) -> list[Element]:
        inlet.positions = [each.offset for each in beginnings]
        incarnation, correct_from, holding = latest(beginnings)
        self._read(inlet, correct_from, incarnation)
        assert inlet.step is not None
        out: list[Element] = []
        for number, each in enumerate(holding):
            held: list[Element] = [*each.inserts(self._decoder)]
            if each.stable > START:
                held.append(Stable(each.stable))
            out += inlet.step.input.process(held, number)
        return out

    def _no_order(self, width: int) -> str:
        return (
            f"has {width} partitions, which give no order together; case {self._merge.case} needs "
            "one: use case R3 or R4"
        )

    @staticmethod
    def _incomplete(inlet: _Inlet, info: TopicInfo, starts: Mapping[int, int]) -> str | None:
        place, what = inlet.place, "the topic is correct (joining_at)"
        known = inlet.joining_at != START
        if known and place is not None and not is_another(place.id, info.id):
            known = inlet.joining_at > place.stated  # that was stated of what was there then
            what = f"what is left is correct (joining_at, beyond {place.stated})"
        for number, start in starts.items():
            if start > 0 and not known:
                return (
                    f"begins at offset {start} of partition {number}: what was before is gone; "
                    f"begin at a snapshot, without a token, or state from when on {what}"
                )
        return None

    def _begin(self, inlet: _Inlet, starts: Mapping[int, int]) -> None:
        """Reads a topic, or the partitions that it has got in addition, from the beginning."""
        cut = [number for number, start in starts.items() if start]
        if inlet.step is not None:
            inlet.positions += [starts[number] for number in sorted(starts)]
            inlet.step.widen(len(inlet.positions), cut)
            return
        if inlet.topic in self._merge.inputs:
            self._merge.detach(inlet.topic)  # as the token left it, which is no use any more
        inlet.positions = [starts[number] for number in sorted(starts)]
        inlet.stated = inlet.joining_at
        self._read(inlet, inlet.joining_at, cut=cut)

    def _resume(self, inlet: _Inlet, place: ReadPosition, starts: Mapping[int, int]) -> None:
        inlet.positions = list(place.positions)
        inlet.stated = place.stated
        self._read(inlet, place.joining_at, place.incarnation, cut=place.unshown, attached=True)
        assert inlet.step is not None
        inlet.step.decoder.repeats = Repeats(place.numbers)
        fresh = {n: start for n, start in starts.items() if n >= len(place.positions)}
        if fresh:
            self._begin(inlet, fresh)

    def _read(
        self,
        inlet: _Inlet,
        joining_at: int,
        incarnation: int = 0,
        *,
        cut: Iterable[int] = (),
        attached: bool = False,
    ) -> None:
        inlet.place, inlet.why = None, None
        inlet.step = MergeStep(
            self._merge,
            inlet.topic,
            self._decoder,
            topic=inlet.topic,
            partitions=len(inlet.positions),
            joining_at=joining_at,
            cut=cut,
            incarnation=incarnation,
            attached=attached,
        )

    def check(self) -> None:
        """Asserts the invariants, in words."""
        for inlet in self._inlets.values():
            attached = inlet.topic in self._merge.inputs
            held = inlet.step is not None or inlet.place is not None
            assert attached == held, f"T1: {inlet}"
            if inlet.step is not None:
                widths = (len(inlet.positions), inlet.step.decoder.partitions)
                assert widths[0] == widths[1], f"T2: {inlet} has positions for other partitions"
                assert not inlet.given_up, f"T1: {inlet} is read and left out"
        assert set(self._merge.inputs) <= set(self._inlets), "T1: an input that is no topic"

    # --- what is seen of it ---------------------------------------------------------------------

    def measure(
        self, ends: Mapping[TopicPartition, int], stable: Mapping[TopicPartition, int], now: float
    ) -> None:
        """Notes the lag and what is open, given the high watermarks of what is read, and the last
        stable offsets, which were asked for later."""
        for inlet in self._inlets.values():
            inlet.lag = None
        for tp, end in ends.items():
            inlet = self._inlets[tp.topic]
            position = inlet.positions[tp.partition]
            inlet.lag = (inlet.lag or 0) + max(0, end - position)
            before = inlet.open.pop(tp.partition, None)
            if position <= (at := stable[tp]) < end:
                since = before.since if before is not None and before.offset == at else now
                found = OpenTransaction(tp.topic, tp.partition, at, end - at, since)
                inlet.open[tp.partition] = found

    def unknown(self) -> None:
        """Kafka does not answer, so no lag is known."""
        for inlet in self._inlets.values():
            inlet.lag = None

    def open(self) -> Iterator[OpenTransaction]:
        """All transactions that were open when Kafka was last asked."""
        for inlet in self._inlets.values():
            yield from inlet.open.values()

    def status(self) -> list[TopicStatus]:
        """One status per topic, in the order in which they were given."""
        return [self._status(inlet) for inlet in self._inlets.values()]

    def _status(self, inlet: _Inlet) -> TopicStatus:
        source = self._merge.inputs.get(inlet.topic)
        decoder = None if inlet.step is None else inlet.step.decoder
        state: TopicState = "left out" if inlet.given_up else "missing"
        if inlet.step is not None and source is not None:
            state = "reading" if source.joined else "joining"
            state = "ended" if source.stable == INFINITY else state
        return TopicStatus(
            topic=inlet.topic,
            state=state,
            why=None if inlet.why is None else f"topic {inlet.topic} {inlet.why}",
            partitions=None if decoder is None else decoder.partitions,
            incarnation=None if decoder is None else decoder.incarnation,
            correct_from=None if decoder is None else decoder.joining_at,
            stable=None if source is None else source.stable,
            lag=inlet.lag,
            open=tuple(inlet.open.values()),
            first=0 if source is None else source.first,
            late=0 if source is None else source.late,
            breaches={} if source is None else {k.value: n for k, n in source.breaches.items()},
            dead=inlet.dead,
            stale=0 if decoder is None else decoder.stale,
            repeated=0 if decoder is None else decoder.repeated,
            contradicted=0 if decoder is None else decoder.contradicted,
        )


def _goes_on(
    place: ReadPosition, info: TopicInfo, starts: Mapping[int, int], ends: Mapping[int, int]
) -> bool:
    """The topic is the one that the token knew, and still has what comes next."""
    return (
        not is_another(place.id, info.id)
        and len(place.positions) <= info.partitions
        and all(starts[n] <= at <= ends[n] for n, at in enumerate(place.positions))
    )
