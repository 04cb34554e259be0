"""Pages and counts of the entities of one archetype, read from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.search.attributes import to_payload
from fairlead.api.search.names import KEYWORD
from fairlead.api.search.statuses import STATUS_NAMES
from fairlead.frontend.handlers.list_pages import Entry, Listed, Page, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from temporalio.api.common.v1 import Payload

    from fairlead.api.namespaces import Namespace
    from fairlead.api.search.query import Query
    from fairlead.frontend.gateway.context import Frontend
    from fairlead.storage.visibility import VisibilityRow

    class ListRequest(Protocol):
        """A request for a page."""

        page_size: int
        next_page_token: bytes
        query: str


class StatusCount(NamedTuple):
    """Number of entities with one status, whose name is in the payload."""

    status: Payload
    rows: int


async def list_of(
    frontend: Frontend,
    namespace: Namespace,
    request: ListRequest,
    *,
    archetype: str,
    query: Query,
    entry: Callable[[VisibilityRow, Mapping[str, int]], Entry],
) -> Page[Entry]:
    """A page of a list, in the order of the query."""
    listed = Listed(entity_namespace_id(namespace.id, archetype), request.query, query.where, query.order_by)
    return await page_of(
        frontend, namespace, listed, page_size=request.page_size, token=request.next_page_token, entry=entry
    )


async def count_of(
    frontend: Frontend, namespace: Namespace, archetype: str, query: Query
) -> tuple[int, list[StatusCount]]:
    """Number of entities that match a query, in all and by status if the query groups them."""
    entity_namespace = entity_namespace_id(namespace.id, archetype)
    groups = await frontend.store.count_visibility(entity_namespace, query.where, group_by=query.group_by)
    counts = []
    if query.group_by is not None:
        for group in groups:
            name = STATUS_NAMES.get(group.value, "") if isinstance(group.value, int) else ""
            counts.append(StatusCount(to_payload(name, KEYWORD), group.rows))
    # Sort by the names of the statuses, as in Temporal's server, which sorts groups of workflows otherwise.
    counts.sort(key=lambda count: count.status.data)
    return sum(group.rows for group in groups), counts
