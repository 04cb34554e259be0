"""Queries about entities: maps an archetype's own attributes to the fields that hold them."""

from collections.abc import Mapping

from msgspec.structs import replace

from fairlead.api.search.query import Query
from fairlead.storage.predicates import And, Contains, HasWord, Not, Or, Predicate
from fairlead.storage.visibility import Attribute, Field
from fairlead.storage.visibility_order import Sort


def with_fields(query: Query, fields: Mapping[str, Field]) -> Query:
    """The same query, with these attributes replaced by the fields that hold them."""
    where = None if query.where is None else _by_fields(query.where, fields)
    sort = query.order_by
    if sort is not None:
        sort = Sort(tuple(replace(key, field=_field(key.field, fields)) for key in sort.keys))
    return Query(where, query.group_by, sort)


def _by_fields(predicate: Predicate, fields: Mapping[str, Field]) -> Predicate:
    if isinstance(predicate, And):
        return And(tuple(_by_fields(part, fields) for part in predicate.parts))
    if isinstance(predicate, Or):
        return Or(tuple(_by_fields(part, fields) for part in predicate.parts))
    if isinstance(predicate, Not):
        return Not(_by_fields(predicate.part, fields))
    if isinstance(predicate, Contains | HasWord):
        return predicate
    return replace(predicate, field=_field(predicate.field, fields))


def _field(field: Field, fields: Mapping[str, Field]) -> Field:
    return fields.get(field.name, field) if isinstance(field, Attribute) else field
