"""A dry run: every difference between an output and a replica is found once, with where it is; what
is held is bounded, and nothing is written."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.config.topology import Replica, load
from lmerge_service.core import Policy, lmerge
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.connection import connection_of
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.dry_run import Compared, DifferenceKind, DryRun
from lmerge_service.tdb import Event
from tests.service.cluster import Merge
from tests.service.test_retention import wait_until_trimmed

# The comparison itself: an operator under a quorum of two


def presented(events: Sequence[Event], chance: random.Random) -> list[Element]:
    """In the order of vs, some with a provisional end, with stables here and there."""
    revised: list[Element] = []
    for payload, vs, ve in sorted((e.payload, e.vs, e.ve) for e in events):
        first = chance.choice([ve, ve, ve + chance.randint(1, 20), vs + 1])
        revised.append(Insert(payload, vs, first))
        if first != ve:
            revised.append(Adjust(payload, vs, first, ve))
    revised.sort(key=lambda e: e.vs)  # type: ignore[union-attr]
    out: list[Element] = []
    for each in revised:
        at = each.vs  # type: ignore[union-attr]
        if chance.random() < 0.3 and out and type(out[-1]) is not Stable:
            out.append(Stable(at))
        out.append(each)
    return [*_rising(out), Stable(INFINITY)]


def _rising(elements: Sequence[Element]) -> list[Element]:
    highest, out = 0, []
    for each in elements:
        if type(each) is Stable:
            if each.vc <= highest:
                continue
            highest = each.vc
        out.append(each)
    return out


@pytest.mark.parametrize("seed", range(150))
def test_every_difference_is_found_once_whatever_the_order(seed: int) -> None:
    chance = random.Random(seed)
    places = {(f"e{chance.randint(0, 6)}", chance.randint(1, 60)) for _ in range(20)}
    output = [Event(p, vs, vs + chance.randint(1, 30)) for p, vs in sorted(places)]
    replica, differ = [], set()
    for each in output:
        match chance.choice(["same"] * 8 + ["missing", "longer"]):
            case "same":
                replica.append(each)
                continue
            case "longer":
                replica.append(Event(each.payload, each.vs, each.ve + 3))
        differ.add((each.payload, each.vs))
    if chance.random() < 0.5:
        replica.append(Event("more", 30, 90))
        differ.add(("more", 30))
    merge = lmerge("R3", Policy(stable="quorum(2)"))
    left = {"output": presented(output, chance), "replica": presented(replica, chance)}
    for name in left:
        merge.attach(name)
    while any(left.values()):
        name = chance.choice([name for name, elements in left.items() if elements])
        merge.process(name, left[name].pop(0))
    found = Counter((each.kept.payload, each.kept.vs) for each in merge.breaches() if each.kept)
    assert found == dict.fromkeys(differ, 1)
    assert len(merge) == 0


# Over topics


def events(start: int, end: int) -> list[Element]:
    return [Insert(b'{"id":%d}' % vs, vs, vs + 3) for vs in range(start, end)]


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    """An output that is there, in two partitions, and a replica `d` that may be compared."""
    merge = Merge(bootstrap, tmp_path, ["a"])
    merge.topics |= {"output": merge.output, "d": f"{merge.name}.d"}
    return merge


def compared(merge: Merge, span: int | None = None, **options: Any) -> Compared:
    topology = load(merge.path)
    replica = {"name": "d", "topic": merge.topics["d"], **options.pop("stream", {})}

    async def compare() -> Compared:
        cluster = Cluster(connection_of(topology.kafka))
        async with DryRun(topology, Replica.model_validate(replica), cluster, **options) as shadow:
            async with asyncio.timeout(120):
                return await shadow.run(span, lambda _: None)

    return asyncio.run(compare())


@pytest.mark.full
@pytest.mark.kafka
def test_what_differs_is_reported_with_where_it_is(merge: Merge) -> None:
    emitted = events(0, 100)
    merge.publish("output", [*emitted, Stable(90)], partitions=2)
    differing = [*emitted[:40], *emitted[41:]]
    differing[17] = Insert(b'{"id":17}', 17, 25)
    differing.insert(30, Insert(b'"x"', 30, 33))
    merge.publish("d", [*differing, Insert(b'"late"', 95, 99), Stable(80)])
    found = compared(merge)
    assert found.counts == dict.fromkeys(DifferenceKind, 1)
    assert (found.stable, found.output_stable, found.replica_stable) == (80, 90, 80)
    differences = {
        each.kind.value: (
            each.payload, each.output, each.replica, [at and at.topic for at in each.at]
        )
        for each in found.first
    }  # fmt: skip
    out, d = merge.output, merge.topics["d"]
    assert differences == {
        "missing": (b'{"id":40}', (43,), (), [out, None]),
        "other_end": (b'{"id":17}', (20,), (25,), [out, d]),
        "added": (b'"x"', (), (33,), [None, d]),
    }
    places = {each.kind: each.at[1] for each in found.first}
    added, other = places[DifferenceKind.ADDED], places[DifferenceKind.OTHER_END]
    assert added is not None
    assert other is not None
    assert (added.offset, other.offset) == (30, 17)
    command = [sys.executable, "-m", "lmerge_service.cli", "cutover", "--json", "--to", "d"]
    shown = subprocess.run(
        [*command, "--topic", d, "--dry-run", merge.path], capture_output=True, check=False
    )
    document = json.loads(shown.stdout)
    assert (shown.returncode, shown.stderr) == (1, b"")
    assert document["differences"] == {"missing": 1, "added": 1, "other_end": 1}
    assert (document["behind"], document["compared_to"]) == (10, 80)


@pytest.mark.kafka
def test_what_a_replica_is_not_correct_for_is_not_compared(merge: Merge) -> None:
    merge.publish("output", [*events(0, 100), Stable(90)])
    merge.publish("d", [*events(50, 100), Stable(INFINITY)])
    found = compared(merge, stream={"joining_at": 55})
    assert (found.counts.total(), found.stable) == (0, 90)
    assert compared(merge).counts == {DifferenceKind.MISSING: 50}


@pytest.mark.full
@pytest.mark.kafka
def test_an_output_that_has_lost_its_beginning_is_compared_from_a_snapshot_on(
    bootstrap: str, tmp_path: Path
) -> None:
    """What ended by then is no difference, and of what was live the replica must have the same
    ends; also if it is to be compared from earlier on itself."""
    live = [Insert(b'"%d"' % number, number, 100 + number) for number in range(20)]
    merge = Merge(bootstrap, tmp_path, ["a", "d"])
    merge.extra = {"snapshot_seconds": 0.2, "output": {"topic": merge.output, "keep": "1s"}}
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        merge.publish("a", [Insert(b'"short"', 5, 9), *live, Stable(110)])
        wait_until_trimmed(merge, worker, 20)
    merge.topics["output"] = merge.output
    other = [Insert(b'"15"', 15, 118), Insert(b'"17"', 17, 117)]
    more = [Insert(b'"short"', 5, 9), *live[:15], *other, *live[18:], Insert(b'"only"', 111, 112)]
    merge.publish("d", [*more, Stable(125)])
    merge.publish("output", [Insert(b'"new"', 118, 119), Stable(121)])  # as if the worker went on
    for stream in ({}, {"joining_at": 50}):
        found = compared(merge, stream=stream)
        assert (found.stable, found.output_stable) == (121, 121)
        differing = {(each.kind.value, each.payload) for each in found.first}
        differing.discard(("missing", b'"16"'))  # of a replica that may lack what began before 50
        assert differing == {("other_end", b'"15"'), ("missing", b'"new"'), ("added", b'"only"')}
    assert ("missing", b'"16"') in {(e.kind.value, e.payload) for e in compared(merge).first}
    delete(merge, f"{merge.output}.state")
    with pytest.raises(ConfigurationError, match=r"there is no .*\.state: nobody knows what was"):
        compared(merge, stream={"joining_at": 50})


@pytest.mark.full
@pytest.mark.kafka
def test_an_output_that_starts_over_is_compared_from_then_on(merge: Merge) -> None:
    merge.publish("output", [*events(0, 40), Stable(38)])
    merge.publish("output", [*events(55, 70), Stable(65)], incarnation=1, joining_at=60)
    merge.publish("d", [*events(0, 50), *events(51, 60), *events(61, 70), Stable(65)])
    found = compared(merge)
    assert found.stable == 65
    assert [(each.kind.value, each.vs) for each in found.first] == [("missing", 60)]


def delete(merge: Merge, topic: str) -> None:
    async def ask() -> None:
        async with Topics(connection_of(load(merge.path).kafka)) as topics:
            await topics.delete(topic)

    asyncio.run(ask())


@pytest.mark.kafka
def test_g1_what_is_held_stays_flat(merge: Merge) -> None:
    flat(merge, 12_000)


@pytest.mark.kafka
@pytest.mark.deep
def test_g1_over_a_million_elements(merge: Merge) -> None:
    flat(merge, 500_000)


def steady(count: int) -> list[Element]:
    """With a stable every 100 events."""
    elements: list[Element] = []
    for start in range(0, count, 100):
        elements += [*events(start, start + 100), Stable(start + 100)]
    return elements


def flat(merge: Merge, count: int) -> None:
    for name in ("output", "d"):
        merge.publish(name, steady(count))
    found = compared(merge, live=500)
    assert (found.events + found.live, found.stable) == (count, count)
    assert found.counts.total() == 0
    assert found.most_live <= 500 + 4_000 + 100, "a batch beyond the limit"
    assert found.live <= 4, "and back to what is not final"


@pytest.mark.kafka
def test_g1_whoever_is_far_ahead_is_not_read_on(merge: Merge) -> None:
    merge.publish("output", steady(15_000))
    merge.publish("d", steady(1_000))
    found = compared(merge, live=500)
    assert (found.stable, found.counts.total()) == (1_000, 0)
    assert found.most_live <= 500 + 4_000 + 100
    assert found.lag[0] > 5_000


@pytest.mark.full
@pytest.mark.kafka
def test_a_span_is_waited_for(merge: Merge) -> None:
    merge.publish("output", [*events(0, 100), Stable(90)])
    merge.publish("d", [*events(0, 100), Stable(95)])

    async def both() -> Compared:
        comparing = asyncio.create_task(asyncio.to_thread(compared, merge, 50))
        await asyncio.sleep(3)  # it must not end by then, and it cannot be asked
        assert not comparing.done()
        for name in ("output", "d"):
            more = [*events(100, 150), Stable(140)]
            await asyncio.to_thread(merge.publish, name, more)
        return await comparing

    found = asyncio.run(both())
    assert (found.stable, found.counts.total()) == (140, 0)


@pytest.mark.kafka
def test_what_cannot_be_compared_is_reported(merge: Merge) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no topic .*\.out: there is nothing"):
        compared(merge)
    with pytest.raises(ConfigurationError, match="is the output: there is nothing to compare"):
        compared(merge, stream={"topic": merge.output})


@pytest.mark.kafka
def test_a_topic_that_grows_wider_ends_it(merge: Merge) -> None:
    merge.publish("output", [*events(0, 10), Stable(5)])
    merge.publish("d", [*events(0, 10), Stable(5)])
    topology = load(merge.path)

    async def compare() -> None:
        connection = connection_of(topology.kafka)
        replica = Replica.model_validate({"name": "d", "topic": merge.topics["d"]})
        async with DryRun(topology, replica, Cluster(connection)) as shadow:
            async with Topics(connection) as topics:
                await topics.delete(merge.topics["d"])
                while await topics.width(merge.topics["d"]) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await topics.ensure(merge.topics["d"], partitions=3)
            async with asyncio.timeout(60):
                await shadow.run(1_000, lambda _: None)

    with pytest.raises(StateError):
        asyncio.run(compare())
