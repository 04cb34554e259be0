"""Converts list filters to predicates over the visibility rows of a namespace."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.api.errors import ApiError, InvalidArgument
from fairlead.api.search.literals import number_text, parse_duration, parse_time
from fairlead.api.search.names import (
    BOOL,
    DATETIME,
    DOUBLE,
    EXECUTION_DURATION,
    EXECUTION_STATUS,
    INT,
    KEYWORD,
    KEYWORD_LIST,
    TEXT,
    TYPE_NAMES,
    field_of,
    type_of,
)
from fairlead.api.search.statuses import STATUS_NAMES, STATUS_NUMBERS
from fairlead.api.search.syntax import (
    All,
    Calculation,
    Comparison,
    Either,
    Is,
    Membership,
    Name,
    Node,
    Number,
    Opposite,
    Parentheses,
    Range,
    Sign,
    Statement,
    String,
    Truth,
    source_of,
)
from fairlead.storage.predicates import (
    And,
    Between,
    Compare,
    Contains,
    HasWord,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    normal_form,
)
from fairlead.storage.visibility import INT64_MAX, Attribute, BadSearch, Field, Kind, Scalar, words_of
from fairlead.storage.visibility_order import Sort, SortKey

# The only attribute that the reference server supports in GROUP BY.
_GROUPED: Final = frozenset({EXECUTION_STATUS})
# Types that lists can be ordered by, with the kind of the stored values.
_SORTED: Final = {
    KEYWORD: Kind.TEXT,
    INT: Kind.NUMBER,
    DOUBLE: Kind.NUMBER,
    DATETIME: Kind.NUMBER,
    BOOL: Kind.TRUTH,
}
_RANGES: Final = frozenset({KEYWORD, INT, DOUBLE, DATETIME})
_VALUE_TYPES: Final[dict[int, tuple[type, ...]]] = {
    TEXT: (str,),
    KEYWORD: (str,),
    KEYWORD_LIST: (str,),
    INT: (int, float),
    DOUBLE: (int, float),
    BOOL: (bool,),
    DATETIME: (str, int),
}
_GO_TYPES: Final[dict[type, str]] = {str: "string", int: "int64", float: "float64", bool: "bool"}
_OPERATORS: Final = {
    "=": Operator.EQUAL,
    "!=": Operator.UNEQUAL,
    "<": Operator.LESS,
    "<=": Operator.AT_MOST,
    ">": Operator.GREATER,
    ">=": Operator.AT_LEAST,
}
_INTEGER: Final = re.compile(r"-?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query. Without `where` it matches all rows; without `group_by` a count is one number."""

    where: Predicate | None = None
    group_by: Field | None = None
    order_by: Sort | None = None


def parse_query(text: str, custom: Mapping[str, int], *, allows_order: bool = False) -> Query:
    """Parse a query in a namespace with these custom attributes; raises an API error, in Temporal's words.

    ORDER BY is rejected unless `allows_order`: the reference server supports it on Elasticsearch, not on SQL databases.
    """
    text = text.strip()
    if not text:
        return Query()
    # Import here, because building the parser takes 0.1 s. `fairlead.server.warm_up` does it after the server's start.
    from fairlead.api.search.grammar import parse_statement  # noqa: PLC0415

    statement = parse_statement(text)
    reader = _Reader(custom)
    try:
        where = None if statement.where is None else reader.predicate(statement.where)
        if where is not None:
            normal_form(where)
    except BadSearch as wrong:
        raise _wrong_expression(str(wrong)) from wrong
    if statement.has_limit:
        raise _unsupported("'LIMIT' clause")
    if statement.has_having:
        raise _unsupported("'HAVING' clause")
    sort = _sort(statement, reader, is_allowed=allows_order)
    return Query(where, _group(statement, reader), sort)


def _sort(statement: Statement, reader: "_Reader", *, is_allowed: bool) -> Sort | None:
    attributes = [reader.attribute(ordered.by) for ordered in statement.order_by]
    if not attributes:
        return None
    if not is_allowed:
        raise _unsupported("'ORDER BY' clause")
    for attribute in attributes:
        if attribute.type not in _SORTED:
            raise _wrong_expression(
                f"unable to sort by field of {attribute.type_name} type, use field of type {TYPE_NAMES[KEYWORD]}"
            )
    pairs = zip(attributes, statement.order_by, strict=True)
    try:
        return Sort(
            tuple(
                SortKey(attribute.field, _sort_kind(attribute), descending=ordered.descending)
                for attribute, ordered in pairs
            )
        )
    except BadSearch as wrong:
        raise _wrong_expression(str(wrong)) from wrong


def _sort_kind(attribute: "_Searched") -> Kind:
    # Users see the status as a keyword, but its column holds Temporal's number, which is the sort key.
    return Kind.NUMBER if attribute.name == EXECUTION_STATUS else _SORTED[attribute.type]


def _group(statement: Statement, reader: "_Reader") -> Field | None:
    """The field to group by."""
    if len(statement.group_by) > 1:
        raise _unsupported("'GROUP BY' clause supports only a single field")
    if not statement.group_by:
        return None
    attribute = reader.attribute(statement.group_by[0])
    if attribute.name not in _GROUPED:
        raise _unsupported(f"'GROUP BY' clause is not supported for search attribute {attribute.name}")
    return attribute.field


@dataclass(frozen=True, slots=True)
class _Searched:
    """A search attribute of the namespace."""

    name: str
    type: int
    field: Field

    @property
    def type_name(self) -> str:
        return TYPE_NAMES.get(self.type, str(self.type))


class _Reader:
    """Converts nodes to predicates, with the attributes of a namespace."""

    __slots__ = ("_custom",)

    def __init__(self, custom: Mapping[str, int]) -> None:
        self._custom = custom

    def predicate(self, node: Node) -> Predicate:
        if isinstance(node, All):
            return And(tuple(map(self.predicate, node.parts)))
        if isinstance(node, Either):
            return Or(tuple(map(self.predicate, node.parts)))
        if isinstance(node, Opposite):
            return Not(self.predicate(node.of))
        if isinstance(node, Parentheses):
            return self.predicate(node.inner)
        return self._condition(node)

    def attribute(self, node: Node) -> _Searched:
        if not isinstance(node, Name):
            raise _wrong_expression(f"must be a column name but was {node.kind}")
        found = type_of(node.text, self._custom)
        if found is None:
            raise InvalidArgument(f"invalid query: invalid search attribute: {node.text}")
        return _Searched(node.text, found, field_of(node.text))

    def _condition(self, node: Node) -> Predicate:
        if isinstance(node, Comparison):
            attribute = self.attribute(node.left)
            return _comparison(attribute, node.operator, _value(attribute, node.right))
        if isinstance(node, Membership):
            attribute = self.attribute(node.left)
            values = tuple(_value(attribute, value) for value in node.values)
            return _negated(_membership(attribute, values, "NOT IN" if node.is_negated else "IN"), node.is_negated)
        if isinstance(node, Range):
            return self._range(node)
        if isinstance(node, Is):
            attribute = self.attribute(node.left)
            if isinstance(node.what, Truth):
                raise _wrong_expression("'IS' operator can only be used as 'IS NULL' or 'IS NOT NULL'")
            return _negated(IsNull(attribute.field), node.is_negated)
        raise _no_condition(node)

    def _range(self, node: Range) -> Predicate:
        attribute = self.attribute(node.left)
        if attribute.type not in _RANGES:
            raise _wrong_expression(
                f"cannot do range condition on search attribute '{attribute.name}' of type {attribute.type_name}"
            )
        between = Between(attribute.field, _value(attribute, node.low), _value(attribute, node.high))
        return _negated(between, node.is_negated)


def _no_condition(node: Node) -> ApiError:
    if isinstance(node, Name):
        return _wrong_expression("incomplete expression")
    if isinstance(node, Calculation) and node.kind.endswith("FuncExpr"):
        return _unsupported("function expression")
    return _unsupported(f"expression of type {node.kind}")


def _negated(predicate: Predicate, is_negated: bool) -> Predicate:  # noqa: FBT001 - as its name says
    return Not(predicate) if is_negated else predicate


def _comparison(attribute: _Searched, operator: str, value: Scalar) -> Predicate:
    if attribute.type == TEXT and operator in ("=", "!="):
        return _negated(_has_words(attribute, str(value)), operator == "!=")
    if attribute.type == KEYWORD_LIST and operator in ("=", "!="):
        return _negated(_membership(attribute, (value,), operator), operator == "!=")
    if attribute.type in (TEXT, KEYWORD_LIST):
        raise _no_operator(attribute, operator)
    if operator in _OPERATORS:
        return Compare(attribute.field, _OPERATORS[operator], value)
    if attribute.type != KEYWORD or operator not in ("STARTS_WITH", "NOT STARTS_WITH"):
        raise _no_operator(attribute, operator)
    if not isinstance(value, str):
        name = STATUS_NAMES.get(int(value), str(value))
        raise _wrong_expression(f'right-hand side of "starts_with" operator must be a literal string (got: {name})')
    return _negated(StartsWith(attribute.field, value), operator.startswith("NOT"))


def _membership(attribute: _Searched, values: tuple[Scalar, ...], operator: str) -> Predicate:
    if attribute.type == TEXT:
        raise _no_operator(attribute, operator)
    if attribute.type != KEYWORD_LIST:
        return In(attribute.field, values)
    field = _attribute_field(attribute)
    return _known(field, Or(tuple(Contains(field, str(value)) for value in values)))


def _has_words(attribute: _Searched, text: str) -> Predicate:
    """Match rows whose text contains all words of at least one blank-separated part."""
    parts = text.split()
    if not parts:
        raise _wrong_expression(f"no tokens found filtering on Text type search attribute {attribute.name}")
    field = _attribute_field(attribute)
    found = (words_of(part) for part in parts)
    return _known(field, Or(tuple(And(tuple(HasWord(field, word) for word in words)) for words in found if words)))


def _known(field: Attribute, predicate: Predicate) -> Predicate:
    """Make the predicate false instead of unknown for a run without the attribute, so that NOT matches the run.

    The reference server does this only for keyword lists and texts.
    """
    return And((Not(IsNull(field)), predicate))


def _attribute_field(attribute: _Searched) -> Attribute:
    assert isinstance(attribute.field, Attribute)  # noqa: S101 - no column is a text or a list
    return attribute.field


def _value(attribute: _Searched, node: Node) -> Scalar:
    """The value to compare an attribute with; raises an API error if its type doesn't fit."""
    value = _literal(node)
    if attribute.name == EXECUTION_STATUS and not isinstance(value, bool):
        return _status(value)
    if attribute.name == EXECUTION_DURATION and not isinstance(value, bool):
        return _duration(value)
    if type(value) not in _VALUE_TYPES.get(attribute.type, ()):
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else number_text(value)
        raise _wrong_expression(
            f"invalid value type for search attribute {attribute.name} of type {attribute.type_name}: "
            f"{shown} (type: {_GO_TYPES[type(value)]})"
        )
    if attribute.type == DATETIME and isinstance(value, str):
        time_ns = parse_time(value)
        if time_ns is None:
            raise _wrong_expression(f"unable to parse datetime '{value}'")
        return time_ns
    return value


def _status(value: Scalar) -> int:
    if isinstance(value, float):
        raise _wrong_expression(f"unexpected value type float64 for search attribute {EXECUTION_STATUS}")
    if isinstance(value, int) and value in STATUS_NAMES:
        return value
    if isinstance(value, str) and value in STATUS_NUMBERS:
        return STATUS_NUMBERS[value]
    shown = f"'{value}'" if isinstance(value, str) else value
    raise _wrong_expression(f"invalid {EXECUTION_STATUS} value {shown}")


def _duration(value: Scalar) -> int:
    if isinstance(value, float):
        raise _wrong_expression(f"unexpected value type float64 for search attribute {EXECUTION_DURATION}")
    duration_ns = parse_duration(value) if isinstance(value, str) else value
    if duration_ns is None:
        raise _wrong_expression(f"invalid duration value for search attribute {EXECUTION_DURATION}: {value}")
    return duration_ns


def _literal(node: Node) -> Scalar:
    if isinstance(node, String):
        return node.text
    if isinstance(node, Truth):
        return node.value
    if isinstance(node, Number):
        return _number(node.text)
    if isinstance(node, Name):
        raise _unsupported(
            f'column name on the right side of comparison expression (did you forget to quote "{node.text}"?)'
        )
    if isinstance(node, Sign):
        if node.operator in "!~":
            raise _unsupported(f'unary operator "{node.operator}"')
        raise _wrong_expression(f'unary operator not supported in "{source_of(node)}"')
    if isinstance(node, Calculation) and node.kind.endswith("FuncExpr"):
        raise _unsupported("nested func")
    raise _wrong_expression(f"unexpected value type {node.kind}")


def _number(text: str) -> int | float:
    """Parse a number: as an integer if it fits into 64 bits, else as a float."""
    try:
        if _INTEGER.fullmatch(text) and len(text) < 25 and -INT64_MAX <= int(text) <= INT64_MAX:
            return int(text)
        number = float(text)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong_expression(f'unable to parse value "{text}"')
    return number


def _no_operator(attribute: _Searched, operator: str) -> ApiError:
    return _unsupported(
        f"operator '{operator}' not supported for {attribute.type_name} type search attribute '{attribute.name}'"
    )


def _wrong_expression(problem: str) -> ApiError:
    return InvalidArgument(f"invalid query: invalid expression: {problem}")


def _unsupported(what: str) -> ApiError:
    return InvalidArgument(f"invalid query: operation is not supported: {what}")
