"""Folds of the control log on a real broker: who folds, who deletes, and who starts meanwhile."""

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from random import Random
from types import ModuleType

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.errors import StateError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions import folding, reading
from lmerge_service.merge.decisions.folding import Folding
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import AcceptGap, Quarantine, Release, decide, encode
from tests.merge.test_control import control_of, on
from tests.merge.test_folds import assert_same
from tests.waiting import come_true

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold after ten records, and ledgers that look for one when they lack twenty."""
    monkeypatch.setattr(folding, "_RECORDS", 10)
    monkeypatch.setattr(folding, "_LOOK_SECONDS", (0.05, 0.05))
    monkeypatch.setattr(reading, "_FAR", 20)
    monkeypatch.setattr(reading, "_PIECE", 5)


def base_of(bootstrap: str, keep: int | None = None) -> Topology:
    base = on(bootstrap, "a", "b")
    return base.model_copy(update={"output": base.output.model_copy(update={"keep": keep})})


def log_of(base: Topology) -> Log:
    return Log(Connection(base.kafka.bootstrap), base.output.control_topic)


def folding_of(base: Topology) -> Folding:
    """Of a worker that leads task 0."""
    cluster = Cluster(Connection(base.kafka.bootstrap))
    return Folding(cluster, base, lambda: True, unix_ns=time.time_ns)


async def decided(base: Topology, count: int) -> None:
    """So many decisions of one replica's quarantine and release, and of a gap."""
    actions = (Quarantine("b", "guard"), Release("b"), AcceptGap("a", 9))
    async with log_of(base) as log:
        for number in range(count):
            await log.append(encode(decide(actions[number % 3], "anna")))


async def whole(base: Topology) -> Ledger:
    """By every record; nothing may be deleted yet."""
    ledger = Ledger(base)
    async with log_of(base) as log, aclosing(log.read()) as records:
        async for record in records:
            ledger.fold(record.offset, record.value)
    return ledger


async def started(base: Topology) -> Ledger:
    """What somebody who starts now knows."""
    async with control_of(base) as control:
        return control.ledger


def test_a_start_takes_the_latest_fold_and_what_is_behind_it(bootstrap: str) -> None:
    base = base_of(bootstrap)

    async def play() -> None:
        async with control_of(base) as control:
            await decided(base, 45)
            await control._overtake()
            assert await control.write_fold("worker-1", 0) == 46
        await decided(base, 5)
        later = await started(base)
        assert later.folded == 46
        assert_same(later, await whole(base))

    asyncio.run(play())


def test_two_workers_that_fold_while_others_decide_are_in_nobodys_way(bootstrap: str) -> None:
    base = base_of(bootstrap)

    async def play() -> None:
        async with AsyncExitStack() as stack:
            controls = [await stack.enter_async_context(control_of(base)) for _ in range(2)]
            group = await stack.enter_async_context(asyncio.TaskGroup())
            foldings = [folding_of(base) for _ in controls]
            running = [group.create_task(control.run()) for control in controls]
            running += [
                group.create_task(folds.run(control, "worker"))
                for folds, control in zip(foldings, controls, strict=True)
            ]
            for _ in range(3):
                await asyncio.gather(decided(base, 20), decided(base, 20))
                await come_true(lambda: sum(each.folds for each in foldings) > 0)
            end = (await started(base)).offset
            await come_true(lambda: all(each.ledger.offset >= end for each in controls))
            await come_true(lambda: all((each.ledger.folded or 0) > 90 for each in controls))
            for each in running:
                each.cancel()
        later = await started(base)
        assert_same(later, await whole(base))
        assert [each.ledger.disagrees for each in controls] == [None, None]
        assert [each.fault for each in foldings] == [None, None]

    asyncio.run(asyncio.wait_for(play(), 120))


def test_what_is_old_is_deleted_and_whoever_stood_still_goes_on_from_the_fold(
    bootstrap: str,
) -> None:
    base = base_of(bootstrap, keep=1)
    control_topic = TopicPartition(base.output.control_topic, 0)

    async def begins() -> int:
        async with Source(Connection(bootstrap)) as source:
            return (await source.beginnings([control_topic]))[control_topic]

    async def play() -> None:
        async with control_of(base) as behind, control_of(base) as control:
            async with asyncio.TaskGroup() as group:
                each = folding_of(base)
                running = [
                    group.create_task(control.run()),
                    group.create_task(each.run(control, "worker-1")),
                ]
                await decided(base, 30)
                await come_true(lambda: each.deleted > 10)
                assert await begins() == each.deleted > behind.ledger.offset
                running += [group.create_task(behind.run())]
                await decided(base, 3)
                await come_true(lambda: behind.ledger.version == control.ledger.version == 34)
                assert_same(behind.ledger, control.ledger)
                for task in running:
                    task.cancel()
            later = await started(base)
            assert_same(later, control.ledger)

    asyncio.run(asyncio.wait_for(play(), 120))


def test_a_log_whose_beginning_somebody_has_deleted_is_refused(bootstrap: str) -> None:
    base = base_of(bootstrap)

    async def play() -> None:
        async with control_of(base):
            await decided(base, 5)
        async with Topics(Connection(bootstrap)) as topics:
            await topics.trim({TopicPartition(base.output.control_topic, 0): 3})
        with pytest.raises(StateError, match="begins at offset 3, and what was decided before is"):
            await started(base)

    asyncio.run(play())


_QUICK: Sequence[tuple[ModuleType, str, object]] = (
    (folding, "_RECORDS", 3),
    (folding, "_LOOK_SECONDS", (0.0, 0.0)),
    (reading, "_FAR", 5),
    (reading, "_PIECE", 3),
)


def fold_for_ever(base: Topology) -> None:
    """A worker that folds and deletes as fast as it can, until it is killed."""
    for module, name, value in _QUICK:
        setattr(module, name, value)

    async def work() -> None:
        async with control_of(base) as control, asyncio.TaskGroup() as group:
            group.create_task(control.run())
            group.create_task(folding_of(base).run(control, "worker-1"))

    asyncio.run(work())


@pytest.mark.parametrize(
    "kills",
    [pytest.param(6, marks=pytest.mark.full), pytest.param(60, marks=pytest.mark.deep)],
)
def test_kill_9_between_a_fold_and_the_deletion_or_anywhere_is_harmless(
    bootstrap: str, kills: int
) -> None:
    """Two workers fold and delete at a time, and are killed at any moment."""
    base, chance = base_of(bootstrap, keep=1), Random(kills)
    spawned = multiprocessing.get_context("spawn")
    made = 0

    async def decide_more() -> None:
        nonlocal made
        for _ in range(4):
            await decided(base, 3)
            made += 3
            await asyncio.sleep(chance.uniform(0, 0.4))

    async def know_all() -> None:
        ledger = await started(base)
        assert (ledger.version, ledger.disagrees) == (1 + made, None)
        assert ledger.replicas["b"].state == "attached"
        assert [each.version for each in ledger.history] == list(range(1, 2 + made))[-1_000:]

    asyncio.run(started(base))
    workers = [spawned.Process(target=fold_for_ever, args=(base,)) for _ in range(2)]
    for each in workers:
        each.start()
    try:
        for _ in range(kills):
            asyncio.run(decide_more())
            victim = workers.pop(0)
            victim.kill()
            victim.join()
            asyncio.run(know_all())
            workers.append(spawned.Process(target=fold_for_ever, args=(base,)))
            workers[-1].start()
        asyncio.run(trimmed(base))
    finally:
        for each in workers:
            each.kill()
            each.join()
    asyncio.run(know_all())


async def trimmed(base: Topology) -> None:
    """Waits until something was deleted."""
    async with log_of(base) as log, asyncio.timeout(30):
        while not (await log.bounds())[0]:  # noqa: ASYNC110 - nothing reports when
            await asyncio.sleep(0.2)
