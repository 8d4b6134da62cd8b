"""What is left out as repeated or as of an older incarnation is what it is taken for; else it is
merged, and reported."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.findings.evidence import Evidence
from lmerge_service.tdb import TDB
from tests.service.cluster import Merge
from tests.service.test_merge_loop import events as published

pytestmark = pytest.mark.kafka

Numbered = tuple[int | None, Element]


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    made = Merge(bootstrap, tmp_path, ("a", "b"))
    made.extra = {"guards": {"early_end": False}, "snapshot_seconds": 0.2}
    made.write()
    return made


def write(merge: Merge, replica: str, records: Sequence[Numbered], *, incarnation: int = 0) -> None:
    """Numbered elements, in order, to the one partition of a replica's topic."""

    async def send() -> None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics.ensure(merge.topics[replica])
        async with AIOKafkaProducer(bootstrap_servers=merge.bootstrap) as producer:
            for number, element in records:
                headers = incarnation_headers(incarnation)
                if number is not None:
                    headers.append((SEQ_HEADER, b"%d" % number))
                await producer.send(
                    merge.topics[replica], encode(element), partition=0, headers=headers
                )

    asyncio.run(send())


def events(prefix: str, *starts: int) -> list[Element]:
    return [Insert(b'"%s%d"' % (prefix.encode(), vs), vs, vs + 5) for vs in starts]


def numbered(elements: Sequence[Element], first: int = 1) -> list[Numbered]:
    return list(enumerate(elements, first))


def meaning(*elements: Element) -> TDB:
    return TDB((e.payload, e.vs, e.ve) for e in elements if isinstance(e, Insert))


def evidence(merge: Merge, kind: str) -> list[Evidence]:
    return [each for each in asyncio.run(published(merge)) if each.kind == kind]


def has_merged(elements: int, status: Any) -> bool:
    return bool(status["elements_in"] == elements)


def place_of(found: Evidence) -> tuple[str | None, str, int, str]:
    assert found.first is not None
    return found.replica, found.first.topic, found.first.offset, found.first.record


def replica_of(status: Any, name: str) -> Any:
    return next(each for each in status["replicas"] if each["name"] == name)


@pytest.mark.full
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed in between"])
def test_n4_a_numbered_writer_that_counts_again_from_1_loses_nothing_and_is_reported(
    merge: Merge, killed: bool
) -> None:
    before = [*events("a", *range(200)), Stable(200)]
    after = [*events("a", *range(200, 350)), Stable(INFINITY)]
    first = numbered(before)
    with merge.worker() as worker:
        for upto in (50, 100, 150):  # a merge that is idle takes no snapshot
            write(merge, "a", first[upto - 50 : upto])
            worker.wait(partial(has_merged, upto), f"{upto} elements")
        write(merge, "a", first[150:])
        worker.wait(lambda s: s["output"]["stable_point"] == 200, "stable(200)")
        merge.wait_until_committed("a", 201)
        if killed:
            worker.wait(lambda s: s["tasks"][0]["snapshot"], "a snapshot")
            worker.kill()
        else:
            write(merge, "a", numbered(after))
            assert_reported(worker, merge)
    if killed:
        with merge.worker() as worker:
            worker.wait_until_running()
            write(merge, "a", numbered(after))
            assert_reported(worker, merge)
    assert merge.output_is(meaning(*before, *after))


def assert_reported(worker: Any, merge: Merge) -> None:
    status = worker.wait_until_ended()
    a, where = replica_of(status, "a"), f"{merge.topics['a']}-0 at offset 201"
    assert (a["contradicted"], a["contradicted_at"], a["repeated"]) == (1, where, 0)
    assert any("other ones than were read" in each and where in each for each in status["reasons"])
    metrics = worker.get("/metrics").text
    assert 'lmerge_health_reasons{kind="numbering"} 1.0' in metrics
    assert 'lmerge_replica_contradicted_records_total{partition="0",replica="a"} 1.0' in metrics
    (logged,) = [each for each in worker.logged("guard") if each["guard"] == "numbering"]
    assert (logged["replica"], logged["partition"], logged["offset"]) == ("a", 0, 201)
    worker.wait(lambda _: bool(evidence(merge, "numbering")), "the evidence")
    (found,) = evidence(merge, "numbering")
    assert place_of(found) == (
        "a", merge.topics["a"], 201, encode(events("a", 200)[0]).decode(),
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("run", [1, 7])
def test_n4_of_two_numbered_writers_in_one_partition_nothing_is_lost_and_both_are_reported(
    merge: Merge, run: int
) -> None:
    """Their runs alternate; the second replica has all of it, so that one may be quarantined."""
    first = numbered(events("x", *range(1, 101)))
    second = numbered(events("y", *range(1, 101)))
    mixed = [
        each
        for start in range(0, 100, run)
        for each in (*first[start : start + run], *second[start : start + run])
    ]
    everything = [element for _, element in mixed]
    with merge.worker() as worker:
        worker.wait_until_running()
        write(merge, "a", mixed)
        worker.wait(lambda s: s["output"]["inserts"] == 200, "all events of both")
        findings = worker.status()["tasks"][0]["findings"]
        assert findings["numbering"]["a"] >= 1
        assert findings["duplicate_writer"]["a"] >= 1
        write(merge, "b", [(None, each) for each in [*everything, Stable(INFINITY)]])
        worker.wait_until_ended()
    assert merge.output_is(meaning(*everything))


@pytest.mark.full
def test_what_a_numbered_writer_repeats_is_left_out_and_no_finding(merge: Merge) -> None:
    numbers = numbered([*events("a", *range(200)), Stable(150)])
    with merge.worker() as worker:
        worker.wait_until_running()
        write(merge, "a", [*numbers, *numbers[50:], *numbers[:3], (202, Stable(INFINITY))])
        status = worker.wait_until_ended()
        a = replica_of(status, "a")
        assert (a["repeated"], a["contradicted"], a["breaches"]) == (154, 0, {})
        assert a["repeated_at"] == f"{merge.topics['a']}-0 at offset 354"
        assert "numbering" not in status["tasks"][0]["findings"]
    assert merge.output_is(meaning(*events("a", *range(200))))


@pytest.mark.full
def test_n4_an_older_incarnation_behind_a_newer_one_is_reported_until_the_newer_one_goes_on(
    merge: Merge,
) -> None:
    old, new = events("old", *range(151)), events("new", *range(10))
    with merge.worker() as worker:
        worker.wait_until_running()
        write(merge, "a", [(None, each) for each in old[:5]], incarnation=1)
        write(merge, "a", [(None, each) for each in [*new, Stable(5)]], incarnation=2)
        status = worker.wait(lambda s: s["output"]["stable_point"] == 5, "stable(5)")
        assert replica_of(status, "a")["outdated"] == []
        write(merge, "a", [(None, each) for each in old], incarnation=1)
        status = worker.wait(lambda s: replica_of(s, "a")["stale"] == 151, "the old ones")
        run = {"partition": 0, "offset": 16, "records": 151, "incarnation": 1}
        assert replica_of(status, "a")["outdated"] == [run]
        reason = "replica a: the latest 151 records of partition 0, from offset 16 on, are of"
        assert any(each.startswith(reason) for each in status["reasons"]), status["reasons"]
        answer = worker.get("/metrics")
        assert answer is not None
        metrics = answer.text
        assert 'lmerge_replica_outdated_records{partition="0",replica="a"} 151.0' in metrics
        worker.wait(lambda _: bool(evidence(merge, "outdated")), "the evidence")
        place = place_of(evidence(merge, "outdated")[0])
        assert place == ("a", merge.topics["a"], 16, encode(old[0]).decode())
        assert status["tasks"][0]["findings"]["outdated"]["a"] <= 8, "not each is reported"
        merge.wait_until_committed("a", 167)
        worker.kill()
    with merge.worker() as worker:  # it is known after a restart, too
        status = worker.wait(lambda s: replica_of(s, "a")["outdated"], "the run")
        assert replica_of(status, "a")["outdated"] == [run]
        write(merge, "a", [(None, Stable(INFINITY))], incarnation=2)
        status = worker.wait_until_ended()
        assert replica_of(status, "a")["outdated"] == []
    assert merge.output_is(meaning(*new))
