"""Reads and writes the Arrow batches of the histories kernel."""

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from fairlead.pipeline.kernels.histories.assembly import Assembled, Record, assemble_tree
from fairlead.pipeline.kernels.histories.flat_rows import ActivityRow, WorkflowRow, flatten

# Maximum number of rows in one output batch, runs and activities together.
ROWS_AT_ONCE = 2_000

TreeKey = tuple[str, str, str, str]
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


class _Rows:
    """Collects rows for the next Arrow batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._runs: list[tuple[object, ...]] = []
        self._activities: list[ActivityRow] = []
        self._offsets = [0]

    @property
    def count(self) -> int:
        return len(self._runs) + len(self._activities)

    def add(self, key: TreeKey, run: Assembled) -> None:
        row, activities = _NO_ROW, list[ActivityRow]()
        if run.problem is None:
            row, activities = flatten(run.run_id, run.events, status=run.status)
        self._runs.append((*key[:3], run.run_id, *row, run.problem, run.last_us))
        self._activities += activities
        self._offsets.append(len(self._activities))

    def take(self) -> pa.RecordBatch:
        """Return all rows added since the last call."""
        *fields, nested = self._schema
        columns = list(zip(*self._runs, strict=True)) or [()] * len(fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        parts = list(zip(*self._activities, strict=True)) or [()] * len(ActivityRow._fields)
        kinds = nested.type.value_type
        values = pa.StructArray.from_arrays(
            [pa.array(part, kinds[place].type) for place, part in enumerate(parts)],
            fields=[kinds[place] for place in range(len(parts))],
        )
        lists = pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), values, type=nested.type)
        self._runs, self._activities, self._offsets = [], [], [0]
        return pa.RecordBatch.from_arrays([*arrays, lists], schema=self._schema)
