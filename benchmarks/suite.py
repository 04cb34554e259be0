"""Runs all benchmarks of `make bench`, even after one has missed its aims, and prints a summary at the end."""

import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

PROGRAMS: tuple[tuple[str, ...], ...] = (
    ("startup",),
    ("core",),
    ("storage",),
    ("storage_postgres",),
    ("matching",),
    # Also runs the pairs of `benchmarks.rpc_pairs`.
    ("rpc",),
    ("workflows",),
    ("workflows", "--quick", "--unsynced"),
    ("workflow_layers",),
    ("starts",),
    ("hosts",),
    ("task_queues",),
    ("growth", "--quick"),
    ("replication",),
    ("security",),
    ("neighbours",),
    ("abuse",),
    ("console",),
)


def main() -> None:
    programs = [program for program in PROGRAMS if not sys.argv[1:] or program[0] in sys.argv[1:]]
    console = Console(width=120)
    table = Table("benchmark", "minutes", "")
    missed = []
    for name, *options in programs:
        command = f"python -m benchmarks.{' '.join((name, *options))}"
        console.rule(command)
        began_s = time.monotonic()
        run = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=False)  # noqa: S603 - ours
        if run.returncode:
            missed.append(command)
        minutes = (time.monotonic() - began_s) / 60
        table.add_row(command, f"{minutes:.1f}", "MISSED" if run.returncode else "met")
    console.print(table)
    if missed:
        sys.exit(f"{len(missed)} of {len(programs)} benchmarks missed an aim, or failed: see above")


if __name__ == "__main__":
    main()
