"""Lists and counts of activities that stand alone, straight from the store: what is committed is found at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash
from temporalio.api.workflowservice.v1 import CountActivityExecutionsResponse, ListActivityExecutionsResponse

from fairlead.frontend.visibility import PAGE_BYTES_MAX, PAGE_ROWS_MAX, TOKEN_BYTES_MAX, PageToken
from fairlead.history.refusals import invalid
from fairlead.history.search.attributes import to_payload
from fairlead.history.search.names import KEYWORD
from fairlead.history.search.query import STATUS_NAMES
from fairlead.history.standalone.answers import ARCHETYPE, listed_of
from fairlead.history.standalone.queries import parse_activity_query
from fairlead.storage.history_visibility import (
    INT64_MAX,
    LATEST_FIRST,
    cursor_of,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from temporalio.api.workflowservice.v1 import CountActivityExecutionsRequest, ListActivityExecutionsRequest

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.history.namespaces import Namespace
    from fairlead.rpc import Call

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PageToken).decode

DIFFERENCES = (
    "In lists of activities that stand alone, ExecutionStatus is compared with a status: other values are refused.",
    "Lists of activities that stand alone do not show the search attribute TemporalNamespaceDivision.",
)


async def list_activities(frontend: Frontend, request: ListActivityExecutionsRequest, _: Call) -> Message:
    """What a query finds, the open activities first and then the last closed."""
    namespace = await frontend.namespaces.find(request.namespace)
    where = parse_activity_query(request.query, namespace.search_attributes).where
    asked = xxhash.xxh64_intdigest(f"{namespace.id}#{ARCHETYPE}\n{request.query}".encode(errors="surrogatepass")) >> 1
    after = _place(request.next_page_token, asked) if request.next_page_token else None
    limit = request.page_size if 0 < request.page_size <= PAGE_ROWS_MAX else PAGE_ROWS_MAX
    # One more, to know whether there is another page.
    rows = await frontend.store.list_visibility(_place_of(namespace), where, after=after, limit=limit + 1)
    response = ListActivityExecutionsResponse()
    size = 0
    for row in rows[:limit]:
        info = listed_of(row, namespace.search_attributes)
        size += info.ByteSize()
        if response.executions and size > PAGE_BYTES_MAX:
            break
        response.executions.append(info)
    shown = len(response.executions)
    if shown < len(rows):
        response.next_page_token = _encode((asked, *cursor_of(rows[shown - 1], LATEST_FIRST)))
    return response


async def count_activities(frontend: Frontend, request: CountActivityExecutionsRequest, _: Call) -> Message:
    """How many a query finds, in all and by status."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = parse_activity_query(request.query, namespace.search_attributes)
    groups = await frontend.store.count_visibility(_place_of(namespace), query.where, group_by=query.group_by)
    response = CountActivityExecutionsResponse(count=sum(group.rows for group in groups))
    if query.group_by is not None:
        for group in groups:
            name = STATUS_NAMES.get(group.value, "") if isinstance(group.value, int) else ""
            response.groups.add(group_values=[to_payload(name, KEYWORD)], count=group.rows)
    return response


def _place_of(namespace: Namespace) -> str:
    return f"{namespace.id}#{ARCHETYPE}"


def _place(token: bytes, asked: int) -> tuple[int, int, str]:
    """Where the list goes on."""
    try:
        decoded = _decode(token) if len(token) <= TOKEN_BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if decoded is None or decoded.asked != asked or "\0" in decoded.run_id:
        raise invalid("Invalid NextPageToken.")
    if max(abs(decoded.close_time_ns), abs(decoded.start_time_ns)) > INT64_MAX:
        raise invalid("Invalid NextPageToken.")
    return decoded.close_time_ns, decoded.start_time_ns, decoded.run_id


METHODS: dict[str, Handler] = {
    "ListActivityExecutions": list_activities,
    "CountActivityExecutions": count_activities,
}
