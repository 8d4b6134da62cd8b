"""Tasks that read a replica together merge what each would alone, wherever they stop and go on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.config.topology import Replica
from lmerge_service.core import lmerge
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.formats.routing import Ownership, Router
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decoding import DecodedPiece
from lmerge_service.merge.guards.evaluator import GuardEvaluator
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.replicas import ReplicaAttachment
from lmerge_service.merge.step import MergeStep
from lmerge_service.service.reading.shared_input import SharedInput
from tests.merge.judged import topology_of
from tests.service.test_guarding import Overseen

TASKS, PARTITIONS = 3, 2
RULINGS = (Ruling.MERGE, Ruling.MERGE, Ruling.MERGE_AND_STOP, Ruling.WAIT)
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Published:
    value: bytes | None
    offset: int
    headers: Sequence[tuple[str, bytes]]
    key: bytes | None = None
    timestamp: int = 0


class Scripted:
    """Guards that rule by a script on stables behind `calms`, and let a stable pass that has waited
    once."""

    def __init__(self, rulings: dict[Place, Ruling], calms: int = START):
        self._rulings, self._calms = dict(rulings), calms
        self.judged: list[tuple[int, int]] = []
        """Of all stables, partition and time."""

    def calm(self, *_: object) -> int:
        return self._calms

    def passed(self, _: str, partition: int, stables: Sequence[int]) -> None:
        assert max(stables) <= self._calms
        self.judged += [(partition, vc) for vc in stables]

    def stable(self, _: str, partition: int, vc: int, offset: int) -> Ruling:
        self.judged.append((partition, vc))
        if vc <= self._calms:
            return Ruling.MERGE
        ruling = self._rulings.get((partition, offset), Ruling.MERGE)
        if ruling is Ruling.WAIT:
            self._rulings[partition, offset] = Ruling.MERGE
        return ruling

    def started_over(self, _: str, __: int) -> None: ...


@dataclass(eq=False)
class Task:
    """A task that merges one replica; alone, unless it is in an input's `members`."""

    partition: int
    rulings: dict[Place, Ruling]
    calms: int = START
    out: list[Element] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    is_busy = False
    capacity = 100

    def __post_init__(self) -> None:
        self.guards = cast(GuardEvaluator, Scripted(self.rulings, self.calms))
        self.merge = lmerge()
        self.step = MergeStep(
            self.merge, "r", WireDecoder(), topic="in", partitions=PARTITIONS,
            owned=Ownership(Router(TASKS), self.partition),
        )  # fmt: skip
        self.waits = False

    @property
    def stable(self) -> int:
        return self.merge.max_stable

    def alone(self, partition: int, records: Sequence[Published]) -> None:
        """Merges the records that it has not merged yet."""
        while rest := [each for each in records if each.offset >= self.next[partition]]:
            self.next[partition] = self.step.take(
                partition, rest, self.out, self.dead, guards=self.guards
            )

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def wake(self) -> None: ...

    def open(self, tp: TopicPartition, records: Sequence[Record]) -> int:
        self.waits, self._partition = False, tp.partition
        return self.step.open(tp.partition, self.out, guards=self.guards, routed=True)

    def offer(
        self, piece: DecodedPiece, elements: Sequence[Element], last: Sequence[Element]
    ) -> Ruling:
        ruling = self.step.offer(piece, elements, last)
        self.waits = ruling is Ruling.WAIT
        return ruling

    def close(self, letters: Sequence[DeadLetter], elsewhere: Callable[[], int]) -> None:
        self.dead += letters
        self.next[self._partition] = self.step.close()

    def goes_on(self, tp: TopicPartition) -> bool:
        return not self.waits

    def leave(self, shared: SharedInput[Any], taken_back: DecodedPiece | None = None) -> None:
        self.step.decoder = shared.decoder.forked(WireDecoder(), None)
        if taken_back is not None:
            self.step.take_back(taken_back)

    def fail(self, error: Exception) -> None:
        raise error

    @property
    def seen(self) -> dict[str, Any]:
        decoder = self.step.decoder
        return {
            "emitted": self.out,
            "judged": cast(Any, self.guards).judged,
            "dead": [(each.partition, each.offset, each.reason) for each in self.dead],
            "next": self.next,
            "remembered": sorted(decoder.parts()),
            "counted": (decoder.stale, decoder.repeated, decoder.contradicted),
            "incarnation": (decoder.incarnation, decoder.joining_at),
            "operator": sorted(self.merge.parts()),
        }


def input_of(task: Task) -> SharedInput[Any]:
    """An input that this task founds."""
    begins = tuple(dict.fromkeys(range(PARTITIONS), 0).items())
    attachment = ReplicaAttachment(Replica(name="r", topic="in"), None, PARTITIONS, begins)
    decoder = task.step.decoder.forked(WireDecoder(), None)
    return SharedInput(attachment, decoder, task.next, Router(TASKS))


def join(shared: SharedInput[Any], task: Task) -> None:
    own, others = task.step.decoder, shared.decoder
    assert task.next == shared.next
    assert sorted(own.parts()) == sorted(others.parts())
    task.step.decoder = others
    shared.members.append(task)


values = st.one_of(
    st.builds(
        lambda key, vs, length: encode(Insert(b'"%d"' % key, vs, vs + length)),
        st.integers(0, 8), st.integers(0, 50), st.integers(1, 9),
    ),
    st.builds(lambda vc: encode(Stable(vc)), st.integers(0, 50)),
    st.builds(lambda vc: encode(Stable(vc)), st.integers(0, 50)),
    st.sampled_from([b"junk", None]),
)  # fmt: skip
headers = st.builds(
    lambda incarnation, seq: [
        *incarnation_headers(incarnation),
        *([] if seq is None else [(SEQ_HEADER, b"%d" % seq)]),
    ],
    st.sampled_from([0, 0, 0, 1, 2]),
    st.none() | st.integers(1, 6),
)
batches = st.lists(
    st.tuples(
        st.integers(0, PARTITIONS - 1), st.lists(st.tuples(values, headers), min_size=1, max_size=9)
    ),
    max_size=8,
)
rulings = st.dictionaries(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 30)), st.sampled_from(RULINGS)
)


def numbered(published: Sequence[Any]) -> list[tuple[int, list[Published]]]:
    """With offsets, of which some are missing as behind a transaction's marker."""
    ends, found = [0] * PARTITIONS, []
    for partition, records in published:
        some = [Published(v, ends[partition] + n, h) for n, (v, h) in enumerate(records)]
        ends[partition] = some[-1].offset + 2
        found.append((partition, some))
    return found


@given(
    batches,
    st.lists(rulings, min_size=TASKS, max_size=TASKS),
    st.lists(st.sampled_from([START, 20, 49]), min_size=TASKS, max_size=TASKS),
    st.integers(1, 5),
)
def test_tasks_that_read_together_merge_what_each_would_alone(
    published: Sequence[Any], ruled: list[dict[Place, Ruling]], calms: list[int], size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmerge_service.service.reading.shared_input.chunk_of", lambda _: size)
        together = [Task(number, ruled[number], calms[number]) for number in range(TASKS)]
        alone = [Task(number, ruled[number], calms[number]) for number in range(TASKS)]
        shared = input_of(together[0])
        for task in together:
            join(shared, task)
        for partition, records in numbered(published):
            shared.deliver(partition, cast(list[Record], records))
            apart = [each for each in together if each not in shared.members]
            for task in apart:
                task.alone(partition, records)
            if len(apart) == TASKS:
                shared = input_of(apart[0])
            for task in apart:
                join(shared, task)
            for other in alone:
                other.alone(partition, records)
        for task, other in zip(together, alone, strict=True):
            assert task.seen == other.seen


class Noting(Scripted):
    """Remembers the offsets of the contradictions that it is shown."""

    def __init__(self, rulings: dict[Place, Ruling]):
        super().__init__(rulings)
        self.shown: list[int] = []

    def after(self, *_: object) -> bool:
        return False

    def noted(self, *found: Any) -> None:
        self.shown += [each.offset for each in found[3]]


def test_a_contradiction_before_a_stop_in_a_chunk_is_shown_to_guards_once() -> None:
    """Of two in a row a guard believes that two producers write the topic."""
    replicas = Overseen(topology_of("a"), merged="a").state.replicas
    guards = Noting({(0, 2): Ruling.MERGE_AND_STOP})
    first = [(SEQ_HEADER, b"1")]
    values = [*(encode(Insert(b'"%d"' % key, key, 9)) for key in (1, 2)), encode(Stable(1))]
    values.append(encode(Insert(b'"3"', 3, 9)))
    records: Any = [Published(v, n, first if n < 2 else []) for n, v in enumerate(values)]
    tp, out = TopicPartition("in.a", 0), list[Element]()
    chunk = replicas.open(tp, records, [], cast(GuardEvaluator, guards))
    chunk.open(out)
    stops = 0
    for piece in chunk.step.decoder.pieces(0, records, [], by_stable=True):
        if chunk.step.offer(piece, piece.elements, piece.last) is Ruling.MERGE_AND_STOP:
            stops += 1
            chunk.close(lambda: False)
            chunk = replicas.open(tp, records[3:], [], cast(GuardEvaluator, guards))
            chunk.open(out)
    chunk.close(lambda: False)
    assert (stops, guards.shown) == (1, [1])
