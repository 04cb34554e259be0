"""Compaction: merges small batches of a journal table, so that a lake filled by a stream stays quick to read."""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fairlead.pipeline.increments.changes import MERGED
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.lake_files import write_json
from fairlead.pipeline.upkeep.batches import Batch, arrow_schema, batches_of, rows_of, write_rows
from fairlead.pipeline.upkeep.generations import next_generation

# Bytes of a merged batch, at most; a batch of this size is never merged again.
MERGED_BYTES_MAX = 256 << 20
# Number of batches that are worth a merge, and their number in one merge, at most.
BATCHES_MIN = 8
BATCHES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """The batches and files of a table before and after a compaction, and the rows that were written again."""

    table: str
    batches_before: int
    batches: int
    files_before: int
    files: int
    rows_rewritten: int


def compact(lake: Lake, table: str, *, batches_min: int = BATCHES_MIN, bytes_max: int = MERGED_BYTES_MAX) -> Compacted:
    """Merge runs of at least `batches_min` small batches; readers see all merges at once. Requires the lock."""
    before = batches_of(lake.table(table))
    groups = mergeable(before, batches_min=batches_min, bytes_max=bytes_max)
    rows = 0
    after = before
    if groups:
        schema = arrow_schema(table)
        with next_generation(lake, table, keeps_rows=True) as folder:
            rows = sum(_merge(folder, group, schema) for group in groups)
        after = batches_of(lake.table(table))
    return Compacted(
        table,
        batches_before=len(before),
        batches=len(after),
        files_before=sum(batch.files for batch in before),
        files=sum(batch.files for batch in after),
        rows_rewritten=rows,
    )


def mergeable(batches: Sequence[Batch], *, batches_min: int, bytes_max: int) -> list[list[Batch]]:
    """Return runs of consecutive batches to merge, each with at most `bytes_max` bytes in all.

    The first batch of a run has at most as many bytes as the others together. So a large batch is rewritten only after
    the later ones have reached its size, and the number of times grows with the logarithm of the run's size.
    """
    groups: list[list[Batch]] = []
    run: list[Batch] = []
    run_bytes = 0
    for batch in batches:
        if len(run) >= BATCHES_MAX or run_bytes + batch.bytes > bytes_max:
            groups.append(run)
            run, run_bytes = [], 0
        run.append(batch)
        run_bytes += batch.bytes
    groups.append(run)
    return [small for group in groups if len(small := _without_large(group)) >= max(batches_min, 2)]


def _without_large(run: list[Batch]) -> list[Batch]:
    left_bytes = sum(batch.bytes for batch in run)
    for position, batch in enumerate(run):
        left_bytes -= batch.bytes
        if batch.bytes <= left_bytes:
            return run[position:]
    return []


def _merge(table: Path, group: Sequence[Batch], schema: pa.Schema) -> int:
    """Replace these batches in the copy of a table's folder by one; return the number of its rows.

    The merged batch has the highest of their numbers: batches stay in order, and numbers are never used again.
    """
    merged = table / f"merged-{os.urandom(8).hex()}"
    parts: dict[Path, list[Path]] = defaultdict(list)
    segments = []
    merged_batches: list[list[int]] = []
    unknown: Counter[tuple[str, str]] = Counter()
    for batch in group:
        manifest = batch.manifest()
        segments += manifest["segments"]
        merged_batches += manifest.get(MERGED) or [[batch.number, len(manifest["segments"])]]
        for note, name, records in manifest.get("unknown", ()):
            unknown[note, name] += records
        for part, files in batch.parts().items():
            parts[part] += files
    rows = 0
    for part, files in sorted(parts.items()):
        rows += write_rows(merged / part / f"merged-{os.urandom(8).hex()}.zstd.parquet", rows_of(files, schema), schema)
    merged.mkdir(exist_ok=True)
    number = f"{group[-1].number:012d}"
    write_json(
        merged / "_batch.json",
        {
            "batch": number,
            "segments": segments,
            MERGED: merged_batches,
            "unknown": [[note, name, records] for (note, name), records in sorted(unknown.items())],
        },
    )
    for batch in group:
        shutil.rmtree(table / batch.folder.name)
    merged.rename(table / f"batch={number}")
    return rows
