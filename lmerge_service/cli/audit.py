"""`lmerge audit`: do two streams, in files or topics, mean the same?"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmerge_service.cli.options import (
    Bootstrap,
    Json,
    KafkaConfig,
    Nfc,
    check_topic,
    connection,
    silence_kafka_client,
)
from lmerge_service.cli.streams import check_files, label, reading
from lmerge_service.cli.words import finite, payload_json, payload_text, point, say_json, shortened
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.offline.audit import Audited, Verdict, audit_elements, audit_topic, compare
from lmerge_service.tdb import Difference

if TYPE_CHECKING:
    from lmerge_service.kafka.client import Connection

__all__ = ("audit",)

_TOPIC = "kafka:"
_WHAT = "An element file, - for stdin, or kafka:TOPIC."


def audit(
    left: Annotated[str, typer.Argument(metavar="X", help=_WHAT)],
    right: Annotated[str, typer.Argument(metavar="Y", help=_WHAT)],
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Name so many differences at the most.")
    ] = 10,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    nfc: Nfc = False,
    json: Json = False,
) -> None:
    """Tell whether two streams mean the same: exit 0 if they do, 1 if not.

    They do when the same events are left once all their elements are applied. Streams that have
    not ended are compared as they stand, and named.

    First each is held to its own word: an element that touches what an earlier stable of the same
    stream made final, or an event that is not there, ends the audit with exit 2 and its place.

    Example: `lmerge audit merged.ndjson jan/logical.ndjson`
    """
    check_files([each for each in (left, right) if not each.startswith(_TOPIC)])
    kafka = partial(connection, bootstrap, kafka_config)
    verdict = compare(_audited(left, kafka, nfc), _audited(right, kafka, nfc))
    if json:
        say_json(_document(verdict, most))
    else:
        _show(verdict, most)
    raise typer.Exit(0 if verdict.equivalent else 1)


def _audited(source: str, kafka: "Callable[[], Connection]", nfc: bool) -> Audited:
    if source.startswith(_TOPIC):
        topic = source.removeprefix(_TOPIC)
        check_topic(topic)
        import asyncio

        silence_kafka_client()
        return asyncio.run(audit_topic(kafka(), topic, WireDecoder(nfc=nfc)))
    with reading([source], nfc=nfc) as (stream,):
        return audit_elements(label(source), stream)


def _show(verdict: Verdict, most: int) -> None:
    for each in (verdict.left, verdict.right):
        typer.echo(
            f"{each.name}: legal, {len(each.tdb):,} events by {each.inserts:,} inserts, "
            f"{each.adjusts:,} adjusts, {each.stables:,} stables; {_state(each)}"
        )
    if verdict.equivalent:
        typer.echo("equivalent")
    else:
        typer.echo(f"NOT equivalent: they differ in {len(verdict.differences):,} events")
    for found in verdict.differences[:most]:
        typer.echo(
            f"  payload {shortened(payload_text(found.payload))} vs {found.vs}: "
            f"{_ends(found.left)} in {verdict.left.name}, "
            f"{_ends(found.right)} in {verdict.right.name}"
        )
    if (more := len(verdict.differences) - most) > 0:
        typer.echo(f"  and {more:,} more (--most shows more)")
    match [each.name for each in verdict.unfinished]:
        case [name]:
            typer.echo(f"compared as they stand: {name} has not ended")
        case [_, _]:
            typer.echo("compared as they stand: neither has ended")


def _state(audited: Audited) -> str:
    return "complete" if audited.complete else f"not ended, stable at {point(audited.tdb.stable)}"


def _ends(ends: tuple[int, ...]) -> str:
    return "ve " + ", ".join(map(point, ends)) if ends else "no event"


def _document(verdict: Verdict, most: int) -> dict[str, Any]:
    return {
        "equivalent": verdict.equivalent,
        "streams": [
            {
                "name": each.name,
                "events": len(each.tdb),
                "inserts": each.inserts,
                "adjusts": each.adjusts,
                "stables": each.stables,
                "stable": finite(each.tdb.stable),
                "complete": each.complete,
            }
            for each in (verdict.left, verdict.right)
        ],
        "differences_total": len(verdict.differences),
        "differences": [_difference(each) for each in verdict.differences[:most]],
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {
        "payload": payload_json(found.payload),
        "vs": found.vs,
        "left": [finite(ve) for ve in found.left],
        "right": [finite(ve) for ve in found.right],
    }
