"""Erasure from one Parquet file: rows go, and cells of other rows that name the workflow become null."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from fairlead.pipeline.erasure.target import EVENTS, Target
from fairlead.pipeline.upkeep.batches import ROWS_A_READ, write_rows

# Columns of other workflows with a workflow id, with the columns that become null together with it.
_PARENTS = {"parent_workflow_id": ("parent_workflow_id", "parent_run_id")}
# Lists of workflow ids, from which the id is removed.
_LISTS = ("workflow_ids",)


def found_in(file: Path, target: Target) -> tuple[int, int]:
    """Return the number of rows to remove, and of rows with cells to blank."""
    removed = blanked = 0
    with parquet.ParquetFile(file) as source:
        for batch in source.iter_batches(ROWS_A_READ):
            gone, _, blank = _erased(batch, target)
            removed, blanked = removed + gone, blanked + blank
    return removed, blanked


def rewrite(file: Path, copy: Path, target: Target) -> int:
    """Write the rows that stay to a new file, with the same columns and metadata; return their number."""
    with parquet.ParquetFile(file) as source:
        schema = source.schema_arrow

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in source.iter_batches(ROWS_A_READ):
                yield _erased(batch, target)[1]

        return write_rows(copy, kept(), schema)


def _erased(batch: pa.RecordBatch, target: Target) -> tuple[int, pa.RecordBatch, int]:
    """Return the number of removed rows, the rows that stay, and the number of those with blanked cells."""
    gone = target.rows(batch)
    removed = 0 if gone is None else pc.sum(gone).as_py() or 0
    if removed:
        batch = batch.filter(pc.invert(gone))
    if target.workflow_id is None or not batch.num_rows:
        return removed, batch, 0
    ours = target.rows_in(batch) if "namespace_id" in batch.schema.names else pa.array([True] * batch.num_rows)
    changed = pa.array([False] * batch.num_rows, pa.bool_())
    for name in EVENTS:
        if name in batch.schema.names:
            named = target.mentions(batch.column(name).cast(pa.string()))
            batch, changed = _blank(batch, named, (name,)), pc.or_(changed, named)
    for name, together in _PARENTS.items():
        if name in batch.schema.names:
            is_parent = pc.fill_null(pc.equal(batch.column(name), target.workflow_id), False)  # noqa: FBT003
            named = pc.and_(is_parent, ours)
            batch, changed = _blank(batch, named, together), pc.or_(changed, named)
    for name in _LISTS:
        if name in batch.schema.names:
            named = pa.array(
                [is_ours and target.workflow_id in (ids or ()) for is_ours, ids in zip(
                    ours.to_pylist(), batch.column(name).to_pylist(), strict=True
                )],
                pa.bool_(),
            )  # fmt: skip
            lists = [
                [one for one in ids if one != target.workflow_id] if is_named else ids
                for is_named, ids in zip(named.to_pylist(), batch.column(name).to_pylist(), strict=True)
            ]
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), pa.array(lists, batch.schema.field(place).type))
            changed = pc.or_(changed, named)
    return removed, batch, pc.sum(changed).as_py() or 0


def _blank(batch: pa.RecordBatch, named: pa.Array, columns: tuple[str, ...]) -> pa.RecordBatch:
    for name in columns:
        place = batch.schema.get_field_index(name)
        if place >= 0:
            column = pc.if_else(named, pa.scalar(None, batch.column(place).type), batch.column(place))
            batch = batch.set_column(place, batch.schema.field(place), column)
    return batch
