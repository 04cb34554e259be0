"""Nexus: endpoints for operators, and polls and responses of handlers' workers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import temporalio.api.operatorservice.v1 as operator_api
import temporalio.api.workflowservice.v1 as api
from temporalio.api.nexus.v1 import Endpoint, EndpointSpec

from fairlead.api.errors import ApiError, FailedPrecondition, InvalidArgument, NotFound
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.api.nexus_failures import TASK_NOT_FOUND, are_details_json
from fairlead.api.times import SECOND_NS, to_timestamp
from fairlead.api.tokens import NexusTaskToken
from fairlead.core.partitions import RESERVED_PREFIX, TaskQueueId, TaskType
from fairlead.frontend.gateway.deadlines import poll_wait_s
from fairlead.frontend.handlers.task_tokens import TaskKind, read_token
from fairlead.frontend.validation.common import (
    check_blob,
    check_identity,
    check_task_queue,
    check_versioning,
    is_longer,
)
from fairlead.settings.dynamic import limits
from fairlead.settings.dynamic.limits import MAX_ID_LENGTH

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

_NAME = re.compile(r"^[a-zA-Z][a-zA-Z0-9\-]*[a-zA-Z0-9]$")
_NAME_TEXT = r"^[a-zA-Z][a-zA-Z0-9\\-]*[a-zA-Z0-9]$"
OPERATION_TOKEN_BYTES_MAX = 4096
_UUID_LENGTH = 36


async def create_endpoint(
    frontend: Frontend, request: operator_api.CreateNexusEndpointRequest, _: Call
) -> operator_api.CreateNexusEndpointResponse:
    """Create an endpoint."""
    await _check_spec(frontend, request.spec)
    endpoint_id = frontend.new_id()
    endpoint = Endpoint(
        version=1,
        id=endpoint_id,
        spec=request.spec,
        created_time=_now(frontend),
        url_prefix=f"/nexus/endpoints/{endpoint_id}/services",
    )
    await Endpoints(frontend.store).create(endpoint)
    return operator_api.CreateNexusEndpointResponse(endpoint=endpoint)


async def update_endpoint(
    frontend: Frontend, request: operator_api.UpdateNexusEndpointRequest, _: Call
) -> operator_api.UpdateNexusEndpointResponse:
    """Replace an endpoint's spec."""
    await _check_spec(frontend, request.spec)
    wanted = Endpoint(version=request.version, id=request.id, spec=request.spec, last_modified_time=_now(frontend))
    return operator_api.UpdateNexusEndpointResponse(endpoint=await Endpoints(frontend.store).update(wanted))


async def delete_endpoint(
    frontend: Frontend, request: operator_api.DeleteNexusEndpointRequest, _: Call
) -> operator_api.DeleteNexusEndpointResponse:
    """Delete an endpoint."""
    problems = [] if request.id else ["endpoint ID not set"]
    if request.version <= 0:
        problems.append("endpoint version is non-positive")
    _reject(problems)
    await Endpoints(frontend.store).delete(request.id, request.version)
    return operator_api.DeleteNexusEndpointResponse()


async def get_endpoint(
    frontend: Frontend, request: operator_api.GetNexusEndpointRequest, _: Call
) -> operator_api.GetNexusEndpointResponse:
    """Get an endpoint by id."""
    if not request.id:
        raise InvalidArgument("endpoint ID not set")
    if len(request.id) != _UUID_LENGTH:
        raise InvalidArgument(f'malformed endpoint ID: "invalid UUID length: {len(request.id)}"')
    endpoint = await Endpoints(frontend.store).find(request.id)
    if endpoint is None:
        raise NotFound(f"Nexus endpoint with ID `{request.id}` not found")
    return operator_api.GetNexusEndpointResponse(endpoint=endpoint)


async def list_endpoints(
    frontend: Frontend, request: operator_api.ListNexusEndpointsRequest, _: Call
) -> operator_api.ListNexusEndpointsResponse:
    """List a page of all endpoints, ordered by id; or the endpoint with a name."""
    if request.page_size < 0:
        raise InvalidArgument("page_size is negative")
    page_max = frontend.settings.get(limits.ENDPOINT_LIST_MAX_PAGE_SIZE)
    if request.page_size > page_max:
        raise InvalidArgument(f"page_size exceeds limit of {page_max}")
    endpoints = Endpoints(frontend.store)
    if request.name:
        found = await endpoints.named(request.name)
        return operator_api.ListNexusEndpointsResponse(endpoints=[] if found is None else [found])
    after = _after(request.next_page_token)
    size = request.page_size or frontend.settings.get(limits.ENDPOINT_LIST_DEFAULT_PAGE_SIZE)
    page = [endpoint for endpoint in await endpoints.all() if endpoint.id > after][: size + 1]
    answer = operator_api.ListNexusEndpointsResponse(endpoints=page[:size])
    if len(page) > size:
        answer.next_page_token = page[size - 1].id.encode()
    return answer


async def poll(frontend: Frontend, request: api.PollNexusTaskQueueRequest, call: Call) -> bytes:
    """Wait for a request to a handler."""
    namespace = await frontend.namespaces.find(request.namespace)
    timeout_s = poll_wait_s(call)
    check_task_queue(frontend, request)
    check_identity(frontend, request.identity)
    options = request.deployment_options if request.HasField("deployment_options") else None
    check_versioning(request.worker_version_capabilities, options, request.task_queue)
    task_queue = TaskQueueId(namespace.id, request.task_queue.name, TaskType.NEXUS)
    began_s = frontend.clock()
    waiting = frontend.matching.poll(task_queue, request.identity, timeout_s=timeout_s)
    if request.worker_instance_key:
        answer = await frontend.open_polls.wait((namespace.id, request.worker_instance_key), waiting)
    else:
        answer = await waiting
    if answer is None or answer.task is None:
        return b""
    now_s = frontend.clock()
    decision = frontend.poll_scaling.decide(task_queue, answer.report, waited_s=now_s - began_s, now_s=now_s)
    if decision is None:
        return answer.task
    return answer.task + api.PollNexusTaskQueueResponse(poller_scaling_decision=decision).SerializeToString()


async def complete(frontend: Frontend, request: api.RespondNexusTaskCompletedRequest, _: Call) -> bytes:
    """Process a handler's response."""
    token, namespace = await read_token(frontend, request, TaskKind.NEXUS)
    _check_answer(request)
    answer = request.response.start_operation
    workflow_id = _workflow_id(token)
    check_blob(frontend, namespace, answer.sync_success.payload, request, workflow_id)
    check_blob(frontend, namespace, answer.failure, request, workflow_id)
    return await _answer(frontend, token, request, "RespondNexusTaskCompleted", alone="CompleteStandaloneNexusTask")


async def fail(frontend: Frontend, request: api.RespondNexusTaskFailedRequest, _: Call) -> bytes:
    """Process a handler's failure."""
    token, namespace = await read_token(frontend, request, TaskKind.NEXUS)
    if request.HasField("failure"):
        if not request.failure.HasField("nexus_handler_failure_info"):
            raise InvalidArgument("request Failure must contain error or failure with NexusHandlerFailureInfo")
        check_blob(frontend, namespace, request.failure, request, _workflow_id(token))
    elif not request.HasField("error"):
        raise InvalidArgument("request must contain error or failure")
    elif not are_details_json(request.error.failure):
        raise InvalidArgument("failure details must be JSON serializable")
    return await _answer(frontend, token, request, "RespondNexusTaskFailed", alone="FailStandaloneNexusTask")


async def _answer(
    frontend: Frontend,
    token: object,
    request: api.RespondNexusTaskCompletedRequest | api.RespondNexusTaskFailedRequest,
    name: str,
    *,
    alone: str,
) -> bytes:
    """Pass a worker's response to history: as `name` for a workflow's operation, as `alone` for a standalone one."""
    if not isinstance(token, NexusTaskToken):
        raise NotFound(TASK_NOT_FOUND)
    if frontend.gate is not None and not token.request_id:
        # Check the namespace: anybody can forge a token, and a worker must not reach workflows of other namespaces.
        raise NotFound(TASK_NOT_FOUND)
    name = alone if token.is_standalone else name
    return await frontend.history.call(name, token.caller_namespace_id, token.workflow_id, request)


def _workflow_id(token: object) -> str:
    return token.workflow_id if isinstance(token, NexusTaskToken) else ""


def _check_answer(request: api.RespondNexusTaskCompletedRequest) -> None:
    answer = request.response.start_operation
    if answer.HasField("operation_error") and not are_details_json(answer.operation_error.failure):
        raise InvalidArgument("failure details must be JSON serializable")
    if answer.HasField("async_success"):
        token = answer.async_success.operation_token or answer.async_success.operation_id
        if not token:
            raise InvalidArgument("missing opration token in response")
        if is_longer(token, OPERATION_TOKEN_BYTES_MAX):
            raise InvalidArgument(
                f"operation token length exceeds allowed limit ({len(token.encode())}/{OPERATION_TOKEN_BYTES_MAX})"
            )


async def _check_spec(frontend: Frontend, spec: EndpointSpec) -> None:
    """Reject an invalid spec, with all of its problems."""
    problems = []
    name_max = frontend.settings.get(limits.ENDPOINT_NAME_MAX_LENGTH)
    description_max = frontend.settings.get(limits.ENDPOINT_DESCRIPTION_MAX_SIZE)
    if not spec.name:
        problems.append("endpoint name not set")
    elif len(spec.name) > name_max:
        problems.append(f"endpoint name exceeds length limit of {name_max}")
    elif not _NAME.match(spec.name):
        problems.append(f'endpoint name must match the regex: "{_NAME_TEXT}"')
    if spec.description.ByteSize() > description_max:
        problems.append(f"description size exceeds limit of {description_max}")
    problems += _target_problems(frontend, spec)
    _reject(problems)
    if spec.target.HasField("worker"):
        try:
            await frontend.namespaces.find(spec.target.worker.namespace)
        except ApiError as error:
            raise FailedPrecondition(f"could not verify namespace referenced by target exists: {error}") from None


def _target_problems(frontend: Frontend, spec: EndpointSpec) -> list[str]:
    match spec.target.WhichOneof("variant"):
        case "worker":
            target = spec.target.worker
            problems = [] if target.namespace else ["target namespace not set"]
            queue = _task_queue_problem(frontend, target.task_queue)
            return problems if queue is None else [*problems, f'invalid target task queue: "{queue}"']
        case "external":
            problem = _url_problem(frontend, spec.target.external.url)
            return [] if problem is None else [problem]
        case _:
            return ["empty target variant"]


def _task_queue_problem(frontend: Frontend, name: str) -> str | None:
    if not name:
        return "taskQueue is not set"
    if is_longer(name, frontend.settings.get(MAX_ID_LENGTH)):
        return "taskQueue length exceeds limit"
    if name.startswith(RESERVED_PREFIX):
        return f"task queue name cannot start with reserved prefix {RESERVED_PREFIX}"
    return None


def _url_problem(frontend: Frontend, url: str) -> str | None:
    if not url:
        return "empty target URL"
    url_max = frontend.settings.get(limits.ENDPOINT_EXTERNAL_URL_MAX_LENGTH)
    if is_longer(url, url_max):
        return f"target URL length exceeds limit of {url_max}"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as wrong:
        return f'invalid target URL: parse "{url}": {wrong}'
    if parts.scheme not in ("http", "https"):
        return f'invalid target URL scheme: "{parts.scheme}", expected http or https'
    return None


def _reject(problems: list[str]) -> None:
    if problems:
        raise InvalidArgument(", ".join(problems))


def _after(token: bytes) -> str:
    if token and (len(token) != _UUID_LENGTH or not token.isascii()):
        raise InvalidArgument("Invalid NextPageToken.")
    return token.decode()


def _now(frontend: Frontend) -> Timestamp:
    return to_timestamp(int(frontend.clock() * SECOND_NS))


METHODS: dict[str, Handler] = {
    "PollNexusTaskQueue": poll,
    "RespondNexusTaskCompleted": complete,
    "RespondNexusTaskFailed": fail,
}
OPERATOR_METHODS: dict[str, Handler] = {
    "GetNexusEndpoint": get_endpoint,
    "CreateNexusEndpoint": create_endpoint,
    "UpdateNexusEndpoint": update_endpoint,
    "DeleteNexusEndpoint": delete_endpoint,
    "ListNexusEndpoints": list_endpoints,
}
DIFFERENCES = (
    (
        "A workflow task with a signal-with-start command fails if history.enableSignalWithStartFromWorkflow is "
        "not set; Temporal's server returns UNIMPLEMENTED for its completion, and the task times out."
    ),
    (
        "A Nexus endpoint with an external target is stored but never called: its operations fail at once, with a "
        "handler error of type NOT_IMPLEMENTED."
    ),
    (
        "A Nexus endpoint can't get the name of another endpoint, can't be deleted with an outdated version, and "
        "keeps its creation time when it is updated. Temporal's server allows the first two, and loses the "
        "creation time."
    ),
    (
        "A Nexus operation times out exactly at its timeout; Temporal's server times it out up to a few seconds "
        "earlier, when the remaining time is too short for another request."
    ),
    (
        "Nexus handlers get the caller's headers, request-timeout and operation-timeout, but not the headers of "
        "the HTTP request that Temporal's server makes internally."
    ),
)
