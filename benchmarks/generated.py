"""Generating streams with Spark, and keeping one as a table: rates, sizes, time to an answer.

Streams are the paper's (disorder 0.2, StableFreq 0.01), without revisions and with one in three
events revised, on `local[2]`. The table is made of the revised stream, in steps of a million
records; then it is compacted, and asked before and after for what is true at a time in its middle.
Beside the rates stands what they took of the processors (`benchmarks.spark`), and the memory of all
processes at its highest, the JVM's heap being 1 GB.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import psutil

from benchmarks.spark import spent

__all__ = ("run",)

Report = Callable[[str, str, Sequence[float]], None]
_STEP: Final = 1_000_000


def run(events: int, report: Report) -> None:
    """Once each: `events` of 100 bytes, a fifth as many of a kilobyte, and a table of a fifth."""
    from lmerge_service.spark.generator.workload import Workload
    from lmerge_service.spark.session import spark_session
    from lmerge_service.workloads.presentation import Variation

    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session(
            "benchmark", master="local[2]", driver_memory="1g", kafka=False, delta=True
        ) as spark,
        _highest(report),
    ):
        workload = Workload(events=events, payload_bytes=100)
        plain = Variation(
            disorder=0.2,
            displacement=workload.duration,
            spread=workload.duration,
            stable_probability=0.01,
        )
        revised = replace(plain, provisional=0.3)
        fewer = Workload(events=events // 5, payload_bytes=100)
        large = Workload(events=events // 5, payload_bytes=1000)
        _generate(spark, fewer, plain, "warming up", Path(folder), report)
        _generate(spark, workload, plain, "100 bytes", Path(folder), report)
        _generate(spark, large, plain, "1,000 bytes", Path(folder), report)
        stream = _generate(spark, fewer, revised, "100 bytes, revised", Path(folder), report)
        _table(spark, stream, fewer, Path(folder), report)


def _generate(
    spark: Any, workload: Any, variation: Any, name: str, folder: Path, report: Report
) -> Any:
    from lmerge_service.spark.generator.job import generated
    from lmerge_service.spark.generator.slices import Presentation
    from lmerge_service.spark.io.elements import write_elements
    from lmerge_service.spark.io.places import ParquetFiles

    place = ParquetFiles(str(folder / name))

    def write() -> None:
        stream = generated(spark, Presentation(workload, variation))
        write_elements(stream, place, order=None)

    clock, busy = spent(write)
    count = spark.read.parquet(place.path).count()
    report(f"to Parquet, {name}", "k/s", [count / clock / 1e3])
    report(f"to Parquet, {name}: processors", "µs", [busy / count * 1e6])
    return place


def _table(spark: Any, stream: Any, workload: Any, folder: Path, report: Report) -> None:
    from lmerge_service.spark.table import compact, true_at, update_table
    from lmerge_service.spark.table.delta import existing
    from lmerge_service.spark.table.versions import HISTORY

    path = str(folder / "table")
    clock, busy = spent(lambda: update_table(spark, stream, path, step=_STEP))
    table = existing(path)
    records = table.records
    report("table: update", "k/s", [records / clock / 1e3])
    report("table: update: processors", "µs", [busy / records * 1e6])
    middle = workload.events * workload.max_gap // 4
    for when in ("before", "after"):
        clock, found = _timed(lambda: _answers(path, middle))
        report(f"table: an answer, {when} compaction", "ms", [clock * 1e3])
        clock, count = _timed(lambda: true_at(spark, path, middle).count())
        report(f"table: an answer by Spark, {when} compaction", "ms", [clock * 1e3])
        assert count == found > 0
        if when == "before":
            versions = table.size(HISTORY).versions
            clock, busy = spent(lambda: compact(spark, path, retain=0))
            report("table: compaction", "k versions/s", [versions / clock / 1e3])
            report("table: compaction: processors", "µs", [busy / versions * 1e6])


def _answers(path: str, valid: int) -> int:
    from lmerge_service.spark.table.read import answer

    return sum(batch.num_rows for batch in answer(path, valid)[1])


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    done = work()
    return time.perf_counter() - started, done


@contextmanager
def _highest(report: Report) -> Iterator[None]:
    """The most memory that our processes took, shared pages counted once for each."""
    ended, most = Event(), [0]

    def watch() -> None:
        while not ended.wait(0.5):
            total = 0
            for child in psutil.Process().children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            most[0] = max(most[0], total)

    watching = Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
    report("memory, all processes", "MB", [most[0] / 1e6])
