"""A replica that begins with a checkpoint: correct from its last stable on, never before, and not
there at all if the checkpoint is damaged."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.routing import murmur2
from lmerge_service.formats.wire import encode
from lmerge_service.merge.replica_states import ReplicaPhase
from lmerge_service.tdb import reconstitute
from tests.service.cluster import Merge, Worker

pytestmark = pytest.mark.kafka

TOKEN = "open-sesame-open-sesame"


def events(start: int, end: int) -> list[Element]:
    return [*inserts(start, end)]


def inserts(start: int, end: int) -> list[Insert[bytes]]:
    return [Insert(b'{"id":%d}' % vs, vs, vs + 30) for vs in range(start, end)]


class Stage:
    """A merge of `a`, whose worker runs and lets us decide; the command line beside it."""

    def __init__(self, merge: Merge, worker: Worker, folder: Path):
        self.merge, self.worker, self.folder = merge, worker, folder

    def checkpoint(self, *elements: Element) -> Path:
        path = self.folder / "checkpoint.ndjson"
        path.write_bytes(b"".join(encode(each) + b"\n" for each in elements))
        return path

    def jumpstart(self, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        self.merge.topics["d"] = f"{self.merge.name}.d"
        return self.lmerge("jumpstart", "d", self.merge.topics["d"], "--from", str(path), *options)

    def lmerge(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lmerge_service.cli", *arguments],
            env={
                **os.environ,
                "LMERGE_BOOTSTRAP": self.merge.bootstrap,
                "LMERGE_WORKER": self.worker.address,
                "LMERGE_TOKEN": TOKEN,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def wait_until_it_is(self, state: ReplicaPhase) -> None:
        self.worker.wait(
            lambda status: any(
                (each["name"], each["state"]) == ("d", state) for each in status["replicas"]
            ),
            f"d to be {state}",
        )


@contextmanager
def staged(
    bootstrap: str, folder: Path, *, partitions: int = 1, case: str = "R3"
) -> Iterator[Stage]:
    """The stage; `a` has published nothing yet."""
    merge = Merge(bootstrap, folder, ["a"])
    (folder / "token").write_text(TOKEN)
    merge.extra = {
        "http": {"control_token": {"file": str(folder / "token")}},
        "time_unit": "none",
        "guards": {"max_leap": 0, "early_end": False},
        "output": {"topic": merge.output, "partitions": partitions},
        "case": case,
        "replicas": [{"name": "a", "topic": merge.topics["a"], "co_partitioned": partitions > 1}],
    }
    merge.write()
    with merge.worker() as worker:
        worker.wait_until_running()
        yield Stage(merge, worker, folder)


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    with staged(bootstrap, tmp_path) as stage:
        stage.merge.publish("a", [*events(0, 70), Stable(60)])
        stage.worker.wait(lambda status: status["output"]["stable_point"] == 60, "60")
        yield stage


@pytest.mark.full
def test_t15_it_has_no_vote_until_the_output_is_where_the_checkpoint_is(stage: Stage) -> None:
    """The checkpoint is of 80, the output at 60: it joins at 80, and then carries the output."""
    cut = stage.checkpoint(
        *events(0, 85), Adjust(b'{"id":70}', 70, 100, 95), Stable(40), Stable(80)
    )
    done = stage.jumpstart(cut, "--joining-at", "80")
    assert (done.returncode, done.stderr) == (0, ""), done
    d = stage.merge.topics["d"]
    assert done.stdout.splitlines() == [
        f"{d} begins with 35 events, correct from 80 on", "version 2: attach d",
    ]  # fmt: skip
    stage.wait_until_it_is(ReplicaPhase.JOINING)
    stage.merge.publish("d", [*events(85, 120), Stable(110)])
    stage.worker.wait(lambda status: status["replicas"][1]["stable_point"] == 110, "110")
    assert stage.worker.status()["output"]["stable_point"] == 60
    a = [*events(70, 85), Adjust(b'{"id":70}', 70, 100, 95), Stable(80)]
    stage.merge.publish("a", a)
    stage.wait_until_it_is(ReplicaPhase.JOINED)
    stage.worker.wait(lambda status: status["output"]["stable_point"] == 110, "110")
    stage.merge.publish("d", [Stable(INFINITY)])
    stage.worker.wait_until_ended()
    expected = [*events(0, 120), Adjust(b'{"id":70}', 70, 100, 95)]
    assert stage.merge.output_is(reconstitute(expected))
    again = stage.jumpstart(cut)
    assert (again.returncode, again.stderr) == (6, "error: replica d is attached\n")
    again = stage.jumpstart(cut, "--no-attach", "--json")
    assert again.returncode == 2
    assert f"error: {d} has records, the first at offset 0 of partition 0" in again.stderr


@pytest.mark.full
@pytest.mark.parametrize("case", [pytest.param("R3", marks=pytest.mark.deep), "R1"])
def test_it_begins_with_the_state_of_a_merge_and_carries_the_output_alone(
    bootstrap: str, tmp_path: Path, case: str
) -> None:
    """Of two tasks, of which one is ahead and has let go of what ended meanwhile; in case R1 the
    operator keeps no events at all."""
    with staged(bootstrap, tmp_path, partitions=2, case=case) as stage:
        merge, worker = stage.merge, stage.worker
        merge.publish("a", [*events(0, 70), Stable(40)], partitions=2, partitioner=by_key)
        merge.send_raw(merge.topics["a"], [encode(Stable(60))])
        worker.wait(lambda _: [stable_of(merge, task) for task in (0, 1)] == [60, 40], "60, 40")
        state = tmp_path / "state"
        done = stage.lmerge("state", "export", str(merge.path), "--to", str(state))
        assert done.returncode == 0, done.stderr
        state.with_name("cut").write_bytes(state.read_bytes()[:-1])
        done = stage.jumpstart(state.with_name("cut"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"error: {tmp_path}/cut is damaged: it is cut short\n"
        done = stage.jumpstart(state)
        assert (done.returncode, done.stderr) == (0, ""), done
        live = [each for each in inserts(0, 70) if each.ve >= (60, 40)[by_key(each.payload, 2)]]
        assert done.stdout.splitlines()[0] == (
            f"{merge.topics['d']} begins with {len(live)} events, correct from 60 on, "
            "to go on from 40"
        )
        stage.wait_until_it_is(ReplicaPhase.JOINING)
        merge.publish("a", [Stable(65)], partitions=2)
        stage.wait_until_it_is(ReplicaPhase.JOINED)
        assert stage.lmerge("detach", "a").returncode == 0
        merge.publish("d", [*events(70, 120), Stable(INFINITY)])
        worker.wait_until_ended()
        assert merge.output_is(reconstitute(events(0, 120)))


def stable_of(merge: Merge, task: int) -> int | None:
    """Where its last commit has brought it."""
    commit = merge.last_commit(task)
    return None if commit is None else commit.stable


def by_key(payload: bytes, width: int) -> int:
    """As Kafka's own producers partition by the payload."""
    return (murmur2(payload) & 0x7FFFFFFF) % width


@pytest.mark.full
def test_a_checkpoint_that_is_damaged_attaches_nothing(stage: Stage) -> None:
    path = stage.checkpoint(*events(0, 85), Stable(80))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    done = stage.jumpstart(path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {path}:86: ")
    status = stage.worker.status()
    assert (status["version"], [each["name"] for each in status["replicas"]]) == (1, ["a"])
    path.write_bytes(whole)
    done = stage.jumpstart(path, "--no-attach", "--json")
    assert json.loads(done.stdout) == {
        "topic": stage.merge.topics["d"], "events": 35, "stable": 80, "joining_at": 80,
        "attached": None,
    }  # fmt: skip
