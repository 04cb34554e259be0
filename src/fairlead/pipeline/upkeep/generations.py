"""Replaces the folder of a journal table as a whole, so that readers see all of a change or none of it.

    <lake>/task -> _tables/task/<generation>     a plain folder in lakes of release 0.1.0

A generation is a folder of batches. A new one has hard links to the files that it keeps, so it takes little space, and
one rename puts it in place. Readers that began earlier still find the files of the last generations.
"""

import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.core.errors import GiveUp
from fairlead.journal.segments import sync_path
from fairlead.pipeline.increments.changes import REVISION_FILE
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.lake_files import sync_tree, write_json

# Seconds for which a replaced generation is kept for its readers: no job runs longer than six hours.
GENERATION_AGE_S_MAX = 6.5 * 3_600
# Flags of Linux's renameat2, for paths relative to the working directory.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class CantReplace(GiveUp):
    """The file system can't exchange a folder and a link."""


@contextmanager
def next_generation(lake: Lake, table: str, *, keeps_rows: bool = False) -> Iterator[Path]:
    """Yield a copy of the table's folder, which becomes the table at the end of the block; requires the lock.

    Unless the block keeps all rows, the table gets another revision: jobs then compute their tables anew.
    The copy's files are hard links: delete or add files, but write into none. After an error the table is unchanged.
    """
    present = lake.table(table)
    staged = lake.stage(table)
    shutil.copytree(present.resolve(), staged, copy_function=os.link, dirs_exist_ok=True)
    yield staged
    if not keeps_rows:
        write_json(staged / REVISION_FILE, {"revision": os.urandom(8).hex()})
    sync_tree(staged)
    generations = lake.root / "_tables" / table
    generations.mkdir(parents=True, exist_ok=True)
    place = generations / os.urandom(8).hex()
    staged.rename(place)
    sync_path(generations)
    # The next holder of the lock empties the staging folder: a kill leaves nothing behind.
    link = lake.stage(table) / table
    link.symlink_to(os.path.relpath(place, lake.root))
    # The age of a generation counts from its replacement, also after a kill in the next lines.
    os.utime(present.resolve())
    if present.is_symlink():
        last = present.resolve()
        link.replace(present)
    else:
        _exchange(link, present)
        last = generations / os.urandom(8).hex()
        link.rename(last)
    sync_path(lake.root)
    os.utime(last)
    remove_replaced(lake, table)


def remove_replaced(lake: Lake, table: str, *, age_s: float = GENERATION_AGE_S_MAX) -> None:
    """Remove the generations of the table that were replaced longer ago than `age_s`; requires the lock."""
    present = lake.table(table).resolve()
    for generation in (lake.root / "_tables" / table).glob("*"):
        if generation != present and generation.stat().st_mtime <= time.time() - age_s:
            shutil.rmtree(generation, ignore_errors=True)


def _exchange(link: Path, folder: Path) -> None:
    """Exchange two paths atomically, so that no reader finds the table missing."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise CantReplace(f"{folder}: this system can't replace a folder atomically (renameat2): use Linux")
    if renameat2(_AT_FDCWD, os.fsencode(link), _AT_FDCWD, os.fsencode(folder), _RENAME_EXCHANGE):
        reason = os.strerror(ctypes.get_errno())
        raise CantReplace(f"{folder}: the file system can't replace a folder atomically ({reason}): use another one")
