"""States that are advanced together are what each would be alone, whatever their tasks commit, and
whenever one comes or goes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.config.topology import Replica, Topology
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.formats.headers import incarnation_headers, incarnation_of
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import PartitionCheckpoint, ReplicaCheckpoint
from lmerge_service.merge.task_state import TaskState
from lmerge_service.service.reading import shared_replay
from lmerge_service.service.reading.shared_replay import SharedReplay
from tests.service.test_shared_reading import Published

TASKS, PARTITIONS = 3, 2
TOPOLOGY = Topology.model_validate(
    {
        "name": "t",
        "kafka": {"bootstrap": "127.0.0.1:9092"},
        "output": {"topic": "out", "partitions": TASKS},
        "replicas": [{"name": "a", "topic": "in.a"}],
    }
)
PLACES = [TopicPartition("in.a", number) for number in range(PARTITIONS)]


class Kafka:
    """A topic of a replica, and the consumer that reads it."""

    def __init__(self, records: Sequence[list[Published]]) -> None:
        self.records = dict(zip(PLACES, records, strict=True))
        self.lost: dict[TopicPartition, str] = {}
        self.read = 0
        self.away = False

    @asynccontextmanager
    async def source(self, *, max_record_bytes: int) -> AsyncIterator["Kafka"]:
        yield self

    async def beginnings(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    async def ends(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if self.away:
            raise TransportError("away")
        return {tp: len(self.records[tp]) for tp in places}

    async def backlog(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> AsyncIterator[tuple[TopicPartition, list[Published]]]:
        for tp, start in starts.items():
            found = self.records[tp][start : ends[tp]]
            for at in range(0, len(found), 3):
                await asyncio.sleep(0)
                self.read += len(found[at : at + 3])
                yield tp, found[at : at + 3]


@asynccontextmanager
async def replaying(kafka: Kafka) -> AsyncIterator[tuple[SharedReplay, list[TaskState]]]:
    """A replay that runs, and states of all tasks that have replayed nothing."""
    replay = SharedReplay(cast(Any, kafka), TOPOLOGY, asyncio.get_running_loop().time)
    running = asyncio.create_task(replay.run())
    async with asyncio.timeout(10):
        yield replay, [state_of(number) for number in range(TASKS)]
    running.cancel()


def state_of(partition: int, output: Sequence[Element] = ()) -> TaskState:
    """With the output that was committed; no input is replayed yet."""
    state = TaskState(TOPOLOGY, partition, tallies={}, clock=lambda: 0.0)
    state.replicas.expect(Replica(name="a", topic="in.a"))
    beginnings = {number: PartitionCheckpoint(0, 0) for number in range(PARTITIONS)}
    state.replicas.resume("a", ReplicaCheckpoint("in.a", beginnings, "id"), PARTITIONS)
    state.merge.replay_output(output)
    return state


def start_over(
    kafka: Kafka,
    state: TaskState,
    upto: Mapping[TopicPartition, int],
    replay: SharedReplay | None = None,
) -> None:
    """The commit record names the incarnation: what is of an older one was dropped."""
    step = state.replicas.states["a"].step
    assert step is not None
    merged = (each for tp, end in upto.items() for each in kafka.records[tp][:end])
    incarnation = max((incarnation_of(each.headers)[0] for each in merged), default=0)
    if incarnation > step.decoder.incarnation:
        if replay is not None:
            replay.part(state, "a")
        step.start_over(incarnation, START)


def alone(kafka: Kafka, state: TaskState, upto: Mapping[TopicPartition, int]) -> None:
    for tp, end in upto.items():
        start = state.replicas.positions()[tp]
        if start < end:
            state.replicas.replay_input(tp, cast(Any, kafka.records[tp][start:end]))
            state.replicas.arrive(tp, end)


def emitted(
    kafka: Kafka, partition: int, commits: Sequence[Mapping[TopicPartition, int]]
) -> list[Element]:
    """What the task that leads has published with these commits."""
    (step,) = [each.step for each in state_of(partition).replicas.merged.values()]
    out: list[Element] = []
    assert step is not None
    for before, commit in pairwise(commits):
        for tp, end in commit.items():
            if before[tp] < end:
                step.take(tp.partition, cast(Any, kafka.records[tp][before[tp] : end]), out, [])
    return out


async def followed(
    kafka: Kafka, replay: SharedReplay, state: TaskState, upto: Mapping[TopicPartition, int]
) -> None:
    """A step of a standby, as `Recovery.follow` does it."""
    start_over(kafka, state, upto, replay)
    alone(kafka, state, replay.alone(state, upto))
    await replay.advance(state)
    positions = state.replicas.positions()
    assert all(positions[tp] <= end for tp, end in upto.items()), "it is ahead"


def seen(state: TaskState) -> Any:
    (step,) = [each.step for each in state.replicas.merged.values()]
    assert step is not None
    source = state.merge.inputs["a"]
    return {
        "next": state.replicas.positions(),
        "decoder": (sorted(step.decoder.parts()), step.decoder.incarnation),
        "input": (source.stables, source.inserts, dict(source.breaches)),
        "output": sorted(map(repr, state.merge.process("a", Stable(INFINITY), partition=0))),
        "rest": sorted(map(repr, state.merge.process("a", Stable(INFINITY), partition=1))),
    }


inserts = st.builds(
    lambda key, vs, length: encode(Insert(b'"%d"' % key, vs, vs + length)),
    st.integers(0, 30), st.integers(0, 50), st.integers(1, 9),
)  # fmt: skip
values = st.one_of(
    inserts, inserts, st.builds(lambda vc: encode(Stable(vc)), st.integers(0, 50)), st.just(b"junk")
)
logs = st.lists(
    st.lists(st.tuples(values, st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=25),
    min_size=PARTITIONS, max_size=PARTITIONS,
)  # fmt: skip
shares = st.lists(st.floats(0, 1), min_size=PARTITIONS, max_size=PARTITIONS)
rounds = st.lists(
    st.lists(st.none() | shares, min_size=TASKS, max_size=TASKS), min_size=1, max_size=6
)
"""Of each round and task, how much more it has committed; None: it does not come, and leaves."""


def committed(
    kafka: Kafka, before: Mapping[TopicPartition, int], more: Sequence[float]
) -> dict[TopicPartition, int]:
    return {
        tp: before[tp] + round(share * (len(kafka.records[tp]) - before[tp]))
        for tp, share in zip(PLACES, more, strict=True)
    }


@given(logs, rounds)
def test_states_that_are_advanced_together_are_what_each_would_be_alone(
    drawn: Sequence[Any], played: Sequence[Any]
) -> None:
    kafka = Kafka(
        [
            [Published(v, n, incarnation_headers(i)) for n, (v, i) in enumerate(each)]
            for each in drawn
        ]
    )
    begins = dict.fromkeys(PLACES, 0)
    commits = [[begins] for _ in range(TASKS)]
    for plan in played:
        for each, more in zip(commits, plan, strict=True):
            each.append(each[-1] if more is None else committed(kafka, each[-1], more))
    outputs = [emitted(kafka, number, each) for number, each in enumerate(commits)]

    async def run() -> list[TaskState]:
        async with replaying(kafka) as (replay, _):
            states = [state_of(number, output) for number, output in enumerate(outputs)]
            for step, plan in enumerate(played, 1):
                steps = []
                for state, each, more in zip(states, commits, plan, strict=True):
                    if more is None:
                        replay.leave(state)
                    else:
                        steps.append(followed(kafka, replay, state, each[step]))
                await asyncio.gather(*steps)
            for state, each in zip(states, commits, strict=True):
                replay.leave(state)
                start_over(kafka, state, each[-1])
                alone(kafka, state, each[-1])
        return states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_replay, "_GATHER_SECONDS", 0.0)
        states = asyncio.run(run())
    for number, (state, each) in enumerate(zip(states, commits, strict=True)):
        other = state_of(number, outputs[number])
        start_over(kafka, other, each[-1])
        alone(kafka, other, each[-1])
        assert seen(state) == seen(other)


def numbered(count: int) -> Kafka:
    some = [Published(encode(Insert(b'"%d"' % n, n, n + 5)), n, ()) for n in range(count)]
    return Kafka([some, some])


def test_what_all_have_committed_is_read_once() -> None:
    async def run() -> int:
        kafka = numbered(100)
        async with replaying(kafka) as (replay, states):
            for end in (0, 30, 60, 100):
                upto = dict.fromkeys(PLACES, end)
                await asyncio.gather(*(followed(kafka, replay, each, upto) for each in states))
            assert all(each.replicas.positions() == dict.fromkeys(PLACES, 100) for each in states)
        return kafka.read

    assert asyncio.run(run()) == PARTITIONS * 100


def test_while_kafka_is_away_each_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_replay, "_RETRY_SECONDS", 0.0)

    async def run() -> None:
        kafka = numbered(10)
        async with replaying(kafka) as (replay, states):
            upto = dict.fromkeys(PLACES, 0)
            await asyncio.gather(*(followed(kafka, replay, each, upto) for each in states))
            kafka.away, upto = True, dict.fromkeys(PLACES, 10)
            for alone_by_now in (False, True):
                await asyncio.gather(*(followed(kafka, replay, each, upto) for each in states))
                assert all((each.replicas.positions() == upto) is alone_by_now for each in states)
            assert all(replay.leave(each) for each in states)

    asyncio.run(run())


def test_who_has_committed_far_less_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader stands still, and it comes all the same."""
    monkeypatch.setattr(shared_replay, "_APART_RECORDS", 30)

    async def run() -> None:
        kafka = numbered(100)
        async with replaying(kafka) as (replay, states):
            for end in (20, 40, 90, 95):
                ends = [
                    dict.fromkeys(PLACES, min(end, 20 if n == 0 else 100)) for n in range(TASKS)
                ]
                steps = zip(states, ends, strict=True)
                await asyncio.gather(*(followed(kafka, replay, *each) for each in steps))
            reached = [each.replicas.positions()[PLACES[0]] for each in states]
            assert reached == [20, 95, 95]

    asyncio.run(run())


def test_an_incarnation_that_one_has_seen_first_keeps_nobody_apart_for_ever() -> None:
    """The commit record of one task has the new incarnation before the others' have."""

    async def run() -> int:
        some = [Published(encode(Insert(b'"%d"' % n, n, n + 5)), n, ()) for n in range(10)]
        fresh = incarnation_headers(1)
        more = [Published(encode(Insert(b'"%d"' % n, n, n + 5)), n, fresh) for n in range(10, 100)]
        kafka = Kafka([some + more, some + more])
        async with replaying(kafka) as (replay, states):
            upto = dict.fromkeys(PLACES, 10)
            await asyncio.gather(*(followed(kafka, replay, each, upto) for each in states))
            for state in states:
                replay.part(state, "a")
                step = state.replicas.states["a"].step
                assert step is not None
                step.start_over(1, START)
                await followed(kafka, replay, state, upto)
            before = kafka.read
            for end in (20, 100):
                upto = dict.fromkeys(PLACES, end)
                await asyncio.gather(*(followed(kafka, replay, each, upto) for each in states))
        return kafka.read - before

    assert asyncio.run(run()) == PARTITIONS * 90
