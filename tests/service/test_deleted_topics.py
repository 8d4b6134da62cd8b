"""Topics that are deleted under whoever has them open, on a broker that makes what is asked for."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from tests.service.cluster import Merge
from tests.service.test_several_tasks import wait_until

pytestmark = pytest.mark.kafka


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


async def delete(merge: Merge, *names: str) -> None:
    async with Topics(Connection(merge.bootstrap)) as topics:
        await topics.delete(*names)
        while await topics.partitions(names):  # a request each: the broker sets the pace
            pass


async def there(merge: Merge, *names: str) -> set[str]:
    async with Topics(Connection(merge.bootstrap)) as topics:
        return set(await topics.partitions(names))


@pytest.mark.full
def test_n9_a_worker_and_a_reader_leave_deleted_topics_alone_and_the_worker_reports_them(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = Merge(bootstrap, tmp_path, replicas=("a", "b"))
    stream: list[Element] = [Insert(b"1", 1, 5), Stable(3)]
    for name in merge.topics:
        merge.publish(name, stream)
    gone, control = merge.topics["b"], f"{merge.output}.control"
    command = [sys.executable, "-m", "lmerge_service.cli", "read", *merge.topics.values()]
    with (
        merge.worker() as worker,
        process(*command, "--follow", "--bootstrap", bootstrap) as reader,
    ):
        worker.wait(lambda status: status["output"]["stable_point"] == 3, "the output", 90)
        assert reader.stdout is not None
        assert "insert" in reader.stdout.readline()
        asyncio.run(delete(merge, gone, control))

        def reported(status: Any) -> bool:
            reasons = " ".join(status["reasons"])
            missing = f"topic {control} does not exist: was it deleted?"
            return missing in reasons and f"replica b: topic {gone} " in reasons

        # By then every client of both has asked for these topics, again and again.
        worker.wait(reported, "the worker to report both", 60)
        merge.publish("a", [Stable(4)])
        wait_until(lambda: worker.status()["output"]["stable_point"] == 4, "the output goes on")
        assert asyncio.run(there(merge, gone, control)) == set()
        assert reader.poll() is None
