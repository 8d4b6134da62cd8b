"""The topic monitor of a task, over topics that come, go and change; without Kafka."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping

from lmerge_service.config.topology import Topology
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import TopicInfo
from lmerge_service.merge.task_state import TaskState
from lmerge_service.merge.topic_monitor import TopicMonitor

TOPOLOGY = Topology.model_validate(
    {
        "name": "t",
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "output": {"topic": "t.out"},
        "replicas": [{"name": name, "topic": f"t.{name}"} for name in "ab"],
    }
)


class Kafka:
    """Topics and a source of them, as the monitor asks for them."""

    def __init__(self) -> None:
        self.found: dict[str, TopicInfo] = {}
        self.refused: frozenset[str] = frozenset()
        self.lost: dict[TopicPartition, str] = {}
        self.asked = 0
        """How often it was asked where partitions begin or end."""

    async def describe(
        self, topics: Collection[str], seconds: float = 1.0
    ) -> Mapping[str, TopicInfo]:
        return {topic: info for topic, info in self.found.items() if topic in topics}

    async def beginnings(
        self, partitions: Collection[TopicPartition], seconds: float = 1.0
    ) -> dict[TopicPartition, int]:
        self.asked += 1
        return dict.fromkeys(partitions, 0)

    ends = high_watermarks = beginnings

    def position(self, partition: TopicPartition) -> int:
        return 0


class Watched:
    """A monitor over a task that merges a and b."""

    def __init__(self, ids: bool = True) -> None:
        self.kafka = Kafka()
        self.kafka.found = {f"t.{n}": TopicInfo(f"id-{n}" if ids else None, 1) for n in "ab"}
        self.state = TaskState(TOPOLOGY, 0, tallies={}, clock=lambda: 0.0)
        for replica in TOPOLOGY.replicas:
            self.state.replicas.expect(replica)
        self.monitor = TopicMonitor(
            self.state, self.kafka, self.kafka,  # type: ignore[arg-type]
            clock=lambda: 0.0, detached=dict, unheeded=Counter(),
        )  # fmt: skip
        assert self.look()
        assert self.excluded == {}

    def look(self) -> bool:
        asyncio.run(self.monitor.look())
        return self.act()

    def act(self) -> bool:
        return asyncio.run(self.monitor.act())

    @property
    def excluded(self) -> dict[str, str]:
        states = self.state.replicas.states.items()
        return {name: each.excluded for name, each in states if each.excluded is not None}


def test_a_topic_that_is_missing_twice_in_a_row_is_deleted_and_merged_when_it_is_back() -> None:
    watched = Watched()
    info = watched.kafka.found.pop("t.b")
    assert not watched.look()
    assert watched.excluded == {}
    assert watched.look()
    assert watched.excluded == {"b": "topic t.b was deleted"}
    watched.kafka.found["t.b"] = info
    assert watched.look()
    assert watched.excluded == {}


def test_replicas_that_begin_together_are_asked_about_together() -> None:
    """One after the other, with 100 replicas and 64 tasks, a worker never came to lead."""
    assert Watched().kafka.asked == 2


def test_one_look_at_which_a_topic_is_missing_counts_once_whatever_else_is_lost() -> None:
    """A broker that has just started knows one topic alone, and that one has lost records."""
    watched = Watched()
    del watched.kafka.found["t.b"]
    asyncio.run(watched.monitor.look())
    watched.kafka.lost = {TopicPartition("t.a", 0): "begins at offset 9"}
    assert watched.act()
    assert watched.excluded == {"a": "topic t.a partition 0 begins at offset 9"}


def test_a_recreated_topic_is_merged_from_its_beginning_and_a_wider_one_is_widened() -> None:
    watched = Watched()
    watched.kafka.found["t.a"] = TopicInfo("another", 1)
    assert watched.look()
    assert watched.state.replicas.states["a"].topic_id == "another"
    watched.kafka.found["t.a"] = TopicInfo("another", 3)
    assert watched.look()
    assert len(watched.state.replicas.states["a"].next) == 3
    assert not watched.look()


def test_an_id_that_brokers_return_from_some_time_on_is_no_other_topic() -> None:
    watched = Watched(ids=False)
    watched.kafka.found["t.a"] = TopicInfo("x", 1)
    assert not watched.look()
    assert watched.state.replicas.states["a"].topic_id == "x"
    watched.kafka.found["t.a"] = TopicInfo(None, 1)
    assert not watched.look()
    watched.kafka.found["t.a"] = TopicInfo("y", 1)
    assert watched.look()
