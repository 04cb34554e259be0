"""Judges runs with a single branch that is equal in all clusters, by whole columns: most runs are like this."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.pipeline.kernels.reconcile.plain import BatchColumns, Flags, Longs
from fairlead.pipeline.kernels.reconcile.records import OPEN_STATUSES, Rules


class PlainRuns:
    """The plain runs of an Arrow batch, with the positions of their first copies and of all their copies."""

    def __init__(self, columns: BatchColumns, runs: Longs, rules: Rules) -> None:
        """`runs` are the positions of the plain runs in the batch."""
        self.columns = columns
        self.runs = runs
        self.rules = rules
        self.count = len(runs)
        self.first_copy = columns.first_copy[runs]
        # All copies are equal, so the last batch of the first copy stands for all.
        self.last_row = columns.copy_end[self.first_copy]
        self.copy_counts = columns.first_copy[runs + 1] - self.first_copy
        self.copies = _ranges(self.first_copy, self.copy_counts)
        self.last_event_id = columns.last[self.last_row]
        self.last_version = columns.version[self.last_row]
        self.status = columns.status_code[self.last_row]
        self.is_open: Flags = np.isin(self.status, list(OPEN_STATUSES))

    def judged(self, schema: pa.Schema, names: Iterable[str]) -> dict[str, pa.Array]:
        """Return these columns of the schema; columns that plain runs don't use are null or empty lists."""
        begins = _begins(self.copy_counts)
        first_us, last_us = self.columns.copy_first_us[self.copies], self.columns.copy_last_us[self.copies]
        reported = {
            "branches": self._branches,
            "ancestor": lambda: _struct(event_id=self.last_event_id, version=self.last_version),
            "status": lambda: self.status,
            "is_open": lambda: self.is_open,
            "last_event_id": lambda: self.last_event_id,
            "last_version": lambda: self.last_version,
            "first_us": lambda: np.minimum.reduceat(first_us, begins),
            "last_us": lambda: np.maximum.reduceat(last_us, begins),
            "opened_age_us": lambda: np.maximum.reduceat(self._ages_us(first_us, self._arrived_us(np.minimum)), begins),
            "last_age_us": lambda: np.minimum.reduceat(self._ages_us(last_us, self._arrived_us(np.maximum)), begins),
            "copies": self._copies,
            "pairs": self._pairs,
            "current_signals": self._signals,
        }
        return {
            name: pa.array(reported[name]()).cast(kind) if name in reported else self._nothing(kind)
            for name, kind in ((name, schema.field(name).type) for name in names)
        }

    def _arrived_us(self, choose: np.ufunc) -> Longs:
        """Return when the first or the last batch of each copy arrived in the lake."""
        chosen: Longs = choose.reduceat(self.columns.arrived_us, self.columns.copy_start)
        return chosen[self.copies]

    def _ages_us(self, time_us: Longs, arrived_us: Longs) -> Longs:
        clusters = self.columns.cluster[self.columns.copy_start[self.copies]]
        return self.rules.watermarks.ages_us(self.columns.names, clusters, time_us, arrived_us)

    def _nothing(self, kind: pa.DataType) -> pa.Array:
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(np.zeros(self.count + 1, np.int32), pa.array([], kind.value_type), kind)
        return pa.nulls(self.count, kind)

    def _branches(self) -> pa.Array:
        return _lists(np.ones(self.count, np.int64), self.columns.items.take(pa.array(self.last_row)))

    def _copies(self) -> pa.Array:
        columns, counts = self.columns, self.copy_counts
        rows = _struct(
            cluster=self._names(columns.cluster[columns.copy_start[self.copies]]),
            is_open=np.repeat(self.is_open, counts),
            is_overdue=np.zeros(len(self.copies), bool),
            status=np.repeat(self.status, counts).astype(np.int32),
            last_event_id=np.repeat(self.last_event_id, counts),
            last_version=np.repeat(self.last_version, counts),
            # A plain run begins with event 1 and has no gap.
            events=np.repeat(self.last_event_id, counts),
            first_us=columns.copy_first_us[self.copies],
            last_us=columns.copy_last_us[self.copies],
            # A plain run is the root of its own tree.
            tree_id=columns.run_ids.take(pa.array(np.repeat(self.runs, counts))),
        )
        return _lists(counts, rows)

    def _pairs(self) -> pa.Array:
        clusters = self.columns.cluster[self.columns.copy_start]
        counts = self.copy_counts * (self.copy_counts - 1) // 2
        begins = _begins(counts)
        left, right = np.empty(counts.sum(), np.int64), np.empty(counts.sum(), np.int64)
        # Loop over the few distinct numbers of copies: runs with equally many copies have the same pairs of positions.
        for copies in np.unique(self.copy_counts).tolist():
            these = self.copy_counts == copies
            for place, (one, other) in enumerate(combinations(range(copies), 2)):
                left[begins[these] + place] = clusters[self.first_copy[these] + one]
                right[begins[these] + place] = clusters[self.first_copy[these] + other]
        none = np.zeros(len(left), np.int64)
        rows = _struct(
            left=self._names(left),
            right=self._names(right),
            shared=np.repeat(self.last_event_id, counts),
            only_left=none,
            only_right=none,
            different=none,
            late=none,
            not_comparable=none,
        )
        return _lists(counts, rows)

    def _signals(self) -> pa.Array:
        start = self.columns.copy_start[self.first_copy]
        row_counts = self.last_row - start + 1
        signals = self.columns.signals.take(pa.array(_ranges(start, row_counts)))
        lengths = np.asarray(pc.list_value_length(signals).fill_null(0), dtype=np.int64)
        return _lists(np.add.reduceat(lengths, _begins(row_counts)), signals.flatten())

    def _names(self, clusters: Longs) -> pa.Array:
        return pa.array(self.columns.names, pa.string()).take(pa.array(clusters))


def _begins(counts: Longs) -> Longs:
    """Return the position at which each of several consecutive ranges begins, given their lengths."""
    begins: Longs = np.cumsum(counts) - counts
    return begins


def _ranges(starts: Longs, counts: Longs) -> Longs:
    """Return all positions of several ranges, one range after the other."""
    places: Longs = np.arange(counts.sum()) + np.repeat(starts - _begins(counts), counts)
    return places


def _lists(counts: Longs, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(np.concatenate(([0], np.cumsum(counts))).astype(np.int32), values)


def _struct(**fields: "Longs | Flags | pa.Array") -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(values) for values in fields.values()], list(fields))
