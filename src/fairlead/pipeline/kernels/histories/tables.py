"""Reads and writes the Arrow batches of the histories kernel."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from fairlead.pipeline.kernels.histories.assembly import Assembled, Record, assemble_tree
from fairlead.pipeline.kernels.histories.flat_rows import WorkflowRow, flatten

# Maximum number of rows in one output batch, runs, activities, workflow tasks and actions together.
ROWS_AT_ONCE = 2_000

TreeKey = tuple[str, str, str, str]
# Number of array columns: activities, workflow tasks and actions.
NESTED = 3
_NOTHING: list[Any] = [()] * NESTED
_NO_ROW = WorkflowRow(*[None] * len(WorkflowRow._fields))  # type: ignore[arg-type] # For a run with a problem.


def flatten_runs(batches: Iterator[pa.RecordBatch], *, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield one row per run, with its activities nested. The input is sorted by tree and run, and holds whole trees."""
    rows = _Rows(schema)
    for key, records in _trees(batches):
        for run in assemble_tree(key[-1], records):
            rows.add(key, run)
            if rows.count >= ROWS_AT_ONCE:
                yield rows.take()
    yield rows.take()


def _trees(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[TreeKey, list[Record]]]:
    """Yield the records of one tree at a time; a tree may extend over several batches."""
    present: TreeKey | None = None
    records: list[Record] = []
    for key, record in chain.from_iterable(map(_rows_of, batches)):
        if key != present:
            if present is not None:
                yield present, records
            present, records = key, []
        records.append(record)
    if present is not None:
        yield present, records


def _rows_of(batch: pa.RecordBatch) -> Iterator[tuple[TreeKey, Record]]:
    cluster, namespace_id, workflow_id, tree_id, *rest = (column.to_pylist() for column in batch.columns)
    keys = zip(cluster, namespace_id, workflow_id, tree_id, strict=True)
    return zip(keys, map(Record._make, zip(*rest, strict=True)), strict=True)


class _Nested:
    """Rows of an array column, one array for each run."""

    def __init__(self, field: pa.Field) -> None:
        self._type = field.type
        self._rows: list[tuple[object, ...]] = []
        self._offsets = [0]

    @property
    def count(self) -> int:
        return len(self._rows)

    def add(self, rows: Sequence[tuple[object, ...]]) -> None:
        self._rows += rows
        self._offsets.append(len(self._rows))

    def take(self) -> pa.ListArray:
        kinds = self._type.value_type
        fields = [kinds[place] for place in range(kinds.num_fields)]
        parts = list(zip(*self._rows, strict=True)) or [()] * len(fields)
        arrays = [pa.array(part, field.type) for part, field in zip(parts, fields, strict=True)]
        values = pa.StructArray.from_arrays(arrays, fields=fields)
        lists = pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), values, type=self._type)
        self._rows, self._offsets = [], [0]
        return lists


class _Rows:
    """Collects rows for the next Arrow batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._runs: list[tuple[object, ...]] = []
        self._nested = [_Nested(field) for field in list(schema)[-NESTED:]]

    @property
    def count(self) -> int:
        return len(self._runs) + sum(each.count for each in self._nested)

    def add(self, key: TreeKey, run: Assembled) -> None:
        row, nested = _NO_ROW, _NOTHING
        if run.problem is None:
            row, *nested = flatten(run.run_id, run.events, status=run.status)
        self._runs.append((*key[:3], run.run_id, *row, run.problem, run.last_us))
        for column, rows in zip(self._nested, nested, strict=True):
            column.add(rows)

    def take(self) -> pa.RecordBatch:
        """Return all rows added since the last call."""
        fields = list(self._schema)[:-NESTED]
        columns = list(zip(*self._runs, strict=True)) or [()] * len(fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        self._runs = []
        return pa.RecordBatch.from_arrays([*arrays, *(each.take() for each in self._nested)], schema=self._schema)
