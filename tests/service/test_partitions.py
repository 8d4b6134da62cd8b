"""Topics whose records depend on those before them in their partition, and get more partitions."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewPartitions
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import Lateness, Upserts, build_decoder
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.payload import PayloadCache
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.decisions.records import Release
from lmerge_service.merge.step import MergeStep
from lmerge_service.tdb import TDB
from tests.formats.dialects import Record
from tests.service.cluster import Merge, Worker, decided

OLD, NEW = b'{"id":1,"n":"A"}', b'{"id":1,"n":"B"}'
_PATIENCE = 90.0
"""Seconds, of which a busy machine needs many until a worker runs."""
LATE = {"lateness": 0}

FORMATS: dict[str, Any] = {
    "debezium": {"dialect": "debezium", "time": "t", "stable": {**LATE, "heartbeats": True}},
    "upserts": {"dialect": "upserts", "stable": LATE},
    "flink": {
        "dialect": "flink", "encoding": "rowkind", "key": ["id"], "time": "t", "stable": LATE,
    },
    "unkeyed": {"dialect": "flink", "encoding": "rowkind", "time": "t", "stable": LATE},
    "openclose": {"dialect": "openclose"},
}  # fmt: skip


def _debezium(t: int, row: bytes | None) -> bytes:
    op = b"d" if row is None else b"u"
    return b'{"op":"%b","before":%b,"after":%b,"t":%d}' % (op, OLD, row or b"null", t)


def _flink(t: int, row: bytes | None) -> bytes:
    kind = b"-D" if row is None else b"+U"
    return b'{"op":"%b","t":%d,%b' % (kind, t, (row or OLD)[1:])


def _openclose(t: int, row: bytes | None) -> bytes:
    if row is None:
        return b'{"op":"close","payload":%b,"ve":%d}' % (OLD, t)
    return b'{"op":"open","payload":%b,"vs":%d}' % (row, t)


def change(dialect: str, t: int, row: bytes | None) -> bytes | None:
    """The record by which the row of key 1 is so from t on, or that the first one is gone."""
    if dialect == "upserts":
        return row
    return {"debezium": _debezium, "openclose": _openclose}.get(dialect, _flink)(t, row)


class Writer:
    """Writes records of a merge's topics to the partitions that are named."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge

    def send(
        self,
        replica: str,
        values: Sequence[tuple[int, bytes | None]],
        *,
        partition: int = 0,
        incarnation: int = 0,
    ) -> None:
        """(time, value) each, of key 1."""

        async def send() -> None:
            topic = self.merge.topics[replica]
            async with AIOKafkaProducer(bootstrap_servers=self.merge.bootstrap) as producer:
                for t, value in values:
                    await producer.send_and_wait(
                        topic, value, b"1", partition, t, incarnation_headers(incarnation)
                    )

        asyncio.run(send())

    def make(self, replica: str, partitions: int = 1) -> None:
        async def make() -> None:
            async with Topics(Connection(self.merge.bootstrap)) as topics:
                await topics.ensure(self.merge.topics[replica], partitions=partitions)

        asyncio.run(make())

    def widen(self, *replicas: str) -> None:
        async def widen() -> None:
            wider = {self.merge.topics[each]: NewPartitions(2) for each in replicas}
            async with Topics(Connection(self.merge.bootstrap)) as topics:
                await topics._admin.create_partitions(wider)

        asyncio.run(widen())


def written(merge: Merge, formats: Mapping[str, Any]) -> None:
    """The topology; replicas that are not named are on the wire."""
    document = json.loads(merge.path.read_text())
    for replica in document["replicas"]:
        replica.update(formats.get(replica["name"], {}))
    merge.path.write_text(json.dumps(document))


def replicas(status: Any) -> dict[str, Any]:
    return {each["name"]: each for each in status["replicas"]}


def await_quarantine(worker: Worker, names: Sequence[str], published: str) -> None:
    status = worker.wait(
        lambda s: all(replicas(s)[name]["state"] == "quarantined" for name in names),
        f"{names} to be in quarantine",
        _PATIENCE,
    )
    for name in names:
        assert published in replicas(status)[name]["why"], replicas(status)[name]["why"]


@pytest.mark.full
@pytest.mark.kafka
def test_n13_what_is_known_by_partition_is_let_go_when_its_topic_gets_wider(
    bootstrap: str, tmp_path: Path
) -> None:
    """Key 1 is in partition 0; an update and a deletion of it arrive in partition 1. The wire goes
    on, and so do rows that stand for themselves."""
    bound = [*FORMATS, "normalised"]
    merge = Merge(bootstrap, tmp_path, ["wire", "facts", *bound])
    writer = Writer(merge)
    facts = {
        "dialect": "flink", "encoding": "rowkind", "lifetime": {"vs": "s", "ve": "e"},
        "stable": {"watermark": "w"},
    }  # fmt: skip
    formats: dict[str, Any] = {name: {"format": form} for name, form in FORMATS.items()}
    written(merge, {**formats, "facts": {"format": facts}, "normalised": {"normalise": True}})
    first: list[Element] = [Insert(OLD, 1000, INFINITY), Stable(1000)]
    for name in merge.topics:
        writer.make(name)
    for name in FORMATS:
        writer.send(name, [(1000, change(name, 1000, OLD))])
    for name in ("wire", "normalised"):
        writer.send(name, [(0, encode(each)) for each in first])
    writer.send("facts", [(0, b'{"op":"+I","id":1,"n":"A","s":1000,"e":null,"w":1000}')])
    with merge.worker() as worker:
        worker.wait(
            lambda s: all(each["lag_records"] == 0 for each in s["replicas"]),
            "all to be read",
            _PATIENCE,
        )
        writer.widen(*merge.topics)
        for name in FORMATS:
            moved = [(2000, change(name, 2000, NEW)), (3000, change(name, 3000, None))]
            writer.send(name, moved, partition=1)
        await_quarantine(worker, bound, "got 2 partitions, 1 before")
        status = worker.wait(
            lambda s: all(replicas(s)[each]["partitions"] == 2 for each in ("wire", "facts")),
            "the wire to be followed",
            _PATIENCE,
        )
        for name in ("wire", "facts"):
            assert replicas(status)[name]["state"] == "joined"
        worker.kill()
    rest: list[Element] = [Adjust(OLD, 1000, INFINITY, 2000), Insert(NEW, 2000, 3000)]
    writer.send("wire", [(0, encode(each)) for each in rest], partition=1)
    for partition in (0, 1):
        writer.send("wire", [(0, encode(Stable(INFINITY)))], partition=partition)
    with merge.worker() as worker:
        status = worker.wait(lambda s: s["output"]["ended"], "the output to end", _PATIENCE)
        await_quarantine(worker, bound, "got 2 partitions, 1 before")
        assert worker.terminate() == 0
    assert merge.output_is(TDB([(OLD, 1000, 2000), (NEW, 2000, 3000)]))


@pytest.mark.full
@pytest.mark.kafka
def test_n13_a_topic_that_got_wider_before_it_is_merged_is_let_go_when_a_key_moves(
    bootstrap: str, tmp_path: Path
) -> None:
    """While no worker ran, or before the replica was attached: nothing shows it but its records."""
    moved = ["debezium", "upserts", "flink"]
    merge = Merge(bootstrap, tmp_path, [*moved, "kept"])
    writer = Writer(merge)
    written(merge, {n: {"format": FORMATS.get(n, FORMATS["upserts"])} for n in merge.topics})
    for name in merge.topics:
        writer.make(name, 2)
    for name in moved:
        writer.send(name, [(1000, change(name, 1000, OLD))])
        writer.send(name, [(3000, change(name, 3000, None))], partition=1)
    writer.send("kept", [(1000, OLD), (3000, None)])
    with merge.worker() as worker:
        await_quarantine(worker, moved, "at offset 0 of partition ")
        worker.kill()
    with merge.worker() as worker:
        await_quarantine(worker, moved, "as well, so that neither holds its history")
        status = worker.wait(
            lambda s: replicas(s)["kept"]["lag_records"] == 0, "kept to be read", _PATIENCE
        )
        assert replicas(status)["kept"]["state"] == "joined"


@pytest.mark.full
@pytest.mark.kafka
def test_n13_a_replica_that_starts_over_in_more_partitions_is_released(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = Merge(bootstrap, tmp_path, ["a"])
    writer = Writer(merge)
    written(merge, {"a": {"format": {"dialect": "upserts", "stable": {"watermark": "w"}}}})
    writer.make("a")
    writer.send("a", [(1000, OLD)])
    with merge.worker() as worker:
        status = worker.wait(
            lambda s: replicas(s)["a"]["lag_records"] == 0, "a to be read", _PATIENCE
        )
        writer.widen("a")
        await_quarantine(worker, ["a"], "got 2 partitions")
        worker.wait(lambda s: s["version"] > status["version"], "the decision", _PATIENCE)
        writer.send("a", [(1000, OLD), (2000, NEW)], partition=1, incarnation=1)
        writer.send("a", [(3000, None)], partition=1, incarnation=1)
        decided(merge, Release("a"))
        worker.wait(lambda s: replicas(s)["a"]["state"] != "quarantined", "the release", _PATIENCE)
        worker.wait(lambda s: replicas(s)["a"]["lag_records"] == 0, "a to be read", _PATIENCE)
        end = b'{"w":%d}' % INFINITY
        for partition in (0, 1):
            _mark(merge, "a", end, partition)
        worker.wait(lambda s: s["output"]["ended"], "the output to end", _PATIENCE)
    assert merge.output_is(TDB([(OLD, 1000, 2000), (NEW, 2000, 3000)]))


def _mark(merge: Merge, replica: str, value: bytes, partition: int) -> None:
    """A watermark alone, which has no key."""

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=merge.bootstrap) as producer:
            await producer.send_and_wait(
                merge.topics[replica],
                value,
                partition=partition,
                headers=incarnation_headers(1),
            )

    asyncio.run(send())


# Without a broker: whatever the order in which partitions are read


class Fed:
    """One replica of upserts, and all that it publishes."""

    def __init__(self, partitions: int) -> None:
        self.published: list[Element] = []
        self.dead: list[DeadLetter] = []
        self.step = MergeStep(
            lmerge(),
            "r",
            WireDecoder(),
            topic="in",
            partitions=partitions,
            dialect=lambda: build_decoder(
                Upserts(dialect="upserts", stable=Lateness(lateness=2)), PayloadCache(), 1000
            ),
        )

    def take(self, *records: Record) -> None:
        for record in records:
            if self.step.decoder.torn is None:
                self.step.take(record.partition, [record], [], self.dead)
                self.published += self.step.input.processed

    def events(self) -> dict[tuple[bytes, int], int]:
        """(payload, vs) -> ve"""
        found: dict[tuple[bytes, int], int] = {}
        for each in self.published:
            if type(each) is Insert:
                assert (each.payload, each.vs) not in found
                found[each.payload, each.vs] = each.ve
            elif type(each) is Adjust:
                assert found.pop((each.payload, each.vs)) == each.vold
                if each.ve > each.vs:
                    found[each.payload, each.vs] = each.ve
        return found


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[Record], list[Record]]:
    """A log of upserts of two keys, in the partitions where they were written, and one order in
    which these may be read."""
    log, t = [], 10
    for number in range(draw(st.integers(1, 9))):
        t += draw(st.integers(0, 6))
        key = draw(st.sampled_from([b"1", b"2"]))
        row = draw(st.sampled_from([b'{"n":%d,"k":%b}' % (number, key), None]))
        partition = draw(st.integers(0, 1))
        log.append(Record(row, key, t, partition, offset=number))
    left = {n: [each for each in log if each.partition == n] for n in (0, 1)}
    order = []
    while left[0] or left[1]:
        n = draw(st.sampled_from([n for n in (0, 1) if left[n]]))
        order.append(left[n].pop(0))
    return log, order


@given(moves())
def test_n13_a_key_that_moves_is_noticed_or_does_no_harm(
    drawn: tuple[list[Record], list[Record]],
) -> None:
    """In whatever order partitions are read: the replica is what its log is, or is let go."""
    log, order = drawn
    whole, apart = Fed(1), Fed(2)
    whole.take(*(replace(each, partition=0) for each in log))
    apart.take(*order)
    apart.step.decoder._homes.check()
    if apart.step.decoder.torn is None and not apart.dead:
        assert apart.events() == whole.events()


@given(moves(), st.integers(0, 9))
def test_n13_homes_are_in_the_snapshot(drawn: tuple[list[Record], list[Record]], cut: int) -> None:
    _, order = drawn
    fed, restored = Fed(2), Fed(2)
    fed.take(*order[:cut])
    if fed.step.decoder.torn is not None:
        return
    for kind, partition, saved in list(fed.step.parts()):
        restored.step.restore(kind, partition, saved)
    for one in (fed, restored):
        one.take(*order[cut:])
    assert restored.step.decoder.torn == fed.step.decoder.torn


def test_n13_a_deletion_that_is_read_before_its_row_is_noticed() -> None:
    fed = Fed(2)
    fed.take(Record(None, b"1", 3000, 1), Record(NEW, b"2", 3001, 1), Record(OLD, b"1", 1000, 0))
    assert fed.step.decoder.torn == (
        "has key '1' at offset 0 of partition 0, and in partition 1 as well, so that neither holds "
        "its history"
    )


def test_n13_keys_that_are_gone_for_all_are_forgotten() -> None:
    fed = Fed(2)
    for t in range(100, 10_000, 10):
        for partition in (0, 1):
            key = b"%d.%d" % (t, partition)
            fed.take(
                Record(b'{"k":%b}' % key, key, t, partition), Record(None, key, t + 5, partition)
            )
    assert fed.step.decoder.torn is None
    assert len(fed.step.decoder._homes.saved()) <= 2
