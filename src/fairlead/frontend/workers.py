"""Workers that say how they are, and whoever wants to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import temporalio.api.workflowservice.v1 as api
from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerInfo, WorkerListInfo

from fairlead.frontend.worker_query import parse_query
from fairlead.frontend.worker_registry import after
from fairlead.history.refusals import invalid, not_found, unimplemented

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.rpc import Call

PAGE_WORKERS_MAX = 1000
PAGE_TOKEN_BYTES_MAX = 8192
_LISTED = (
    "worker_instance_key", "worker_identity", "task_queue", "sdk_name", "sdk_version", "status",
)  # fmt: skip


class PageToken(msgspec.Struct, frozen=True, rename={"last": "l"}, forbid_unknown_fields=True):
    """After which worker the next page begins."""

    last: str


async def record_heartbeat(frontend: Frontend, request: api.RecordWorkerHeartbeatRequest, _: Call) -> Message:
    """Take note of workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    frontend.workers.record(namespace.id, request.worker_heartbeat, now_s=frontend.clock())
    return api.RecordWorkerHeartbeatResponse()


async def list_workers(frontend: Frontend, request: api.ListWorkersRequest, _: Call) -> Message:
    """A page of the workers that a query is about."""
    namespace = await frontend.namespaces.find(request.namespace)
    found = frontend.workers.list(namespace.id, parse_query(request.query), now_s=frontend.clock())
    if request.next_page_token:
        found = after(found, _decoded(request.next_page_token).last)
    size = request.page_size if 0 < request.page_size < PAGE_WORKERS_MAX else PAGE_WORKERS_MAX
    page = found[:size]
    response = api.ListWorkersResponse(
        workers_info=[WorkerInfo(worker_heartbeat=heartbeat) for heartbeat in page],
        workers=[_listed(heartbeat) for heartbeat in page],
    )
    if len(found) > size:
        response.next_page_token = msgspec.json.encode(PageToken(page[-1].worker_instance_key))
    return response


async def count_workers(frontend: Frontend, request: api.CountWorkersRequest, _: Call) -> Message:
    """How many workers a query is about."""
    namespace = await frontend.namespaces.find(request.namespace)
    found = frontend.workers.list(namespace.id, parse_query(request.query), now_s=frontend.clock())
    return api.CountWorkersResponse(count=len(found))


async def describe_worker(frontend: Frontend, request: api.DescribeWorkerRequest, _: Call) -> Message:
    """What a worker said last."""
    namespace = await frontend.namespaces.find(request.namespace)
    found = frontend.workers.find(namespace.id, request.worker_instance_key, now_s=frontend.clock())
    if found is None:
        raise not_found(f"Worker {request.worker_instance_key} not found")
    return api.DescribeWorkerResponse(worker_info=WorkerInfo(worker_heartbeat=found))


async def shutdown_worker(frontend: Frontend, request: api.ShutdownWorkerRequest, _: Call) -> Message:
    """A worker takes no more tasks: its polls are answered, and its own workflow tasks go to others at once."""
    namespace = await frontend.namespaces.find(request.namespace)
    for key in {request.worker_instance_key, request.worker_heartbeat.worker_instance_key} - {""}:
        frontend.workers.forget(namespace.id, key)
        frontend.open_polls.answer((namespace.id, key))
    if request.sticky_task_queue:
        await frontend.worker_gone(namespace.id, request.sticky_task_queue)
    return api.ShutdownWorkerResponse()


async def fetch_config(_: Frontend, __: api.FetchWorkerConfigRequest, ___: Call) -> Message:
    """Workers keep their configuration to themselves."""
    raise unimplemented("FetchWorkerConfig command is not enabled.")


async def update_config(_: Frontend, __: api.UpdateWorkerConfigRequest, ___: Call) -> Message:
    """Workers keep their configuration to themselves."""
    raise unimplemented("UpdateWorkerConfig command is not enabled.")


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


def _decoded(token: bytes) -> PageToken:
    if len(token) > PAGE_TOKEN_BYTES_MAX:
        raise invalid("invalid next_page_token")
    try:
        return msgspec.json.decode(token, type=PageToken)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("invalid next_page_token") from None


METHODS: dict[str, Handler] = {
    "RecordWorkerHeartbeat": record_heartbeat,
    "ListWorkers": list_workers,
    "CountWorkers": count_workers,
    "DescribeWorker": describe_worker,
    "ShutdownWorker": shutdown_worker,
    "FetchWorkerConfig": fetch_config,
    "UpdateWorkerConfig": update_config,
}
