"""Handlers for worker heartbeats, and for lists and descriptions of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import temporalio.api.workflowservice.v1 as api
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerInfo, WorkerListInfo

from fairlead.api.errors import InvalidArgument, NotFound, Unimplemented
from fairlead.frontend.handlers.worker_registry import after

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.frontend.validation.worker_query import Predicate
    from fairlead.rpc import Call

PAGE_WORKERS_MAX = 1000
PAGE_TOKEN_BYTES_MAX = 8192
_LISTED = (
    "worker_instance_key", "worker_identity", "task_queue", "sdk_name", "sdk_version", "status",
)  # fmt: skip


class WorkerPageToken(msgspec.Struct, frozen=True, rename={"last": "l"}, forbid_unknown_fields=True):
    """The last worker of a page."""

    last: str


async def record_heartbeat(frontend: Frontend, request: api.RecordWorkerHeartbeatRequest, _: Call) -> Message:
    """Record heartbeats of workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    frontend.workers.record(namespace.id, request.worker_heartbeat, now_s=frontend.clock())
    return api.RecordWorkerHeartbeatResponse()


async def list_workers(frontend: Frontend, request: api.ListWorkersRequest, _: Call) -> Message:
    """List a page of the workers that match a query."""
    namespace = await frontend.namespaces.find(request.namespace)
    found = frontend.workers.list(namespace.id, _parsed(request.query), now_s=frontend.clock())
    if request.next_page_token:
        found = after(found, _decoded(request.next_page_token).last)
    size = request.page_size if 0 < request.page_size < PAGE_WORKERS_MAX else PAGE_WORKERS_MAX
    page = found[:size]
    response = api.ListWorkersResponse(
        workers_info=[WorkerInfo(worker_heartbeat=heartbeat) for heartbeat in page],
        workers=[_listed(heartbeat) for heartbeat in page],
    )
    if len(found) > size:
        response.next_page_token = msgspec.json.encode(WorkerPageToken(page[-1].worker_instance_key))
    return response


async def count_workers(frontend: Frontend, request: api.CountWorkersRequest, _: Call) -> Message:
    """Count the workers that match a query."""
    namespace = await frontend.namespaces.find(request.namespace)
    found = frontend.workers.list(namespace.id, _parsed(request.query), now_s=frontend.clock())
    return api.CountWorkersResponse(count=len(found))


def _parsed(query: str) -> Predicate | None:
    # Importing the module builds the parser: the server does so after its start, see `fairlead.server.warm_up`.
    from fairlead.frontend.validation.worker_query import parse_query  # noqa: PLC0415

    return parse_query(query)


async def describe_worker(frontend: Frontend, request: api.DescribeWorkerRequest, _: Call) -> Message:
    """Describe a worker by its last heartbeat."""
    namespace = await frontend.namespaces.find(request.namespace)
    found = frontend.workers.find(namespace.id, request.worker_instance_key, now_s=frontend.clock())
    if found is None:
        raise NotFound(f"Worker {request.worker_instance_key} not found")
    return api.DescribeWorkerResponse(worker_info=WorkerInfo(worker_heartbeat=found))


async def shutdown_worker(frontend: Frontend, request: api.ShutdownWorkerRequest, _: Call) -> Message:
    """Shut a worker down: its open polls end, and tasks of its sticky task queue go to other workers at once."""
    namespace = await frontend.namespaces.find(request.namespace)
    for key in {request.worker_instance_key, request.worker_heartbeat.worker_instance_key} - {""}:
        frontend.workers.forget(namespace.id, key)
        frontend.open_polls.answer((namespace.id, key))
    if request.sticky_task_queue:
        await frontend.worker_gone(namespace.id, request.sticky_task_queue)
    return api.ShutdownWorkerResponse()


async def fetch_config(_: Frontend, __: api.FetchWorkerConfigRequest, ___: Call) -> Message:
    """Always an error: the server does not manage workers' configurations."""
    raise Unimplemented("FetchWorkerConfig command is not enabled.")


async def update_config(_: Frontend, __: api.UpdateWorkerConfigRequest, ___: Call) -> Message:
    """Always an error: the server does not manage workers' configurations."""
    raise Unimplemented("UpdateWorkerConfig command is not enabled.")


def _listed(heartbeat: WorkerHeartbeat) -> WorkerListInfo:
    listed = WorkerListInfo(
        host_name=heartbeat.host_info.host_name,
        worker_grouping_key=heartbeat.host_info.worker_grouping_key,
        process_id=heartbeat.host_info.process_id,
        plugins=heartbeat.plugins,
        drivers=heartbeat.drivers,
        **{name: getattr(heartbeat, name) for name in _LISTED},
    )
    if heartbeat.HasField("deployment_version"):
        listed.deployment_version.CopyFrom(heartbeat.deployment_version)
    if heartbeat.HasField("start_time"):
        listed.start_time.CopyFrom(heartbeat.start_time)
    return listed


def _decoded(token: bytes) -> WorkerPageToken:
    if len(token) > PAGE_TOKEN_BYTES_MAX:
        raise InvalidArgument("invalid next_page_token")
    try:
        return msgspec.json.decode(token, type=WorkerPageToken)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidArgument("invalid next_page_token") from None


DIFFERENCES = (
    (
        "A worker is listed until it shuts down, or has sent no heartbeat for five minutes; Temporal's server lists "
        "it for a day."
    ),
    "A malformed query of ListWorkers or CountWorkers is rejected even if the namespace has no workers.",
)
METHODS: dict[str, Handler] = {
    "RecordWorkerHeartbeat": record_heartbeat,
    "ListWorkers": list_workers,
    "CountWorkers": count_workers,
    "DescribeWorker": describe_worker,
    "ShutdownWorker": shutdown_worker,
    "FetchWorkerConfig": fetch_config,
    "UpdateWorkerConfig": update_config,
}
