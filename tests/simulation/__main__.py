"""`python -m tests.simulation`: plays seeds; exit 1 when one of them goes wrong."""

import argparse
import sys
from collections import Counter

from tests.simulation.simulate import command, simulate

__all__ = ("main",)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds from there on (1)")
    parser.add_argument("--pauses", action="store_true", help="workers are paused in each")
    parser.add_argument("--native", action="store_true", help="the engine merges in each")
    parser.add_argument("--loses", action="store_true", help="what a recovery needs is lost")
    options = parser.parse_args()
    flags = {each: getattr(options, each) for each in ("pauses", "native", "loses")}
    bad, seen = 0, Counter[str]()
    for seed in range(options.seed, options.seed + options.runs):
        played = simulate(seed, **flags)
        seen += played.seen
        if options.runs == 1 or not played.good:
            print(f"{played}\n{played.report}")
        if not played.good:
            bad += 1
            given = [f" --{name}" for name, is_given in flags.items() if is_given]
            print(f"again: {command(seed)}{''.join(given)}", flush=True)
    print(", ".join(f"{what}: {count}" for what, count in seen.most_common()))
    print(f"{options.runs - bad} of {options.runs} went well")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
