# ruff: noqa: S608 - the text is built from column names and placeholders; all values are bound
"""Visibility queries in SQLite's SQL: the search attributes of a row are one JSON object, accessed by path.

Each condition of the normal form, negated or not, is false or null for a row without a value for its field.
"""

from typing import Any, NamedTuple

from fairlead.storage.predicates import (
    Between,
    Compare,
    Contains,
    HasWord,
    In,
    IsNull,
    Joined,
    Leaf,
    Literal,
    Predicate,
    StartsWith,
    normal_form,
)
from fairlead.storage.sqlite.history_statements import SELECT_VISIBILITY
from fairlead.storage.visibility import (
    GROUPS_MAX,
    INT64_MAX,
    NULLABLE_NUMBERS,
    TEXT_COLUMNS,
    Attribute,
    Column,
    Cursor,
    Field,
    Kind,
    Order,
    Scalar,
    kind_of,
)
from fairlead.storage.visibility_order import Sort

_JSON_TYPES = {Kind.TEXT: "('text')", Kind.NUMBER: "('integer', 'real')", Kind.TRUTH: "('true', 'false')"}


class Sql(NamedTuple):
    """A part of a statement, with the values of its placeholders."""

    text: str
    values: tuple[Any, ...] = ()


def list_statement(
    namespace_id: str, where: Predicate | None, *, order: Order | Sort, after: Cursor | None, limit: int
) -> Sql:
    """The statement that lists a page of rows."""
    condition = _where(where)
    if isinstance(order, Sort):
        return _sorted_statement(namespace_id, condition, order, after, limit)
    keys = [*(_sort_key(column) for column in order.columns), "run_id"]
    direction = "DESC" if order.descending else "ASC"
    text, values = SELECT_VISIBILITY + condition.text, (namespace_id, *condition.values)
    if after is not None:
        text += f" AND ({', '.join(keys)}) {'<' if order.descending else '>'} ({', '.join('?' * len(keys))})"
        values += after
    text += f" ORDER BY {', '.join(f'{key} {direction}' for key in keys)} LIMIT ?"
    return Sql(text, (*values, limit))


def _sorted_statement(namespace_id: str, condition: Sql, sort: Sort, after: Cursor | None, limit: int) -> Sql:
    parts = [Sql(SELECT_VISIBILITY + condition.text, (namespace_id, *condition.values))]
    if after is not None:
        parts.append(_after(sort, after))
    parts.append(Sql(" ORDER BY "))
    for key in sort.keys:
        value = _typed(key.field, key.kind)
        direction = "DESC" if key.descending else "ASC"
        parts.append(Sql(f"{value.text} {direction} NULLS LAST, ", value.values))
    parts.append(Sql("run_id ASC LIMIT ?", (limit,)))
    return Sql("".join(part.text for part in parts), tuple(value for part in parts for value in part.values))


def _after(sort: Sort, after: Cursor) -> Sql:
    """The condition for rows after the cursor: compares the first key, then the next if it is equal, and so on."""
    *values, run_id = after
    equal, cases = Sql(""), []
    for key, value in zip(sort.keys, values, strict=True):
        operand = _typed(key.field, key.kind)
        if value is None:
            # Rows without a value come last: only other such rows can follow.
            equal = Sql(f"{equal.text}{operand.text} IS NULL AND ", (*equal.values, *operand.values))
            continue
        sign = "<" if key.descending else ">"
        cases.append(
            Sql(
                f"{equal.text}({operand.text} {sign} ? OR {operand.text} IS NULL)",
                (*equal.values, *operand.values, value, *operand.values),
            )
        )
        equal = Sql(f"{equal.text}{operand.text} = ? AND ", (*equal.values, *operand.values, value))
    cases.append(Sql(f"{equal.text}run_id > ?", (*equal.values, run_id)))
    joined = " OR ".join(f"({case.text})" for case in cases)
    return Sql(f" AND ({joined})", tuple(value for case in cases for value in case.values))


def count_statement(namespace_id: str, where: Predicate | None, *, group_by: Field | None) -> Sql:
    """The statement that counts rows; the value of each group is JSON."""
    condition = _where(where)
    if group_by is None:
        grouped = Sql("SELECT NULL, count(*)")
    elif isinstance(group_by, Attribute):
        grouped = Sql("SELECT search_attributes -> ? AS value, count(*)", (_path(group_by),))
    else:
        grouped = Sql(f"SELECT json_quote({group_by}) AS value, count(*)")
    text = f"{grouped.text} FROM visibility WHERE namespace_id = ?{condition.text}"
    if group_by is not None:
        text += f" GROUP BY value ORDER BY count(*) DESC, value LIMIT {GROUPS_MAX}"
    return Sql(text, (*grouped.values, namespace_id, *condition.values))


def _where(where: Predicate | None) -> Sql:
    if where is None:
        return Sql("")
    condition = _compile(normal_form(where))
    return Sql(f" AND {condition.text}", condition.values)


def _sort_key(column: Column) -> str:
    # The same expression as in the index, so that SQLite uses the index.
    return f"coalesce({column}, {INT64_MAX})" if column in NULLABLE_NUMBERS else column


def _compile(normal: Literal | Joined) -> Sql:
    if isinstance(normal, Literal):
        return _leaf(normal.leaf, "NOT " if normal.is_negated else "")
    if not normal.parts:
        return Sql("TRUE" if normal.is_all else "FALSE")
    parts = [_compile(part) for part in normal.parts]
    joined = (" AND " if normal.is_all else " OR ").join(part.text for part in parts)
    return Sql(f"({joined})", tuple(value for part in parts for value in part.values))


def _leaf(leaf: Leaf, negation: str) -> Sql:
    if isinstance(leaf, IsNull):
        return _is_null(leaf.field, negation)
    if isinstance(leaf, Contains):
        return _is_in_array(leaf.field, "array", _path(leaf.field), leaf.keyword, negation)
    if isinstance(leaf, HasWord):
        return _is_in_array(leaf.field, "object", f"{_path(leaf.field)}.words", leaf.word, negation)
    return _scalar_leaf(leaf, negation)


def _scalar_leaf(leaf: Compare | In | Between | StartsWith, negation: str) -> Sql:
    if isinstance(leaf, Compare):
        operand = _operand(leaf.field, leaf.value)
        return Sql(f"{negation}({operand.text} {leaf.operator} ?)", (*operand.values, leaf.value))
    if isinstance(leaf, In):
        operand = _operand(leaf.field, leaf.values[0])
        placeholders = ", ".join("?" * len(leaf.values))
        return Sql(f"{negation}({operand.text} IN ({placeholders}))", (*operand.values, *leaf.values))
    if isinstance(leaf, Between):
        operand = _operand(leaf.field, leaf.low)
        return Sql(f"{negation}({operand.text} BETWEEN ? AND ?)", (*operand.values, leaf.low, leaf.high))
    operand = _operand(leaf.field, leaf.prefix)
    return Sql(f"{negation}(substr({operand.text}, 1, ?) = ?)", (*operand.values, len(leaf.prefix), leaf.prefix))


def _is_null(field: Field, negation: str) -> Sql:
    if isinstance(field, Attribute):
        return Sql(f"json_type(search_attributes, ?) IS {negation}NULL", (_path(field),))
    return Sql(f"{field} IS {negation}NULL")


def _is_in_array(field: Attribute, json_type: str, array_path: str, value: str, negation: str) -> Sql:
    return Sql(
        f"(json_type(search_attributes, ?) = '{json_type}' "
        f"AND {negation}EXISTS (SELECT 1 FROM json_each(search_attributes, ?) AS one WHERE one.value = ?))",
        (_path(field), array_path, value),
    )


def _operand(field: Field, value: Scalar) -> Sql:
    """The field, or null if it has another kind than the value."""
    kind = kind_of(value)
    assert kind is not None  # noqa: S101 - a predicate has scalars only
    return _typed(field, kind)


def _typed(field: Field, kind: Kind) -> Sql:
    """The field, or null if its value is of another kind."""
    if isinstance(field, Attribute):
        path = _path(field)
        return Sql(
            f"CASE WHEN json_type(search_attributes, ?) IN {_JSON_TYPES[kind]} "
            "THEN json_extract(search_attributes, ?) END",
            (path, path),
        )
    is_of_kind = kind is (Kind.TEXT if field in TEXT_COLUMNS else Kind.NUMBER)
    return Sql(field if is_of_kind else "NULL")


def _path(field: Attribute) -> str:
    return f'$."{field.name}"'
