"""List filters for standalone Nexus operations, which have an id, an operation, a service and an endpoint."""

from collections.abc import Mapping

from fairlead.api.search.columns import with_fields
from fairlead.api.search.names import KEYWORD
from fairlead.api.search.query import Query, parse_query
from fairlead.api.standalone_nexus import SERVICE
from fairlead.storage.visibility import Attribute, Column, Field

_FIELDS: dict[str, Field] = {
    "OperationId": Column.WORKFLOW_ID,
    "Operation": Column.WORKFLOW_TYPE,
    "Endpoint": Column.TASK_QUEUE,
    "Service": Attribute(SERVICE),
}


def parse_operation_query(text: str, custom: Mapping[str, int], *, allows_order: bool = False) -> Query:
    """Parse a query in a namespace with these custom attributes; rejects ORDER BY unless `allows_order`."""
    names = {**custom, **dict.fromkeys(_FIELDS, KEYWORD)}
    return with_fields(parse_query(text, names, allows_order=allows_order), _FIELDS)
