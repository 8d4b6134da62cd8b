"""A drill as one page of HTML to hand on: its outcome, checks, steps and timeline."""

from typing import Any, Final

from markupsafe import Markup

from lmerge_service.drills.report import DrillResult, DrillTimeline
from lmerge_service.page import COLOURS, figure, render

__all__ = ("CHECKS", "page")

CHECKS: Final = {
    "K1": "the output equals the logical stream, as far as it is final",
    "K2": "no event is there twice",
    "K3": "no event is missing that a replica published and made final",
    "K4": "the output never contradicts itself, and is never final beyond its replicas",
    "K5": "the output's stable follows the replicas' in time",
    "K7": "K1 to K4 hold after processes were killed",
    "K8": "metrics, logs and health show the fault",
    "K9": "answers to decisions agree with the control log",
}
"""The checks, in words."""


def page(result: DrillResult) -> str:
    """The page."""
    return render("drill.html", result=result, checks=CHECKS, figure=_figure(result.timeline))


def _figure(line: DrillTimeline) -> Markup:
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


def _mark_events(axes: Any, line: DrillTimeline, *, numbered: bool = False) -> None:
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
