"""`lmerge demo`: the whole thing, shown and proved."""

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lmerge_service.cli.options import Json, address, warnings_only
from lmerge_service.errors import ConfigurationError, single_error
from lmerge_service.signals import orderly_end
from lmerge_service.workloads.flights import MONTHS

if TYPE_CHECKING:
    from rich.console import Console

    from lmerge_service.demo.acting import Result

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
            "[default: 12, 80 with --year, 90 with --spark]",
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
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Another play: a query over the month by two plans in Spark and one in "
            "Python; needs the extra `spark`.",
        ),
    ] = False,
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

    from rich.console import Console

    warnings_only(logging.ERROR)
    console = Console(stderr=json)
    folder = keep or Path(tempfile.mkdtemp(prefix="lmerge-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"seed": seed, "bootstrap": bootstrap, "console": console}
    if spark and year:
        raise ConfigurationError("--spark plays with one month: --month N instead of --year")
    if spark:
        options |= {"month": month, "pace": pace or 90}
    else:
        options |= {"months": MONTHS if year else (month,), "pace": pace or (80 if year else 12)}
    try:
        result = asyncio.run(_interruptible(_play(spark), folder, **options))
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if json:
        typer.echo(msgspec.json.encode(_document(result)).decode())
    else:
        _show(console, result)
    raise typer.Exit(0 if result.finding.good else 1)


def _play(spark: bool) -> "Callable[..., Awaitable[Result]]":
    if spark:
        import lmerge_service.spark  # noqa: F401 (raises if the extra is missing)
        from lmerge_service.demo.queries import play_queries
        from lmerge_service.local.jars import find_java

        find_java("spark")  # where there is none, here and not in a replica's log
        return play_queries
    from lmerge_service.demo.show import play

    return play


async def _interruptible(
    play: "Callable[..., Awaitable[Result]]", folder: Path, **options: Any
) -> "Result":
    """SIGTERM ends the play as Ctrl-C does, so that nothing that it started outlives it."""
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    threadsafe = asyncio.get_running_loop().call_soon_threadsafe
    try:
        with orderly_end(lambda _: threadsafe(task.cancel)), single_error():
            return await play(folder, **options)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _show(console: "Console", result: "Result") -> None:
    from rich.table import Table

    finding = result.finding
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
    if (throughput := result.throughput) is not None:
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
        f"EQUIVALENT: {events:,} events of {result.count:,} {result.of}, in {result.seconds:.0f} s"
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
        result.of: result.count,
        "events": len(out.tdb),
        "in": {"inserts": into.inserts, "adjusts": into.adjusts, "stables": into.stables},
        "out": {"inserts": out.inserts, "adjusts": out.adjusts, "stables": out.stables},
        "bounds_broken": finding.broken_bounds,
        "latency_ms": {"p50": finding.latency(0.5), "p99": finding.latency(0.99)},
        "throughput": throughput
        and {
            "merge": round(throughput.merge),
            "pass_through": round(throughput.pass_through),
            "ratio": round(throughput.ratio, 3),
        },
        "seconds": round(result.seconds, 1),
        "news": result.news,
    }
