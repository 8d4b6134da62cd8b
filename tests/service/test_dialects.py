"""Replicas that write dialects: through records and incarnations, rebuilds, and a real broker."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.dialects import (
    WRITTEN,
    Lateness,
    Upserts,
    Written,
    build_decoder,
    writer,
)
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.payload import PayloadCache
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.publish import publish
from lmerge_service.merge.guards.evaluator import GuardEvaluator
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.step import MergeStep
from lmerge_service.tdb import TDB, reconstitute
from tests.formats.dialects import Record
from tests.service.cluster import Merge

DIALECTS = sorted(WRITTEN)
UPSERTS = Upserts(dialect="upserts", stable=Lateness(lateness=10))
A, B = b'{"id":1,"n":"A"}', b'{"id":1,"n":"B"}'


class Fed:
    """One replica of upserts, with its operator."""

    def __init__(
        self, partitions: int = 1, incarnation: int = 0, output: Sequence[Element] = ()
    ) -> None:
        self.merge = lmerge()
        self.merge.replay_output(output)
        self.step = MergeStep(
            self.merge,
            "r",
            WireDecoder(),
            topic="in",
            partitions=partitions,
            incarnation=incarnation,
            dialect=lambda: build_decoder(UPSERTS, PayloadCache(), 1000),
        )
        self.dead: list[DeadLetter] = []

    def take(self, *records: Record, replay_input: bool = False) -> list[Element]:
        out: list[Element] = []
        partition = records[0].partition if records else 0
        self.step.take(partition, records, out, self.dead, replay_input=replay_input)
        return out


def row(payload: bytes | None, t: int, partition: int = 0, incarnation: int = 0) -> Record:
    return Record(
        payload, b"%d" % partition, t, partition, headers=incarnation_headers(incarnation)
    )


def test_a_record_may_be_several_elements_or_none() -> None:
    fed = Fed()
    assert fed.take(row(A, 20), row(A, 21)) == [Insert(A, 20, INFINITY), Stable(10), Stable(11)]
    assert fed.take(row(B, 22), row(None, 40)) == [
        Insert(B, 22, INFINITY), Stable(12), Adjust(A, 20, INFINITY, 22),
        Stable(30),
    ]  # fmt: skip
    assert fed.merge.breaches() == []


def test_a_poison_record_goes_to_the_dead_letters_and_changes_nothing() -> None:
    fed = Fed()
    reasons = fed.take(row(A, 20), row(b"{", 21), row(b"null", 21), Record(A, b"2", 3), row(A, 21))
    assert reasons == [Insert(A, 20, INFINITY), Stable(10), Stable(11)]
    assert [letter.reason for letter in fed.dead] == ["not_json", "not_an_element", "late"]


def test_each_partition_has_a_decoder_and_a_new_incarnation_has_new_ones() -> None:
    fed = Fed(partitions=2)
    assert fed.take(row(A, 20)) == [Insert(A, 20, INFINITY)], "the other partition holds it back"
    assert fed.take(row(b'{"id":2}', 20, partition=1)) == [
        Insert(b'{"id":2}', 20, INFINITY),
        Stable(10),
    ]
    fed.take(row(B, 30, incarnation=1))
    assert fed.merge.inputs["r"].stable < 0
    assert fed.take(row(B, 30, partition=0)) == [], "of the old incarnation"
    assert (fed.step.decoder.stale, fed.dead) == (1, [])


RECORDS = st.builds(
    row,
    st.sampled_from([A, B, b'{"id":2}', b"{", None]),
    st.integers(0, 40),
    st.integers(0, 1),
    st.integers(0, 1),
)


@settings(max_examples=60)
@given(st.lists(RECORDS, max_size=14), st.integers(0, 14))
def test_a_rebuilt_replica_has_nothing_to_add_and_goes_on_the_same(
    records: list[Record], cut: int
) -> None:
    """A decoder's state is a function of its partition's prefix, so recovery needs no more."""
    fed = Fed(partitions=2)
    reasons = [element for record in records[:cut] for element in fed.take(record)]
    rebuilt = Fed(partitions=2, incarnation=fed.step.decoder.incarnation, output=reasons)
    for partition in (1, 0):
        prefix = [each for each in records[:cut] if each.partition == partition]
        assert rebuilt.take(*prefix, replay_input=True) == []
    for record in records[cut:]:
        assert rebuilt.take(record) == fed.take(record)


class Once(GuardEvaluator):
    """Has stables from 20 on wait the first time."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def calm(self, *_: object) -> int:
        return START

    def stable(self, replica: str, partition: int, vc: int, offset: int) -> Ruling:
        again = vc in self.asked
        self.asked.append(vc)
        return Ruling.MERGE if again or vc < 20 else Ruling.WAIT

    def started_over(self, replica: str, incarnation: int) -> None:
        self.asked.clear()


@pytest.mark.parametrize("restored", [False, True])
def test_a_record_whose_stable_waits_is_merged_whole_when_it_is_read_again(restored: bool) -> None:
    """The decoder has gone beyond it; a snapshot taken meanwhile remembers that."""
    batch = [row(A, 20), row(B, 40), row(None, 50)]
    batch = [dataclasses.replace(each, offset=number) for number, each in enumerate(batch)]
    plain, fed, judge = Fed(), Fed(), Once()
    out: list[Element] = []
    assert fed.step.take(0, batch, out, fed.dead, guards=judge) == 1
    assert out == [Insert(A, 20, INFINITY), Stable(10)]
    assert fed.merge.inputs["r"].stable == 10
    if restored:
        again = Fed(output=out)
        again.take(batch[0], replay_input=True)
        for kind, partition, data in list(fed.step.parts()):
            again.step.restore(kind, partition, data)
        fed = again
    assert fed.step.take(0, batch[1:], out, fed.dead, guards=judge) == 2, "the next one waits"
    assert fed.step.take(0, batch[2:], out, fed.dead, guards=judge) == 3
    assert out == plain.take(*batch)
    assert judge.asked == [10, 30, 30, 40, 40]


# A real broker


def orders(count: int = 60) -> list[Element]:
    """A table of orders that are placed, paid and shipped, some of them cancelled at once."""
    reasons: list[Element] = []
    for n in range(count):
        t = 100 + 10 * n
        states = [b'{"id":%d,"state":"%b"}' % (n, each) for each in (b"placed", b"paid", b"sent")]
        placed, paid, sent = states
        reasons += [Insert(placed, t, INFINITY), Adjust(placed, t, INFINITY, t + 25)]
        reasons += [Insert(paid, t + 25, t + 40)]
        if n % 3:
            reasons.append(Insert(sent, t + 40, INFINITY if n % 2 else t + 90))
        reasons.append(Stable(t + 5))
    return [*reasons, Stable(INFINITY)]


POISON: dict[str, list[tuple[bytes | None, bytes | None]]] = {
    "debezium": [(b"k", b'{"op":"c","after":null,"source":{"ts_ms":9}}'), (b"k", b"\xff")],
    "flink": [(b"k", b'{"op":"+X","id":1}'), (b"k", None)],
    "openclose": [(b"k", b'{"op":"close","payload":9,"vs":1,"ve":2}'), (b"k", b"[" * 200)],
    "upserts": [(b"k", b"null"), (None, b'{"id":1}')],
}
REASONS = {
    "debezium": ["not_an_element", "not_utf8"],
    "flink": ["not_an_element", "tombstone"],
    "openclose": ["nesting", "unknown_event"],
    "upserts": ["no_key", "not_an_element"],
}


async def _letters(
    bootstrap: str, topic: str, count: int, header: str = "lmerge-reason"
) -> list[tuple[str, str]]:
    """(replica, reason or another header) of so many dead letters."""
    found: list[tuple[str, str]] = []
    async with (
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
        asyncio.timeout(20),
    ):
        while len(found) < count:
            headers = dict((await consumer.getone()).headers)
            found.append((headers["lmerge-replica"].decode(), headers[header].decode()))
    return found


def _poison(merge: Merge, name: str) -> None:
    for key, value in POISON[name]:
        merge.send_raw(merge.topics[name], [value], key)


def _publish(merge: Merge, name: str, elements: Sequence[Element]) -> int:
    """Writes the elements; returns how many records that took."""
    write = writer(name, [] if name == "openclose" else ["id"]).write
    records = 0

    def written(element: Element) -> Sequence[Written]:
        nonlocal records
        reasons = write(element)
        records += len(reasons)
        return reasons

    asyncio.run(publish(Connection(merge.bootstrap), merge.topics[name], elements, written=written))
    return records


@pytest.mark.full
@pytest.mark.kafka
def test_four_dialects_of_one_table_merge_to_it_past_poison_and_kill(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = Merge(bootstrap, tmp_path, DIALECTS)
    document = json.loads(merge.path.read_text())
    for replica in document["replicas"]:
        replica["format"] = WRITTEN[replica["name"]].model_dump(exclude_unset=True)
    merge.path.write_text(json.dumps(document))
    elements = orders()
    ends = {}
    for name in DIALECTS:
        ends[name] = _publish(merge, name, elements[:150]) + len(POISON[name])
        _poison(merge, name)
    with merge.worker() as worker:
        for name, end in ends.items():
            merge.wait_until_committed(name, end)
        worker.kill()
    letters = asyncio.run(_letters(bootstrap, merge.dead_letters, 8))
    for name in DIALECTS:
        assert sorted(reason for at, reason in letters if at == name) == REASONS[name]
    for name in DIALECTS:
        # written from the beginning: a source that delivers at least once repeats itself
        _publish(merge, name, elements)
    with merge.worker() as worker:
        worker.wait_until_ended()
        status = worker.status()
    assert merge.output_is(reconstitute(elements))
    assert [replica["why"] for replica in status["replicas"]] == [None] * 4
    assert all(replica["breaches"] == {} for replica in status["replicas"])


@pytest.mark.full
@pytest.mark.kafka
def test_n14_replicas_with_nulls_and_without_meet_and_a_registrys_bytes_are_named(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = Merge(bootstrap, tmp_path, ["nulls", "absent", "cdc"])
    merge.extra = {"drop_nulls": True, "policy": {"stable": "quorum(2)"}}
    merge.write()
    document = json.loads(merge.path.read_text())
    document["replicas"][2]["format"] = {"dialect": "debezium", "stable": {"lateness": 0}}
    merge.path.write_text(json.dumps(document))
    end = b'{"op":"stable","vc":null}'
    for name, payload in (("nulls", b'{"id":1,"n":null}'), ("absent", b'{"id":1}')):
        insert = b'{"op":"insert","payload":%b,"vs":1,"ve":9}' % payload
        merge.send_raw(merge.topics[name], [b"\0\0\0\0\7" + insert, insert, end])
    change = b'{"op":"c","after":{"id":1},"source":{"ts_ms":1}}'
    merge.send_raw(merge.topics["cdc"], [change], b"not json")
    with merge.worker() as worker:
        status = worker.wait_until_ended()
    assert merge.output_is(TDB([(b'{"id":1}', 1, 9)]))
    assert all(replica["breaches"] == {} for replica in status["replicas"])
    letters = asyncio.run(_letters(bootstrap, merge.dead_letters, 3, "lmerge-message"))
    reasons = dict(letters)
    for name in ("nulls", "absent"):
        assert "the five bytes of a schema registry, schema 7, and there is JSON" in reasons[name]
    assert reasons["cdc"].startswith("the record's key: not JSON")
