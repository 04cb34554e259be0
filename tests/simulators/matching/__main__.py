"""Run seeds of the simulation by hand: `python -m tests.simulators.matching --seed 123 --verbose`."""

import argparse
import sys
import time

from tests.simulators.matching.plants import PLANTS
from tests.simulators.matching.world import simulate


def main() -> int:
    """Run the given seeds; return 1 if one of them finds a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.matching", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the seed to run, or the first of several")
    parser.add_argument("--count", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="run with this bug planted")
    parser.add_argument("--verbose", action="store_true", help="print everything that happens")
    parser.add_argument("--about", help="print what happens to one task, like p0.17")
    options = parser.parse_args()
    failed = 0
    began_s = time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        outcome = simulate(seed, options.plant)
        if options.verbose:
            sys.stdout.write("\n".join(outcome.transcript) + "\n")
        if options.about:
            lines = [line for line in outcome.transcript if options.about in line.replace(",", " ").split()]
            sys.stdout.write("\n".join(lines) + "\n")
        failed += bool(outcome.violations)
        said = outcome.report() if outcome.violations else "well"
        sys.stdout.write(
            f"seed {seed}: {outcome.summary}; {outcome.virtual_s:.0f} s of virtual time, {outcome.steps} steps, "
            f"transcript {outcome.digest[:12]}: {said}\n"
        )
        sys.stdout.flush()
    took_s = time.perf_counter() - began_s
    sys.stdout.write(f"{options.count} seeds, {failed} failed, {options.count / took_s:.2f} seeds per second\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
