"""Predicates over visibility rows: their nodes, bounds and normal form.

As in SQL, a predicate is true, false or unknown for a row. A comparison is unknown if the row has no value for the
field, or a value of another kind: text, number or boolean. A search returns the rows for which the predicate is true,
so `Not` does not match rows without a value.
"""

from enum import StrEnum

from msgspec import Struct

from fairlead.storage.visibility import (
    Attribute,
    BadSearch,
    Column,
    Field,
    Scalar,
    check_field,
    check_scalar,
    kind_of,
)

PREDICATE_NODES_MAX = 250


# Maximum nesting of AND and OR; SQLite's parser fails at 27.
PREDICATE_DEPTH_MAX = 20


IN_VALUES_MAX = 1000


class Operator(StrEnum):
    """Comparison operators. Texts are compared by code points; false comes before true."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


class Compare(Struct, frozen=True):
    """Compares the field with a value."""

    field: Field
    operator: Operator
    value: Scalar

    def __post_init__(self) -> None:
        check_field(self.field)
        check_scalar(self.field, self.value)


class In(Struct, frozen=True):
    """The field equals one of the values, which have the same kind."""

    field: Field
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        check_field(self.field)
        if not 1 <= len(self.values) <= IN_VALUES_MAX:
            raise BadSearch(f"{self.field}: IN has {len(self.values)} values: give 1 to {IN_VALUES_MAX}")
        for value in self.values:
            check_scalar(self.field, value)
        if len({kind_of(value) for value in self.values}) > 1:
            raise BadSearch(f"{self.field}: IN has values of several kinds: give values of one kind")


class Between(Struct, frozen=True):
    """The field is at least `low` and at most `high`, which have the same kind."""

    field: Field
    low: Scalar
    high: Scalar

    def __post_init__(self) -> None:
        check_field(self.field)
        check_scalar(self.field, self.low)
        check_scalar(self.field, self.high)
        if kind_of(self.low) is not kind_of(self.high):
            raise BadSearch(f"{self.field}: BETWEEN has {self.low!r} and {self.high!r}: give values of one kind")


class StartsWith(Struct, frozen=True):
    """The field is a text with this prefix."""

    field: Field
    prefix: str

    def __post_init__(self) -> None:
        check_field(self.field)
        check_scalar(self.field, self.prefix)


class Contains(Struct, frozen=True):
    """The field is a keyword list with this keyword."""

    field: Attribute
    keyword: str

    def __post_init__(self) -> None:
        check_field(self.field)
        check_scalar(self.field, self.keyword)


class HasWord(Struct, frozen=True):
    """The field is a `Text` that contains this word, in the form of `words_of`."""

    field: Attribute
    word: str

    def __post_init__(self) -> None:
        check_field(self.field)
        check_scalar(self.field, self.word)


class IsNull(Struct, frozen=True):
    """The row has no value for the field. The result is true or false, never unknown."""

    field: Field

    def __post_init__(self) -> None:
        check_field(self.field)


class Not(Struct, frozen=True):
    """The negation of a predicate; unknown stays unknown."""

    part: "Predicate"


class And(Struct, frozen=True):
    """True if all parts are true, also without parts."""

    parts: "tuple[Predicate, ...]"


class Or(Struct, frozen=True):
    """True if at least one part is true; false without parts."""

    parts: "tuple[Predicate, ...]"


Leaf = Compare | In | Between | StartsWith | Contains | HasWord | IsNull


Predicate = Leaf | Not | And | Or


class Literal(Struct, frozen=True):
    """A condition or its negation: neither is true for a row without a value for the field."""

    leaf: Leaf
    is_negated: bool


class Joined(Struct, frozen=True):
    """A conjunction of the parts if `is_all`, otherwise a disjunction."""

    is_all: bool
    parts: "tuple[Literal | Joined, ...]"


def normal_form(predicate: Predicate) -> Literal | Joined:
    """The predicate with negations moved to the conditions, and nested `And` and nested `Or` flattened.

    It matches the same rows. Raises `BadSearch` if the predicate has too many parts, or is nested too deeply for a
    database's parser.
    """
    check_predicate(predicate)
    normal = _normal(predicate, is_negated=False)
    depth = _depth(normal)
    if depth > PREDICATE_DEPTH_MAX:
        raise BadSearch(f"AND and OR are nested {depth} deep, the limit is {PREDICATE_DEPTH_MAX}: simplify the query")
    return normal


def is_about_status(normal: Literal | Joined) -> bool:
    """Whether all conditions are on the status, so that the table of counts by status can evaluate the predicate."""
    if isinstance(normal, Literal):
        return normal.leaf.field is Column.STATUS
    return all(map(is_about_status, normal.parts))


def check_predicate(predicate: Predicate) -> None:
    """Raise `BadSearch` for a predicate with too many parts."""
    nodes = 0
    waiting: list[Predicate] = [predicate]
    while waiting:
        nodes += 1
        if nodes > PREDICATE_NODES_MAX:
            raise BadSearch(f"the query has more than {PREDICATE_NODES_MAX} conditions: split the query")
        part = waiting.pop()
        if isinstance(part, And | Or):
            waiting += part.parts
        elif isinstance(part, Not):
            waiting.append(part.part)


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
