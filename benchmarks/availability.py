"""Fast availability over a real Kafka: what bursts and congestion of the inputs leave of the output
(the paper's VI-E1 and VI-E2, Figures 8 and 9).

Method
    The topology is topologies/fast-availability.yaml as it ships: a worker, as a process, merges
    four replicas, which this process sends instead of four, when each element is due by
    `workloads.pace`: 5,000 a second, with the stalls and the congestion that the topology names. An
    input's rate is what was handed to Kafka, the output's what a read_committed consumer got, both
    by the wall clock. At the end the output has to be equivalent to the flights.

    Figure 8 is the first seconds, before any congestion, in bins of 50 ms; Figure 9 the whole run,
    in bins of half a second. Where the machine cannot keep up with the rate, the run reports it:
    then it shows what the machine does, and not what the merge does.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Final

from benchmarks.fleet import Report, log_line, staged
from benchmarks.traffic import Sender, following
from lmerge_service.config import topology as topologies
from lmerge_service.elements import INFINITY, Element, Stable
from lmerge_service.errors import LMergeError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.records import Record
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.local.stage import shipped_topology
from lmerge_service.local.worker import WorkerProcess
from lmerge_service.offline.audit import Audited, audit_topic, compare
from lmerge_service.service.status.document import Status
from lmerge_service.workloads.flights import flights
from lmerge_service.workloads.lifetime import final_tdb
from lmerge_service.workloads.pace import due
from lmerge_service.workloads.presentation import Variation, present

__all__ = (
    "OUTPUT",
    "Consumer",
    "Disturbed",
    "Flow",
    "Run",
    "all_joined",
    "disturbed",
    "draw",
    "measure",
    "play",
)

OUTPUT: Final = "output"
_TOPOLOGY: Final = "fast-availability.yaml"
_TICK_SECONDS: Final = 0.005
_HOUR: Final = 3_600_000
_VARIATION: Final = Variation(ends="final", disorder=0.2, displacement=_HOUR, stable_every=100)
_WIDTHS: Final = 0.02, 0.05, 0.1, 0.25
_FINE: Final = 0.05
_COARSE: Final = 0.5
_PATIENCE_SECONDS: Final = 300.0
_BEFORE: Final = 1.0, 5.5
"""Seconds in which nothing is congested."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """How a replica of the topology is sent: the options of its `lmerge publish`."""

    topic: str
    rate: float
    stalls: float
    congested: tuple[tuple[float, float], ...]
    seed: int

    def due(self) -> Iterator[float]:
        """When each element is to be sent, in seconds from the start."""
        return due(self.rate, stalls=self.stalls, congested=self.congested, seed=self.seed)


@dataclass(slots=True)
class Flow:
    """What passed when: (seconds from the start, how many)."""

    passed: list[tuple[float, int]] = field(default_factory=list)

    def rates(self, width: float, start: float, end: float) -> list[float]:
        """Elements a second in each bin of a width in seconds.

        >>> Flow([(0.1, 5), (0.6, 1), (0.9, 2)]).rates(0.5, 0, 1)
        [10.0, 6.0]
        """
        counts = [0] * round((end - start) / width)
        for at, count in self.passed:
            if 0 <= (bin_ := int((at - start) / width)) < len(counts) and at >= start:
                counts[bin_] += count
        return [count / width for count in counts]

    @property
    def last(self) -> float:
        return self.passed[-1][0]


@dataclass(frozen=True, slots=True)
class Run:
    """What passed by input and for the output, and how the inputs were disturbed."""

    flows: Mapping[str, Flow]
    inputs: Mapping[str, Disturbed]

    @property
    def end(self) -> float:
        """Of the input that was first to have published all, in whole seconds."""
        return float(int(min(self.flows[name].last for name in self.inputs)))


def disturbed() -> dict[str, Disturbed]:
    """The replicas of the shipped topology by name."""
    topology = topologies.load(shipped_topology(_TOPOLOGY), bootstrap="127.0.0.1:1")
    assert topology.up is not None
    names = {each.name for each in topology.replicas}
    return {
        each.name: _disturbed(each.command) for each in topology.up.processes if each.name in names
    }


def _disturbed(command: Sequence[str]) -> Disturbed:
    given: dict[str, list[str]] = {}
    for option, value in pairwise(command):
        if option.startswith("--"):
            given.setdefault(option, []).append(value)
    spans = [span.split("-") for span in given.get("--congested", ())]
    return Disturbed(
        topic=command[3],
        rate=float(given["--rate"][0]),
        stalls=float(given["--stalls"][0]),
        congested=tuple((float(begin), float(end)) for begin, end in spans),
        seed=int(given["--seed"][0]),
    )


async def play(months: Sequence[int]) -> Run:
    """Runs it once.

    Raises:
        LMergeError: a process failed, or the output is not equivalent to the flights.
    """
    inputs = disturbed()
    log_line("presenting the flights")
    lives = list(flights(months))
    streams = {
        each.topic: list(present(lives, _VARIATION, f"1/{number}"))
        for number, each in enumerate(inputs.values())
    }
    gc.freeze()  # half a million elements: not to be looked through while they are sent
    async with staged() as stage:
        path = shipped_topology(_TOPOLOGY)
        output = topologies.load(path, bootstrap=stage.bootstrap).output.topic
        connection = Connection(stage.bootstrap)
        worker = WorkerProcess(stage, "worker", path, ("--bootstrap", stage.bootstrap))
        await worker.start()
        flows = await _flows(connection, worker, output, inputs, streams)
        if worker.ended is not None:
            raise worker.failure()
        log_line("reading the output back")
        found = await audit_topic(connection, output, WireDecoder())
    verdict = compare(Audited("the flights", final_tdb(lives)), found)
    if not (verdict.equivalent and found.complete):
        raise LMergeError(f"the output is not equivalent to the flights: {verdict.differences[:3]}")
    return Run(flows, inputs)


async def _flows(
    connection: Connection,
    worker: WorkerProcess,
    output: str,
    inputs: Mapping[str, Disturbed],
    streams: Mapping[str, Sequence[Element]],
) -> dict[str, Flow]:
    """Sends all of it, once the worker runs, and notes what passes."""
    flows = {name: Flow() for name in (*inputs, OUTPUT)}
    async with AsyncExitStack() as stack:
        senders = {
            name: await stack.enter_async_context(Sender(connection, each.topic))
            for name, each in inputs.items()
        }
        await worker.until(all_joined, "all replicas to be joined", seconds=_PATIENCE_SECONDS)
        began = time.monotonic()
        consumer = Consumer(connection, output, flows[OUTPUT], began)
        await stack.enter_async_context(following(consumer))
        await consumer.ready.wait()
        log_line("sending")
        await asyncio.gather(
            *(
                _send(senders[name], each, streams[each.topic], flows[name], began)
                for name, each in inputs.items()
            )
        )
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await consumer.ended.wait()
    return flows


def all_joined(status: Status) -> bool:
    """The worker leads, and has found all replicas."""
    return status.state == "running" and all(each.state == "joined" for each in status.replicas)


async def _send(
    sender: Sender, how: Disturbed, elements: Sequence[Element], flow: Flow, began: float
) -> None:
    """Each element as soon as it is due."""
    sent, times = 0, how.due()
    ahead = next(times)
    while sent < len(elements):
        now = time.monotonic() - began
        count = 0
        while ahead <= now and sent + count < len(elements):
            count, ahead = count + 1, next(times)
        if count:
            await sender.put(elements[sent : sent + count])
            flow.passed.append((time.monotonic() - began, count))
            sent += count
        await asyncio.sleep(max(_TICK_SECONDS, ahead + began - time.monotonic()))
    await sender.flush()


class Consumer:
    """Of the output, from its present end until its last element."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        flow: Flow,
        began: float,
        count: Callable[[Sequence[Record]], int] = len,
    ):
        self._connection, self._flow, self._began = connection, flow, began
        self._count = count
        self._tp = TopicPartition(topic, 0)
        self.ready, self.ended = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        async with Source(self._connection) as source:
            source.assign(await source.ends([self._tp]))
            self.ready.set()
            while True:
                for records in (await source.poll(0.2)).values():
                    passed = (time.monotonic() - self._began, self._count(records))
                    self._flow.passed.append(passed)
                    if WireDecoder().decode(records[-1].value) == Stable(INFINITY):
                        self.ended.set()


# --- what it comes to -----------------------------------------------------------------------------


def measure(run: Run, report: Report) -> None:
    """Reports how even each flow was before any congestion, and how low it was in each one."""
    due = fmean(each.rate for each in run.inputs.values())
    for name, flow in run.flows.items():
        rates = flow.rates(_FINE, *_BEFORE)
        report(f"{name}, elements a second ({due:,.0f} are due)", "1/s", [fmean(rates)])
        for width in _WIDTHS:
            deviation = _unevenness(flow.rates(width, *_BEFORE))
            report(f"{name}, deviation of {width * 1000:.0f} ms bins", "%", [deviation])
    for name, each in run.inputs.items():
        for begin, end in each.congested:
            for who in (name, OUTPUT):
                lowest = min(run.flows[who].rates(_COARSE, begin, end))
                report(f"{who} while {name} is congested, {begin:g}-{end:g} s", "1/s", [lowest])


def _unevenness(rates: Sequence[float]) -> float:
    """The standard deviation in percent of the mean."""
    return 100 * pstdev(rates) / fmean(rates)


# --- pictures -------------------------------------------------------------------------------------

_COLOURS: Final = dict(zip("abcd", ("#e69f00", "#009e73", "#cc79a7", "#56b4e9"), strict=True))
_OUTPUT: Final = "#0072b2"


def draw(run: Run, folder: Path) -> None:
    """Draws Figures 8 and 9 as SVG; the same run, the same bytes."""
    worst = max(run.inputs, key=lambda name: run.inputs[name].stalls)
    _panels(run, folder / "fig8.svg", "Bursts (VI-E1)", (worst, OUTPUT), _FINE, _BEFORE)
    congested = [name for name, each in run.inputs.items() if each.congested]
    _panels(
        run, folder / "fig9.svg", "Congestion (VI-E2)", (*congested, OUTPUT), _COARSE, (0, run.end)
    )


def _panels(
    run: Run,
    path: Path,
    title: str,
    names: Sequence[str],
    width: float,
    span: tuple[float, float],
) -> None:
    """One panel below the other, a rate each, with what is congested in grey."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9}):
        canvas = Figure(figsize=(7.2, 0.6 + 1.25 * len(names)), layout="constrained")
        canvas.suptitle(title, fontsize=10)
        panels = canvas.subplots(len(names), 1, sharex=True, sharey=True)
        colours = [_OUTPUT if name == OUTPUT else _COLOURS[name] for name in names]
        for axes, name, colour in zip(panels, names, colours, strict=True):
            rates = run.flows[name].rates(width, *span)
            times = [span[0] + number * width for number in range(len(rates))]
            axes.step(times, rates, where="post", color=colour, linewidth=1)
            for begin, end in run.inputs[name].congested if name in run.inputs else ():
                axes.axvspan(begin, end, color="0.9")
            axes.set_ylabel(name if name == OUTPUT else f"input {name}")
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, linewidth=0.3)
        panels[-1].set_xlabel(f"s; elements a second, in bins of {width * 1000:.0f} ms")
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path, format="svg", metadata={"Date": None})
