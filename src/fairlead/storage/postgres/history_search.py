# ruff: noqa: S608 - the text is built from column names and placeholders; all values are bound
"""Visibility queries in PostgreSQL's SQL: the search attributes of a row are one JSONB object.

An index on that object finds equal values, keywords of a list, and words of a text.

Each condition of the normal form, negated or not, is false or null for a row without a value for its field.
"""

from decimal import Decimal

import msgspec

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
    SearchValue,
    VisibilityRow,
    encode_attributes,
    kind_of,
)
from fairlead.storage.visibility_order import Sort

_NAMES = [name if name != "search_attributes" else "search_attributes::text" for name in VisibilityRow._fields]
_RUN_ID = '(run_id COLLATE "C")'
_JSON_TYPES = {Kind.TEXT: "string", Kind.NUMBER: "number", Kind.TRUTH: "boolean"}
_SQL_TYPES = {Kind.TEXT: 'text COLLATE "C"', Kind.NUMBER: "numeric", Kind.TRUTH: "boolean"}


class Query:
    """One statement, and the values of its parameters."""

    def __init__(self, namespace_id: str, where: Predicate | None) -> None:
        self.parameters: dict[str, object] = {}
        self._condition = f"namespace_id = {self._bind(namespace_id)}::text"
        # Whether the condition can be evaluated on the table of counts.
        self._is_about_status = True
        if where is not None:
            normal = normal_form(where)
            self._is_about_status = is_about_status(normal)
            self._condition += f" AND {self._compile(normal)}"

    def list_rows(self, *, order: Order | Sort, after: Cursor | None, limit: int) -> bytes:
        """The statement that lists a page of rows."""
        if isinstance(order, Sort):
            return self._sorted_rows(order, after, limit)
        keys = [*(_sort_key(column) for column in order.columns), "run_id"]
        direction = "DESC" if order.descending else "ASC"
        text = f"SELECT {', '.join(_NAMES)} FROM visibility WHERE {self._condition}"
        if after is not None:
            values = ", ".join(
                self._bind(value) + ("::text" if isinstance(value, str) else "::bigint") for value in after
            )
            text += f" AND ({', '.join(keys)}) {'<' if order.descending else '>'} ({values})"
        text += f" ORDER BY {', '.join(f'{key} {direction}' for key in keys)} LIMIT {self._bind(limit)}"
        return text.encode()

    def _sorted_rows(self, sort: Sort, after: Cursor | None, limit: int) -> bytes:
        text = f"SELECT {', '.join(_NAMES)} FROM visibility WHERE {self._condition}"
        if after is not None:
            text += f" AND ({self._after(sort, after)})"
        # No NULLS LAST for columns without nulls: with it, the sort could not use the index by start time.
        terms = [
            f"{self._typed(key.field, key.kind)} {'DESC' if key.descending else 'ASC'}"
            f"{'' if key.field in NEVER_NULL else ' NULLS LAST'}"
            for key in sort.keys
        ]
        text += f" ORDER BY {', '.join(terms)}, {_RUN_ID} ASC LIMIT {self._bind(limit)}"
        return text.encode()

    def _after(self, sort: Sort, after: Cursor) -> str:
        """The condition for rows after the cursor: compares each key if the previous keys are equal."""
        *values, run_id = after
        equal, cases = "", []
        for key, value in zip(sort.keys, values, strict=True):
            operand = self._typed(key.field, key.kind)
            if value is None:
                # Rows without a value come last: only rows without a value can follow.
                equal += f"{operand} IS NULL AND "
                continue
            bound, sign = self._value(value), "<" if key.descending else ">"
            cases.append(f"({equal}({operand} {sign} {bound} OR {operand} IS NULL))")
            equal += f"{operand} = {bound} AND "
        cases.append(f"({equal}{_RUN_ID} > {self._bind(run_id)}::text)")
        found, first = " OR ".join(cases), sort.keys[0]
        if first.field not in NEVER_NULL:
            return found
        # The rest of the condition implies this comparison; it lets PostgreSQL begin in the index where the last page
        # ended.
        return f"{first.field} {'<=' if first.descending else '>='} {self._bind(values[0])}::bigint AND ({found})"

    def count_rows(self, *, group_by: Field | None) -> bytes:
        """The statement that counts rows; the value of each group is JSON."""
        if group_by in (None, Column.STATUS) and self._is_about_status:
            return self._counted_rows(is_grouped=group_by is not None)
        if group_by is None:
            return f"SELECT NULL::text, count(*) FROM visibility WHERE {self._condition}".encode()
        if isinstance(group_by, Attribute):
            value = f"search_attributes -> {self._bind(group_by.name)}::text"
        else:
            value = f"to_jsonb({group_by})"
        found = f"SELECT {value} AS value FROM visibility WHERE {self._condition}"
        return (
            f"SELECT value::text, count(*) FROM ({found}) AS found "
            f"GROUP BY value ORDER BY count(*) DESC, value LIMIT {GROUPS_MAX}"
        ).encode()

    def _counted_rows(self, *, is_grouped: bool) -> bytes:
        found = f"FROM visibility_counts WHERE {self._condition}"
        if not is_grouped:
            return f"SELECT NULL::text, coalesce(sum(rows), 0)::bigint {found}".encode()
        return (
            f"SELECT to_jsonb(status)::text, sum(rows)::bigint {found} "
            "GROUP BY status HAVING sum(rows) > 0 ORDER BY sum(rows) DESC, status"
        ).encode()

    def _bind(self, value: object) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f"%({name})s"

    def _compile(self, normal: Literal | Joined) -> str:
        if isinstance(normal, Literal):
            return self._leaf(normal.leaf, "NOT " if normal.is_negated else "")
        if not normal.parts:
            return "TRUE" if normal.is_all else "FALSE"
        return f"({(' AND ' if normal.is_all else ' OR ').join(map(self._compile, normal.parts))})"

    def _leaf(self, leaf: Leaf, negation: str) -> str:
        if isinstance(leaf, IsNull):
            return f"{self._field(leaf.field)} IS {negation}NULL"
        if isinstance(leaf, Contains):
            return self._contains(leaf.field, (leaf.keyword,), "array", negation)
        if isinstance(leaf, HasWord):
            contained = msgspec.json.encode({leaf.field.name: {"words": [leaf.word]}}).decode()
            return self._contains_json(leaf.field, contained, "object", negation)
        if isinstance(leaf, Compare) and isinstance(leaf.field, Attribute) and leaf.operator is Operator.EQUAL:
            return self._contains(leaf.field, leaf.value, _JSON_TYPES[_kind(leaf.value)], negation)
        return self._scalar_leaf(leaf, negation)

    def _scalar_leaf(self, leaf: Compare | In | Between | StartsWith, negation: str) -> str:
        if isinstance(leaf, Compare):
            return f"{negation}({self._operand(leaf.field, leaf.value)} {leaf.operator} {self._value(leaf.value)})"
        if isinstance(leaf, In):
            values = ", ".join(map(self._value, leaf.values))
            return f"{negation}({self._operand(leaf.field, leaf.values[0])} IN ({values}))"
        if isinstance(leaf, Between):
            low, high = self._value(leaf.low), self._value(leaf.high)
            return f"{negation}({self._operand(leaf.field, leaf.low)} BETWEEN {low} AND {high})"
        return f"{negation}starts_with({self._operand(leaf.field, leaf.prefix)}, {self._value(leaf.prefix)})"

    def _contains(self, field: Attribute, value: SearchValue, json_type: str, negation: str) -> str:
        return self._contains_json(field, encode_attributes({field.name: value}), json_type, negation)

    def _contains_json(self, field: Attribute, contained: str, json_type: str, negation: str) -> str:
        is_contained = f"search_attributes @> {self._bind(contained)}::text::jsonb"
        if not negation:
            return is_contained
        return f"(jsonb_typeof({self._field(field)}) = '{json_type}' AND NOT {is_contained})"

    def _field(self, field: Field) -> str:
        return f"(search_attributes -> {self._bind(field.name)}::text)" if isinstance(field, Attribute) else field

    def _operand(self, field: Field, value: Scalar) -> str:
        """The field, or null if it has another kind than the value."""
        kind = _kind(value)
        if isinstance(field, Attribute):
            return self._typed(field, kind)
        column_kind = Kind.TEXT if field in TEXT_COLUMNS else Kind.NUMBER
        return field if kind is column_kind else f"NULL::{_SQL_TYPES[kind]}"

    def _typed(self, field: Field, kind: Kind) -> str:
        """The field, or null if its value is of another kind; strings sort by code point."""
        if isinstance(field, Attribute):
            found = self._field(field)
            is_of_kind = f"jsonb_typeof({found}) = '{_JSON_TYPES[kind]}'"
            return f"(CASE WHEN {is_of_kind} THEN ({found} #>> '{{}}')::{_SQL_TYPES[kind]} END)"
        return f'({field} COLLATE "C")' if kind is Kind.TEXT else field

    def _value(self, value: Scalar) -> str:
        if isinstance(value, float):
            return f"{self._bind(Decimal(repr(value)))}::numeric"
        sql_type = "boolean" if isinstance(value, bool) else "bigint" if isinstance(value, int) else "text"
        return f"{self._bind(value)}::{sql_type}"


def _sort_key(column: Column) -> str:
    # The same expression as in the index, so that PostgreSQL uses the index.
    return f"coalesce({column}, {INT64_MAX})" if column in NULLABLE_NUMBERS else column


def _kind(value: Scalar) -> Kind:
    kind = kind_of(value)
    assert kind is not None  # noqa: S101 - a predicate has scalars only
    return kind
