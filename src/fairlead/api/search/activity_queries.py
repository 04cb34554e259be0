"""List filters for standalone activities, which have an activity id and type in place of a workflow id and type."""

from collections.abc import Mapping

from fairlead.api.search.columns import with_fields
from fairlead.api.search.names import KEYWORD
from fairlead.api.search.query import Query, parse_query
from fairlead.storage.visibility import Column

_COLUMNS = {"ActivityId": Column.WORKFLOW_ID, "ActivityType": Column.WORKFLOW_TYPE}


def parse_activity_query(text: str, custom: Mapping[str, int], *, allows_order: bool = False) -> Query:
    """Parse a query in a namespace with these custom attributes; rejects ORDER BY unless `allows_order`."""
    names = {**custom, **dict.fromkeys(_COLUMNS, KEYWORD)}
    return with_fields(parse_query(text, names, allows_order=allows_order), _COLUMNS)
