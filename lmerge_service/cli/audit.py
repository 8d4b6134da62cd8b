"""`lmerge audit`: do streams, in files or topics, mean the same?"""

from pathlib import Path
from typing import Literal

import typer

from lmerge_service.cli import audit_shown
from lmerge_service.cli.jobs import Memory
from lmerge_service.cli.options import (
    EqualityOptions,
    Json,
    KafkaOptions,
    argument,
    flag,
    option,
    topic_of,
)
from lmerge_service.cli.streams import check_files, is_parquet, label, reading, reading_batches
from lmerge_service.cli.words import report
from lmerge_service.config.engines import engine_setting
from lmerge_service.core.engine import chosen_to_decode
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.ndjson import numbered
from lmerge_service.offline.audit import Audited, audit_elements, audit_topic, compare

__all__ = ("audit",)

_WHAT = "An element file, - for stdin, or kafka:TOPIC; for Spark also a folder or Parquet."


def audit(
    left: str = argument("X", _WHAT),
    others: list[str] = argument("Y", "What X is compared with.", default=[]),
    most: int = option("N", "Name so many differences at the most.", min=1, default=10),
    clip: bool = flag(
        "Compare what is final in all streams: events that began before the lowest of "
        "their stable points, ends cut there.",
        "--clip",
    ),
    table: bool = flag(
        "Compare X, a merge's output, with its table, the topic X.table: rows, and the offsets in "
        "their headers.",
        "--table",
    ),
    keep: str | None = option(
        "DURATION",
        "With --table: also events that have been final for less than this, as 7d, must be there.",
        default=None,
    ),
    engine: Literal["python", "spark"] = flag(
        "What reads: one process, or Spark, for streams of any size.", default="python"
    ),
    case: Literal["R3", "R4"] = flag(
        "R4: streams are multisets of events. R3 (Spark): payload and vs are a key, and "
        "an event that is inserted again takes the later end.",
        default="R4",
    ),
    html: Path | None = option(
        "FILE", "Write the report as a page too, with pictures (Spark).", default=None
    ),
    memory: Memory = "2g",
    json: Json = False,
    *,
    kafka: KafkaOptions,
    equality: EqualityOptions,
) -> None:
    """Check whether streams mean the same: exit 0 if they do, 1 if not.

    They do when the same events are left once all their elements are applied. Streams that have
    not ended are compared as they stand, and named; with --clip, as far as all are final.

    First each is checked by itself: an element that touches what an earlier stable of the same
    stream made final, or an event that is not there, ends the audit with exit 2 and its place.

    With --table an output is compared with its table topic instead, at whatever moment it is.

    All replicas of an output are audited at once: `lmerge audit kafka:merged kafka:a kafka:b`.

    Example: `lmerge audit merged.ndjson jan/logical.ndjson`
    """
    sources, rule = [left, *others], equality.rule
    if table:
        if others or clip or engine == "spark" or html is not None:
            raise ConfigurationError("--table compares kafka:OUTPUT with its table, by itself")
        raise typer.Exit(_table(left, keep, rule, kafka, most, as_json=json))
    if not others:
        raise ConfigurationError("nothing to compare X with: name Y, or give --table")
    if keep is not None:
        raise ConfigurationError("--keep needs --table")
    files = [each for each in sources if topic_of(each) is None]
    if engine == "spark":
        from lmerge_service.cli.audit_spark import SparkAudit

        by_spark = SparkAudit(sources, case == "R3", clip, most, memory, html, kafka, rule)
        raise typer.Exit(by_spark.run(as_json=json))
    for name, given in (("--case R3", case == "R3"), ("--html", html is not None)):
        if given:
            raise ConfigurationError(f"{name} needs --engine spark")
    for path in files:
        if is_parquet(path):
            raise ConfigurationError(f"{label(path)} is Parquet, which --engine spark reads")
    check_files(files)
    verdict = compare(*(_audited(each, kafka, rule) for each in sources), clipped=clip)
    names = [each.name for each in verdict.streams]
    lines = audit_shown.lines(names, verdict, most)
    report(audit_shown.document(names, verdict, most), *lines, as_json=json)
    for each in verdict.streams:
        if each.contradicted is not None:
            typer.echo(f"warning: {each.name}: {each.contradicted}", err=True)
    raise typer.Exit(0 if verdict.equivalent else 1)


def _table(
    source: str, keep: str | None, rule: Rule, kafka: KafkaOptions, most: int, *, as_json: bool
) -> int:
    """The exit code."""
    import asyncio
    import time

    from lmerge_service.config.durations import seconds_of
    from lmerge_service.offline.table_audit import audit_table

    if (topic := topic_of(source)) is None:
        raise ConfigurationError(f"{source}: --table needs the output's topic, as kafka:OUTPUT")
    try:
        seconds = None if keep is None else seconds_of(keep)
    except ValueError as error:
        raise ConfigurationError(f"--keep: {error}") from None
    now = time.time_ns() // 1_000_000
    audit = audit_table(kafka.connection(), topic, rule.decoder(), keep=seconds, now=now)
    verdict = asyncio.run(audit)
    lines = audit_shown.table_lines(verdict, most)
    report(audit_shown.table_document(verdict, most), *lines, as_json=as_json)
    return 0 if verdict.matches else 1


def _audited(source: str, kafka: KafkaOptions, rule: Rule) -> Audited:
    if (topic := topic_of(source)) is not None:
        import asyncio

        return asyncio.run(audit_topic(kafka.connection(), topic, rule.decoder()))
    if chosen_to_decode(engine_setting("auto")).is_native:
        with reading_batches([source], rule.decoder(native=True)) as (batches,):
            return audit_elements(label(source), numbered(batches))
    with reading([source], rule=rule) as (stream,):
        return audit_elements(label(source), stream)
