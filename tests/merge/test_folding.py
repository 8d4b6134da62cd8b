"""Folding the control log, and beginning with folds: on a Kafka in memory."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.errors import RefusedError, StateError, TransportError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions import folding, reading
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.folding import Folding
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.reading import unread
from lmerge_service.merge.decisions.records import AcceptGap, decide, encode
from tests.merge.test_folds import assert_same, fold_of
from tests.merge.test_ledger import topology
from tests.simulation import loop
from tests.simulation.clients import MemoryCluster, MemoryLog, MemorySource, MemoryTopics
from tests.simulation.loop import BEGAN
from tests.simulation.memory import Broker
from tests.simulation.network import Network

CONTROL = TopicPartition("out.control", 0)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold after ten records, and ledgers that look for one when they lack twenty."""
    monkeypatch.setattr(folding, "_RECORDS", 10)
    monkeypatch.setattr(reading, "_FAR", 20)
    monkeypatch.setattr(reading, "_PIECE", 5)


class Refusing(MemoryTopics):
    async def trim(self, before: Any) -> None:
        raise RefusedError("deleting records: our user lacks the ACL Delete on topic out.control")


class Scene:
    """A control log, and workers over it."""

    def __init__(self, keep: int | None = None) -> None:
        self.network = Network(Broker(asyncio.get_running_loop().time), Random(1))
        self.broker = self.network.broker
        self.topology: Topology = topology("a", "b", output={"topic": "out", "keep": keep})
        self.log = cast(Log, MemoryLog(self.network, CONTROL.topic))

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator["Worker", None]:
        async with LoggedControl(self.topology, self.log) as control, asyncio.TaskGroup() as group:
            running = group.create_task(control.run())
            yield Worker(self, control)
            running.cancel()

    async def decide(self, count: int) -> None:
        """So many decisions, one a second, by somebody else."""
        for _ in range(count):
            self.append(encode(decide(AcceptGap("a", 9), "anna")))
            await asyncio.sleep(1)

    def append(self, value: bytes | None) -> None:
        self.broker.produce(CONTROL, [(None, value, ())])

    @property
    def begins(self) -> int:
        return self.broker.beginning(CONTROL)

    def folds(self) -> list[int]:
        """The offsets of those that are in the log."""
        records = self.broker.topic(CONTROL.topic).records
        return [each.offset for each in records if each.value and each.value[:8] == b'{"fold":']

    def whole(self) -> Ledger:
        """By all records that ever were."""
        ledger = Ledger(self.topology)
        for record in self.broker.topic(CONTROL.topic, ever=True).records:
            ledger.fold(record.offset, record.value)
        return ledger

    async def trimmed(self, worker: "Worker") -> None:
        """Has it folded, and all before the fold deleted."""
        await self.decide(12)
        await worker.look()
        await asyncio.sleep(60)
        await worker.look()

    async def reader(self) -> Ledger:
        """Somebody who reads the log as it is."""
        ledger = Ledger(self.topology)
        async with aclosing(unread(self.log, ledger)) as records:
            async for record in records:
                ledger.fold(record.offset, record.value)
        return ledger


class Worker:
    """One that leads task 0."""

    def __init__(self, scene: Scene, control: LoggedControl) -> None:
        self.scene, self.control = scene, control
        self.leads = True
        clock = asyncio.get_running_loop().time
        self.folding = Folding(
            cast(Cluster, MemoryCluster(scene.network)),
            scene.topology,
            lambda: self.leads,
            unix_ns=lambda: int((BEGAN + clock()) * 10**9),
        )

    async def look(self, topics: type[MemoryTopics] = MemoryTopics) -> str | None:
        network = self.scene.network
        asks = cast(Topics, topics(network)), cast(Source, MemorySource(network))
        fault = await self.folding.look(self.control, *asks, "worker-1")
        await asyncio.sleep(0.1)  # what was appended is read back
        return fault


def play(main: Coroutine[Any, Any, None]) -> None:
    loop.run(main)


# Writing folds


def test_a_fold_is_due_after_so_many_records_and_then_again() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            await scene.decide(9)
            await worker.look()
            assert scene.folds() == [], "ten records are no more than ten"
            await scene.decide(1)
            await worker.look()
            assert scene.folds() == [11]
            assert (worker.control.ledger.folded, worker.folding.folds) == (11, 1)
            await worker.look()
            await scene.decide(10)
            await worker.look()
            assert scene.folds() == [11, 22]
            assert_same(await scene.reader(), scene.whole())

    play(main())


def test_of_two_workers_that_fold_at_once_one_fold_holds() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as one, scene.worker() as other:
            await scene.decide(12)
            await asyncio.gather(one.look(), other.look())
            assert scene.folds() == [13, 14], "both were written"
            assert one.folding.folds + other.folding.folds == 1
            for each in (one, other):
                assert await each.look() is None
                assert each.control.ledger.folded == 13
            assert scene.folds() == [13, 14]
            await scene.decide(30)
            assert_same(await scene.reader(), scene.whole())

    play(main())


def test_a_decision_that_comes_first_has_the_fold_written_again() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            await scene.decide(12)
            scene.append(encode(decide(AcceptGap("a", 9), "anna")))  # which is not read yet
            await worker.look()
            assert (worker.folding.folds, worker.control.ledger.folded) == (0, None)
            await worker.look()
            assert (worker.folding.folds, worker.control.ledger.folded) == (1, 15)

    play(main())


def test_who_disagrees_with_a_fold_neither_folds_nor_deletes() -> None:
    async def main() -> None:
        scene = Scene(keep=1)
        async with scene.worker() as worker:
            await scene.decide(12)
            await worker.look()
            await scene.decide(12)
            other = scene.whole()
            other.version += 1
            scene.append(fold_of(other))
            await asyncio.sleep(1)
            fault = await worker.look()
            assert fault is not None
            assert "restart the workers of the older release" in fault
            assert (scene.begins, len(scene.folds())) == (0, 2)

    play(main())


# Deleting


def test_what_is_older_than_keep_goes_up_to_the_fold_before() -> None:
    async def main() -> None:
        scene = Scene(keep=15)
        async with scene.worker() as worker:
            for _ in range(4):
                await scene.decide(11)
                await worker.look()
            folds = scene.folds()
            assert folds == [24, 36, 48], "15 s ago is between the first two"
            assert scene.begins == worker.folding.begins == worker.folding.deleted == 24
            assert_same(await scene.reader(), scene.whole())
            await asyncio.sleep(60)
            await worker.look()
            assert scene.begins == folds[-1], "nothing is deleted from the latest fold on"
            assert_same(await scene.reader(), scene.whole())
            await worker.look()
            assert worker.folding.deleted == folds[-1], "once"

    play(main())


def test_without_keep_nothing_is_deleted() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            for _ in range(4):
                await scene.decide(11)
                await worker.look()
            await asyncio.sleep(10_000)
            await worker.look()
            assert (scene.begins, worker.folding.begins) == (0, 0)

    play(main())


def test_what_kafka_refuses_is_tried_again() -> None:
    async def main() -> None:
        scene = Scene(keep=1)
        async with scene.worker() as worker:
            await scene.decide(12)
            await worker.look()
            await asyncio.sleep(60)
            for _ in range(2):
                with pytest.raises(TransportError, match="lacks the ACL Delete on topic"):
                    await worker.look(Refusing)
            await worker.look()
            assert scene.begins == scene.folds()[-1]

    play(main())


def test_only_who_leads_task_0_looks_and_a_fault_is_shown_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        scene = Scene(keep=1)
        async with scene.worker() as worker, asyncio.TaskGroup() as group:
            worker.leads = False
            running = group.create_task(worker.folding.run(worker.control, "worker-1"))
            await scene.decide(30)
            assert scene.folds() == []
            with monkeypatch.context() as patch:
                patch.setattr(MemoryTopics, "trim", Refusing.trim)
                worker.leads = True
                await asyncio.sleep(30)
                assert worker.folding.fault is not None
                assert "lacks the ACL Delete" in worker.folding.fault
            await asyncio.sleep(30)
            assert not worker.folding.fault
            assert scene.begins == 31
            worker.leads = False
            await asyncio.sleep(10)
            assert worker.folding.begins is None
            running.cancel()

    play(main())


# Reading


@pytest.mark.parametrize("behind", [0, 1, 4, 5, 6, 9, 25, 60])
def test_the_latest_fold_is_found_however_far_behind_it_is(behind: int) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            await scene.decide(40)
            await worker.look()
            await scene.decide(behind)
            reader = await scene.reader()
            assert reader.folded == 41
            assert_same(reader, scene.whole())

    play(main())


def test_a_start_reads_a_bounded_part_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene, read = Scene(), 0
        async with scene.worker() as worker:
            for _ in range(40):
                await scene.decide(11)
                await worker.look()
        taken = MemoryLog.read

        async def counted(self: MemoryLog, *bounds: int) -> AsyncGenerator[Any, None]:
            nonlocal read
            async for record in taken(self, *bounds):
                read += 1
                yield record

        monkeypatch.setattr(MemoryLog, "read", counted)
        assert_same(await scene.reader(), scene.whole())
        assert read <= 30

    play(main())


def test_a_follower_whose_next_record_was_deleted_goes_on_from_a_fold() -> None:
    async def main() -> None:
        scene = Scene(keep=1)
        async with (
            LoggedControl(scene.topology, scene.log) as behind,
            scene.worker() as worker,
            asyncio.TaskGroup() as group,
        ):
            await scene.trimmed(worker)
            assert scene.begins > behind.ledger.offset
            running = group.create_task(behind.run())
            waiting = group.create_task(behind.newer(12))
            await scene.decide(3)
            assert_same(behind.ledger, scene.whole())
            assert waiting.done()
            assert behind.unreachable is None
            running.cancel()

    play(main())


def test_what_is_deleted_while_it_is_read_is_taken_from_the_fold_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            for _ in range(2):
                await scene.decide(11)
                await worker.look()
        found, taken = scene.folds(), MemoryLog.read

        async def late(self: MemoryLog, *bounds: int) -> AsyncGenerator[Any, None]:
            scene.broker.truncate(CONTROL, found[-1])
            async for record in taken(self, *bounds):
                yield record

        monkeypatch.setattr(MemoryLog, "read", late)
        monkeypatch.setattr(reading, "_FAR", 1_000)
        assert_same(await scene.reader(), scene.whole())

    play(main())


def test_a_log_that_has_lost_its_beginning_and_has_no_fold_is_refused() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker():
            await scene.decide(30)
        scene.broker.truncate(CONTROL, 20)
        with pytest.raises(StateError) as refused:
            await scene.reader()
        assert str(refused.value) == (
            "out.control begins at offset 20, and what was decided before is in no fold: it was "
            "deleted; to go on by the topology file alone, stop all workers, delete out.control "
            "and out.state, and start them"
        )

    play(main())


def test_a_fold_of_another_format_is_an_error_where_it_is_needed_and_nowhere_else() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            await scene.decide(11)
            await worker.look()
            await scene.decide(11)
            scene.append(b'{"fold":2,"offset":25,"ledgers":[]}')
            later = len(scene.broker.topic(CONTROL.topic).records) - 1
            await scene.decide(11)
            assert_same(await scene.reader(), scene.whole())
            assert worker.control.ledger.unreadable == 1
        scene.broker.truncate(CONTROL, later)
        with pytest.raises(StateError) as refused:
            await scene.reader()
        assert str(refused.value) == (
            f"out.control begins at offset {later}, and what was decided before cannot be read: "
            f"offset {later} has a fold of format 2, and this version reads format 1: use the "
            "version that wrote it, or a later one"
        )

    play(main())


def test_a_fold_that_no_topology_can_be_made_of_is_an_error() -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.worker() as worker:
            await scene.decide(30)
            spoilt = scene.whole()
            spoilt.replicas = {}
            scene.append(fold_of(spoilt))
            await scene.decide(1)
            assert worker.control.ledger.disagrees is not None
        with pytest.raises(StateError, match=r"offset 31: a fold that cannot be used: no replica"):
            await scene.reader()

    play(main())
