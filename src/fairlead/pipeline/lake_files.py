"""Files of the lake: JSON documents that are replaced atomically, and the removal of old folders."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from fairlead.core.errors import GiveUp
from fairlead.journal.segments import sync_path

# Age in seconds after which the staged files of a killed run are removed: no run takes that long.
STAGED_AGE_S_MAX = 86_400.0
RUNS_KEPT = (
    2  # Number of runs of a derived table that are kept: a reader may still have the files of the previous run open.
)


class BrokenLake(GiveUp):
    """A file of the lake is damaged."""


def read_json(file: Path) -> Any:
    """Read a JSON document; raise `BrokenLake` if it is damaged."""
    try:
        return json.loads(file.read_bytes())
    except ValueError as broken:
        raise BrokenLake(f"{file} is damaged ({broken})") from broken


def write_json(file: Path, plain: object) -> None:
    """Write a small file atomically."""
    draft = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    with draft.open("w") as out:
        json.dump(plain, out)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)


def sync_tree(folder: Path) -> None:
    """Flush a whole folder to disk: Spark does not sync its files."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def remove_old(folder: Path) -> None:
    """Remove the folders that killed processes left."""
    for left in folder.glob("*"):
        if left.stat().st_mtime < time.time() - STAGED_AGE_S_MAX:
            shutil.rmtree(left, ignore_errors=True)


def keep_newest(runs: Path, present: Path) -> None:
    """Remove all runs but the present one and the newest others."""
    older = sorted((run for run in runs.iterdir() if run != present), key=lambda run: run.stat().st_mtime, reverse=True)
    for run in older[RUNS_KEPT - 1 :]:
        shutil.rmtree(run, ignore_errors=True)
