# ruff: noqa: S608 - the text is built from column names and placeholders; all values are bound
"""Visibility queries in SQLite's SQL: the search attributes of a row are one JSON object, accessed by path.

Each condition of the normal form, negated or not, is false or null for a row without a value for its field.
"""

from collections.abc import Sequence
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
    Operator,
    Predicate,
    StartsWith,
    is_about_status,
    normal_form,
)
from fairlead.storage.sqlite.history_statements import SELECT_VISIBILITY
from fairlead.storage.visibility import (
    GROUPS_MAX,
    INT64_MAX,
    NEVER_NULL,
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

_LATEST = f"coalesce(close_time_ns, {INT64_MAX})"
# Columns of the default order, by their names in the table of attribute values.
_VALUE_KEYS = {_LATEST: "latest_ns", "start_time_ns": "started_ns", "run_id": "of_run_id"}
# Columns with an index that has the default order. The first of them that a query compares with one value is used.
_DRIVING_COLUMNS = (Column.WORKFLOW_ID, Column.RUN_ID, Column.WORKFLOW_TYPE, Column.STATUS)
_JSON_TYPES = {Kind.TEXT: "('text')", Kind.NUMBER: "('integer', 'real')", Kind.TRUTH: "('true', 'false')"}


class _Search(NamedTuple):
    """How a query reads its rows: the table, whether it finds them by an attribute's value, and the condition."""

    table: str
    # Begins with the namespace, followed by the condition of the query.
    condition: "Sql"
    by_value: bool


class Sql(NamedTuple):
    """A part of a statement, with the values of its placeholders."""

    text: str
    values: tuple[Any, ...] = ()


def list_statement(
    namespace_id: str, where: Predicate | None, *, order: Order | Sort, after: Cursor | None, limit: int
) -> Sql:
    """The statement that lists a page of rows."""
    search = _search(namespace_id, where)
    if isinstance(order, Sort):
        return _sorted_statement(search, order, after, limit)
    keys = [*(_sort_key(column) for column in order.columns), "run_id"]
    if search.by_value and all(key in _VALUE_KEYS for key in keys):
        keys = [_VALUE_KEYS[key] for key in keys]
    direction = "DESC" if order.descending else "ASC"
    text, values = _select(search)
    if after is not None:
        text += f" AND ({', '.join(keys)}) {'<' if order.descending else '>'} ({', '.join('?' * len(keys))})"
        values += after
    text += f" ORDER BY {', '.join(f'{key} {direction}' for key in keys)} LIMIT ?"
    return Sql(text, (*values, limit))


def _select(search: _Search) -> Sql:
    text = f"{SELECT_VISIBILITY} FROM {search.table} WHERE {search.condition.text}"
    return Sql(text, search.condition.values)


def _sorted_statement(search: _Search, sort: Sort, after: Cursor | None, limit: int) -> Sql:
    parts = [_select(search)]
    if after is not None:
        parts.append(_after(sort, after))
    parts.append(Sql(" ORDER BY "))
    for key in sort.keys:
        value = _typed(key.field, key.kind)
        direction = "DESC" if key.descending else "ASC"
        # No NULLS LAST for columns without nulls: with it, the sort could not use the index by start time.
        nulls = "" if key.field in NEVER_NULL else " NULLS LAST"
        parts.append(Sql(f"{value.text} {direction}{nulls}, ", value.values))
    parts.append(Sql("run_id ASC LIMIT ?", (limit,)))
    return Sql("".join(part.text for part in parts), tuple(value for part in parts for value in part.values))


def _after(sort: Sort, after: Cursor) -> Sql:
    """The condition for rows after the cursor: compares the keys one by one, each if the previous keys are equal."""
    *values, run_id = after
    equal, cases = Sql(""), []
    for key, value in zip(sort.keys, values, strict=True):
        operand = _typed(key.field, key.kind)
        if value is None:
            # Rows without a value come last: only rows without a value can follow.
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
    found = Sql(f" AND ({joined})", tuple(value for case in cases for value in case.values))
    first = sort.keys[0]
    if first.field not in NEVER_NULL:
        return found
    # The rest of the condition implies this comparison; it lets SQLite begin in the index where the last page ended.
    return Sql(f" AND {first.field} {'<=' if first.descending else '>='} ?{found.text}", (values[0], *found.values))


def count_statement(namespace_id: str, where: Predicate | None, *, group_by: Field | None) -> Sql:
    """The statement that counts rows; the value of each group is JSON."""
    counted = "count(*)"
    search = _search(namespace_id, where)
    if group_by in (None, Column.STATUS) and (where is None or is_about_status(normal_form(where))):
        counted = "coalesce(sum(rows), 0)"
        search = search._replace(table="visibility_counts")
    if group_by is None:
        grouped = Sql(f"SELECT NULL, {counted}")
    elif isinstance(group_by, Attribute):
        grouped = Sql(f"SELECT search_attributes -> ? AS value, {counted}", (_path(group_by),))
    else:
        grouped = Sql(f"SELECT json_quote({group_by}) AS value, {counted}")
    text = f"{grouped.text} FROM {search.table} WHERE {search.condition.text}"
    if group_by is not None:
        text += f" GROUP BY value HAVING {counted} > 0 ORDER BY {counted} DESC, value LIMIT {GROUPS_MAX}"
    return Sql(text, (*grouped.values, *search.condition.values))


def _search(namespace_id: str, where: Predicate | None) -> _Search:
    """Choose how to find the rows. SQLite has no statistics of these tables, and would often choose the wrong index."""
    if where is None:
        return _Search("visibility", Sql("namespace_id = ?", (namespace_id,)), by_value=False)
    normal = normal_form(where)
    parts = normal.parts if isinstance(normal, Joined) and normal.is_all else (normal,)
    equal = [part.leaf for part in parts if isinstance(part, Literal) and not part.is_negated]
    driving = _driving_leaf(equal)
    condition = _compile(normal)
    by_value = next((value for value in map(_attribute_value, equal) if value is not None), None)
    if by_value is not None and (driving is None or driving.field not in (Column.WORKFLOW_ID, Column.RUN_ID)):
        # CROSS JOIN: SQLite begins with the left table.
        table = "visibility_values CROSS JOIN visibility ON row = of_row"
        text = f"in_namespace_id = ? AND attribute = ? AND attribute_value = ? AND {condition.text}"
        return _Search(table, Sql(text, (namespace_id, *by_value, *condition.values)), by_value=True)
    found = Sql("namespace_id = ?", (namespace_id,))
    if driving is not None:
        # The condition contains this comparison as well, but in a form that uses no index.
        found = Sql(f"namespace_id = ? AND {driving.field} = ?", (namespace_id, driving.value))
    return _Search(
        "visibility", Sql(f"{found.text} AND {condition.text}", found.values + condition.values), by_value=False
    )


def _driving_leaf(equal: Sequence[Leaf]) -> Compare | None:
    """The condition whose index finds the rows; None for the index in the default order."""
    by_field = {
        leaf.field: leaf
        for leaf in equal
        if isinstance(leaf, Compare) and leaf.operator is Operator.EQUAL and _is_of_its_kind(leaf)
    }
    return next((by_field[column] for column in _DRIVING_COLUMNS if column in by_field), None)


def _is_of_its_kind(leaf: Compare) -> bool:
    return (leaf.field in TEXT_COLUMNS) is (kind_of(leaf.value) is Kind.TEXT)


def _attribute_value(leaf: Leaf) -> tuple[str, Scalar] | None:
    """The name and the value of a search attribute that matching rows must have; None for other conditions."""
    if isinstance(leaf, Contains):
        return leaf.field.name, leaf.keyword
    if isinstance(leaf, Compare) and leaf.operator is Operator.EQUAL and isinstance(leaf.field, Attribute):
        return leaf.field.name, leaf.value
    return None


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
    typed = _typed(field, kind)
    # The plus keeps SQLite from using an index for the column: `_search` compares the column whose index it uses.
    return typed if isinstance(field, Attribute) else Sql(f"+{typed.text}", typed.values)


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
