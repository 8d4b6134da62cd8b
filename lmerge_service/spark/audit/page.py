"""A report as one page of HTML to hand on: verdict, streams, differences, pictures; no links.

Theory
    Whatever streams contain is text here, escaped; the same report gives the same bytes (`page`).
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from lmerge_service.elements import INFINITY, START
from lmerge_service.page import COLOURS, Markup, document, figure, table, verdict
from lmerge_service.spark.audit.findings import Report

__all__ = ("page",)

_LONGEST: Final = 300
_QUANTILES: Final = (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("longest", 1.0))


def page(report: Report) -> str:
    """The page."""
    text, good = _verdict(report)
    body = [
        "<h1>Audit</h1>",
        verdict(text, good=good),
        *(f"<p>{escape(line)}</p>" for line in _remarks(report)),
        *_faults(report),
        "<h2>Streams</h2>",
        _streams(report),
        *_differences(report),
        *_freshness(report),
        *_progress(report),
    ]
    return document(text, body)


# The text


def _verdict(report: Report) -> tuple[str, bool]:
    found = report.findings
    if not found.legal:
        names = list(dict.fromkeys(report.names[fault.stream] for fault in found.faults))
        return f"Not legal: {', '.join(names)}", False
    if found.differences_total:
        return f"Not equivalent: they differ in {found.differences_total:,} events", False
    return f"Legal and equivalent: {len(report.names)} streams", True


def _remarks(report: Report) -> Iterator[str]:
    found = report.findings
    if found.before is not None and found.before < INFINITY:
        yield f"Compared as far as all are final, before {_time(found.before)}."
    elif unfinished := [
        name for name, each in zip(report.names, found.streams, strict=True) if not each.complete
    ]:
        yield f"Compared as they stand; not ended: {', '.join(unfinished)}."
    elements = sum(each.elements for each in found.streams)
    yield f"{elements:,} elements, audited in {report.seconds:,.1f} s."


def _faults(report: Report) -> Iterator[str]:
    if report.findings.legal:
        return
    rows = [
        (report.names[fault.stream], place, fault.why, _code(fault.payload or ""))
        for fault, place in zip(report.findings.faults, report.fault_places, strict=True)
    ]
    yield "<h2>What is not legal</h2>\n<p>The first element of each partition.</p>"
    yield table(("stream", "where", "why", "payload"), rows)


def _streams(report: Report) -> str:
    columns = ("events", "inserts", "adjusts", "removals", "stables", "doubled", "left_out")
    illegal = {fault.stream for fault in report.findings.faults}
    rows = []
    for n, (name, each) in enumerate(zip(report.names, report.findings.streams, strict=True)):
        counts = [f"{getattr(each, column):,}" for column in columns]
        state = "complete" if each.complete else _time(each.stable)
        rows.append((name, "no" if n in illegal else "yes", *counts, state))
    words = ("events", "inserts", "adjusts", "removals", "stables", "doubled", "left out")
    return table(("stream", "legal", *words, "stable point"), rows, numbers=range(2, 9))


def _differences(report: Report) -> Iterator[str]:
    found = report.findings
    if not found.differences:
        return
    yield f"<h2>Differences</h2>\n<p>The first {len(found.differences):,}, by start.</p>"
    rows = []
    for each in found.differences:
        places = report.last_places.get(each[:2], [[]] * len(each.ends))
        cells = [_held(*pair) for pair in zip(each.ends, places, strict=True)]
        rows.append((_code(bytes(each.payload).decode()), f"{each.vs}", *cells))  # type: ignore[call-overload]
    yield table(("payload", "vs", *report.names), rows)


def _held(ends: Sequence[int], places: Sequence[str]) -> Markup:
    text = escape(", ".join(map(_time, ends)) if ends else "no event")
    return Markup(text + "".join(f"<br><small>{escape(place)}</small>" for place in places))


def _code(text: str) -> Markup:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return Markup(f"<code>{escape(short)}</code>" if text else "")


def _time(time: int) -> str:
    return {INFINITY: "infinity", START: "-infinity"}.get(time, f"{time}")


# The figures


def _freshness(report: Report) -> Iterator[str]:
    if (fresh := report.freshness) is None:
        return
    quantiles = ", ".join(f"{word} {fresh.quantile(q):,} ms" for word, q in _QUANTILES)
    yield "<h2>Freshness</h2>"
    yield (
        f"<p>How long after the first of the other streams {escape(report.names[0])} emitted an "
        f"event, by the times of the records: {quantiles}. {fresh.events:,} events"
        f"{f', and {fresh.alone:,} that it has not emitted' if fresh.alone else ''}.</p>"
    )
    delays = [delay for delay, _ in fresh.delays]
    so_far, shares = 0, []
    for _, count in fresh.delays:
        so_far += count
        shares.append(so_far / fresh.events)

    def draw(axes: Any) -> None:
        axes.step([delays[0], *delays], [0, *shares], where="post", color=COLOURS[0])
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xlim(min(0, delays[0]), 1.1 * max(10, delays[-1]))  # else there may be no tick
        axes.set_xlabel("milliseconds after the first")
        axes.set_ylabel("share of events")
        axes.set_ylim(0, 1.02)

    yield figure("freshness", [draw], "share of events by freshness")


def _progress(report: Report) -> Iterator[str]:
    lines = [
        (n, name, line)
        for n, (name, line) in enumerate(zip(report.names, report.progress, strict=False))
        if line.at
    ]
    if not lines:
        return
    timed = lines[0][2].timed
    began = min(line.at[0] for _, _, line in lines)
    axis = "seconds" if timed else "share of the stream"

    def at(line: Any) -> list[float]:
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

    yield "<h2>Progress</h2>"
    if timed:
        since = datetime.fromtimestamp(began / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        yield f"<p>Since {since} UTC, by the times of the records.</p>"
    yield figure("progress", [elements, stables], "elements and stable points of each stream")
