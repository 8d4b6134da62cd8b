"""`lmerge merge`, `lmerge audit` and `lmerge publish`: whole streams, in files and topics."""

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lmerge_service.cli.options import Bootstrap, Json, reading
from lmerge_service.core import Case
from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.publish import publish as publish_elements
from lmerge_service.offline.audit import Audited, Verdict, audit_elements, audit_topic, compare
from lmerge_service.offline.merge import MergeReport, interleaving, merge_streams
from lmerge_service.tdb import Difference

__all__ = ("audit", "merge", "publish")

_TOPIC = "kafka:"


def merge(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Element files (ndjson); - is stdin.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write; - is stdout.")],
    case: Annotated[Case, typer.Option(help="The restriction that the inputs obey.")] = Case.R3,
    order: Annotated[
        str,
        typer.Option(
            "--interleave", help="round-robin, random:SEED or sequential: who speaks when."
        ),
    ] = "round-robin",
    stats: Annotated[bool, typer.Option("--stats", help="Show what was read and written.")] = False,
    json: Json = False,
) -> None:
    """Merge element files into one equivalent stream, in memory bounded by what is unfrozen.

    Breaches of the inputs are shown on standard error; the output is a legal stream all the same.

    Example: `lmerge merge a.ndjson b.ndjson -o merged.ndjson --stats`
    """
    if inputs.count("-") > 1:
        raise ConfigurationError("standard input can be read only once")
    if output != "-" and output in inputs:
        raise ConfigurationError(f"{output} is both read and written")
    started = time.perf_counter()
    with reading(inputs) as wrap, ElementWriter(output) as writer:
        streams = [wrap(path, read_elements(path, WireDecoder())) for path in inputs]
        report = merge_streams(inputs, streams, writer.write, case=case, order=interleaving(order))
    seconds = time.perf_counter() - started
    _warn_of_breaches(report)
    if json:
        _say_json(
            {
                "case": report.case,
                "inputs": report.inputs,
                "output": report.output,
                "breaches": report.breaches_total,
                "seconds": round(seconds, 3),
            },
            to_stderr=output == "-",
        )
    elif stats:
        _show_merge(report, seconds)


def _warn_of_breaches(report: MergeReport) -> None:
    for where, breach in report.breaches[:10]:
        kept = "" if breach.kept is None else f"; kept {breach.kept.payload!r} {breach.kept[1:]}"
        typer.echo(f"warning: {where}: {breach.kind.value}: {breach.element}{kept}", err=True)
    if report.breaches_total > 10:
        typer.echo(f"warning: {report.breaches_total} breaches in all", err=True)


def _show_merge(report: MergeReport, seconds: float) -> None:
    table = Table("", "inserts", "adjusts", "stables", "first", "late", "breaches")
    for column in table.columns[1:]:
        column.justify = "right"
    elements = 0
    for each in report.inputs:
        elements += each["inserts"] + each["adjusts"] + each["stables"]
        table.add_row(
            each["name"],
            *(f"{each[key]:,}" for key in ("inserts", "adjusts", "stables")),
            *(f"{each[key]:,}" for key in ("delivered_first", "late")),
            f"{sum(each['breaches'].values()):,}",
        )
    table.add_section()
    out = report.output
    table.add_row("output", *(f"{out[key]:,}" for key in ("inserts", "adjusts", "stables")))
    console = Console(stderr=True)
    console.print(table)
    console.print(f"{elements:,} elements in {seconds:.2f} s: {elements / seconds:,.0f} a second")


def audit(
    left: Annotated[str, typer.Argument(metavar="X", help="A file, -, or kafka:TOPIC.")],
    right: Annotated[str, typer.Argument(metavar="Y", help="A file, -, or kafka:TOPIC.")],
    bootstrap: Bootstrap = None,
    most: Annotated[int, typer.Option(min=1, help="How many differences to name.")] = 10,
    json: Json = False,
) -> None:
    """Tell whether two streams mean the same: exit 0 when equivalent, 1 when not.

    Each is first held to its own stables; exit 2, with file:line or topic, partition and offset,
    names the first element that is not legal where it stands.

    Example: `lmerge audit merged.ndjson kafka:flights.merged`
    """
    if left == right == "-":
        raise ConfigurationError("standard input can be read only once")
    verdict = compare(_audited(left, bootstrap), _audited(right, bootstrap))
    if json:
        _say_json(_verdict_document(verdict, most))
    else:
        _show_verdict(verdict, most)
    raise typer.Exit(0 if verdict.equivalent else 1)


def _audited(source: str, bootstrap: str | None) -> Audited:
    if source.startswith(_TOPIC):
        where = bootstrap or "127.0.0.1:9092"
        return asyncio.run(audit_topic(where, source.removeprefix(_TOPIC), WireDecoder()))
    with reading([source]) as wrap:
        return audit_elements(source, wrap(source, read_elements(source, WireDecoder())))


def _verdict_document(verdict: Verdict, most: int) -> dict[str, Any]:
    return {
        "equivalent": verdict.equivalent,
        "streams": [
            {
                "name": each.name,
                "events": len(each.tdb),
                "inserts": each.inserts,
                "adjusts": each.adjusts,
                "stables": each.stables,
                "stable": _point(each.tdb.stable),
                "complete": each.complete,
            }
            for each in (verdict.left, verdict.right)
        ],
        "differences_total": len(verdict.differences),
        "differences": [
            {
                "payload": _text(each),
                "vs": each.vs,
                "left": [_point(ve) for ve in each.left],
                "right": [_point(ve) for ve in each.right],
            }
            for each in verdict.differences[:most]
        ],
    }


def _show_verdict(verdict: Verdict, most: int) -> None:
    for each in (verdict.left, verdict.right):
        state = "complete" if each.complete else f"stable at {_point(each.tdb.stable)}"
        typer.echo(
            f"{each.name}: legal, {len(each.tdb):,} events by {each.inserts:,} inserts, "
            f"{each.adjusts:,} adjusts, {each.stables:,} stables; {state}"
        )
    if verdict.equivalent:
        typer.echo("equivalent")
        return
    typer.echo(f"NOT equivalent: they differ in {len(verdict.differences):,} events")
    for found in verdict.differences[:most]:
        typer.echo(
            f"  payload {_text(found)} vs {found.vs}: {verdict.left.name} has "
            f"{_ends(found.left)}, {verdict.right.name} {_ends(found.right)}"
        )


def _text(difference: Difference) -> str:
    payload = difference.payload
    return payload.decode() if isinstance(payload, bytes) else repr(payload)


def _ends(ends: tuple[int, ...]) -> str:
    return "ve " + ", ".join(str(_point(ve)) for ve in ends) if ends else "nothing"


def _point(time: int) -> int | str:
    return {INFINITY: "infinity", START: "-infinity"}.get(time, time)


def publish(
    source: Annotated[str, typer.Argument(metavar="FILE", help="An element file; - is stdin.")],
    topic: Annotated[str, typer.Argument(help="Made when it is missing.")],
    bootstrap: Bootstrap = None,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Elements a second; as fast as it goes if absent.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Of a topic made here.")] = 1,
    incarnation: Annotated[
        int, typer.Option(min=0, help="One higher after each restart that lost its memory.")
    ] = 0,
    joining_at: Annotated[
        int | None, typer.Option(help="The time from which this incarnation is correct.")
    ] = None,
) -> None:
    """Publish an element file as a replica's topic, at a steady rate.

    Example: `lmerge publish a.ndjson flights.a --rate 2000`
    """
    with reading([source]) as wrap:
        stream: Iterator[Element] = (
            element for _, element in wrap(source, read_elements(source, WireDecoder()))
        )
        sent = asyncio.run(
            publish_elements(
                bootstrap or "127.0.0.1:9092",
                topic,
                stream,
                rate=rate,
                partitions=partitions,
                incarnation=incarnation,
                joining_at=START if joining_at is None else joining_at,
            )
        )
    typer.echo(f"{sent:,} elements of {source} are in {topic}", err=True)


def _say_json(document: dict[str, Any], *, to_stderr: bool = False) -> None:
    typer.echo(msgspec.json.encode(document).decode(), err=to_stderr)
