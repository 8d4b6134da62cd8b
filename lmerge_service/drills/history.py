"""The judge of a run: checks the merge's guarantees, from the replicas' topics and the output.

Theory
    A *history* is the content of the topics when a run is over, together with the facts of the run:
    which replicas were honest, when each was attached, within what time the output had to follow.
    Each check is a pure function of it, independent of how merging is implemented.

        K1  the output's TDB, cut at its last stable, is the reference's
        K2  no event is there twice: no key twice (R3), no more often than in any replica (R4)
        K3  no event is missing that an honest replica published and froze while it was attached
        K4  the output is a legal stream, and its stable is never beyond the replicas' highest
        K5  the output's stable follows the healthy replicas' within a bound
        K7  K1 to K4 hold although the service was killed
        K8  the fault is visible: in a metric, in the log, in the health
        K9  the answers to decisions agree with the control log (`control_log_check`)

    *Cut at c* means: of the events that began before c, each with its end cut to c, which is what
    stable(c) made final. The reference is given, or is what the honest replicas agree on.

    >>> cut([("A", 1, 9), ("B", 3, 4), ("C", 7, 8)], 5) == cut([("A", 1, 6), ("B", 3, 4)], 5)
    True

Invariants
    H1  Invalid needs evidence. If the history is not sufficient, the outcome is unknown.
    H2  K5 to K9 are checked only in a history that has their subject.
    H3  K1 and K3 ignore what an operator gave up by accepting a gap.
    H4  Of an output that has started over, each incarnation is judged by itself, from the time on
        from which it is correct; K5 and K8 by the last one.
"""

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lmerge_service.drills.control_log_check import Answer, ControlHistory, k9
from lmerge_service.drills.observability_checks import Capture, InjectedFault, k8
from lmerge_service.drills.records import CommittedTopic
from lmerge_service.drills.streams import (
    IncarnationOutput,
    Key,
    MergedOutput,
    OneIncarnation,
    incarnations,
    read_output,
    read_replica,
    stables_by_time,
)
from lmerge_service.drills.verdicts import CheckResult, HistoryReport, WrongEvents, worst
from lmerge_service.elements import INFINITY, START
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.tdb import TDB

__all__ = (
    "ALWAYS",
    "History",
    "Interval",
    "ProgressDemand",
    "ReplicaHistory",
    "check",
    "cut",
    "tally",
)

_Event: TypeAlias = tuple[Hashable, int, int]
"""(payload, vs, ve)."""
_Events: TypeAlias = Counter[_Event]
"""And how often."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A span of record time in milliseconds, both ends in it."""

    start: int = START
    end: int = INFINITY

    def holds(self, *times: int) -> bool:
        return all(self.start <= time <= self.end for time in times)


ALWAYS: Sequence[Interval] = (Interval(),)


@dataclass(frozen=True, slots=True)
class ReplicaHistory:
    """A replica's topic, and what is known of it from outside."""

    topic: CommittedTopic
    honest: bool = True
    """Its final events are correct: the reference may rest on it, and K3 holds for it."""
    may_lead: bool = True
    """The output may follow its stables; false for one that guards must stop."""
    co_partitioned: bool = False
    """Each of its partitions is merged into the output's of the same number, and no other."""
    attached: Sequence[Interval] = ALWAYS
    """When it surely was attached and not quarantined."""
    merged: Sequence[Interval] = ALWAYS
    """When it may have been merged at all. The output cannot follow a stable that it publishes
    outside, unless another such span begins later."""


@dataclass(frozen=True, slots=True)
class ProgressDemand:
    """What K5 demands."""

    within_ms: int
    quorum: int = 1
    """So many healthy replicas must have reached a point before the output has to."""
    lag: int = 0
    """How far behind the output may stay, in the elements' unit of time."""
    read_at: int | None = None
    """When the topics were read, in milliseconds; by default the time of the last record."""


@dataclass(frozen=True, slots=True)
class History:
    """The input of the judge."""

    output: CommittedTopic
    replicas: Mapping[str, ReplicaHistory]
    reference: TDB | None = None
    """The true events, at all times; its stable point is ignored."""
    keyed: bool = True
    """(payload, vs) is a key, as in cases R0, R2 and R3."""
    progress: ProgressDemand | None = None
    skew_ms: int = 1_000
    """How far the clocks of those who write may be apart."""
    kills: int = 0
    """How often the service was killed within the history."""
    lost: Sequence[tuple[int, int]] = ()
    """Ranges of time, without their ends, that were given up by accepting a gap."""
    decided: ControlHistory | None = None
    answers: Sequence[Answer] = ()
    """The answers to decisions."""
    faults: Sequence[InjectedFault] = ()
    capture: Capture | None = None
    decoder: WireDecoder = field(default_factory=WireDecoder)


def check(history: History) -> HistoryReport:
    """All checks that the history has something for."""
    *former, last = incarnations(history.output)
    reports = [_of_incarnation(history, each, is_last=False) for each in former]
    report = _of_incarnation(history, last, is_last=True)
    if not former:
        return report
    named = {
        each.incarnation: findings
        for each, findings in zip([*former, last], [*reports, report], strict=True)
    }
    return HistoryReport(tuple(_together(each.check, named) for each in report.findings))


def _together(check: str, reports: Mapping[int, HistoryReport]) -> CheckResult:
    """The findings of one check about several incarnations."""
    found = [
        (number, finding)
        for number, report in reports.items()
        for finding in report.findings
        if finding.check == check
    ]
    evidence = [f"incarnation {number}: {e}" for number, each in found for e in each.evidence]
    outcome = worst(each.outcome for _, each in found)
    return CheckResult(check, outcome, tuple(evidence), sum(each.total for _, each in found))


def _of_incarnation(history: History, one: OneIncarnation, *, is_last: bool) -> HistoryReport:
    lost = [*history.lost, *([(START, one.correct_from)] if one.correct_from > START else [])]
    progress, faults = (history.progress, history.faults) if is_last else (None, ())
    history = replace(history, output=one.topic, lost=lost, progress=progress, faults=faults)
    findings = _checked(history)
    wrong = CheckResult.of("K4", one.wrong) if one.wrong else None
    if wrong is None:
        return findings
    return HistoryReport(tuple(wrong if each.check == "K4" else each for each in findings.findings))


def _checked(history: History) -> HistoryReport:
    read = _Read(history)
    findings = [_k1(read), _k2(read), _k3(read), _k4(read)]
    if history.kills:
        findings.append(_k7(history.kills, findings))
    if history.progress is not None:
        findings.append(_k5(read, history.progress))
    if history.faults:
        findings.append(k8(history.faults, history.capture))
    if history.decided is not None:
        findings.append(k9(history.decided, history.answers))
    return HistoryReport(tuple(sorted(findings, key=lambda finding: finding.check)))


def tally(history: History) -> WrongEvents | None:
    """How many events violate K1 and K2; None where that is unknown."""
    read = _Read(history)
    reference, _ = _reference(read)
    if reference is None or read.lost():
        return None
    found, right = _final(read, reference, min(reference.stable, read.output.stable))
    surplus = found - right
    doubled = sum(count for event, count in surplus.items() if event in right)
    lacking = Counter((payload, vs) for payload, vs, _ in (right - found).elements())
    extra = Counter((payload, vs) for payload, vs, _ in surplus.elements())
    return WrongEvents(
        lost=(lacking - extra).total(), contradicted=extra.total() - doubled, doubled=doubled
    )


class _Read:
    """A history with its topics read."""

    def __init__(self, history: History):
        self.history = history
        keyed, decoder = history.keyed, history.decoder
        self.output: MergedOutput = read_output(history.output, decoder, keyed=keyed)
        self.lives: dict[str, list[IncarnationOutput]] = {
            name: read_replica(replica.topic, decoder, keyed=keyed)
            for name, replica in history.replicas.items()
        }

    def honest(self) -> Iterator[tuple[str, list[IncarnationOutput]]]:
        for name, lives in self.lives.items():
            if self.history.replicas[name].honest:
                yield name, lives

    def given_up(self, events: Iterable[_Event]) -> set[Key]:
        """Those of some events that end in what was given up."""
        ranges = self.history.lost
        return {(p, vs) for p, vs, ve in events if any(start <= ve < end for start, end in ranges)}

    def lost(self) -> list[str]:
        """Topics that have lost their beginning, so that their content is incomplete."""
        topics = [self.history.output, *(r.topic for r in self.history.replicas.values())]
        return [f"{t.name} has lost its beginning" for t in topics if t.beginning_lost]


# --- K1 -------------------------------------------------------------------------------------------


def cut(events: Iterable[_Event], c: int) -> _Events:
    """What stable(c) has made final of some events (payload, vs, ve)."""
    return Counter((payload, vs, min(ve, c)) for payload, vs, ve in events if vs < c)


def _k1(read: _Read) -> CheckResult:
    if unclear := read.lost():
        return CheckResult.of("K1", [], unclear)
    reference, unclear = _reference(read)
    if reference is None:
        return CheckResult.of("K1", [], unclear)
    c = read.output.stable
    if reference.stable < c:
        unclear = [*unclear, f"the reference is final to {reference.stable} only, OUT to {c}"]
        c = reference.stable
    excused = read.given_up(reference)
    found, right = _final(read, reference, c)
    wrong = _differences(found, right, c) + _beyond(read.output, reference, excused, c)
    return CheckResult.of("K1", wrong, unclear)


def _final(read: _Read, reference: TDB, c: int) -> tuple[_Events, _Events]:
    """What the output has, and is to have, as far as it is final at c."""
    excused = read.given_up(reference)
    return (
        _without(excused, cut(read.output.tdb(), c)),
        _without(excused, cut(reference, c)),
    )


def _without(keys: Container[Key], events: _Events) -> _Events:
    return Counter({event: count for event, count in events.items() if event[:2] not in keys})


def _reference(read: _Read) -> tuple[TDB | None, list[str]]:
    """The given one, or that of the furthest honest replica, if the others agree with it."""
    if read.history.reference is not None:
        return TDB(read.history.reference, INFINITY), []
    whole = [
        (name, lives[-1].tdb()) for name, lives in read.honest() if lives[-1].joining_at == START
    ]
    if not whole:
        return None, ["no reference: no honest replica is there from the beginning"]
    first, furthest = max(whole, key=lambda each: each[1].stable)
    for name, tdb in whole:
        c = min(tdb.stable, furthest.stable)
        if cut(tdb, c) != cut(furthest, c):
            return None, [f"no reference: {name} and {first} disagree before {c}"]
    return furthest, []


def _differences(found: _Events, right: _Events, c: int) -> list[str]:
    return [
        *(f"OUT lacks {_text(event)}, cut at {c}" for event in _sorted(right - found)),
        *(
            f"OUT has {_text(event)}, cut at {c}, which is not in the reference"
            for event in _sorted(found - right)
        ),
    ]


def _beyond(output: MergedOutput, reference: TDB, excused: Container[Key], c: int) -> list[str]:
    """A partition that is ahead of the others may hold only true events, and each key is in one
    partition, so that whatever it has between the two stable points must be the reference's."""
    wrong = []
    for number, stream in enumerate(output.streams):
        ahead = min(stream.stable, reference.stable)
        extra = _without(excused, cut(stream, ahead) - cut(reference, ahead))
        wrong += [
            f"OUT-{number} has {_text(event)}, cut at {ahead}, which is not in the reference"
            for event in _sorted(extra)
            if ahead > c
        ]
    return wrong


def _sorted(events: _Events) -> list[_Event]:
    return sorted(events.elements(), key=lambda event: (event[1], event[2], repr(event[0])))


def _text(event: _Event) -> str:
    payload, vs, ve = event
    text = payload.decode(errors="replace") if isinstance(payload, bytes) else repr(payload)
    return f"{text if len(text) <= 60 else text[:57] + '...'} [{vs}, {ve})"


# --- K2 -------------------------------------------------------------------------------------------


def _k2(read: _Read) -> CheckResult:
    wrong = list(read.output.doubled)
    if not read.history.keyed:
        most: Counter[Key] = Counter()
        for lives in read.lives.values():
            for life in lives:
                most |= Counter((payload, vs) for payload, vs, _ in life.tdb())
        for stream in read.output.streams:
            final = Counter((payload, vs) for payload, vs, _ in stream if vs < stream.stable)
            wrong += [
                f"OUT has {payload!r} at {vs} {count} times, replicas {most[payload, vs]} at most"
                for (payload, vs), count in final.items()
                if count > most[payload, vs]
            ]
    return CheckResult.of("K2", wrong, read.lost() if not read.history.keyed else ())


# --- K3 -------------------------------------------------------------------------------------------


def _k3(read: _Read) -> CheckResult:
    if unclear := read.lost():
        return CheckResult.of("K3", [], unclear)
    held: Counter[Key] = Counter((payload, vs) for payload, vs, _ in read.output.tdb())
    passed = read.output.stable
    reference, wrong = read.history.reference, []
    for name, lives in read.honest():
        attached = read.history.replicas[name].attached
        for life in lives:
            excused = read.given_up(life.tdb() if reference is None else reference)
            for (payload, vs), count, text in _owed(life, attached):
                if vs < passed and held[payload, vs] < count and (payload, vs) not in excused:
                    wrong.append(f"OUT lacks what {name} published and froze: {text}")
    return CheckResult.of("K3", wrong)


def _owed(life: IncarnationOutput, attached: Sequence[Interval]) -> Iterator[tuple[Key, int, str]]:
    """Each key that the output must hold because of a life: how often, and its places."""
    for stream in life.streams:
        for (payload, vs), events in stream.events.items():
            frozen = stream.frozen_at(vs)
            owed = [
                event
                for event in events
                if frozen is not None
                and event.ve >= life.joining_at
                and any(span.holds(event.at, frozen) for span in attached)
            ]
            if owed:
                places = ", ".join(event.record.place for event in owed)
                text = f"{_text((payload, vs, owed[0].ve))} at {places}"
                yield (payload, vs), len(owed), text


# --- K4 -------------------------------------------------------------------------------------------


def _k4(read: _Read) -> CheckResult:
    wrong = list(read.output.illegal)
    for number, stables in enumerate(read.output.stables):
        leading, highest, index = _leading(read, number), START, 0
        for at, vc in stables:
            while index < len(leading) and leading[index][0] <= at + read.history.skew_ms:
                highest = max(highest, leading[index][1])
                index += 1
            if vc > highest:
                wrong.append(
                    f"OUT-{number} emitted stable({vc}) when no replica was past {highest}"
                )
    unclear = read.lost()
    return CheckResult.of("K4", [] if unclear else wrong, unclear)


def _leading(read: _Read, number: int) -> list[tuple[int, int]]:
    """(milliseconds, point): what the output's partition of this number may follow, and when."""
    return sorted(
        (merged, point)
        for name, lives in read.lives.items()
        if (replica := read.history.replicas[name]).may_lead
        for life in lives
        for at, point in stables_by_time(life, number if replica.co_partitioned else None)
        if (merged := _first_merged(at, replica.merged)) is not None
    )


def _first_merged(at: int, merged: Sequence[Interval]) -> int | None:
    """When something that was published at some time may have been merged first; None: never."""
    return next((max(at, span.start) for span in merged if span.end >= at), None)


# --- K5 -------------------------------------------------------------------------------------------


def _k5(read: _Read, required: ProgressDemand) -> CheckResult:
    emitted = [list(stables) for stables in read.output.stables]
    every = [read.history.output, *(r.topic for r in read.history.replicas.values())]
    last = max((record.timestamp for topic in every for record in topic.records), default=0)
    read_at = last if required.read_at is None else required.read_at
    wrong: list[str] = []
    unclear: list[str] = []
    for at, point in _healthy(read, required.quorum):
        goal = point if point == INFINITY else point - required.lag
        due = at + required.within_ms
        for number, stables in enumerate(emitted):
            if not any(vc >= goal and when <= due for when, vc in reversed(stables)):
                late = f"OUT-{number} was not at {goal} by {due}, {required.within_ms} ms after"
                (wrong if due <= read_at else unclear).append(f"{late} {at}")
    return CheckResult.of("K5", wrong, unclear)


def _healthy(read: _Read, quorum: int) -> list[tuple[int, int]]:
    """(milliseconds, point): when so many healthy replicas had reached a higher point. A replica
    that joins late counts from nothing: when it is joined depends on the output."""
    changes = []
    for name, lives in read.honest():
        replica = read.history.replicas[name]
        changes += [
            (at, name, point)
            for life in lives
            if life.joining_at == START and replica.may_lead
            for at, point in stables_by_time(life)
            if any(span.holds(at) for span in replica.attached)
        ]
    reached = dict.fromkeys(read.lives, START)
    found: list[tuple[int, int]] = []
    highest = START
    for at, name, point in sorted(changes):
        reached[name] = max(reached[name], point)
        decided = sorted(reached.values(), reverse=True)[quorum - 1]
        if decided > highest:
            highest = decided
            found.append((at, highest))
    return found


# --- K7 -------------------------------------------------------------------------------------------


def _k7(kills: int, findings: Sequence[CheckResult]) -> CheckResult:
    evidence = tuple(
        f"after {kills} kills, {finding.check}: {piece}"
        for finding in findings
        for piece in finding.evidence
    )
    outcome = worst(finding.outcome for finding in findings)
    return CheckResult("K7", outcome, evidence, len(evidence))
