"""Offers requests to the workers of a Nexus endpoint."""

from collections.abc import Callable

from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import Endpoint

from fairlead.api.errors import ApiError
from fairlead.api.namespaces import Namespace
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.messages.matching_tasks import MatchedEntityTask
from fairlead.history.shard.context import OperationContext, Services
from fairlead.history.shard.matching_tasks import new_task
from fairlead.history.state.nexus_calls import CALL_NS_MAX
from fairlead.history.state.nexus_failures import handler_failure
from fairlead.telemetry import get_log

# Minimum nanoseconds that a worker has for a request: it is offered only until this time before its timeout.
_WORK_NS_MIN = SECOND_NS // 2
# Maximum number of requests of one shard that wait for workers at the same time.
OFFERS_MAX = 5_000

_log = get_log("history.nexus")


async def dispatch(
    context: OperationContext, *, endpoint_id: str, endpoint: str, task: Callable[[str, int], MatchedEntityTask]
) -> Failure | None:
    """Offer a request to the workers of an endpoint, in the background; return a failure if it can't have workers.

    `task` makes the request from the handler's namespace id and the time. The offer is only in memory: the caller sets
    a durable timeout, and retries the request after it.
    """
    services, shard = context.services, context.shard
    found = await Endpoints(services.store).find(endpoint_id, name=endpoint)
    handler = None if found is None else await _handler_namespace(services, found)
    if found is None or handler is None:
        return _nobody(found)
    if len(shard.background) >= OFFERS_MAX:
        # Too many requests are waiting for workers: this request is retried after its timeout.
        return None
    now_ns = services.clock_ns()
    task_queue = TaskQueueId(handler.id, found.spec.target.worker.task_queue, TaskType.NEXUS)
    shard.background.start(_offer(services, task_queue, task(handler.id, now_ns), now_ns))
    return None


async def _handler_namespace(services: Services, endpoint: Endpoint) -> Namespace | None:
    """The namespace of the endpoint's workers; None if it does not exist, or the endpoint's target is not a worker."""
    if not endpoint.spec.target.HasField("worker"):
        return None
    try:
        return await services.namespaces.find(endpoint.spec.target.worker.namespace)
    except ApiError:
        return None


def _nobody(endpoint: Endpoint | None) -> Failure:
    if endpoint is None:
        return handler_failure("NOT_FOUND", "endpoint not registered")
    if endpoint.spec.target.HasField("worker"):
        return handler_failure("NOT_FOUND", f"Namespace {endpoint.spec.target.worker.namespace} is not found.")
    return handler_failure(
        "NOT_IMPLEMENTED", "this server does not call external addresses: use an endpoint whose target is a worker"
    )


async def _offer(services: Services, task_queue: TaskQueueId, matched: MatchedEntityTask, now_ns: int) -> None:
    try:
        await services.matching.offer(
            task_queue, new_task(matched, None, now_ns), wait_s=(CALL_NS_MAX - _WORK_NS_MIN) / SECOND_NS
        )
    except FairleadError as failure:
        _log.warning("nexus request not offered to workers", task_queue=task_queue.name, reason=str(failure))
