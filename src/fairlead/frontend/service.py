"""Both services of Temporal's API on one gRPC server: every method has an answer, if only that it is not there."""

import time
from collections.abc import Mapping
from functools import partial
from types import ModuleType

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from temporalio.api.operatorservice.v1 import service_pb2 as operator_api
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_api

from fairlead.core.errors import FairleadError, GiveUp
from fairlead.frontend import (
    activities,
    activity_lists,
    batch,
    clusters,
    deployments,
    namespaces,
    nexus,
    nexus_executions,
    operator,
    schedules,
    system,
    task_queues,
    tasks,
    visibility,
    workers,
    workflows,
)
from fairlead.frontend.context import Frontend, Handler
from fairlead.frontend.errors import status_of
from fairlead.frontend.redirection import READS
from fairlead.rpc import HEALTH_SERVICE, Call, Code, Health, Reflection, RpcServer, RpcStatus, UnaryHandler
from fairlead.telemetry import CallMetrics, Metrics, get_log

# Each has some of METHODS and OPERATOR_METHODS (name to handler), NOTES (name to what is missing in it), DISABLED (the
# names of those that are always refused) and DIFFERENCES (sentences on what is not as in Temporal's server).
TOPICS: tuple[ModuleType, ...] = (
    activities,
    activity_lists,
    batch,
    deployments,
    system,
    namespaces,
    operator,
    clusters,
    workflows,
    tasks,
    visibility,
    task_queues,
    workers,
    schedules,
    nexus,
    nexus_executions,
)

_WORKFLOW_API: ServiceDescriptor = workflow_api.DESCRIPTOR.services_by_name["WorkflowService"]
_OPERATOR_API: ServiceDescriptor = operator_api.DESCRIPTOR.services_by_name["OperatorService"]
WORKFLOW_SERVICE = _WORKFLOW_API.full_name
OPERATOR_SERVICE = _OPERATOR_API.full_name

_log = get_log("frontend")


class TopicsDisagree(GiveUp):
    """Two topics have a handler for one method, or one has a handler for a method that is not in the API."""


def method_names(service: str) -> list[str]:
    """All methods that the API has in a service, in its order."""
    api = _WORKFLOW_API if service == WORKFLOW_SERVICE else _OPERATOR_API
    return [method.name for method in api.methods]


def handlers(service: str) -> dict[str, Handler]:
    """The methods of a service that have a handler."""
    table = "METHODS" if service == WORKFLOW_SERVICE else "OPERATOR_METHODS"
    known = set(method_names(service))
    found: dict[str, Handler] = {}
    for topic in TOPICS:
        methods: Mapping[str, Handler] = getattr(topic, table, {})
        wrong = [name for name in methods if name in found or name not in known]
        if wrong:
            raise TopicsDisagree(f"{topic.__name__}.{table}: {', '.join(wrong)} is another's or not in {service}")
        found.update(methods)
    return found


def add_services(server: RpcServer, frontend: Frontend, metrics: Metrics) -> Health:
    """Answer all methods of both services there, and say so by health and reflection."""
    for api in (_WORKFLOW_API, _OPERATOR_API):
        implemented = handlers(api.full_name)
        # As Temporal's dashboards have them: all of the frontend's, told apart by a prefix.
        prefix = "" if api is _WORKFLOW_API else "Operator"
        for method in api.methods:
            handler = implemented.get(method.name, _refuse)
            calls = metrics.calls("frontend", prefix + method.name) if handler is not _refuse else _UNCOUNTED
            server.add(f"/{api.full_name}/{method.name}", _answerer(method, handler, frontend, calls))
    health = Health([WORKFLOW_SERVICE, OPERATOR_SERVICE])
    health.add_to(server)
    Reflection([WORKFLOW_SERVICE, OPERATOR_SERVICE, HEALTH_SERVICE]).add_to(server)
    return health


# Those who try what is not there are no load: they need no series.
_UNCOUNTED = CallMetrics("frontend", "unimplemented")


async def _refuse(_: Frontend, __: object, call: Call) -> bytes:
    raise RpcStatus(Code.UNIMPLEMENTED, f"method {call.path.rpartition('/')[2]} not implemented")


def _answerer(method: MethodDescriptor, handler: Handler, frontend: Frontend, calls: CallMetrics) -> UnaryHandler:
    """A method as the gRPC server calls it. Every call goes through here: what it does, it does once for each."""
    parse = GetMessageClass(method.input_type).FromString
    now_s = time.perf_counter
    name = method.name
    has_namespace = "namespace" in method.input_type.fields_by_name
    is_read = name in READS or not has_namespace or method.containing_service is not _WORKFLOW_API
    redirection = None if is_read or handler is _refuse else frontend.redirection

    async def answer(data: bytes, call: Call) -> bytes:
        began_s = now_s()
        try:
            try:
                request = parse(data)
            except DecodeError as error:
                raise _malformed(error) from None
            if redirection is None:
                response = await handler(frontend, request, call)
            else:
                response = await redirection.answer(
                    name, request, data, call, partial(handler, frontend, request, call)
                )
        except FairleadError as error:
            status = status_of(error)
            calls.failed(status.code.name, now_s() - began_s)
            if status.code is Code.INTERNAL:
                _log.error("request failed", method=method.name, peer=call.peer, exc_info=error)
            raise status from None
        except TimeoutError:
            calls.failed(Code.DEADLINE_EXCEEDED.name, now_s() - began_s)
            raise RpcStatus(Code.DEADLINE_EXCEEDED, "context deadline exceeded") from None
        except Exception:
            calls.failed(Code.INTERNAL.name, now_s() - began_s)
            raise
        calls.answered(now_s() - began_s)
        return response if type(response) is bytes else response.SerializeToString()  # type: ignore[union-attr]

    return answer


def _malformed(error: DecodeError) -> RpcStatus:
    return RpcStatus(Code.INVALID_ARGUMENT, f"grpc: error unmarshalling request: {error}")
