"""A list filter for activities that stand alone, which have an id and a type where workflows have theirs."""

from collections.abc import Mapping
from dataclasses import replace

from fairlead.history.search.names import KEYWORD
from fairlead.history.search.query import Query, parse_query
from fairlead.storage.history_visibility import And, Attribute, Column, Contains, HasWord, Not, Or, Predicate

_COLUMNS = {"ActivityId": Column.WORKFLOW_ID, "ActivityType": Column.WORKFLOW_TYPE}


def parse_activity_query(text: str, custom: Mapping[str, int]) -> Query:
    """What a query asks for, in a namespace with these custom attributes."""
    query = parse_query(text, {**custom, **dict.fromkeys(_COLUMNS, KEYWORD)})
    return Query(None if query.where is None else _by_columns(query.where), query.group_by)


def _by_columns(predicate: Predicate) -> Predicate:
    """The same, with what activities have in columns looked for there."""
    if isinstance(predicate, And):
        return And(tuple(map(_by_columns, predicate.parts)))
    if isinstance(predicate, Or):
        return Or(tuple(map(_by_columns, predicate.parts)))
    if isinstance(predicate, Not):
        return Not(_by_columns(predicate.part))
    if isinstance(predicate, Contains | HasWord) or not isinstance(predicate.field, Attribute):
        return predicate
    column = _COLUMNS.get(predicate.field.name)
    return predicate if column is None else replace(predicate, field=column)
