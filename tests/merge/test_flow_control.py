"""Flow control: who is paused, and a simulation that shows that the output always ends, within the
limit, when it can."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import Policy, lmerge, quorum
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.merge.guards.flow_control import (
    EVENT_BYTES,
    EventBytes,
    FlowControl,
    ReplicaProgress,
)
from lmerge_service.merge.step import front_of
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.presentation import Variation, present

LIMIT = 100


def flow(voters: int = 1) -> FlowControl:
    return FlowControl(max_live_events=LIMIT, max_live_bytes=1 << 40, voters=voters)


def reading(
    name: str, stable: int, front: int, *, unread: bool | None = True, joined: bool = True,
    held: bool = False,
) -> ReplicaProgress:  # fmt: skip
    return ReplicaProgress(name, stable, front, joined, unread, held)


def test_below_the_limit_nobody_is_paused() -> None:
    order = flow().order(LIMIT - 1, 0, 5, [reading("a", 5, 9_000), reading("b", 1, 2)])
    assert (order.paused, order.stuck) == (frozenset(), None)


def test_bytes_count_as_well() -> None:
    small = FlowControl(max_live_events=LIMIT, max_live_bytes=1_000)
    order = small.order(1, 1_000, 5, [reading("a", 5, 9), reading("b", 1, 9)])
    assert order.paused == {"b"}


def test_under_max_the_leader_is_read_and_who_runs_ahead_without_stables_is_paused() -> None:
    readings = [reading("a", 50, 60), reading("b", 3, 90), reading("c", 2, 40)]
    order = flow().order(LIMIT, 0, 50, readings)
    assert order.pause == {"b"}


def test_under_a_quorum_the_fastest_is_paused_and_paced_by_the_one_that_decides() -> None:
    readings = [reading("a", 900, 950), reading("b", 50, 60), reading("c", 20, 30)]
    control = flow(voters=2)
    assert control.order(LIMIT, 0, 50, readings).pause == {"a"}
    assert control.order(LIMIT * 8 // 10, 0, 60, readings).paused == {"a"}
    assert control.order(LIMIT * 8 // 10 - 1, 0, 60, readings).resume == {"a"}


def test_a_silent_leader_gives_way_to_one_with_unread_records() -> None:
    readings = [reading("a", 50, 60, unread=False), reading("b", 40, 90)]
    assert flow().order(LIMIT, 0, 50, readings).paused == {"a"}


def test_who_is_joining_or_held_moves_nothing() -> None:
    readings = [
        reading("a", 90, 90, joined=False), reading("b", 80, 80, held=True), reading("c", 5, 9)
    ]  # fmt: skip
    order = flow().order(LIMIT, 0, 5, readings)
    assert order.paused == {"a", "b"}
    assert order.stuck is None


def test_beyond_the_hard_limit_only_one_that_is_not_the_furthest_is_read() -> None:
    readings = [reading("a", 50, 90), reading("b", 40, 60), reading("c", 30, 95)]
    order = flow().order(LIMIT * 3 // 2, 0, 50, readings)
    assert order.paused == {"a", "c"} or order.paused == {"b", "c"}
    assert "c" in order.paused
    assert order.stuck is None


def test_when_nothing_can_move_the_output_it_is_reported() -> None:
    alone = flow().order(LIMIT * 3 // 2, 0, 5, [reading("a", 5, 90)])
    assert alone.paused == {"a"}
    assert alone.stuck is not None
    assert "no replica that is read could" in alone.stuck
    waiting = [reading("a", 90, 95), reading("b", 5, 6, unread=False)]
    order = flow(voters=2).order(LIMIT, 0, 5, waiting)
    assert order.paused == {"a"}
    assert order.stuck is not None
    assert "a paused at 100% of the limit" in order.stuck
    assert "b could, and is silent" in order.stuck


def test_a_replica_that_is_gone_is_not_paused_any_more() -> None:
    control = flow()
    control.order(LIMIT, 0, 5, [reading("a", 5, 9), reading("b", 1, 9)])
    assert control.paused == {"b"}
    order = control.order(LIMIT, 0, 5, [reading("a", 5, 9)])
    assert (order.paused, order.resume) == (frozenset(), frozenset())


def test_bytes_are_estimated_from_the_mean_record() -> None:
    sizes = EventBytes()
    assert sizes.of(10) == 10 * EVENT_BYTES
    sizes.add(4, 400)
    assert sizes.of(10) == 10 * (EVENT_BYTES + 100)
    sizes.add(10_000_000, 10_000_000 * 300)
    assert sizes.of(1) == EVENT_BYTES + 299


def test_the_front_is_that_of_the_last_element() -> None:
    elements: list[Element] = [Stable(3), Insert("A", 7, 9), Adjust("B", 5, 6, 7)]
    assert front_of(elements) == 5
    assert front_of(elements[:1]) == 3
    assert front_of([]) < 0


class Reader:
    """A replica's topic: what has been published and not read yet, and how fast it grows."""

    def __init__(self, name: str, elements: Sequence[Element], backlog: int, rate: int) -> None:
        self.name = name
        self.elements = elements
        self.published = min(backlog, len(elements))
        self.rate = rate
        self.at = 0
        self.front = front_of([])

    def publish(self) -> None:
        self.published = min(self.published + self.rate, len(self.elements))

    def read(self, most: int) -> list[Element]:
        taken = list(self.elements[self.at : min(self.at + most, self.published)])
        self.at += len(taken)
        self.front = max(self.front, front_of(taken))
        return taken


LIVES = list(workload(events=600, seed=4, payload_bytes=4, active=20, varied=True))
WINDOW = 150
"""No presentation here has so many events live by its own stables."""


def presented(seed: int) -> list[Element]:
    variation = Variation(
        provisional=0.3, spread=100_000, disorder=0.3, displacement=100_000, stable_every=5 + seed
    )
    return list(present(LIVES, variation, seed))


STREAMS = [presented(seed) for seed in range(4)]


def own_window(elements: Sequence[Element]) -> int:
    merge = lmerge("R3", Policy())
    merge.attach("a")
    most = 0
    for element in elements:
        merge.process("a", element)
        most = max(most, len(merge))
    return most


def test_the_windows_of_the_simulation_are_as_documented() -> None:
    assert max(map(own_window, STREAMS)) < WINDOW


@st.composite
def simulations(draw: st.DrawFn) -> tuple[list[Reader], int, bool, int]:
    voters = draw(st.integers(1, 3))
    readers = []
    for number in range(draw(st.integers(voters, 4))):
        able = number < voters  # so many are sure to end
        silent_from = len(STREAMS[number]) if able else draw(st.integers(0, len(STREAMS[number])))
        rate = draw(st.sampled_from((1, 7, 100) if able else (0, 1, 7, 100)))
        backlog = draw(st.sampled_from((0, 200, 10**6)))
        readers.append(Reader(str(number), STREAMS[number][:silent_from], backlog, rate))
    order = draw(st.permutations(readers))
    joining = draw(st.booleans())
    return list(order), voters, joining, draw(st.sampled_from((1, 20, 60)))


@given(simulations(), st.integers(0, 9))
def test_the_output_ends_when_a_voting_set_can_and_live_events_stay_below_the_hard_limit(
    simulation: tuple[list[Reader], int, bool, int], seed: int
) -> None:
    readers, voters, joining, batch = simulation
    rng = Random(seed)
    policy = Policy(stable=quorum(voters)) if voters > 1 else Policy()
    merge = lmerge("R3", policy)
    for reader in readers:
        late = joining and int(reader.name) >= voters  # not one of those that must end it
        merge.attach(reader.name, LIVES[100].vs if late else -(2**63))
    limit = 2 * WINDOW
    control = FlowControl(max_live_events=limit, max_live_bytes=1 << 40, voters=voters)
    most = 0
    for _ in range(5_000):
        readings = [
            ReplicaProgress(
                r.name, merge.inputs[r.name].stable, r.front, merge.inputs[r.name].joined,
                r.at < r.published,
            )
            for r in readers
        ]  # fmt: skip
        order = control.order(len(merge), 0, merge.max_stable, readings)
        room = batch
        for reader in rng.sample(readers, len(readers)):  # one poll: a batch for all of them
            reader.publish()
            if reader.name not in order.paused:
                taken = reader.read(room)
                room -= len(taken)
                merge.process_batch(reader.name, taken)
        most = max(most, len(merge))
        if merge.max_stable == INFINITY:
            break
    assert merge.max_stable == INFINITY, (order, readings)
    assert most <= limit * 3 // 2 + batch


@pytest.mark.parametrize("limit", [20, 60])
def test_a_window_larger_than_the_limit_stops_reading_and_reports_it(limit: int) -> None:
    """Never out of memory, never silently."""
    merge = lmerge("R3", Policy())
    merge.attach("a")
    reader = Reader("a", [e for e in STREAMS[0] if type(e) is not Stable], 10**6, 0)
    control = FlowControl(max_live_events=limit, max_live_bytes=1 << 40)
    for _ in range(500):
        readings = [ReplicaProgress("a", merge.max_stable, reader.front, True, True)]
        order = control.order(len(merge), 0, merge.max_stable, readings)
        if order.paused:
            break
        merge.process_batch("a", reader.read(10))
    assert order.stuck is not None
    assert len(merge) <= limit * 3 // 2 + 10
