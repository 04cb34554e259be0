"""Nexus: the endpoints that operators keep, and the workers that handle what is asked of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import temporalio.api.operatorservice.v1 as operator_api
import temporalio.api.workflowservice.v1 as api
from temporalio.api.nexus.v1 import Endpoint, EndpointSpec

from fairlead.core.partitions import RESERVED_PREFIX, TaskList, TaskType
from fairlead.frontend.checks import check_blob, check_identity, check_task_queue, check_versioning, is_longer
from fairlead.frontend.deadlines import poll_wait_s
from fairlead.frontend.task_tokens import read_token
from fairlead.history.nexus.endpoints import NAME_BYTES_MAX, Endpoints
from fairlead.history.nexus.failures import are_details_json
from fairlead.history.nexus.operations import NOT_FOUND
from fairlead.history.refusals import Refused, failed_precondition, invalid, not_found
from fairlead.history.state.times import SECOND_NS, to_timestamp
from fairlead.history.tokens import NexusTaskToken
from fairlead.settings.limits import MAX_ID_LENGTH

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.rpc import Call

_NAME = re.compile(r"^[a-zA-Z][a-zA-Z0-9\-]*[a-zA-Z0-9]$")
_NAME_TEXT = r"^[a-zA-Z][a-zA-Z0-9\\-]*[a-zA-Z0-9]$"
URL_BYTES_MAX = 4096
DESCRIPTION_BYTES_MAX = 20_000
OPERATION_TOKEN_BYTES_MAX = 4096
PAGE_DEFAULT = 100
PAGE_MAX = 1_000
_UUID_LENGTH = 36


async def create_endpoint(
    frontend: Frontend, request: operator_api.CreateNexusEndpointRequest, _: Call
) -> operator_api.CreateNexusEndpointResponse:
    """Add an endpoint."""
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
    """Replace what an endpoint stands for."""
    await _check_spec(frontend, request.spec)
    wanted = Endpoint(version=request.version, id=request.id, spec=request.spec, last_modified_time=_now(frontend))
    return operator_api.UpdateNexusEndpointResponse(endpoint=await Endpoints(frontend.store).update(wanted))


async def delete_endpoint(
    frontend: Frontend, request: operator_api.DeleteNexusEndpointRequest, _: Call
) -> operator_api.DeleteNexusEndpointResponse:
    """Remove an endpoint."""
    problems = [] if request.id else ["endpoint ID not set"]
    if request.version <= 0:
        problems.append("endpoint version is non-positive")
    _refuse(problems)
    await Endpoints(frontend.store).delete(request.id, request.version)
    return operator_api.DeleteNexusEndpointResponse()


async def get_endpoint(
    frontend: Frontend, request: operator_api.GetNexusEndpointRequest, _: Call
) -> operator_api.GetNexusEndpointResponse:
    """One endpoint, by its id."""
    if not request.id:
        raise invalid("endpoint ID not set")
    if len(request.id) != _UUID_LENGTH:
        raise invalid(f'malformed endpoint ID: "invalid UUID length: {len(request.id)}"')
    endpoint = await Endpoints(frontend.store).find(request.id)
    if endpoint is None:
        raise not_found(f"Nexus endpoint with ID `{request.id}` not found")
    return operator_api.GetNexusEndpointResponse(endpoint=endpoint)


async def list_endpoints(
    frontend: Frontend, request: operator_api.ListNexusEndpointsRequest, _: Call
) -> operator_api.ListNexusEndpointsResponse:
    """A page of all endpoints, by id; or the one of a name."""
    if request.page_size < 0:
        raise invalid("page_size is negative")
    if request.page_size > PAGE_MAX:
        raise invalid(f"page_size exceeds limit of {PAGE_MAX}")
    endpoints = Endpoints(frontend.store)
    if request.name:
        found = await endpoints.named(request.name)
        return operator_api.ListNexusEndpointsResponse(endpoints=[] if found is None else [found])
    after = _after(request.next_page_token)
    size = request.page_size or PAGE_DEFAULT
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
    waiting = frontend.matching.poll(
        TaskList(namespace.id, request.task_queue.name, TaskType.NEXUS), request.identity, timeout_s=timeout_s
    )
    if request.worker_instance_key:
        answer = await frontend.open_polls.wait((namespace.id, request.worker_instance_key), waiting)
    else:
        answer = await waiting
    return b"" if answer is None or answer.task is None else answer.task


async def complete(frontend: Frontend, request: api.RespondNexusTaskCompletedRequest, _: Call) -> bytes:
    """Take a handler's answer."""
    token, namespace = await read_token(frontend, request)
    _check_answer(request)
    answer = request.response.start_operation
    check_blob(frontend, namespace, answer.sync_success.payload)
    check_blob(frontend, namespace, answer.failure)
    return await _answer(frontend, token, "RespondNexusTaskCompleted", request)


async def fail(frontend: Frontend, request: api.RespondNexusTaskFailedRequest, _: Call) -> bytes:
    """Take note that a handler could not answer."""
    token, namespace = await read_token(frontend, request)
    if request.HasField("failure"):
        if not request.failure.HasField("nexus_handler_failure_info"):
            raise invalid("request Failure must contain error or failure with NexusHandlerFailureInfo")
        check_blob(frontend, namespace, request.failure)
    elif not request.HasField("error"):
        raise invalid("request must contain error or failure")
    elif not are_details_json(request.error.failure):
        raise invalid("failure details must be JSON serializable")
    return await _answer(frontend, token, "RespondNexusTaskFailed", request)


async def _answer(
    frontend: Frontend,
    token: object,
    name: str,
    request: api.RespondNexusTaskCompletedRequest | api.RespondNexusTaskFailedRequest,
) -> bytes:
    if not isinstance(token, NexusTaskToken):
        raise not_found(NOT_FOUND)
    return await frontend.history.call(name, token.caller_namespace_id, token.workflow_id, request)


def _check_answer(request: api.RespondNexusTaskCompletedRequest) -> None:
    answer = request.response.start_operation
    if answer.HasField("operation_error") and not are_details_json(answer.operation_error.failure):
        raise invalid("failure details must be JSON serializable")
    if answer.HasField("async_success"):
        token = answer.async_success.operation_token or answer.async_success.operation_id
        if not token:
            raise invalid("missing opration token in response")
        if is_longer(token, OPERATION_TOKEN_BYTES_MAX):
            raise invalid(
                f"operation token length exceeds allowed limit ({len(token.encode())}/{OPERATION_TOKEN_BYTES_MAX})"
            )


async def _check_spec(frontend: Frontend, spec: EndpointSpec) -> None:
    """Refuse what can't be an endpoint, with all that is wrong with it."""
    problems = []
    if not spec.name:
        problems.append("endpoint name not set")
    elif len(spec.name) > NAME_BYTES_MAX:
        problems.append(f"endpoint name exceeds length limit of {NAME_BYTES_MAX}")
    elif not _NAME.match(spec.name):
        problems.append(f'endpoint name must match the regex: "{_NAME_TEXT}"')
    if spec.description.ByteSize() > DESCRIPTION_BYTES_MAX:
        problems.append(f"description size exceeds limit of {DESCRIPTION_BYTES_MAX}")
    problems += _target_problems(frontend, spec)
    _refuse(problems)
    if spec.target.HasField("worker"):
        try:
            await frontend.namespaces.find(spec.target.worker.namespace)
        except Refused as refused:
            raise failed_precondition(f"could not verify namespace referenced by target exists: {refused}") from None


def _target_problems(frontend: Frontend, spec: EndpointSpec) -> list[str]:
    match spec.target.WhichOneof("variant"):
        case "worker":
            target = spec.target.worker
            problems = [] if target.namespace else ["target namespace not set"]
            queue = _task_queue_problem(frontend, target.task_queue)
            return problems if queue is None else [*problems, f'invalid target task queue: "{queue}"']
        case "external":
            problem = _url_problem(spec.target.external.url)
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


def _url_problem(url: str) -> str | None:
    if not url:
        return "empty target URL"
    if is_longer(url, URL_BYTES_MAX):
        return f"target URL length exceeds limit of {URL_BYTES_MAX}"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as wrong:
        return f'invalid target URL: parse "{url}": {wrong}'
    if parts.scheme not in ("http", "https"):
        return f'invalid target URL scheme: "{parts.scheme}", expected http or https'
    return None


def _refuse(problems: list[str]) -> None:
    if problems:
        raise invalid(", ".join(problems))


def _after(token: bytes) -> str:
    if token and (len(token) != _UUID_LENGTH or not token.isascii()):
        raise invalid("Invalid NextPageToken.")
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
        "A Nexus endpoint with an external target is kept, but not called: its operations fail at once, with a handler "
        "error of type NOT_IMPLEMENTED."
    ),
    (
        "A Nexus endpoint can't be given a name that another one has, or be deleted with a version that is not its "
        "own, and keeps the time of its creation when it is changed; Temporal's server allows and loses these."
    ),
    (
        "A Nexus operation times out when its time is over; Temporal's server does so up to a few seconds before, when "
        "what is left is too short for another request."
    ),
    (
        "Nexus handlers get the caller's headers, request-timeout and operation-timeout, without those of the HTTP "
        "request that Temporal's server makes on the way."
    ),
)
