"""What the tests of the merge in Spark share: plans without a Kafka, batches, a store in memory,
and what the plain operator emits for them."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lmerge_service.config.topology import Topology
from lmerge_service.core import lmerge
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import Action, Decision
from lmerge_service.merge.decisions.records import encode as decision_record
from lmerge_service.merge.decoding import DecodedRecord
from lmerge_service.spark.merge.bucket import Bucket
from lmerge_service.spark.merge.chunks import Chunk, NativeChunk, packed
from lmerge_service.spark.merge.packing import Run, Tools, rule_of, shares
from lmerge_service.spark.merge.plan import MergePlan, Work, work_of
from lmerge_service.spark.merge.planning import KafkaView, Planned, next_step
from lmerge_service.spark.state import Cache

__all__ = (
    "Batch",
    "Memory",
    "chunks_for",
    "decided",
    "fresh_cache",
    "in_bytes",
    "partitioned",
    "planned",
    "seen_of",
    "the_plain_operator",
    "topology_of",
    "work_for",
)

Place = tuple[str, int]
Batch = Mapping[Place, Sequence[DecodedRecord]]


def topology_of(
    names: Sequence[str], *, case: str = "R3", buckets: int = 1, **fields: Any
) -> Topology:
    """Replicas by name; each has the topic `t.NAME`."""
    return Topology.model_validate(
        {
            "name": "t",
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "output": {"topic": "t.out", "partitions": buckets},
            "case": case,
            "replicas": [{"name": name, "topic": f"t.{name}"} for name in names],
            **fields,
        }
    )


def seen_of(widths: Mapping[str, int], decisions: Sequence[bytes | None] = ()) -> KafkaView:
    """Topics that begin at 0; their ids are their names."""
    places = [
        TopicPartition(f"t.{name}", n) for name, width in widths.items() for n in range(width)
    ]
    return KafkaView(
        {f"t.{name}": TopicInfo(f"id of t.{name}", width) for name, width in widths.items()},
        dict.fromkeys(places, 0),
        dict.fromkeys(places, 0),
        decisions,
    )


def planned(topology: Topology, widths: Mapping[str, int]) -> tuple[MergePlan, Ledger]:
    """A plan of one step: the topology is declared, and the topics there are begun."""
    ledger = Ledger(topology)
    declaration = ledger.declaring(topology)
    assert declaration is not None
    return decided(MergePlan.new(topology), ledger, widths, declaration, batch=0), ledger


def decided(
    plan: MergePlan,
    ledger: Ledger,
    widths: Mapping[str, int],
    *actions: Action,
    batch: int,
    known: Sequence[str] = (),
) -> MergePlan:
    """The plan after these decisions, from a batch on; Spark knows these topics."""
    values = []
    for action in actions:
        value = decision_record(Decision(f"d{ledger.offset}", action, "anna", made=0))
        entry = ledger.fold(ledger.offset, value)
        assert entry is not None
        assert entry.accepted, entry
        values.append(value)
    topics = {topic: {0: 0} for topic in known}
    step = next_step(plan, ledger, seen_of(widths, values), Planned(batch, topics))
    return plan if step is None else plan.with_step(step)


def work_for(topology: Topology, plan: MergePlan) -> Work:
    return work_of(topology, plan, tuple(range(topology.output.partitions)))


def in_bytes(element: Element) -> Element:
    """With the payload in canonical form."""
    if type(element) is Stable:
        return element
    payload = msgspec.json.encode(element.payload)  # type: ignore[union-attr]
    return msgspec.structs.replace(element, payload=payload)


def partitioned(elements: Sequence[Element], width: int) -> list[list[DecodedRecord]]:
    """The records of each partition of a topic; stables are in all."""
    found: list[list[DecodedRecord]] = [[] for _ in range(width)]
    for element in map(in_bytes, elements):
        everywhere = isinstance(element, Stable)
        for records in found if everywhere else [found[sum(element.payload) % width]]:  # type: ignore[union-attr]
            records.append(DecodedRecord(len(records), b"k", encode(element), (), 1))
    return found


def chunks_for(work: Work, batch: Batch, bucket: int, number: int, size: int) -> list[bytes]:
    """What `packing` hands to a bucket, of runs of so many records."""
    native = work.topology.engine_choice.is_native
    tools = Tools(rule_of(work), len(work.keys), work.topology.key, native=native)
    kinds, found = work.plan.topics_at(number), list[Chunk | NativeChunk]()
    for (topic, partition), records in batch.items():
        for start in range(0, len(records), size):
            some = records[start : start + size]
            run = Run(
                topic,
                partition,
                [each.offset for each in some],
                [each.value for each in some],
                [each.key for each in some],
                [each.timestamp for each in some],
            )
            run.headers = {at: [*each.headers] for at, each in enumerate(some) if each.headers}
            if (kind := kinds.get(topic)) is not None:
                shared = shares(kind, len(work.keys), run, tools)
                found += [chunk for to, chunk in shared if to == bucket]
    return [packed(each) for each in found]


def fresh_cache() -> Cache:
    return OrderedDict()


class Memory:
    """A bucket's variables, and their values before the batch."""

    def __init__(self) -> None:
        self._head: bytes | None = None
        self.log: dict[int, bytes] = {}
        self.pages: dict[int, bytes] = {}
        self.written = 0
        self.read: list[tuple[str, int]] = []

    def copy(self) -> "Memory":
        other = Memory()
        other._head, other.log, other.pages = self._head, dict(self.log), dict(self.pages)
        return other

    def head(self) -> bytes | None:
        return self._head

    def set_head(self, data: bytes) -> None:
        self._head = data
        self.written += len(data)

    def entry(self, number: int) -> bytes | None:
        self.read.append(("log", number))
        return self.log.get(number)

    def append(self, number: int, data: bytes) -> None:
        self.log[number] = data
        self.written += len(data)

    def page(self, number: int) -> bytes | None:
        self.read.append(("page", number))
        return self.pages.get(number)

    def set_page(self, number: int, data: bytes) -> None:
        self.pages[number] = data
        self.written += len(data)

    def clear(self) -> None:
        self.log.clear()
        self.pages.clear()


def bucket_of(work: Work, number: int) -> Bucket:
    return Bucket(work.topology, work.plan, number)


def the_plain_operator(
    topology: Topology, widths: Mapping[str, int], batches: Sequence[Batch], bucket: int
) -> Iterator[list[Element]]:
    """What an operator emits that is given each batch in order of topic, partition and offset, and
    of it what its bucket's keys are."""
    merge = lmerge(topology.resolved_case, topology.policy.policy())
    router = Router(topology.output.partitions, topology.key)
    decoder = WireDecoder(nfc=topology.nfc)
    for name, width in widths.items():
        merge.attach(name, partitions=width)
    for batch in batches:
        out: list[Element] = []
        for (topic, partition), records in sorted(batch.items()):
            for record in records:
                try:
                    element = decoder.decode(record.value)
                except ElementError:
                    continue
                mine = not isinstance(element, Insert | Adjust) or (
                    router.partition_of(element.payload) == bucket
                )
                if mine:
                    out += merge.process(topic.removeprefix("t."), element, partition)
        yield out
