"""Erasure from the folder of a lake: journal tables, derived tables, and the files beside them."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyarrow import parquet

from fairlead.core.errors import GiveUp
from fairlead.journal.segments import sync_path
from fairlead.pipeline.erasure.rows import found_in, rewrite
from fairlead.pipeline.erasure.target import Target
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.lake_files import sync_tree, write_json
from fairlead.pipeline.namespaces import FILE as NAMES_FILE
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.sources.segments import Segment
from fairlead.pipeline.upkeep.generations import next_generation, remove_replaced

# Files that a job writes again: they are removed if they name the target.
_MADE_AGAIN = ("*.html", "repair_plan.json", "_recommended/*", "_runs/*/*/_origin.json")
# Smallest length of an id that is searched for in the bytes of any file: a shorter one is found by chance.
SEARCHED_CHARACTERS_MIN = 4
READ_BYTES = 1 << 20


class NotErased(GiveUp):
    """A file still has the target."""


@dataclass(frozen=True, slots=True)
class ErasedTable:
    """The rows that were removed from a table, and those of other runs with blanked cells."""

    table: str
    rows: int
    blanked: int
    files: int


def erase_from_lake(lake: Lake, target: Target, *, is_dry_run: bool = False) -> list[ErasedTable]:
    """Erase the target from all tables, also from replaced ones, which their readers lose; requires the lock."""
    done = []
    for table in sorted(path.name for path in lake.root.iterdir() if path.is_dir() and path.name[0] not in "_."):
        hits = {file: found_in(file, target) for file in sorted(lake.table(table).resolve().rglob("*.parquet"))}
        hits = {file: hit for file, hit in hits.items() if any(hit)}
        if hits and not is_dry_run:
            _rewrite_journal(lake, table, target, hits) if table in BRONZE else _rewrite_run(lake, table, target, hits)
        done.append(
            ErasedTable(table, sum(one for one, _ in hits.values()), sum(two for _, two in hits.values()), len(hits))
        )
    if not is_dry_run:
        _remove_replaced(lake)
        _erase_beside(lake, target)
    return done


def update_manifests(lake: Lake, segments: list[Segment]) -> None:
    """Store the sizes and digests of rewritten segments, so that `ingest` takes them for known; requires the lock."""
    changed = {segment.key: segment for segment in segments}
    for table in BRONZE:
        for file in lake.table(table).resolve().glob("batch=*/_batch.json"):
            plain = json.loads(file.read_bytes())
            hits = [one for one in plain["segments"] if (one["cluster"], one["name"]) in changed]
            for one in hits:
                segment = changed[one["cluster"], one["name"]]
                one |= {"bytes": segment.bytes, "digest": segment.digest()}
            if hits:
                # The age of the file is the arrival time of segments of older releases.
                times = file.stat().st_atime_ns, file.stat().st_mtime_ns
                write_json(file, plain)
                os.utime(file, ns=times)


def check_erased(lake: Lake, target: Target) -> None:
    """Search every file of the lake for the target; raise an error that names the first file with it."""
    for path in sorted(lake.root.rglob("*")):
        if path.is_file() and not path.is_symlink() and _has(path, target):
            raise NotErased(f"{path} still has {', '.join(sorted(target.texts))}: run the command again")


def _has(path: Path, target: Target) -> bool:
    if path.suffix == ".parquet":
        return any(found_in(path, target))
    if path.name.startswith(".") and path.suffix == ".crc":
        return False
    wanted = [text.encode() for text in target.texts if len(text) >= SEARCHED_CHARACTERS_MIN]
    return bool(wanted) and any(text in path.read_bytes() for text in wanted)


def _rewrite_journal(lake: Lake, table: str, target: Target, hits: dict[Path, tuple[int, int]]) -> None:
    root = lake.table(table).resolve()
    with next_generation(lake, table) as folder:
        for file in hits:
            copy = folder / file.relative_to(root)
            rewrite(file, copy.with_name(f"erased-{os.urandom(8).hex()}.zstd.parquet"), target)
            _remove(copy)


def _rewrite_run(lake: Lake, table: str, target: Target, hits: dict[Path, tuple[int, int]]) -> None:
    """Put a copy of the table's run in its place, by changing one link, like a run of its job."""
    present = lake.written(table)
    place = present.with_name(f"{present.name}-erased-{os.urandom(4).hex()}")
    staged = lake.stage(table)
    shutil.copytree(present, staged, copy_function=os.link, dirs_exist_ok=True)
    for file in hits:
        copy = staged / file.relative_to(present)
        new = copy.with_name(f"erased-{os.urandom(8).hex()}.zstd.parquet")
        if not rewrite(file, new, target):
            # A table without rows keeps its columns.
            parquet.write_table(parquet.read_schema(file).empty_table(), new)
        _remove(copy)
    sync_tree(staged)
    staged.rename(place)
    swap = lake.root / "_staging" / f"{table}-{os.urandom(4).hex()}.link"
    swap.symlink_to(os.path.relpath(place, lake.root))
    swap.replace(lake.table(table))
    sync_path(lake.root)


def _remove(file: Path) -> None:
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _remove_replaced(lake: Lake) -> None:
    """Remove the generations and the runs that nothing refers to, and staged files of killed jobs."""
    for table in BRONZE:
        if lake.table(table).exists():
            remove_replaced(lake, table, age_s=0.0)
    for runs in (lake.root / "_runs").glob("*"):
        present = lake.table(runs.name).resolve()
        for run in runs.iterdir():
            if run.resolve() != present:
                shutil.rmtree(run, ignore_errors=True)
    for left in (lake.root / "_staging").glob("*/*"):
        shutil.rmtree(left, ignore_errors=True)


def _erase_beside(lake: Lake, target: Target) -> None:
    """Remove pages, plans and recommendations that name the target, and the namespace from the list of names."""
    for file in _beside(lake.root):
        if _has(file, target):
            file.unlink()
    if target.workflow_id is None and target.namespaces is not None:
        file = lake.root / NAMES_FILE
        with suppress(OSError, ValueError, KeyError):
            plain = json.loads(file.read_bytes())
            names = {one: name for one, name in plain["names"].items() if not {one, name} & target.namespaces}
            write_json(file, plain | {"names": names})


def _beside(root: Path) -> Iterator[Path]:
    for pattern in _MADE_AGAIN:
        yield from (file for file in root.glob(pattern) if file.is_file())
