"""Run seeds of the simulation by hand: `python -m tests.simulators.replication 123 --clusters 3 --verbose`."""

import argparse
import sys
import time

from tests.simulators.replication.plants import PLANTS
from tests.simulators.replication.world import simulate


def main() -> int:
    """Run the given seeds; return 1 if one of them finds a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.replication", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the seed to run, or the first of several")
    parser.add_argument("--clusters", type=int, help="how many clusters; else as the seed says")
    parser.add_argument("--count", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="run with this bug planted")
    parser.add_argument("--verbose", action="store_true", help="print everything that happens")
    parser.add_argument("--about", help="print the lines of the transcript that contain this text")
    options = parser.parse_args()
    failed = 0
    began_s = time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        outcome = simulate(seed, clusters=options.clusters, plant=options.plant)
        for line in outcome.transcript:
            if options.verbose or (options.about and options.about in line):
                sys.stdout.write(line + "\n")
        failed += bool(outcome.violations)
        said = outcome.report() if outcome.violations else "well"
        sys.stdout.write(
            f"seed {seed}: {outcome.clusters} clusters, {outcome.summary}; {outcome.virtual_s:.0f} s of virtual time, "
            f"{outcome.steps} steps, transcript {outcome.digest[:12]}: {said}\n"
        )
        sys.stdout.flush()
    took_s = time.perf_counter() - began_s
    sys.stdout.write(f"{options.count} seeds, {failed} failed, {options.count / took_s:.2f} seeds per second\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
