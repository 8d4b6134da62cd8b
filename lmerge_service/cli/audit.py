"""`lmerge audit`: do streams, in files or topics, mean the same?"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lmerge_service.cli.audit_shown import document, show
from lmerge_service.cli.jobs import Memory
from lmerge_service.cli.options import TOPIC, EqualityOptions, Json, KafkaOptions, check_topic
from lmerge_service.cli.streams import check_files, is_parquet, label, reading
from lmerge_service.cli.words import print_json
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.offline.audit import Audited, audit_elements, audit_topic, compare

__all__ = ("audit",)

_WHAT = "An element file, - for stdin, or kafka:TOPIC; for Spark also a folder or Parquet."


class _Engine(StrEnum):
    PYTHON = "python"
    SPARK = "spark"


class _Rule(StrEnum):
    R3 = "R3"
    R4 = "R4"


def audit(
    left: Annotated[str, typer.Argument(metavar="X", help=_WHAT)],
    others: Annotated[list[str], typer.Argument(metavar="Y", help="What X is compared with.")],
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Name so many differences at the most.")
    ] = 10,
    clip: Annotated[
        bool,
        typer.Option(
            "--clip",
            help="Compare what is final in all streams: events that began before the lowest of "
            "their stable points, ends cut there.",
        ),
    ] = False,
    engine: Annotated[
        _Engine,
        typer.Option(help="What reads: one process, or Spark, for streams of any size."),
    ] = _Engine.PYTHON,
    case: Annotated[
        _Rule,
        typer.Option(
            help="R4: streams are multisets of events. R3 (Spark): payload and vs are a key, and "
            "an event that is inserted again takes the later end."
        ),
    ] = _Rule.R4,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as a page too, with pictures (Spark)."),
    ] = None,
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

    All replicas of an output are audited at once: `lmerge audit kafka:merged kafka:a kafka:b`.

    Example: `lmerge audit merged.ndjson jan/logical.ndjson`
    """
    sources = [left, *others]
    for source in sources:
        if source.startswith(TOPIC):
            check_topic(source.removeprefix(TOPIC))
    if engine is _Engine.SPARK:
        from lmerge_service.cli.audit_spark import SparkAudit

        keyed, rule = case is _Rule.R3, equality.rule
        audited = SparkAudit(sources, keyed, clip, most, memory, html, kafka, rule)
        raise typer.Exit(audited.run(as_json=json))
    for name, given in (("--case R3", case is _Rule.R3), ("--html", html is not None)):
        if given:
            raise ConfigurationError(f"{name} needs --engine spark")
    files = [each for each in sources if not each.startswith(TOPIC)]
    for path in files:
        if is_parquet(path):
            raise ConfigurationError(f"{label(path)} is Parquet, which --engine spark reads")
    check_files(files)
    rule = equality.rule
    verdict = compare(*(_audited(each, kafka, rule) for each in sources), clipped=clip)
    names = [each.name for each in verdict.streams]
    if json:
        print_json(document(names, verdict, most))
    else:
        show(names, verdict, most)
    for each in verdict.streams:
        if each.contradicted is not None:
            typer.echo(f"warning: {each.name}: {each.contradicted}", err=True)
    raise typer.Exit(0 if verdict.equivalent else 1)


def _audited(source: str, kafka: KafkaOptions, rule: Rule) -> Audited:
    if source.startswith(TOPIC):
        import asyncio

        topic = source.removeprefix(TOPIC)
        return asyncio.run(audit_topic(kafka.connection(), topic, rule.decoder()))
    with reading([source], rule=rule) as (stream,):
        return audit_elements(label(source), stream)
