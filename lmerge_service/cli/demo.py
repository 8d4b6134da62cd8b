"""`lmerge demo`: the whole thing, shown and proved."""

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lmerge_service.cli.options import Json, address, flag, option, warnings_only
from lmerge_service.cli.words import fields_of, print_json
from lmerge_service.errors import ConfigurationError, EnvironmentMissingError, single_error
from lmerge_service.signals import cancelled_by_signal
from lmerge_service.workloads.flights import MONTHS

if TYPE_CHECKING:
    from rich.console import Console

    from lmerge_service.demo.acting import DemoResult
    from lmerge_service.demo.page import DemoPage

__all__ = ("demo",)

_KINDS = ("inserts", "adjusts", "stables")


def demo(
    year: bool = flag("All 336,776 flights, not one month's 27,000.", "--year"),
    month: int = option("N", "Which month of 2013.", min=1, max=12, default=1),
    seed: int = option("N", "Equal seeds give equal replicas.", default=1),
    pace: float | None = option(
        "SECONDS",
        "In which the fastest replica publishes everything. "
        "[default: 12, 80 with --year, 90 with --spark or --watch]",
        min=1,
        default=None,
    ),
    bootstrap: str | None = option(
        "HOST:PORT",
        "Use this Kafka instead of starting one.",
        envvar="LMERGE_BOOTSTRAP",
        callback=address,
        default=None,
    ),
    spark: bool = flag(
        "Another play: a query over the month by five plans, three in Python and two in Spark; "
        "needs the extra `spark`.",
        "--spark",
    ),
    watch: bool = flag(
        "Slowly, before the dashboard in a browser, which stays until Enter is pressed; needs "
        "the extra `dashboard`.",
        "--watch",
    ),
    keep: Path | None = option("FOLDER", "Leave files and logs there.", default=None),
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
    if (page := _page(watch)) is not None:
        options["page"] = page
    if spark and year:
        raise ConfigurationError("--spark plays with one month: --month N instead of --year")
    if spark:
        options |= {"month": month, "pace": pace or 90}
    else:
        fastest = 80 if year else 90 if watch else 12
        options |= {"months": MONTHS if year else (month,), "pace": pace or fastest}
    try:
        result = asyncio.run(_interruptible(_play(spark), folder, **options))
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if json:
        print_json(_document(result))
    else:
        _show(console, result)
    raise typer.Exit(0 if result.finding.good else 1)


def _page(watch: bool) -> "DemoPage | None":
    """The dashboard, where its extra is installed."""
    from lmerge_service.dashboard.installed import MISSING, is_installed
    from lmerge_service.demo.page import DemoPage

    if is_installed():
        return DemoPage(watch)
    if watch:
        raise EnvironmentMissingError(MISSING)
    return None


def _play(spark: bool) -> "Callable[..., Awaitable[DemoResult]]":
    if spark:
        import lmerge_service.spark  # noqa: F401 (raises if the extra is missing)
        from lmerge_service.demo.queries import play_queries
        from lmerge_service.local.jars import find_java

        find_java("spark")  # where there is none, here and not in a replica's log
        return play_queries
    from lmerge_service.demo.show import play

    return play


async def _interruptible(
    play: "Callable[..., Awaitable[DemoResult]]", folder: Path, **options: Any
) -> "DemoResult":
    """SIGTERM ends the play as Ctrl-C does, so that nothing that it started outlives it."""
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    try:
        with cancelled_by_signal(task), single_error():
            return await play(folder, **options)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _show(console: "Console", result: "DemoResult") -> None:
    from rich.table import Table

    finding = result.finding
    out, into = finding.output, finding.counts
    bounds = into.inserts, into.inserts + into.adjusts, into.stables
    table = Table("", "in", "out", "bound", title="the merged stream", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, bound in zip(_KINDS, bounds, strict=True):
        table.add_row(kind, f"{getattr(into, kind):,}", f"{getattr(out, kind):,}", f"≤ {bound:,}")
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
            f"throughput, Kafka to Kafka in transactions, {throughput.engine} engine: "
            f"{throughput.merge:,.0f} elements/s; "
            f"pass-through of the same bytes {throughput.pass_through:,.0f}/s "
            f"(ratio {throughput.ratio:.2f})",
            highlight=False,
        )
    _show_verdict(console, result)


def _show_verdict(console: "Console", result: "DemoResult") -> None:
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


def _document(result: "DemoResult") -> dict[str, Any]:
    finding, throughput = result.finding, result.throughput
    out = finding.output
    return {
        "equivalent": finding.verdict.equivalent,
        "good": finding.good,
        result.of: result.count,
        "events": len(out.tdb),
        "in": fields_of(finding.counts, *_KINDS),
        "out": fields_of(out, *_KINDS),
        "bounds_broken": finding.broken_bounds,
        "latency_ms": {"p50": finding.latency(0.5), "p99": finding.latency(0.99)},
        "throughput": throughput
        and {
            "merge": round(throughput.merge),
            "pass_through": round(throughput.pass_through),
            "ratio": round(throughput.ratio, 3),
            "engine": throughput.engine,
        },
        "seconds": round(result.seconds, 1),
        "news": result.news,
    }
