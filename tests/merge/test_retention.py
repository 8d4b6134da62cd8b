"""What of the output may be deleted, when, and what is reported: on a Kafka in memory."""

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from ruamel.yaml import YAML

from lmerge_service.config.topology import Topology
from lmerge_service.errors import RefusedError
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.commit_record import SnapshotPlace
from lmerge_service.merge.retention import Covered, Retention
from tests.simulation import loop
from tests.simulation.clients import MemoryCluster, MemorySource, MemoryTopics
from tests.simulation.loop import BEGAN
from tests.simulation.memory import Broker
from tests.simulation.network import Network

OUT = TopicPartition("out", 0)


class Task:
    """One that is led: its snapshots cover the output up to these offsets, the latest first."""

    def __init__(self, *offsets: int, end: int, taken: float = 0.0):
        moment = int((BEGAN + taken) * 1_000)
        places = tuple(SnapshotPlace(0, 1, 0, 0, 1, 1, "", moment, at, at) for at in offsets)
        self.covered = Covered(places, end)
        self.hastened = 0

    def hasten_snapshot(self) -> None:
        self.hastened += 1


class Refusing(MemoryTopics):
    async def trim(self, before: Any) -> None:
        raise RefusedError("deleting records: our user lacks the ACL Delete on topic out")


class Scene:
    """An output of ten records, one a second, the first at second 0."""

    def __init__(self, task: Task | None, *, retention_ms: int = -1, **output: Any) -> None:
        self.network = Network(Broker(asyncio.get_running_loop().time), Random(1))
        self.broker = self.network.broker
        self.broker.create("out", config={"retention.ms": str(retention_ms)})
        clock = asyncio.get_running_loop().time
        topology = Topology.model_validate(
            {
                "name": "m",
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "output": {"topic": "out"} | output,
                "replicas": [{"name": "a", "topic": "in.a"}],
            }
        )
        self.task = task
        self.retention = Retention(
            cast(Cluster, MemoryCluster(self.network)),
            topology,
            lambda: {} if self.task is None else {0: self.task},
            unix_ns=lambda: int((BEGAN + clock()) * 10**9),
        )

    async def written(self) -> "Scene":
        for _ in range(10):
            self.broker.produce(OUT, [(None, b"x", ())])
            await asyncio.sleep(1)
        return self

    async def look(self, topics: type[MemoryTopics] = MemoryTopics) -> int:
        """Where the output begins after a look."""
        asks = cast(Topics, topics(self.network)), cast(Source, MemorySource(self.network))
        await self.retention.look(*asks)
        return self.broker.beginning(OUT)


def play(main: Coroutine[Any, Any, None]) -> None:
    loop.run(main)


def test_what_an_output_held_before_it_started_over_is_needed_by_no_recovery() -> None:
    assert Covered((), 30, begins=17).needed == 17
    assert Covered((), 30).needed == 0


def test_what_is_old_goes_up_to_the_older_snapshot_and_no_further() -> None:
    async def main() -> None:
        scene = await Scene(Task(8, 6, end=10), keep=2).written()
        assert await scene.look() == 6
        kept = scene.retention.kept[0]
        assert (kept.begins, kept.needed, kept.held_by) == (6, 6, "the older snapshot")
        assert scene.retention.deleted == {0: 6}
        assert await scene.look() == 6
        assert scene.retention.deleted == {0: 6}, "once"

    play(main())


def test_what_is_not_old_stays_whatever_snapshots_cover() -> None:
    async def main() -> None:
        scene = await Scene(Task(10, 10, end=10), keep=6).written()
        assert await scene.look() == 5, "that is written 5 s ago"
        assert scene.retention.kept[0].held_by is None
        assert scene.retention.kept[0].margin is None, "nothing of the log is needed"

    play(main())


@pytest.mark.parametrize("offsets", [(), (8,)])
def test_nothing_goes_while_there_are_not_two_snapshots(offsets: tuple[int, ...]) -> None:
    async def main() -> None:
        scene = await Scene(Task(*offsets, end=10), keep=1).written()
        assert await scene.look() == 0
        assert scene.retention.kept[0].held_by == "the older snapshot"

    play(main())


def test_without_keep_nothing_goes_and_where_nothing_is_led_nothing_is_known() -> None:
    async def main() -> None:
        scene = await Scene(Task(8, 6, end=10)).written()
        assert await scene.look() == 0
        assert (scene.retention.kept[0].needed, scene.retention.kept[0].held_by) == (6, None)
        idle = await Scene(None, keep=1).written()
        assert await idle.look() == 0
        assert idle.retention.kept == {}

    play(main())


def test_a_reader_holds_what_it_has_not_committed() -> None:
    async def main() -> None:
        scene = await Scene(Task(8, 6, end=10), keep=1, readers=["r", "s"]).written()
        scene.broker.offsets["s"] = {OUT: 9}
        assert await scene.look() == 0, "nothing is known of r"
        scene.broker.offsets["r"] = {OUT: 4}
        assert await scene.look() == 4
        assert scene.retention.kept[0].held_by == "reader r"
        scene.broker.offsets["r"] = {OUT: 10}
        assert await scene.look() == 6
        assert scene.retention.kept[0].held_by == "the older snapshot"

    play(main())


def test_the_margin_is_what_retention_leaves_after_the_older_snapshot() -> None:
    async def main() -> None:
        task = Task(8, 6, end=10, taken=4)
        scene = await Scene(task, retention_ms=60_000, longest_outage="1m").written()
        await scene.look()
        assert scene.retention.kept[0].margin == pytest.approx(54, abs=1)
        (why,) = scene.retention.too_short()
        assert why.startswith("once workers are down for more than 54 s, out-0 has lost what")
        assert "output.longest_outage is 0:01:00" in why
        scene = await Scene(task, retention_ms=600_000, longest_outage="1m").written()
        await scene.look()
        assert scene.retention.too_short() == []

    play(main())


DAY = 86_400
PAGE = Path(__file__).parents[2] / "docs" / "operations" / "recovery.md"


def settings_of_the_page() -> dict[str, tuple[str, int]]:
    """By how long the output is to be kept: the topology's lines, and `retention.ms`."""
    _, _, table = PAGE.read_text().partition("| to keep the output for |")
    rows = [line.split("|")[1:-1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    found, lifetime = {}, ""
    for what, lines, topic in rows:
        lifetime = lifetime if topic.strip() == "the same" else topic
        (milliseconds,) = re.findall(r"retention\.ms=(-?\d+)", lifetime)
        found[what.strip()] = ", ".join(re.findall(r"`(.*?)`", lines)), int(milliseconds)
    return found


@pytest.mark.parametrize(
    ("what", "days", "begins"),
    [("a day", 1, 9), ("a week, and until billing has read it", 7, 2), ("ever", 7, 0),
     ("a week, by Kafka itself (segments in tiered storage, for example)", 7, 0)],
)  # fmt: skip
def test_the_settings_that_the_page_gives_keep_what_they_are_for(
    what: str, days: int, begins: int
) -> None:
    """Ten records, one a day; snapshots cover what was published by an hour ago."""
    lines, lifetime = settings_of_the_page()[what]
    given = YAML(typ="safe").load("{" + lines.replace("T,", "out,") + "}") if lines else {}
    output = given.get("output", {})

    async def main() -> None:
        task = Task(9, 9, end=10, taken=10 * DAY - 3_600)
        scene = Scene(task, retention_ms=lifetime, **output)
        for _ in range(10):
            scene.broker.produce(OUT, [(None, b"x", ())])
            await asyncio.sleep(DAY)
        scene.broker.offsets["billing"] = {OUT: 2}
        assert await scene.look() == begins
        assert scene.retention.too_short() == []
        scene.broker.offsets["billing"] = {OUT: 9}
        if output.get("readers"):
            assert await scene.look() == 10 - days + 1, "a moment has passed since the tenth day"

    play(main())


def test_what_is_gone_too_early_is_reported_and_the_next_snapshot_hastened() -> None:
    async def main() -> None:
        task = Task(8, 6, end=10)
        scene = await Scene(task).written()
        scene.broker.truncate(OUT, 7)
        await scene.look()
        (why,) = scene.retention.too_short()
        assert why.startswith("out-0 begins at offset 7, and the older of its two snapshots")
        assert task.hastened == 1

    play(main())


def test_who_may_not_delete_reports_that_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene = await Scene(Task(8, 6, end=10), keep=1).written()
        monkeypatch.setattr(MemoryTopics, "trim", Refusing.trim)
        running = asyncio.create_task(scene.retention.run())
        await asyncio.sleep(5)
        (why,) = scene.retention.too_short()
        assert why == (
            "the output cannot be trimmed: deleting records: our user lacks the ACL Delete on "
            "topic out"
        )
        monkeypatch.undo()
        await asyncio.sleep(5)
        assert scene.retention.too_short() == []
        assert scene.broker.beginning(OUT) == 6
        running.cancel()

    play(main())


def test_who_leads_no_more_reports_nothing() -> None:
    async def main() -> None:
        scene = await Scene(Task(8, 6, end=10)).written()
        scene.broker.truncate(OUT, 7)
        await scene.look()
        assert len(scene.retention.too_short()) == 1
        scene.task = None
        assert scene.retention.too_short() == []
        scene.retention.fault = "Kafka is away"
        await scene.look()
        assert scene.retention.kept == {}
        assert scene.retention.too_short() == []

    play(main())
