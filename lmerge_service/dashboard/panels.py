"""The panels of the page as HTML: what a picture means, in words and colours, by templates.

All that came from workers is escaped by the templates (`page.render`).

>>> from lmerge_service.dashboard.model import WatchedMerge
>>> from lmerge_service.dashboard.polling import Answer
>>> status = {"name": "<script>", "replicas": [], "output": {"topic": "m"}, "tasks": []}
>>> watched = WatchedMerge(("<script>", "m"), ["http://127.0.0.1:8321"])
>>> watched.take(0.0, {"http://127.0.0.1:8321": Answer(status)})
>>> "&lt;script&gt;" in panels(watched, {}, {})["headline"]
True
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from lmerge_service.dashboard.charts import colours_of
from lmerge_service.dashboard.merged import MergeView, ReplicaRow
from lmerge_service.dashboard.model import WatchedMerge
from lmerge_service.dashboard.queries import QueryView
from lmerge_service.dashboard.shape import mark_of, shape_of, tone_of, worker_tone
from lmerge_service.page import render
from lmerge_service.text import moment, printable, shortened, span

__all__ = ("REMEDIES", "clock", "number", "panels", "replica_findings")

_MOST_LINES: Final = 300
_MOST_REASONS: Final = 12
_GRAVE: Final = ("away", "gap", "nothing_moves", "unwritable_topic", "kafka_unreachable", "stuck")

REMEDIES: Final[Mapping[str, str]] = {
    "not_running": "wait a moment; if it lasts, look at the worker's log",
    "kafka_unreachable": "look whether Kafka runs and can be reached from the worker; the merge "
    "goes on by itself once it answers",
    "excluded": "bring the replica's topic back, or detach the replica",
    "quarantined": "look at its evidence; release it once it is right again, or detach it",
    "held_stable": "look at what it waits for; the guard lets go once another replica comes as far",
    "stuck": "attach a replica that goes on, or detach those that cannot",
    "silent_partitions": "have the replica publish stables in all of its partitions",
    "open_transaction": "end the transaction of the replica's writer, or restart that writer",
    "not_progressing": "look whether the replica's query gets input",
    "dead_letters": "open the replica's dead letters below: each has its reason and its place",
    "disagrees": "open its evidence; quarantine it if it is wrong",
    "unconfirmed": "it may lack events: compare it by `lmerge cutover --dry-run`",
    "breaches": "open its breaches below; quarantine it if they go on",
    "stale": "end the writer of the older incarnation",
    "numbering": "two writers may number alike: look at the place in its findings",
    "redundancy_lost": "bring a second replica back: the next failure would stop the output",
    "gap": "attach a replica that has the range, or accept the gap",
    "nothing_moves": "attach replicas, or lower the quorum of the policy",
    "lost_events": "look which replica was too early; its guards may be too loose",
    "unwritable_topic": "look at the topic's ACLs, size limits and replicas in Kafka",
    "commit_stalled": "look at Kafka's brokers: a commit does not come through",
    "retention": "keep the output for longer (`retention.ms`), or start the workers",
    "not_written": "look at the dead-letter and events topics: they could not be written",
    "away": "start the worker again; others take its tasks over meanwhile",
}
"""What to do, by kind of reason; docs/operations.md has more."""


def panels(
    watched: WatchedMerge, queries: Mapping[str, QueryView], unknown: Mapping[str, str]
) -> dict[str, str]:
    """All panels of a merge by name; `queries` by address, `unknown` addresses with why."""
    view = watched.view
    assert view is not None
    common, quiet = _words(view), watched.quiet.seconds
    return {
        "headline": _headline(watched, view, common),
        "shape": render("dashboard/shape.html", shape=shape_of(view, quiet)),
        "replicas": _replicas(watched, view, common),
        "attention": _attention(view, quiet),
        "cutover": _cutover(view),
        "log": _log(watched),
        "workers": _workers(view, unknown),
        "queries": _queries(view, queries),
    }


def number(value: float | None) -> str:
    """A number for people; unknown is not 0.

    >>> number(None), number(12_345), number(3.14159)
    ('?', '12,345', '3.14')
    """
    if value is None:
        return "?"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def clock(at: float) -> str:
    """A time of the wall clock, in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(at))


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _long(seconds: float) -> str:
    """How long something lasts, by the second for a minute, then by the minute.

    >>> _long(14.2), _long(150.0)
    ('14 s', '2 min')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _words(view: MergeView) -> dict[str, Any]:
    """What templates call to show values."""

    def at(value: int | None) -> str:
        return "?" if value is None else moment(value, view.time_unit)

    return {"at": at, "num": number, "rate": _rate, "share": _share}


def _headline(watched: WatchedMerge, view: MergeView, common: Mapping[str, Any]) -> str:
    latest = watched.history.latest()
    leads = ", ".join(f"{name}: {tasks} tasks" for name, tasks in view.leaders.items())
    return render(
        "dashboard/headline.html", view=view, rates=watched.per_second, leads=leads,
        joined=sum(each.state == "joined" for each in view.replicas),
        asked=clock(latest.at) if latest else None, quiet=len(watched.quiet.seconds), **common,
    )  # fmt: skip


# --- replicas -------------------------------------------------------------------------------------


_LONG_OPEN: Final = 10.0
"""Seconds from which on an open transaction is a finding: a writer's usual ones are shorter."""


def replica_findings(row: ReplicaRow) -> list[tuple[str, int]]:
    """What was found of a replica, by kind, with how often."""
    counts = row.counts
    found = {
        "breaches": sum(row.breaches.values()),
        "dead letters": counts["dead_letters"],
        "repeats": counts["repeated"],
        "contradicted numbers": counts["contradicted"],
        "lost events": counts["lost_events"],
        "left out": counts["left_out"] if row.unconfirmed else 0,
        "contradicts the output": int(row.disagrees),
        "open transactions": sum(each["seconds"] >= _LONG_OPEN for each in row.open_transactions),
        "silent partitions": len(row.silent_partitions),
    }
    return [(kind, count) for kind, count in found.items() if count]


def _replicas(watched: WatchedMerge, view: MergeView, common: Mapping[str, Any]) -> str:
    looks, quiet = colours_of([each.name for each in view.replicas]), watched.quiet.seconds
    rows = [
        {
            "row": each,
            "colour": looks[each.name][0],
            "dash": looks[each.name][1],
            "tone": tone_of(each, quiet=each.name in quiet),
            "mark": mark_of(each, quiet=each.name in quiet),
            "quiet": _long(quiet[each.name]) if each.name in quiet else None,
            "why": shortened(printable(each.why or "")),
            "behind": "?" if each.behind is None else span(each.behind, view.time_unit),
            "rate": watched.per_second.get(each.name),
            "confirmed": _confirmed(each, common["at"]),
            "doubt": each.disagrees or each.unconfirmed,
            "findings": replica_findings(each),
            "acts": _acts(each),
        }
        for each in view.replicas
    ]
    return render("dashboard/replicas.html", rows=rows, detached=view.detached, **common)


def _acts(row: ReplicaRow) -> tuple[str, ...]:
    trust = "release" if row.state == "quarantined" else "quarantine"
    return trust, "detach", "cutover"


def _confirmed(row: ReplicaRow, at: Any) -> str:
    if row.confirmed_to_the_end:
        return "its end"
    doubt = "contradicts the output, " if row.disagrees else ""
    return doubt + ("not yet" if row.confirmed is None else at(row.confirmed))


# --- what needs somebody --------------------------------------------------------------------------


def _attention(view: MergeView, quiet: Mapping[str, float]) -> str:
    held = [{"replica": row.name, "held": h} for row in view.replicas for h in row.held]
    covered = {"held_stable"} if held else set()
    if view.gap:
        covered.add("gap")
    reasons = [
        (kind, shortened(printable(text)), REMEDIES.get(kind))
        for kind, text in view.reasons
        if kind not in covered
    ]
    return render(
        "dashboard/attention.html", view=view, held=held[:_MOST_REASONS],
        stuck=[task for task in view.tasks if task.stuck], reasons=reasons[:_MOST_REASONS],
        quiet=[(name, _long(seconds)) for name, seconds in quiet.items()][:_MOST_REASONS],
        more=max(0, len(reasons) - _MOST_REASONS), grave=_GRAVE,
    )  # fmt: skip


def _cutover(view: MergeView) -> str:
    cutover = view.cutover
    state = None if cutover is None else cutover.get("state")
    tones = {"done": "good", "aborted": "bad"}
    return render(
        "dashboard/cutover.html", cutover=cutover, tone=tones.get(str(state), "new"),
        running=state in {"joining", "watching"},
        ready=sum(bool(task.get("ready")) for task in (cutover or {}).get("tasks", ())),
        waiting=[task for task in view.tasks if task.cutover],
    )  # fmt: skip


def _log(watched: WatchedMerge) -> str:
    lines = watched.happenings.newest_first()[:_MOST_LINES]
    return render("dashboard/log.html", lines=lines, clock=clock, shortened=shortened)


# --- workers and queries --------------------------------------------------------------------------


def _workers(view: MergeView, unknown: Mapping[str, str]) -> str:
    rows = [
        {
            "row": each,
            "name": urlsplit(each.address).netloc,
            "tone": worker_tone(each)[0],
            "mark": worker_tone(each)[1],
            "leads": _numbers(each.leads),
            "follows": _numbers(each.follows),
        }
        for each in view.workers
    ]
    return render("dashboard/workers.html", workers=rows, unknown=unknown)


def _numbers(found: Sequence[int]) -> str:
    """Numbers with ranges.

    >>> _numbers([0, 1, 2, 5]), _numbers([])
    ('0–2, 5', 'nothing')
    """
    return ", ".join(_ranges(found)) or "nothing"


def _ranges(found: Sequence[int]) -> Iterator[str]:
    start = None
    for at, each in enumerate(found):
        start = each if start is None else start
        if at + 1 == len(found) or found[at + 1] != each + 1:
            yield f"{start}" if start == each else f"{start}–{each}"
            start = None


def _queries(view: MergeView, queries: Mapping[str, QueryView]) -> str:
    topics = {each.topic for each in view.replicas}
    ours = [each for each in queries.values() if each.to in topics] or list(queries.values())
    return render("dashboard/queries.html", queries=ours, num=number, rate=_rate, share=_share)
