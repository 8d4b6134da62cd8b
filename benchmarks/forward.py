"""Two plans of one query over a real Kafka, each expensive where the other is cheap, without and
with feedback (the paper's VI-E3, Figure 10).

Method
    The topology is topologies/fast-forward.yaml as it ships, with its worker and its two plans,
    each a process. Which plans of the query these are is chosen anew, by a sample of readings and
    by what work costs on this machine. Four runs, one after the other, each with a Kafka of its own
    and the same readings, all of which are there when it begins: either plan by itself, without a
    worker; both merged, without feedback; both merged, with it. A run lasts from the first event
    that a read_committed consumer gets until the end of the stream. After it, what came out has to
    be legal, and equivalent to what the generator knows to be the query's answer; and no replica
    may have been blamed for anything.

    What a reading takes is mostly a wait (`demo.whole_readings` explains why), so the ratio shows
    what feedback saves, and not how two plans share the machine. The expensive readings that the
    plans processed are counted, too.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from benchmarks.availability import Consumer, Flow, all_joined
from benchmarks.fleet import Report, log_line, staged
from benchmarks.traffic import following
from lmerge_service.config import topology as topologies
from lmerge_service.demo.whole_readings import Ledger, entered_in, whole
from lmerge_service.elements import Insert
from lmerge_service.errors import LMergeError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.broker import default_directory
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage, shipped_topology
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.offline.audit import Audited, audit_topic, compare
from lmerge_service.queries.checking import Step
from lmerge_service.queries.choosing import choose, priced
from lmerge_service.queries.costs.calibrating import calibrated
from lmerge_service.queries.costs.measuring import measured, measured_parts
from lmerge_service.queries.costs.units import UnitCosts, read_units
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.rows import Row
from lmerge_service.tdb import TDB
from lmerge_service.workloads.readings import Reading, readings

__all__ = ("WAYS", "Run", "Way", "chosen_plans", "draw", "measure", "run")

_TOPOLOGY: Final = "fast-forward.yaml"
_PLANS: Final = "udf0", "udf1"
_REPORT_SECONDS: Final = 10.0
_BATCHES: Final = 20
"""So many of the smallest batch are all readings; the largest is three times as much."""
_SAMPLE: Final = 4_000
"""Readings that the plans are chosen by."""


@dataclass(frozen=True, slots=True)
class Way:
    """Which plans run, and how."""

    plans: tuple[str, ...] = _PLANS
    merged: bool = True
    uses_feedback: bool = False


WAYS: Final[Mapping[str, Way]] = {
    "UDF0": Way(("udf0",), merged=False),
    "UDF1": Way(("udf1",), merged=False),
    "LM": Way(),
    "LM+Feedback": Way(uses_feedback=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What came out when, in seconds from the first event, and what the plans went through."""

    passed: Sequence[tuple[float, int]]
    expensive: int
    skipped: int

    @property
    def seconds(self) -> float:
        """Until the end of the stream, which comes last."""
        return self.passed[-1][0]

    def curve(self) -> Iterator[tuple[float, int]]:
        """How many events were out at which time.

        >>> list(Run([(0.0, 2), (0.5, 3)], 0, 0).curve())
        [(0.0, 2), (0.5, 5)]
        """
        times, counts = zip(*self.passed, strict=True)
        return zip(times, accumulate(counts), strict=True)


async def run(count: int, ways: Mapping[str, Way] = WAYS) -> dict[str, Run]:
    """Runs all four, or some, over so many readings.

    Raises:
        LMergeError: a process failed, or what came out is not the query's answer.
    """
    place = default_directory("calibration.json")
    if (units := read_units(place)) is None:
        log_line(f"measuring what work costs here: there is no {place}")
        units = calibrated(time.process_time_ns)
    plans = chosen_plans(units)
    log_line(f"plans {' and '.join(map(str, plans))} are chosen")
    return {name: await _play(name, way, count, plans) for name, way in ways.items()}


def chosen_plans(units: UnitCosts) -> list[int]:
    """The numbers of two plans of the query, by what they cost over a sample of readings. None may
    be behind: what waits until it is final would be."""
    plans, ledger = numbered_plans(whole), Ledger()
    batch = (_SAMPLE // _BATCHES, 3 * _SAMPLE // _BATCHES)
    steps = [
        Step(f"{number}", "readings", [Insert(_row(each), each.vs, each.ve)])
        for number, each in enumerate(readings(_SAMPLE, batch=batch, seed="sample"))
    ]
    shapes = [plan.plan for plan in plans]
    with entered_in(ledger):
        known = measured(shapes, steps, ledger.nanoseconds)
        parts = measured_parts(shapes, steps, ledger.nanoseconds)
    costs = priced(plans, known, units, parts)
    return sorted(each.number for each in choose(costs, len(_PLANS), most_lag=0))


def _row(reading: Reading) -> Row:
    row = whole.schema.row(json.loads(reading.payload))
    assert isinstance(row, tuple)
    return row


async def _play(name: str, way: Way, count: int, numbers: Sequence[int]) -> Run:
    async with staged() as stage:
        commands = _commands(way, count, numbers)
        connection, flow = Connection(stage.bootstrap), Flow()
        output = await _topics(connection, way)
        log_line(f"{name}: publishing {count:,} readings")
        await _ended(await _start(stage, commands, "readings"))
        options = ("--bootstrap", stage.bootstrap)
        worker = WorkerProcess(stage, "worker", shipped_topology(_TOPOLOGY), options)
        if way.merged:
            await worker.start()
            await worker.until(all_joined, "all replicas to be joined", seconds=60)
        consumer = Consumer(connection, output, flow, time.monotonic(), _inserts)
        async with following(consumer):
            await consumer.ready.wait()
            plans = {each: await _start(stage, commands, each) for each in way.plans}
            while not consumer.ended.is_set():
                _check(worker, *plans.values())
                out = sum(events for _, events in flow.passed)
                log_line(f"{name}: {out:,} events of {count:,} readings are out")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(consumer.ended.wait(), _REPORT_SECONDS)
            for process in plans.values():
                await _ended(process)
        if way.merged:
            await _blameless(worker)
        log_line(f"{name}: auditing")
        found = await audit_topic(connection, output, WireDecoder())
        _right(found, commands["readings"])
        documents = [_last_counts(stage.folder / f"{each}.log") for each in way.plans]
    first = next(at for at, events in flow.passed if events)
    return Run(
        [(at - first, events) for at, events in flow.passed if at >= first],
        expensive=sum(each["dear"] for each in documents),
        skipped=sum(each["skipped"] for each in documents),
    )


async def _topics(connection: Connection, way: Way) -> str:
    """Makes the replicas' topics; which one is looked at."""
    topology = topologies.load(shipped_topology(_TOPOLOGY), bootstrap=connection.bootstrap)
    of_replicas = {each.name: each.topic for each in topology.replicas}
    async with Topics(connection) as topics:
        for topic in of_replicas.values():
            await topics.ensure(topic)
    return topology.output.topic if way.merged else of_replicas[way.plans[0]]


def _commands(way: Way, count: int, numbers: Sequence[int]) -> dict[str, list[str]]:
    """Of the shipped topology, by process, with the plans of these numbers."""
    topology = topologies.load(shipped_topology(_TOPOLOGY), bootstrap="127.0.0.1:1")
    assert topology.up is not None
    commands = {each.name: list(each.command) for each in topology.up.processes}
    least = max(1, count // _BATCHES)
    commands["readings"] = [
        *_without(commands["readings"], "--count"),
        *("--count", str(count), "--batch", f"{least}-{3 * least}"),
    ]
    for plan, number in zip(_PLANS, numbers, strict=True):
        command = [*_without(commands[plan], "--plan"), "--plan", str(number), "--json"]
        if not way.uses_feedback:
            command = _without(_without(command, "--feedback"), "--name")
        commands[plan] = command
    return commands


def _without(command: Sequence[str], option: str) -> list[str]:
    at = command.index(option)
    return [*command[:at], *command[at + 2 :]]


def _option(command: Sequence[str], option: str) -> str:
    return command[command.index(option) + 1]


async def _start(stage: Stage, commands: Mapping[str, Sequence[str]], name: str) -> Child:
    _, *arguments = commands[name]
    return await stage.lmerge(*arguments, "--bootstrap", stage.bootstrap, log=f"{name}.log")


async def _ended(process: Child) -> None:
    await process.wait()
    process.check()


def _check(*processes: Child) -> None:
    """Raises LMergeError if one of them has failed."""
    for process in processes:
        process.check()


def _inserts(records: Sequence[Record]) -> int:
    return sum((record.value or b"").startswith(b'{"op":"insert"') for record in records)


async def _blameless(worker: WorkerProcess) -> None:
    status = await worker.until(lambda _: True, "its status")
    if blamed := {each.name: each.breaches for each in status.replicas if each.breaches}:
        raise LMergeError(f"replicas are blamed: {blamed}")


def _right(found: Audited, command: Sequence[str]) -> None:
    """What came out means what the generator knows to be the answer."""
    least, most = map(int, _option(command, "--batch").split("-"))
    drawn = readings(
        int(_option(command, "--count")), batch=(least, most), seed=int(_option(command, "--seed"))
    )
    answer = TDB((each.payload, each.vs, each.ve) for each in drawn if each.whole)
    verdict = compare(Audited("the answer", answer), found)
    if not (verdict.equivalent and found.complete):
        raise LMergeError(f"{found.name} is not the query's answer: {verdict.differences[:3]}")


def _last_counts(log: Path) -> dict[str, int]:
    """How many readings the plan went through, and how."""
    documents = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    counts: dict[str, int] = [each["readings"] for each in documents if "readings" in each][-1]
    return counts


# --- what it comes to -----------------------------------------------------------------------------


def measure(runs: Mapping[str, Run], report: Report) -> None:
    """Reports how long each took, and what feedback saved."""
    for name, each in runs.items():
        report(f"{name}, until the end", "s", [each.seconds])
    for name, each in runs.items():
        report(f"{name}, dear readings", "", [each.expensive])
    report("LM+Feedback, readings left out", "", [runs["LM+Feedback"].skipped])
    report("LM over LM+Feedback", "×", [runs["LM"].seconds / runs["LM+Feedback"].seconds])


_COLOURS: Final = dict(zip(WAYS, ("#e69f00", "#009e73", "#cc79a7", "#0072b2"), strict=True))


def draw(runs: Mapping[str, Run], path: Path) -> None:
    """Draws Figure 10 as SVG; the same runs, the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9}):
        canvas = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = canvas.subplots()
        axes.set_title("Two plans, and feedback to them (VI-E3)", fontsize=10)
        for name, each in runs.items():
            times, events = zip(*_thinned(list(each.curve())), strict=True)
            axes.plot(times, events, color=_COLOURS[name], linewidth=1.2, label=name)
        axes.set_xlabel("s")
        axes.set_ylabel("events out")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, linewidth=0.3)
        axes.legend()
        canvas.savefig(path, format="svg", metadata={"Date": None})


def _thinned(curve: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """A point for each tenth of a second, and the last."""
    shown = -1
    for at, events in curve[:-1]:
        if (tenth := int(at * 10)) > shown:
            shown = tenth
            yield at, events
    yield curve[-1]
