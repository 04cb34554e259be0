"""A process that exports a store again and again, each time killed one step later: `export_child.py DB FOLDER`.

A step is whatever changes what is on the disk for good. After each kill, what can be seen of the journal must be whole,
and two more exports must bring it to its end.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.history.exporting import export_histories
from fairlead.journal import read_segment
from fairlead.server.bootstrap import read_shards
from fairlead.server.stores import open_reading
from fairlead.settings.static import SqliteConfig

# What a child ends with that has written segments.
SOME = 7
STEPS = ("fsync", "rename", "replace", "rmdir", "unlink")


async def export(db: Path, folder: Path) -> int:
    """All of it; how many segments were written."""
    reading = await open_reading(SqliteConfig(db))
    try:
        shards = await read_shards(reading.history)
        done = await export_histories(reading.history, folder, shards=shards, namespace=None, tell=lambda _: None)
        return done.segments
    finally:
        await reading.close()


def die_at(last_step: int) -> None:
    """Have this process killed before so many steps are taken."""
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
    """What became of a child that does the work, which says what it ends with."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = work()
        finally:
            # In any case: the child must not go on with the parent's work.
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(db: str, folder: str) -> None:
    """Until an export is done before its moment came; says how many were killed."""
    step = 0
    outcome = -signal.SIGKILL
    while outcome == -signal.SIGKILL:
        step += 1
        place = Path(folder) / str(step) / "active"
        outcome = in_child(partial(killed, Path(db), place, step))
        if outcome not in (0, -signal.SIGKILL):
            sys.exit(f"step {step}: ended with {outcome}")
        for segment in place.glob("*.zst"):
            list(read_segment(segment))
        after = [in_child(partial(whole, Path(db), place)) for _ in range(2)]
        if after not in ([SOME, 0], [0, 0]):
            sys.exit(f"step {step}: the next exports ended with {after}")
    sys.stdout.write(f"{step}\n")


def killed(db: Path, place: Path, step: int) -> int:
    """An export that is killed at a step, if it comes so far."""
    die_at(step)
    whole(db, place)
    return 0


def whole(db: Path, place: Path) -> int:
    """An export; 0 if there was nothing left to write."""
    return SOME if asyncio.run(export(db, place)) else 0


if __name__ == "__main__":
    main(*sys.argv[1:])
