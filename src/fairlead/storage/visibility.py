"""Visibility: one row per run, its fields and values, and the order of rows."""

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

import msgspec
from msgspec import Struct

from fairlead.core.errors import FixRequest

GROUPS_MAX = 1000
ATTRIBUTES_MAX = 250
INT64_MAX = 2**63 - 1

_BAD_IN_NAME = re.compile(r'["\\\x00-\x1f\x7f]')
_WORD = re.compile(r"\w+")


class BadSearch(FixRequest):
    """A predicate or a search value that no store accepts."""


class Text(str):
    """A text that is searched by words, ignoring case; a plain string is compared as a whole."""

    __slots__ = ()


# Types of values: a time is nanoseconds since 1970, a keyword list is a tuple.
Scalar = str | int | float | bool
SearchValue = Scalar | Text | tuple[str, ...]


class Column(StrEnum):
    """The columns of a row; some have no value before the run closes."""

    WORKFLOW_ID = "workflow_id"
    RUN_ID = "run_id"
    WORKFLOW_TYPE = "workflow_type"
    TASK_QUEUE = "task_queue"
    PARENT_WORKFLOW_ID = "parent_workflow_id"
    PARENT_RUN_ID = "parent_run_id"
    ROOT_WORKFLOW_ID = "root_workflow_id"
    ROOT_RUN_ID = "root_run_id"
    STATUS = "status"
    START_TIME_NS = "start_time_ns"
    EXECUTION_TIME_NS = "execution_time_ns"
    CLOSE_TIME_NS = "close_time_ns"
    EXECUTION_DURATION_NS = "execution_duration_ns"
    HISTORY_LENGTH = "history_length"
    HISTORY_SIZE_BYTES = "history_size_bytes"
    STATE_TRANSITION_COUNT = "state_transition_count"


TEXT_COLUMNS = frozenset(
    {
        Column.WORKFLOW_ID,
        Column.RUN_ID,
        Column.WORKFLOW_TYPE,
        Column.TASK_QUEUE,
        Column.PARENT_WORKFLOW_ID,
        Column.PARENT_RUN_ID,
        Column.ROOT_WORKFLOW_ID,
        Column.ROOT_RUN_ID,
    }
)
# Numbers that every row has.
NEVER_NULL = frozenset({Column.STATUS, Column.START_TIME_NS, Column.EXECUTION_TIME_NS})
# Columns whose missing values sort as the largest number.
NULLABLE_NUMBERS = frozenset(
    {
        Column.CLOSE_TIME_NS,
        Column.EXECUTION_DURATION_NS,
        Column.HISTORY_LENGTH,
        Column.HISTORY_SIZE_BYTES,
        Column.STATE_TRANSITION_COUNT,
    }
)


class Attribute(NamedTuple):
    """A search attribute, by its name."""

    name: str


Field = Column | Attribute


class VisibilityRow(NamedTuple):
    """The visibility row of a run.

    Times are nanoseconds since 1970; values that only a closed run has are None before the close.
    """

    namespace_id: str
    run_id: str
    workflow_id: str
    workflow_type: str
    status: int
    start_time_ns: int
    execution_time_ns: int
    task_queue: str
    close_time_ns: int | None = None
    execution_duration_ns: int | None = None
    history_length: int | None = None
    history_size_bytes: int | None = None
    state_transition_count: int | None = None
    parent_workflow_id: str | None = None
    parent_run_id: str | None = None
    root_workflow_id: str | None = None
    root_run_id: str | None = None
    memo: bytes = b""
    search_attributes: Mapping[str, SearchValue] = {}


class VisibilityDelete(NamedTuple):
    """Delete a run's row, if it exists."""

    namespace_id: str
    run_id: str


class Kind(StrEnum):
    """Kinds of values; only values of the same kind can be compared."""

    TEXT = "text"
    NUMBER = "number"
    TRUTH = "truth"


def kind_of(value: object) -> Kind | None:
    """The kind of a comparable value; None for a `Text`, a list or None."""
    if isinstance(value, bool):
        return Kind.TRUTH
    if isinstance(value, int | float):
        return Kind.NUMBER
    if isinstance(value, str) and not isinstance(value, Text):
        return Kind.TEXT
    return None


class Order(Struct, frozen=True):
    """Order by these columns, then by run id, all in one direction. A missing value counts as the largest number."""

    columns: tuple[Column, ...]
    descending: bool = True

    def __post_init__(self) -> None:
        wrong = [column for column in self.columns if column in TEXT_COLUMNS and column is not Column.WORKFLOW_ID]
        if wrong or not 1 <= len(self.columns) <= 3:
            raise BadSearch(f"can't order by {list(self.columns)}: give one to three numbers, times or the workflow id")


# Open runs first, then closed runs, the latest close first; runs with equal times by start time, the latest first.
LATEST_FIRST = Order((Column.CLOSE_TIME_NS, Column.START_TIME_NS))

# The position of a page's last row: the values of its sort columns, and its run id.
Cursor = tuple[Scalar | None, ...]


def cursor_of(row: VisibilityRow, order: Order) -> Cursor:
    """The position of a row in an order; the next page begins after it."""
    values = [getattr(row, column) for column in order.columns]
    return (*(INT64_MAX if value is None else value for value in values), row.run_id)


class Group(NamedTuple):
    """The number of rows with this value; None means no value."""

    value: SearchValue | None
    rows: int


def words_of(text: str) -> list[str]:
    """The words by which a text can be found."""
    return list(dict.fromkeys(_WORD.findall(text.casefold())))


def check_row(row: VisibilityRow) -> None:
    """Raise `BadSearch` if there is a store that could not store or search the row."""
    if not row.search_attributes:
        return
    if len(row.search_attributes) > ATTRIBUTES_MAX:
        raise BadSearch(f"{len(row.search_attributes)} search attributes, the limit is {ATTRIBUTES_MAX}")
    for name, value in row.search_attributes.items():
        field = Attribute(name)
        check_field(field)
        for one in value if isinstance(value, tuple) else (value,):
            check_scalar(field, str(one) if isinstance(one, Text) else one)


def encode_attributes(attributes: Mapping[str, SearchValue]) -> str:
    """Encode search attributes as JSON: numbers, strings, booleans, lists, and `{"text", "words"}` for a `Text`."""
    if not attributes:
        return "{}"
    return msgspec.json.encode({name: _plain(value) for name, value in attributes.items()}).decode()


def decode_attributes(encoded: str) -> dict[str, SearchValue]:
    """Decode search attributes that `encode_attributes` encoded."""
    if encoded == "{}":
        return {}
    return {name: decode_value(value) for name, value in msgspec.json.decode(encoded, type=dict[str, object]).items()}


def decode_value(value: object) -> SearchValue:
    """Convert a value that JSON decoded."""
    if isinstance(value, dict):
        return Text(value["text"])
    if isinstance(value, list):
        return tuple(value)
    assert isinstance(value, str | int | float | bool)  # noqa: S101 - nothing else is ever encoded
    return value


def check_field(field: Field) -> None:
    """Raise if the name of a search attribute is empty or has forbidden characters."""
    if isinstance(field, Attribute) and (not field.name or _BAD_IN_NAME.search(field.name)):
        raise BadSearch(f"search attribute {field.name!r}: give a name without quotes, backslashes and controls")
    if isinstance(field, Attribute):
        _check_text(field, field.name)


def _plain(value: SearchValue) -> object:
    if isinstance(value, Text):
        return {"text": str(value), "words": words_of(value)}
    if isinstance(value, float):
        # Avoid the form 1e+16, which PostgreSQL returns as an integer.
        digits = format(Decimal(repr(value)), "f")
        return msgspec.Raw((digits if "." in digits else f"{digits}.0").encode())
    return value


def check_scalar(field: Field, value: object) -> None:
    """Raise if a value can't be stored or compared."""
    if isinstance(value, str):
        _check_text(field, value)
    elif isinstance(value, int) and not -INT64_MAX <= value <= INT64_MAX:
        raise BadSearch(f"{field}: {value} does not fit into 64 bits")
    elif isinstance(value, float) and not isfinite(value):
        raise BadSearch(f"{field}: {value} is not a finite number")
    elif not isinstance(value, int | float):
        raise BadSearch(f"{field}: {value!r} has a type that can't be searched")


def _check_text(field: Field, value: str) -> None:
    if "\0" in value:
        raise BadSearch(f"{field}: {value!r} contains a NUL character: remove it")
    try:
        value.encode()
    except UnicodeEncodeError as wrong:
        raise BadSearch(f"{field}: {value!r} has no UTF-8 form: {wrong.reason}") from wrong
