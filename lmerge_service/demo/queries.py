"""The other play: one query over a month of flights, written once, by five plans.

                              ┌─▶ Python, revises ───────▶ delays.early ──┐
                              ├─▶ Python, final only ────▶ delays.firm ───┤
    flights ─▶ flights.facts ─┼─▶ Python, in order ──────▶ delays.again ──┼─▶ lmerge run ─▶ verdict
                              ├─▶ Spark, same operators ─▶ delays.spark ──┤
                              └─▶ Spark by its own ──────▶ delays.native ─┘

Some facts come too late. The Python ones join when the Spark jobs have published. One of these is
killed, and goes on from its checkpoint; `again` is killed, and goes on where its last commit ended;
half-way `early`, which mostly leads, is killed for good.

Who owns what
    As in `show`: the stage ends every process, and those of Spark end with theirs.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from lmerge_service.demo.acting import DemoResult, Play, act, judged, staged, until_done, wait
from lmerge_service.demo.page import DemoPage
from lmerge_service.formats.payload import canonical
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.topics import Topics
from lmerge_service.local.processes import Child
from lmerge_service.local.stage import Stage, shipped_topology
from lmerge_service.tdb import TDB

__all__ = ("delays", "play_queries")

_FACTS: Final = "flights.facts"
_WIDTH: Final = 2
_PATIENCE_SECONDS: Final = 300.0
"""Two Sparks that start on a small machine, which does other things as well, take their time."""
_LATENESS: Final = 900_000
_HOUR: Final = 3_600_000
_QUERY: Final = "flights.py"
_SLIDE: Final = _HOUR // 3
_PYTHON: Final = {"early": "1", "firm": "2", "again": "3"}
_SPARK: Final = {"spark": ("--batch", "8000"), "native": ("--native", "--batch", "20000")}
"""The replicas: of which plan, and with which options."""


class _Play(Play):
    def __init__(self, stage: Stage, console: Console, month: int):
        super().__init__(stage, console, "delays.yaml", _PATIENCE_SECONDS)
        self.month = month
        self.replicas: dict[str, Child] = {}

    @property
    def past(self) -> float:
        """How much of the month is final on the output."""
        start, end = (_first_of(self.month + number) for number in (0, 1))
        stable = None if self.status is None else self.status.output.stable_point
        return 0.0 if stable is None else (stable - start) / (end - start)


def _first_of(month: int) -> int:
    years, month = divmod(month - 1, 12)
    return int(datetime(2013 + years, month + 1, 1, tzinfo=UTC).timestamp()) * 1000


async def play_queries(
    folder: Path, *, month: int, seed: int, pace: float, bootstrap: str | None, console: Console,
    page: DemoPage | None = None,
) -> DemoResult:  # fmt: skip
    """Runs the whole play; whatever it started has ended when this returns or raises.

    Raises:
        LMergeError: something could not be started, or stopped moving.
    """
    started = time.monotonic()
    async with staged(folder, bootstrap, console) as stage:
        acting = _Play(stage, console, month)
        async with Topics(acting.connection) as topics:
            await topics.ensure(_FACTS, partitions=_WIDTH)
        await act(acting, lambda: _script(acting, seed, pace), page)
        facts = await _facts(acting.connection)
        finding = await judged(acting, delays(facts))
    return DemoResult(
        finding=finding,
        of="facts",
        count=sum(fact["fact"] != "end" for its in facts.values() for fact in its),
        seconds=time.monotonic() - started,
        news=acting.news,
    )


async def _script(acting: _Play, seed: int, pace: float) -> None:
    """Who lives and who dies, and when."""
    feeding = await acting.stage.lmerge(
        "query", "feed", _FACTS, "--flights", str(acting.month),
        "--bootstrap", acting.stage.bootstrap,
        "--rate", str(83_000 / pace), "--seed", str(seed),
        "--late", "0.05", "--late-by", "7200",
        log="feed.log",
    )  # fmt: skip
    for name in _SPARK:
        await _run(acting, name)
        acting.report(f"replica {name} is started, which takes Spark a while")
    for name in _SPARK:
        await _until_publishing(acting, name)
        acting.report(f"replica {name} has published")
    for name in _PYTHON:
        await _run(acting, name)
        acting.report(f"replica {name} is started, without Spark")
    for name in _PYTHON:
        await _until_publishing(acting, name)
    await _kill(acting, "spark")
    await _run(acting, "spark")
    acting.report("replica spark is started again, and goes on from its checkpoint")
    await _kill(acting, "again")
    await _run(acting, "again")
    acting.report("replica again is started again, and goes on where its last commit ended")
    await wait(acting, "half of the month", lambda: acting.past > 0.5)
    await _kill(acting, "early")
    await until_done(acting, [feeding, *acting.replicas.values()])


async def _kill(acting: _Play, name: str) -> None:
    process = acting.replicas[name]
    if process.ended is None:
        await process.kill()
        acting.report(f"kill -9 of replica {name}")
    else:
        acting.report(f"replica {name} has ended before it could be killed")


async def _run(acting: _Play, name: str) -> None:
    folder, query = acting.stage.folder, f"{shipped_topology(_QUERY)}:delays"
    if name in _PYTHON:
        how: tuple[str, ...] = ("run", query, "--plan", _PYTHON[name], "--batch", "500")
    else:
        local = ("--master", "local[1]", "--checkpoint", str(folder / name))
        how = ("spark", query, *_SPARK[name], *local)
    acting.replicas[name] = await acting.stage.lmerge(
        "query", *how, "--to", f"delays.{name}", "--bootstrap", acting.stage.bootstrap,
        log=f"{name}.log",
    )  # fmt: skip


async def _until_publishing(acting: _Play, name: str) -> None:
    """Waits until a replica publishes."""

    def publishes() -> bool:
        if acting.replicas[name].ended is not None:
            raise acting.replicas[name].failure()
        replicas = acting.status.replicas if acting.status else ()
        return any(each.name == name and each.inserts for each in replicas)

    await wait(acting, f"replica {name} to publish", publishes)


# The reference: all facts at once, by nothing that the replicas share


async def _facts(connection: Connection) -> dict[int, list[Mapping[str, Any]]]:
    places = [TopicPartition(_FACTS, number) for number in range(_WIDTH)]
    found: dict[int, list[Mapping[str, Any]]] = {number: [] for number in range(_WIDTH)}
    async with Source(connection) as source:
        starts, ends = await source.beginnings(places), await source.ends(places)
        async for place, records in source.backlog(starts, ends):
            found[place.partition] += (json.loads(record.value or b"{}") for record in records)
    return found


def delays(facts: Mapping[int, Iterable[Mapping[str, Any]]]) -> TDB:
    """The correct result of the query, from the facts that are in time.

    >>> one = {"fact": "departed", "time": 0, "origin": "JFK", "delay": 5}
    >>> sorted(vs for _, vs, _ in delays({0: [one, one | {"time": -900_001}]}))
    [-2400000, -1200000, 0]
    """
    windows: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for its in facts.values():
        highest = None
        for fact in its:
            if fact["fact"] == "end":
                break
            time = fact["time"]
            if highest is not None and time < highest - _LATENESS:
                continue
            highest = time if highest is None else max(highest, time)
            if fact["fact"] == "departed":
                last = time // _SLIDE * _SLIDE
                for start in (last, last - _SLIDE, last - 2 * _SLIDE):
                    windows[fact["origin"], start].append(fact["delay"])
    return TDB(
        (_payload(origin, each), start, start + _HOUR) for (origin, start), each in windows.items()
    )


def _payload(origin: str, delayed: list[int]) -> bytes:
    payload = {
        "origin": origin,
        "flights": len(delayed),
        "delay": sum(delayed),
        "longest": max(delayed),
    }
    return canonical(json.dumps(payload).encode())
