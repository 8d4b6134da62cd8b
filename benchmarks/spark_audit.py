"""The audit at scale: two replicas of one stream, in Parquet and in Kafka, elements a second.

Every event is inserted with a provisional end and revised (payloads of 120 bytes, two elements an
event, a stable after every hundred); the second replica guesses other ends and has the events of
each hundred in reverse order. They are legal and equivalent, which a run must find. A rate counts
the elements of both, and everything from opening the streams to the report. Beside it, as in
`spark`, is the processor time that it took.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.spark import busy_seconds
from lmerge_service.local.broker import LocalBroker

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
_PARTITIONS = 4
_BEGIN = 1_700_000_000_000


def run(runs: int, count: int, report: Report, *, memory: str = "2g", kafka: bool = True) -> None:
    """Audits two replicas of `count` elements each from Parquet, and of half as many from Kafka;
    each once more before, to warm up, but with no `runs`, when that is what is reported."""
    from lmerge_service.spark.io.elements import write_elements
    from lmerge_service.spark.io.places import ParquetFiles, ReadTopics, WrittenTopic
    from lmerge_service.spark.session import spark_session

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalBroker(Path(folder) / "kafka") as broker,
        spark_session("benchmark", master="local[2]", driver_memory=memory) as spark,
    ):
        files: list[tuple[str, Any]] = []
        topics: list[tuple[str, Any]] = []
        for name, second in (("a", False), ("b", True)):
            files.append((name, ParquetFiles(str(Path(folder) / name))))
            write_elements(_replica(spark, count, second=second), files[-1][1], order=None)
            if not kafka:
                continue
            topics.append((f"kafka:{name}", ReadTopics(broker.bootstrap, name)))
            sink = WrittenTopic(broker.bootstrap, name, partitions=_PARTITIONS)
            write_elements(_replica(spark, count // 2, second=second), sink, order=["offset"])
        _audits(spark, "audit of Parquet", files, runs, report)
        if kafka:
            _audits(spark, "audit of topics", topics, runs, report)


def _audits(spark: Any, name: str, sources: Sequence[Any], runs: int, report: Report) -> None:
    from lmerge_service.spark.audit.report import audit

    rates, spent = [], []
    for _ in range(runs + 1):
        before = busy_seconds()
        found = audit(spark, sources)
        assert found.findings.equivalent, found.findings
        elements = sum(each.elements for each in found.findings.streams)
        rates.append(elements / found.seconds / 1e3)
        spent.append((busy_seconds() - before) / elements * 1e6)
    report(name, "k/s", rates[1:] or rates)
    report(f"{name}: processors", "µs", spent[1:] or spent)


def _replica(spark: Any, count: int, *, second: bool) -> Any:
    """`count` elements, a hundred of which are 49 events with both ends, one event, a stable."""
    from pyspark.sql import functions as F  # noqa: N812

    event, place = F.col("id").bitwiseAND(F.lit(-2)) / 2, F.col("id") % 100
    event, vs = event.cast("long"), F.lit(_BEGIN) + event.cast("long") * 10
    alone, stable, revises = place == 98, place == 99, (place % 2 == 1) & (place < 98)
    guess = vs + (70_000 if second else 60_000)
    backwards = F.col("id") - place + (48 - F.floor(place / 2)) * 2 + place % 2
    text = '{"arr_delay":11,"carrier":"UA","dep_delay":2,"dest":"IAH","distance":1400,"flight":"UA'
    payload = F.concat(F.lit(text), event, F.lit('","origin":"EWR","tail":"N14228"}'))
    return spark.range(count, numPartitions=_PARTITIONS).select(
        F.lit("made").alias("source"),
        F.lit(0).alias("partition"),
        F.when(place < 98, backwards if second else F.col("id"))
        .otherwise(F.col("id"))
        .alias("offset"),
        F.when(stable, "stable").when(revises, "adjust").otherwise("insert").alias("op"),
        F.when(~stable, payload).alias("payload"),
        F.when(~stable, vs).alias("vs"),
        F.when(revises, guess).alias("vold"),
        F.when(alone | revises, vs + 50_000).when(~stable, guess).alias("ve"),
        F.when(stable, vs).alias("vc"),
    )
