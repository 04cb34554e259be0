"""The step that starts a run: for a client, for a parent, or as the next run of a chain."""

from dataclasses import dataclass

from temporalio.api.common.v1 import Payloads, TimeSkippingStatePropagation, WorkflowExecution
from temporalio.api.enums.v1 import ContinueAsNewInitiator, ContinueAsNewVersioningBehavior, TaskQueueKind
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.api.workflow.v1 import ResetPointInfo
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest

from fairlead.api import cron
from fairlead.api.times import MILLISECOND_NS, from_duration, set_duration, to_timestamp
from fairlead.api.worker_versions import Version, in_new_form
from fairlead.history.events.field_copies import copy_set
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import schedule_workflow_task
from fairlead.history.state.run import Parent
from fairlead.history.state.tasks import ExecutionTimeout, FastForwardEnd, RunTimeout, WorkflowBackoff

_NORMAL = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
# Fields that the first event copies from the request if they are set.
_PASSED_ON = (
    "input",
    "retry_policy",
    "memo",
    "search_attributes",
    "header",
    "workflow_execution_timeout",
    "workflow_run_timeout",
    "workflow_task_timeout",
    "priority",
    "time_skipping_config",
)


@dataclass(frozen=True, slots=True)
class Continuation:
    """The link of a run to the previous run of its chain."""

    previous_run_id: str
    first_run_id: str
    initiator: ContinueAsNewInitiator.ValueType
    attempt: int = 1
    failure: Failure | None = None
    last_completion_result: Payloads | None = None
    backoff_ns: int = 0
    expires_at_ns: int = 0
    reset_points: tuple[ResetPointInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Inherited:
    """The version with which a run begins: the version of its parent, or of the previous run.

    `pinned` applies until the run's first workflow task is completed. `auto_upgraded` is set for a run that follows the
    current version. `declined` is a newer version to which the previous run did not move. `initial_behavior` is the
    number of the ContinueAsNewVersioningBehavior that the previous run requested.
    """

    pinned: Version | None = None
    auto_upgraded: Version | None = None
    declined: Version | None = None
    revision: int = 0
    initial_behavior: int = 0


@dataclass(slots=True)
class StartRun:
    """The input of a run's first step. `complete_request` has filled in the defaults of `request`."""

    request: StartWorkflowExecutionRequest
    parent: Parent | None = None
    root: WorkflowExecution | None = None
    continuation: Continuation | None = None
    eager_execution_accepted: bool = False
    # False for a child: its first workflow task waits until the parent has recorded the start.
    schedules_task: bool = True
    inherited: Inherited | None = None
    skipped: TimeSkippingStatePropagation | None = None


def start_workflow(transaction: Transaction, start: StartRun) -> HistoryEvent:
    """Write the run's first event, add its timeouts, and schedule the first workflow task or its backoff."""
    request = start.request
    backoff_ns = _first_backoff_ns(start, transaction.now_ns)
    event = transaction.add(
        _started_attributes(transaction, start, backoff_ns),
        user_metadata=request.user_metadata if request.HasField("user_metadata") else None,
        links=request.links,
    )
    origin = transaction.state.started
    run_id = transaction.state.identity.run_id
    if origin.run_expires_at_ns:
        transaction.add_task(RunTimeout(transaction.version, origin.run_expires_at_ns))
    if origin.expires_at_ns and origin.first_run_id == run_id:
        transaction.add_task(ExecutionTimeout(transaction.version, origin.expires_at_ns, run_id))
    transaction.show()
    clock = transaction.state.time_skipping
    if clock is not None and clock.is_enabled and clock.target_ns:
        transaction.add_task(FastForwardEnd(transaction.version, clock.target_ns))
    if start.schedules_task:
        schedule_first_workflow_task(transaction, push=not start.eager_execution_accepted)
    return event


def schedule_first_workflow_task(transaction: Transaction, *, push: bool = True) -> None:
    """Schedule the first workflow task now or after the backoff; do nothing if it was scheduled before."""
    state = transaction.state
    if state.had_task or not state.is_open:
        return
    if state.started.first_backoff_ns:
        transaction.add_task(WorkflowBackoff(transaction.version, state.started.execution_ns))
    else:
        schedule_workflow_task(transaction, push=push)


def end_backoff(transaction: Transaction) -> bool:
    """Schedule the first workflow task after the backoff; return False if it was scheduled, or the run is closed."""
    if transaction.state.had_task or not transaction.state.is_open:
        return False
    schedule_workflow_task(transaction)
    return True


def _first_backoff_ns(start: StartRun, now_ns: int) -> int:
    if start.continuation is not None:
        return start.continuation.backoff_ns
    if start.request.cron_schedule:
        return cron.backoff_ns(start.request.cron_schedule, scheduled_ns=now_ns, now_ns=now_ns) or 0
    return from_duration(start.request.workflow_start_delay) if start.request.HasField("workflow_start_delay") else 0


def _started_attributes(
    transaction: Transaction, start: StartRun, backoff_ns: int
) -> WorkflowExecutionStartedEventAttributes:
    request, run_id = start.request, transaction.state.identity.run_id
    attributes = WorkflowExecutionStartedEventAttributes(
        workflow_id=transaction.state.identity.workflow_id,
        original_execution_run_id=run_id,
        first_execution_run_id=run_id,
        identity=request.identity,
        attempt=1,
        eager_execution_accepted=start.eager_execution_accepted,
    )
    attributes.workflow_type.CopyFrom(request.workflow_type)
    queue = attributes.task_queue
    queue.name = request.task_queue.name
    queue.kind = _NORMAL
    set_duration(attributes.first_workflow_task_backoff, backoff_ns)
    copy_set(request, attributes, _PASSED_ON)
    if request.completion_callbacks:
        attributes.completion_callbacks.extend(request.completion_callbacks)
    if request.HasField("versioning_override"):
        attributes.versioning_override.CopyFrom(in_new_form(request.versioning_override))
    if request.cron_schedule:
        attributes.cron_schedule = request.cron_schedule
        attributes.initiator = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_CRON_SCHEDULE
    _add_expiry(attributes, start, transaction.now_ns, backoff_ns)
    _add_family(attributes, start)
    if start.inherited is not None:
        _add_versions(attributes, start.inherited)
    if start.skipped is not None:
        attributes.time_skipping_state_propagation.CopyFrom(start.skipped)
    if start.continuation is not None:
        _add_continuation(attributes, start.continuation)
    else:
        copy_set(request, attributes, ("last_completion_result", "continued_failure"))
    return attributes


def _add_expiry(
    attributes: WorkflowExecutionStartedEventAttributes, start: StartRun, now_ns: int, backoff_ns: int
) -> None:
    execution_ns = from_duration(start.request.workflow_execution_timeout)
    if start.continuation is not None:
        expires_at_ns = start.continuation.expires_at_ns
    else:
        expires_at_ns = now_ns + backoff_ns + execution_ns if execution_ns else 0
    if expires_at_ns:
        rounded_ns = expires_at_ns - expires_at_ns % MILLISECOND_NS
        attributes.workflow_execution_expiration_time.CopyFrom(to_timestamp(rounded_ns))


def _add_family(attributes: WorkflowExecutionStartedEventAttributes, start: StartRun) -> None:
    parent = start.parent
    if parent is not None:
        attributes.parent_workflow_namespace = parent.namespace
        attributes.parent_workflow_namespace_id = parent.namespace_id
        attributes.parent_workflow_execution.workflow_id = parent.workflow_id
        attributes.parent_workflow_execution.run_id = parent.run_id
        attributes.parent_initiated_event_id = parent.initiated_event_id
        attributes.parent_initiated_event_version = parent.initiated_version
    if start.root is not None:
        attributes.root_workflow_execution.CopyFrom(start.root)


def _add_versions(attributes: WorkflowExecutionStartedEventAttributes, inherited: Inherited) -> None:
    if inherited.pinned is not None:
        attributes.inherited_pinned_version.CopyFrom(inherited.pinned.message())
    if inherited.auto_upgraded is not None:
        info = attributes.inherited_auto_upgrade_info
        info.source_deployment_version.CopyFrom(inherited.auto_upgraded.message())
        info.source_deployment_revision_number = inherited.revision
        info.continue_as_new_initial_versioning_behavior = ContinueAsNewVersioningBehavior.ValueType(
            inherited.initial_behavior
        )
    if inherited.declined is not None:
        attributes.declined_target_version_upgrade.deployment_version.CopyFrom(inherited.declined.message())
        attributes.declined_target_version_upgrade.revision_number = inherited.revision


def _add_continuation(attributes: WorkflowExecutionStartedEventAttributes, continuation: Continuation) -> None:
    attributes.continued_execution_run_id = continuation.previous_run_id
    attributes.first_execution_run_id = continuation.first_run_id
    attributes.initiator = continuation.initiator
    attributes.attempt = continuation.attempt
    if continuation.failure is not None:
        attributes.continued_failure.CopyFrom(continuation.failure)
    if continuation.last_completion_result is not None:
        attributes.last_completion_result.CopyFrom(continuation.last_completion_result)
    if continuation.reset_points:
        attributes.prev_auto_reset_points.points.extend(continuation.reset_points)
