"""What is said about runs so that they can be found: one row a run, predicates over the rows, and their order.

A predicate is true, false or unknown of a row, as in SQL. A comparison is unknown where the row has no value for its
field, or one of another kind: text, number or truth. What is found are the rows of which the predicate is true, so
that `Not` does not find those without a value.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

import msgspec

from fairlead.core.errors import FixRequest

PREDICATE_NODES_MAX = 250
# SQLite's parser gives up at 27.
PREDICATE_DEPTH_MAX = 20
IN_VALUES_MAX = 1000
GROUPS_MAX = 1000
ATTRIBUTES_MAX = 250
INT64_MAX = 2**63 - 1

_BAD_IN_NAME = re.compile(r'["\\\x00-\x1f\x7f]')
_WORD = re.compile(r"\w+")


class BadSearch(FixRequest):
    """A predicate, or a value to search by, that no store accepts."""


class Text(str):
    """A value that is searched by its words, whatever their case; a plain string is compared as a whole."""

    __slots__ = ()


# A time is its nanoseconds since 1970, and a list of keywords is a tuple.
Scalar = str | int | float | bool
SearchValue = Scalar | Text | tuple[str, ...]


class Column(StrEnum):
    """What every row has, though some only later: by the name of its column."""

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
# In an order these stand as the largest number where there is none.
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
    """What can be found of one run. Times are nanoseconds since 1970; what follows from the close is None before it."""

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
    """Take a run's row away, if it is there."""

    namespace_id: str
    run_id: str


class Kind(StrEnum):
    """What can be compared with what."""

    TEXT = "text"
    NUMBER = "number"
    TRUTH = "truth"


def kind_of(value: object) -> Kind | None:
    """The kind of a value that can be compared; None for words, lists and nothing."""
    if isinstance(value, bool):
        return Kind.TRUTH
    if isinstance(value, int | float):
        return Kind.NUMBER
    if isinstance(value, str) and not isinstance(value, Text):
        return Kind.TEXT
    return None


class Operator(StrEnum):
    """How two values are compared; texts by their code points, false before true."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Compare:
    """The field compared with a value."""

    field: Field
    operator: Operator
    value: Scalar

    def __post_init__(self) -> None:
        _check_field(self.field)
        _check_scalar(self.field, self.value)


@dataclass(frozen=True, slots=True)
class In:
    """The field is one of the values, which are of one kind."""

    field: Field
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        _check_field(self.field)
        if not 1 <= len(self.values) <= IN_VALUES_MAX:
            raise BadSearch(f"{self.field}: IN has {len(self.values)} values: give 1 to {IN_VALUES_MAX}")
        for value in self.values:
            _check_scalar(self.field, value)
        if len({kind_of(value) for value in self.values}) > 1:
            raise BadSearch(f"{self.field}: IN has values of several kinds: give values of one")


@dataclass(frozen=True, slots=True)
class Between:
    """The field is at least `low` and at most `high`, which are of one kind."""

    field: Field
    low: Scalar
    high: Scalar

    def __post_init__(self) -> None:
        _check_field(self.field)
        _check_scalar(self.field, self.low)
        _check_scalar(self.field, self.high)
        if kind_of(self.low) is not kind_of(self.high):
            raise BadSearch(f"{self.field}: BETWEEN has {self.low!r} and {self.high!r}: give values of one kind")


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The field is a text that begins so."""

    field: Field
    prefix: str

    def __post_init__(self) -> None:
        _check_field(self.field)
        _check_scalar(self.field, self.prefix)


@dataclass(frozen=True, slots=True)
class Contains:
    """The field is a list of keywords, and this is one of them."""

    field: Attribute
    keyword: str

    def __post_init__(self) -> None:
        _check_field(self.field)
        _check_scalar(self.field, self.keyword)


@dataclass(frozen=True, slots=True)
class HasWord:
    """The field is a `Text`, and this is one of its words, as `words_of` gives them."""

    field: Attribute
    word: str

    def __post_init__(self) -> None:
        _check_field(self.field)
        _check_scalar(self.field, self.word)


@dataclass(frozen=True, slots=True)
class IsNull:
    """The row has no value for the field: true or false, never unknown."""

    field: Field

    def __post_init__(self) -> None:
        _check_field(self.field)


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    part: "Predicate"


@dataclass(frozen=True, slots=True)
class And:
    """All of the parts; of none: true."""

    parts: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """One of the parts; of none: false."""

    parts: "tuple[Predicate, ...]"


Leaf = Compare | In | Between | StartsWith | Contains | HasWord | IsNull
Predicate = Leaf | Not | And | Or


@dataclass(frozen=True, slots=True)
class Literal:
    """A condition or its opposite: both are not true of a row without a value for the field."""

    leaf: Leaf
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """All of the parts, or one of them."""

    is_all: bool
    parts: "tuple[Literal | Joined, ...]"


def normal_form(predicate: Predicate) -> Literal | Joined:
    """The same with negations carried down to the conditions, and `And` in `And` and `Or` in `Or` made one.

    It is true of the same rows. Refuses predicates of too many parts, or too deep for a database's parser.
    """
    check_predicate(predicate)
    normal = _normal(predicate, is_negated=False)
    depth = _depth(normal)
    if depth > PREDICATE_DEPTH_MAX:
        raise BadSearch(f"AND and OR are nested {depth} deep, the most is {PREDICATE_DEPTH_MAX}: ask more simply")
    return normal


def check_predicate(predicate: Predicate) -> None:
    """Refuse a predicate of too many parts."""
    nodes = 0
    waiting: list[Predicate] = [predicate]
    while waiting:
        nodes += 1
        if nodes > PREDICATE_NODES_MAX:
            raise BadSearch(f"the query has more than {PREDICATE_NODES_MAX} conditions: ask for less at once")
        part = waiting.pop()
        if isinstance(part, And | Or):
            waiting += part.parts
        elif isinstance(part, Not):
            waiting.append(part.part)


@dataclass(frozen=True, slots=True)
class Order:
    """By these columns, then by run id, all in one direction. Whoever has no value comes after all that have."""

    columns: tuple[Column, ...]
    descending: bool = True

    def __post_init__(self) -> None:
        wrong = [column for column in self.columns if column in TEXT_COLUMNS and column is not Column.WORKFLOW_ID]
        if wrong or not 1 <= len(self.columns) <= 3:
            raise BadSearch(f"can't order by {list(self.columns)}: give one to three numbers, times or the workflow id")


# The open runs first, then the last closed; of these, the last started.
LATEST_FIRST = Order((Column.CLOSE_TIME_NS, Column.START_TIME_NS))

# Where a page ended: what its last row is ordered by, its run id included.
Cursor = tuple[int | str, ...]


def cursor_of(row: VisibilityRow, order: Order) -> Cursor:
    """The place of a row in an order, after which the next page begins."""
    values = [getattr(row, column) for column in order.columns]
    return (*(INT64_MAX if value is None else value for value in values), row.run_id)


class Group(NamedTuple):
    """How many rows have this value; None is no value."""

    value: SearchValue | None
    rows: int


def words_of(text: str) -> list[str]:
    """The words by which a text is found."""
    return list(dict.fromkeys(_WORD.findall(text.casefold())))


def check_row(row: VisibilityRow) -> None:
    """Refuse what can't be stored and found again in every store."""
    if not row.search_attributes:
        return
    if len(row.search_attributes) > ATTRIBUTES_MAX:
        raise BadSearch(f"{len(row.search_attributes)} search attributes, the most are {ATTRIBUTES_MAX}")
    for name, value in row.search_attributes.items():
        field = Attribute(name)
        _check_field(field)
        for one in value if isinstance(value, tuple) else (value,):
            _check_scalar(field, str(one) if isinstance(one, Text) else one)


def encode_attributes(attributes: Mapping[str, SearchValue]) -> str:
    """Search attributes as JSON: numbers, strings, truths, lists, and `{"text", "words"}` for a `Text`."""
    if not attributes:
        return "{}"
    return msgspec.json.encode({name: _plain(value) for name, value in attributes.items()}).decode()


def decode_attributes(encoded: str) -> dict[str, SearchValue]:
    """The attributes as they were encoded."""
    if encoded == "{}":
        return {}
    return {name: decode_value(value) for name, value in msgspec.json.decode(encoded, type=dict[str, object]).items()}


def decode_value(value: object) -> SearchValue:
    """One value, from what JSON made of it."""
    if isinstance(value, dict):
        return Text(value["text"])
    if isinstance(value, list):
        return tuple(value)
    assert isinstance(value, str | int | float | bool)  # noqa: S101 - nothing else is ever encoded
    return value


def _normal(predicate: Predicate, *, is_negated: bool) -> Literal | Joined:
    if isinstance(predicate, Not):
        return _normal(predicate.part, is_negated=not is_negated)
    if not isinstance(predicate, And | Or):
        return Literal(predicate, is_negated)
    is_all = isinstance(predicate, And) is not is_negated
    parts: list[Literal | Joined] = []
    for part in predicate.parts:
        normal = _normal(part, is_negated=is_negated)
        if isinstance(normal, Joined) and normal.is_all is is_all:
            parts += normal.parts
        else:
            parts.append(normal)
    return parts[0] if len(parts) == 1 else Joined(is_all, tuple(parts))


def _depth(normal: Literal | Joined) -> int:
    if isinstance(normal, Literal):
        return 0
    return 1 + max(map(_depth, normal.parts), default=0)


def _plain(value: SearchValue) -> object:
    if isinstance(value, Text):
        return {"text": str(value), "words": words_of(value)}
    if isinstance(value, float):
        # Never as 1e+16, which PostgreSQL gives back as an integer.
        digits = format(Decimal(repr(value)), "f")
        return msgspec.Raw((digits if "." in digits else f"{digits}.0").encode())
    return value


def _check_field(field: Field) -> None:
    if isinstance(field, Attribute) and (not field.name or _BAD_IN_NAME.search(field.name)):
        raise BadSearch(
            f"search attribute {field.name!r}: a name is not empty and has no quotes, backslashes, controls"
        )
    if isinstance(field, Attribute):
        _check_text(field, field.name)


def _check_scalar(field: Field, value: object) -> None:
    if isinstance(value, str):
        _check_text(field, value)
    elif isinstance(value, int) and not -INT64_MAX <= value <= INT64_MAX:
        raise BadSearch(f"{field}: {value} does not fit into 64 bits")
    elif isinstance(value, float) and not isfinite(value):
        raise BadSearch(f"{field}: {value} is no number to search by")
    elif not isinstance(value, int | float):
        raise BadSearch(f"{field}: {value!r} is of no type to search by")


def _check_text(field: Field, value: str) -> None:
    if "\0" in value:
        raise BadSearch(f"{field}: {value!r} has a NUL character: remove it")
    try:
        value.encode()
    except UnicodeEncodeError as wrong:
        raise BadSearch(f"{field}: {value!r} has no UTF-8 form: {wrong.reason}") from wrong
