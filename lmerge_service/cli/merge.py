"""`lmerge merge`: element files into one equivalent element file."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import typer

from lmerge_service.cli.options import EqualityOptions, Json, argument, flag, option
from lmerge_service.cli.streams import label, reading, reading_batches
from lmerge_service.cli.words import (
    BREACHES,
    fields_of,
    finite,
    payload_json,
    payload_text,
    point,
    print_json,
    shortened,
)
from lmerge_service.config.engines import engine_setting
from lmerge_service.core import Case, Policy
from lmerge_service.core.engine import Engine, EngineChoice, chosen
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.ndjson import ElementWriter
from lmerge_service.formats.wire import encode
from lmerge_service.merge.tuning import quieten_garbage_collector
from lmerge_service.offline.merge import (
    Interleaving,
    LocatedBreach,
    MergeReport,
    interleaving,
    merge_batches,
    merge_streams,
)

__all__ = ("merge",)

_SHOWN_BREACHES = 10
_KINDS = ("inserts", "adjusts", "stables")


def merge(
    inputs: list[str] = argument("INPUT", "Element files, at least one; - is stdin."),
    output: str = option(
        "FILE", "Where to write; the file appears when all is done; - is stdout.", "--output", "-o"
    ),
    order: str = option(
        "ORDER",
        "Whose element is next: round-robin (in turn), random:SEED, or sequential "
        "(one file after the other).",
        "--interleave",
        default="round-robin",
    ),
    case: Case = option(
        "CASE",
        "What the inputs may do. R0, R1, R2: inserts in order of start (R0: no two with "
        "one start, R1: equal starts in the same order everywhere); R3: any order and "
        "revisions, but no two events with the same payload and start; R4: anything. "
        "`lmerge infer` finds out.",
        default=Case.R3,
    ),
    insert: str = option(
        "POLICY",
        "Which events go out before a stable forces them: first, leader, half_frozen or quorum(n).",
        default="first",
    ),
    adjust: str = option(
        "POLICY",
        "Which revisions go out before a stable forces them: lazy (none), eager, leader.",
        default="lazy",
    ),
    stable: str = option(
        "POLICY", "How far the output's stable point goes: max, lag(d) or quorum(k).", default="max"
    ),
    normalise: bool = flag(
        "Bring each input to one form first: they need only agree at every "
        "instant, cut into whatever intervals.",
        "--normalise",
    ),
    stats: bool = flag(
        "Show on stderr what was read and written; first: inserts before any other "
        "input's, late: about what was final already.",
        "--stats",
    ),
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
    try:
        policy = Policy(insert, adjust, stable)
    except ValueError as error:
        raise ConfigurationError(f"--{error}") from None
    names = [label(path) for path in inputs]
    quieten_garbage_collector()
    started = time.perf_counter()
    engine, unusual = _engine(case, policy, normalise=normalise), 0
    if engine.is_native:
        report, unusual = _natively(inputs, output, equality.rule, policy, ordered)
    else:
        with (
            reading(inputs, output, rule=equality.rule, abreast=order != "sequential") as streams,
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
    run = _Run(time.perf_counter() - started, engine, unusual)
    if json:
        _print_report(report, run, to_stderr=output == "-")
        return
    _warn(report)
    if stats:
        _show(report, run)


@dataclass(frozen=True, slots=True)
class _Run:
    """How a merge went."""

    seconds: float
    engine: EngineChoice
    unusual: int
    """Lines that the native engine has left to Python."""


def _engine(case: Case, policy: Policy, *, normalise: bool) -> EngineChoice:
    engine = chosen(engine_setting("auto"), case, policy)
    if engine.is_native and normalise:
        return EngineChoice(Engine.PYTHON, "the engine does not normalise")
    return engine


def _natively(
    inputs: list[str], output: str, rule: Rule, policy: Policy, order: Interleaving
) -> tuple[MergeReport, int]:
    """What was merged, and of how many lines Python had to make the elements."""
    decoder = rule.decoder(native=True)
    with (
        reading_batches(inputs, decoder, output) as streams,
        ElementWriter(output) as writer,
    ):
        names = [label(path) for path in inputs]
        report = merge_batches(names, streams, writer.write_batch, policy=policy, order=order)
    return report, decoder.unusual


def _warn(report: MergeReport) -> None:
    for each in report.found[:_SHOWN_BREACHES]:
        typer.echo(f"warning: {each.where}: {_described(each)}", err=True)
    if report.breaches > _SHOWN_BREACHES:
        kinds = sum((Counter(each.breaches) for each in report.inputs), Counter[str]())
        counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        typer.echo(f"warning: {report.breaches:,} breaches in all: {counts}", err=True)


def _described(found: LocatedBreach) -> str:
    breach = found.breach
    element = shortened(encode(breach.element).decode())
    text = f"{BREACHES[breach.kind]} ({breach.kind.value}): {element}"
    if breach.kept is None:
        return text
    payload, vs, ve = breach.kept
    return f"{text}; kept: {shortened(payload_text(payload))} [{vs}, {point(ve)})"


def _show(report: MergeReport, run: _Run) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("", overflow="fold")
    for heading in (*_KINDS, "first", "late", "breaches"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in report.inputs:
        counts = [getattr(each, name) for name in (*_KINDS, "delivered_first", "late")]
        counts.append(sum(each.breaches.values()))
        table.add_row(each.name, *(f"{count:,}" for count in counts))
    table.add_section()
    out = report.output
    table.add_row("output", *(f"{getattr(out, name):,}" for name in _KINDS))
    console = Console(stderr=True, highlight=False)
    console.print(table)
    state = "complete" if out.complete else f"not ended, stable at {point(out.stable)}"
    rate = report.elements / run.seconds
    read = f"{report.elements:,} elements in {run.seconds:.2f} s"
    console.print(f"the output is {state}; {read}: {rate:,.0f} a second")
    left = f"; {run.unusual:,} lines were left to Python" if run.unusual else ""
    console.print(f"engine: {run.engine.engine}, as {run.engine.why}{left}")


def _print_report(report: MergeReport, run: _Run, *, to_stderr: bool) -> None:
    document = {
        **fields_of(report, "case", "elements", "inputs", "breaches"),
        "seconds": round(run.seconds, 3),
        "engine": {"name": run.engine.engine, "why": run.engine.why, "unusual": run.unusual},
        "output": asdict(report.output) | {"stable": finite(report.output.stable)},
        "first_breaches": [_document(each) for each in report.found],
    }
    print_json(document, err=to_stderr)


def _document(found: LocatedBreach) -> dict[str, Any]:
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
