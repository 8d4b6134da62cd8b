"""Liveness: what is progress of a replica, and what only looks like it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmerge_service.core import lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.unread import OpenTransaction, Unread
from lmerge_service.merge.liveness import Liveness
from tests.merge.judged import topology_of
from tests.service.test_guarding import Overseen, Record

PATIENCE = 5

Chunk = Sequence[Element | bytes]


def event(k: int) -> Insert[bytes]:
    return Insert(b'"e%d"' % k, k, k + 5)


class Playing:
    """Replica a has published e31 to e34 and stable(2); b is at 29, and has ended."""

    def __init__(self, *, case: str = "R3", **guards: Any) -> None:
        settings = {"patience_seconds": PATIENCE, "max_breaches": 0, **guards}
        self.task = Overseen(topology_of("ab", case=case, **settings))
        self.read([*map(event, range(31, 35)), Stable(2)], incarnation=1)
        self.task.read(b=[*map(event, range(1, 29)), Stable(29), Stable(INFINITY)])
        self.look()

    def read(self, elements: Sequence[Any], *, incarnation: int = 1, **headers: int) -> None:
        state = self.task.state.replicas.states["a"]
        start = state.next[0]
        encoded_headers = [*incarnation_headers(incarnation)]
        encoded_headers += [(f"lmerge-{name}", b"%d" % value) for name, value in headers.items()]
        records = [
            Record(
                each if isinstance(each, bytes) else encode(each), start + number, encoded_headers
            )
            for number, each in enumerate(elements)
        ]
        self.task.merge_loop.take({TopicPartition("in.a", 0): records})  # type: ignore[dict-item]

    def look(self, records: int = 0, open_: tuple[OpenTransaction, ...] = ()) -> None:
        """Kafka is asked what is unread; then guards decide."""
        now, replicas = self.task.now, self.task.state.replicas
        for name, state in replicas.merged.items():
            left = records if name == "a" else 0
            mine = open_ if name == "a" else ()
            state.unread = Unread(left, left > 0 and not mine, mine, now)
        self.task.merge_loop.pace(1)

    @property
    def is_waited_for(self) -> bool:
        return bool(self.task.merge_loop.held("b"))

    def why(self) -> list[str]:
        (finding,) = self.task.merge_loop.held("b")
        return self.task.merge_loop.waits_for(finding)


def once(*elements: Element | bytes) -> Callable[[int], Chunk]:
    return lambda _: elements


REPEATED: dict[str, Callable[[int], Chunk]] = {
    "a stable": once(Stable(2)),
    "a stable that falls and comes back": once(Stable(1), Stable(2)),
    "an insert": once(event(33)),
    "its stream": once(*map(event, range(31, 35)), Adjust(b'"e34"', 34, 39, 42), Stable(2)),
    "revisions": once(Adjust(b'"e34"', 34, 39, 42), Adjust(b'"e34"', 34, 42, 39)),
    "an insert and its removal": once(Insert(b'"x"', 50, 60), Adjust(b'"x"', 50, 60, 50)),
    "late elements": lambda number: [Insert(b'"late %d"' % number, 3, 4 + number)],
    "no elements": lambda number: [b"junk %d" % number],
    "adjusts of what is unknown": lambda number: [Adjust(b'"u%d"' % number, 40, 41, 42)],
}


@pytest.mark.parametrize("what", REPEATED)
def test_n3_what_is_repeated_is_no_progress(what: str) -> None:
    playing, round_ = Playing(), REPEATED[what]
    for number in range(100):
        playing.task.now += 0.5
        playing.read(round_(number))
        playing.look()
        if not playing.is_waited_for:
            break
    assert not playing.is_waited_for, "the end would be held for ever"
    assert PATIENCE < playing.task.now < 3 * PATIENCE
    state = playing.task.state.replicas.states["a"]
    assert state.tally.last_record == playing.task.now
    assert (state.tally.last_progress or 0) < playing.task.now - PATIENCE


def test_n3_a_second_insert_is_another_event_in_case_r4_once() -> None:
    playing = Playing(case="R4")
    while playing.is_waited_for and playing.task.now < 60:
        playing.task.now += 0.5
        playing.read([Insert(b'"x"', 50, 60)])
        playing.look()
    assert PATIENCE < playing.task.now < 2 * PATIENCE


def test_n3_records_of_an_old_incarnation_are_no_progress() -> None:
    playing = Playing()
    for number in range(40):
        playing.task.now += 0.5
        playing.read([Insert(b'"o%d"' % number, 90 + number, 200)], incarnation=0)
        playing.look()
    assert not playing.is_waited_for
    assert playing.task.state.replicas.states["a"].tally.counts.total("stale") > 8


def test_n3_numbered_records_that_were_written_before_are_no_progress() -> None:
    playing = Playing()
    for _ in range(40):
        playing.task.now += 0.5
        playing.read([event(40)], seq=1)
        playing.look()
    assert not playing.is_waited_for
    assert playing.task.state.replicas.states["a"].tally.counts.total("repeated") == 39


def test_n3_who_starts_over_may_catch_up_and_who_does_so_for_ever_may_not() -> None:
    playing = Playing()
    repeated = [event(31), event(32), Stable(2)]
    for step in range(3):
        playing.task.now += PATIENCE - 1
        playing.read(repeated[step : step + 1], incarnation=2)
        playing.look()
        assert playing.is_waited_for
    began = playing.task.now
    for life in range(3, 60):
        if not playing.is_waited_for:
            break
        playing.task.now += 0.5
        playing.read(repeated, incarnation=life)
        playing.look()
    assert began + PATIENCE < playing.task.now < began + 2 * PATIENCE


def test_n3_who_starts_over_is_waited_for_while_it_repeats_what_is_final() -> None:
    """Seed 97 of the simulation: all that it repeats at first is late, and its latest events are
    still to come."""
    playing = Playing()
    for number in range(1, 12):
        playing.task.now += PATIENCE - 1
        playing.read([event(number)], incarnation=2)
        playing.look()
        assert playing.is_waited_for


def test_n3_who_has_published_is_waited_for_by_a_worker_that_has_just_taken_over() -> None:
    """Seed 88 of the simulation: what it publishes at once is no less than what comes later, and
    what it had published before was recalled."""
    task = Overseen(topology_of("ab", patience_seconds=PATIENCE, max_breaches=0))
    task.read(a=[event(31)], b=[*map(event, range(1, 29)), Stable(29), Stable(INFINITY)])
    assert task.merge_loop.held("b")
    for rebuilt in (False, True):
        if rebuilt:
            task.living.clear()  # another process
            task.rebuild()
            task.read(b=[Stable(INFINITY)])
        for _ in range(PATIENCE):
            task.now += 1 - 0.01
            for state in task.state.replicas.merged.values():
                state.unread = Unread(0, False, (), task.now)
            task.merge_loop.pace(1)
            assert task.merge_loop.held("b"), f"rebuilt: {rebuilt}"


def test_n3_a_restart_that_is_read_once_more_after_a_rebuild_is_one_restart() -> None:
    """Seed 5089 of the simulation with pauses: its commit failed, so it was read twice, and of who
    starts over twice nothing counted, so that its end was taken from it."""
    merge = lmerge()
    merge.attach("a", START)
    source = merge.inputs["a"]
    living = Liveness(0.0)
    living.follow(source)
    for _ in range(2):
        living.start_over(source, 1)
    merge.process("a", event(1))
    assert living.look(source, [Record(b"1", 0)], 5.0, START)
    living.start_over(source, 2)
    merge.process("a", event(2))
    assert not living.look(source, [Record(b"2", 1)], 10.0, START), "it restarts for ever"


def test_n3_a_restart_that_comes_further_than_before_is_progress_again() -> None:
    playing = Playing()
    for life in range(2, 12):
        playing.task.now += PATIENCE - 1
        playing.read([event(31), Stable(life + 1)], incarnation=life)
        playing.look()
        assert playing.is_waited_for


@pytest.mark.parametrize(
    "news",
    [
        lambda k: [Stable(2 + k)],
        lambda k: [Insert(b'"new %d"' % k, 40, 50)],
        lambda k: [Adjust(b'"e34"', 34, 38 + k, 39 + k)],
    ],
    ids=["stables that rise", "inserts", "ends that move"],
)
def test_n3_a_slow_replica_that_brings_something_new_is_waited_for(
    news: Callable[[int], Chunk],
) -> None:
    playing = Playing()
    for k in range(1, 20):
        playing.task.now += PATIENCE - 1
        playing.read(news(k))
        playing.look()
        assert playing.is_waited_for, playing.task.now


def test_n3_rebuilds_do_not_make_repeats_progress() -> None:
    playing = Playing()
    for _ in range(20):
        playing.task.now += 1
        playing.task.rebuild()
        playing.read([event(33), Stable(2)])
        playing.task.read(b=[Stable(INFINITY)])
        playing.look()
        if not playing.is_waited_for:
            break
    assert PATIENCE < playing.task.now < 2 * PATIENCE


# --- open transactions ----------------------------------------------------------------------------


def opened(since: float, offset: int = 5) -> tuple[OpenTransaction, ...]:
    return (OpenTransaction("in.a", 0, offset, 30, since),)


def test_n2_an_open_transaction_holds_an_end_however_long_it_is_open() -> None:
    playing = Playing()
    for _ in range(100):
        playing.task.now += 10
        playing.look(30, opened(0.0))
        assert playing.is_waited_for
    assert playing.why() == [
        "a: a transaction is open at offset 5 of in.a-0 for 1000 s, and 30 records cannot be read"
    ]


def test_n2_one_that_has_ended_starts_patience_anew_and_a_few_times_only() -> None:
    playing = Playing()
    for number in range(3):
        playing.task.now += 1.0
        playing.look(30, opened(playing.task.now, 100 * number))
        playing.task.now += 100.0
        playing.look(30, opened(playing.task.now - 100.0, 100 * number))
        playing.task.now += 1.0
        playing.look()
        playing.task.now += PATIENCE
        playing.look()
        assert playing.is_waited_for
    playing.task.now += 0.1
    playing.look(30, opened(playing.task.now, 900))
    playing.task.now += 1.0
    playing.look()
    assert not playing.is_waited_for


def test_n2_who_publishes_new_events_in_long_transactions_is_waited_for_though_all_are_late() -> (
    None
):
    """Seed 706 of the simulation: the fourth transaction was not excused, and the rest was lost."""
    playing = Playing()
    for number in range(10):
        playing.task.now += 1.0
        playing.look(30, opened(playing.task.now, 100 * number))
        playing.task.now += 100.0
        playing.read([Insert(b'"late %d"' % number, 3, 4)])
        playing.look()
        playing.task.now += PATIENCE
        playing.look()
        assert playing.is_waited_for, number


def test_n2_who_has_only_aborted_what_it_wrote_is_waited_for_once() -> None:
    """Seed 3108 of the simulation with pauses: a worker began just when the first transaction of a
    replica had been aborted, took it for one that never began, and merged another's early end."""
    task = Overseen(topology_of("ab", patience_seconds=PATIENCE, max_breaches=0))
    for left in (4, 0):  # markers and aborted records, which are then passed over
        task.state.replicas.states["a"].unread = Unread(left, left > 0, (), task.now)
        task.merge_loop.pace(1)
    task.read(b=[Stable(9), Stable(INFINITY)])
    for held in (True, False):
        task.now += PATIENCE / 2 + 0.1
        for state in task.state.replicas.merged.values():
            state.unread = Unread(0, False, (), task.now)
        task.merge_loop.pace(1)
        assert bool(task.merge_loop.held("b")) is held


def test_n2_one_transaction_is_one_excuse_however_often_an_old_look_shows_it() -> None:
    """Seed 10305 of the simulation with pauses: a rebuilt task measured by a look from before, and
    three looks at one transaction were all the excuses that there are."""
    playing = Playing()
    for offset in (5, 40):
        since = playing.task.now
        playing.look(30, opened(since, offset))
        playing.task.now += 100.0
        for _ in range(3):
            playing.look(30, opened(since, offset))
            playing.look()
    playing.task.now += PATIENCE
    playing.look()
    assert playing.is_waited_for
    playing.task.now += 0.1
    playing.look()
    assert not playing.is_waited_for


def test_n2_a_rebuild_forgets_no_open_transaction() -> None:
    """Seed 11663 of the simulation with pauses: the task had seen the transaction, was rebuilt, and
    read all of it late; patience was over by then."""
    playing = Playing()
    playing.task.now += PATIENCE + 1.0
    playing.look(30, opened(playing.task.now))
    playing.task.rebuild()
    playing.task.read(b=[Stable(INFINITY)])
    playing.look()
    assert playing.is_waited_for
    playing.task.now += PATIENCE + 0.1
    playing.look()
    assert not playing.is_waited_for


@pytest.mark.parametrize("mine", [True, False], ids=["own elements", "another task's"])
def test_n3_who_publishes_for_the_first_time_is_waited_for_even_if_it_is_late(mine: bool) -> None:
    merge = lmerge()
    for name in "ab":
        merge.attach(name, START)
    merge.process("b", Stable(50))
    living, latest = Liveness(0.0), START if mine else 7
    if mine:
        merge.process("a", event(7))
    source = merge.inputs["a"]
    assert living.look(source, [Record(b"1", 0)], 9.0, 50, lambda: latest)
    assert living.progressed
    assert not living.look(source, [Record(b"2", 1)], 20.0, 50, lambda: latest)


def test_n3_what_is_no_element_is_no_progress_before_any_stable_either() -> None:
    merge = lmerge()
    merge.attach("a", START)
    merge.process("a", event(1))
    source, living = merge.inputs["a"], Liveness(0.0)
    assert living.look(source, [Record(b"1", 0)], 1.0, START)
    for number in range(2, 9):
        assert not living.look(source, [Record(b"junk %d" % number, number)], 9.0 * number, START)


def test_n2_what_a_look_before_the_end_has_seen_does_not_let_it_go() -> None:
    """In a transaction that was begun since, everything may be that the replica has."""
    task = Overseen(topology_of("ab", patience_seconds=PATIENCE))
    task.pace()  # a has nothing unread, and never published anything
    task.now += 0.5
    task.read(b=[Stable(9), Stable(INFINITY)])
    task.merge_loop.pace(1)
    assert task.merge_loop.held("b")
    task.now += 0.5
    task.pace()
    assert not task.merge_loop.held("b")


def test_n2_nor_does_one_from_before_patience_was_over() -> None:
    playing = Playing()
    playing.task.now = PATIENCE - 0.5
    playing.look()
    playing.task.now = PATIENCE + 0.5
    playing.task.merge_loop.pace(1)
    assert playing.is_waited_for
    playing.look()
    assert not playing.is_waited_for
