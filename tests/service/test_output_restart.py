"""An output whose state is lost starts over: on a real broker, with real workers and consumers."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.core import Gap
from lmerge_service.drills.dump import dump
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.streams import incarnations
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.reader.inlets import StartedOver
from lmerge_service.reader.read_merged import ReaderStatus, read_merged
from lmerge_service.tdb import TDB, Event, reconstitute
from tests.merge.test_recovery import last_mark, mark_again, spoilt
from tests.service.cluster import Merge, Worker, logical, meaning, replica_streams
from tests.service.test_retention import trim_topic

pytestmark = pytest.mark.kafka


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    """With snapshots as often as possible."""
    made = Merge(bootstrap, tmp_path, ("a", "b"))
    made.extra = {"snapshot_seconds": 0.2}
    made.write()
    return made


def lmerge(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    command = [sys.executable, "-m", "lmerge_service.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def lose_state(merge: Merge, *, partition: int = 0) -> int:
    """Spoils both snapshots, and deletes the first record of the output's incarnation; returns how
    far the output was stable."""
    mark = last_mark(merge)
    assert len(mark.snapshots) == 2
    mark_again(merge, spoilt(mark, 0, 1))
    trim_topic(merge, merge.output, mark.output.offset + 1)
    return mark.stable


def ended_with(worker: Worker, code: int) -> str:
    """The error of a worker that ends by itself."""
    assert worker.process.wait(60) == code, worker.text()
    (error,) = [line for line in worker.log.read_text().splitlines() if line.startswith("error")]
    return error


def wait_for_snapshots(merge: Merge, worker: Worker, *, incarnation: int = 0) -> None:
    """Until two are taken, and cover all that was published in an incarnation."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        mark = merge.mark()
        if mark and len(mark.snapshots) == 2 and mark.output.incarnation == incarnation:
            published = mark.output_records > mark.output.records
            if published and mark.snapshots[1].records >= mark.output_records:
                return
        time.sleep(0.1)
    raise AssertionError(f"{merge.mark()}\n{worker.text()}")


def wait_until_running(worker: Worker) -> None:
    """Also where the machine has much else to do."""
    worker.wait(lambda status: status["state"] == "running", "the worker to run", 120)


def wait_until_ended(worker: Worker) -> Any:
    """The same, of the output's end."""
    return worker.wait(lambda status: status["output"]["ended"], "the output to end", 120)


@contextlib.contextmanager
def upper_merge(merge: Merge) -> Iterator[tuple[Merge, Worker]]:
    """A merge that has the output as its only replica, and runs."""
    upper = Merge(merge.bootstrap, merge.folder, ("out",))
    upper.topics = {"out": merge.output}
    upper.write()
    with upper.worker() as worker:
        wait_until_running(worker)
        yield upper, worker


@dataclass(frozen=True)
class Reading:
    """What a consumer got of the output."""

    elements: list[Element]
    status: ReaderStatus
    restarts: list[StartedOver]
    token: bytes


def read(merge: Merge, **options: Any) -> Reading:
    """The output to its present end."""
    restarts: list[StartedOver] = []

    async def run() -> Reading:
        reading = read_merged(
            Connection(merge.bootstrap), [merge.output], follow=False,
            on_start_over=restarts.append, **options,
        )  # fmt: skip
        async with reading as reader:
            elements = [each async for each in reader]
            return Reading(elements, reader.status(), restarts, reader.token())

    return asyncio.run(run())


def from_then_on(tdb: TDB, since: int) -> set[Event]:
    return {each for each in tdb if each.ve >= since}


def tdb_of(topic: CommittedTopic) -> TDB:
    """Of a legal stream of one partition."""
    return reconstitute(WireDecoder().decode(each.value) for each in topic.records)


def output_of(merge: Merge) -> CommittedTopic:
    """All that is left of the output."""
    return asyncio.run(dump(merge.bootstrap, [merge.output]))[merge.output]


@pytest.mark.full
def test_a_lost_output_goes_on_by_a_decision_and_its_consumers_take_it_for_a_restart(
    merge: Merge,
) -> None:
    """The worker ends with 4 and names the command, which decides; workers are killed while they
    begin the incarnation, and who has read along has all there is."""
    lives = logical(150)
    streams = {name: replica_streams(lives)[name] for name in ("a", "b")}
    halves = {name: len(stream) // 2 for name, stream in streams.items()}
    with upper_merge(merge) as (upper, upper_worker):
        with merge.worker() as worker:
            for name, stream in streams.items():
                merge.publish(name, stream[: halves[name]])
            wait_for_snapshots(merge, worker)
            worker.kill()
        assert "can be recovered" in lmerge("restart-output", str(merge.path))[2]
        published = last_mark(merge).output_records
        upper_worker.wait(
            lambda s: s["output"]["stable_point"] == last_mark(merge).stable, "all is read", 60
        )
        stable = lose_state(merge)
        with merge.worker() as worker:
            error = ended_with(worker, 4)
        assert "none of 2 snapshots can be used" in error
        assert "`lmerge restart-output TOPOLOGY.yaml`" in error
        code, shown, _ = lmerge("restart-output", str(merge.path))
        assert code == 0
        assert f"replica a: correct from {stable} on" in shown
        assert f"stable at {stable}: nothing is lost" in shown
        assert "nothing is decided" in shown
        assert last_mark(merge).output.incarnation == 0
        code, shown, _ = lmerge("restart-output", str(merge.path), "--yes", "--json")
        assert (code, json.loads(shown)["decided"]["version"]) == (0, 2)
        code, _, refused = lmerge("restart-output", str(merge.path), "--yes")
        assert (code, "is decided already (version 2)" in refused) == (4, True)
        chance = random.Random(1)
        for _ in range(3):  # wherever they are
            with merge.worker() as worker:
                time.sleep(chance.uniform(1.0, 3.0))
                worker.kill()
        with merge.worker() as worker:
            wait_until_running(worker)
            for name, stream in streams.items():
                merge.publish(name, stream[halves[name] :])
            status = wait_until_ended(worker)
            assert status["output"]["incarnation"] == 1
            assert status["output"]["correct_from"] == stable
            assert "lmerge_output_incarnation" in worker.get("/metrics").text  # type: ignore[union-attr]
        wait_until_ended(upper_worker)
    assert upper.output_is(meaning(lives)), "it has what was before, and what came after"
    first, second = incarnations(output_of(merge))
    assert (first.incarnation, second.incarnation, second.correct_from) == (0, 1, stable)
    assert not first.wrong + second.wrong
    mark = last_mark(merge)
    assert (mark.output.incarnation, mark.output.correct_from) == (1, stable)
    assert mark.output.records == published
    assert from_then_on(tdb_of(second.topic), stable) == from_then_on(meaning(lives), stable)
    reading = read(merge, start="snapshot")
    since = reading.status.correct_from
    assert since >= stable
    assert from_then_on(reconstitute(reading.elements), since) == from_then_on(
        meaning(lives), since
    )


@pytest.mark.full
def test_what_lies_before_the_time_that_is_stated_is_a_gap_that_consumers_see(
    bootstrap: str, tmp_path: Path
) -> None:
    """The topic has lost its beginning; a person knows that no event lasts so long."""
    merge = Merge(bootstrap, tmp_path, ("a",))
    merge.extra = {"snapshot_seconds": 0.2}
    merge.write()
    old, kept, later = Insert(b'"o"', 2, 45), Insert(b'"k"', 60, 90), Insert(b'"l"', 95, 99)
    with merge.worker() as worker:
        wait_until_running(worker)
        merge.publish("a", [old, Insert(b'"x"', 3, 9), Stable(40)])
        wait_for_snapshots(merge, worker)
        worker.kill()
    trim_topic(merge, merge.topics["a"], 3)
    merge.publish("a", [kept, Stable(80)])
    before = read(merge)
    assert lose_state(merge) == 40
    with merge.worker() as worker:
        ended_with(worker, 4)
    code, shown, error = lmerge("restart-output", str(merge.path))
    assert code == 4
    assert "replica a: unknown" in shown
    assert f"{merge.topics['a']}-0 begins at offset 3, what was before is gone" in error
    code, shown, _ = lmerge("restart-output", str(merge.path), "--correct-from", "a=50", "--yes")
    assert code == 0
    assert "stable at 40: [40, 50) is lost" in shown
    with merge.worker() as worker:
        wait_until_running(worker)
        merge.publish("a", [later, Stable(INFINITY)])
        wait_until_ended(worker)
        (line,) = worker.logged("output restarted")
        assert (line["correct_from"], line["former_stable"]) == (50, 40)
    waiting = read(merge, token=before.token)
    assert waiting.status.gap == Gap(40, 50, merge.output)
    assert Stable(INFINITY) not in waiting.elements
    assert waiting.restarts == [StartedOver(merge.output, 1, 50, 40)]
    going_on = read(merge, token=before.token, accept_gaps=True)
    assert going_on.status.lost == (Gap(40, 50, merge.output),)
    assert going_on.status.correct_from == 50
    whole = reconstitute(before.elements + going_on.elements)
    assert from_then_on(whole, 50) == {(b'"k"', 60, 90), (b'"l"', 95, 99)}
    code, shown, error = lmerge(
        "read", merge.output, "--bootstrap", merge.bootstrap, "--from", "snapshot"
    )
    assert (code, shown.splitlines()[-1]) == (0, '{"op":"stable","vc":null}')
    audit = merge.audit()
    assert (audit.complete, audit.since >= 50) == (True, True)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_workers_that_may_start_over_by_themselves_do_so_wherever_they_are_killed(
    merge: Merge, seed: int
) -> None:
    """Twice; the last incarnation has everything from its time on."""
    merge.extra["output"] = {"topic": merge.output, "on_lost_state": "restart"}
    merge.write()
    lives, chance = logical(150, seed), random.Random(seed)
    streams = {name: replica_streams(lives, seed)[name] for name in ("a", "b")}
    for part in range(2):
        for name, stream in streams.items():
            size = len(stream) // 3
            merge.publish(name, stream[part * size : (part + 1) * size])
        with merge.worker() as worker:
            wait_for_snapshots(merge, worker, incarnation=part)
            worker.kill()
        lose_state(merge)
        for event in chance.sample(["output lost", "decided", "output restarted", "running"], 3):
            with merge.worker() as worker:
                wait_for_event(worker, event)
                time.sleep(chance.uniform(0, 0.3))
                worker.kill()
    for name, stream in streams.items():
        merge.publish(name, stream[2 * (len(stream) // 3) :])
    with merge.worker() as worker:
        wait_until_ended(worker)
    found = incarnations(output_of(merge))
    last = found[-1]
    assert last.incarnation == last_mark(merge).output.incarnation == 2
    assert not [wrong for each in found for wrong in each.wrong]
    right = from_then_on(meaning(lives), last.correct_from)
    assert from_then_on(tdb_of(last.topic), last.correct_from) == right


def wait_for_event(worker: Worker, event: str) -> None:
    """Until it logs that, or does not within some seconds, since it has happened before."""
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline and not worker.logged(event):
        time.sleep(0.02)
