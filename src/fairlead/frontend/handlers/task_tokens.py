"""Reads the task token of a worker's response: the task and its run."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Protocol

from google.protobuf.message import DecodeError
from temporalio.api.command.v1 import RequestCancelExternalWorkflowExecutionCommandAttributes
from temporalio.api.operatorservice.v1 import ClusterMetadata

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.tokens import TOKEN_BYTES_MAX, AnyToken, decode_token
from fairlead.frontend.validation.common import check_run_id

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend


class WithToken(Protocol):
    """A response to a task."""

    namespace: str
    task_token: bytes


class TaskKind(Enum):
    """The kind of task that a method responds to."""

    WORKFLOW_TASK = auto()
    ACTIVITY = auto()
    QUERY = auto()
    NEXUS = auto()


class ForeignToken(NamedTuple):
    """A token in the format of Temporal's server, for a task that this server never started.

    A worker may hold such a token if its namespace has moved here. A valid one belongs to no task of this server, so
    every handler responds that the task was not found.
    """

    namespace_id: str


async def read_token(
    frontend: Frontend, request: WithToken, kind: TaskKind
) -> tuple[AnyToken | ForeignToken, Namespace]:
    """The token and its namespace; the request's namespace may be empty, but must not differ."""
    name = request.namespace
    named = await frontend.namespaces.find(name) if name else None
    token = _decoded(request.task_token, kind)
    if named is None:
        return token, await frontend.namespaces.find_id(token.namespace_id)
    if token.namespace_id != named.id:
        if isinstance(token, ForeignToken):
            if frontend.gate is not None:
                # Not looked up: the response must not tell a tenant which ids of namespaces exist.
                raise NotFound("The namespace of the task token is not found.")
            await frontend.namespaces.find_id(token.namespace_id)
        raise InvalidArgument("Operation requested with a token from a different namespace.")
    return token, named


def _decoded(data: bytes, kind: TaskKind) -> AnyToken | ForeignToken:
    try:
        return decode_token(data)
    except ApiError:
        if not data or len(data) > TOKEN_BYTES_MAX:
            raise
    return _foreign(data, kind)


def _foreign(data: bytes, kind: TaskKind) -> ForeignToken:
    """Check a token as Temporal's server does before it looks for the task."""
    try:
        # These messages have fields with the same numbers and types as Temporal's task tokens. The fields hold the ids
        # of the namespace, the workflow and the run; `reason` holds the activity id, and `version` the id of the
        # scheduled event.
        ids = RequestCancelExternalWorkflowExecutionCommandAttributes.FromString(data)
        event_id = ClusterMetadata.FromString(data).initial_failover_version
    except DecodeError:
        raise InvalidArgument("Error deserializing task token.") from None
    if not ids.namespace:
        raise InvalidArgument("Namespace not set on request.")
    if kind in (TaskKind.QUERY, TaskKind.NEXUS):
        # In these tokens, the name of a task queue and the id of a task follow the namespace.
        if not ids.workflow_id or not ids.run_id:
            raise InvalidArgument("Invalid TaskToken.")
        return ForeignToken(ids.namespace)
    if not ids.workflow_id:
        raise InvalidArgument("Business ID is not set on request.")
    check_run_id(ids.run_id)
    if kind is TaskKind.ACTIVITY and not event_id and not ids.reason:
        raise InvalidArgument("activityID cannot be empty")
    return ForeignToken(ids.namespace)
