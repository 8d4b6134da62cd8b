"""The merge on a cluster: submitted as a zip, and going on when executors, workers and the driver
are killed; what is reported of them."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lmerge_service.spark.session import connector_jars
from lmerge_service.tdb import reconstitute
from tests.service.cluster import logical, meaning, replica_streams
from tests.spark.merge.standalone import Standalone, end, standalone
from tests.spark.merge.test_job import (
    Process,
    batches_of,
    come_true,
    merge_of,
    numbers,
    read_back,
)

SECONDS = 180
MAIN = "from lmerge_service.cli import main\n\nmain()\n"
WHERE = """
import sys
from lmerge_service.spark.session import spark_session

def where(_):
    import lmerge_service.cli
    return [lmerge_service.cli.__file__]

with spark_session() as spark:
    print(*set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()))
"""


def submitted(cluster: Standalone, log: Path, program: Path, *arguments: str) -> psutil.Popen:
    return cluster.submit(
        log,
        "--py-files", str(cluster.folder / "lmerge_service.zip"),
        "--jars", ",".join(map(str, connector_jars())),
        "--driver-memory", "600m",
        "--conf", "spark.executor.memory=512m",
        "--conf", f"spark.pyspark.python={sys.executable}",
        str(program), *arguments,
    )  # fmt: skip


def until_merged(batches: int, driver: psutil.Popen | subprocess.Popen[bytes], log: Path) -> None:
    """So many more batches are through."""
    goal = len(batches_of(log)) + batches

    def merged() -> bool:
        assert driver.poll() is None, log.read_text()
        return len(batches_of(log)) >= goal

    come_true(merged, f"{goal} batches are through", SECONDS)


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_submitted_to_a_cluster_it_lives_through_the_loss_of_each_part(
    bootstrap: str, tmp_path: Path
) -> None:
    merge = merge_of(bootstrap, tmp_path)
    lives = logical(1_500, seed=17)
    streams = replica_streams(lives, seed=17)
    folder = tmp_path / "cluster"
    folder.mkdir()
    packed = folder / "lmerge_service.zip"
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-c", str(packed), "lmerge_service/"], check=True
    )
    program, where = folder / "lmerge_main.py", folder / "where.py"
    program.write_text(MAIN)
    where.write_text(WHERE)
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"), "--json")
    with standalone(folder, workers=2, executor_megabytes=512) as cluster:
        log = tmp_path / "where.log"
        assert submitted(cluster, log, where).wait(SECONDS) == 0, log.read_text()
        assert "lmerge_service.zip/lmerge_service/cli" in log.read_text()

        log = tmp_path / "first.log"
        driver = submitted(
            cluster, log, program, "spark-merge", str(merge.path), *checkpoint,
            "--batch-records", "300",
        )  # fmt: skip
        try:
            with merge.publishing(streams):
                until_merged(3, driver, log)
                assert len(cluster.executors()) == 2
                cluster.executors()[0].kill()
                until_merged(3, driver, log)
                end(cluster.workers[0])
                until_merged(3, driver, log)
        finally:
            end(driver)
        log = tmp_path / "last.log"
        last = submitted(
            cluster, log, program, "spark-merge", str(merge.path), *checkpoint, "--available-now"
        )
        assert last.wait(SECONDS) == 0, log.read_text()
    assert merge.output_is(meaning(lives))
    assert reconstitute(read_back(merge)) == meaning(lives)
    for seqs in numbers(merge).values():
        assert sorted(set(seqs)) == list(range(1, max(seqs) + 1))


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_command_reports_an_executor_that_is_lost(bootstrap: str, tmp_path: Path) -> None:
    merge = merge_of(bootstrap, tmp_path)
    folder = tmp_path / "cluster"
    folder.mkdir()
    with standalone(folder, workers=1, executor_megabytes=1024) as cluster:
        on_it = ("--master", cluster.url, "--batch-records", "300")
        process = Process(merge, tmp_path / "log", *on_it)
        try:
            with merge.publishing(replica_streams(logical(1_500, seed=17), seed=17)):
                until_merged(2, process.process, process.log)
                [executor] = cluster.executors()
                executor.kill()
                until_merged(2, process.process, process.log)
            process.process.send_signal(signal.SIGTERM)
            assert process.process.wait(60) == 0
        finally:
            process.kill()
    printed = [line for line in process.log.read_text().splitlines() if not line.startswith("{")]
    begins, lost, ends = printed
    assert begins.startswith("merging into")
    assert re.search(r" ERROR TaskSchedulerImpl: Lost executor 0 on 127\.0\.0\.1: .*137", lost)
    assert ends.startswith(f"{merge.output}: merged to here")


NOBODY = """
from lmerge_service.errors import EnvironmentMissingError
from lmerge_service.spark.session import spark_session
try:
    with spark_session(master="spark://127.0.0.1:1", kafka=False):
        pass
except EnvironmentMissingError as error:
    print(error)
"""


@pytest.mark.deep
def test_where_no_cluster_is_one_line_reports_it() -> None:
    """After a minute, during which Spark reports it."""
    done = subprocess.run(
        [sys.executable, "-c", NOBODY], capture_output=True, text=True, timeout=200, check=True
    )
    assert "WARN StandaloneAppClient$ClientEndpoint: Failed to connect to master" in done.stderr
    assert "Traceback" not in done.stderr
    assert re.fullmatch(
        r"Spark ended while it started: is there a cluster at spark://127\.0\.0\.1:1, .*\n",
        done.stdout,
    )
