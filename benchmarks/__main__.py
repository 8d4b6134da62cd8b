"""Runs the benchmarks and prints minimum / median / maximum of the runs."""

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from benchmarks import formats, in_process, kafka_to_kafka

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
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--elements", type=int, default=100_000, help="events a replica (100,000)")
    parser.add_argument("--only", choices=("in-process", "kafka"), help="a part only")
    parser.add_argument("--json", action="store_true", help="speak JSON")
    options = parser.parse_args()
    rows: list[Row] = []

    def report(name: str, unit: str, values: Sequence[float]) -> None:
        rows.append(Row(name, unit, values))
        if not options.json:
            print(rows[-1], flush=True)

    if not options.json:
        print(f"{_machine()}\n{'':<58} {'min':>12} {'median':>12} {'max':>12}")
    _run(options.only, options.runs, options.elements, report)
    if options.json:
        found = [{"name": r.name, "unit": r.unit, "values": list(r.values)} for r in rows]
        print(json.dumps({"machine": _machine(), "rows": found}))


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
