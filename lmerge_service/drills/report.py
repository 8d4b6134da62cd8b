"""From what was played to a verdict: the history for the judge, the hole, and the timeline.

Theory
    A drill can be judged at any moment, before its faults as well as behind them: the output is
    read first and the replicas after it, so that whatever the output holds is known of them.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any, Final

import msgspec

from lmerge_service.drills.control_log_check import decided
from lmerge_service.drills.dump import dump
from lmerge_service.drills.environment import CONTROL, OUTPUT, ReplicaSlot, Rig
from lmerge_service.drills.history import ALWAYS, History, Interval, Progress, Replica, check, tally
from lmerge_service.drills.invariant_monitors import Hole, Seen
from lmerge_service.drills.observability_checks import Capture
from lmerge_service.drills.records import Topic
from lmerge_service.drills.verdicts import Finding, Tally
from lmerge_service.elements import Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.workloads.lifetime import final_tdb

__all__ = ("Judged", "Leading", "Result", "Timeline", "capture", "judge", "timeline")

_BIN_SECONDS: Final = 0.5


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge says, and what a reader has seen."""

    outcome: str
    findings: list[dict[str, Any]]
    hole: Hole
    events: int
    """That the logical stream holds, as far as it has been told."""
    tally: Tally | None = None
    """None: the topics do not tell."""


class Leading(msgspec.Struct, frozen=True):
    """Who led the first task, from when to when."""

    worker: str
    replica: str | None
    start: float
    end: float


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when; all times are seconds since `began`."""

    began: float
    """Seconds of the wall clock."""
    seconds: float
    happened: list[tuple[float, str]]
    leading: list[Leading]
    bin: float
    rate: list[float]
    """Records a second that a reader got, in each bin."""
    latency: list[float | None]
    """The longest that an event took, in milliseconds, of those that came in each bin: from when
    a replica told of it first to when a reader had it."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a drill ended."""

    name: str
    title: str
    description: str
    passed: bool
    why: list[str]
    """If it has not passed."""
    unplayed: bool
    """A fault has not come about, so nothing is known."""
    judged: Judged | None
    timeline: Timeline
    reasons: list[str]
    """Everything that workers gave as a reason for degraded health."""
    steps: list[dict[str, Any]]
    """Of the method: name, status, seconds, what it gave."""


async def capture(rig: Rig) -> Capture | None:
    """What the worker that leads shows now, and the logs of all that there were; nothing of a
    program that is not ours."""
    logs = (path for paths in rig.logs.values() for path in paths)
    text = "\n".join(path.read_text(errors="replace") for path in logs)
    return await rig.worker("leader").shown(text)


async def judge(rig: Rig, captured: Capture | None) -> tuple[Judged, dict[str, Topic]]:
    """All checks, on what the topics hold now.

    Raises:
        Unreadable: a topic cannot be had.
    """
    names = [rig.topic(name) for name in rig.seats]
    output = (await dump(rig.broker.bootstrap, [OUTPUT]))[OUTPUT]
    read_at = int(time.time() * 1_000)
    topics = await dump(rig.broker.bootstrap, names)
    decisions = (
        decided((await dump(rig.broker.bootstrap, [CONTROL]))[CONTROL]) if rig.answers else None
    )
    lives = list(rig.lives())
    skew = max(abs(seat.part.manner.skew) for seat in rig.seats.values())
    history = History(
        output=output,
        replicas={
            name: _replica(seat, topics[rig.topic(name)]) for name, seat in rig.seats.items()
        },
        reference=final_tdb(lives),
        progress=_progress(rig, read_at),
        skew_ms=1_000 + int(skew * 1_000),
        kills=rig.kills,
        decided=decisions,
        answers=rig.answers,
        faults=rig.plan.traces if captured else (),
        capture=captured,
    )
    report = check(history)
    produced = _first_told(topics.values())
    hole = _hole(rig, produced)
    found = Judged(
        outcome=report.outcome.value,
        findings=[_finding(each) for each in report.findings],
        hole=hole,
        events=len(produced),
        tally=tally(history),
    )
    return found, topics


def _finding(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"outcome": finding.outcome.value}


def _replica(seat: ReplicaSlot, topic: Topic) -> Replica:
    bad, leaps = seat.bad_since, bool(seat.part.manner.leap)
    merged = [Interval(end=bad)] if bad is not None and leaps else ALWAYS
    return Replica(topic, honest=bad is None and not seat.part.manner.lying, merged=merged)


def _progress(rig: Rig, read_at: int) -> Progress | None:
    """Asked when all is over, since what was said last may still be under way before."""
    if not rig.plan.within or rig.finished is None:
        return None
    stable = rig.plan.policy.get("stable", "max")
    quorum = int(stable[7:-1]) if stable.startswith("quorum(") else 1
    return Progress(int(rig.plan.within * 1_000), quorum=quorum, read_at=read_at)


def _first_told(topics: Iterable[Topic]) -> dict[tuple[Any, int], float]:
    """When each event was first told by any replica, in seconds of the wall clock."""
    decoder, told = WireDecoder(), dict[tuple[Any, int], float]()
    for topic in topics:
        for record in topic.records:
            try:
                element = decoder.decode(record.value)
            except ElementError:
                continue
            if type(element) is Insert:
                key, at = (element.payload, element.vs), record.timestamp / 1_000
                told[key] = min(at, told.get(key, at))
    return told


def _hole(rig: Rig, told: Mapping[Any, float]) -> Hole:
    ended = rig.arrivals.ended
    last = max(times[-1] for times in rig.arrivals.times if times)
    hole = rig.arrivals.longest_hole(rig.opened, last if ended else time.time())
    end = hole.start + hole.seconds
    return replace(hole, events=sum(hole.start <= at < end for at in told.values()))


def timeline(rig: Rig, topics: Mapping[str, Topic]) -> Timeline:
    """From the first word of a replica to the last of the output."""
    told = _first_told(topics.values())
    times = sorted(at for each in rig.arrivals.times for at in each)
    began = min([*told.values(), *times[:1], time.time()])
    ended = max([*times[-1:], *(each.at for each in rig.happened), began])
    bins = int((ended - began) / _BIN_SECONDS) + 1
    counts = Counter(int((at - began) / _BIN_SECONDS) for at in times)
    slowest: dict[int, float] = {}
    for key, came in rig.arrivals.first.items():
        if key in told:
            n = int((came - began) / _BIN_SECONDS)
            slowest[n] = max(slowest.get(n, 0.0), (came - told[key]) * 1_000)
    return Timeline(
        began=began,
        seconds=ended - began,
        happened=[(each.at - began, each.text) for each in rig.happened],
        leading=[
            Leading(each.worker, each.replica, each.start - began, each.end - began)
            for each in _leading(rig.sightings.seen, ended)
        ],
        bin=_BIN_SECONDS,
        rate=[counts[n] / _BIN_SECONDS for n in range(bins)],
        latency=[slowest.get(n) for n in range(bins)],
    )


def _leading(seen: Sequence[Seen], ended: float) -> list[Leading]:
    """Spans in which a worker said that it leads, each with the replica that led."""
    spans = []
    for worker, looks in groupby(sorted(seen, key=lambda s: (s.worker, s.at)), lambda s: s.worker):
        before: Seen | None = None
        start = 0.0
        for look in [*looks, Seen(ended, worker)]:
            if before is None or (look.leads, look.leader) != (before.leads, before.leader):
                if before is not None and before.leads:
                    spans.append(Leading(worker, before.leader, start, look.at))
                before, start = look, look.at
    return sorted(spans, key=lambda span: span.start)
