"""Lists and counts of standalone Nexus operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import temporalio.api.workflowservice.v1 as api

from fairlead.api.search.operation_queries import parse_operation_query
from fairlead.api.standalone_nexus import ARCHETYPE, listed_of
from fairlead.frontend.handlers.entity_lists import count_of, list_of
from fairlead.frontend.handlers.standalone_nexus import enabled_namespace

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call


async def list_operations(frontend: Frontend, request: api.ListNexusOperationExecutionsRequest, _: Call) -> Message:
    """List a page of the operations that match a query."""
    namespace = await enabled_namespace(frontend, request.namespace)
    query = parse_operation_query(request.query, namespace.search_attributes, allows_order=True)
    page = await list_of(frontend, namespace, request, archetype=ARCHETYPE, query=query, entry=listed_of)
    return api.ListNexusOperationExecutionsResponse(operations=page.entries, next_page_token=page.next_page_token)


async def count_operations(frontend: Frontend, request: api.CountNexusOperationExecutionsRequest, _: Call) -> Message:
    """Count the operations that match a query, in total and by status."""
    namespace = await enabled_namespace(frontend, request.namespace)
    query = parse_operation_query(request.query, namespace.search_attributes)
    count, groups = await count_of(frontend, namespace, ARCHETYPE, query)
    response = api.CountNexusOperationExecutionsResponse(count=count)
    for group in groups:
        response.groups.add(group_values=[group.status], count=group.rows)
    return response


METHODS: dict[str, Handler] = {
    "ListNexusOperationExecutions": list_operations,
    "CountNexusOperationExecutions": count_operations,
}
DIFFERENCES = (
    (
        "In lists of standalone Nexus operations, ExecutionStatus can only be compared with a status: other "
        "values are rejected."
    ),
    "Lists of standalone Nexus operations do not show the search attribute TemporalNamespaceDivision.",
)
