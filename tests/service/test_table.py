"""The table topic on a real broker: workers are killed, take over, switch it off and on."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.config.topology import load
from lmerge_service.elements import INFINITY, Adjust, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.merge.internal_topics import prepare
from tests.service.cluster import Merge, Worker, logical, replica_streams
from tests.service.tables import Loading, audited, live_of, output_of, table_of
from tests.table_reader import TableView, reconstituted

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "table-topic.md"


@pytest.fixture
def merge(bootstrap: str, tmp_path: Path) -> Merge:
    made = Merge(bootstrap, tmp_path)
    configure(made)
    return made


def configure(merge: Merge, **output: Any) -> None:
    merge.extra = {
        "snapshot_seconds": 0.5,
        "output": {"topic": merge.output, "table": True, **output},
    }
    merge.write()


def assert_right(merge: Merge, *, keyed: bool = True) -> TableView:
    """Nobody publishes."""
    view, records = table_of(merge), output_of(merge)
    assert view.is_whole
    assert not live_of(records, keyed=keyed) - view.events()
    assert not view.events() - reconstituted(records, keyed=keyed)
    assert audited(merge).divergences == []
    return view


def wait_for_table(worker: Worker) -> None:
    worker.wait(
        lambda status: all(
            each["table"] is not None and each["table"]["whole"]
            for each in status["tasks"]
            if each["role"] == "leads"
        ),
        "the table to be whole",
    )


@pytest.mark.full
def test_killed_again_and_again_the_table_is_what_the_output_is_and_readers_follow(
    merge: Merge,
) -> None:
    """kill -9 in mid-transaction, a standby that takes over, and a reader at any time."""
    streams = replica_streams(logical(400))
    parts = {name: len(stream) // 4 for name, stream in streams.items()}
    workers = [merge.worker(), merge.worker()]
    with contextlib.ExitStack() as stack:
        with workers[0] as first, workers[1] as second:
            first.wait(lambda status: bool(status["tasks"]), "it to begin")
            loading = stack.enter_context(Loading(merge).loading())
            with merge.publishing({n: s[: parts[n]] for n, s in streams.items()}):
                time.sleep(1.0)
                first.kill()
            with merge.publishing({n: s[parts[n] : 2 * parts[n]] for n, s in streams.items()}):
                second.wait_until_it("leads")
                second.kill()
        with merge.worker() as third:
            with merge.publishing({n: s[2 * parts[n] : -1] for n, s in streams.items()}):
                third.wait_until_it("leads")
                time.sleep(0.5)
            wait_for_table(third)
            third.terminate()
    view = assert_right(merge)
    assert view.rows
    assert loading.views
    loading.judge()


@pytest.mark.full
def test_switched_off_and_on_again_nothing_is_stale_and_nothing_is_missing(merge: Merge) -> None:
    gone, kept, cut = (
        Insert(b'"gone"', 1, 50),
        Insert(b'"kept"', 2, INFINITY),
        Insert(b'"cut"', 3, 60),
    )
    merge.publish("a", [gone, kept, cut])
    with merge.worker() as worker:
        merge.wait_until_committed("a", 3)
        wait_for_table(worker)
        worker.kill()
    assert len(assert_right(merge).rows) == 3
    configure(merge, table=False)
    merge.publish("a", [Adjust(b'"gone"', 1, 50, 1), Adjust(b'"cut"', 3, 60, 70), Stable(0)])
    merge.publish("b", [kept, Insert(b'"cut"', 3, 70), Insert(b'"new"', 9, 90), Stable(5)])
    with merge.worker() as worker:
        worker.wait(lambda status: status["output"]["stable_point"] == 5, "the output")
        worker.kill()
    assert len(table_of(merge).rows) == 3
    configure(merge)
    with merge.worker() as worker:
        wait_for_table(worker)
        worker.terminate()
    assert len(assert_right(merge).rows) == 3
    assert merge.last_commit() is not None


@pytest.mark.full
def test_a_table_topic_that_is_deleted_is_made_and_filled_again(merge: Merge) -> None:
    async def delete() -> None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics.delete(f"{merge.output}.table")

    merge.publish("a", [Insert(b'"kept"', 2, INFINITY), Insert(b'"other"', 2, 90), Stable(1)])
    with merge.worker() as worker:
        merge.wait_until_committed("a", 3)
        wait_for_table(worker)
        asyncio.run(delete())
        merge.publish("a", [Insert(b'"later"', 5, 90)])
        worker.wait(
            lambda status: not (status["tasks"][0]["table"] or {"whole": False})["whole"],
            "the table to begin",
        )
        wait_for_table(worker)
        worker.terminate()
    assert len(assert_right(merge).rows) == 3
    assert worker.logged("table begins")


@pytest.mark.full
def test_what_has_been_final_for_long_leaves_and_what_is_live_stays(merge: Merge) -> None:
    """Also what became final under a worker that was killed."""
    configure(merge, keep="2s")
    merge.publish("a", [Insert(b'"kept"', 2, INFINITY), Insert(b'"old"', 2, 9), Stable(10)])
    with merge.worker() as worker:
        worker.wait(lambda status: status["output"]["stable_point"] == 10, "the output")
        wait_for_table(worker)
        assert len(table_of(merge).rows) == 2
        time.sleep(0.5)
        worker.kill()
    with merge.worker() as worker:
        deadline = time.monotonic() + 30
        while len(table_of(merge).rows) != 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        merge.publish("a", [Insert(b'"next"', 20, 30), Stable(40)])
        while "next" not in str(table_of(merge).rows) and time.monotonic() < deadline:
            time.sleep(0.1)
        while "next" in str(table_of(merge).rows) and time.monotonic() < deadline:
            time.sleep(0.2)
        worker.terminate()
    assert [row["payload"] for row in table_of(merge).rows.values()] == ["kept"]


@pytest.mark.full
def test_a_multiset_has_a_row_for_each_of_equal_events(merge: Merge) -> None:
    merge.extra |= {"case": "R4", "policy": {"adjust": "eager"}}
    merge.write()
    twice = [Insert(b'"A"', 2, 9), Insert(b'"A"', 2, 9)]
    merge.publish("a", [*twice, Adjust(b'"A"', 2, 9, 12), Stable(5)])
    with merge.worker() as worker:
        worker.wait(lambda status: status["output"]["stable_point"] == 5, "the output")
        wait_for_table(worker)
        worker.kill()
    with merge.worker() as worker:
        wait_for_table(worker)
        merge.publish("a", [Adjust(b'"A"', 2, 9, 12), Insert(b'"A"', 6, 9), Stable(7)])
        worker.wait(lambda status: status["output"]["stable_point"] == 7, "the output")
        worker.terminate()
    view = assert_right(merge, keyed=False)
    assert sorted((e["vs"], e["ve"]) for e in view.rows.values()) == [(2, 12), (2, 12), (6, 9)]


def test_a_table_topic_that_is_not_compacted_is_refused_with_the_command(merge: Merge) -> None:
    async def try_it() -> None:
        async with Topics(Connection(merge.bootstrap)) as topics:
            await topics.ensure(f"{merge.output}.table", config={"cleanup.policy": "delete"})
            await prepare(topics, load(merge.path))

    with pytest.raises(
        ConfigurationError, match=r"must be compact.*kafka-configs.sh --alter .*table"
    ):
        asyncio.run(try_it())


def example() -> str:
    """The consumer that the page shows."""
    (found,) = re.findall(r"^```python\n(import asyncio.*?)^```$", PAGE.read_text(), re.S | re.M)
    return str(found)


@pytest.mark.full
def test_the_consumer_of_the_page_loads_and_follows(merge: Merge, tmp_path: Path) -> None:
    script = tmp_path / "consumer.py"
    script.write_text(example())
    streams = replica_streams(logical(200))
    with merge.worker() as worker:
        half = {name: stream[: len(stream) // 2] for name, stream in streams.items()}
        for name, stream in half.items():
            merge.publish(name, stream)
        worker.wait(lambda status: status["elements_in"] == sum(map(len, half.values())), "half")
        wait_for_table(worker)
        command = [sys.executable, str(script), merge.bootstrap, merge.output]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
            try:
                assert consumer.stdout is not None
                loaded = json.loads(consumer.stdout.readline())
                for name, stream in streams.items():
                    merge.publish(name, stream[len(stream) // 2 :])
                counts = [json.loads(consumer.stdout.readline())]
                while counts[-1]["stable"] is not None:
                    counts.append(json.loads(consumer.stdout.readline()))
            finally:
                consumer.kill()
        worker.terminate()
    records = output_of(merge)
    before = [each for each in records if each.offset < loaded["follow_from"]]
    assert loaded["loaded"] == len(reconstituted(before, keyed=True)) > 0
    assert counts[-1]["events"] == len(reconstituted(records, keyed=True))
    assert len(example().splitlines()) < 60
