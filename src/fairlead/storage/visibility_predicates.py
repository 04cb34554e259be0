import operator
from collections.abc import Callable
from typing import Any

from fairlead.storage.predicates import (
    And,
    Between,
    Compare,
    Contains,
    HasWord,
    In,
    IsNull,
    Leaf,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
)
from fairlead.storage.visibility import Column, Field, Scalar, SearchValue, Text, VisibilityRow, kind_of, words_of

_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: operator.eq,
    Operator.UNEQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.GREATER: operator.gt,
    Operator.AT_LEAST: operator.ge,
}


def holds(predicate: Predicate, row: VisibilityRow) -> bool | None:
    """Whether a predicate is true for a row; None if unknown."""
    if isinstance(predicate, Not):
        part = holds(predicate.part, row)
        return None if part is None else not part
    if isinstance(predicate, And):
        parts = [holds(part, row) for part in predicate.parts]
        return False if False in parts else None if None in parts else True
    if isinstance(predicate, Or):
        parts = [holds(part, row) for part in predicate.parts]
        return True if True in parts else None if None in parts else False
    return _leaf_holds(predicate, row)


def value_of(row: VisibilityRow, field: Field) -> SearchValue | None:
    """The value of a row's field."""
    if isinstance(field, Column):
        value: SearchValue | None = getattr(row, field)
        return value
    return row.search_attributes.get(field.name)


def _leaf_holds(leaf: Leaf, row: VisibilityRow) -> bool | None:
    found = value_of(row, leaf.field)
    if isinstance(leaf, IsNull):
        return found is None
    if isinstance(leaf, Contains):
        return leaf.keyword in found if isinstance(found, tuple) else None
    if isinstance(leaf, HasWord):
        return leaf.word in words_of(found) if isinstance(found, Text) else None
    return _scalar_holds(leaf, found)


def _scalar_holds(leaf: Compare | In | Between | StartsWith, found: Any) -> bool | None:
    if kind_of(found) is None or kind_of(found) is not kind_of(_example(leaf)):
        return None
    if isinstance(leaf, Compare):
        return _COMPARE[leaf.operator](found, leaf.value)
    if isinstance(leaf, In):
        return found in leaf.values
    if isinstance(leaf, Between):
        return bool(leaf.low <= found <= leaf.high)
    return bool(found.startswith(leaf.prefix))


def _example(leaf: Compare | In | Between | StartsWith) -> Scalar:
    """A value of the kind that the leaf compares with."""
    if isinstance(leaf, Compare):
        return leaf.value
    if isinstance(leaf, In):
        return leaf.values[0]
    return leaf.low if isinstance(leaf, Between) else leaf.prefix
