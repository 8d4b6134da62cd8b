"""Runs the benchmarks; what the clock measures as minimum / median / maximum of the runs."""

import argparse
import asyncio
import json
import logging
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import msgspec

from benchmarks import (
    availability,
    chain,
    control_log,
    drills,
    figures,
    formats,
    forward,
    generated,
    in_process,
    jumpstart,
    kafka_to_kafka,
    kill_loop,
    migration,
    policies,
    queries,
    replay,
    replicas,
    rolling,
    service,
    soak,
    spark,
    spark_audit,
    spark_merge,
    speculation,
)
from benchmarks.migration_ways import Example
from benchmarks.sizes import TINY, Sizes
from lmerge_service.drills.plan import Refused
from lmerge_service.merge.tuning import quieten_garbage_collector

__all__ = ("Row", "main")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured quantity over several runs."""

    name: str
    unit: str
    values: Sequence[float] = field(default_factory=list)

    def __str__(self) -> str:
        low, middle, high = min(self.values), statistics.median(self.values), max(self.values)
        return f"{self.name:<58} {low:>12,.2f} {middle:>12,.2f} {high:>12,.2f}  {self.unit}"


def main() -> None:
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' warnings are no result
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--elements", type=int, default=100_000, help="events a replica (100,000)")
    parser.add_argument("--only", choices=("in-process", "kafka"), help="a part only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    what = parser.add_subparsers(
        dest="what",
        metavar="figures | availability | forward | drills | policies | service | soak | rolling | "
        "kill-loop | jumpstart | control-log | spark | spark-merge | generated | queries | "
        "replicas | chain | replay | migration | speculation | engine",
    )
    _add_engine(what)
    _add_figures(what)
    _add_availability(what)
    _add_forward(what)
    _add_drills(what)
    _add_policies(what)
    _add_service(what)
    _add_soak(what)
    _add_rolling(what)
    _add_kill_loop(what)
    _add_jumpstart(what)
    _add_control_log(what)
    _add_spark(what)
    _add_generated(what)
    _add_spark_merge(what)
    _add_queries(what)
    _add_replicas(what)
    _add_chain(what)
    _add_migration(what)
    _add_speculation(what)
    _add_replay(what)
    options = parser.parse_args()
    if options.what == "policies":
        _run_policies(options.events, options.json, options.out)
        return
    if options.what == "drills":
        _run_drills(options)
        return
    if options.what == "kill-loop":
        sys.exit(not _run_kill_loop(options))
    if options.what == "soak":
        print(_machine(), flush=True)
        sys.exit(not _run_soak(options))
    rows: list[Row] = []
    good = True

    def report(name: str, unit: str, values: Sequence[float]) -> None:
        rows.append(Row(name, unit, values))
        if not options.json:
            print(rows[-1], flush=True)

    if not options.json:
        print(f"{_machine()}\n{'':<58} {'min':>12} {'median':>12} {'max':>12}")
    if options.what == "figures":
        quieten_garbage_collector()
        _run_figures(options.only, options.runs, options.events, options.out, report)
    elif options.what == "availability":
        run = asyncio.run(availability.play(range(1, options.months + 1)))
        availability.measure(run, report)
        availability.draw(run, options.out)
    elif options.what == "forward":
        options.out.mkdir(parents=True, exist_ok=True)  # before the long work, not after it
        runs = asyncio.run(forward.run(options.readings))
        forward.measure(runs, report)
        forward.draw(runs, options.out / "fig10.svg")
    elif options.what == "service":
        asyncio.run(service.run(options.only, options.runs, _sizes(options), report))
    elif options.what == "control-log":
        logged = control_log.run(options.decisions, options.runs, report, whole=options.whole)
        asyncio.run(logged)
    elif options.what == "rolling":
        how = rolling.Rolling(minutes=options.minutes, workers=options.workers, rate=options.rate)
        good = asyncio.run(rolling.roll(how, report))
    elif options.what == "jumpstart":
        play = jumpstart.Play(options.runs, options.window, options.before, options.only)
        asyncio.run(jumpstart.run(play, report))
    elif options.what == "spark":
        if options.audit:
            runs, records, kafka = options.runs, options.records, not options.no_kafka
            spark_audit.run(runs, records, report, memory=options.memory, kafka=kafka)
        else:
            spark.run(options.runs, options.records, report)
    elif options.what == "generated":
        generated.run(options.events, report)
    elif options.what == "spark-merge":
        spark_merge.run(options.events, options.live, report)
    elif options.what == "queries":
        quieten_garbage_collector()
        clock = time.process_time if options.cpu else time.perf_counter
        queries.run(options.runs, options.elements, options.live, report, clock)
    elif options.what == "replicas":
        quieten_garbage_collector()
        asyncio.run(replicas.run(options.runs, options.facts, options.live, report))
    elif options.what == "chain":
        asyncio.run(chain.run(options.runs, options.rate, options.seconds, report))
    elif options.what == "migration":
        quieten_garbage_collector()
        options.out.mkdir(parents=True, exist_ok=True)  # before the long work, not after it
        played = migration.run(options.runs, Example(rate=options.rate))
        migration.measure(played, report)
        migration.draw(played, options.out)
    elif options.what == "replay":
        replay.run(options.stocks, options.runs, report)
    elif options.what == "speculation":
        options.out.mkdir(parents=True, exist_ok=True)  # before the long work, not after it
        speculation.run(options.readings, report, options.out)
    elif options.what == "engine":
        from benchmarks import engine  # which may not be installed

        engine.run(options.runs, options.events, report)
    else:
        _run(options.only, options.runs, options.elements, report)
    if options.json:
        found = [{"name": r.name, "unit": r.unit, "values": list(r.values)} for r in rows]
        print(json.dumps({"machine": _machine(), "rows": found}))
    sys.exit(not good)


_Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_engine(what: _Subparsers) -> None:
    engine = what.add_parser("engine", help="the engine by itself: rates, and memory of an event")
    engine.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    engine.add_argument("--events", type=int, default=100_000, help="events a replica (100,000)")
    engine.add_argument("--json", action="store_true", help="print JSON")


def _add_figures(what: _Subparsers) -> None:
    of_figures = what.add_parser("figures", help="measure and draw the paper's figures 2 to 7")
    of_figures.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    of_figures.add_argument("--events", type=int, default=20_000, help="events a replica (20,000)")
    of_figures.add_argument(
        "--only", type=_names_of_figures, default=tuple(figures.FIGURES), help="fig2,fig3,…,latency"
    )
    of_figures.add_argument("--json", action="store_true", help="print JSON")
    of_figures.add_argument("--out", type=Path, default=Path("docs/figures"), help="for the SVG")


def _add_spark(what: _Subparsers) -> None:
    of_spark = what.add_parser("spark", help="reading and writing elements with Spark")
    of_spark.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    of_spark.add_argument("--records", type=int, default=2_000_000, help="records (2,000,000)")
    of_spark.add_argument(
        "--audit", action="store_true", help="the audit at scale instead, of so many records twice"
    )
    of_spark.add_argument("--memory", default="2g", help="of the audit: Spark's heap (2g)")
    of_spark.add_argument(
        "--no-kafka", action="store_true", help="of the audit: streams in Parquet only"
    )
    of_spark.add_argument("--json", action="store_true", help="print JSON")


def _add_generated(what: _Subparsers) -> None:
    of_generated = what.add_parser("generated", help="generating streams, and tables of them")
    of_generated.add_argument("--events", type=int, default=5_000_000, help="events (5,000,000)")
    of_generated.add_argument("--json", action="store_true", help="print JSON")


def _add_spark_merge(what: _Subparsers) -> None:
    merge = what.add_parser("spark-merge", help="the merge in Spark, beside its own deduplication")
    merge.add_argument("--events", type=int, default=400_000, help="events a replica (400,000)")
    merge.add_argument(
        "--live", type=int, nargs="*", default=[1_000, 100_000, 1_000_000], help="live events"
    )
    merge.add_argument("--json", action="store_true", help="print JSON")


def _add_replicas(what: _Subparsers) -> None:
    of_replicas = what.add_parser("replicas", help="measure a replica of a query, and its restart")
    of_replicas.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    of_replicas.add_argument("--facts", type=int, default=400_000, help="facts (400,000)")
    of_replicas.add_argument("--live", type=int, default=100_000, help="live events (100,000)")
    of_replicas.add_argument("--json", action="store_true", help="print JSON")


def _add_chain(what: _Subparsers) -> None:
    of_chain = what.add_parser("chain", help="latency through a query and a merge behind it")
    of_chain.add_argument("--runs", type=int, default=3, help="runs (3)")
    of_chain.add_argument(
        "--rate", type=_at_least(10), default=1_000, help="facts a second (1,000)"
    )
    of_chain.add_argument("--seconds", type=float, default=30, help="measured (30)")
    of_chain.add_argument("--json", action="store_true", help="print JSON")


def _add_migration(what: _Subparsers) -> None:
    of_migration = what.add_parser("migration", help="one plan hands over to another, in four ways")
    of_migration.add_argument("--runs", type=int, default=3, help="runs of each (3)")
    of_migration.add_argument(
        "--rate", type=_at_least(10), default=100, help="elements a second (100)"
    )
    of_migration.add_argument("--json", action="store_true", help="print JSON")
    of_migration.add_argument("--out", type=Path, default=Path("docs/figures"), help="for the SVG")


def _add_speculation(what: _Subparsers) -> None:
    levels = what.add_parser("speculation", help="output, latency and state by level and disorder")
    levels.add_argument("--readings", type=_at_least(40), default=4_000, help="readings (4,000)")
    levels.add_argument("--json", action="store_true", help="print JSON")
    levels.add_argument("--out", type=Path, default=Path("docs/figures"), help="for the SVG")


def _add_replay(what: _Subparsers) -> None:
    replayed = what.add_parser("replay", help="revisions by replay: Table 3 of Maskey, Cherniack")
    replayed.add_argument("--runs", type=int, default=1, help="runs of each (1)")
    replayed.add_argument("--stocks", type=int, default=2, help="of the paper's 200 (2)")
    replayed.add_argument("--json", action="store_true", help="print JSON")


def _add_queries(what: _Subparsers) -> None:
    of_queries = what.add_parser("queries", help="the operators of queries, beside two libraries")
    of_queries.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    of_queries.add_argument("--elements", type=int, default=400_000, help="elements (400,000)")
    of_queries.add_argument(
        "--live", type=int, nargs="*", default=[1_000, 10_000, 100_000], help="live events"
    )
    of_queries.add_argument(
        "--cpu", action="store_true", help="CPU time of all threads, on a machine that is busy"
    )
    of_queries.add_argument("--json", action="store_true", help="print JSON")


def _add_policies(what: _Subparsers) -> None:
    of_policies = what.add_parser("policies", help="what each policy of LMR3 costs and brings")
    of_policies.add_argument("--events", type=int, default=10_000, help="events a replica (10,000)")
    of_policies.add_argument("--json", action="store_true", help="print JSON")
    of_policies.add_argument("--out", type=Path, default=Path("docs/figures"), help="for the SVG")


def _add_service(what: _Subparsers) -> None:
    of_service = what.add_parser("service", help="worker processes: rates, memory, recovery, …")
    of_service.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    of_service.add_argument(
        "--only", nargs="+", choices=service.NAMES, default=service.NAMES, metavar="NAME",
        help=", ".join(service.NAMES),
    )  # fmt: skip
    of_service.add_argument("--events", type=int, help="events a replica, for rates (300,000)")
    of_service.add_argument(
        "--backlog", type=int, help="events a replica, for `backlog` (1,000,000)"
    )
    of_service.add_argument(
        "--large", action="store_true", help="recovery of a million live events too"
    )
    of_service.add_argument("--tiny", action="store_true", help="hardly anything, to try it")
    of_service.add_argument("--json", action="store_true", help="print JSON")


def _add_soak(what: _Subparsers) -> None:
    default, bounds = soak.Soaking(), soak.Bounds()
    of_soak = what.add_parser("soak", help="the service for a long time: leaks, and the audit")
    of_soak.add_argument("--minutes", type=float, default=default.minutes, help="how long (10)")
    of_soak.add_argument(
        "--rate", type=float, default=default.rate, help="events a second of each replica (800)"
    )
    of_soak.add_argument("--live", type=int, default=default.live, help="events live (2,000)")
    of_soak.add_argument(
        "--every", type=float, default=default.every, help="seconds between lines (60)"
    )
    of_soak.add_argument(
        "--max-slope", type=float, default=bounds.megabytes_a_minute, help="MB a minute (1)"
    )
    of_soak.add_argument(
        "--max-descriptors", type=int, default=bounds.descriptors, help="more than before (8)"
    )


def _add_rolling(what: _Subparsers) -> None:
    default = rolling.Rolling()
    of_rolling = what.add_parser("rolling", help="workers restarted in turn, under load")
    of_rolling.add_argument("--minutes", type=float, default=default.minutes, help="how long (10)")
    of_rolling.add_argument(
        "--workers", type=int, default=default.workers, help="and output partitions (3)"
    )
    of_rolling.add_argument(
        "--rate", type=float, default=default.rate, help="events a second of each replica (500)"
    )
    of_rolling.add_argument("--json", action="store_true", help="print JSON")


def _add_kill_loop(what: _Subparsers) -> None:
    default = kill_loop.Killing()
    loop = what.add_parser("kill-loop", help="workers and brokers killed and frozen at random")
    loop.add_argument("--minutes", type=float, default=default.minutes, help="how long (10)")
    loop.add_argument(
        "--nodes", type=int, choices=(1, 3), default=default.nodes, help="brokers (3)"
    )
    loop.add_argument("--workers", type=int, default=default.workers, help="workers (3)")
    loop.add_argument("--tasks", type=int, default=default.tasks, help="output partitions (4)")
    loop.add_argument(
        "--rate", type=int, default=default.rate, help="events a second of each replica (100)"
    )
    loop.add_argument(
        "--session", type=float, default=default.session, help="session_seconds of workers (6)"
    )
    loop.add_argument("--seed", type=int, default=default.seed, help="of the faults (1)")
    loop.add_argument(
        "--bound", type=float, default=default.bound, help="seconds without a leader (60)"
    )
    loop.add_argument("--json", action="store_true", help="print JSON")


def _run_kill_loop(options: argparse.Namespace) -> bool:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what is broken is reported by fault
    names = [field.name for field in fields(kill_loop.Killing)]
    killing = kill_loop.Killing(**{name: getattr(options, name) for name in names})
    try:
        verdict = asyncio.run(kill_loop.kill_loop(killing))
    except Refused as error:
        sys.exit(f"error: {error}")
    if options.json:
        found = msgspec.to_builtins(verdict) | {"good": verdict.good, "machine": _machine()}
        print(json.dumps(found))
        return verdict.good
    print(f"{_machine()}\n{len(verdict.struck)} times, worst of all:")
    print(
        f"  without a leader {max(max(each.without_leader) for each in verdict.struck):.1f} s, "
        f"no output {max(each.still for each in verdict.struck):.1f} s"
    )
    for line in (*verdict.audit, *(f"FAILED: {line}" for line in verdict.trouble)):
        print(f"  {line}")
    print("well" if verdict.good else "NOT WELL")
    return verdict.good


def _add_jumpstart(what: _Subparsers) -> None:
    of_jumpstart = what.add_parser("jumpstart", help="until a copy of a query is joined")
    of_jumpstart.add_argument("--runs", type=int, default=3, help="of each (3)")
    of_jumpstart.add_argument("--window", type=float, default=10.0, help="seconds (10)")
    of_jumpstart.add_argument("--before", type=int, default=0, help="events that are over (0)")
    of_jumpstart.add_argument(
        "--only", type=_ways, default=tuple(jumpstart.WAYS), help="cold,lines,state,table"
    )
    of_jumpstart.add_argument("--json", action="store_true", help="print JSON")


def _add_control_log(what: _Subparsers) -> None:
    of_control_log = what.add_parser("control-log", help="a start after many decisions")
    of_control_log.add_argument("--runs", type=int, default=5, help="starts (5)")
    of_control_log.add_argument(
        "--decisions", type=int, default=1_000_000, help="a million take minutes (1,000,000)"
    )
    of_control_log.add_argument("--whole", action="store_true", help="also read every record")
    of_control_log.add_argument("--json", action="store_true", help="print JSON")


def _add_availability(what: _Subparsers) -> None:
    of_availability = what.add_parser(
        "availability", help="Figures 8 and 9: bursts and congestion over Kafka"
    )
    of_availability.add_argument(
        "--months", type=int, default=5, help="of flights: 5 take half a minute to send (5)"
    )
    of_availability.add_argument(
        "--out", type=Path, default=Path("docs/figures"), help="for the SVG"
    )
    of_availability.add_argument("--json", action="store_true", help="print JSON")


def _add_forward(what: _Subparsers) -> None:
    of_forward = what.add_parser("forward", help="Figure 10: two plans, and feedback to them")
    of_forward.add_argument(
        "--readings", type=int, default=200_000, help="200,000 take nine minutes (200,000)"
    )
    of_forward.add_argument("--out", type=Path, default=Path("docs/figures"), help="for the SVG")
    of_forward.add_argument("--json", action="store_true", help="print JSON")


def _add_drills(what: _Subparsers) -> None:
    of_drills = what.add_parser("drills", help="the drills with a deduplicating consumer, too")
    of_drills.add_argument(
        "--only", nargs="+", choices=drills.DRILLS, default=drills.DRILLS, metavar="DRILL",
        help=", ".join(drills.DRILLS),
    )  # fmt: skip
    of_drills.add_argument(
        "--mergers", nargs="+", choices=drills.MERGERS, default=list(drills.MERGERS),
        metavar="MERGER", help=", ".join(map(repr, drills.MERGERS)),
    )  # fmt: skip
    of_drills.add_argument("--json", action="store_true", help="print JSON")


def _run_drills(options: argparse.Namespace) -> None:
    verdicts = list(drills.play(options.only, options.mergers))
    if options.json:
        print(json.dumps({"machine": _machine(), "rows": msgspec.to_builtins(verdicts)}))
    else:
        print(f"{_machine()}\n\n{drills.table(verdicts)}")


def _run_soak(options: argparse.Namespace) -> bool:
    soaking = soak.Soaking(
        minutes=options.minutes, rate=options.rate, live=options.live, every=options.every
    )
    bounds = soak.Bounds(megabytes_a_minute=options.max_slope, descriptors=options.max_descriptors)
    return asyncio.run(soak.soak(soaking, bounds))


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = TINY if options.tiny else Sizes()
    given = {"events": options.events, "backlog": options.backlog}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    return replace(sizes, live=(*sizes.live, 1_000_000)) if options.large else sizes


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{least} at least, not {value}")
        return value

    return number


def _names_of_figures(text: str) -> tuple[str, ...]:
    return _some_of(figures.FIGURES, "figure", text)


def _ways(text: str) -> tuple[str, ...]:
    return _some_of(jumpstart.WAYS, "way to begin", text)


def _some_of(known: Iterable[str], what: str, text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"no {what} {', '.join(sorted(unknown))}")
    return names


def _run_figures(
    names: Sequence[str],
    runs: int,
    events: int,
    out: Path,
    report: Callable[[str, str, Sequence[float]], None],
) -> None:
    out.mkdir(parents=True, exist_ok=True)  # before the long work, not after it
    for name in names:
        rows = []
        for row in figures.measure(name, events, runs):
            rows.append(row)
            report(row.name, row.unit, row.values)
        if name != "latency":
            figures.draw(rows, out / f"{name}.svg")


def _run_policies(events: int, as_json: bool, out: Path) -> None:
    if not as_json:
        print(f"{_machine()}\n\n{policies.HEADER}")
    out.mkdir(parents=True, exist_ok=True)  # before the long work, not after it
    outcomes = []
    for outcome in policies.measure(events):
        outcomes.append(outcome)
        if not as_json:
            print(outcome, flush=True)
    policies.draw(outcomes, out / "policies.svg")
    if as_json:
        print(json.dumps({"machine": _machine(), "rows": list(map(asdict, outcomes))}))


def _run(
    only: str | None,
    runs: int,
    elements: int,
    report: Callable[[str, str, Sequence[float]], None],
) -> None:
    if only in (None, "in-process"):
        formats.run(runs, report)
        in_process.run(runs, elements, report)
    if only in (None, "kafka"):
        asyncio.run(kafka_to_kafka.run(runs, elements, report))


def _machine() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiokafka", "msgspec"))
    python = f"CPython {platform.python_version()}"
    return f"commit {commit or 'unknown'}, {_cpu()}, {python}, {packages}, {sys.platform}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or "unknown CPU"
    lines = info.read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} × {models[0]}" if models else "unknown CPU"


main()
