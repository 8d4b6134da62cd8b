"""Reporting: nothing that was reported is lost by a failed commit, and a search never stops it."""

import asyncio

from lmerge_service.core import Breach, BreachKind
from lmerge_service.elements import Insert, Stable
from lmerge_service.errors import TransportError
from lmerge_service.kafka.find import FoundRecord
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.findings.evidence import Evidence, NotificationKind, RecordPlace
from lmerge_service.merge.findings.reporting import Before, Reporting
from lmerge_service.merge.guards.evaluator import Finding
from lmerge_service.merge.guards.verdicts import Action, Guard, Verdict
from lmerge_service.tdb import Event

X = b'"x"'
RANGES = {name: {TopicPartition(f"t.{name}", 0): 9} for name in "abc"}


def reporting() -> Reporting:
    return Reporting(3, unix_ns=lambda: 5_000_000)


def notified(by: Reporting) -> list[Evidence]:
    return [Evidence.of_record(value) for _, value in by.pending]


def divergence(by: Reporting) -> None:
    verdict = Verdict(Guard.DIVERGENCE, Action.REPORT, "b", "it lies", "look", others={"a": 50})
    versions = (("a", (100,)), ("b", (40,)), ("c", ()))
    breach = Breach(
        "b", 0, BreachKind.FROZEN_END_DISAGREES, Stable(60), Event(X, 20, 100), versions
    )
    finding = Finding(verdict, TopicPartition("t.b", 0), RecordPlace("t.b", 0, 8), 0.0)
    by.found(finding, 50, breach, RANGES)


async def run(by: Reporting, search: object, records: int) -> None:
    task = asyncio.create_task(by.run(search))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        while len(by.pending) < records:  # noqa: ASYNC110
            await asyncio.sleep(0)
    task.cancel()


def test_what_was_reported_is_pending_until_it_is_committed() -> None:
    by = reporting()
    by.notify(NotificationKind.PAUSED, "a", "it is far ahead")
    assert len(by.begin()) == 1
    by.notify(NotificationKind.RESUMED, "a", "")
    by.committed()
    (evidence,) = notified(by)
    assert (evidence.kind, evidence.replica, evidence.task) == ("resumed", "a", 3)
    assert evidence.at_ms == 5


def test_n5_what_a_failed_commit_reported_is_reported_and_counted_once_when_it_is_found_again() -> (
    None
):
    by = reporting()
    by.notify(NotificationKind.PAUSED, "a", "")
    by.begin()
    by.committed()
    for _ in range(3):  # each time the commit fails, and the same is found once more
        by.notify(NotificationKind.PAUSED, "a", "")
        by.notify(NotificationKind.REBUILD, None, "")
        by.begin()
        by.settle(took_place=False)
        assert by.tally.shown["paused", "a"] == 2, "what is shown does not fall"
    assert {each.kind for each in notified(by)} == {"rebuild"}, "each rebuild did take place"
    by.notify(NotificationKind.PAUSED, "a", "")
    by.begin()
    by.settle(took_place=True)  # its outcome was unknown
    assert notified(by) == []
    assert by.tally.counts == {("paused", "a"): 2, ("rebuild", None): 3}


def test_of_what_happens_often_ever_fewer_are_reported() -> None:
    by = reporting()
    for _ in range(9):
        by.notify(NotificationKind.PAUSED, "a", "")
    assert [each.count for each in notified(by)] == [1, 2, 4, 8]
    assert by.tally.counts["paused", "a"] == 9


def test_a_divergence_is_reported_with_where_those_who_have_the_event_publish_it() -> None:
    by, asked = reporting(), list[tuple[Before, Event]]()

    async def search(before: Before, event: Event) -> FoundRecord | None:
        asked.append((before, event))
        (tp,) = before
        return FoundRecord(tp.topic, 0, 4, Insert(X, 20, 40), b"{}")

    divergence(by)
    assert by.pending == []
    asyncio.run(run(by, search, 1))
    assert asked == [(RANGES["a"], Event(X, 20, 100)), (RANGES["b"], Event(X, 20, 100))]
    (evidence,) = notified(by)
    assert (evidence.payload, evidence.vs) == ('"x"', 20)
    assert evidence.output is not None
    assert evidence.output.ends == (100,)
    assert evidence.first == RecordPlace("t.b", 0, 4, "{}", 2)
    found = {name: (each.stable, each.ends) for name, each in evidence.replicas.items()}
    assert {name: found[name] for name in "ab"} == {"a": (50, (100,)), "b": (60, (40,))}
    assert found["c"][1] == ()
    assert evidence.replicas["a"].place == RecordPlace("t.a", 0, 4, "{}", 2)
    assert evidence.replicas["c"].place is None


def test_a_search_that_fails_costs_the_places_only() -> None:
    by = reporting()

    async def search(before: Before, event: Event) -> FoundRecord | None:
        raise TransportError("Kafka is away")

    divergence(by)
    asyncio.run(run(by, search, 1))
    (evidence,) = notified(by)
    assert evidence.first == RecordPlace("t.b", 0, 8), "the record at which it showed"
    assert evidence.replicas["a"].place is None


def test_while_many_searches_wait_the_next_is_reported_without() -> None:
    by = reporting()
    for _ in range(16):  # 1, 2, 4, 8, 16
        divergence(by)
    assert [each.count for each in notified(by)] == [16]
