"""The rows of a derived table that a run replaces, as conditions on columns of the table."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

HOUR_US = 3_600_000_000
# Joins the columns of a key to one string; no id has it.
_MARK = "\x00"


class Touched(Protocol):
    """Rows to replace. Rows of untouched files are neither read nor written."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        ...

    def may_be_in(self, file: parquet.FileMetaData) -> bool:
        """Whether the file may have such rows, by its statistics."""
        ...

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows are to be replaced; `rows` has at least the columns that decide."""
        ...


@dataclass(frozen=True)
class Hours:
    """The windows that begin in these hours; each hour is given by its beginning, in µs since the epoch."""

    hours: frozenset[int]
    column: str = "window_us"

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Touched`."""
        return (self.column,)

    @property
    def first_us(self) -> int:
        """Beginning of the first hour."""
        return min(self.hours)

    @property
    def end_us(self) -> int:
        """End of the last hour."""
        return max(self.hours) + HOUR_US

    def may_be_in(self, file: parquet.FileMetaData) -> bool:
        """See `Touched`."""
        ends = bounds_of(file, self.column)
        return ends is None or any(ends[0] < hour + HOUR_US and hour <= ends[1] for hour in self.hours)

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """See `Touched`."""
        hours = pc.multiply(pc.divide(rows.column(self.column), HOUR_US), HOUR_US)
        return pc.is_in(hours, value_set=pa.array(sorted(self.hours), pa.int64()))


@dataclass(frozen=True)
class Keys:
    """The rows whose columns have one of these combinations of values, like the id of a namespace and of a workflow."""

    columns: tuple[str, ...]
    keys: pa.Table

    def may_be_in(self, file: parquet.FileMetaData) -> bool:
        """See `Touched`."""
        return bool(file.num_rows and self.keys.num_rows)

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """See `Touched`."""
        return pc.is_in(joined(rows, self.columns), value_set=joined(self.keys, self.columns))


@dataclass(frozen=True)
class Spans:
    """For some keys, the rows with `span_first_us` <= time < `span_end_us`; `keys` has their columns and these two."""

    key: tuple[str, ...]
    keys: pa.Table
    column: str = "window_us"

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Touched`."""
        return (*self.key, self.column)

    def may_be_in(self, file: parquet.FileMetaData) -> bool:
        """See `Touched`."""
        ends = bounds_of(file, self.column)
        if ends is None or not self.keys.num_rows:
            return bool(self.keys.num_rows)
        first_us, end_us = pc.min(self.keys["span_first_us"]).as_py(), pc.max(self.keys["span_end_us"]).as_py()
        return bool(ends[0] < end_us and first_us <= ends[1])

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """See `Touched`."""
        places = pc.index_in(joined(rows, self.key), value_set=joined(self.keys, self.key))
        time_us = rows.column(self.column)
        first_us, end_us = (self.keys[name].combine_chunks().take(places) for name in ("span_first_us", "span_end_us"))
        return pc.fill_null(pc.and_(pc.greater_equal(time_us, first_us), pc.less(time_us, end_us)), fill_value=False)


def joined(rows: pa.RecordBatch | pa.Table, columns: tuple[str, ...]) -> pa.StringArray:
    """Return the values of these columns as one string for each row."""
    texts = [pc.fill_null(rows.column(name).cast(pa.string()), _MARK) for name in columns]
    found = pc.binary_join_element_wise(*texts, _MARK)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def bounds_of(file: parquet.FileMetaData, column: str) -> tuple[int, int] | None:
    """Return the lowest and the highest value of a column by the statistics of the file; None if they are missing."""
    if not file.num_rows:
        return (0, -1)
    place = file.schema.names.index(column)
    found = [file.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
    if any(one is None or not one.has_min_max for one in found):
        return None
    return min(one.min for one in found), max(one.max for one in found)
