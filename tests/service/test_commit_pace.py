"""A worker that is behind commits less often; one that keeps up commits at once."""

import asyncio
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any, cast

from lmerge_service.elements import Insert
from lmerge_service.kafka.sink import Committed, Outbox
from lmerge_service.merge.commit_turns import CommitTurns, Turn, at_once
from lmerge_service.merge.counting import Accounts
from lmerge_service.merge.outlets import Outlets
from lmerge_service.merge.progress import TaskProgress
from lmerge_service.merge.snapshots.writer import Snapshots
from lmerge_service.merge.transaction import Transaction
from lmerge_service.service.reading.shared_reader import SharedReader
from tests.merge.judged import topology_of
from tests.service.test_guarding import Overseen

LIMIT = 20_000
"""`limits.batch_records`."""


class Paced:
    """A transaction over a sink that takes everything, on a clock of its own."""

    def __init__(self) -> None:
        self.now, self.apart, self.committed = 1_000.0, 0.0, list[int]()
        self.enough = 1 << 20
        overseen, topology = Overseen(topology_of("ab")), topology_of("ab")
        monitor: Any = SimpleNamespace(unchanged=print)
        self.transaction = Transaction(
            overseen.state, cast(Any, self), monitor,
            Snapshots(every=1e9, clock=self.clock, counts=Counter()),
            overseen.reporting, TaskProgress(), Accounts(), Outlets(topology, self.clock),
            table=None, turns=CommitTurns(), feedback=lambda *_: None, clock=self.clock,
            apart=lambda: self.apart, enough=lambda: self.enough,
        )  # fmt: skip

    def clock(self) -> float:
        return self.now

    async def commit(self, outbox: Outbox, _: object) -> Committed:
        self.committed.append(len(outbox.records))
        return Committed(None, None)

    async def merge(self, elements: int, seconds: float) -> list[int]:
        """So many elements come so much later; what was committed by then, by transaction."""
        self.now += seconds
        self.transaction.begin_batch()
        self.transaction.append([Insert(b"%d" % n, n, n + 1) for n in range(elements)])
        for _ in range(2):  # once to take note of the last commit, if there was one
            await self.transaction.publish()
            await asyncio.sleep(0)
        return self.committed


def test_who_is_behind_gathers_more_between_two_commits_unless_it_is_full() -> None:
    async def run() -> None:
        paced = Paced()
        assert await paced.merge(1, 0) == [1]
        assert await paced.merge(1, 0.001) == [1, 1], "it keeps up"
        paced.apart = 0.5
        assert await paced.merge(2, 0.1) == [1, 1]
        assert await paced.merge(3, 0.3) == [1, 1]
        assert await paced.merge(0, 0.11) == [1, 1, 5]
        assert await paced.merge(LIMIT, 0.1) == [1, 1, 5, LIMIT], "it is full"
        assert await paced.merge(1, 0.1) == [1, 1, 5, LIMIT]
        paced.apart = 0.0
        assert await paced.merge(0, 0.01) == [1, 1, 5, LIMIT, 1], "it has caught up"
        paced.apart = 0.5
        assert await paced.merge(1, 0.01) == [1, 1, 5, LIMIT, 1]
        paced.transaction.hasten()
        assert await paced.merge(0, 0.01) == [1, 1, 5, LIMIT, 1, 1], "it is wanted at once"
        await paced.transaction.finish()

    asyncio.run(run())


def test_a_transaction_is_filled_in_a_few_pieces_while_the_last_one_commits() -> None:
    """Of three records that are merged one is emitted."""

    async def run() -> None:
        paced, pieces = Paced(), list[int]()
        paced.apart, paced.enough = (
            1e9,
            1 << 30,
        )  # as while a commit is under way: it begins when the next one is full
        while not paced.committed:
            pieces.append(paced.transaction.capacity)
            await paced.merge(-(-pieces[-1] // 3), 0.01)
        assert len(pieces) == 6, f"of {pieces} records"
        assert LIMIT * 7 // 8 <= paced.committed[0] <= LIMIT
        await paced.transaction.finish()

    asyncio.run(run())


def test_who_is_behind_commits_what_is_enough_at_once() -> None:
    async def run() -> None:
        paced = Paced()
        assert await paced.merge(1, 0) == [1]
        paced.apart, paced.enough = 0.5, 10_000
        assert await paced.merge(5, 0.1) == [1]
        assert await paced.merge(500, 0.1) == [1, 505]
        await paced.transaction.finish()

    asyncio.run(run())


def test_who_is_behind_has_more_commits_under_way() -> None:
    most = [1]
    turns = CommitTurns(lambda: most[0])
    first, second, third, fourth = (Turn(turns) for _ in range(4))
    assert [first.is_mine, second.is_mine, third.is_mine] == [True, False, False]
    most[0] = 3
    assert [fourth.is_mine, second.is_mine, third.is_mine] == [False, True, True]
    most[0] = 1
    second.end()
    third.end()
    assert [fourth.is_mine] == [False], "the first is under way"
    first.end()
    assert [fourth.is_mine] == [True]
    assert at_once(behind=True) > at_once(behind=False)


def test_what_was_read_is_kept_as_long_as_a_task_is_elsewhere() -> None:
    reader = SharedReader(cast(Any, None), topology_of("ab"), lambda: 0.0)
    members: list[Any] = ["one"]
    shared: Any = SimpleNamespace(kept={0: deque()}, members=members)
    records: Any = [SimpleNamespace(value=b"x")]
    reader.tasks = cast(Any, {"one": None, "other": None})
    reader._keep(shared, 0, 7, records)
    assert list(shared.kept[0]) == [(7, records)]
    members.append("other")
    reader._keep(shared, 0, 8, records)
    assert not shared.kept[0], "none is behind"
    members.remove("other")
    reader._keep(shared, 0, 9, records)
    assert list(shared.kept[0]) == [(9, records)]


def test_commits_are_the_further_apart_the_more_tasks_are_behind() -> None:
    clock = iter(range(10, 20))
    reader = SharedReader(cast(Any, None), topology_of("ab"), lambda: next(clock))
    source: Any = SimpleNamespace(readable=100_000)
    assert reader.commit_seconds == 0.0, "it reads nothing yet"
    reader._source, reader._inputs = source, cast(Any, {"tp": None})
    reader.tasks = cast(Any, dict.fromkeys(range(5)))
    assert reader.commit_seconds == 0.2
    reader.tasks = cast(Any, dict.fromkeys(range(64)))
    assert reader.commit_seconds == 2.56
    source.readable = 10
    assert reader.commit_seconds == 0.0


def test_a_task_that_may_only_wait_is_at_ease_and_one_with_something_to_commit_is_not() -> None:
    async def run() -> None:
        paced, found = Paced(), dict[str, bool]()
        await paced.merge(1, 0)
        found["nothing has come"] = paced.transaction.is_at_ease
        paced.apart = 0.5
        await paced.merge(1, 0.1)
        found["it gathers more"] = paced.transaction.is_at_ease
        paced.now += 0.5
        found["it has gathered"] = paced.transaction.is_at_ease
        await paced.merge(0, 0)
        paced.transaction.append([Insert(b"x", 1, 2)] * LIMIT)
        found["it is full"] = paced.transaction.is_at_ease
        assert found == {
            "nothing has come": True, "it gathers more": True,
            "it has gathered": False, "it is full": False,
        }  # fmt: skip
        await paced.transaction.finish()

    asyncio.run(run())
