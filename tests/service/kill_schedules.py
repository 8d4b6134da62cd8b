"""Schedules of kills, for an output that forgets and has a table: workers die one after the other,
each in the middle of a step, and the next goes on from what they have left.

Theory
    Replicas publish all the time. Each worker but the last is mortal (`mortal_worker`). Some stand
    by for another one, and take over when that is killed. The steps take turns, so that seven seeds
    in a row have them all. After each death, when nobody leads, what must hold at any moment is
    checked:

    * the log begins where the older snapshot reads it, or before;
    * what a registered reader has not committed is there;
    * whoever loads the table then, if it is whole, and follows the output has what it is.

    At the end the reader, which has begun with the first record, has exactly what is so.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.log import Log
from lmerge_service.kafka.source import Source
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.reading import catch_up
from lmerge_service.merge.decisions.records import Attach, BeginCutover, Detach
from lmerge_service.tdb import TDB
from tests.service.cluster import Merge, Worker, decided, logical, meaning, replica_streams
from tests.service.mortal_worker import STEPS
from tests.service.tables import audited, follow, table_of
from tests.table_reader import TableView

__all__ = ("KILLS", "Kill", "compose", "play", "reader_group")

KILLS: Final = 3
"""In each schedule."""
_SECONDS: Final = 600.0
"""Steps come when they do: a snapshot that took three seconds, as beside much other work, is
followed by the next one after a minute (`merge.snapshots.writer`), and some worker dies in the
third."""
_EVENTS: Final = 1_000
"""So many that none is over before the last worker has died."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a worker dies; see `mortal_worker`."""

    step: str
    entry: int
    wait: int
    stands_by: bool
    """It follows another one first."""


def compose(seed: int) -> list[Kill]:
    """The kills of a schedule."""
    chance, names, found = Random(f"kills {seed}"), list(STEPS), []
    for number in range(KILLS):
        name = names[(KILLS * seed + number) % len(names)]
        step = STEPS[name]
        stands_by = step.follows or chance.random() < 0.4
        entry, wait = chance.randint(*step.entries), chance.randint(-1, step.waits)
        stands_by |= step.alone is not None and entry > step.alone
        found.append(Kill(name, entry, wait, stands_by))
    return found


def play(merge: Merge, seed: int) -> None:
    """Plays a schedule, and asserts what must hold."""
    lives, chance = logical(_EVENTS, seed=seed), Random(f"readers {seed}")
    streams = replica_streams(lives, seed=seed)
    for coming, alike in (("d", "a"), ("e", "b")):
        merge.topics[coming], streams[coming] = f"{merge.name}.{coming}", streams[alike]
    reader, views = Reader(merge), list[TableView]()
    cutovers = iter([("a", "d"), ("b", "e"), ("d", "a")])
    with reader.reading():
        with merge.publishing(streams, elements=1, pause=0.2):
            for kill in compose(seed):
                _live(merge, kill, cutovers)
                _check(merge, reader)
                views += _whole_table(merge)
        with merge.worker() as last:
            last.wait(lambda status: status["output"]["ended"], "the output to end", _SECONDS)
            tdb = reader.wait_until_ended()
            assert last.terminate() == 0
    _check(merge, reader)
    assert tdb == meaning(lives)
    for view in [*views, *_whole_table(merge)]:
        follow(view, reader.records, chance)
    assert audited(merge).divergences == []


def _live(merge: Merge, kill: Kill, cutovers: Iterator[tuple[str, str]]) -> None:
    """Runs a worker until it dies."""
    step = STEPS[kill.step]
    program = ("tests.service.mortal_worker", kill.step, str(kill.entry), str(kill.wait))
    with ExitStack() as stack:
        before = stack.enter_context(merge.worker()) if kill.stands_by else None
        if before is not None:
            before.wait_until_it("leads", _SECONDS)
        worker = stack.enter_context(merge.worker(program=program))
        if before is not None and not step.follows:
            _until(worker, "following")
            before.kill()
        if step.needs is not None:
            _until(worker, "leading")
            _bring_about(merge, step.needs, cutovers, worker)
        deadline = time.monotonic() + _SECONDS
        while worker.process.poll() is None:
            assert time.monotonic() < deadline, f"{kill} does not come\n{worker.text()}"
            time.sleep(0.05)
        assert worker.process.returncode == -signal.SIGKILL, f"{kill}\n{worker.text()}"
        assert "Traceback" not in worker.log.read_text(), f"{kill}\n{worker.text(40)}"


def _until(worker: Worker, phase: str) -> None:
    """Its task is in a phase, or it is dead."""
    deadline = time.monotonic() + _SECONDS
    while worker.process.poll() is None:
        status = worker.status()
        if status is not None and {each["phase"] for each in status["tasks"]} == {phase}:
            return
        assert time.monotonic() < deadline, worker.text()
        time.sleep(0.03)


def _bring_about(
    merge: Merge, what: str, cutovers: Iterator[tuple[str, str]], worker: Worker
) -> None:
    if what == "attach":
        decided(merge, Detach("c"), Attach({"name": "c", "topic": merge.topics["c"]}))
        return
    if what == "no table":
        asyncio.run(_delete(merge, f"{merge.output}.table"))
        return
    _until_none_is_taking_over(merge, worker)
    leaving, coming = next(cutovers)
    attach = {"name": coming, "topic": merge.topics[coming]}
    decided(merge, BeginCutover(leaving, coming, 0, 600, 1_000, attach=attach))


def _until_none_is_taking_over(merge: Merge, worker: Worker) -> None:
    """A cutover that a worker has died in goes on with the next one, which may die of that, too;
    meanwhile another one would be refused."""

    async def runs() -> bool:
        ledger = Ledger(load(merge.path))
        async with Log(Connection(merge.bootstrap), f"{merge.output}.control") as control:
            await catch_up(control, ledger)
        return ledger.cutover is not None and ledger.cutover.runs

    deadline = time.monotonic() + _SECONDS
    while worker.process.poll() is None and asyncio.run(runs()):
        assert time.monotonic() < deadline, f"the cutover is not done\n{worker.text()}"
        time.sleep(0.1)


async def _delete(merge: Merge, topic: str) -> None:
    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics.delete(topic)


def _check(merge: Merge, reader: "Reader") -> None:
    """What holds at any moment."""

    async def begins() -> int:
        tp = TopicPartition(merge.output, 0)
        async with Source(Connection(merge.bootstrap)) as source:
            return (await source.beginnings([tp]))[tp]

    if not _exists(merge, merge.output):
        return
    begin = asyncio.run(begins())
    commit = merge.last_commit() if _exists(merge, f"{merge.output}.state") else None
    snapshots = () if commit is None else commit.snapshots
    assert begin <= (snapshots[1].output if len(snapshots) > 1 else 0), "no recovery is possible"
    assert begin <= reader.read, "what the reader lacks was deleted"


def _whole_table(merge: Merge) -> list[TableView]:
    """The table as whoever loads it now has it, if it is there and whole."""
    if not _exists(merge, f"{merge.output}.table"):
        return []
    view = table_of(merge)
    return [view] if view.is_whole else []


def _exists(merge: Merge, topic: str) -> bool:
    """Who asks for a topic in any other way has this broker make it."""

    async def ask() -> bool:
        async with Topics(Connection(merge.bootstrap)) as topics:
            return bool(await topics.describe([topic]))

    return asyncio.run(ask())


class Reader:
    """Who is registered, and reads along from the first record."""

    def __init__(self, merge: Merge) -> None:
        self.records: list[ConsumerRecord[Any, Any]] = []
        self.read = 0
        """Up to where it has committed to have read."""
        self._merge = merge
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._done.set()
            self._thread.join(30)

    async def _run(self) -> None:
        tp = TopicPartition(self._merge.output, 0)
        async with Topics(Connection(self._merge.bootstrap)) as topics:
            await topics.ensure(tp.topic)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._merge.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="none",
            group_id=reader_group(self._merge),
            enable_auto_commit=False,
        )
        async with consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            while not self._done.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    self.records += records
                if (position := await consumer.position(tp)) > self.read:
                    await consumer.commit({tp: position})
                    self.read = position

    def wait_until_ended(self) -> TDB:
        """What it has read, which is all that there ever was.

        Raises:
            IllegalStreamError: that is no stream.
        """
        deadline, tdb, decode, taken = time.monotonic() + _SECONDS, TDB(), WireDecoder().decode, 0
        while tdb.stable != INFINITY:
            assert time.monotonic() < deadline, f"read up to {self.read}, stable at {tdb.stable}"
            time.sleep(0.1)
            for record in self.records[taken:]:
                tdb.apply(decode(record.value))
                taken += 1
        return tdb


def reader_group(merge: Merge) -> str:
    """Its consumer group, for the topology."""
    return f"{merge.name}.billing"
