"""An audit from end to end: sources in, a report out.

Theory
    One more pass finds, for each of the few differences that are listed, the last element of each
    stream about it: the records to begin with when asking why.

Cost
    What `judging` takes, and a pass with payloads for the places of differences, if there are any.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.audit.counting import progress_of
from lmerge_service.spark.audit.findings import AuditFindings, AuditReport
from lmerge_service.spark.audit.freshness import freshness_of
from lmerge_service.spark.audit.judging import Held, Terms, judged
from lmerge_service.spark.audit.streams import Given, side_by_side
from lmerge_service.spark.errors import spark_errors
from lmerge_service.spark.io.places import Source

__all__ = ("audit",)

_ANYTHING: Final = Rule()


def audit(
    spark: SparkSession,
    sources: Sequence[tuple[str, Source]],
    *,
    keyed: bool = False,
    clipped: bool = False,
    most: int = 10,
    rule: Rule = _ANYTHING,
    notify: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Audits streams, each with what it is called; freshness is the first one's.

    `keyed`: (payload, vs) is a key (R3), else streams are multisets (R4). `clipped`: what is final
    in all of them is compared, else what they hold now. `most`: how many differences are listed.
    `notify` is called with each step that begins.

    Raises:
        ConfigurationError: there is no such topic or file, or what it holds is not one stream.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: a file is damaged, or a row of Parquet is no element.
    """
    started = time.perf_counter()
    notify("opening the streams")
    with side_by_side(spark, sources, rule) as streams, spark_errors("auditing"):
        rows = _together(each.numbered(n) for n, each in enumerate(streams))
        scan = _together(each.scanned(n, rule) for n, each in enumerate(streams))
        notify("counting")
        count = sum(each.rows.count() if each.count is None else each.count for each in streams)
        widths = {n: each.width for n, each in enumerate(streams) if each.width is not None}
        since = max(each.beginning.since for each in streams)
        held = {
            n: Held(each.beginning.held[0].incarnation, each.beginning.live, each.beginning.points)
            for n, each in enumerate(streams)
            if each.beginning.held
        }
        terms = Terms(keyed, clipped, most, widths, since, held)
        with judged(rows, len(streams), terms, scan=scan, count=count, notify=notify) as result:
            findings = result.findings[()]
            notify("looking where the differences come from")
            last_places = _last_places(result.rows, streams, findings)
            notify("measuring freshness")
            freshness = freshness_of(result.delays) if result.timed else None
            progress = progress_of(result.slices, len(streams), wider=result.wider)
    return AuditReport(
        names=[each.name for each in streams],
        findings=findings,
        fault_places=[streams[f.stream].where(f.partition, f.place) for f in findings.faults],
        last_places=last_places,
        freshness=freshness,
        progress=progress,
        seconds=time.perf_counter() - started,
    )


def _together(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _last_places(
    rows: DataFrame, streams: Sequence[Given], findings: AuditFindings
) -> dict[tuple[Hashable, int], list[list[str]]]:
    """For each difference and stream, the place of the last element in each partition."""
    found: dict[tuple[Hashable, int], list[list[str]]] = {
        each[:2]: [[] for _ in streams] for each in findings.differences
    }
    if not found:
        return found
    keys = [(bytes(payload).decode(), vs) for payload, vs in found]  # type: ignore[call-overload]
    different = rows.sparkSession.createDataFrame(keys, "payload string, vs long")
    about = rows.where(F.col("op") != "stable").join(F.broadcast(different), ["payload", "vs"])
    last = about.groupBy("payload", "vs", "stream", "partition").agg(F.max("place").alias("place"))
    for row in last.orderBy("stream", "partition").collect():
        where = streams[row.stream].where(row.partition, row.place)
        found[row.payload.encode(), row.vs][row.stream].append(where)
    return found
