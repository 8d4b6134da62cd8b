"""From a run to its result: the history for the judge, the longest gap, and the timeline.

Theory
    A drill can be checked at any time, before its faults as well as after them: the output is read
    first and the replicas after it, so that everything in the output has its source there.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

from lmerge_service.drills.control_log_check import decided
from lmerge_service.drills.dump import dump
from lmerge_service.drills.environment import Environment, ReplicaSlot
from lmerge_service.drills.history import (
    ALWAYS,
    History,
    Interval,
    ProgressDemand,
    ReplicaHistory,
    check,
    tally,
)
from lmerge_service.drills.invariant_monitors import Hole, Observation
from lmerge_service.drills.observability_checks import Capture
from lmerge_service.drills.plan import CONTROL, OUTPUT
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.verdicts import CheckResult, WrongEvents
from lmerge_service.elements import Insert
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.workloads.lifetime import final_tdb

__all__ = (
    "DrillResult",
    "DrillTimeline",
    "JudgedRun",
    "LeaderTimeline",
    "capture",
    "judge",
    "timeline",
)

_BIN_SECONDS: Final = 0.5


class JudgedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's findings, and the longest gap of a reader."""

    outcome: str
    findings: list[dict[str, Any]]
    hole: Hole
    events: int
    """Of the logical stream, as far as replicas have published it."""
    tally: WrongEvents | None = None
    """None: the topics are not sufficient."""


class LeaderTimeline(msgspec.Struct, frozen=True):
    """Who led the first task, from when to when."""

    worker: str
    replica: str | None
    start: float
    end: float


class DrillTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when; all times are seconds since `began`."""

    began: float
    """Seconds of the wall clock."""
    seconds: float
    happened: list[tuple[float, str]]
    leading: list[LeaderTimeline]
    bin: float
    rate: list[float]
    """Records a second that a reader got, in each bin."""
    latency: list[float | None]
    """The longest latency of an event, in milliseconds, of those that came in each bin: from its
    first insert by a replica to its arrival at a reader."""


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a drill ended."""

    name: str
    title: str
    description: str
    passed: bool
    why: list[str]
    """If it has not passed."""
    unplayed: bool
    """A fault could not be injected, so that the drill proves nothing."""
    judged: JudgedRun | None
    timeline: DrillTimeline
    reasons: list[str]
    """Everything that workers gave as a reason for degraded health."""
    steps: list[dict[str, Any]]
    """Of the method: name, status, seconds, output."""


async def capture(environment: Environment) -> Capture | None:
    """The leader's status and metrics, and the logs of all workers; None of another program."""
    logs = (path for paths in environment.logs.values() for path in paths)
    text = "\n".join(path.read_text(errors="replace") for path in logs)
    return await environment.worker("leader").capture(text)


async def judge(
    environment: Environment, captured: Capture | None
) -> tuple[JudgedRun, dict[str, CommittedTopic]]:
    """All checks, on what the topics hold now.

    Raises:
        Unreadable: a topic cannot be read.
    """
    names = [environment.topic(name) for name in environment.slots]
    output = (await dump(environment.brokers.bootstrap, [OUTPUT]))[OUTPUT]
    read_at = int(time.time() * 1_000)
    topics = await dump(environment.brokers.bootstrap, names)
    decisions = (
        decided((await dump(environment.brokers.bootstrap, [CONTROL]))[CONTROL])
        if environment.answers
        else None
    )
    lives = list(environment.lives())
    skew = max(abs(slot.part.manner.skew) for slot in environment.slots.values())
    history = History(
        output=output,
        replicas={
            name: _replica(slot, topics[environment.topic(name)])
            for name, slot in environment.slots.items()
        },
        reference=final_tdb(lives),
        progress=_progress(environment, read_at),
        keyed=not environment.plan.plans,
        skew_ms=1_000 + int(skew * 1_000),
        kills=environment.kills,
        decided=decisions,
        answers=environment.answers,
        faults=environment.plan.traces if captured else (),
        capture=captured,
    )
    report = check(history)
    produced = _first_produced(topics.values())
    hole = _hole(environment, produced)
    found = JudgedRun(
        outcome=report.outcome.value,
        findings=[_finding(each) for each in report.findings],
        hole=hole,
        events=len(produced),
        tally=tally(history),
    )
    return found, topics


def _finding(finding: CheckResult) -> dict[str, Any]:
    return asdict(finding) | {"outcome": finding.outcome.value}


def _replica(slot: ReplicaSlot, topic: CommittedTopic) -> ReplicaHistory:
    bad, leaps = slot.bad_since, bool(slot.part.manner.leap)
    merged = [Interval(end=bad)] if bad is not None and leaps else ALWAYS
    return ReplicaHistory(topic, honest=bad is None and not slot.part.manner.lying, merged=merged)


def _progress(environment: Environment, read_at: int) -> ProgressDemand | None:
    """Only at the end: before, the latest elements may still be in flight."""
    if not environment.plan.within or environment.finished is None:
        return None
    stable = environment.plan.policy.get("stable", "max")
    quorum = int(stable[7:-1]) if stable.startswith("quorum(") else 1
    return ProgressDemand(int(environment.plan.within * 1_000), quorum=quorum, read_at=read_at)


def _first_produced(topics: Iterable[CommittedTopic]) -> dict[tuple[Any, int], float]:
    """When each event was first inserted by any replica, in seconds of the wall clock."""
    decoder, produced = WireDecoder(), dict[tuple[Any, int], float]()
    for topic in topics:
        for record in topic.records:
            try:
                element = decoder.decode(record.value)
            except ElementError:
                continue
            if type(element) is Insert:
                key, at = (element.payload, element.vs), record.timestamp / 1_000
                produced[key] = min(at, produced.get(key, at))
    return produced


def _hole(environment: Environment, produced: Mapping[Any, float]) -> Hole:
    ended = environment.arrivals.ended
    last = max(times[-1] for times in environment.arrivals.times if times)
    hole = environment.arrivals.longest_hole(environment.opened, last if ended else time.time())
    end = hole.start + hole.seconds
    return replace(hole, events=sum(hole.start <= at < end for at in produced.values()))


def timeline(environment: Environment, topics: Mapping[str, CommittedTopic]) -> DrillTimeline:
    """From the first record of a replica to the last of the output."""
    produced = _first_produced(topics.values())
    times = sorted(at for each in environment.arrivals.times for at in each)
    began = min([*produced.values(), *times[:1], time.time()])
    ended = max([*times[-1:], *(at for at, _ in environment.done), began])
    bins = int((ended - began) / _BIN_SECONDS) + 1
    counts = Counter(int((at - began) / _BIN_SECONDS) for at in times)
    slowest: dict[int, float] = {}
    for key, came in environment.arrivals.first.items():
        if key in produced:
            n = int((came - began) / _BIN_SECONDS)
            slowest[n] = max(slowest.get(n, 0.0), (came - produced[key]) * 1_000)
    return DrillTimeline(
        began=began,
        seconds=ended - began,
        happened=[(at - began, text) for at, text in environment.done],
        leading=[
            LeaderTimeline(each.worker, each.replica, each.start - began, each.end - began)
            for each in _leading(environment.worker_monitor.observations, ended)
        ],
        bin=_BIN_SECONDS,
        rate=[counts[n] / _BIN_SECONDS for n in range(bins)],
        latency=[slowest.get(n) for n in range(bins)],
    )


def _leading(seen: Sequence[Observation], ended: float) -> list[LeaderTimeline]:
    """Spans in which a worker reported that it leads, each with the replica that led."""
    spans = []
    for worker, its in groupby(sorted(seen, key=lambda s: (s.worker, s.at)), lambda s: s.worker):
        every = [*its, Observation(ended, worker)]
        changes = [next(same) for _, same in groupby(every, _lead)]
        spans += [
            LeaderTimeline(worker, change.look.leader, change.at, after.at)
            for change, after in pairwise(changes)
            if change.look.leads
        ]
    return sorted(spans, key=lambda span: span.start)


def _lead(seen: Observation) -> tuple[tuple[int, ...], str | None]:
    return seen.look.leads, seen.look.leader
