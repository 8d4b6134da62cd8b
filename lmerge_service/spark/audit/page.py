"""A report as one page of HTML to hand on: verdict, streams, differences, pictures; no links.

Theory
    Whatever streams contain is text here, escaped; the same report gives the same bytes (`page`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from markupsafe import Markup

from lmerge_service.elements import INFINITY, START
from lmerge_service.page import COLOURS, figure, render
from lmerge_service.spark.audit.findings import AuditReport, Freshness, StreamProgress

__all__ = ("page",)

_COUNTS: Final = ("events", "inserts", "adjusts", "removals", "stables", "doubled", "left_out")
_QUANTILES: Final = (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("longest", 1.0))


def page(report: AuditReport) -> str:
    """The page."""
    found, lines = report.findings, _lines(report)
    verdict, good = _verdict(report)
    return render(
        "audit.html",
        verdict=verdict,
        good=good,
        before=found.before if found.before != INFINITY else None,
        names=report.names,
        faults=list(zip(found.faults, report.fault_places, strict=True)),
        counts=_COUNTS,
        streams=list(zip(report.names, found.streams, strict=True)),
        seconds=report.seconds,
        illegal={fault.stream for fault in found.faults},
        differences=list(_differences(report)),
        quantiles=_QUANTILES,
        freshness=report.freshness,
        freshness_figure=report.freshness and _freshness(report.freshness),
        since=_began(lines) / 1000 if _timed(lines) else None,
        progress_figure=lines and _progress(lines),
    )


def _verdict(report: AuditReport) -> tuple[str, bool]:
    found = report.findings
    if not found.legal:
        names = list(dict.fromkeys(report.names[fault.stream] for fault in found.faults))
        return f"Not legal: {', '.join(names)}", False
    if found.differences_total:
        return f"Not equivalent: they differ in {found.differences_total:,} events", False
    return f"Legal and equivalent: {len(report.names)} streams", True


def _differences(report: AuditReport) -> Iterator[tuple[str, int, Sequence[Any]]]:
    """Payload, vs, and of each stream the ends of its events and where its last elements are."""
    for each in report.findings.differences:
        places = report.last_places.get(each[:2], [[]] * len(each.ends))
        held = list(zip(each.ends, places, strict=True))
        yield bytes(each.payload).decode(), each.vs, held  # type: ignore[call-overload]


# The figures


def _freshness(fresh: Freshness) -> Markup:
    delays = [delay for delay, _ in fresh.delays]
    so_far, shares = 0, []
    for _, count in fresh.delays:
        so_far += count
        shares.append(so_far / fresh.events)

    def draw(axes: Any) -> None:
        axes.step([delays[0], *delays], [0, *shares], where="post", color=COLOURS[0])
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
        axes.set_xlim(min(0, delays[0]), 1.1 * max(10, delays[-1]))  # else there may be no tick
        axes.set_xlabel("milliseconds after the first")
        axes.set_ylabel("share of events")
        axes.set_ylim(0, 1.02)

    return figure("freshness", [draw], "share of events by freshness")


_Lines = Sequence[tuple[int, str, StreamProgress]]
"""Streams by number and name."""


def _lines(report: AuditReport) -> _Lines:
    """Of the streams whose progress is known."""
    lines = enumerate(zip(report.names, report.progress, strict=False))
    return [(n, name, line) for n, (name, line) in lines if line.at]


def _timed(lines: _Lines) -> bool:
    return bool(lines) and lines[0][2].timed


def _began(lines: _Lines) -> float:
    return min(line.at[0] for _, _, line in lines)


def _progress(lines: _Lines) -> Markup:
    timed, began = _timed(lines), _began(lines)
    axis = "seconds" if timed else "share of the stream"

    def at(line: StreamProgress) -> list[float]:
        return [(x - began) / 1000 if timed else x for x in line.at]

    def elements(axes: Any) -> None:
        for n, name, line in lines:
            axes.step(at(line), line.elements, where="post", label=name, color=COLOURS[n % 6])
        axes.set_ylabel("elements")
        axes.set_xlabel(axis)
        axes.figure.legend(loc="outside lower center", ncols=3, fontsize=7)

    def stables(axes: Any) -> None:
        for n, _, line in lines:
            known = [
                (x, y) for x, y in zip(at(line), line.stables, strict=True) if START < y < INFINITY
            ]
            if known:
                axes.step(*zip(*known, strict=True), where="post", color=COLOURS[n % 6])
        axes.set_ylabel("stable point")
        axes.set_xlabel(axis)

    return figure("progress", [elements, stables], "elements and stable points of each stream")
