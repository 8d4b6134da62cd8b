"""`lmerge audit`: do streams, in files or topics, mean the same?"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmerge_service.cli.audit_shown import document, show
from lmerge_service.cli.jobs import Memory
from lmerge_service.cli.options import (
    TOPIC,
    Bootstrap,
    DropNulls,
    Json,
    KafkaConfig,
    Nfc,
    check_topic,
    connection,
    warnings_only,
)
from lmerge_service.cli.streams import check_files, is_parquet, label, reading
from lmerge_service.cli.words import print_json
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.offline.audit import Audited, audit_elements, audit_topic, compare

if TYPE_CHECKING:
    from lmerge_service.kafka.client import Connection

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
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    nfc: Nfc = False,
    drop_nulls: DropNulls = False,
    json: Json = False,
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
        from lmerge_service.cli.audit_spark import Asked, audit_with_spark

        asked = Asked(
            sources,
            case is _Rule.R3,
            clip,
            most,
            memory,
            html,
            bootstrap,
            kafka_config,
            nfc,
            drop_nulls,
        )
        raise typer.Exit(audit_with_spark(asked, as_json=json))
    _only_for_spark({"--case R3": case is _Rule.R3, "--html": html is not None})
    files = [each for each in sources if not each.startswith(TOPIC)]
    for path in files:
        if is_parquet(path):
            raise ConfigurationError(f"{label(path)} is Parquet, which --engine spark reads")
    check_files(files)
    kafka = partial(connection, bootstrap, kafka_config)
    rule = Rule(nfc=nfc, drop_nulls=drop_nulls)
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


def _only_for_spark(options: dict[str, bool]) -> None:
    for name, given in options.items():
        if given:
            raise ConfigurationError(f"{name} needs --engine spark")


def _audited(source: str, kafka: "Callable[[], Connection]", rule: Rule) -> Audited:
    if source.startswith(TOPIC):
        import asyncio

        warnings_only()
        topic = source.removeprefix(TOPIC)
        return asyncio.run(audit_topic(kafka(), topic, rule.decoder()))
    with reading([source], nfc=rule.nfc, drop_nulls=rule.drop_nulls) as (stream,):
        return audit_elements(label(source), stream)
