"""Lists and counts of standalone activities, read from the store: committed changes are visible at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.workflowservice.v1 import CountActivityExecutionsResponse, ListActivityExecutionsResponse

from fairlead.api.search.activity_queries import parse_activity_query
from fairlead.api.standalone_activities import ARCHETYPE, listed_of
from fairlead.frontend.handlers.entity_lists import count_of, list_of

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from temporalio.api.workflowservice.v1 import CountActivityExecutionsRequest, ListActivityExecutionsRequest

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

DIFFERENCES = (
    (
        "In lists of standalone activities, ExecutionStatus can only be compared with a status: other values are "
        "rejected."
    ),
    "Lists of standalone activities do not show the search attribute TemporalNamespaceDivision.",
)


async def list_activities(frontend: Frontend, request: ListActivityExecutionsRequest, _: Call) -> Message:
    """List a page of the activities that match a query."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = parse_activity_query(request.query, namespace.search_attributes, allows_order=True)
    page = await list_of(frontend, namespace, request, archetype=ARCHETYPE, query=query, entry=listed_of)
    return ListActivityExecutionsResponse(executions=page.entries, next_page_token=page.next_page_token)


async def count_activities(frontend: Frontend, request: CountActivityExecutionsRequest, _: Call) -> Message:
    """Count the activities that match a query, in total and by status."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = parse_activity_query(request.query, namespace.search_attributes)
    count, groups = await count_of(frontend, namespace, ARCHETYPE, query)
    response = CountActivityExecutionsResponse(count=count)
    for group in groups:
        response.groups.add(group_values=[group.status], count=group.rows)
    return response


METHODS: dict[str, Handler] = {
    "ListActivityExecutions": list_activities,
    "CountActivityExecutions": count_activities,
}
