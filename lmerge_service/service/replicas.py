"""The replicas of a merge task: which are merged, from where, with what counts, and why not.

Theory
    A replica is merged when its whole history can be had: its topic from the offset at which it
    was merged first, up to what is committed. Otherwise it is *held out*, with the reason in
    words, and the others go on. Where a replica stands (`Standing`) is stored with each offset.

    Counts are of this process: an operator that is rebuilt, or an input that is attached anew,
    starts from nothing, and what is shown must not fall.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from lmerge_service.core import Input, Operator
from lmerge_service.elements import START, Element
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import Decoder, build_decoder
from lmerge_service.formats.headers import TimedRecord
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.sink import OffsetAndMetadata
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.service.ingest import Ingest, Standing
from lmerge_service.topology import Replica

__all__ = ("ReplicaState", "Replicas")

log = structlog.get_logger()

_COUNTED = {
    "inserts": "inserts",
    "adjusts": "adjusts",
    "stables": "stables_in",
    "first": "first",
    "late": "late",
}


@dataclass(slots=True)
class ReplicaState:
    """What the task knows about one replica; None where it does not know."""

    replica: Replica
    ingest: Ingest | None = None
    held_out: str | None = None
    """Why the replica is not merged, in words."""
    counts: Counter[str] = field(default_factory=Counter)
    """Since the process began: records, dead, stale, and the names in `_COUNTED`."""
    breaches: Counter[str] = field(default_factory=Counter)
    troubled: float | None = None
    """When it last broke a rule or sent what is no element (monotonic seconds)."""
    last_record: float | None = None
    """When its last record was read (monotonic seconds)."""
    lag: int | None = None
    """Records and markers in its topic that have not been read."""
    begins: dict[TopicPartition, int] = field(default_factory=dict)


class Replicas:
    """The replicas of one task, over one operator that may be replaced."""

    def __init__(self, replicas: Iterable[Replica], decoder: WireDecoder):
        self.states = {each.name: ReplicaState(each) for each in replicas}
        self.by_topic = {state.replica.topic: state for state in self.states.values()}
        self.widths: dict[str, int] = {}
        self._decoder = decoder
        self._merge: Operator

    def start(self, merge: Operator) -> None:
        """Begins anew with an operator that has no inputs yet."""
        self._merge = merge
        self.widths = {}
        for state in self.states.values():
            state.ingest, state.held_out, state.lag = None, None, None

    def attach(
        self,
        topic: str,
        width: int | None,
        beginnings: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Attaches a topic's replica as it stood at the committed offsets, or holds it out."""
        state = self.by_topic[topic]
        state.ingest, state.held_out = None, None
        if width is None:
            state.held_out = f"topic {topic} does not exist yet"
            return
        self.widths[topic] = width
        if width > 1 and not self._merge.any_partitions:
            self.hold_out(topic, self._no_order(width))
            return
        own = [TopicPartition(topic, number) for number in range(width)]
        standings = {tp: Standing.of(committed[tp].metadata) for tp in own if tp in committed}
        for tp in own:
            why = self._missing(state, tp, beginnings[tp], standings.get(tp))
            if why is not None:
                self.hold_out(topic, why)
                return
        latest = max(standings.values(), key=lambda each: each.incarnation, default=None)
        joining_at = START if state.replica.joining_at is None else state.replica.joining_at
        state.begins = {
            tp: standings[tp].begins if tp in standings else beginnings[tp] for tp in own
        }
        state.ingest = Ingest(
            self._merge,
            state.replica.name,
            self._decoder,
            partitions=width,
            joining_at=joining_at if latest is None else latest.joining_at,
            incarnation=0 if latest is None else latest.incarnation,
            normalise=state.replica.normalise,
            dialect=self._dialect_of(state.replica),
        )

    def _dialect_of(self, replica: Replica) -> Callable[[], Decoder] | None:
        """What makes the decoders of a replica that speaks a dialect."""
        options, wire = replica.format, self._decoder
        if options == "wire":
            return None
        return lambda: build_decoder(options, wire.cache, wire.max_record_bytes)

    def _no_order(self, width: int) -> str:
        return (
            f"has {width} partitions, which give no order together; case {self._merge.case} needs "
            "one: use one partition, or case R3 or R4"
        )

    @staticmethod
    def _missing(
        state: ReplicaState, tp: TopicPartition, beginning: int, standing: Standing | None
    ) -> str | None:
        """What of a partition's history is gone, if that is needed."""
        if standing is not None and beginning > standing.begins:
            return (
                f"begins at offset {beginning}, but was merged from {standing.begins} on: the "
                "merge cannot be rebuilt with it; give it a new topic, and longer retention"
            )
        if standing is None and beginning > 0 and state.replica.joining_at is None:
            return (
                f"begins at offset {beginning}: what was before is gone; say in the topology "
                "from when the replica is correct (joining_at), or give it a new topic"
            )
        return None

    def hold_out(self, topic: str, why: str) -> None:
        """Goes on without a replica."""
        state = self.by_topic[topic]
        state.held_out = f"topic {topic} {why}"
        state.lag = None
        if state.ingest is not None:
            state.ingest = None
            self._merge.detach(state.replica.name)
        log.warning("replica held out", replica=state.replica.name, why=state.held_out)

    def is_merged(self, tp: TopicPartition) -> bool:
        return self.by_topic[tp.topic].ingest is not None

    def widen(self, topic: str, width: int, beginnings: Mapping[TopicPartition, int]) -> None:
        """A topic has got more partitions."""
        state, before = self.by_topic[topic], self.widths[topic]
        self.widths[topic] = width
        if state.ingest is not None and not self._merge.any_partitions:
            self.hold_out(topic, self._no_order(width))
        if state.ingest is not None:
            state.ingest.widen(width)
            fresh = (TopicPartition(topic, number) for number in range(before, width))
            state.begins |= {tp: beginnings[tp] for tp in fresh}

    def replay(self, tp: TopicPartition, records: Iterable[TimedRecord]) -> list[Element]:
        """Feeds a committed prefix; returns what comes out, which should be nothing."""
        ingest = self.by_topic[tp.topic].ingest
        assert ingest is not None
        out: list[Element] = []
        ingest.take(records, out, [], recall=True)
        return out

    def take(
        self,
        tp: TopicPartition,
        records: list[TimedRecord],
        out: list[Element],
        dead: list[DeadLetter],
    ) -> None:
        """Feeds new records of a merged replica, and counts."""
        state = self.by_topic[tp.topic]
        ingest, counts = state.ingest, state.counts
        assert ingest is not None
        name, had, stale = state.replica.name, len(dead), ingest.stale
        before = self._merge.inputs[name]
        was = _of_input(before)
        ingest.take(records, out, dead)
        after = self._merge.inputs[name]
        if after is not before:  # a new incarnation counts from nothing
            was = dict.fromkeys(was, 0)
        counts.update({what: now - was[what] for what, now in _of_input(after).items()})
        counts.update(stale=ingest.stale - stale, records=len(records), dead=len(dead) - had)
        state.last_record = time.monotonic()
        if len(dead) > had:
            state.troubled = state.last_record

    def offset_after(self, tp: TopicPartition, offset: int) -> OffsetAndMetadata:
        """What to commit when everything up to `offset` has been merged."""
        state = self.by_topic[tp.topic]
        assert state.ingest is not None
        standing = Standing(state.ingest.incarnation, state.ingest.joining_at, state.begins[tp])
        return OffsetAndMetadata(offset + 1, standing.text())


def _of_input(source: Input) -> dict[str, int]:
    return {name: getattr(source, attribute) for name, attribute in _COUNTED.items()}
