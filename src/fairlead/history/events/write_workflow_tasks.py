"""The steps of workflow tasks: schedule, start, fail, time out. Completion is in `commands`."""

from temporalio.api.common.v1 import WorkerVersionStamp
from temporalio.api.enums.v1 import TaskQueueKind, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    WorkflowTaskFailedEventAttributes,
    WorkflowTaskScheduledEventAttributes,
    WorkflowTaskStartedEventAttributes,
    WorkflowTaskTimedOutEventAttributes,
)

from fairlead.api.retry import spacing_ns
from fairlead.api.times import SECOND_NS, set_duration
from fairlead.history.events.reported_problems import report_problem
from fairlead.history.events.transaction import Transaction
from fairlead.history.state.errors import NotPending
from fairlead.history.state.run import PAUSED, RunState
from fairlead.history.state.tasks import PushWorkflowTask, TaskTimeout, WorkflowTaskRetry, WorkflowTaskTimeout
from fairlead.history.state.workflow_task import TaskKind, WorkflowTask

_NORMAL = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
_STICKY = TaskQueueKind.TASK_QUEUE_KIND_STICKY
HISTORY_SERVICE = "history-service"
_SAID_AT_START = (
    "suggest_continue_as_new", "history_size_bytes", "request_id", "identity", "worker_version", "target_changed",
)  # fmt: skip
_BACKOFF_ATTEMPTS_MIN = 3
_BACKOFF_FIRST_NS = 5 * SECOND_NS
_BACKOFF_JITTER = 0.2
# Schedule-to-start timeout of a speculative task; after it, a normal task replaces the speculative one.
SPECULATIVE_SCHEDULE_TO_START_NS = 5 * SECOND_NS


def wake(transaction: Transaction, *, despite_backoff: bool = False) -> None:
    """Ensure that a workflow task delivers the events of this step: the pending task, or a new one.

    A run in its first backoff gets no task unless `despite_backoff`; a paused run gets its task when it is unpaused.
    """
    state = transaction.state
    if not state.is_open:
        return
    task = state.live.unwritten_task
    if state.has_started_task:
        _relieve_buffer(transaction)
    elif task is not None and task.kind is TaskKind.SPECULATIVE:
        # The new events are durable, so the task that delivers them must be durable too.
        state.live.unwritten_task = None
        schedule_workflow_task(transaction)
    elif state.workflow_task is None and (despite_backoff or not state.in_backoff) and state.status != PAUSED:
        schedule_workflow_task(transaction)


def _relieve_buffer(transaction: Transaction) -> None:
    """If too many events are buffered, fail the task that a worker has, and schedule a new one that delivers them."""
    if transaction.buffered_count > transaction.limits.buffered_events_max:
        fail_workflow_task(transaction, WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND)
        # Flush first, so that the next task counts as a new attempt, as in Temporal's server.
        transaction.flush()
        schedule_workflow_task(transaction)


def schedule_workflow_task(
    transaction: Transaction,
    *,
    kind: TaskKind = TaskKind.NORMAL,
    row_since_ns: int = 0,
    push: bool = True,
    after_failure: bool = False,
) -> WorkflowTask:
    """Schedule the next workflow task; no other task may be pending.

    After a failed attempt, `kind` is ignored and the task is transient, unless there are new events that the worker has
    not seen. `row_since_ns` is the start of a series of workflow task heartbeats, or 0. `push` is False if the worker
    gets the task in the response to its previous task. `after_failure` is True if a worker failed the previous attempt:
    attempts then have a backoff, so that a worker that fails each attempt at once does not keep the server busy.
    """
    state = transaction.state
    live = state.live
    if state.workflow_task is not None:
        raise NotPending("a workflow task is pending already")
    if transaction.flush():
        live.task_attempt = 1
        kind = TaskKind.NORMAL
    if live.task_attempt > 1:
        # After a failover the version differs, and attempts of the other cluster don't count.
        kind, live.task_attempt = (
            (TaskKind.TRANSIENT, live.task_attempt)
            if transaction.version == state.last_version
            else (TaskKind.NORMAL, 1)
        )
    live.task_row_since_ns = row_since_ns or transaction.now_ns
    task = _next_task(transaction, kind)
    if kind is TaskKind.NORMAL:
        transaction.add(scheduled_attributes(state, task))
        task = _written(state)
    else:
        live.unwritten_task = task
    maximum_ns = transaction.limits.workflow_task_timeout_default_ns
    delay_ns = spacing_ns(task.attempt - 1, maximum_ns) if after_failure else 0
    _add_dispatch_task(transaction, task, push=push, delay_ns=delay_ns)
    return task


def _next_task(transaction: Transaction, kind: TaskKind) -> WorkflowTask:
    state = transaction.state
    return WorkflowTask(
        kind=kind,
        version=transaction.version,
        scheduled_event_id=state.next_event_id,
        attempt=state.live.task_attempt,
        timeout_ns=_timeout_ns(transaction, state.live.task_attempt),
        scheduled_ns=transaction.now_ns,
        task_queue=state.task_queue,
        sticky=bool(state.live.sticky_task_queue),
    )


def _timeout_ns(transaction: Transaction, attempt: int) -> int:
    """The start-to-close timeout.

    It grows after repeated failures, so that a task without responses is retried less often.
    """
    timeout_ns = transaction.state.started.task_timeout_ns
    if attempt <= _BACKOFF_ATTEMPTS_MIN:
        return timeout_ns
    maximum_ns = transaction.limits.workflow_task_retry_max_ns
    backoff_ns = min(_BACKOFF_FIRST_NS << min(attempt - _BACKOFF_ATTEMPTS_MIN - 1, 32), maximum_ns)
    return timeout_ns + int(backoff_ns * (1 - _BACKOFF_JITTER + _BACKOFF_JITTER * transaction.uniform()))


def _add_dispatch_task(transaction: Transaction, task: WorkflowTask, *, push: bool, delay_ns: int) -> None:
    speculative = task.kind is TaskKind.SPECULATIVE
    if push and not speculative and delay_ns:
        due_ns = transaction.now_ns + delay_ns
        transaction.add_task(WorkflowTaskRetry(task.version, due_ns, task.scheduled_event_id, task.attempt))
    elif push and not speculative:
        transaction.add_task(
            PushWorkflowTask(task.version, task.scheduled_event_id, task.attempt, task.task_queue, sticky=task.sticky)
        )
    wait_ns = transaction.state.live.sticky_timeout_ns if task.sticky else 0
    if speculative:
        wait_ns = wait_ns or SPECULATIVE_SCHEDULE_TO_START_NS
    if push and wait_ns:
        _time_limit(transaction, task, TaskTimeout.SCHEDULE_TO_START, wait_ns)


def _time_limit(transaction: Transaction, task: WorkflowTask, kind: TaskTimeout, wait_ns: int) -> None:
    transaction.add_task(
        WorkflowTaskTimeout(
            version=task.version,
            fire_at_ns=transaction.now_ns + wait_ns,
            scheduled_event_id=task.scheduled_event_id,
            attempt=task.attempt,
            kind=kind,
            in_memory=task.kind is TaskKind.SPECULATIVE,
        )
    )


def start_workflow_task(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    request_id: str,
    identity: str,
    worker_version: WorkerVersionStamp | None = None,
    target_changed: bool = False,
    unwritten_bytes: int = 0,
) -> WorkflowTask:
    """Give the task to a worker. A retry of the same request gets the same task; others raise `NotPending`.

    `unwritten_bytes` is the size of the events in this step that count as written before the start.
    """
    state = transaction.state
    state.check_open()
    task = state.workflow_task
    if task is None or task.scheduled_event_id != scheduled_event_id:
        raise NotPending("Workflow task not found.")
    if task.is_started:
        if task.request_id == request_id:
            return task
        raise NotPending("Workflow task already started.")
    suggest = (
        state.next_event_id >= transaction.limits.history_count_suggest
        or state.live.history_size_bytes >= transaction.limits.history_size_suggest
    )
    task.suggest_continue_as_new = suggest
    task.history_size_bytes = state.live.history_size_bytes + unwritten_bytes
    task.target_changed = target_changed
    task.request_id = request_id
    task.identity = identity
    task.worker_version = worker_version.SerializeToString() if worker_version is not None else None
    if task.kind is not TaskKind.NORMAL and _is_overtaken(transaction, task):
        task = _write_overtaken(transaction, task)
    if task.kind is TaskKind.NORMAL:
        transaction.add(started_attributes(task))
    else:
        task.started_event_id = task.scheduled_event_id + 1
        task.started_ns = transaction.now_ns
    _time_limit(transaction, task, TaskTimeout.START_TO_CLOSE, task.timeout_ns)
    return task


def _is_overtaken(transaction: Transaction, task: WorkflowTask) -> bool:
    return task.scheduled_event_id != transaction.state.next_event_id or task.version != transaction.version


def _write_overtaken(transaction: Transaction, task: WorkflowTask) -> WorkflowTask:
    """Write the task as a normal first attempt, because newer events have taken the event ids that it was to get."""
    state = transaction.state
    state.live.unwritten_task = None
    state.live.task_attempt = 1
    task.attempt = 1
    transaction.add(scheduled_attributes(state, task))
    written = _written(state)
    for name in _SAID_AT_START:
        setattr(written, name, getattr(task, name))
    return written


def write_unwritten(transaction: Transaction) -> WorkflowTask:
    """The started task with its events in the history. Writes the events of a transient or speculative task now."""
    state = transaction.state
    task = state.live.unwritten_task
    if task is None:
        return _written(state)
    state.live.unwritten_task = None
    transaction.add(scheduled_attributes(state, task), time_ns=task.scheduled_ns)
    written = _written(state)
    task.scheduled_event_id = written.scheduled_event_id
    transaction.add(started_attributes(task), time_ns=task.started_ns)
    return _written(state)


def fail_workflow_task(
    transaction: Transaction,
    cause: WorkflowTaskFailedCause.ValueType,
    *,
    failure: Failure | None = None,
    identity: str = HISTORY_SERVICE,
    binary_checksum: str = "",
) -> None:
    """End the started task as failed. Only the first of consecutive failures writes an event.

    Does not schedule the next task: the caller must flush the buffer first.
    """
    state = transaction.state
    task = started_task(state)
    attempt = _attempt_after(state)
    state.live.sticky_task_queue = ""
    if task.kind is TaskKind.TRANSIENT:
        state.live.unwritten_task = None
        state.live.task_attempt += 1
        report_problem(transaction)
        return
    task = write_unwritten(transaction)
    transaction.add(
        WorkflowTaskFailedEventAttributes(
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=task.started_event_id,
            cause=cause,
            failure=failure,
            identity=identity,
            binary_checksum=binary_checksum,
        )
    )
    state.live.task_attempt = attempt


def _attempt_after(state: RunState) -> int:
    """The number of the next attempt after a failure. A task on a sticky queue does not count as an attempt."""
    return state.live.task_attempt + (not state.live.sticky_task_queue)


def time_out_workflow_task(transaction: Transaction, due: WorkflowTaskTimeout) -> bool:
    """End the task that timed out and schedule the next one; return False if the timeout no longer applies."""
    state = transaction.state
    task = state.workflow_task
    if (
        not state.is_open
        or task is None
        or (task.scheduled_event_id, task.version, task.attempt) != (due.scheduled_event_id, due.version, due.attempt)
        or task.is_started is not (due.kind is TaskTimeout.START_TO_CLOSE)
    ):
        return False
    attempt = _attempt_after(state)
    state.live.sticky_task_queue = ""
    if due.kind is TaskTimeout.START_TO_CLOSE:
        _time_out_started(transaction, task)
        state.live.task_attempt = attempt
        report_problem(transaction)
    else:
        _time_out_scheduled(transaction, task)
    schedule_workflow_task(transaction)
    return True


def _time_out_started(transaction: Transaction, task: WorkflowTask) -> None:
    state = transaction.state
    if task.kind is TaskKind.TRANSIENT:
        state.live.unwritten_task = None
        state.live.task_attempt += 1
        return
    task = write_unwritten(transaction)
    transaction.add(
        WorkflowTaskTimedOutEventAttributes(
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=task.started_event_id,
            timeout_type=TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE,
        )
    )


def _time_out_scheduled(transaction: Transaction, task: WorkflowTask) -> None:
    state = transaction.state
    if task.kind is TaskKind.SPECULATIVE:
        state.live.unwritten_task = None
        transaction.add(scheduled_attributes(state, task), time_ns=task.scheduled_ns)
        task = _written(state)
    transaction.add(
        WorkflowTaskTimedOutEventAttributes(
            scheduled_event_id=task.scheduled_event_id, timeout_type=TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
        )
    )


def started_task(state: RunState) -> WorkflowTask:
    """The task that a worker has; raises `NotPending` if no worker has one."""
    task = state.workflow_task
    if task is None or not task.is_started:
        raise NotPending("Workflow task not found.")
    return task


def scheduled_attributes(state: RunState, task: WorkflowTask) -> WorkflowTaskScheduledEventAttributes:
    """The attributes of a WorkflowTaskScheduled event."""
    attributes = WorkflowTaskScheduledEventAttributes(attempt=task.attempt)
    queue = attributes.task_queue
    queue.name = task.task_queue
    queue.kind = _STICKY if task.sticky else _NORMAL
    if task.sticky:
        queue.normal_name = state.started.task_queue
    set_duration(attributes.start_to_close_timeout, task.timeout_ns)
    return attributes


def started_attributes(task: WorkflowTask) -> WorkflowTaskStartedEventAttributes:
    """The attributes of a WorkflowTaskStarted event."""
    stamp = task.worker_version
    return WorkflowTaskStartedEventAttributes(
        scheduled_event_id=task.scheduled_event_id,
        identity=task.identity,
        request_id=task.request_id,
        suggest_continue_as_new=task.suggest_continue_as_new,
        history_size_bytes=task.history_size_bytes,
        worker_version=WorkerVersionStamp.FromString(stamp) if stamp is not None else None,
        target_worker_deployment_version_changed=task.target_changed,
    )


def _written(state: RunState) -> WorkflowTask:
    if state.task is None:
        raise NotPending("Workflow task not found.")
    return state.task
