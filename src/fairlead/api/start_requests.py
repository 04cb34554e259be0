"""Defaults of a request to start a workflow."""

from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest

from fairlead.api.limits import Limits
from fairlead.api.retry import fill_retry_policy
from fairlead.api.times import from_duration, shorter, to_duration


def run_timeout_ns(run_ns: int, execution_ns: int) -> int:
    """The run timeout, at most the execution timeout; 0 means no timeout."""
    return shorter(run_ns, execution_ns)


def task_timeout_ns(task_ns: int, run_ns: int, limits: Limits) -> int:
    """The workflow task timeout, or its default; at most the limit, and at most the run timeout."""
    chosen_ns = min(task_ns or limits.workflow_task_timeout_default_ns, limits.workflow_task_timeout_max_ns)
    return shorter(chosen_ns, run_ns)


def complete_request(request: StartWorkflowExecutionRequest, limits: Limits) -> None:
    """Fill in missing timeouts and fields of the retry policy, as Temporal's frontend does."""
    if request.HasField("retry_policy"):
        fill_retry_policy(request.retry_policy)
    run_ns = from_duration(request.workflow_run_timeout)
    new_run_ns = run_timeout_ns(run_ns, from_duration(request.workflow_execution_timeout))
    if new_run_ns != run_ns:
        request.workflow_run_timeout.CopyFrom(to_duration(new_run_ns))
    task_ns = from_duration(request.workflow_task_timeout)
    new_task_ns = task_timeout_ns(task_ns, new_run_ns, limits)
    if new_task_ns != task_ns:
        request.workflow_task_timeout.CopyFrom(to_duration(new_task_ns))
