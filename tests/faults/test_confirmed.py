"""Replays of redundancy that is none: what a laggard publishes is compared with the output."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.service.status.build import status_of
from lmerge_service.service.status.document import ReasonKind, ReplicaStatus, Status
from tests.service.cluster import Merge, running

EVENTS = 200


def events(name: str) -> list[Element]:
    """Short events with payloads of this name, each final before the next one starts."""
    found: list[Element] = []
    for k in range(EVENTS):
        found += [Insert(b'"%s%d"' % (name.encode(), k), 10 * k, 10 * k + 5), Stable(10 * k + 9)]
    return found


def of(status: Status, name: str) -> ReplicaStatus:
    return next(each for each in status.replicas if each.name == name)


@pytest.fixture
def pair(bootstrap: str, tmp_path: Path) -> Merge:
    return Merge(bootstrap, tmp_path, ("a", "b"))


async def late(
    merge: Merge, elements: Sequence[Element], reached: Callable[[ReplicaStatus], bool]
) -> Status:
    """The status once b, which publishes these when the output has all of a's events, has got so
    far; a is alive then."""
    last = 10 * EVENTS - 1
    await asyncio.to_thread(merge.publish, "b", [])
    await asyncio.to_thread(merge.publish, "a", events("x"))
    async with running(merge) as worker:
        async with asyncio.timeout(60):
            while status_of(worker).output.stable_point != last:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.to_thread(merge.publish, "b", elements)
            while not reached(of(status_of(worker), "b")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return status_of(worker)


def test_n6_a_laggard_that_publishes_other_events_is_found_out_while_the_leader_lives(
    pair: Merge,
) -> None:
    status = asyncio.run(late(pair, events("y"), lambda b: "disagreement" in b.breaches))
    b = of(status, "b")
    assert b.disagrees
    assert b.confirmed is None
    assert status.health == "degraded"
    assert {ReasonKind.BREACHES, ReasonKind.DISAGREES} <= {*status.reason_kinds}
    assert (
        "replica b: it contradicts the output; confirmed nowhere, it is no redundancy"
        in status.reasons
    )
    assert status.tasks[0].findings["disagrees"]["b"] > 0
    a = of(status, "a")
    assert (a.confirmed, a.disagrees, a.breaches) == (10 * EVENTS - 1, False, {})


def test_n6_a_replica_that_only_sends_stables_is_not_confirmed(pair: Merge) -> None:
    stables = [Stable(10 * k + 9) for k in range(EVENTS)]
    status = asyncio.run(late(pair, stables, lambda b: b.left_out == EVENTS))
    b = of(status, "b")
    assert (b.confirmed, b.left_out, b.breaches) == (None, EVENTS, {})
    assert status.reason_kinds == [ReasonKind.UNCONFIRMED]


def test_n6_an_honest_laggard_is_confirmed_up_to_its_stable(pair: Merge) -> None:
    half = events("x")[:EVENTS]
    status = asyncio.run(late(pair, half, lambda b: b.confirmed is not None))
    b = of(status, "b")
    assert (b.confirmed, b.left_out, b.breaches) == (5 * EVENTS - 1, 0, {})
    assert (status.health, status.reasons) == ("ok", [])


def test_n6_one_other_end_among_many_events_is_found(pair: Merge) -> None:
    elements = events("x")
    elements[100] = Insert(b'"x50"', 500, 506)
    status = asyncio.run(late(pair, elements, lambda b: bool(b.breaches)))
    b = of(status, "b")
    assert b.breaches == {"disagreement": 1}
    assert b.disagrees
