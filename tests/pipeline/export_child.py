"""A process that exports repeatedly, each time killed one step later: `export_child.py SOURCE FOLDER`.

The source is the file of a store, or the address of a server.

A step is a call that changes the disk durably. After each kill the visible journal must be complete, and two more
exports must complete it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.history.export import export_histories
from fairlead.journal import read_segment
from fairlead.pipeline.public_export import SourceServer, export_namespace
from fairlead.pipeline.public_export import export as public_export
from fairlead.server.bootstrap import read_shards
from fairlead.server.stores import open_reading
from fairlead.settings.static.config import SqliteConfig

# Exit status of a child that has written segments.
SOME = 7
STEPS = ("fsync", "rename", "replace", "rmdir", "unlink")


async def export(source: str, folder: Path) -> int:
    """Export the whole store or server; returns the number of segments written."""
    if ":" in source:
        return await export_from(source, folder)
    reading = await open_reading(SqliteConfig(Path(source)))
    try:
        shards = await read_shards(reading.history)
        done = await export_histories(reading.history, folder, shards=shards, namespace=None, notify=lambda _: None)
        return done.segments
    finally:
        await reading.close()


async def export_from(address: str, folder: Path) -> int:
    # Several commits for few runs.
    public_export.READS_AT_ONCE = public_export.RUNS_A_COMMIT = 2
    server = SourceServer(address, "default", calls_per_s=1e6)
    try:
        done = await export_namespace(server, folder, notify=lambda _: None)
        return done.segments
    finally:
        await server.close()


def die_at(last_step: int) -> None:
    """Make this process kill itself before step number `last_step`."""
    taken = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any, **more: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken == last_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **more)

        return take

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))


def in_child(work: Callable[[], int]) -> int:
    """Run the work in a forked child, whose exit status is the work's result; returns how the child ended."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = work()
        finally:
            # Exit in any case: the child must not continue the parent's work.
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(source: str, folder: str) -> None:
    """Kill exports until one ends before its step; prints the number of kills."""
    step = 0
    outcome = -signal.SIGKILL
    while outcome == -signal.SIGKILL:
        step += 1
        place = Path(folder) / str(step) / "active"
        outcome = in_child(partial(killed, source, place, step))
        if outcome not in (0, -signal.SIGKILL):
            sys.exit(f"step {step}: ended with {outcome}")
        for segment in place.glob("*.zst"):
            list(read_segment(segment))
        after = [in_child(partial(whole, source, place)) for _ in range(2)]
        if after not in ([SOME, 0], [0, 0]):
            sys.exit(f"step {step}: the next exports ended with {after}")
    sys.stdout.write(f"{step}\n")


def killed(source: str, place: Path, step: int) -> int:
    """Export and kill the process at a step, if the export gets that far."""
    die_at(step)
    whole(source, place)
    return 0


def whole(source: str, place: Path) -> int:
    """Run an export; returns 0 if there was nothing left to write."""
    return SOME if asyncio.run(export(source, place)) else 0


if __name__ == "__main__":
    main(*sys.argv[1:])
