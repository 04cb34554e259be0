"""Methods for standalone Nexus operations: start, poll, describe, cancel, terminate and delete.

A setting of the namespace enables them, as in Temporal's server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import temporalio.api.workflowservice.v1 as api

from fairlead.api.errors import InvalidArgument, NotFound, Unimplemented
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.frontend.gateway.deadlines import HISTORY_WAIT_S_MAX, wait_s
from fairlead.frontend.validation.standalone_nexus import check_operation, check_poll, check_requester, check_start
from fairlead.settings import Scope
from fairlead.settings.dynamic.nexus import STANDALONE_ENABLED

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    End: TypeAlias = api.RequestCancelNexusOperationExecutionRequest | api.TerminateNexusOperationExecutionRequest

DISABLED = "Standalone Nexus operation is disabled"


async def enabled_namespace(frontend: Frontend, name: str) -> Namespace:
    """The namespace of a request; raises an API error if its setting does not enable standalone operations."""
    namespace = await frontend.namespaces.find(name)
    if not frontend.settings.get(STANDALONE_ENABLED, Scope(namespace.id)):
        raise Unimplemented(DISABLED)
    return namespace


async def start(frontend: Frontend, request: api.StartNexusOperationExecutionRequest, _: Call) -> bytes:
    """Start an operation."""
    namespace = await enabled_namespace(frontend, request.namespace)
    check_start(frontend, namespace, request)
    if await Endpoints(frontend.store).named(request.endpoint) is None:
        raise NotFound(f"could not find Nexus endpoint by name: {request.endpoint}")
    return await frontend.history.call("StartNexusOperationExecution", namespace.id, request.operation_id, request)


async def poll(frontend: Frontend, request: api.PollNexusOperationExecutionRequest, call: Call) -> bytes:
    """Wait for an operation to start or to end."""
    namespace = await enabled_namespace(frontend, request.namespace)
    check_poll(frontend, request)
    return await frontend.history.call(
        "PollNexusOperationExecution",
        namespace.id,
        request.operation_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def describe(frontend: Frontend, request: api.DescribeNexusOperationExecutionRequest, call: Call) -> bytes:
    """Describe an operation, now or as soon as it has changed."""
    namespace = await enabled_namespace(frontend, request.namespace)
    check_operation(frontend, request)
    if request.long_poll_token and not request.run_id:
        raise InvalidArgument("run_id is required when long_poll_token is provided")
    return await frontend.history.call(
        "DescribeNexusOperationExecution",
        namespace.id,
        request.operation_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def request_cancel(
    frontend: Frontend, request: api.RequestCancelNexusOperationExecutionRequest, _: Call
) -> bytes:
    """Request the cancellation of an operation from its handler."""
    return await _end("RequestCancelNexusOperationExecution", frontend, request)


async def terminate(frontend: Frontend, request: api.TerminateNexusOperationExecutionRequest, _: Call) -> bytes:
    """Terminate an operation; its handler is not notified."""
    return await _end("TerminateNexusOperationExecution", frontend, request)


async def delete(frontend: Frontend, request: api.DeleteNexusOperationExecutionRequest, _: Call) -> bytes:
    """Delete an operation."""
    namespace = await enabled_namespace(frontend, request.namespace)
    check_operation(frontend, request)
    return await frontend.history.call("DeleteNexusOperationExecution", namespace.id, request.operation_id, request)


async def _end(method: str, frontend: Frontend, request: End) -> bytes:
    namespace = await enabled_namespace(frontend, request.namespace)
    check_requester(frontend, request)
    return await frontend.history.call(method, namespace.id, request.operation_id, request)


METHODS: dict[str, Handler] = {
    "StartNexusOperationExecution": start,
    "PollNexusOperationExecution": poll,
    "DescribeNexusOperationExecution": describe,
    "RequestCancelNexusOperationExecution": request_cancel,
    "TerminateNexusOperationExecution": terminate,
    "DeleteNexusOperationExecution": delete,
}
DIFFERENCES = (
    "A standalone Nexus operation is deleted before the response, not some time later.",
    "A rejected request does not count as a state transition of a standalone Nexus operation.",
)
