"""Membership, on a real broker: who joins, leaves, dies, stands still, and comes back."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewPartitions

from lmerge_service.errors import ConfigurationError, TransportError
from lmerge_service.kafka import members as members_module
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.members import Assignment, Members
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import LocalBroker

pytestmark = pytest.mark.kafka

T = TypeVar("T")
TASKS = 4
SESSION_MS = 2000
ALL = frozenset(range(TASKS))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """One that lets sessions be short, and may be killed."""
    settings = {"group.min.session.timeout.ms": "100"}
    with LocalBroker(tmp_path_factory.mktemp("members"), settings=settings) as broker:
        yield broker


@dataclass(frozen=True)
class Group:
    """A group and its topic on the broker."""

    broker: LocalBroker
    name: str

    @property
    def connection(self) -> Connection:
        return Connection(self.broker.bootstrap)

    @asynccontextmanager
    async def member(self, worker: str, **arguments: Any) -> AsyncIterator["Seen"]:
        seen = Seen()
        given: dict[str, Any] = {"output": self.name, "session_timeout_ms": SESSION_MS} | arguments
        members = Members(
            self.connection,
            self.name,
            self.name,
            worker=worker,
            warm=lambda: seen.warm,
            **given,
        )
        async with members, asyncio.TaskGroup() as tasks:
            seen.members = members
            running = [tasks.create_task(members.run()), tasks.create_task(seen.watch())]
            yield seen
            for task in running:
                task.cancel()

    @asynccontextmanager
    async def unwatched(
        self, worker: str, topic: str | None = None, **arguments: Any
    ) -> AsyncIterator[Members]:
        """One whose `run` is the caller's."""
        given: dict[str, Any] = {"output": self.name, "session_timeout_ms": SESSION_MS} | arguments
        async with Members(
            self.connection, self.name, topic or self.name, worker=worker, warm=dict, **given
        ) as members:
            yield members

    @contextmanager
    def process(self, worker: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "tests.kafka.member", self.broker.bootstrap]
        with subprocess.Popen(
            [*command, self.name, self.name, worker, str(SESSION_MS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield process
            process.send_signal(signal.SIGCONT)
            process.kill()


@dataclass
class Seen:
    """A member in this process, and all that it was given."""

    warm: Mapping[int, int] = field(default_factory=dict)
    given: list[Assignment] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    members: Members = field(init=False)

    async def watch(self) -> None:
        async for assignment in self.members.changes():
            self.given.append(assignment)
            self.more.set()

    async def until(self, reached: Callable[[Assignment], bool]) -> Assignment:
        while not reached(self.members.assignment):
            self.more.clear()
            await self.more.wait()
        return self.members.assignment

    async def has(self, *active: int) -> Assignment:
        return await self.until(lambda now: now.active == set(active))

    async def gets_warm(self, *tasks: int) -> None:
        self.warm = dict.fromkeys(tasks, 0)
        self.members.rebalance()


@pytest.fixture
def group(broker: LocalBroker, topic_name: Callable[..., str]) -> Group:
    async def made() -> Group:
        async with Topics(Connection(broker.bootstrap)) as topics:
            await topics.ensure(name, partitions=TASKS)
        return Group(broker, name)

    name = topic_name("group")
    if not broker.running:  # a test may leave it so
        broker.start()
    return run(made())


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


async def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    read = await asyncio.to_thread(process.stdout.readline)
    assert read, "the member has ended"
    return dict(json.loads(read))


async def line_with(process: subprocess.Popen[str], *active: int) -> dict[str, Any]:
    while (reason := await line(process))["active"] != list(active):
        pass
    return reason


async def until(reached: Callable[[], object]) -> None:
    while not reached():  # noqa: ASYNC110 (nothing reports it)
        await asyncio.sleep(0.01)


@pytest.mark.full
def test_one_alone_merges_everything_and_has_no_standby(group: Group) -> None:
    async def alone() -> Assignment:
        async with group.member("a") as a:
            return await a.has(0, 1, 2, 3)

    given = run(alone())
    assert given.standby == given.promised == frozenset()
    assert given.owners == dict.fromkeys(ALL, "a")
    assert given.generation > 0


def test_one_that_joins_follows_first_and_merges_once_it_is_warm(group: Group) -> None:
    async def joins() -> None:
        async with group.member("a") as a:
            await a.has(*ALL)
            async with group.member("b") as b:
                follows = await b.until(lambda now: now.standby == ALL)
                assert follows.active == frozenset()
                assert follows.promised == {0, 1}
                assert follows.owners == dict.fromkeys(ALL, "a")
                await b.gets_warm(0, 1)
                merges, left = await b.has(0, 1), await a.has(2, 3)
                assert merges.standby == {2, 3}
                assert left.standby == {0, 1}
                assert merges.owners == left.owners == {0: "b", 1: "b", 2: "a", 3: "a"}
                assert [given.active for given in a.given] == [ALL, ALL, {2, 3}]

    run(joins())


def test_one_that_leaves_hands_over_without_a_session_timeout(group: Group) -> None:
    async def leaves() -> None:
        # Nobody would be missed within the minute that a test has.
        async with group.member("a", session_timeout_ms=120_000) as a:
            await a.has(*ALL)
            async with group.member("b", session_timeout_ms=120_000) as b:
                await b.until(lambda now: bool(now.promised))
                await b.gets_warm(0, 1)
                await a.has(2, 3)
            await a.has(*ALL)

    run(leaves())


@pytest.mark.full
def test_one_that_is_killed_is_missed_and_its_standby_takes_over(group: Group) -> None:
    async def dies() -> None:
        with group.process("a") as killed:
            await line_with(killed, *ALL)
            async with group.member("b", standby_only=True) as b:
                await b.until(lambda now: now.standby == ALL)
                await b.gets_warm(*ALL)
                killed.kill()
                assert (await b.has(*ALL)).owners == dict.fromkeys(ALL, "b")

    run(dies())


@pytest.mark.full
def test_one_that_was_stopped_finds_its_tasks_lost_when_it_goes_on(group: Group) -> None:
    async def stops() -> list[dict[str, Any]]:
        with group.process("a") as stopped:
            before = await line_with(stopped, *ALL)
            async with group.member("b", standby_only=True) as b:
                await b.until(lambda now: now.standby == ALL)
                await line(stopped)  # the sharing that made b its standby
                stopped.send_signal(signal.SIGSTOP)
                await b.has(*ALL)
                stopped.send_signal(signal.SIGCONT)
                reason = [before, await line(stopped)]
                await b.until(lambda now: bool(now.standby))
                return [*reason, await line(stopped)]

    before, lost, back = run(stops())
    assert before["active"] == sorted(ALL)
    assert (lost["active"], lost["generation"]) == ([], -1)
    assert back["generation"] > before["generation"]


@pytest.mark.full
def test_n1_what_is_confirmed_is_what_the_group_answers_after_the_question(group: Group) -> None:
    """A member that stood still for a session still has its old assignment, and another has led."""

    async def stands_still() -> tuple[Assignment, Assignment, Assignment]:
        async with group.member("a", standbys=0) as a:
            before = await a.has(*ALL)
            with group.process("b") as b:
                await line_with(b, 0, 1)
                old = await a.members.confirmed()
                time.sleep(SESSION_MS / 1000 + 1)  # noqa: ASYNC251 - the loop stands still
                await line_with(b, *ALL)
                return before, old, await a.members.confirmed()

    before, old, now = run(stands_still())
    assert old.active == {2, 3}
    assert now.generation > old.generation > before.generation
    assert now.owners != dict.fromkeys(ALL, "a")


@pytest.mark.full
def test_n1_nothing_is_confirmed_while_the_broker_is_away(group: Group) -> None:
    async def outage() -> None:
        async with group.member("a", session_timeout_ms=50_000) as a:
            await a.has(*ALL)
            group.broker.kill()
            await until(lambda: a.members.unreachable)
            asked = asyncio.ensure_future(a.members.confirmed())
            await asyncio.sleep(1)  # several heartbeats
            assert not asked.done()
            await group.broker.astart()
            assert (await asked).active == ALL

    run(outage())


@pytest.mark.full
def test_one_can_leave_while_a_sharing_waits_for_another_that_stands_still(group: Group) -> None:
    async def leaves() -> None:
        with group.process("a") as stopped:
            await line_with(stopped, *ALL)
            stopped.send_signal(signal.SIGSTOP)
            async with group.member("b", session_timeout_ms=120_000) as b:
                await until(lambda: b.members._member)
            async with group.member("c") as c:
                await c.has(*ALL)

    run(leaves())


@pytest.mark.full
def test_while_the_broker_is_away_what_was_given_is_kept(group: Group) -> None:
    async def outage() -> None:
        async with group.member("a", session_timeout_ms=50_000) as a:
            before = await a.has(*ALL)
            group.broker.kill()
            await until(lambda: a.members.unreachable)
            assert a.members.assignment == before
            await group.broker.astart()
            await until(lambda: not a.members.unreachable)
            a.members.rebalance()
            after = await a.until(lambda now: now.generation > before.generation)
            assert after.active == ALL
            assert Assignment() not in a.given

    run(outage())


@pytest.mark.parametrize("session_ms", [1, 10**8])
def test_a_session_that_brokers_refuse_is_reported_in_one_line(
    group: Group, session_ms: int
) -> None:
    async def refused() -> None:
        members = Members(
            group.connection,
            group.name,
            group.name,
            output=group.name,
            worker="a",
            warm=dict,
            session_timeout_ms=session_ms,
        )
        async with members:
            await members.run()

    with pytest.raises(TransportError, match=r"group\.min\.session\.timeout\.ms") as error:
        run(refused())
    assert not error.value.retriable


@pytest.mark.full
def test_a_group_of_others_is_not_joined(group: Group) -> None:
    async def refused() -> None:
        async with (
            AIOKafkaConsumer(
                group.name,
                bootstrap_servers=group.broker.bootstrap,
                group_id=group.name,
                client_id="somebody",
            ),
            group.unwatched("a") as members,
        ):
            await members.run()

    with pytest.raises(ConfigurationError, match=r"members of another kind.*\(somebody\)"):
        run(refused())


@pytest.mark.full
def test_n8_a_merge_of_the_same_name_with_another_output_is_kept_out(group: Group) -> None:
    async def kept_out() -> None:
        async with group.member("a", output="first") as a:
            await a.has(*ALL)
            async with group.unwatched("b", output="second") as members:
                with pytest.raises(ConfigurationError) as error:
                    await members.run()
            reason = "another merge of this name is running (a), with output first, not second"
            assert reason in str(error.value)
            assert members.assignment == Assignment()
            assert len(a.given) == 1, "it had to share anew"
            async with group.member("c", output="first") as c:  # of its own it lets in more
                await c.until(lambda now: now.promised != frozenset())

    run(kept_out())


@pytest.mark.full
def test_n8_whoever_comes_first_the_other_is_kept_out(group: Group) -> None:
    """Both join an empty group at once."""

    async def both() -> None:
        async with group.unwatched("a", output="x") as a, group.unwatched("b", output="y") as b:
            running = {asyncio.ensure_future(each.run()): each for each in (a, b)}
            done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            (out,), (stays,) = done, left
            assert running[stays].assignment.active == ALL
            assert running[out].assignment == Assignment()
            stays.cancel()
            await asyncio.wait(left)
            with pytest.raises(ConfigurationError, match="another merge of this name is running"):
                out.result()

    run(both())


@pytest.mark.full
def test_n8_members_that_were_killed_are_waited_for(group: Group) -> None:
    """Whoever changes the output of a merge and kills its workers need not wait by hand."""

    async def succeeded() -> None:
        with group.process("a") as a:
            await line_with(a, *ALL)
            a.kill()
            async with group.member("b", output="another") as b:
                await b.has(*ALL)

    run(succeeded())


@pytest.mark.full
def test_n8_one_output_with_two_widths_is_two_merges(group: Group) -> None:
    async def widened() -> None:
        async with group.member("a") as a:
            await a.has(*ALL)
            async with Topics(group.connection) as topics:
                await topics._admin.create_partitions({group.name: NewPartitions(TASKS + 1)})
                while await topics.width(group.name) == TASKS:
                    pass
            reason = rf"\(a\) that know output .* with {TASKS} partitions, not {TASKS + 1}"
            async with group.unwatched("b") as members:
                with pytest.raises(ConfigurationError, match=reason):
                    await members.run()

    run(widened())


def test_without_its_topic_there_is_nothing_to_share(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without() -> None:
        async with group.unwatched("a", topic="missing"):
            pass

    monkeypatch.setattr(members_module, "CONNECT_SECONDS", 1.0)
    with pytest.raises(TransportError, match="asking for topic missing"):
        run(without())


def test_one_may_leave_while_the_broker_is_away(group: Group) -> None:
    async def outage() -> None:
        async with group.member("a") as a:
            await a.has(*ALL)
            group.broker.kill()
            await until(lambda: a.members.unreachable)

    run(outage())
