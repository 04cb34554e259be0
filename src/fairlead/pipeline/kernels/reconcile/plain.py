"""Finds the runs that are equal in all clusters, by comparing whole columns of an Arrow batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.core.versions import FIRST_EVENT_ID
from fairlead.pipeline.kernels.reconcile.records import DIGEST_CHARS, EVENT_ID_MAX, SIGNALED_EVENT

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NUMBERS = ("first", "last", "version", "task_id", "time_us", "status", "types_count", "arrived_us")


class BatchColumns:
    """The batches of all runs of an Arrow batch as flat columns, sorted by run, cluster, event, version and task id."""

    def __init__(self, runs: pa.RecordBatch) -> None:
        """Flatten and sort the batches."""
        lists = _list(runs.column("batches"))
        rows = lists.flatten()
        lengths = np.asarray(pc.list_value_length(lists).fill_null(0), dtype=np.int64)
        run_of_row = np.repeat(np.arange(len(lists)), lengths)
        numbers = {name: np.asarray(rows.field(name).fill_null(0), dtype=np.int64) for name in _NUMBERS}
        clusters, names = _codes(rows.field("cluster"))
        order = np.lexsort((numbers["task_id"], numbers["version"], numbers["first"], clusters, run_of_row))
        self.run_ids = runs.column("run_id")
        self.expected = _list(runs.column("expected"))
        self.names = names
        self.run = run_of_row[order]
        self.cluster = clusters[order]
        (
            self.first,
            self.last,
            self.version,
            self.task_id,
            self.time_us,
            self.status_code,
            self.types_count,
            self.arrived_us,
        ) = (numbers[name][order] for name in _NUMBERS)
        places = pa.array(order)
        self.tree_id = rows.field("tree_id").take(places)
        self.branch_id = rows.field("branch_id").take(places)
        self.digests = rows.field("digests").take(places)
        self.items = _list(rows.field("items")).take(places)
        self.signals = _list(rows.field("signals")).take(places)
        self.event_types = _list(rows.field("event_types")).take(places)
        self.payload_fault = rows.field("payload_fault").take(places)
        self.run_start = np.concatenate(([0], np.cumsum(lengths)))
        self._find_copies()
        self._find_items()

    def _find_copies(self) -> None:
        """Find the copies: a copy begins where the run or the cluster changes."""
        begins = np.ones(len(self.run), dtype=bool)
        begins[1:] = (self.run[1:] != self.run[:-1]) | (self.cluster[1:] != self.cluster[:-1])
        self.begins_copy = begins
        self.copy_start = np.flatnonzero(begins)
        self.copy_end = np.append(self.copy_start[1:], len(self.run)) - 1
        self.copy_of_row = np.cumsum(begins) - 1
        self.copy_run = self.run[self.copy_start]
        if len(self.run):
            self.copy_first_us = np.minimum.reduceat(self.time_us, self.copy_start)
            self.copy_last_us = np.maximum.reduceat(self.time_us, self.copy_start)
        self.first_copy = np.searchsorted(self.copy_run, np.arange(len(self.run_start)))

    def _find_items(self) -> None:
        self.item_count = np.asarray(pc.list_value_length(self.items).fill_null(0), dtype=np.int64)
        self.item_start = np.cumsum(self.item_count) - self.item_count
        flat = self.items.flatten()
        self.item_event = np.asarray(flat.field("event_id").fill_null(0), dtype=np.int64)
        self.item_version = np.asarray(flat.field("version").fill_null(0), dtype=np.int64)

    # Access to single runs.

    def run_id(self, run: int) -> str:
        """Return the id of a run."""
        return str(self.run_ids[run].as_py())

    def rows_of(self, run: int) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of a run with the names of their clusters, sorted by cluster."""
        for row in range(self.run_start[run], self.run_start[run + 1]):
            yield (
                self.names[self.cluster[row]],
                self.tree_id[row].as_py(),
                self.branch_id[row].as_py(),
                int(self.first[row]),
                int(self.last[row]),
                int(self.version[row]),
                int(self.task_id[row]),
                int(self.time_us[row]),
                int(self.status_code[row]),
                int(self.types_count[row]),
                self.digests[row].as_py() or "",
                self._pairs(row),
                tuple(self.signals[row].as_py() or ()),
                tuple(self.event_types[row].as_py() or ()),
                int(self.arrived_us[row]),
                self.payload_fault[row].as_py(),
            )

    def _pairs(self, row: int) -> tuple[tuple[int, int], ...]:
        start = self.item_start[row]
        stop = start + self.item_count[row]
        return tuple(zip(self.item_event[start:stop].tolist(), self.item_version[start:stop].tolist(), strict=True))


def plain_runs(columns: BatchColumns) -> Flags:
    """Return which runs have one branch without a gap, in whole batches, equal in every expected cluster."""
    runs = len(columns.run_ids)
    if not len(columns.run):
        return np.zeros(runs, dtype=bool)
    is_sound = _is_sound(columns) & _is_in_its_own_tree(columns) & _goes_on(columns)
    is_sound &= _is_as_in_the_first_copy(columns)
    bad_rows = np.bincount(columns.run, weights=~is_sound, minlength=runs)
    return np.asarray((bad_rows == 0) & _is_where_expected(columns), dtype=bool)


def _is_sound(columns: BatchColumns) -> Flags:
    """Whether each batch is well-formed by itself and its version history ends with its last event."""
    count = columns.last - columns.first + 1
    digests = np.asarray(pc.binary_length(columns.digests).fill_null(0), dtype=np.int64)
    has_items = columns.item_count > 0
    tail = np.where(has_items, columns.item_start + columns.item_count - 1, 0)
    if not len(columns.item_event):
        return np.zeros(len(count), dtype=bool)
    is_sound = (
        (count > 0)
        & (columns.last <= EVENT_ID_MAX)
        & (digests == count * DIGEST_CHARS)
        & (columns.types_count == count)
        & _names_its_signals(columns)
        & np.asarray(pc.is_null(columns.payload_fault), dtype=bool)
        & (columns.version >= 0)
        & has_items
        & (columns.item_event[tail] == columns.last)
        & (columns.item_version[tail] == columns.version)
    )
    return np.asarray(is_sound, dtype=bool)


def _is_in_its_own_tree(columns: BatchColumns) -> Flags:
    """Whether each batch is in the tree of its run; a batch of a reset run may be in another run's tree."""
    own = columns.run_ids.take(pa.array(columns.run))
    return np.asarray(pc.equal(columns.tree_id, own).fill_null(False), dtype=bool)  # noqa: FBT003


def _names_its_signals(columns: BatchColumns) -> Flags:
    """Whether each batch has an id for each of its signals."""
    signals = np.asarray(pc.list_value_length(columns.signals).fill_null(0), dtype=np.int64)
    lengths = np.asarray(pc.list_value_length(columns.event_types).fill_null(0), dtype=np.int64)
    is_signal = np.asarray(columns.event_types.flatten(), dtype=np.int64) == SIGNALED_EVENT
    row = np.repeat(np.arange(len(lengths)), lengths)
    signaled = np.bincount(row, weights=is_signal, minlength=len(lengths))
    return np.asarray(signals == signaled, dtype=bool)


def _goes_on(columns: BatchColumns) -> Flags:
    """Whether each batch continues the previous one: consecutive event ids, and a version history that extends it."""
    before = np.maximum(np.arange(len(columns.run)) - 1, 0)
    is_first = (columns.first == FIRST_EVENT_ID) & (columns.item_count == 1)
    is_same_version = columns.version == columns.version[before]
    follows = (
        (columns.first == columns.last[before] + 1)
        & (columns.version >= columns.version[before])
        & (columns.item_count == columns.item_count[before] + ~is_same_version)
    )
    return np.asarray(np.where(columns.begins_copy, is_first, follows & _shares_items(columns, before)), dtype=bool)


def _shares_items(columns: BatchColumns, before: Longs) -> Flags:
    """Whether this batch begins with the previous one's items; the last item of this batch is not compared."""
    shared = np.where(columns.begins_copy, 0, np.minimum(columns.item_count - 1, columns.item_count[before]))
    shared = np.maximum(shared, 0)
    row = np.repeat(np.arange(len(shared)), shared)
    place = np.arange(len(row)) - np.repeat(np.cumsum(shared) - shared, shared)
    here, there = columns.item_start[row] + place, columns.item_start[before[row]] + place
    differs = (columns.item_event[here] != columns.item_event[there]) | (
        columns.item_version[here] != columns.item_version[there]
    )
    return np.asarray(np.bincount(row, weights=differs, minlength=len(shared)) == 0, dtype=bool)


def _is_as_in_the_first_copy(columns: BatchColumns) -> Flags:
    """Whether each batch equals its counterpart in the run's first copy; False if the copies differ in length."""
    sizes = columns.copy_end - columns.copy_start + 1
    first_copy = columns.first_copy[columns.copy_run]
    has_size = (sizes == sizes[first_copy])[columns.copy_of_row]
    offset = np.arange(len(columns.run)) - columns.copy_start[columns.copy_of_row]
    other = columns.copy_start[first_copy][columns.copy_of_row] + np.where(has_size, offset, 0)
    is_equal = has_size
    for column in (columns.first, columns.last, columns.version, columns.status_code):
        is_equal = is_equal & (column == column[other])
    same = pc.equal(columns.digests, columns.digests.take(pa.array(other))).fill_null(False)  # noqa: FBT003
    is_equal = is_equal & _is_same_list(columns.event_types, other) & _is_same_list(columns.signals, other)
    return np.asarray(is_equal & np.asarray(same), dtype=bool)


def _is_same_list(lists: pa.ListArray, other: Longs) -> Flags:
    """Whether each list equals the list at the index in `other`; a null counts as an empty list."""
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0), dtype=np.int64)
    start = np.cumsum(lengths) - lengths
    values = np.asarray(lists.flatten().dictionary_encode().indices.fill_null(-1), dtype=np.int64)
    has_length = lengths == lengths[other]
    compared = np.where(has_length, lengths, 0)
    row = np.repeat(np.arange(len(lengths)), compared)
    place = np.arange(len(row)) - np.repeat(np.cumsum(compared) - compared, compared)
    differs = values[start[row] + place] != values[start[other[row]] + place]
    return np.asarray(has_length & (np.bincount(row, weights=differs, minlength=len(lengths)) == 0), dtype=bool)


def _is_where_expected(columns: BatchColumns) -> Flags:
    """Whether the clusters that have the run are exactly the expected ones."""
    runs = len(columns.run_ids)
    copies = np.bincount(columns.copy_run, minlength=runs)
    lengths = np.asarray(pc.list_value_length(columns.expected).fill_null(0), dtype=np.int64)
    run = np.repeat(np.arange(runs), lengths)
    codes = pc.index_in(columns.expected.flatten(), value_set=pa.array(columns.names, type=pa.string()))
    present = np.asarray(codes.fill_null(-1), dtype=np.int64)
    keys = np.union1d([], columns.copy_run * (len(columns.names) + 1) + columns.cluster[columns.copy_start])
    is_present = (present >= 0) & np.isin(run * (len(columns.names) + 1) + present, keys)
    is_complete = np.bincount(run, weights=is_present, minlength=runs) == lengths
    return np.asarray(is_complete & (copies == lengths), dtype=bool)


def _codes(strings: pa.Array) -> tuple[Longs, list[str]]:
    """Return a number for each string, ascending with the strings, and the sorted distinct strings."""
    encoded = strings.fill_null("").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ranked = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(names), dtype=np.int64)
    ranks[ranked] = np.arange(len(names))
    return ranks[np.asarray(encoded.indices, dtype=np.int64)], [names[place] for place in ranked]


def _list(column: pa.Array) -> pa.ListArray:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
