"""Configuration of task queues: rate limits and fairness weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.api.errors import InvalidArgument
from fairlead.api.times import to_timestamp
from fairlead.core.partitions import (
    RESERVED_PREFIX,
    TaskQueueId,
    TaskType,
)
from fairlead.frontend.validation.common import (
    check_length,
)

if TYPE_CHECKING:
    from fairlead.frontend.gateway.context import Frontend
    from fairlead.rpc import Call


from typing import TYPE_CHECKING

from temporalio.api.taskqueue.v1 import (
    ConfigMetadata,
    RateLimit,
    RateLimitConfig,
    TaskQueueConfig,
)
from temporalio.api.workflowservice.v1 import (
    UpdateTaskQueueConfigRequest,
    UpdateTaskQueueConfigResponse,
)

from fairlead.api.times import MILLISECOND_NS
from fairlead.frontend.validation.common import (
    FAIRNESS_KEY_BYTES_MAX,
    is_longer,
)
from fairlead.matching.messages import RateChange
from fairlead.settings.dynamic.limits import MAX_ID_LENGTH
from fairlead.settings.dynamic.matching import MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.frontend.gateway.context import Frontend
    from fairlead.matching.messages import DispatchRules, RateRule
    from fairlead.rpc import Call


async def update_config(
    frontend: Frontend, request: UpdateTaskQueueConfigRequest, _: Call
) -> UpdateTaskQueueConfigResponse:
    """Change the rate limits and fairness weights of a task queue."""
    namespace = await frontend.namespaces.find(request.namespace)
    limit = frontend.settings.get(MAX_ID_LENGTH)
    queue_rate = _rate_change(
        request, "update_queue_rate_limit", "UpdateQueueRateLimit", "Setting rate limit", reason_bytes_max=limit
    )
    key_rate = _rate_change(
        request,
        "update_fairness_key_rate_limit_default",
        "UpdateFairnessKeyRateLimitDefault",
        "Setting fairness key rate limit",
        reason_bytes_max=limit,
    )
    if is_longer(request.identity, limit):
        raise InvalidArgument(f"Identity field too long (max {limit} characters).")
    _check_weights(frontend, request)
    name = request.task_queue
    if not name:
        raise InvalidArgument("missing task queue name")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidArgument(f"task queue family name cannot have prefix {RESERVED_PREFIX} {name}")
    check_length(frontend, name, "taskQueue length exceeds limit")
    if not request.task_queue_type:
        raise InvalidArgument("Task queue type is not set.")
    rules = await frontend.operator.configure(
        TaskQueueId(namespace.id, name, task_type_of(request.task_queue_type)),
        identity=request.identity,
        queue_rate=queue_rate,
        key_rate=key_rate,
        set_weights=request.set_fairness_weight_overrides,
        unset_weights=request.unset_fairness_weight_overrides,
    )
    return UpdateTaskQueueConfigResponse(config=shown_config(rules))


def shown_config(rules: DispatchRules) -> TaskQueueConfig:
    """The configuration as in Temporal's message."""
    config = TaskQueueConfig(fairness_weight_overrides=rules.weights)
    if rules.queue_rate is not None:
        config.queue_rate_limit.CopyFrom(_rate_limit(rules.queue_rate))
    if rules.key_rate is not None:
        config.fairness_keys_rate_limit_default.CopyFrom(_rate_limit(rules.key_rate))
    return config


def _rate_limit(rule: RateRule) -> RateLimitConfig:
    # Milliseconds: the precision of Temporal's server, and of a float of this size.
    updated_ns = round(rule.updated_s * 1000) * MILLISECOND_NS
    return RateLimitConfig(
        rate_limit=None if rule.rate_per_s is None else RateLimit(requests_per_second=rule.rate_per_s),
        metadata=ConfigMetadata(
            reason=rule.reason, update_identity=rule.identity, update_time=to_timestamp(updated_ns)
        ),
    )


def _rate_change(
    request: UpdateTaskQueueConfigRequest, field: str, noun: str, action: str, *, reason_bytes_max: int
) -> RateChange | None:
    if not request.HasField(field):  # type: ignore[arg-type]
        return None
    update: UpdateTaskQueueConfigRequest.RateLimitUpdate = getattr(request, field)
    rate_per_s = None
    if update.HasField("rate_limit"):
        if int(request.task_queue_type) == TaskType.WORKFLOW:
            raise InvalidArgument(f"{action} on workflow task queues is not allowed.")
        rate_per_s = update.rate_limit.requests_per_second
        # Rejects negative numbers and NaN.
        if not rate_per_s >= 0:
            raise InvalidArgument(f"RequestsPerSecond for {noun} rate limit must be non-negative.")
    if is_longer(update.reason, reason_bytes_max):
        raise InvalidArgument(f"{noun}.Reason field too long (max {reason_bytes_max} characters).")
    return RateChange(rate_per_s, update.reason)


def _check_weights(frontend: Frontend, request: UpdateTaskQueueConfigRequest) -> None:
    weights, unset = request.set_fairness_weight_overrides, request.unset_fairness_weight_overrides
    count, count_max = len(weights) + len(unset), frontend.settings.get(MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES)
    if count > count_max:
        raise InvalidArgument(f"too many fairness weight overrides in request: got {count}, maximum {count_max}")
    keys: Sequence[str] = [*weights, *unset]
    for key in keys:
        if not key:
            raise InvalidArgument("fairness weight override key must not be empty")
        if is_longer(key, FAIRNESS_KEY_BYTES_MAX):
            raise InvalidArgument("fairness key length exceeds limit")
    for key, weight in weights.items():
        if not weight > 0:
            raise InvalidArgument(f'invalid fairness weight weight for key "{key}": must be greater than zero')
        if key in unset:
            raise InvalidArgument(f'fairness weight override key "{key}" present in both set and unset lists')


def task_type_of(number: int) -> TaskType:
    """The type of a task queue in a request; workflow if it is not given."""
    try:
        return TaskType(number or TaskType.WORKFLOW)
    except ValueError:
        raise InvalidArgument(f"Unknown task queue type: {number}.") from None
