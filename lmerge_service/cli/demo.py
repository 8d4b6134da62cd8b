"""`lmerge demo`: the whole thing, shown and proved."""

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lmerge_service.cli.options import Json, address
from lmerge_service.errors import single_error
from lmerge_service.present.flights import MONTHS

if TYPE_CHECKING:
    from rich.console import Console

    from lmerge_service.demo.show import Result

__all__ = ("demo",)


def demo(
    year: Annotated[
        bool, typer.Option("--year", help="All 336,776 flights, not one month's 27,000.")
    ] = False,
    month: Annotated[
        int, typer.Option(min=1, max=12, metavar="N", help="Which month of 2013.")
    ] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Equal seeds give equal replicas.")] = 1,
    pace: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="In which the fastest replica publishes everything. "
            "[default: 12, or 80 with --year]",
        ),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            envvar="LMERGE_BOOTSTRAP",
            metavar="HOST:PORT",
            callback=address,
            help="Use this Kafka instead of starting one.",
        ),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Leave files and logs there.")
    ] = None,
    json: Json = False,
) -> None:
    """Merge three replicas of real flights through a real Kafka, kill two, prove the result.

    Starts a local Apache Kafka by itself (no Docker, no Java needed) and stops all that it
    started. Exit 0 when the merged stream is equivalent to the reference, 1 when not.
    """
    import asyncio
    import logging

    import structlog
    from rich.console import Console

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console(stderr=json)
    folder = keep or Path(tempfile.mkdtemp(prefix="lmerge-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    months: Sequence[int] = MONTHS if year else (month,)
    try:
        result = asyncio.run(
            _interruptible(
                folder,
                months=months,
                seed=seed,
                pace=pace or (80 if year else 12),
                bootstrap=bootstrap,
                console=console,
            )
        )
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if json:
        typer.echo(msgspec.json.encode(_document(result)).decode())
    else:
        _show(console, result)
    raise typer.Exit(0 if result.finding.good else 1)


async def _interruptible(folder: Path, **options: Any) -> "Result":
    """SIGTERM ends the play as Ctrl-C does, so that nothing it started outlives it."""
    import asyncio

    from lmerge_service.demo.show import play

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with single_error():
            return await play(folder, **options)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _show(console: "Console", result: "Result") -> None:
    from rich.table import Table

    finding, throughput = result.finding, result.throughput
    out, into = finding.output, finding.counts
    table = Table("", "in", "out", "bound", title="the merged stream", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("inserts", f"{into.inserts:,}", f"{out.inserts:,}", f"≤ {into.inserts:,}")
    bound = into.inserts + into.adjusts
    table.add_row("adjusts", f"{into.adjusts:,}", f"{out.adjusts:,}", f"≤ {bound:,}")
    table.add_row("stables", f"{into.stables:,}", f"{out.stables:,}", f"≤ {into.stables:,}")
    console.print(table)
    p50, p99 = finding.latency(0.5), finding.latency(0.99)
    if p50 is not None and p99 is not None:
        console.print(
            f"added latency, first replica's produce to read_committed consumer: "
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
            highlight=False,
        )
    console.print(
        f"throughput, Kafka to Kafka in transactions: {throughput.merge:,.0f} elements/s; "
        f"pass-through of the same bytes {throughput.pass_through:,.0f}/s "
        f"(ratio {throughput.ratio:.2f})",
        highlight=False,
    )
    _show_verdict(console, result)


def _show_verdict(console: "Console", result: "Result") -> None:
    finding = result.finding
    for broken in finding.broken_bounds:
        console.print(f"chattiness bound broken: {broken}", style="bold red")
    if not finding.output.complete:
        console.print("the output has not ended", style="bold red")
    for each in finding.verdict.differences[:3]:
        console.print(f"first differences: {each}", style="bold red", highlight=False)
    events = len(finding.output.tdb)
    verdict = (
        f"EQUIVALENT: {events:,} events of {result.flights:,} flights, in {result.seconds:.0f} s"
        if finding.good
        else f"NOT EQUIVALENT: {len(finding.verdict.differences):,} differences"
    )
    console.print(verdict, style="bold green" if finding.good else "bold red", highlight=False)


def _document(result: "Result") -> dict[str, Any]:
    finding, throughput = result.finding, result.throughput
    out, into = finding.output, finding.counts
    return {
        "equivalent": finding.verdict.equivalent,
        "good": finding.good,
        "flights": result.flights,
        "events": len(out.tdb),
        "in": {"inserts": into.inserts, "adjusts": into.adjusts, "stables": into.stables},
        "out": {"inserts": out.inserts, "adjusts": out.adjusts, "stables": out.stables},
        "bounds_broken": finding.broken_bounds,
        "latency_ms": {"p50": finding.latency(0.5), "p99": finding.latency(0.99)},
        "throughput": {
            "merge": round(throughput.merge),
            "pass_through": round(throughput.pass_through),
            "ratio": round(throughput.ratio, 3),
        },
        "seconds": round(result.seconds, 1),
        "news": result.news,
    }
