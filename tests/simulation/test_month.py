"""A month in compressed time: what is kept, what is in memory, and what a start and a recovery read
is the same on the last day as on the first ones.

Theory
    A day takes a minute, and `output.keep` is one day. Each second two replicas publish an event
    that lasts for some seconds, one of them with a revision, and twenty decisions are made. At the
    end of each day the broker compacts what is to be compacted, and deletes what is older than a
    day of the topics that it bounds by itself; the worker is killed, and the next one starts. All
    is counted in records and events; nothing is measured by a clock.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.drills.records import CommittedRecord
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decisions import records as decisions
from lmerge_service.merge.decisions.records import AcceptGap
from lmerge_service.service.task import MergeTask
from lmerge_service.service.task_phases import Phase
from lmerge_service.service.worker import Worker
from lmerge_service.tdb import TDB, reconstitute
from tests.simulation.adapter import build, machine, work
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network

DAY, DAYS = 60, 30
LASTS = 20
"""How long an event does, in seconds."""
TOPOLOGY = Topology.model_validate(
    {
        "name": "m",
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "output": {"topic": "out", "keep": f"{DAY}s", "table": True},
        "policy": {"adjust": "eager"},
        "snapshot_seconds": 5,
        "replicas": [{"name": name, "topic": f"in.{name}"} for name in "ab"],
    }
)
OUTPUT = TOPOLOGY.output
SOURCES = [TopicPartition(f"in.{name}", 0) for name in "ab"]
SPAN = 10
"""So many days are compared with the last so many."""


class CountingBroker(Broker):
    """Counts the records that are read, by topic."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.read: Counter[str] = Counter()

    def fetch(
        self, tp: TopicPartition, offset: int, most: int
    ) -> tuple[list[CommittedRecord], int]:
        found = super().fetch(tp, offset, most)
        self.read[tp.topic] += len(found[0])
        return found


def at(second: int) -> list[list[Element]]:
    """What each replica publishes in a second: the second one revises what it guesses."""
    payload = b"%d" % second
    event = Insert(payload, second, second + LASTS)
    guess = [Insert(payload, second, second + 2 * LASTS)]
    revision = Adjust(payload, second, second + 2 * LASTS, second + LASTS)
    return [[event, Stable(second)], [*guess, revision, Stable(second)]]


async def until_leading(worker: Worker) -> MergeTask:
    while True:
        await asyncio.sleep(0.1)
        for held in worker.held.values():
            if held.task.phase is Phase.LEADING and held.task.table is not None:
                return held.task


async def day(broker: CountingBroker, number: int) -> Counter[str]:
    """Lives through a day with one worker, which is killed in the end; what there is then."""
    network = Network(broker, Random(number), name=f"worker-{number}")
    broker.read.clear()
    worker = build(TOPOLOGY, network)
    working = asyncio.create_task(work(worker))
    task = await until_leading(worker)
    found = Counter({f"read of {topic}": count for topic, count in broker.read.items()})
    for second in range(number * DAY, (number + 1) * DAY):
        for tp, elements in zip(SOURCES, at(second), strict=True):
            broker.produce(tp, [(None, encode(each), ()) for each in elements])
        control = TopicPartition(OUTPUT.control_topic, 0)
        for _ in range(20):
            decision = decisions.decide(AcceptGap("a", 9), "anna")
            broker.produce(control, [(None, decisions.encode(decision), ())])
        await asyncio.sleep(1)
        assert not working.done(), working
    assert worker.control is not None
    found["events in memory"] = len(task.state.merge)
    found["decisions in memory"] = len(worker.control.ledger.history)
    found["samples of the table"] = len(task.table.samples) if task.table is not None else 0
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    network.close()
    before = int((asyncio.get_running_loop().time() - DAY) * 1_000)
    for topic in (OUTPUT.state_topic, OUTPUT.table_topic):
        broker.compact(topic, forget_before=before)
    for tp in (*SOURCES, TopicPartition(OUTPUT.events_topic, 0)):
        broker.truncate(tp, broker.since(tp, before))
    for topic in broker.names():
        found[f"kept of {topic}"] = len(broker.topic(topic).records)
    return found


async def days(count: int) -> tuple[list[Counter[str]], TDB]:
    broker = CountingBroker(asyncio.get_running_loop().time)
    for tp in SOURCES:
        broker.create(tp.topic)
    lived = [await day(broker, number) for number in range(count)]
    output = broker.topic(OUTPUT.topic, ever=True).records
    return lived, reconstitute(WireDecoder().decode(each.value) for each in output)


def assert_flat(lived: Sequence[Counter[str]]) -> None:
    """The last days have no more than those behind the first one, and no day has much more: what a
    recovery reads depends on how long ago the last snapshot was when the worker was killed."""
    for what in sorted({name for each in lived for name in each}):
        counts = [each[what] for each in lived[1:]]
        first, last = counts[:SPAN], counts[-SPAN:]
        assert sum(last) <= 1.2 * sum(first) + SPAN, f"{what}: {counts}"
        assert max(counts) <= 2 * max(first) + 10, f"{what}: {counts}"


@pytest.mark.full
def test_the_last_day_of_a_month_takes_no_more_than_the_first_ones() -> None:
    with machine(Random(1), Random(2)):
        lived, tdb = run(days(DAYS))
    assert_flat(lived)
    assert lived[-1]["read of out"] > 0
    assert lived[-1]["kept of out.table"] > LASTS
    assert 0 < lived[-1]["kept of out"] < 5 * 2 * DAY
    published = DAYS * DAY
    assert len(tdb) >= published - LASTS, "an event of each second, but for what was not read yet"
    assert all(ve == vs + LASTS for _, vs, ve in tdb if ve < tdb.stable)
