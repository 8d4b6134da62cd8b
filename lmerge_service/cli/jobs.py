"""Spark for a command: a session for as long as it takes, and how far its jobs are.

Progress goes to standard error, and only where that is a terminal.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lmerge_service.cli.options import KafkaOptions, option, topic_of
from lmerge_service.cli.progress import bars, is_shown
from lmerge_service.cli.streams import check_files, is_parquet, label
from lmerge_service.errors import ConfigurationError
from lmerge_service.signals import orderly_end, raise_exit

if TYPE_CHECKING:
    from lmerge_service.config.topology import Kafka
    from lmerge_service.spark.io.places import Source

__all__ = (
    "Master",
    "Memory",
    "require_topic",
    "session",
    "spark_for",
    "stored_stream",
)

_POLL_SECONDS = 0.3

Master: TypeAlias = Annotated[
    str | None,
    option("URL", "Spark's address; by default this machine's cores."),
]
Memory: TypeAlias = Annotated[
    str,
    option(
        "SIZE",
        "Spark's heap, as 2g or 512m; each core's Python worker takes 0.2 GB beside it.",
        "--driver-memory",
    ),
]


@contextmanager
def spark_for(name: str, **settings: Any) -> Iterator[Any]:
    """A `spark_session` for a command: reported on a terminal, as it takes seconds to start;
    SIGTERM ends it in order, as Ctrl-C does."""
    from lmerge_service.spark.session import is_submitted, spark_session

    if is_shown():
        typer.echo("starting Spark …", err=True)
    with orderly_end(raise_exit), spark_session(name, **settings) as spark:
        if not is_submitted():
            spark.sparkContext.setLogLevel("OFF")  # what fails is raised, and reported in one line
        yield spark


@contextmanager
def session(doing: str, memory: str, *, kafka: bool, delta: bool = False) -> Iterator[Any]:
    """A session on all cores of this machine; on a terminal it shows how far its jobs are."""
    with spark_for("lmerge", driver_memory=memory, kafka=kafka, delta=delta) as spark:
        if not is_shown():
            yield spark
            return
        ended = Event()
        watching = Thread(target=_watch, args=(spark, doing, ended))
        watching.start()
        try:
            yield spark
        finally:
            ended.set()
            watching.join()


def require_topic(kafka: "Kafka | str", topic: str) -> None:
    """Asks before a JVM is started, which would wait for minutes for a Kafka that is not there.

    Raises:
        ConfigurationError: there is no such topic.
        TransportError: Kafka cannot be reached, or refuses.
    """
    from lmerge_service.spark.io.connection import kafka_section
    from lmerge_service.spark.io.elements import existing_offsets

    if existing_offsets(kafka, topic) is None:
        address = kafka_section(kafka).bootstrap
        raise ConfigurationError(f"kafka:{topic}: there is no such topic at {address}")


def stored_stream(
    place: str, bootstrap: str | None, kafka_config: Path | None
) -> "tuple[Source, bool]":
    """Where a stream is, as Spark's sources take it, and whether that is Kafka.

    Raises:
        ConfigurationError: there is no such file or topic, or no name of a topic.
        TransportError: Kafka cannot be reached, or refuses.
    """
    from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics

    if (topic := topic_of(place)) is not None:
        kafka = KafkaOptions(bootstrap, kafka_config).place()
        require_topic(kafka, topic)
        return ReadTopics(kafka, topic), True
    if not place or not Path(place).exists():
        raise ConfigurationError(f"there is no file or folder {label(place)!r} (kafka:TOPIC?)")
    if is_parquet(place):
        return ParquetFiles(place), False
    if Path(place).is_dir():
        raise ConfigurationError(
            f"there is no Parquet in the folder {label(place)} (lines are taken from one file)"
        )
    check_files([place])
    return JsonFiles(place), False


def _watch(spark: Any, doing: str, ended: Event) -> None:
    from py4j.protocol import Py4JError
    from rich.progress import BarColumn

    tracker = spark.sparkContext.statusTracker()
    with (
        suppress(Py4JError, OSError),  # the JVM is gone: the job's waiter gets an error, too
        bars(BarColumn(bar_width=20)) as progress,
    ):
        bar = progress.add_task(doing, total=None)
        while not ended.wait(_POLL_SECONDS):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            total = sum(stage.numTasks for stage in known)
            done = sum(stage.numCompletedTasks for stage in known)
            progress.update(bar, total=total or None, completed=done)
