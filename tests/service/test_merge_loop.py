"""Guards and flow control in running workers, on a real broker: who lies is stopped before the
output is harmed, who runs ahead is paused, and both are reported."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiokafka import TopicPartition

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.ledger import Entry
from lmerge_service.merge.decisions.records import (
    Action,
    Decision,
    Detach,
    Quarantine,
    Release,
    decide,
)
from lmerge_service.merge.findings.evidence import Evidence
from lmerge_service.service import worker as service
from lmerge_service.service.status.build import status_of
from lmerge_service.service.status.document import ReplicaStatus, Status
from tests.service.cluster import Merge, logical, meaning, replica_streams, running
from tests.service.test_metrics import registry_of

NOW = time.time_ns() // 1_000_000
DAY = 24 * 3_600_000


def ins(name: str, vs: int, ve: int) -> Insert[bytes]:
    return Insert(b'"%s"' % name.encode(), vs, ve)


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path)


def configured(merge: Merge, **extra: Any) -> Merge:
    merge.extra = extra
    merge.write()
    return merge


def of(status: Status, name: str) -> ReplicaStatus:
    return next(each for each in status.replicas if each.name == name)


async def until(
    worker: service.Worker, reached: Callable[[Status], bool], seconds: float = 30
) -> Status:
    """The first status for which it holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if reached(status := status_of(worker)):
            return status
        await asyncio.sleep(0.02)
    raise AssertionError(status_of(worker).model_dump_json(indent=1))


async def decided(worker: service.Worker, action: Action) -> Entry:
    assert worker.control is not None
    entry = await worker.control.decide(decide(action, "anna"))
    assert entry.accepted, entry
    return entry


async def publish(merge: Merge, name: str, *elements: Element) -> None:
    await merge._publish(name, elements, 1, lambda *_: 0, [], None)


async def events(merge: Merge) -> list[Evidence]:
    """All evidence there is."""
    tp = TopicPartition(f"{merge.output}.events", 0)
    async with Source(Connection(merge.bootstrap)) as source:
        ends = await source.ends([tp])
        found = [r async for _, rs in source.backlog({tp: 0}, ends) for r in rs]
    return [Evidence.of_record(record.value) for record in found if record.value is not None]


def kinds(found: Sequence[Evidence]) -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.replica, each.action) for each in found]


@pytest.mark.full
def test_w6_a_stable_from_the_far_future_harms_nobody(merge: Merge) -> None:
    """laminardb#388, sql-flow#358: one event from the future, and all others are late."""
    far: list[Element] = [Stable(NOW - 50), ins("far", NOW + DAY, NOW + 2 * DAY), Stable(NOW + DAY)]

    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "b", ins("x", NOW - 60, NOW - 40), Stable(NOW - 45))
            await until(worker, lambda s: s.output.stable_point == NOW - 45)
            await publish(merge, "a", *far, ins("behind", NOW - 5, NOW))
            status = await until(worker, lambda s: s.version == 2)
            found = of(status, "a")
            assert found.state == "quarantined"
            assert found.why is not None
            assert "ahead of the wall clock" in found.why
            assert status.health == "degraded"
            where = "replica a: in quarantine: clock_skew"
            assert any(where in reason for reason in status.reasons)
            labels = {"guard": "clock_skew", "replica": "a", "partition": "0"}
            metric = registry_of(worker).get_sample_value("lmerge_guard_findings_total", labels)
            assert metric == 1
            await publish(merge, "b", ins("y", NOW - 30, NOW - 20), Stable(NOW - 10))
            status = await until(worker, lambda s: s.output.stable_point == NOW - 10)
            assert (await decided(worker, Release("a"))).version == 3
            await until(worker, lambda s: of(s, "a").state == "joined")
            await until(worker, lambda s: of(s, "a").lag_records == 0)
            await publish(merge, "a", ins("z", NOW - 4, NOW - 3), Stable(NOW - 2))
            status = await until(worker, lambda s: s.output.stable_point == NOW - 2)
            assert status.output.leader == "a", "it leads again"
            notified = await events(merge)
        assert kinds(notified)[:2] == [
            ("clock_skew", "a", "quarantine"),
            ("quarantined", "a", None),
        ]
        assert ("released", "a", None) in kinds(notified)
        skew = notified[0]
        assert skew.first is not None
        assert (skew.first.topic, skew.first.partition, skew.first.offset) == (
            merge.topics["a"], 0, 2,
        )  # fmt: skip
        assert json.loads(skew.first.record) == {"op": "stable", "vc": NOW + DAY}
        assert skew.replicas["b"].stable == NOW - 45

    with structlog.testing.capture_logs() as logs:
        asyncio.run(play())
    (logged,) = [each for each in logs if each["event"] == "guard"]
    assert (logged["replica"], logged["partition"], logged["offset"]) == ("a", 0, 2)
    merge.audit()


@pytest.mark.full
def test_n7_who_leads_since_when_from_whom_and_why(merge: Merge) -> None:
    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "a", ins("x", 1, 9), Stable(2))
            status = await until(worker, lambda s: s.output.stable_point == 2)
            assert (status.output.leader, status.output.leader_before) == ("a", None)
            assert (
                status.output.leader_why == f"stable(2) at offset 0 to 1 of {merge.topics['a']}-0"
            )
            await publish(merge, "b", ins("x", 1, 9), Stable(3))
            status = await until(worker, lambda s: s.output.stable_point == 3)
            assert (status.output.leader, status.output.leader_before) == ("b", "a")
            assert status.output.leader_why is not None
            assert status.output.leader_why.endswith(f"of {merge.topics['b']}-0; a is at 2")
            assert status.output.leader_since is not None
            assert abs(status.output.leader_since - time.time()) < 30
            sample = registry_of(worker).get_sample_value
            since = sample("lmerge_leader_since_timestamp_seconds", {"partition": "0"})
            assert since == status.output.leader_since
            await decided(worker, Quarantine("b", "it lies"))
            await until(worker, lambda s: of(s, "b").state == "quarantined")
            await publish(merge, "a", Stable(4))
            await until(worker, lambda s: s.output.leader == "a" and s.output.stable_point == 4)
            await until(worker, lambda s: s.tasks[0].findings.get("leader") == {"b": 1, "a": 1})
            notified = [each for each in await events(merge) if each.kind == "leader"]
        assert [each.replica for each in notified] == ["b", "a"]
        assert notified[0].reason.startswith("from a: stable(3) at offset ")
        assert notified[1].reason == (
            f"from b: stable(4) at offset 2 of {merge.topics['a']}-0; b is not merged: it lies"
        )

    with structlog.testing.capture_logs() as logs:
        asyncio.run(play())
    logged = [each for each in logs if each["event"] == "leader changed"]
    assert [(each["replica"], each["before"]) for each in logged] == [("b", "a"), ("a", "b")]


@pytest.mark.full
def test_n7_events_that_a_lying_stable_loses_are_reported_with_both_replicas(merge: Merge) -> None:
    events_of = [ins(f"{number}", number, number + 5) for number in range(1, 101)]

    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "a", *events_of[:50], Stable(101))
            await until(worker, lambda s: s.output.stable_point == 101)
            await publish(merge, "b", *events_of, Stable(101))
            status = await until(worker, lambda s: of(s, "a").lost_events == 50)
            (why,) = [each for each in status.reasons if each.startswith("events are lost")]
            places = (f"at offset 50 of {merge.topics['a']}-0", f"of {merge.topics['b']}-0")
            assert f"a published stable(101) {places[0]} without 50 events that b has" in (
                why.replace("offsets 0 to 50", "offset 50")
            )
            assert why.endswith(places[1])
            assert "lost_events" in status.reason_kinds
            labels = {"replica": "a", "partition": "0"}
            sample = registry_of(worker).get_sample_value
            assert sample("lmerge_replica_lost_events_total", labels) == 50
            await until(worker, lambda s: s.tasks[0].findings.get("lost") == {"a": 1})
            (notified,) = [each for each in await events(merge) if each.kind == "lost"]
            assert (notified.replica, notified.reason) == (
                "a",
                why.removeprefix("events are lost: "),
            )

    with structlog.testing.capture_logs() as logs:
        asyncio.run(play())
    (logged,) = [each for each in logs if each["event"] == "events lost"]
    assert (logged["replica"], logged["offset"], logged["count"]) == ("a", 50, 50)


@pytest.mark.full
def test_n7_records_of_a_detached_replica_are_counted(merge: Merge) -> None:
    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "a", ins("x", 1, 9), Stable(2))
            await publish(merge, "b", ins("x", 1, 9), Stable(2))
            await until(worker, lambda s: all(of(s, n).stable_point == 2 for n in "ab"))
            await decided(worker, Detach("b"))
            await until(worker, lambda _: worker.held[0].task.state.decided == 2)
            await publish(merge, "b", ins("y", 3, 9), Stable(4), Stable(5))
            await until(worker, lambda s: s.detached == {"b": 3})
            labels = {"replica": "b", "partition": "0"}
            metric = registry_of(worker).get_sample_value("lmerge_detached_records_total", labels)
            assert metric == 3

    asyncio.run(play())


@pytest.mark.full
def test_a_quarantine_survives_death_before_and_after_its_decision(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Decision] = []

    async def away(_: LoggedControl, decision: Decision) -> Entry:
        tried.append(decision)
        raise TransportError("the control log is away")

    async def before() -> None:
        monkeypatch.setattr(LoggedControl, "decide", away)
        async with running(merge) as worker:
            await publish(merge, "b", ins("x", NOW - 60, NOW - 40), Stable(NOW - 45))
            await until(worker, lambda s: s.output.stable_point == NOW - 45)
            await publish(merge, "a", Stable(NOW + DAY))
            await until(worker, lambda s: of(s, "a").state == "quarantined")
            await until(worker, lambda s: len(tried) > 1)
            assert len({each.id for each in tried}) == 1
            assert worker.control is not None
            assert worker.control.ledger.version == 1
        monkeypatch.undo()

    asyncio.run(before())
    commit = merge.last_commit()
    assert commit is not None
    assert list(commit.quarantined) == ["a"]
    with merge.worker() as worker:  # whose clock has not moved a day
        status = worker.wait(lambda s: s["version"] == 2, "the decision")
        assert status["replicas"][0]["state"] == "quarantined"
        assert status["tasks"][0]["findings"].get("clock_skew") is None, "it was not judged again"
        worker.kill()
    with merge.worker() as worker:
        status = worker.wait_until_running()
        assert status["replicas"][0]["state"] == "quarantined"
        assert "clock_skew" in status["replicas"][0]["why"]
        assert status["version"] == 2
        merge.publish("b", [ins("y", NOW - 30, NOW - 20), Stable(NOW - 10)])
        worker.wait(lambda s: s["output"]["stable_point"] == NOW - 10, "b to go on")
    merge.audit()


@pytest.mark.full
def test_t13_an_early_end_is_held_until_another_ends(merge: Merge) -> None:
    """materialize#25005: a replica that had finished closed the stream for all."""
    configured(merge, guards={"patience_seconds": None})
    x, y = ins("x", 10, 20), ins("y", 45, 55)

    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "a", x, Stable(40))
            await publish(merge, "c", x, Stable(30))
            await until(worker, lambda s: s.output.stable_point == 40)
            await publish(merge, "b", x, Stable(35), Stable(INFINITY), Stable(INFINITY))
            status = await until(worker, lambda s: bool(of(s, "b").held))
            (held,) = of(status, "b").held
            assert (held.guard, held.partition, held.offset) == ("early_end", 0, 2)
            assert "detach replicas that are gone for good" in held.remedy
            await until(worker, lambda s: any("early_end holds it" in r for r in s.reasons))
            await publish(merge, "a", y, Stable(50))
            status = await until(worker, lambda s: s.output.stable_point == 50)
            assert not status.output.ended
            await publish(merge, "a", Stable(INFINITY))
            status = await until(worker, lambda s: s.output.ended)
            status = await until(worker, lambda s: of(s, "b").ended and not of(s, "b").held)
            assert not any("holds it" in reason for reason in status.reasons)
            await until(worker, lambda s: "let_go" in s.tasks[0].findings)

    asyncio.run(play())
    found = merge.audit()
    assert found.complete
    assert {payload for payload, *_ in found.tdb} == {b'"x"', b'"y"'}


def test_an_early_end_goes_when_those_who_died_are_detached_and_not_before(merge: Merge) -> None:
    configured(merge, guards={"patience_seconds": None})
    x = ins("x", 10, 20)

    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "a", x, Stable(40))
            await publish(merge, "c", x, Stable(30))
            await publish(merge, "b", x, Stable(45))
            await until(worker, lambda s: s.output.stable_point == 45)
            await publish(merge, "b", Stable(INFINITY))
            await until(worker, lambda s: bool(of(s, "b").held))
            await decided(worker, Detach("c"))
            await until(worker, lambda s: len(s.replicas) == 2)
            assert of(status_of(worker), "b").held
            await decided(worker, Detach("a"))
            await until(worker, lambda s: s.output.ended)

    asyncio.run(play())
    assert merge.audit().complete


@pytest.mark.full
def test_a_held_stable_is_judged_again_after_kill_9_and_skipped_by_quarantine_and_release(
    merge: Merge,
) -> None:
    configured(merge, guards={"patience_seconds": None, "max_leap": 1_000}, time_unit="none")
    with merge.worker() as worker:
        merge.publish("b", [ins("x", 10, 20), Stable(50)])
        worker.wait(lambda s: s["output"]["stable_point"] == 50, "b")
        merge.publish("a", [ins("x", 10, 20), Stable(60), Stable(90_000), ins("y", 70, 80)])
        worker.wait(lambda s: s["replicas"][0]["held"], "the leap")
        merge.wait_until_committed("a", 2)
        worker.kill()
    commit = merge.last_commit()
    assert commit is not None
    assert commit.replicas["a"].partitions[0].next == 2

    async def play() -> None:
        async with running(merge) as worker:
            status = await until(worker, lambda s: bool(s.replicas and of(s, "a").held))
            assert of(status, "a").held[0].offset == 2
            assert of(status, "a").lag_records == 2
            await decided(worker, Quarantine("a", "it leaps"))
            await until(worker, lambda s: of(s, "a").state == "quarantined")
            await decided(worker, Release("a"))
            await until(worker, lambda s: of(s, "a").lag_records == 0)
            await publish(merge, "a", Stable(100))
            status = await until(worker, lambda s: s.output.stable_point == 100)
            assert not of(status, "a").held

    asyncio.run(play())
    assert {payload for payload, *_ in merge.audit().tdb} == {b'"x"', b'"y"'}


def test_d2_two_writers_of_one_topic_are_found_out(merge: Merge) -> None:
    """KAFKA-13719: a restart left two producers of one stream."""
    one: list[Element] = []
    for n in range(0, 2_000, 5):
        one += [ins(f"{n + i}", n + i, n + i + 9) for i in range(5)]
        one.append(Stable(n))
    late: list[Element] = [one[0], *one]
    both: list[Element] = [each for pair in zip(one[12:], late, strict=False) for each in pair]

    async def play() -> None:
        configured(merge, time_unit="none")
        async with running(merge) as worker:
            await publish(merge, "b", *one, Stable(2_000))
            await publish(merge, "a", *one[:12], *both)
            status = await until(worker, lambda s: of(s, "a").state == "quarantined")
            assert "two producers" in (of(status, "a").why or "")
            await until(worker, lambda s: s.output.stable_point == 2_000)
            notified = await until_notified(merge, "duplicate_writer")
        assert (notified.replica, notified.action) == ("a", "quarantine")
        assert notified.first is not None
        assert notified.first.topic == merge.topics["a"]

    asyncio.run(play())
    merge.audit()


async def until_notified(merge: Merge, kind: str, seconds: float = 20) -> Evidence:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for each in await events(merge):
            if each.kind == kind:
                return each
    raise AssertionError(f"no {kind} among {kinds(await events(merge))}")


@pytest.mark.full
def test_a_replica_that_breaks_too_many_rules_is_quarantined_unless_it_is_alone(
    merge: Merge,
) -> None:
    configured(merge, time_unit="none", guards={"min_breaches": 20, "patience_seconds": 60})
    good = [ins(f"{n}", n, n + 9) for n in range(100)]

    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "b", *good, Stable(90))
            await until(worker, lambda s: s.output.stable_point == 90)
            await asyncio.to_thread(merge.send_raw, merge.topics["a"], [b"junk"] * 50)
            status = await until(worker, lambda s: of(s, "a").state == "quarantined")
            assert "50 of its latest 50 records" in (of(status, "a").why or "")
            notified = await until_notified(merge, "breach_rate")
            assert notified.action == "quarantine"
            await publish(merge, "b", Stable(95))
            await until(worker, lambda s: s.output.stable_point == 95)
            await decided(worker, Detach("a"))
            await decided(worker, Detach("c"))
            await asyncio.to_thread(merge.send_raw, merge.topics["b"], [b"junk"] * 50)
            await until(worker, lambda s: "b" in s.tasks[0].findings["breach_rate"])
            assert of(status_of(worker), "b").state == "joined", "nobody could take its place"

    asyncio.run(play())


@pytest.mark.full
def test_the_first_divergence_is_reported_with_what_each_replica_publishes_where(
    merge: Merge,
) -> None:
    """VictoriaMetrics#4367, mimir#12331: who comes back contradicts what is final."""
    configured(merge, time_unit="none")
    filler = [ins(f"f{n}", n, n + 1) for n in range(10)]

    async def play() -> None:
        async with running(merge) as worker:
            await publish(merge, "a", *filler, ins("x", 20, 100), Stable(50))
            await until(worker, lambda s: s.output.stable_point == 50)
            await publish(merge, "b", ins("x", 20, 40), *filler, Stable(60))
            await publish(merge, "c", *filler, ins("x", 20, 100), Stable(40))
            await until(worker, lambda s: s.output.stable_point == 60)
            status = await until(worker, lambda s: "divergence" in s.tasks[0].findings)
            assert of(status, "b").state == "joined"
            notified = await until_notified(merge, "divergence")
        assert (notified.replica, notified.action, notified.count) == ("b", "report", 1)
        assert (notified.payload, notified.vs) == ('"x"', 20)
        assert notified.output is not None
        assert notified.output.ends == (100,)
        assert notified.replicas["b"].ends == (40,)
        assert notified.first is not None
        assert (notified.first.topic, notified.first.offset) == (merge.topics["b"], 0)
        for name in "ac":
            shown = notified.replicas.get(name)  # c may come later
            if shown is not None and shown.ends:
                place = shown.place
                assert place is not None
                assert (place.topic, place.offset) == (merge.topics[name], 10)
        assert notified.replicas["a"].ends == (100,)

    asyncio.run(play())


@pytest.mark.full
def test_g3_a_backlog_without_stables_is_paused_and_the_output_ends(merge: Merge) -> None:
    """numaflow#3002: one source runs ahead, and memory runs out."""
    configured(
        merge, limits={"max_live_events": 500, "batch_records": 100},
        guards={"max_leap": 0, "patience_seconds": 0.5},
    )  # fmt: skip
    lives = logical(3_000)
    streams = replica_streams(lives)
    ahead = [each for each in streams["a"] if type(each) is not Stable]

    async def play() -> None:
        await publish(merge, "a", *ahead)
        async with running(merge) as worker:
            live = 0

            def paused(status: Status) -> bool:
                nonlocal live
                live = max(live, status.output.live_events)
                return of(status, "a").state == "paused"

            def ended(status: Status) -> bool:
                nonlocal live
                live = max(live, status.output.live_events)
                return status.output.ended

            await until(worker, lambda s: bool(s.replicas) and s.output.live_events > 0)
            await publish(merge, "b", *streams["b"])
            await until(worker, paused)
            labels = {"replica": "a", "partition": "0"}
            assert registry_of(worker).get_sample_value("lmerge_flow_paused", labels) == 1
            await until(worker, ended, 60)
            status = await until(worker, lambda s: of(s, "a").lag_records == 0)
            assert of(status, "a").state == "joined"
            assert live <= 500 * 3 // 2 + 100
            assert {"paused", "resumed"} <= status.tasks[0].findings.keys()
            assert ("paused", "a", None) in kinds(await events(merge))

    asyncio.run(play())
    assert merge.output_is(meaning(lives))
