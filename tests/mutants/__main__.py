"""`python -m tests.mutants`: kills every mutant, or says which the tests let live.

    lmr4-late-at-stable       killed in  4 s by tests/core/test_lmr4.py::test_...

Cost
    Most mutants cost the start of pytest and a few literal tests; one that lives, like the copy
    without a mutant, costs the whole of its package's tests.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.mutants import MUTANTS, ROOT, Mutant

__all__ = ("Outcome", "main", "run")

_FOLDERS = ("tests", "lmerge_service")
"""Of a package's tests, and of the doctests in its code."""
_FIRST = {
    "lmr4": "test_lmr4.py",
    "in3t": "test_lmr4.py",
    "lmr0": "test_ordered.py",
    "lmr1": "test_ordered.py",
    "lmr2": "test_ordered.py",
    "ordered": "test_ordered.py",
    "wire": "test_wire.py",
    "payload": "test_payload.py",
}
_SECONDS_A_TEST = 120
_SECONDS = 1_800
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant, or, under the id `none`, of the copy without one."""

    id: str
    state: str
    """killed, SURVIVED, or BROKEN where the tests could not run"""
    by: str
    """the test that killed it, or what pytest said"""
    seconds: float

    @property
    def is_sound_copy(self) -> bool:
        """The copy without a mutant, on which the tests pass."""
        return self.id == "none" and self.state == "SURVIVED"


def run(mutant: Mutant | None, packages: Sequence[str]) -> Outcome:
    """Runs the tests of packages in a copy that has the mutant, or none."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in ("lmerge_service", "tests"):
            shutil.copytree(ROOT / name, copy / name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            (copy / mutant.path).write_text(mutant.applied())
        first = _FIRST.get(mutant.file if mutant else "", "test_bookkeeping.py")
        state, by = _tested(copy, packages, f"test_following.py,test_killed.py,{first}")
    return Outcome(mutant.id if mutant else "none", state, by, time.monotonic() - begun)


def _tested(copy: Path, packages: Sequence[str], first: str) -> tuple[str, str]:
    options = ["-x", "-q", "--tb=no", f"--timeout={_SECONDS_A_TEST}"]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-p", "tests.mutants.order", "--copy", str(copy), "--first", first]
    tests = [f"{folder}/{package}" for package in packages for folder in _FOLDERS]
    ours = {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "mutants"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env={**os.environ, **ours},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "killed", f"timeout of {_SECONDS} s"
    found = _FAILED.search(done.stdout)
    if done.returncode == 1 and found:
        return "killed", found[1]
    if done.returncode == 0:
        return "SURVIVED", done.stdout.strip().rpartition("\n")[2]
    return "BROKEN", (done.stdout + done.stderr)[-2_000:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--only", default="", help="ids, or files, with commas between")
    parser.add_argument("--json", type=Path, help="a file for the outcomes")
    args = parser.parse_args(arguments)
    wanted = set(filter(None, args.only.split(",")))
    chosen = [m for m in MUTANTS if not wanted or wanted & {m.id, m.file}]
    if unknown := wanted - {name for m in MUTANTS for name in (m.id, m.file)}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    outcomes = list(_all((None, *chosen), args.jobs))
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
    return _summary(outcomes)


def _all(mutants: Sequence[Mutant | None], jobs: int) -> Iterable[Outcome]:
    packages = sorted({mutant.package for mutant in mutants if mutant})
    with ThreadPoolExecutor(jobs) as pool:
        running = [
            pool.submit(run, mutant, [mutant.package] if mutant else packages or ["core"])
            for mutant in mutants
        ]
        for number, done in enumerate(as_completed(running), start=1):
            outcome = done.result()
            place = f"[{number:3}/{len(mutants)}]"
            told = "passes, as it must" if outcome.is_sound_copy else outcome.state
            state = f"{told} in {outcome.seconds:3.0f} s: {outcome.by}"
            print(f"{place} {outcome.id:34} {state}", flush=True)
            yield outcome


def _summary(outcomes: Sequence[Outcome]) -> int:
    """Says how it went; 0 if every mutant is killed, and the copy without one passes."""
    copy = next(each for each in outcomes if each.id == "none")
    mutants = [each for each in outcomes if each is not copy]
    states = Counter(each.state for each in mutants)
    print(", ".join(f"{n} {state}" for state, n in states.items()) or "no mutants")
    for each in mutants:
        if each.state != "killed":
            breaks = next(mutant.breaks for mutant in MUTANTS if mutant.id == each.id)
            print(f"{each.id} {each.state}: {breaks}")
    if not copy.is_sound_copy:
        print(f"the copy without a mutant fails: {copy.by}")
        return 1
    return int(states["killed"] != len(mutants))


if __name__ == "__main__":
    sys.exit(main())
