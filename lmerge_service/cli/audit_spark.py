"""`lmerge audit --engine spark`: the same audit by Spark, with a more detailed report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmerge_service.cli.audit_shown import document, stream_line, verdict_lines
from lmerge_service.cli.jobs import require_topic, spark_for
from lmerge_service.cli.options import TOPIC, KafkaOptions
from lmerge_service.cli.progress import bars, is_shown
from lmerge_service.cli.streams import check_files, is_parquet, label
from lmerge_service.cli.words import fields_of, payload_json, payload_text, report, shortened
from lmerge_service.errors import ConfigurationError, IllegalStreamError
from lmerge_service.formats.bulk import Rule
from lmerge_service.page import check_page, write_page

if TYPE_CHECKING:
    from lmerge_service.config.topology import Kafka
    from lmerge_service.spark.audit.findings import AuditReport
    from lmerge_service.spark.io.places import Source

__all__ = ("SparkAudit",)

_QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class SparkAudit:
    """An audit by Spark, as the command line asks for it."""

    sources: Sequence[str]
    keyed: bool
    clipped: bool
    most: int
    memory: str
    html: Path | None
    kafka: KafkaOptions
    rule: Rule

    def run(self, *, as_json: bool) -> int:
        """The exit code, after the report.

        Raises:
            IllegalStreamError: a line for each partition that is not legal, after the report.
        """
        if self.html is not None:
            check_page(self.html)
        found = self._report()
        if self.html is not None:
            from lmerge_service.spark.audit.page import page

            write_page(page(found), self.html)
        report(_document(found, self.most), *_lines(found, self.most), as_json=as_json)
        if not found.findings.legal:
            raise IllegalStreamError("\n".join(_fault_lines(found)))
        return 0 if found.findings.equivalent else 1

    def _report(self) -> "AuditReport":
        from lmerge_service.spark.audit.report import audit

        in_kafka = any(each.startswith(TOPIC) for each in self.sources)
        kafka = self.kafka.place() if in_kafka else None
        sources = [(label(each), _source(each, kafka)) for each in self.sources]
        with (
            spark_for("lmerge audit", driver_memory=self.memory, kafka=in_kafka) as spark,
            _progress() as notify,
        ):
            return audit(
                spark,
                sources,
                keyed=self.keyed,
                clipped=self.clipped,
                most=self.most,
                rule=self.rule,
                notify=notify,
            )


def _source(source: str, kafka: "Kafka | str | None") -> "Source":
    from lmerge_service.spark.io.places import JsonFiles, ParquetFiles, ReadTopics

    if kafka is not None and source.startswith(TOPIC):
        topic = source.removeprefix(TOPIC)
        require_topic(kafka, topic)
        return ReadTopics(kafka, topic)
    if source == "-":
        raise ConfigurationError("standard input is for --engine python: Spark reads files")
    if is_parquet(source):
        return ParquetFiles(source)
    if Path(source).is_dir():
        _refuse_empty(source)
    elif ":/" not in source:
        check_files([source])
    return JsonFiles(source)


def _refuse_empty(folder: str) -> None:
    """Nothing is equivalent to nothing, which would be a verdict about a name that is wrong."""
    if not any(each.is_file() for each in Path(folder).rglob("[!._]*")):
        raise ConfigurationError(f"there is no file in the folder {label(folder)}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Reports progress on standard error if that is a terminal."""
    if not is_shown():
        yield lambda _: None
        return
    from rich.progress import SpinnerColumn

    with bars(SpinnerColumn()) as progress:
        task = progress.add_task("opening the streams", total=None)
        yield lambda what: progress.update(task, description=what)


# For people


def _lines(report: "AuditReport", most: int) -> Iterator[str]:
    found = report.findings
    illegal = {fault.stream for fault in found.faults}
    for n, (name, each) in enumerate(zip(report.names, found.streams, strict=True)):
        yield stream_line(name, each, "NOT legal" if n in illegal else "legal")
        if each.held:
            yield f"  it begins with {each.held:,} live events of a snapshot"
        if each.doubled:
            yield f"  {each.doubled:,} of its inserts are of events that it held already"
        if each.left_out:
            yield f"  {each.left_out:,} records of older incarnations are left out"
    yield from _chattiness(report)
    yield from _freshness(report)
    if not found.legal:
        yield "not compared: what is not legal means nothing"
        return
    yield from verdict_lines(report.names, found, most)
    for unlike in found.differences[:most]:
        payload = shortened(payload_text(unlike.payload))
        for name, places in zip(report.names, report.last_places[unlike[:2]], strict=True):
            if places:
                where = ", ".join(places)
                yield f"  {payload} vs {unlike.vs} was last published by {name} in {where}"
    elements = sum(each.elements for each in found.streams)
    yield f"{elements:,} elements in {report.seconds:,.1f} s"


def _chattiness(report: "AuditReport") -> Iterator[str]:
    """What went into a merge and what came out, if the first stream is its output."""
    output, *replicas = report.findings.streams
    parts = []
    for what in ("inserts", "adjusts", "removals", "stables"):
        into = sum(getattr(each, what) for each in replicas)
        parts.append(f"{getattr(output, what):,} {what} of {into:,}")
    yield f"{report.names[0]} beside the others in total: {', '.join(parts)}"


def _freshness(report: "AuditReport") -> Iterator[str]:
    if (fresh := report.freshness) is None:
        return
    delays = [f"{'at most' if q == 1 else f'{q:.0%}'} {fresh.quantile(q):,} ms" for q in _QUANTILES]
    yield f"{report.names[0]} had {fresh.events:,} events later than the first: {', '.join(delays)}"


def _fault_lines(report: "AuditReport") -> Iterator[str]:
    for fault, place in zip(report.findings.faults, report.fault_places, strict=True):
        yield f"{report.names[fault.stream]}: {place}: {fault.why}"


# For programs


def _document(report: "AuditReport", most: int) -> dict[str, Any]:
    found = report.findings
    report_document = document(report.names, found, most)
    report_document["legal"] = found.legal
    report_document["equivalent"] = found.equivalent if found.legal else None
    for stream, each in zip(report_document["streams"], found.streams, strict=True):
        stream.update(fields_of(each, "removals", "doubled", "refused", "left_out", "held"))
    report_document["faults"] = [
        {
            "stream": fault.stream,
            "where": place,
            "why": fault.why,
            "payload": None if fault.payload is None else payload_json(fault.payload.encode()),
        }
        for fault, place in zip(found.faults, report.fault_places, strict=True)
    ]
    for difference, unlike in zip(report_document["differences"], found.differences, strict=False):
        difference["where"] = report.last_places[unlike[:2]]
    if (fresh := report.freshness) is not None:
        quantiles = {f"p{q * 100:.0f}": fresh.quantile(q) for q in _QUANTILES}
        report_document["freshness_ms"] = fields_of(fresh, "events", "alone") | quantiles
    report_document["seconds"] = round(report.seconds, 3)
    return report_document
