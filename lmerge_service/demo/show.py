"""The play: three replicas of a month of flights, two of them dying, one merged stream.

    flights ─▶ A ordered, revised late ──▶ flights.a ─┐
            ─▶ B eager, phantoms ────────▶ flights.b ─┼─▶ lmerge run ─▶ flights.merged ─▶ verdict
            ─▶ C disordered, lagging ────▶ flights.c ─┘

C dies in the first third and starts over as a new incarnation; half-way, whichever replica leads
is killed for good.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from lmerge_service.demo.acting import DemoResult, Play, act, judged, staged, until_done, wait
from lmerge_service.demo.page import DemoPage
from lmerge_service.demo.throughput import measure
from lmerge_service.formats.ndjson import ElementWriter
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage
from lmerge_service.tdb import TDB
from lmerge_service.workloads.flights import VARIATIONS, flights
from lmerge_service.workloads.lifetime import Life, final_tdb
from lmerge_service.workloads.presentation import present

__all__ = ("play",)

_SPANS = {"a": 1.0, "b": 1.25, "c": 1.5}
"""How long each replica takes to publish all it has, relative to the seconds asked for."""


class _Play(Play):
    def __init__(self, stage: Stage, console: Console, pace: float, sizes: Mapping[str, int]):
        super().__init__(stage, console, "flights.yaml")
        self.pace, self.sizes = pace, sizes
        self.publishers: dict[str, Child] = {}


async def play(
    folder: Path,
    *,
    months: Sequence[int],
    seed: int,
    pace: float,
    bootstrap: str | None,
    console: Console,
    page: DemoPage | None = None,
) -> DemoResult:
    """Runs the whole play; whatever it started has ended when this returns or raises.

    Raises:
        LMergeError: something could not be started, or stopped moving.
    """
    started = time.monotonic()
    lives, reference, sizes = _present(folder, months, seed, console)
    async with staged(folder, bootstrap, console) as stage:
        acting = _Play(stage, console, pace, sizes)
        await act(acting, lambda: _script(acting), page)
        finding = await judged(acting, reference)
        console.print("measuring throughput beside a pass-through of the same bytes …")
        await measure(acting.merging, ".warm")
        throughput = await measure(acting.merging)
    return DemoResult(
        finding=finding,
        of="flights",
        count=len(lives),
        seconds=time.monotonic() - started,
        news=acting.news,
        throughput=throughput,
    )


def _present(
    folder: Path, months: Sequence[int], seed: int, console: Console
) -> tuple[list[Life], TDB, dict[str, int]]:
    console.print("presenting flights as three replicas …")
    lives = list(flights(months))
    sizes = {}
    for name in ("a", "b", "c"):
        count = 0
        with ElementWriter(str(folder / f"{name}.ndjson")) as writer:
            for element in present(lives, VARIATIONS[name.upper()], f"{seed}/{name}"):
                writer.write(element)
                count += 1
        sizes[name] = count
    counts = ", ".join(f"{name}: {count:,}" for name, count in sizes.items())
    console.print(f"{len(lives):,} flights; elements of {counts}", highlight=False)
    return lives, final_tdb(lives), sizes


async def _script(acting: _Play) -> None:
    """Who lives and who dies, and when."""
    for name in ("a", "b", "c"):
        await _publish(acting, name)
    await _until_merged(acting, 0.25)
    await acting.publishers["c"].kill()
    acting.report("kill -9 of replica c")
    await _until_merged(acting, 0.5)
    leader = (acting.status and acting.status.output.leader) or "a"
    await acting.publishers[leader].kill()
    acting.report(f"kill -9 of replica {leader}, which leads; it never comes back")
    await _publish(acting, "c", incarnation=1)
    acting.report("replica c is back; it has lost its state and starts over (incarnation 1)")
    await until_done(acting, acting.publishers.values())


async def _until_merged(acting: _Play, fraction: float) -> None:
    """Waits for so many elements of output, as a fraction of the smallest replica's."""
    goal = min(acting.sizes.values()) * fraction
    await wait(acting, f"{fraction:.0%} of the flights", lambda: acting.follower.elements > goal)


async def _publish(acting: _Play, name: str, incarnation: int = 0) -> None:
    topic = next(each.topic for each in acting.merging.replicas if each.name == name)
    acting.publishers[name] = await acting.stage.lmerge(
        "publish", str(acting.stage.folder / f"{name}.ndjson"), topic,
        "--bootstrap", acting.stage.bootstrap,
        "--rate", str(acting.sizes[name] / (acting.pace * _SPANS[name]) * (1 + incarnation)),
        "--incarnation", str(incarnation),
        log=f"{name}.log",
    )  # fmt: skip
