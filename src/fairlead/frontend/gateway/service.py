"""Both services of Temporal's API, one handler per method; methods without a handler return UNIMPLEMENTED."""

import time
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from temporalio.api.operatorservice.v1 import service_pb2 as operator_api
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_api

from fairlead.api.errors import DeadlineExceeded, InvalidArgument, Unimplemented
from fairlead.api.status import status_of
from fairlead.core.errors import FairleadError, GiveUp
from fairlead.frontend.gateway.context import CallObserver, Frontend, Handler
from fairlead.frontend.gateway.redirection import POLLS, READS
from fairlead.frontend.handlers import (
    batch_jobs,
    clusters,
    compute,
    deployments,
    namespaces,
    nexus,
    operator,
    schedules,
    standalone_activities,
    standalone_activity_lists,
    standalone_nexus,
    standalone_nexus_lists,
    system,
    task_queues,
    tasks,
    time_skipping,
    visibility,
    workers,
    workflow_rules,
    workflows,
)
from fairlead.frontend.quotas.costs import HISTORY_WAIT, cost_of
from fairlead.rpc import HEALTH_SERVICE, Call, Code, Health, Reflection, RpcServer, UnaryHandler
from fairlead.telemetry import CallMetrics, Metrics, get_log

if TYPE_CHECKING:
    from fairlead.authorization.long_calls import LongCalls
    from fairlead.frontend.gateway.admission import CallGate

# Each module defines some of METHODS and OPERATOR_METHODS (handlers by name), NOTES (missing parts by method name) and
# DIFFERENCES (sentences on differences from Temporal's server).
TOPICS: tuple[ModuleType, ...] = (
    standalone_activities,
    standalone_activity_lists,
    batch_jobs,
    compute,
    deployments,
    system,
    namespaces,
    operator,
    clusters,
    workflows,
    tasks,
    time_skipping,
    visibility,
    task_queues,
    workers,
    schedules,
    nexus,
    standalone_nexus_lists,
    standalone_nexus,
    workflow_rules,
)

_WORKFLOW_API: ServiceDescriptor = workflow_api.DESCRIPTOR.services_by_name["WorkflowService"]
_OPERATOR_API: ServiceDescriptor = operator_api.DESCRIPTOR.services_by_name["OperatorService"]
WORKFLOW_SERVICE = _WORKFLOW_API.full_name
OPERATOR_SERVICE = _OPERATOR_API.full_name
SERVICES = (_WORKFLOW_API, _OPERATOR_API)

_log = get_log("frontend")


class TopicsDisagree(GiveUp):
    """Two topics have a handler for the same method, or a handler's method is not in the API."""


def method_names(service: str) -> list[str]:
    """All methods of a service, in the order of the API."""
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
            raise TopicsDisagree(
                f"{topic.__name__}.{table}: {', '.join(wrong)} has another handler or is not in {service}"
            )
        found.update(methods)
    return found


def answerers(frontend: Frontend, metrics: Metrics) -> dict[str, UnaryHandler]:
    """The handler of each method by its path, for every transport: gRPC and HTTP calls run through the same ones."""
    found: dict[str, UnaryHandler] = {}
    long_calls = _long_calls(frontend)
    for api in SERVICES:
        implemented = handlers(api.full_name)
        # Names as in Temporal's dashboards: operator methods have a prefix.
        prefix = "" if api is _WORKFLOW_API else "Operator"
        for method in api.methods:
            handler = implemented.get(method.name, _unimplemented)
            if handler is not _unimplemented:
                handler = _admitted(method, handler)
            if frontend.observer is not None and handler is not _unimplemented:
                handler = _observed(method.name, handler, frontend.observer)
            calls = metrics.calls("frontend", prefix + method.name) if handler is not _unimplemented else _UNCOUNTED
            found[f"/{api.full_name}/{method.name}"] = _answerer(method, handler, frontend, calls, long_calls)
    return found


def add_services(server: RpcServer, table: Mapping[str, UnaryHandler], *, has_reflection: bool = True) -> Health:
    """Register the handlers of both services with the server, and add health and reflection.

    Reflection answers every caller: it is left out with authorization.
    """
    for path, handler in table.items():
        server.add(path, handler)
    health = Health([WORKFLOW_SERVICE, OPERATOR_SERVICE])
    health.add_to(server)
    if has_reflection:
        Reflection([WORKFLOW_SERVICE, OPERATOR_SERVICE, HEALTH_SERVICE]).add_to(server)
    return health


# Calls of unknown methods share one metric, so that clients can't create metric series.
_UNCOUNTED = CallMetrics("frontend", "unimplemented")


async def _unimplemented(_: Frontend, __: object, call: Call) -> bytes:
    raise Unimplemented(f"method {call.path.rpartition('/')[2]} not implemented")


def _observed(name: str, handler: Handler, observer: CallObserver) -> Handler:
    async def handle(frontend: Frontend, request: Any, call: Call) -> Message | bytes:
        with observer.during(name, request):
            return await handler(frontend, request, call)

    return handle


def _admitted(method: MethodDescriptor, handler: Handler) -> Handler:
    """Count a call against its quotas; on a busy host, a call also waits for its namespace's turn.

    A poll of a worker has no turn: it costs little until a task comes, and the task has had its turn.
    """
    cost = cost_of(method.name)
    is_poll = method.name in POLLS
    has_namespace = "namespace" in method.input_type.fields_by_name
    can_wait = "wait_new_event" in method.input_type.fields_by_name

    async def handle(frontend: Frontend, request: Any, call: Call) -> Message | bytes:
        namespace = request.namespace if has_namespace else ""
        if cost.is_long:
            # A read of a history that does not wait is as short as other reads.
            may_wait = not can_wait or request.wait_new_event
            priority = HISTORY_WAIT if can_wait and may_wait else None
            frontend.quotas.check(cost, namespace, priority=priority, caller=call.metadata)
            with frontend.quotas.open(cost, namespace):
                if is_poll:
                    return await handler(frontend, request, call)
                run = partial(handler, frontend, request, call)
                return await frontend.admission.answer(namespace, run, may_wait=may_wait)
        frontend.quotas.check(cost, namespace, caller=call.metadata)
        admission = frontend.admission
        number = admission.try_begin(namespace) or await admission.begin(namespace)
        try:
            return await handler(frontend, request, call)
        finally:
            admission.end(number)

    return handle


def _answerer(
    method: MethodDescriptor,
    handler: Handler,
    frontend: Frontend,
    calls: CallMetrics,
    long_calls: "LongCalls | None",
) -> UnaryHandler:
    """Wrap a handler for the transports.

    Every call runs through the wrapper, so this function does all setup once per method.
    """
    parse = GetMessageClass(method.input_type).FromString
    now_s = time.perf_counter
    name = method.name
    has_namespace = "namespace" in method.input_type.fields_by_name
    is_read = name in READS or not has_namespace or method.containing_service is not _WORKFLOW_API
    redirection = None if is_read or handler is _unimplemented else frontend.redirection
    gate = _call_gate(frontend, method)
    watched = long_calls if cost_of(name).is_long else None

    async def answer(data: bytes, call: Call) -> bytes:
        began_s = now_s()
        try:
            claims = None if gate is None else await gate.identify(call)
            try:
                request: Any = parse(data)
            except DecodeError as error:
                raise _malformed(error) from None
            if gate is not None:
                await gate.check(call, claims, request)
            if redirection is None:
                answering = handler(frontend, request, call)
            else:
                answering = redirection.answer(name, request, data, call, partial(handler, frontend, request, call))
            if watched is None or gate is None or claims is None:
                response = await answering
            else:
                namespace = request.namespace if has_namespace else ""
                response = await watched.wait(call, claims, gate.access, namespace, answering)
        except FairleadError as error:
            status = status_of(error)
            calls.failed(status.code.name, now_s() - began_s)
            if status.code is Code.INTERNAL:
                _log.error("request failed", method=method.name, peer=call.peer, exc_info=error)
            raise status from None
        except TimeoutError:
            status = status_of(DeadlineExceeded("context deadline exceeded"))
            calls.failed(status.code.name, now_s() - began_s)
            raise status from None
        except Exception:
            calls.failed(Code.INTERNAL.name, now_s() - began_s)
            raise
        calls.answered(now_s() - began_s)
        return response if type(response) is bytes else response.SerializeToString()  # type: ignore[union-attr]

    return answer


def _call_gate(frontend: Frontend, method: MethodDescriptor) -> "CallGate | None":
    if frontend.gate is None:
        return None
    # Imported late: a server without authorization doesn't need it.
    from fairlead.frontend.gateway.admission import CallGate  # noqa: PLC0415

    return CallGate(frontend, frontend.gate, method)


def _long_calls(frontend: Frontend) -> "LongCalls | None":
    if frontend.gate is None:
        return None
    from fairlead.authorization.long_calls import LongCalls  # noqa: PLC0415 - see above

    return LongCalls(frontend.gate)


def _malformed(error: DecodeError) -> InvalidArgument:
    return InvalidArgument(f"grpc: error unmarshalling request: {error}")
