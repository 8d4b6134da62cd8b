"""Oversight in process: what it does to the state, the source and the control log."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmerge_service.config.topology import Topology
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.unread import Unread
from lmerge_service.merge.commit_record import PartitionCheckpoint, ReplicaCheckpoint
from lmerge_service.merge.decisions.ledger import Entry, Ledger, undisputed
from lmerge_service.merge.decisions.records import Decision, Release, decide
from lmerge_service.merge.decisions.records import encode as encoded
from lmerge_service.merge.findings.evidence import Evidence, RecordPlace
from lmerge_service.merge.findings.leading import Leading
from lmerge_service.merge.findings.reporting import Reporting
from lmerge_service.merge.liveness import Liveness
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.merge.task_state import TaskState
from lmerge_service.service.merge_loop import MergeLoop
from tests.merge.judged import UNIX_NS, topology_of

NOW_MS = UNIX_NS // 10**6
DAY = 86_400_000
A, B = TopicPartition("in.a", 0), TopicPartition("in.b", 0)


@dataclass
class Record:
    value: bytes
    offset: int
    headers: Sequence[tuple[str, bytes]] = ()
    key: bytes | None = None
    timestamp: int = 0


@dataclass
class Source:
    """Remembers what was asked of it."""

    paused: frozenset[TopicPartition] = frozenset()
    rewound: list[tuple[TopicPartition, int]] = field(default_factory=list)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused |= frozenset(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= frozenset(partitions)

    def rewind(self, tp: TopicPartition, offset: int) -> None:
        self.rewound.append((tp, offset))


class Overseen:
    """A task's state and its merge loop, with records from memory."""

    def __init__(self, topology: Topology, merged: str = "ab", *, decided: int = 1) -> None:
        self.now, self.source = 0.0, Source()
        self.living: dict[str, Liveness] = {}
        self.state = TaskState(topology, 0, tallies={}, clock=lambda: self.now)
        self.state.decided = decided
        for replica in topology.replicas:
            self.state.replicas.expect(replica, epoch=1)
            if replica.name in merged:
                standing = ReplicaCheckpoint(
                    replica.topic, {0: PartitionCheckpoint(0, 0)}, "id", epoch=1
                )
                self.state.replicas.resume(replica.name, standing, 1)
        self.reporting = Reporting(0, unix_ns=lambda: UNIX_NS)
        self.ends = dict.fromkeys([A, B], 0)
        self.out: list[Element] = []
        self.rebuild()

    def rebuild(self) -> None:
        """As after a failed commit: guards begin anew, over the same state."""
        self.merge_loop = MergeLoop(
            self.state, self.source, self.reporting,
            clock=lambda: self.now, unix_ns=lambda: UNIX_NS, living=self.living,
            leading=Leading(lambda: UNIX_NS),
        )  # fmt: skip

    def read(self, **published: Sequence[Element | bytes]) -> int:
        """A batch, from where each replica stands."""
        batches: dict[TopicPartition, Any] = {}
        for name, elements in published.items():
            start = self.state.replicas.states[name].next.get(0, 0)
            batches[TopicPartition(f"in.{name}", 0)] = [
                Record(each if isinstance(each, bytes) else encode(each), start + number)
                for number, each in enumerate(elements)
            ]
        batch = self.merge_loop.take(batches)
        self.out += batch.elements
        return batch.records

    def pace(self, *, lags: dict[str, int] | None = None, share: int = 1) -> None:
        for name, state in self.state.replicas.states.items():
            left = (lags or {}).get(name, 0)
            state.unread = Unread(left, readable=left > 0, open=(), asked_at=self.now)
        self.merge_loop.pace(share)

    def notified(self) -> list[tuple[str, str | None]]:
        found = [Evidence.of_record(value) for _, value in self.reporting.pending]
        return [(each.kind, each.replica) for each in found]


def test_a_held_stable_is_rewound_and_its_partition_paused_until_another_confirms_it() -> None:
    task = Overseen(topology_of("ab", max_leap=100))
    task.read(b=[Stable(10)])
    x = Insert(b'"x"', 12, 20)
    assert task.read(a=[x, Stable(900), Insert(b'"y"', 901, 902)], b=[Stable(11)]) == 2
    task.pace()
    assert task.source.rewound == [(A, 1)]
    assert task.source.paused == {A}
    assert task.state.replicas.states["a"].next == {0: 1}
    assert task.out == [Stable(10), x, Stable(11)]
    task.read(b=[Stable(105), Stable(200), Stable(300), Stable(400), Stable(500), Stable(600)])
    task.read(b=[Stable(700), Stable(795)])
    task.pace()
    assert task.source.paused == {A}
    task.read(b=[Stable(800)])
    task.pace()
    assert task.source.paused == frozenset()
    task.read(a=[Stable(900), Insert(b'"y"', 901, 902)])
    assert task.out[-2:] == [Stable(900), Insert(b'"y"', 901, 902)]
    assert task.notified() == [("leap", "a"), ("let_go", "a"), ("leader", "a")]


def test_who_is_read_is_decided_again_after_merging_while_one_is_held_and_after_a_while() -> None:
    task, found = Overseen(topology_of("ab", max_leap=100)), list[tuple[str, bool, bool]]()

    def look(when: str) -> None:
        found.append((when, task.merge_loop.must_pace, task.merge_loop.is_at_ease(1)))

    task.read(b=[Stable(10)])
    look("merged")
    task.pace()
    look("paced")
    task.now += 1
    look("a second later")
    task.read(a=[Stable(900)])
    task.pace()
    look("held")
    for t in (105, 200, 300, 400, 500, 600, 700, 795, 800):
        task.read(b=[Stable(t)])
    task.pace()
    look("let go")
    assert found == [
        ("merged", True, True), ("paced", False, True), ("a second later", True, True),
        ("held", True, False), ("let go", False, True),
    ]  # fmt: skip


def test_a_task_with_much_that_is_live_is_not_left_as_it_is() -> None:
    task = Overseen(topology_of("ab"))
    task.read(a=[Insert(b"%d" % n, n, n + 5) for n in range(10)])
    most = task.state.topology.limits.max_live_events
    assert task.merge_loop.is_at_ease(1)
    assert not task.merge_loop.is_at_ease(most // 10)


def test_a_breach_is_published_with_the_record_that_shows_it_the_1st_2nd_4th_time() -> None:
    task = Overseen(topology_of("ab"))
    task.read(a=[Stable(10), Insert(b'"x"', 3, 5), Stable(11)], b=[Stable(10)])
    (found,) = [Evidence.of_record(value) for _, value in task.reporting.pending]
    assert (found.kind, found.replica, found.count) == ("broke_own_stable", "a", 1)
    assert found.first == RecordPlace.of("in.a", 0, 1, encode(Insert(b'"x"', 3, 5)))
    task.read(a=[Insert(b'"%d"' % n, 3, 5) for n in range(4)])
    counts = [Evidence.of_record(value).count for _, value in task.reporting.pending]
    assert counts == [1, 2, 4]
    task.reporting.begin()
    task.reporting.settle(took_place=False)
    task.read(a=[Insert(b'"again"', 3, 5)])
    (found,) = [Evidence.of_record(value) for _, value in task.reporting.pending]
    assert found.count == 1, "what a failed commit found is found again"


def test_a_new_incarnation_takes_the_hold_away() -> None:
    task = Overseen(topology_of("ab", max_leap=100))
    task.read(b=[Stable(10)])
    task.read(a=[Stable(900)])
    task.pace()
    assert task.source.paused == {A}
    step = task.state.replicas.states["a"].step
    assert step is not None
    step.start_over(1, START)  # as by a record of another partition
    task.pace()
    assert task.source.paused == frozenset()


def test_a_quarantine_stops_the_replica_in_the_middle_of_a_batch() -> None:
    task = Overseen(topology_of("ab", unit="ms"))
    far: list[Element] = [
        Stable(NOW_MS - 5),
        Stable(NOW_MS + DAY),
        Insert(b'"x"', NOW_MS, NOW_MS + 1),
    ]
    assert task.read(a=far, b=[Stable(NOW_MS - 9)]) == 2
    assert task.merge_loop.withdrew
    assert list(task.state.merge.inputs) == ["b"]
    assert task.state.quarantined["a"].startswith("clock_skew: stable(")
    assert task.state.commit_record().quarantined.keys() == {"a"}
    assert "a" not in task.state.commit_record().replicas


def test_after_a_restart_guards_know_how_far_everybody_was() -> None:
    task = Overseen(topology_of("ab", max_leap=100))
    task.read(a=[Stable(10)], b=[Stable(50)])
    task.rebuild()
    task.read(b=[Stable(120), Stable(221)])
    assert task.out[-1] == Stable(120)
    assert task.state.replicas.states["b"].next == {0: 2}


def test_rebuilds_however_often_do_not_wear_patience_out() -> None:
    task = Overseen(topology_of("ab", patience_seconds=300))
    task.read(b=[Stable(5)], a=[Stable(9)])
    for _ in range(10):
        task.now += 31
        task.rebuild()
        task.pace()
        task.read(a=[Stable(INFINITY)])
        assert (task.out[-1] == Stable(INFINITY)) == (task.now > 300)


def test_a_replica_far_ahead_is_paused_and_the_limits_are_divided_among_tasks() -> None:
    topology = topology_of("ab").model_copy(
        update={"limits": topology_of("ab").limits.model_copy(update={"max_live_events": 40})}
    )
    for share, paused in ((1, frozenset()), (2, frozenset({A}))):
        task = Overseen(topology)
        task.read(b=[Stable(1)], a=[Insert(b"%d" % n, 10 + n, 99) for n in range(20)])
        task.pace(lags={"a": 7, "b": 3}, share=share)
        assert task.source.paused == paused
        assert task.merge_loop.pacing.stuck is None
    task.read(b=[Stable(100)])
    task.pace(lags={"a": 7, "b": 0})
    assert task.source.paused == frozenset()
    assert task.notified() == [("paused", "a"), ("resumed", "a")]


class Control:
    """A control log in memory, which is away at first."""

    def __init__(self, ledger: Ledger, failures: int = 0) -> None:
        self.ledger = ledger
        self.failures = failures
        self.tried: list[Decision] = []

    async def decide(self, decision: Decision) -> Entry:
        self.tried.append(decision)
        if self.failures:
            self.failures -= 1
            raise TransportError("away")
        known = self.ledger.entry(decision.id)
        entry = known or self.ledger.fold(self.ledger.offset, encoded(decision))
        assert entry is not None
        return entry


async def decided(task: Overseen, control: Control) -> None:
    running = asyncio.create_task(task.merge_loop.decide(control))
    async with asyncio.timeout(10):
        while control.ledger.replicas["a"].state is not DesiredState.QUARANTINED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(5):
            await asyncio.sleep(0)
    running.cancel()


def quarantined() -> tuple[Overseen, Ledger]:
    topology = topology_of("ab", unit="ms")
    task, ledger = Overseen(topology), undisputed(topology)
    for each in task.state.replicas.states.values():
        each.epoch = ledger.replicas[each.name].epoch
    task.read(b=[Stable(NOW_MS)])
    task.read(a=[Stable(NOW_MS + DAY)])
    return task, ledger


def test_a_quarantine_is_decided_once_however_long_kafka_is_away() -> None:
    task, ledger = quarantined()
    control = Control(ledger, failures=1)
    asyncio.run(decided(task, control))
    assert [each.id for each in control.tried] == [control.tried[0].id] * 2
    assert ledger.replicas["a"].reason == task.state.quarantined["a"]
    asyncio.run(decided(task, control))
    assert len(control.tried) == 2, "there is nothing left to decide"


def test_who_was_released_meanwhile_is_not_quarantined_for_what_was_before() -> None:
    task, ledger = quarantined()
    control = Control(ledger)
    asyncio.run(decided(task, control))
    ledger.fold(ledger.offset, encoded(decide(Release("a"), "anna")))
    assert ledger.replicas["a"].state is DesiredState.ATTACHED

    async def watched() -> None:
        running = asyncio.create_task(task.merge_loop.decide(control))
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(watched())
    assert len(control.tried) == 1
