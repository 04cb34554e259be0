"""The check of many runs at once: Arrow batches in, Arrow batches out.

Nearly all runs are equal in all clusters, on one branch without a gap. These are found for a whole Arrow batch at a
time by comparing columns; only the other runs are judged one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.core.versions import ClusterVersions, Item, VersionHistory, draw_tree
from fairlead.core.versions.branches import BranchTree
from fairlead.pipeline.kernels.reconcile.alike import PlainRuns
from fairlead.pipeline.kernels.reconcile.clocks import Clocks
from fairlead.pipeline.kernels.reconcile.compare import Comparison
from fairlead.pipeline.kernels.reconcile.copies import read_copy
from fairlead.pipeline.kernels.reconcile.plain import BatchColumns, plain_runs
from fairlead.pipeline.kernels.reconcile.records import (
    OPEN_STATUSES,
    Batch,
    CopySummary,
    Judgement,
    Rules,
)

_ITEM = pa.struct([("event_id", pa.int64()), ("version", pa.int64())])
_BRANCH = pa.list_(_ITEM)

FINDING = pa.struct(
    [
        ("kind", pa.string()), ("state", pa.string()), ("cluster", pa.string()), ("other", pa.string()),
        ("version", pa.int64()), ("first_event_id", pa.int64()), ("last_event_id", pa.int64()),
        ("detail", pa.string()),
    ]
)  # fmt: skip
COPY = pa.struct(
    [
        ("cluster", pa.string()), ("is_open", pa.bool_()), ("is_overdue", pa.bool_()), ("status", pa.int32()),
        ("last_event_id", pa.int64()), ("last_version", pa.int64()), ("events", pa.int64()),
        ("first_us", pa.int64()), ("last_us", pa.int64()), ("tree_id", pa.string()),
    ]
)  # fmt: skip
PAIR = pa.struct(
    [
        ("left", pa.string()), ("right", pa.string()), ("shared", pa.int64()), ("only_left", pa.int64()),
        ("only_right", pa.int64()), ("different", pa.int64()), ("late", pa.int64()), ("not_comparable", pa.int64()),
    ]
)  # fmt: skip
SEND = pa.struct(
    [
        ("target", pa.string()), ("source", pa.string()), ("version", pa.int64()), ("first_event_id", pa.int64()),
        ("last_event_id", pa.int64()), ("items", _BRANCH), ("kind", pa.string()),
    ]
)  # fmt: skip
LOST_SIGNAL = pa.struct([("signal", pa.string()), ("event_id", pa.int64()), ("version", pa.int64())])

# The input has one row per run, the output the same runs with their judgement; the first branch is the current one.
BATCH = pa.struct(
    [
        ("cluster", pa.string()), ("tree_id", pa.string()), ("branch_id", pa.string()),
        ("first", pa.int64()), ("last", pa.int64()), ("version", pa.int64()), ("task_id", pa.int64()),
        ("time_us", pa.int64()), ("status", pa.int32()), ("types_count", pa.int32()), ("digests", pa.string()),
        ("items", _BRANCH), ("signals", pa.list_(pa.string())), ("event_types", pa.list_(pa.int32())),
        ("arrived_us", pa.int64()), ("payload_fault", pa.string()),
    ]
)  # fmt: skip
_KEYS = [("namespace_id", pa.string()), ("workflow_id", pa.string()), ("run_id", pa.string())]
# Columns that are copied from the input to the output; `successors` are the runs that continue this run.
_CARRIED = [*_KEYS, ("successors", pa.list_(pa.string()))]
RUN_BATCHES = pa.schema([*_CARRIED, ("expected", pa.list_(pa.string())), ("batches", pa.list_(BATCH))])
JUDGED = pa.schema(
    [
        *_CARRIED,
        ("branches", pa.list_(_BRANCH)),
        ("drawing", pa.string()),
        ("ancestor", _ITEM),
        ("disagreeing", pa.list_(pa.string())),
        ("status", pa.int32()),
        ("is_open", pa.bool_()),
        ("last_event_id", pa.int64()),
        ("last_version", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("findings", pa.list_(FINDING)),
        ("copies", pa.list_(COPY)),
        ("pairs", pa.list_(PAIR)),
        ("sends", pa.list_(SEND)),
        ("current_signals", pa.list_(pa.string())),
        ("lost_signals", pa.list_(LOST_SIGNAL)),
        ("opened_age_us", pa.int64()),
        ("last_age_us", pa.int64()),
    ]
)


def judge_runs(
    batches: Iterator[pa.RecordBatch],
    *,
    now_us: int,
    grace_us: int,
    retention_us: int | None,
    increment: int | None,
    initial_versions: Mapping[str, int],
    clocks: Clocks | None = None,
) -> Iterator[pa.RecordBatch]:
    """Judge every run of every batch. The arguments are plain values, because Spark sends them to the workers."""
    versions = ClusterVersions(increment, initial_versions) if increment is not None else None
    rules = Rules(now_us, grace_us, retention_us, versions, clocks)
    for batch in batches:
        columns = BatchColumns(batch)
        yield judge_batch(batch, columns, rules, plain_runs(columns))


def judge_batch(
    batch: pa.RecordBatch, columns: BatchColumns, rules: Rules, is_plain: np.ndarray[Any, np.dtype[np.bool_]]
) -> pa.RecordBatch:
    """Judge the runs of one batch; all plain runs in one step."""
    plain, others = np.flatnonzero(is_plain), np.flatnonzero(~is_plain)
    names = JUDGED.names[len(_CARRIED) :]
    # `PlainRuns` can't reduce empty arrays.
    parts = [PlainRuns(columns, plain, rules).judged(JUDGED, names)] if len(plain) else []
    if len(others) or not parts:
        parts.append(_judge_others(batch, columns, rules, others))
    place = pa.array(np.argsort(np.concatenate((plain, others))))
    rest = [pa.concat_arrays([part[name] for part in parts]).take(place) for name in names]
    carried = [batch.column(name) for name, _ in _CARRIED]
    return pa.RecordBatch.from_arrays([*carried, *rest], schema=JUDGED)


def _judge_others(
    batch: pa.RecordBatch, columns: BatchColumns, rules: Rules, runs: np.ndarray[Any, np.dtype[np.intp]]
) -> dict[str, pa.Array]:
    expected = batch.column("expected")
    outputs = [_row(_judge(columns, run, expected[run].as_py(), rules)) for run in runs.tolist()]
    names = JUDGED.names[len(_CARRIED) :]
    return {
        name: pa.array([output[place] for output in outputs], type=JUDGED.field(name).type)
        for place, name in enumerate(names)
    }


def _judge(columns: BatchColumns, run: int, expected: Sequence[str] | None, rules: Rules) -> Judgement:
    rows = columns.rows_of(run)
    run_id = columns.run_id(run)
    copies = [
        read_copy(cluster, run_id, [Batch(*row[1:]) for row in group])
        for cluster, group in groupby(rows, key=lambda row: row[0])
    ]
    return Comparison(copies, expected or (), rules).judge()


def _row(judgement: Judgement) -> tuple[object, ...]:
    branches = judgement.branches
    last = branches[0].last if branches else None
    return (
        [_pairs(branch) for branch in branches],
        "\n".join(draw_tree(BranchTree.restore(branches))) if len(branches) > 1 else None,
        _item(judgement.ancestor),
        judgement.disagreeing,
        judgement.status,
        judgement.status in OPEN_STATUSES,
        last.event_id if last else None,
        last.version if last else None,
        judgement.first_us,
        judgement.last_us,
        [finding._asdict() for finding in judgement.findings],
        [_copy(copy) for copy in judgement.copies],
        [pair._asdict() for pair in judgement.pairs],
        [{**send._asdict(), "items": _pairs(send.branch)} for send in judgement.sends],
        judgement.current_signals,
        [
            {"signal": signal, "event_id": event.event_id, "version": event.version}
            for signal, event in judgement.lost_signals
        ],
        judgement.opened_age_us,
        judgement.last_age_us,
    )


def _copy(copy: CopySummary) -> dict[str, object]:
    last = copy.last or Item(0, 0)
    return {**copy._asdict(), "last_event_id": last.event_id, "last_version": last.version}


def _item(item: Item | None) -> dict[str, int] | None:
    return item._asdict() if item else None


def _pairs(branch: VersionHistory) -> list[dict[str, int]]:
    return [item._asdict() for item in branch.items]
