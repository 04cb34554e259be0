"""Time skipping of single workflows: checks of the config, and polls for the end of a fast-forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.api.errors import InvalidArgument, Unimplemented
from fairlead.api.times import from_duration
from fairlead.frontend.gateway.deadlines import HISTORY_WAIT_S_MAX, wait_s
from fairlead.frontend.validation.common import check_execution, check_length
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import TIME_SKIPPING_ENABLED, TIME_SKIPPING_SKIPS_MAX

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api
    from temporalio.api.common.v1 import TimeSkippingConfig

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call


def check_time_skipping(frontend: Frontend, namespace: Namespace, config: TimeSkippingConfig) -> None:
    """Reject an invalid config, or any config if the feature is off; fill in the maximum number of skips."""
    _check_enabled(frontend, namespace)
    has_fast_forward = config.HasField("fast_forward_config")
    if has_fast_forward and not config.enabled:
        raise InvalidArgument("time_skipping_config: cannot set fast_forward when enabled is false")
    if has_fast_forward:
        fast_forward = config.fast_forward_config
        _check_id(frontend, fast_forward.id)
        if from_duration(fast_forward.duration) <= 0:
            raise InvalidArgument("Time skipping config invalid: fast_forward duration must be positive")
    if config.max_session_skip_count <= 0:
        config.max_session_skip_count = frontend.settings.get(TIME_SKIPPING_SKIPS_MAX, Scope(namespace.id))


async def poll(frontend: Frontend, request: api.PollWorkflowExecutionTimeSkippingRequest, call: Call) -> bytes:
    """Wait for the end of a fast-forward."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "workflow_execution")
    _check_enabled(frontend, namespace)
    _check_id(frontend, request.fast_forward_id)
    return await frontend.waiting_history.call(
        "PollWorkflowExecutionTimeSkipping",
        namespace.id,
        request.workflow_execution.workflow_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


def _check_enabled(frontend: Frontend, namespace: Namespace) -> None:
    if not frontend.settings.get(TIME_SKIPPING_ENABLED, Scope(namespace.id)):
        raise Unimplemented("The Time-Skipping feature is not enabled for namespace.")


def _check_id(frontend: Frontend, fast_forward_id: str) -> None:
    if not fast_forward_id:
        raise InvalidArgument("Time skipping config invalid: fast_forward_id must be set")
    check_length(frontend, fast_forward_id, "Time skipping config invalid: fast_forward_id exceeds length limit.")


DIFFERENCES = (
    (
        "DescribeWorkflowExecution shows the fast-forward and the number of skips of a workflow that skips time; "
        "Temporal's server leaves them out. The event of a skip has the real wall clock time, as the API describes "
        "it; in Temporal's server, it has the workflow's own time from the second skip on."
    ),
    "The id of a fast-forward is at most as long as other ids (limit.maxIDLength); Temporal's server has no limit.",
)

METHODS: dict[str, Handler] = {"PollWorkflowExecutionTimeSkipping": poll}
