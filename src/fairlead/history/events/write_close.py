"""The steps that close a run, and the steps that start the next run of its chain."""

from google.protobuf.message import Message
from temporalio.api.common.v1 import Callback, Payloads, RetryPolicy, WorkflowExecution
from temporalio.api.enums.v1 import ContinueAsNewInitiator, RetryState, TimeoutType
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionCompletedEventAttributes,
    WorkflowExecutionFailedEventAttributes,
    WorkflowExecutionStartedEventAttributes,
    WorkflowExecutionTerminatedEventAttributes,
    WorkflowExecutionTimedOutEventAttributes,
)
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.workflow.v1 import ResetPointInfo, VersioningOverride
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest

from fairlead.api import cron
from fairlead.api.retry import RetryDecision, decide_retry, timeout_failure
from fairlead.api.times import to_duration, to_timestamp
from fairlead.api.worker_versions import Version, pinned_by, pinned_version
from fairlead.history.events.field_copies import copy_set
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_start import Continuation, Inherited, StartRun, start_workflow
from fairlead.history.events.write_time_skipping import inherited_clock
from fairlead.history.events.write_updates import leave_update_callbacks
from fairlead.history.events.write_workflow_tasks import fail_workflow_task
from fairlead.history.state.run import ClosedBy, Origin, RunState
from fairlead.history.state.tasks import CloseRun, DeleteAfterRetention, DeliverCallback

_CRON = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_CRON_SCHEDULE
_RETRY = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_RETRY
_NO_POLICY = RetryDecision(None, RetryState.RETRY_STATE_RETRY_POLICY_NOT_SET)
# Fields that a retry or a cron run takes from the first event of the previous run.
_INHERITED = ("input", "header", "memo", "search_attributes", "retry_policy", "priority", "workflow_run_timeout")


def complete_workflow(
    transaction: Transaction, *, completed_event_id: int, result: Payloads | None, user_metadata: UserMetadata | None
) -> HistoryEvent:
    """Complete the run. If it has a cron schedule, start the next run."""
    backoff_ns = _cron_backoff_ns(transaction)
    new_run_id = transaction.new_id() if backoff_ns is not None else ""
    start = transaction.required_start_event() if backoff_ns is not None else None
    event = close(
        transaction,
        WorkflowExecutionCompletedEventAttributes(
            result=result, workflow_task_completed_event_id=completed_event_id, new_execution_run_id=new_run_id
        ),
        user_metadata=user_metadata,
    )
    if backoff_ns is not None and start is not None:
        _repeat(transaction, start, new_run_id, backoff_ns=backoff_ns, initiator=_CRON, result=result, failure=None)
    return event


def fail_workflow(
    transaction: Transaction, *, completed_event_id: int, failure: Failure, user_metadata: UserMetadata | None
) -> HistoryEvent:
    """Fail the run, and start the next run if the retry policy or else the cron schedule requires one."""
    decision = _retry_decision(transaction, failure)
    initiator, backoff_ns = _RETRY, decision.backoff_ns
    if backoff_ns is None:
        initiator, backoff_ns = _CRON, _cron_backoff_ns(transaction)
    new_run_id = transaction.new_id() if backoff_ns is not None else ""
    start = transaction.required_start_event() if backoff_ns is not None else None
    event = close(
        transaction,
        WorkflowExecutionFailedEventAttributes(
            failure=failure,
            retry_state=decision.state,
            workflow_task_completed_event_id=completed_event_id,
            new_execution_run_id=new_run_id,
        ),
        user_metadata=user_metadata,
    )
    if backoff_ns is not None and start is not None:
        _repeat(
            transaction, start, new_run_id, backoff_ns=backoff_ns, initiator=initiator, result=None, failure=failure
        )
    return event


def time_out_run(transaction: Transaction) -> None:
    """Close the run because of its run timeout or the execution timeout of the chain."""
    state = transaction.state
    state.check_open()
    origin = state.started
    failure = timeout_failure("workflow timeout", TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE)
    decision = RetryDecision(None, RetryState.RETRY_STATE_TIMEOUT)
    initiator, backoff_ns = _RETRY, None
    if not origin.expires_at_ns or transaction.now_ns < origin.expires_at_ns:
        decision = _retry_decision(transaction, failure)
        backoff_ns = decision.backoff_ns
        if backoff_ns is None:
            initiator, backoff_ns = _CRON, _cron_backoff_ns(transaction)
    new_run_id = transaction.new_id() if backoff_ns is not None else ""
    start = transaction.required_start_event() if backoff_ns is not None else None
    _abort_task(transaction)
    close(
        transaction,
        WorkflowExecutionTimedOutEventAttributes(retry_state=decision.state, new_execution_run_id=new_run_id),
    )
    if backoff_ns is not None and start is not None:
        _repeat(
            transaction, start, new_run_id, backoff_ns=backoff_ns, initiator=initiator, result=None, failure=failure
        )


def terminate(transaction: Transaction, *, reason: str, identity: str, details: Payloads | None = None) -> HistoryEvent:
    """Terminate the run."""
    transaction.state.check_open()
    _abort_task(transaction)
    return close(
        transaction, WorkflowExecutionTerminatedEventAttributes(reason=reason, details=details, identity=identity)
    )


def close(transaction: Transaction, attributes: Message, *, user_metadata: UserMetadata | None = None) -> HistoryEvent:
    """Write the last event and add the tasks that follow: notify the parent, apply the parent close policies, begin
    retention.

    If another run of the chain follows, the parent is not notified of this end.
    """
    state = transaction.state
    event = transaction.add(attributes, user_metadata=user_metadata)
    state.live.unwritten_task = None
    state.live.activities.clear()
    state.live.nexus.clear()
    leave_close(transaction)
    transaction.show()
    return event


def leave_close(transaction: Transaction) -> None:
    """Add the tasks that follow from the end of a run: notify the parent and callbacks, handle children, begin
    retention.
    """
    state = transaction.state
    version, event_id = state.last_version, state.close_event_id
    # If the next run of the chain follows, the parent and the callbacks wait for the end of that run.
    is_last = not state.new_run_id and state.closed_by != ClosedBy.RESET
    notifies_parent = state.started.parent is not None and is_last
    children = tuple(state.closed_children)
    if notifies_parent or children or state.live.watchers:
        transaction.add_task(CloseRun(version, event_id, notifies_parent=notifies_parent, children=children))
    if is_last:
        for number in range(len(state.started.completion_callbacks)):
            transaction.add_task(DeliverCallback(version, number, event_id))
    if state.closed_by != ClosedBy.RESET:
        for update_id, record in state.updates.items():
            if record.accepted_event_id and not record.completed_event_id:
                leave_update_callbacks(transaction, update_id, event_id)
    transaction.add_task(DeleteAfterRetention(version, state.closed_ns + transaction.retention_ns))


def begin_next_run(
    transaction: Transaction,
    request: StartWorkflowExecutionRequest,
    run_id: str,
    continuation: Continuation,
    *,
    declined: tuple[Version, int] | None = None,
    initial_behavior: int = 0,
) -> Transaction:
    """Start the next run with the same parent and root, and with the same version if this run is pinned.

    `initial_behavior` is the number of a ContinueAsNewVersioningBehavior; unless it is 0, the next run is not pinned.
    `declined` is the version that the next run would use if it were not pinned.
    """
    origin = transaction.state.started
    root = None
    if origin.parent is not None:
        root = WorkflowExecution(workflow_id=origin.root_workflow_id, run_id=origin.root_run_id)
    # Completion callbacks wait for the last run of the chain.
    request.completion_callbacks.extend(map(Callback.FromString, origin.completion_callbacks))
    new_run = transaction.begin_new_run(run_id)
    override = VersioningOverride.FromString(transaction.state.versioning_override)
    if pinned_by(override) is not None:
        # The later runs of a chain inherit an override only if it pins the run.
        request.versioning_override.CopyFrom(override)
    config, skipped = inherited_clock(transaction.state, by_child=False)
    if config is not None:
        request.time_skipping_config.CopyFrom(config)
    inherited = _inherited(transaction.state, continuation, declined=declined, initial_behavior=initial_behavior)
    start_workflow(
        new_run,
        StartRun(
            request,
            parent=origin.parent,
            root=root,
            continuation=continuation,
            inherited=inherited,
            skipped=skipped,
        ),
    )
    return new_run


def _inherited(
    state: RunState, continuation: Continuation, *, declined: tuple[Version, int] | None, initial_behavior: int
) -> Inherited | None:
    versioning = state.versioning
    if versioning is None or continuation.initiator == _CRON:
        return None
    if continuation.initiator == _RETRY:
        # A retry begins with the version with which this run began.
        pinned = versioning.begun_pinned
        return Inherited(pinned=pinned) if pinned is not None else None
    if initial_behavior and pinned_by(VersioningOverride.FromString(state.versioning_override)) is not None:
        # The override determines the next run's version.
        return None
    pinned = None if initial_behavior else pinned_version(state)
    if pinned is not None:
        version, revision = declined or (None, 0)
        return Inherited(pinned=pinned, declined=version, revision=revision)
    if versioning.version is None:
        return None
    return Inherited(
        auto_upgraded=versioning.version, revision=state.live.routing_revision, initial_behavior=initial_behavior
    )


def spaced_backoff_ns(transaction: Transaction, backoff_ns: int) -> int:
    """The backoff, lengthened so that the execution times of two runs are at least `run_interval_min_ns` apart."""
    lifetime_ns = transaction.now_ns - transaction.state.started.execution_ns
    return max(backoff_ns, transaction.limits.run_interval_min_ns - lifetime_ns)


def inherited_reset_points(transaction: Transaction) -> tuple[ResetPointInfo, ...]:
    """The reset points of this run and of earlier runs of the chain, with expiry times."""
    expires = to_timestamp(transaction.now_ns + transaction.retention_ns)
    points = []
    for stored in transaction.state.reset_points:
        point = ResetPointInfo.FromString(stored)
        if point.run_id == transaction.state.identity.run_id:
            point.expire_time.CopyFrom(expires)
        points.append(point)
    return tuple(points)


def _abort_task(transaction: Transaction) -> None:
    """Fail the workflow task that a worker has, and flush the buffer, before the run closes."""
    if transaction.state.has_started_task:
        fail_workflow_task(transaction, Cause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND)
    transaction.flush()


def _retry_decision(transaction: Transaction, failure: Failure) -> RetryDecision:
    origin = transaction.state.started
    if origin.retry_policy is None:
        return _NO_POLICY
    return decide_retry(
        RetryPolicy.FromString(origin.retry_policy),
        attempt=origin.attempt,
        failure=failure,
        now_ns=transaction.now_ns,
        expires_at_ns=origin.expires_at_ns,
    )


def _cron_backoff_ns(transaction: Transaction) -> int | None:
    origin = transaction.state.started
    return cron.backoff_ns(origin.cron_schedule, scheduled_ns=origin.execution_ns, now_ns=transaction.now_ns)


def _repeat(
    transaction: Transaction,
    start: HistoryEvent,
    new_run_id: str,
    *,
    backoff_ns: int,
    initiator: ContinueAsNewInitiator.ValueType,
    result: Payloads | None,
    failure: Failure | None,
) -> None:
    """Start the same workflow again, as a retry or by the cron schedule."""
    attributes = start.workflow_execution_started_event_attributes
    origin = transaction.state.started
    last_result = result
    if failure is not None and attributes.HasField("last_completion_result"):
        last_result = attributes.last_completion_result
    continuation = Continuation(
        previous_run_id=transaction.state.identity.run_id,
        first_run_id=origin.first_run_id,
        initiator=initiator,
        attempt=origin.attempt + 1 if initiator == _RETRY else 1,
        failure=failure,
        last_completion_result=last_result,
        backoff_ns=spaced_backoff_ns(transaction, backoff_ns),
        expires_at_ns=origin.expires_at_ns,
        reset_points=inherited_reset_points(transaction),
    )
    request = _repeated_request(origin, attributes)
    if start.HasField("user_metadata"):
        request.user_metadata.CopyFrom(start.user_metadata)
    begin_next_run(transaction, request, new_run_id, continuation)


def _repeated_request(
    origin: Origin, attributes: WorkflowExecutionStartedEventAttributes
) -> StartWorkflowExecutionRequest:
    request = StartWorkflowExecutionRequest(cron_schedule=origin.cron_schedule)
    request.workflow_type.name = origin.workflow_type
    request.task_queue.name = origin.task_queue
    request.workflow_task_timeout.CopyFrom(to_duration(origin.task_timeout_ns))
    if origin.execution_timeout_ns:
        request.workflow_execution_timeout.CopyFrom(to_duration(origin.execution_timeout_ns))
    copy_set(attributes, request, _INHERITED)
    return request
