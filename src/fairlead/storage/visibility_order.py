"""Sort orders of ORDER BY: by any comparable fields, each ascending or descending.

A page starts after a cursor, which holds the sort values of the previous page's last row. So rows that are added,
removed or changed between two pages don't make other rows appear twice or be skipped.
"""

from functools import cmp_to_key
from typing import Any

from msgspec import Struct

from fairlead.storage.visibility import BadSearch, Cursor, Field, Kind, Scalar, VisibilityRow, kind_of
from fairlead.storage.visibility_predicates import value_of

SORT_KEYS_MAX = 5


class SortKey(Struct, frozen=True):
    """A field and a direction. A value of another kind than `kind` counts as no value."""

    field: Field
    kind: Kind
    descending: bool = False


class Sort(Struct, frozen=True):
    """Sorts by these keys, then by run id. Rows without a value come last in either direction."""

    keys: tuple[SortKey, ...]

    def __post_init__(self) -> None:
        """Reject a sort order without fields, or with more than `SORT_KEYS_MAX`."""
        if not 1 <= len(self.keys) <= SORT_KEYS_MAX:
            raise BadSearch(f"can't order by {len(self.keys)} fields: give 1 to {SORT_KEYS_MAX}")


def sort_cursor_of(row: VisibilityRow, sort: Sort) -> Cursor:
    """The cursor of a row: the next page starts after it."""
    return (*(_value(row, key) for key in sort.keys), row.run_id)


def sorted_rows(rows: list[VisibilityRow], sort: Sort, after: Cursor | None) -> list[VisibilityRow]:
    """Sort the rows, and drop the rows up to the cursor."""

    def compare(left: Cursor, right: Cursor) -> int:
        return _compare(left, right, sort)

    placed = [(sort_cursor_of(row, sort), row) for row in rows]
    if after is not None:
        placed = [(cursor, row) for cursor, row in placed if compare(cursor, after) > 0]
    by_cursor = cmp_to_key(compare)
    return [row for _, row in sorted(placed, key=lambda pair: by_cursor(pair[0]))]


def _value(row: VisibilityRow, key: SortKey) -> Scalar | None:
    value = value_of(row, key.field)
    if kind_of(value) is not key.kind:
        return None
    assert isinstance(value, str | int | float)  # noqa: S101 - values of a kind are scalars
    return value


def _compare(left: Cursor, right: Cursor, sort: Sort) -> int:
    for key, one, other in zip(sort.keys, left, right, strict=False):
        if one == other:
            continue
        if one is None or other is None:
            return 1 if one is None else -1
        is_less = _is_less(one, other)
        return 1 if is_less is key.descending else -1
    run_id, other_run_id = str(left[-1]), str(right[-1])
    return (run_id > other_run_id) - (run_id < other_run_id)


def _is_less(left: Any, right: Any) -> bool:
    """Compare two values of the key's kind."""
    return bool(left < right)
