"""Where a replica begins that can't, or shall not, go on: what is asked for, what is refused."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.partitions_sink import PartitionsOutbox, PartitionsSink
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.commit_record import COMMIT_KEY, chunk_key
from lmerge_service.queries.loading import load
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import Query
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.commit_record import ReplicaCommit, state_topic
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.running import QueryPhase, QueryReplica
from lmerge_service.tdb import TDB, differences, reconstitute
from tests.replicas.running import (
    QUERIES,
    Fact,
    Running,
    calls,
    last_commit,
    meant,
    published,
    records_in,
    send_facts,
    tdb_of,
)
from tests.waiting import vanish

TopicName = Callable[..., str]
CALLS = calls(random.Random(1), 600)
FIRST, REST = CALLS[:400], CALLS[400:]


def query(name: str) -> Query:
    return load(f"{QUERIES}:{name}")


def expected(name: str, facts: list[Fact] = CALLS) -> TDB:
    return meant(query(name), {"calls": facts})


def committed(bootstrap: str, to: str, records: int) -> ReplicaCommit:
    """The commit record with which so many records of the inputs are processed, or more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = last_commit(bootstrap, to)
        if found is not None and processed(found) >= records:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{to}: {found}")


def processed(commit: ReplicaCommit) -> int:
    return sum(each.next for of in commit.inputs.values() for each in of.partitions)


def run_first_part(
    bootstrap: str, topic_name: TopicName, name: str, *options: str, partitions: int = 1
) -> tuple[str, str]:
    """A replica that was stopped behind the first facts; the topics of facts and of output."""
    facts, to = topic_name("calls"), topic_name(name)
    send_facts(bootstrap, facts, FIRST, partitions=partitions, ended=False)
    with Running(bootstrap, name, to, *options, calls=facts) as replica:
        replica.await_line("begins")
        committed(bootstrap, to, len(FIRST))
        assert replica.stop() == 0, replica.error
        assert replica.events[-1] == "stopped"
    return facts, to


def run_in_process(request: ReplicaRequest, until: Callable[[QueryReplica], bool]) -> QueryReplica:
    """Runs it here until that holds, and stops it as SIGTERM does."""
    replica = QueryReplica(request)
    asyncio.run(replica.run(lambda: until(replica)))
    return replica


def lose_state(bootstrap: str, to: str) -> None:
    async def lose() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await vanish(topics, state_topic(to))

    asyncio.run(lose())


# Going on


@pytest.mark.full
def test_one_that_is_stopped_leaves_nothing_to_process_once_more(
    bootstrap: str, topic_name: TopicName
) -> None:
    """However long ago its last snapshot was; what is little is processed in less time than that
    takes."""
    facts, to = topic_name("calls"), topic_name("windows")
    given = calls(random.Random(2), 12_000)
    send_facts(bootstrap, facts, given[:500], partitions=2, ended=False)
    plan = physical(query("windows"))
    request = ReplicaRequest(
        name="windows", query=query("windows").plan, plan=plan, number="1",
        columns=partition_columns(plan.plan), connection=Connection(bootstrap), to=to,
        topics={"calls": facts}, partitions=2, batch=500, snapshot_seconds=3_600,
    )  # fmt: skip

    def has_processed(number: int) -> Callable[[QueryReplica], bool]:
        return lambda each: (
            each.transaction is not None and processed(each.transaction.record) >= number
        )

    short = run_in_process(request, has_processed(500))
    assert short.counts.snapshots["taken"] == 0
    send_facts(bootstrap, facts, given[500:], partitions=2, ended=False)
    long = run_in_process(request, has_processed(len(given)))
    assert long.counts.snapshots["taken"] == 1
    again = run_in_process(request, lambda each: each.phase is QueryPhase.RUNNING)
    assert again.state is not None
    assert (again.state.replayed, again.counts.snapshots["taken"]) == (0, 0)
    send_facts(bootstrap, facts, [])
    with Running(bootstrap, "windows", to, calls=facts) as replica:
        assert replica.wait() == 0, replica.error
    assert not differences(tdb_of(bootstrap, to), expected("windows", given))


def test_another_plan_takes_the_output_over(bootstrap: str, topic_name: TopicName) -> None:
    facts, to = run_first_part(bootstrap, topic_name, "windows", "--plan", "1")
    before = tdb_of(bootstrap, to)
    send_facts(bootstrap, facts, REST)
    with Running(bootstrap, "windows", to, "--plan", "2", calls=facts) as replica:
        assert replica.await_line("resumes")["incarnation"] == 0
        assert replica.wait() == 0, replica.error
    found = tdb_of(bootstrap, to)
    assert not differences(found, expected("windows"))
    assert len(before) < len(found)


@pytest.mark.full
def test_another_plan_goes_on_from_the_output_in_a_snapshot(
    bootstrap: str, topic_name: TopicName
) -> None:
    """It need not read the output from its beginning, which may be gone."""
    facts, to = topic_name("calls"), topic_name("windows")
    send_facts(bootstrap, facts, FIRST, ended=False)
    with Running(bootstrap, "windows", to, "--snapshot-seconds", "0.2", calls=facts) as replica:
        commit = committed(bootstrap, to, len(FIRST))
        while not commit.snapshots:
            commit = committed(bootstrap, to, len(FIRST))
        replica.kill()
    before = published(bootstrap, to)[0]
    delete_up_to(bootstrap, to, 3)
    send_facts(bootstrap, facts, REST)
    with Running(bootstrap, "windows", to, "--plan", "2", calls=facts) as replica:
        assert replica.await_line("resumes")["incarnation"] == 0
        assert replica.wait() == 0, replica.error
    after = published(bootstrap, to)[0]
    kept = [each for each in before if each not in after]
    assert kept == before[:3]
    assert not differences(reconstitute([*kept, *after]), expected("windows"))


def delete_up_to(bootstrap: str, topic: str, offset: int) -> None:
    async def delete() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            before = RecordsToDelete(before_offset=offset)
            await topics._admin.delete_records({TopicPartition(topic, 0): before})

    asyncio.run(delete())


@pytest.mark.full
@pytest.mark.parametrize("name", ["windows", "bag", "alive"])
def test_one_that_has_lost_its_state_resumes_by_its_output(
    name: str, bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = run_first_part(bootstrap, topic_name, name, "--partitions", "2", partitions=2)
    lose_state(bootstrap, to)
    send_facts(bootstrap, facts, REST)
    with Running(bootstrap, name, to, calls=facts) as refused:
        assert refused.wait() == 4
    assert f"{to} has elements, and {to}.state has no state to go on from" in refused.error
    with Running(bootstrap, name, to, "--resume", calls=facts) as replica:
        assert replica.await_line("resumes")["incarnation"] == 0
        assert replica.wait() == 0, replica.error
    assert not differences(tdb_of(bootstrap, to), expected(name))


@pytest.mark.full
@pytest.mark.parametrize("damage", ["the last", "all"])
def test_a_damaged_snapshot_gives_way_to_the_one_before_and_to_the_facts(
    damage: str, bootstrap: str, topic_name: TopicName
) -> None:
    name, facts, to = "windows", topic_name("calls"), topic_name("windows")
    send_facts(bootstrap, facts, FIRST, ended=False)
    often = ("--snapshot-seconds", "0.2")
    with Running(bootstrap, name, to, *often, calls=facts) as replica:
        replica.await_line("snapshot")
        send_facts(bootstrap, facts, REST[:100], ended=False)
        replica.await_line("snapshot")
        commit = committed(bootstrap, to, len(FIRST) + 100)
        while len(commit.snapshots) < 2:
            found = last_commit(bootstrap, to)
            assert found is not None
            commit = found
        replica.kill()
    spoil(bootstrap, to, commit, 1 if damage == "the last" else 2)
    send_facts(bootstrap, facts, REST[100:])
    with Running(bootstrap, name, to, calls=facts) as replica:
        replayed = replica.await_line("goes on")["replayed"]
        assert replica.wait() == 0, replica.error
    assert replica.events.count("a snapshot cannot be used") == (1 if damage == "the last" else 2)
    assert (replayed >= len(FIRST)) == (damage == "all")
    assert not differences(tdb_of(bootstrap, to), expected(name))


def spoil(bootstrap: str, to: str, commit: ReplicaCommit, snapshots: int) -> None:
    """Overwrites the chunks of the latest snapshots, and lets the old ones be: what a commit record
    names is looked for by its offsets, so the commit record is written anew, too."""

    async def write() -> None:
        async with PartitionsSink(
            Connection(bootstrap),
            output=to,
            partitions=1,
            dead_letters=f"{to}.dead-letters",
            state=state_topic(to),
            max_record_bytes=1 << 20,
        ) as sink:
            places = list(commit.snapshots)
            for at in range(snapshots):
                key = chunk_key(places[at].slot, 0)
                done = await sink.commit(PartitionsOutbox(state=[(key, b"damaged")]))
                assert done.state is not None
                offset = done.state - 1
                places[at] = msgspec.structs.replace(places[at], first=offset, last=offset)
            mended = msgspec.structs.replace(commit, snapshots=tuple(places))
            await sink.commit(PartitionsOutbox(state=[(COMMIT_KEY, mended.encoded())]))

    asyncio.run(write())


# Beginning anew


@pytest.mark.full
def test_since_begins_an_incarnation_that_is_correct_once_its_windows_have_filled(
    bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = topic_name("calls"), topic_name("windows")
    send_facts(bootstrap, facts, CALLS)
    since = max(fact["time"] for fact in CALLS[:200])
    with Running(bootstrap, "windows", to, "--since", str(since), calls=facts) as replica:
        line = replica.await_line("begins with the facts")
        assert replica.wait() == 0, replica.error
    joining_at = since + 60
    assert (line["incarnation"], line["joining_at"]) == (1, joining_at)
    (records,) = records_in(bootstrap, to)
    assert {dict(each.headers)["lmerge-joining-at"] for each in records} == {b"%d" % joining_at}
    found, whole = tdb_of(bootstrap, to), expected("windows")
    correct = [event for event in whole if event.ve >= joining_at]
    assert len(correct) > 5
    assert not differences(TDB(e for e in found if e.ve >= joining_at), TDB(correct))
    with Running(bootstrap, "windows", to, "--since", str(since), calls=facts) as again:
        assert again.wait() == 0
    assert again.events == ["serving", "ended"], "the same command goes on"


@pytest.mark.full
def test_one_that_rejoins_begins_the_next_incarnation_with_the_facts_of_now(
    bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = run_first_part(bootstrap, topic_name, "windows")
    now = max(fact["time"] for fact in FIRST) - 60
    with Running(bootstrap, "windows", to, "--rejoin", calls=facts) as replica:
        line = replica.await_line("begins with the facts")
        assert (line["incarnation"], line["joining_at"]) == (1, now + 60)
        send_facts(bootstrap, facts, REST)
        assert replica.wait() == 0, replica.error
    found, whole = tdb_of(bootstrap, to, incarnation=1), expected("windows")
    correct = [event for event in whole if event.ve >= now + 60]
    assert not differences(TDB(e for e in found if e.ve >= now + 60), TDB(correct))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "why"), [("latest", "there ever were, so"), ("alive", "rows may have begun at any")]
)
def test_a_query_that_needs_all_facts_can_not_begin_later(
    name: str, why: str, bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = topic_name("calls"), topic_name("rows")
    send_facts(bootstrap, facts, CALLS)
    with Running(bootstrap, name, to, "--since", "1100", calls=facts) as replica:
        assert replica.wait() == 2
    assert "needs all facts there ever were" in replica.error
    assert why in replica.error


# Refused


@pytest.mark.full
def test_another_query_is_refused_and_disturbs_nobody(
    bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = topic_name("calls"), topic_name("windows")
    send_facts(bootstrap, facts, FIRST, ended=False)
    with ExitStack() as stack:
        first = stack.enter_context(Running(bootstrap, "windows", to, calls=facts))
        first.await_line("begins")
        committed(bootstrap, to, len(FIRST))
        other = stack.enter_context(Running(bootstrap, "bag", to, calls=facts))
        assert other.wait() == 2
        (line,) = other.error.splitlines()
        assert line.startswith(f"error: {to} has the elements of another query than {QUERIES}:bag")
        send_facts(bootstrap, facts, REST)
        assert first.wait() == 0, first.error
    assert not differences(tdb_of(bootstrap, to), expected("windows"))


@pytest.mark.full
def test_a_second_start_fences_the_first(bootstrap: str, topic_name: TopicName) -> None:
    facts, to = topic_name("calls"), topic_name("bag")
    send_facts(bootstrap, facts, FIRST, ended=False)
    with ExitStack() as stack:
        first = stack.enter_context(Running(bootstrap, "bag", to, calls=facts))
        first.await_line("begins")
        committed(bootstrap, to, len(FIRST))
        second = stack.enter_context(Running(bootstrap, "bag", to, calls=facts))
        second.await_line("goes on")
        send_facts(bootstrap, facts, REST)
        assert first.wait() == 5, first.error
        assert len(first.error.splitlines()) == 1
        assert second.wait() == 0, second.error
    assert not differences(tdb_of(bootstrap, to), expected("bag"))


@pytest.mark.full
def test_facts_that_are_gone_are_never_passed_over(bootstrap: str, topic_name: TopicName) -> None:
    facts, to = run_first_part(bootstrap, topic_name, "windows")
    send_facts(bootstrap, facts, REST, ended=False)

    async def trim(before: int) -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.trim({TopicPartition(facts, 0): before})

    asyncio.run(trim(len(FIRST) + 7))
    with Running(bootstrap, "windows", to, calls=facts) as replica:
        assert replica.wait() == 4
    assert f"{facts}-0 begins with offset {len(FIRST) + 7}, and is needed from" in replica.error
    fresh = topic_name("windows")
    with Running(bootstrap, "windows", fresh, calls=facts) as replica:
        assert replica.wait() == 4
    assert f"{facts}-0 begins with offset {len(FIRST) + 7}: those before it" in replica.error


@pytest.mark.full
def test_a_topic_that_somebody_else_writes_is_refused(
    bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = run_first_part(bootstrap, topic_name, "windows")
    send_facts(bootstrap, to, [{"id": 1}], ended=False)
    with Running(bootstrap, "windows", to, calls=facts) as replica:
        assert replica.wait() == 4
    assert f"{to}-0" in replica.error
