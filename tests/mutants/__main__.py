"""`python -m tests.mutants`: runs the tests against a sample of the mutants.

[7/150] lmerge_service.core.lmr4:LMR4._insert/drop/2 killed by tests/core/test_lmr4.py::test_...
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence

import pytest

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.operators import ids_of
from tests.mutants.runner import Outcome, Runner

__all__ = ("main", "run")

_TESTS = {
    "core": ("tests/core", "lmerge_service/core"),
    "formats": ("tests/formats", "lmerge_service/formats"),
}
"""The packages that are mutated, and what must notice."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--sample", type=int, default=150, help="how many of a package, 0: all")
    parser.add_argument("--seed", default="", help="another sample")
    parser.add_argument("--only", default="", help="those whose id contains it")
    args = parser.parse_args(arguments)
    sound = True
    for package, tests in _TESTS.items():
        ids = [each for each in ids_of(package) if args.only in each]
        if chosen := _sample(ids, args.sample, args.seed):
            print(f"{package}: {len(chosen)} of {len(ids)} mutants", flush=True)
            sound &= _summary(run(chosen, tests, args.jobs))
    return int(not sound)


def _sample(ids: Sequence[str], size: int, seed: str) -> list[str]:
    """The same for the same seed; of what code changes add or remove, the rest is independent."""
    drawn = sorted(ids, key=lambda each: hashlib.sha256(f"{seed}{each}".encode()).digest())
    return drawn[: size or None]


def run(ids: Sequence[str], tests: Sequence[str], jobs: int) -> list[Outcome]:
    """Runs tests on the code as it is and against mutants."""
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    runner = Runner(ids, jobs)
    chosen = ["-m", "not kafka and not spark and not full and not deep", *tests]
    options = ["-qq", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of Hypothesis's own modules
    pytest.main([*options, *chosen], plugins=[runner])
    return runner.outcomes


def _summary(outcomes: Sequence[Outcome]) -> bool:
    """Prints what became of the mutants; whether each was killed, unless it is equivalent."""
    if not outcomes or (by := outcomes[0].killed_by):
        print("the tests fail without a mutant" + (f": {by}" if outcomes else ""))
        return False
    survived = {each.id for each in outcomes[1:] if each.killed_by is None}
    killed = {each.id for each in outcomes[1:]} - survived
    unexpected = [(each, "SURVIVED") for each in sorted(survived - EQUIVALENT.keys())]
    unexpected += [(each, "killed, not equivalent") for each in sorted(killed & EQUIVALENT.keys())]
    for id_, state in unexpected:
        print(f"{id_} {state}")
    print(f"{len(killed)} killed, {len(survived)} survived", end="")
    print(f", {len(survived & EQUIVALENT.keys())} of them equivalent")
    return not unexpected


if __name__ == "__main__":
    sys.exit(main())
