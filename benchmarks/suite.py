"""Runs all benchmarks of `make bench`, also after one that missed its aims, and sums up all aims at the end."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.aims import AIMS_FILE, Aim, collected, table_of

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
    ("console_size",),
    ("http",),
)


def main() -> None:
    programs = [program for program in PROGRAMS if not sys.argv[1:] or program[0] in sys.argv[1:]]
    console = Console(width=120)
    table = Table("benchmark", "minutes", "")
    failed = 0
    aims: list[Aim] = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        for number, (name, *options) in enumerate(programs):
            command = f"python -m benchmarks.{' '.join((name, *options))}"
            console.rule(command)
            began_s = time.monotonic()
            file = Path(folder) / f"{number}.jsonl"
            arguments = [sys.executable, "-m", f"benchmarks.{name}", *options]
            run = subprocess.run(arguments, check=False, env=os.environ | {AIMS_FILE: str(file)})  # noqa: S603 - ours
            minutes = (time.monotonic() - began_s) / 60
            found = collected(file)
            aims += found
            failed += bool(run.returncode)
            table.add_row(command, f"{minutes:.1f}", verdict(run.returncode, found))
    console.print(table)
    console.print(table_of(aims))
    if failed:
        sys.exit(f"{failed} of {len(programs)} benchmarks missed an aim, or failed: see above")


def verdict(exit_code: int, aims: list[Aim]) -> str:
    """Name what a program ended with. A program that exits with an error without a missed aim may have crashed."""
    if not exit_code:
        return "met"
    return "MISSED" if any(aim.is_missed for aim in aims) else "MISSED OR FAILED"


if __name__ == "__main__":
    main()
