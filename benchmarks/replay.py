"""What revisions by replay cost: Table 3 of Maskey and Cherniack (SSPS 2008) anew.

Method
    The paper's setting: stocks with a quote a second each, an archive that holds a day of them, and
    83 minutes more that arrive, with a replacement of one of the last 23 hours' prices now and
    then. Three queries:

    Q1      the average of five minutes per stock, every five minutes (tumbling)
    Q2      the average of five minutes per stock, every minute (sliding)
    Q3      BUY where the average of a minute of one stock exceeds that of five, else SELL (filter,
            windows of both kinds, a join)

    The paper has 200 stocks: 17.28 M archived rows, 1 M new ones, buckets of 500,000 (with HIGH:
    50,000). Here there are `stocks` of them, over the same times, so that a window of a stock has
    as many quotes as there, and buckets smaller by the same factor; the number of revisions is the
    paper's: 1 (LOW), 2 (MOD), 10 (HIGH). All queries emit on close.

    RA      Replay-All: the whole archive is read, and the revised stock's quotes are computed again
    RM      Replay-Minimal, by the archived output: rows carry lineage
    plan    the same without an archived output, by what the plan says of its windows

    STP     standard processing: the query, and archiving its input, and under RM its output
    RTP     revision processing: looking up, replaying, emitting
    alone   the query without any archive; the overhead is measured in turn with it

    Seconds are the process's, of all threads: the paper's machine had nothing else to do, ours has.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from lmerge_service.elements import Insert, Stable
from lmerge_service.queries.expressions import col, when
from lmerge_service.queries.physical import build
from lmerge_service.queries.plan import Query, average, facts, hopping, tumbling
from lmerge_service.queries.replay.archive import Archived, BucketArchive, FolderStore
from lmerge_service.queries.replay.lineage import with_lineage
from lmerge_service.queries.replay.revising import Reviser, Revision

__all__ = ("MIXES", "QUERIES", "TECHNIQUES", "Times", "alone", "measure", "paper", "run")

Report: TypeAlias = "Callable[[str, str, Sequence[float]], None]"

MINUTE, HOUR = 60, 3_600
_PAPER_STOCKS: Final = 200
_DAY: Final = 24 * HOUR
_NEW: Final = 5_000
"""Seconds that arrive: 1 M quotes of 200 stocks."""
_BATCH: Final = 500
_TURNS: Final = 5

QUOTES = facts("quotes", time="t", fields={"symbol": str, "price": float})


def _signal() -> Query:
    one = QUOTES.where(col.symbol == "S0")
    fast = one.windows(tumbling(MINUTE)).by("symbol").aggregate(fast=average("price"))
    slow = one.windows(hopping(5 * MINUTE, every=MINUTE)).by("symbol")
    both = fast.last().join(slow.aggregate(slow=average("price")).last(), "symbol")
    return both.select("symbol", signal=when(col.fast > col.slow, "BUY").otherwise("SELL"))


QUERIES: Final = {
    "Q1": QUOTES.windows(tumbling(5 * MINUTE)).by("symbol").aggregate(price=average("price")),
    "Q2": QUOTES.windows(hopping(5 * MINUTE, every=MINUTE))
    .by("symbol")
    .aggregate(price=average("price")),
    "Q3": _signal(),
}
MIXES: Final = {"LOW": (1, 500_000), "MOD": (2, 500_000), "HIGH": (10, 50_000)}
"""Revisions, and rows of a bucket in the paper."""
TECHNIQUES: Final = ("RA", "RM", "plan")


@dataclass(frozen=True, slots=True)
class Times:
    """What a run took: seconds of the processor."""

    standard: float
    revisions: float
    inserts: float
    """Of `standard`, what archiving took."""
    read: int
    """Buckets that revisions read."""
    replayed: int
    """Archived rows that were computed once more, with the revision and without."""
    emitted: int
    """Elements that revisions emitted."""


def quotes(stocks: int, start: int, seconds: int, rng: Random) -> Iterator[list[Archived]]:
    """Quotes of all stocks, in order, by batches."""
    batch: list[Archived] = []
    for at in range(start, start + seconds):
        for stock in range(stocks):
            row = (f"S{stock}", round(rng.uniform(50, 150), 2))
            batch.append(Archived(at * stocks + stock, row, at, at + 1))
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class _Run:
    """A query with its archives, of one technique."""

    def __init__(self, query: Query, technique: str, bucket: int, folder: Path) -> None:
        archive = BucketArchive(FolderStore(folder / "input"), bucket)
        self.archives = {"quotes": archive}
        lineage, plan = None, query.plan
        if technique == "RM":
            lineage = BucketArchive(FolderStore(folder / "output"), bucket)
            plan = with_lineage(query.plan) or query.plan
        self.reviser = Reviser(
            query.plan, self.archives, "all" if technique == "RA" else "minimal", lineage
        )
        self.network = build(plan, emit="on_close")
        self.standard = self.inserts = 0.0

    def take(self, batch: list[Archived]) -> None:
        """Processes and archives quotes."""
        begun = time.process_time()
        numbered = self.reviser.lineage is not None
        inserts: list[Any] = [
            Insert((*e.payload, e.sequence) if numbered else e.payload, e.vs, e.ve) for e in batch
        ]
        emitted = self.network.process_batch("quotes", [*inserts, Stable(batch[-1].vs)])
        computed = time.process_time()
        self.archives["quotes"].append(batch)
        if numbered:
            self.reviser.archive_output(emitted)
        done = time.process_time()
        self.standard += done - begun
        self.inserts += done - computed


def alone(query: Query, stocks: int, seconds: int = _NEW) -> float:
    """Seconds of the query over what arrives, without any archive."""
    network, rng, taken = build(query, emit="on_close"), Random(1), 0.0
    for batch in quotes(stocks, _DAY, seconds, rng):
        begun = time.process_time()
        inserts: list[Any] = [Insert(e.payload, e.vs, e.ve) for e in batch]
        network.process_batch("quotes", [*inserts, Stable(batch[-1].vs)])
        taken += time.process_time() - begun
    return taken


def measure(
    query: Query,
    technique: str,
    revisions: int,
    bucket: int,
    stocks: int,
    *,
    day: int = _DAY,
    seconds: int = _NEW,
) -> Times:
    """One run: a day is archived, and then what arrives is measured."""
    rng = Random(1)
    with TemporaryDirectory() as folder:
        of = _Run(query, technique, bucket, Path(folder))
        kept: dict[int, Archived] = {}
        for batch in quotes(stocks, 0, day, rng):
            of.take(batch)
            kept.update((e.sequence, e) for e in batch if e.payload[0] == "S0")
        of.standard = of.inserts = 0.0
        gap, left, spent, emitted = seconds // (revisions + 1), revisions, 0.0, 0
        for archive in of.reviser.all_archives():
            archive.read = 0
        for batch in quotes(stocks, day, seconds, rng):
            of.take(batch)
            now = batch[-1].vs
            if left and now >= day + gap * (revisions - left + 1):
                left -= 1
                revision = _revision(rng, kept, now)
                begun = time.process_time()
                emitted += len(of.reviser.revise(revision))
                spent += time.process_time() - begun
        read = sum(archive.read for archive in of.reviser.all_archives())
        return Times(of.standard, spent, of.inserts, read, of.reviser.replayed, emitted)


def _revision(rng: Random, kept: dict[int, Archived], now: int) -> Revision:
    """Of a price of the last 23 hours whose windows are closed."""
    here = [e for e in kept.values() if now - 23 * HOUR <= e.vs < now - 10 * MINUTE]
    old = rng.choice(here)
    new = old._replace(payload=(old.payload[0], old.payload[1] + 25.0))
    kept[old.sequence] = new
    return Revision(
        "quotes",
        Insert(old.payload, old.vs, old.ve),
        Insert(new.payload, new.vs, new.ve),
        old.sequence,
    )


def paper(query: str, mix: str, technique: str) -> tuple[float, float]:
    """STP and RTP of the paper, in minutes."""
    path = Path(__file__).parents[1] / "tests" / "vectors" / "borealis.json"
    (row,) = [
        case["value"]
        for case in json.loads(path.read_text())
        if case["id"] == f"bo-m-table3-{query}-{mix}-{technique}"
    ]
    return row["STP"], row["RTP"]


def run(stocks: int, runs: int, report: Report) -> None:
    """All rows of the table, beside those of the paper."""
    factor = _PAPER_STOCKS // stocks
    for name, query in QUERIES.items():
        _overhead(name, query, stocks, factor, report)
        for mix, (revisions, bucket) in MIXES.items():
            for technique in TECHNIQUES:
                found = [
                    measure(query, technique, revisions, max(1, bucket // factor), stocks)
                    for _ in range(runs)
                ]
                _report(f"{name} {mix} {technique}", found, report)
                if technique != "plan":
                    for what, minutes in zip(
                        ("STP", "RTP"), paper(name, mix, technique), strict=True
                    ):
                        report(f"{name} {mix} {technique} {what}, paper", "min", [minutes])


def _overhead(name: str, query: Query, stocks: int, factor: int, report: Report) -> None:
    """What a quote takes without revisions, in turn without an archive and with each kind."""
    bucket, seconds = 500_000 // factor, 4 * _NEW
    took: dict[str, list[float]] = {"alone": [], "RA": [], "RA, of it archiving": [], "RM": []}
    for _ in range(_TURNS):
        took["alone"].append(alone(query, stocks, seconds))
        for technique in ("RA", "RM"):
            found = measure(query, technique, 0, bucket, stocks, day=0, seconds=seconds)
            took[technique].append(found.standard)
            if technique == "RA":
                took["RA, of it archiving"].append(found.inserts)
    for what, values in took.items():
        micros = [each / (seconds * stocks) * 1e6 for each in values]
        report(f"{name} no revisions, {what}", "µs a quote", micros)


def _report(name: str, found: Sequence[Times], report: Report) -> None:
    report(f"{name} STP", "s", [each.standard for each in found])
    report(f"{name} STP, of it archiving", "s", [each.inserts for each in found])
    report(f"{name} RTP", "s", [each.revisions for each in found])
    report(f"{name} buckets read", "", [each.read for each in found])
    report(f"{name} rows replayed", "", [each.replayed for each in found])
