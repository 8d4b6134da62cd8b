"""`lmerge merge`: element files into one equivalent element file."""

import time
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import typer

from lmerge_service.cli.options import EqualityOptions, Json
from lmerge_service.cli.streams import label, reading
from lmerge_service.cli.words import (
    BREACHES,
    finite,
    payload_json,
    payload_text,
    point,
    print_json,
    shortened,
)
from lmerge_service.core import Case, Policy
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.ndjson import ElementWriter
from lmerge_service.formats.wire import encode
from lmerge_service.offline.merge import Found, MergeReport, interleaving, merge_streams
from lmerge_service.service.tuning import quieten_garbage_collector

__all__ = ("merge",)

_SHOWN_BREACHES = 10


def merge(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="Element files, at least one; - is stdin."),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write; the file appears when all is done; - is stdout.",
        ),
    ],
    order: Annotated[
        str,
        typer.Option(
            "--interleave",
            metavar="ORDER",
            help="Whose element is next: round-robin (in turn), random:SEED, or sequential "
            "(one file after the other).",
        ),
    ] = "round-robin",
    case: Annotated[
        Case,
        typer.Option(
            metavar="CASE",
            help="What the inputs may do. R0, R1, R2: inserts in order of start (R0: no two with "
            "one start, R1: equal starts in the same order everywhere); R3: any order and "
            "revisions, but no two events with the same payload and start; R4: anything. "
            "`lmerge infer` finds out.",
        ),
    ] = Case.R3,
    insert: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Which events go out before a stable forces them: first, leader, half_frozen or "
            "quorum(n).",
        ),
    ] = "first",
    adjust: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Which revisions go out before a stable forces them: lazy (none), eager, leader.",
        ),
    ] = "lazy",
    stable: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="How far the output's stable point goes: max, lag(d) or quorum(k).",
        ),
    ] = "max",
    normalise: Annotated[
        bool,
        typer.Option(
            "--normalise",
            help="Bring each input to one form first: they need only agree at every "
            "instant, cut into whatever intervals.",
        ),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Show on stderr what was read and written; first: inserts before any other "
            "input's, late: about what was final already.",
        ),
    ] = False,
    json: Json = False,
    *,
    equality: EqualityOptions,
) -> None:
    """Merge element files into one that means the same as each of them.

    The inputs present the same events in different ways: in another order, with other provisional
    ends. A violation by one of them is a warning with file and line, and the output is a legal
    stream all the same. Memory depends on what may still change, not on the size of the files.

    An element file has one JSON object a line: an insert, adjust or stable, as described in
    docs/semantics.md.

    Example: `lmerge merge jan/a.ndjson jan/b.ndjson -o merged.ndjson --stats`
    """
    ordered = interleaving(order)
    policy = _policy(insert, adjust, stable)
    names = [label(path) for path in inputs]
    quieten_garbage_collector()
    started = time.perf_counter()
    abreast = order != "sequential"
    with (
        reading(inputs, output, rule=equality.rule, abreast=abreast) as streams,
        ElementWriter(output) as writer,
    ):
        report = merge_streams(
            names,
            streams,
            writer.write,
            case=case,
            policy=policy,
            order=ordered,
            normalise=normalise,
        )
    seconds = time.perf_counter() - started
    if json:
        _print_report(report, seconds, to_stderr=output == "-")
        return
    _warn(report)
    if stats:
        _show(report, seconds)


def _policy(insert: str, adjust: str, stable: str) -> Policy:
    try:
        return Policy(insert, adjust, stable)
    except ValueError as error:
        raise ConfigurationError(f"--{error}") from None


def _warn(report: MergeReport) -> None:
    for each in report.found[:_SHOWN_BREACHES]:
        typer.echo(f"warning: {each.where}: {_described(each)}", err=True)
    if report.breaches > _SHOWN_BREACHES:
        kinds = sum((Counter(each.breaches) for each in report.inputs), Counter[str]())
        counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        typer.echo(f"warning: {report.breaches:,} breaches in all: {counts}", err=True)


def _described(found: Found) -> str:
    breach = found.breach
    element = shortened(encode(breach.element).decode())
    text = f"{BREACHES[breach.kind]} ({breach.kind.value}): {element}"
    if breach.kept is None:
        return text
    payload, vs, ve = breach.kept
    return f"{text}; kept: {shortened(payload_text(payload))} [{vs}, {point(ve)})"


def _show(report: MergeReport, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("", overflow="fold")
    for heading in ("inserts", "adjusts", "stables", "first", "late", "breaches"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in report.inputs:
        counts = each.inserts, each.adjusts, each.stables, each.delivered_first, each.late
        breaches = sum(each.breaches.values())
        table.add_row(each.name, *(f"{count:,}" for count in (*counts, breaches)))
    table.add_section()
    out = report.output
    table.add_row("output", *(f"{count:,}" for count in (out.inserts, out.adjusts, out.stables)))
    console = Console(stderr=True, highlight=False)
    console.print(table)
    state = "complete" if out.complete else f"not ended, stable at {point(out.stable)}"
    rate = report.elements / seconds
    read = f"{report.elements:,} elements in {seconds:.2f} s"
    console.print(f"the output is {state}; {read}: {rate:,.0f} a second")


def _print_report(report: MergeReport, seconds: float, *, to_stderr: bool) -> None:
    document = {
        "case": report.case,
        "elements": report.elements,
        "seconds": round(seconds, 3),
        "inputs": report.inputs,
        "output": asdict(report.output) | {"stable": finite(report.output.stable)},
        "breaches": report.breaches,
        "first_breaches": [_document(each) for each in report.found],
    }
    print_json(document, err=to_stderr)


def _document(found: Found) -> dict[str, Any]:
    breach = found.breach
    document: dict[str, Any] = {
        "where": found.where,
        "kind": breach.kind,
        "element": msgspec.Raw(encode(breach.element)),
    }
    if breach.kept is not None:
        payload, vs, ve = breach.kept
        document["kept"] = {"payload": payload_json(payload), "vs": vs, "ve": finite(ve)}
    return document
