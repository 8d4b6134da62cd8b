"""A drill as one page of HTML to hand on: its outcome, checks, steps and timeline."""

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from lmerge_service.drills.report import Result, Timeline
from lmerge_service.page import COLOURS, document, figure, table, verdict

__all__ = ("CHECKS", "page")

CHECKS: Final = {
    "K1": "the output equals the logical stream, as far as it is final",
    "K2": "no event is there twice",
    "K3": "no event is missing that a replica published and made final",
    "K4": "the output never contradicts itself, and is never final beyond its replicas",
    "K5": "the output's stable follows the replicas' in time",
    "K6": "memory stays within its bounds",
    "K7": "K1 to K4 hold after processes were killed",
    "K8": "metrics, logs and health show the fault",
    "K9": "answers to decisions agree with the control log",
}
"""The checks, in words."""


def page(result: Result) -> str:
    """The page; texts of the drill are escaped."""
    return document(result.title, _body(result))


def _body(result: Result) -> Iterator[str]:
    yield f"<h1>{escape(result.title)}</h1>"
    yield verdict("Passed" if result.passed else "Not passed", good=result.passed)
    yield f"<p>{escape(result.description)}</p>"
    for line in result.why:
        yield f"<p>{escape(line)}</p>"
    yield from _availability(result)
    yield "<h2>Timeline</h2>"
    began = datetime.fromtimestamp(result.timeline.began, UTC).strftime("%Y-%m-%d %H:%M:%S")
    yield f"<p>Times are seconds since {began} UTC. Numbers in the figure: see the table.</p>"
    yield _figure(result.timeline)
    events = enumerate(result.timeline.happened, 1)
    yield table(("", "at", "what"), [(f"{n}", f"{at:.1f} s", what) for n, (at, what) in events])
    yield from _checks(result)
    yield "<h2>Steps</h2>"
    rows = [
        (step["name"], step["status"], f"{step['seconds']:.2f} s", _text(step["output"]))
        for step in result.steps
    ]
    yield table(("step", "status", "took", "result"), rows, numbers=(2,))
    if result.reasons:
        yield "<h2>Reasons for degraded health</h2>"
        yield table(("reason",), [(reason,) for reason in result.reasons])


def _text(output: Any) -> str:
    return "" if output is None else f"{output}"


def _availability(result: Result) -> Iterator[str]:
    if (judged := result.judged) is None:
        return
    hole = judged.hole
    at = hole.start - result.timeline.began
    yield (
        f"<p>The longest time without output, for a reader of committed records, was "
        f"{hole.seconds:.2f} s (from {at:.1f} s on); replicas published {hole.events:,} events in "
        f"that time, of {judged.events:,} events in all.</p>"
    )


def _checks(result: Result) -> Iterator[str]:
    if result.judged is None:
        return
    yield "<h2>Checks</h2>"
    yield (
        "<p>The checks read only the topics, and share no code with the merge. They know the "
        "logical stream that all replicas present.</p>"
    )
    yield table(
        ("check", "requires", "outcome", "evidence"),
        [
            (
                finding["check"], CHECKS[finding["check"]], finding["outcome"],
                "; ".join(finding["evidence"][:5]),
            )
            for finding in result.judged.findings
        ],
    )  # fmt: skip


def _figure(line: Timeline) -> str:
    middles = [(n + 0.5) * line.bin for n in range(len(line.rate))]

    def leading(axes: Any) -> None:
        workers = sorted({span.worker for span in line.leading}, reverse=True)
        replicas = sorted({span.replica for span in line.leading if span.replica})
        for span in line.leading:
            colour = (
                COLOURS[replicas.index(span.replica) % len(COLOURS)] if span.replica else "#bbbbbb"
            )
            row, width = workers.index(span.worker), span.end - span.start
            axes.barh(row, width, left=span.start, height=0.6, color=colour)
        for replica in replicas:
            colour = COLOURS[replicas.index(replica) % len(COLOURS)]
            axes.barh(0, 0, color=colour, label=f"replica {replica}")
        axes.set_yticks(range(len(workers)), workers)
        axes.set_ylabel("leads")
        if replicas:
            axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        _mark_events(axes, line, numbered=True)

    def rate(axes: Any) -> None:
        axes.step(middles, line.rate, where="mid", color=COLOURS[0])
        axes.set_ylabel("records a second")
        axes.set_ylim(bottom=0)
        _mark_events(axes, line)

    def latency(axes: Any) -> None:
        known = [(x, y) for x, y in zip(middles, line.latency, strict=True) if y is not None]
        if known:
            axes.plot(*zip(*known, strict=True), ".-", color=COLOURS[3], linewidth=0.8)
        axes.set_yscale("symlog", linthresh=100)
        axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("longest latency, ms")
        axes.set_xlabel("seconds")
        _mark_events(axes, line)

    return figure(
        "timeline", [leading, rate, latency], "who led, output, latency", size=(9.0, 1.9),
        below=True,
    )  # fmt: skip


def _mark_events(axes: Any, line: Timeline, *, numbered: bool = False) -> None:
    """Marks the timeline's events; numbers of nearly simultaneous ones share a label."""
    width = max(line.seconds, line.bin)
    axes.set_xlim(0, width)
    labels: list[tuple[float, str]] = []
    for number, (at, _) in enumerate(line.happened, 1):
        axes.axvline(at, color="#444444", linewidth=0.8, linestyle="--")
        if labels and at - labels[-1][0] < width / 40:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {number}")
        else:
            labels.append((at, f"{number}"))
    for at, label in labels if numbered else ():
        axes.annotate(
            label, (at, 1.02), xycoords=("data", "axes fraction"), fontsize=8, ha="center",
            annotation_clip=False,
        )  # fmt: skip
