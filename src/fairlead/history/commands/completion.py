"""Completes a workflow task: the worker's commands become events, or the task fails."""

from collections.abc import Callable
from typing import NamedTuple

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import CommandType, WorkerVersioningMode
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import WorkflowTaskCompletedEventAttributes
from temporalio.api.update.v1 import Rejection
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest

from fairlead.api.times import from_duration
from fairlead.history.commands import (
    cancel_activity,
    cancel_external,
    cancel_nexus_operation,
    cancel_timer,
    cancel_workflow,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    modify_properties,
    protocol_message,
    record_marker,
    schedule_activity,
    schedule_nexus_operation,
    signal_external,
    start_child,
    start_timer,
    upsert_search_attributes,
)
from fairlead.history.commands.task_response import CommandDependencies, TaskResponse, UpdateNews
from fairlead.history.events.field_copies import copy_set
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_activities import start_activity
from fairlead.history.events.write_close import terminate
from fairlead.history.events.write_workflow_tasks import (
    HISTORY_SERVICE,
    fail_workflow_task,
    schedule_workflow_task,
    start_workflow_task,
    started_task,
    time_out_workflow_task,
    write_unwritten,
)
from fairlead.history.state.errors import BadCommand, BadRequest, NotPending
from fairlead.history.state.run import PAUSED
from fairlead.history.state.tasks import TaskTimeout, WorkflowTaskTimeout
from fairlead.history.state.workflow_task import TaskKind, WorkflowTask

Handler = Callable[[TaskResponse, Command], None]

HANDLERS: dict[CommandType.ValueType, Handler] = {
    CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK: schedule_activity.handle,
    CommandType.COMMAND_TYPE_REQUEST_CANCEL_ACTIVITY_TASK: cancel_activity.handle,
    CommandType.COMMAND_TYPE_START_TIMER: start_timer.handle,
    CommandType.COMMAND_TYPE_CANCEL_TIMER: cancel_timer.handle,
    CommandType.COMMAND_TYPE_RECORD_MARKER: record_marker.handle,
    CommandType.COMMAND_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: upsert_search_attributes.handle,
    CommandType.COMMAND_TYPE_MODIFY_WORKFLOW_PROPERTIES: modify_properties.handle,
    CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION: start_child.handle,
    CommandType.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION: signal_external.handle,
    CommandType.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION: cancel_external.handle,
    CommandType.COMMAND_TYPE_SCHEDULE_NEXUS_OPERATION: schedule_nexus_operation.handle,
    CommandType.COMMAND_TYPE_REQUEST_CANCEL_NEXUS_OPERATION: cancel_nexus_operation.handle,
    CommandType.COMMAND_TYPE_PROTOCOL_MESSAGE: protocol_message.handle,
    CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION: complete_workflow.handle,
    CommandType.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION: fail_workflow.handle,
    CommandType.COMMAND_TYPE_CANCEL_WORKFLOW_EXECUTION: cancel_workflow.handle,
    CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION: continue_as_new.handle,
}
CLOSING_COMMANDS = frozenset(
    {
        CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
        CommandType.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
        CommandType.COMMAND_TYPE_CANCEL_WORKFLOW_EXECUTION,
        CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION,
    }
)
# Number of sticky queues of a run that are trusted. A queue that is dropped from the list must prove itself again.
TRUSTED_CACHES_MAX = 32
_PASSED_ON = ("sdk_metadata", "metering_metadata", "deployment")


class Completion(NamedTuple):
    """The result of a worker's response, which may fail or time out the task instead of completing it.

    - `failed`: a command was bad; the worker gets INVALID_ARGUMENT with `message`.
    - `new_task`: the next workflow task, started for the same worker if the worker asked for it.
    - `eager_activities`: activities that are returned to the worker at once.
    - `left_no_trace`: a speculative task was dropped without events.
    - `outlived`: the worker extended the task by heartbeats for too long; it gets NOT_FOUND.
    - `doubted`: the worker's cache may hold events of a branch that is not current; it gets NOT_FOUND.
    """

    failed: BadCommand | None = None
    message: str = ""
    new_task: WorkflowTask | None = None
    eager_activities: tuple[int, ...] = ()
    update_news: tuple[UpdateNews, ...] = ()
    left_no_trace: bool = False
    outlived: bool = False
    doubted: bool = False


def complete_workflow_task(
    transaction: Transaction,
    request: RespondWorkflowTaskCompletedRequest,
    dependencies: CommandDependencies,
    *,
    scheduled_event_id: int,
    attempt: int,
    has_updates: bool = False,
) -> Completion:
    """Carry out the whole response, or fail the task and carry out nothing.

    `scheduled_event_id` and `attempt` come from the worker's task token. `has_updates` is true if there are updates
    that were not delivered with this task. The caller must read `transaction.state` again afterwards.
    """
    state = transaction.state
    state.check_open()
    task = started_task(state)
    if (task.scheduled_event_id, task.attempt) != (scheduled_event_id, attempt):
        raise NotPending("Workflow task not found.")
    _check_sequence(request)
    if _is_outlived(transaction, request):
        due = WorkflowTaskTimeout(
            task.version, transaction.now_ns, task.scheduled_event_id, task.attempt, TaskTimeout.START_TO_CLOSE
        )
        time_out_workflow_task(transaction, due)
        return Completion(outlived=True)
    if _is_doubtful(transaction, request):
        return _doubt(transaction, request)
    if _leaves_no_trace(transaction, task, request):
        return _drop(transaction, request, dependencies, has_updates=has_updates)
    checkpoint = transaction.checkpoint()
    try:
        answer = _carry_out(transaction, request, dependencies, has_unseen=transaction.buffered_count > 0)
    except BadCommand as bad:
        transaction.roll_back(checkpoint)
        return _fail(transaction, request, bad, attempt=attempt)
    eager = _start_eagerly(answer)
    new_task = _schedule_next(answer, request, has_updates=has_updates)
    return Completion(new_task=new_task, eager_activities=eager, update_news=tuple(answer.update_news))


def _check_sequence(request: RespondWorkflowTaskCompletedRequest) -> None:
    kinds = [command.command_type for command in request.commands]
    for position, kind in enumerate(kinds):
        if kind not in HANDLERS:
            raise BadRequest(f"unknown command type: {command_name(kind)}")
        if kind in CLOSING_COMMANDS and position + 1 < len(kinds):
            names = ", ".join(command_name(each) for each in kinds)
            raise BadRequest(
                f"invalid command sequence: [{names}], command {command_name(kind)} must be the last command."
            )


def _carry_out(
    transaction: Transaction,
    request: RespondWorkflowTaskCompletedRequest,
    dependencies: CommandDependencies,
    *,
    has_unseen: bool,
) -> TaskResponse:
    task = write_unwritten(transaction)
    live = transaction.state.live
    live.sticky_task_queue = request.sticky_attributes.worker_task_queue.name
    live.sticky_timeout_ns = from_duration(request.sticky_attributes.schedule_to_start_timeout)
    state = transaction.state
    builds = state.reset_points if state.completed_task_event_id else None
    versioning = transaction.state.versioning
    shown = None if versioning is None else (versioning.behavior, versioning.version)
    had_reported_problems = bool(live.reported_problems)
    completed = transaction.add(_completed_attributes(request, task))
    if had_reported_problems:
        transaction.show()
    versioning = transaction.state.versioning
    if versioning is not None and shown != (versioning.behavior, versioning.version):
        transaction.show()
    if state.reset_points is not builds:
        # The visibility record has the build ids of the run's workers.
        transaction.show()
    answer = TaskResponse(
        transaction=transaction,
        dependencies=dependencies,
        completed_event_id=completed.event_id,
        identity=request.identity,
        messages={message.id: message for message in request.messages},
        has_unseen=has_unseen,
    )
    for command in request.commands:
        answer.command_type = command.command_type
        HANDLERS[command.command_type](answer, command)
    if transaction.state.is_open:
        answer.command_type = CommandType.COMMAND_TYPE_PROTOCOL_MESSAGE
        for message in tuple(answer.messages.values()):
            protocol_message.handle_message(answer, message)
    return answer


def _completed_attributes(
    request: RespondWorkflowTaskCompletedRequest, task: WorkflowTask
) -> WorkflowTaskCompletedEventAttributes:
    attributes = WorkflowTaskCompletedEventAttributes(
        scheduled_event_id=task.scheduled_event_id,
        started_event_id=task.started_event_id,
        identity=request.identity,
        binary_checksum=request.binary_checksum,
        versioning_behavior=request.versioning_behavior,
    )
    copy_set(request, attributes, _PASSED_ON)
    if request.HasField("worker_version_stamp"):
        attributes.worker_version.CopyFrom(request.worker_version_stamp)
    options = request.deployment_options
    if options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
        attributes.worker_deployment_name = options.deployment_name
        attributes.deployment_version.deployment_name = options.deployment_name
        attributes.deployment_version.build_id = options.build_id
        attributes.worker_version.build_id = options.build_id
    return attributes


def _start_eagerly(answer: TaskResponse) -> tuple[int, ...]:
    """Start the activities for which the worker has requested an eager start, unless they or the run have ended."""
    transaction = answer.transaction
    started = []
    for scheduled_event_id in answer.eager_activities:
        if transaction.state.is_open and transaction.state.open_activity(scheduled_event_id) is not None:
            start_activity(transaction, scheduled_event_id, request_id=transaction.new_id(), identity=answer.identity)
            started.append(scheduled_event_id)
    return tuple(started)


def _schedule_next(
    answer: TaskResponse, request: RespondWorkflowTaskCompletedRequest, *, has_updates: bool
) -> WorkflowTask | None:
    """The next workflow task, if there are events or updates to deliver, or the worker sent a heartbeat.

    A task that only delivers updates to the same worker is speculative: if the worker rejects them, the task leaves no
    events.
    """
    transaction = answer.transaction
    heartbeat = request.force_create_new_workflow_task
    is_needed = answer.has_unseen or answer.needs_task or heartbeat
    if not transaction.state.is_open or not (is_needed or has_updates):
        return None
    if answer.has_unseen:
        # A buffered event may pause the run. The next task is then scheduled when the run is unpaused.
        transaction.flush()
    if transaction.state.status == PAUSED:
        return None
    returned = request.return_new_workflow_task
    kind = TaskKind.SPECULATIVE if returned and not is_needed else TaskKind.NORMAL
    row_since_ns = transaction.state.live.task_row_since_ns if heartbeat and not answer.has_unseen else 0
    task = schedule_workflow_task(transaction, kind=kind, row_since_ns=row_since_ns, push=not returned)
    if returned:
        task = start_workflow_task(
            transaction,
            task.scheduled_event_id,
            request_id="request-from-RespondWorkflowTaskCompleted",
            identity=request.identity,
            worker_version=request.worker_version_stamp if request.HasField("worker_version_stamp") else None,
        )
    return task


def _fail(
    transaction: Transaction, request: RespondWorkflowTaskCompletedRequest, bad: BadCommand, *, attempt: int
) -> Completion:
    """Fail the task because of a bad command; then schedule the next attempt, or terminate the run.

    From the second attempt on, only return the error: the task stays with the worker until it times out, so that a
    workflow whose commands are always bad is not retried at once. UNHANDLED_COMMAND is exempt: the worker could not
    know of the buffered event.
    """
    name = _name(Cause.Name(bad.cause), "WORKFLOW_TASK_FAILED_CAUSE_")
    message = f"{name}: {bad.message}" if bad.message else name
    if attempt > 1 and bad.cause != Cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND:
        raise BadRequest(message)
    failure = Failure(message=message)
    failure.server_failure_info.SetInParent()
    fail_workflow_task(
        transaction,
        bad.cause,
        failure=failure,
        identity=request.identity,
        binary_checksum=request.binary_checksum,
    )
    if bad.ends_run:
        transaction.flush()
        terminate(transaction, reason=message, identity=HISTORY_SERVICE)
    else:
        schedule_workflow_task(transaction)
    return Completion(failed=bad, message=message)


def _is_doubtful(transaction: Transaction, request: RespondWorkflowTaskCompletedRequest) -> bool:
    """Whether the worker may have used cached events that are not on the run's current branch.

    A worker identifies cached events by their ids. After a failover, the same ids may belong to other events. Commands
    based on such a cache may not follow from this history, and then no worker could replay them.
    """
    state, version = transaction.state, transaction.version
    cache = request.sticky_attributes.worker_task_queue.name
    if not cache or state.versions is None:
        return False
    if not state.live.branches and len(state.versions.items) == 1 and state.last_version == version:
        return False
    return state.live.trusted_version != version or cache not in state.live.trusted_caches


def _doubt(transaction: Transaction, request: RespondWorkflowTaskCompletedRequest) -> Completion:
    """Fail the task, so that the worker drops its cache: its next response is based on the current events."""
    live = transaction.state.live
    if live.trusted_version != transaction.version:
        live.trusted_version, live.trusted_caches = transaction.version, []
    live.trusted_caches = [
        *live.trusted_caches[1 - TRUSTED_CACHES_MAX :],
        request.sticky_attributes.worker_task_queue.name,
    ]
    fail_workflow_task(transaction, Cause.WORKFLOW_TASK_FAILED_CAUSE_FAILOVER_CLOSE_COMMAND)
    schedule_workflow_task(transaction)
    return Completion(doubted=True)


def _is_outlived(transaction: Transaction, request: RespondWorkflowTaskCompletedRequest) -> bool:
    """Whether the worker sends only heartbeats for the task, for longer than the limit."""
    since_ns, limit_ns = transaction.state.live.task_row_since_ns, transaction.limits.workflow_task_row_max_ns
    return (
        request.force_create_new_workflow_task
        and not request.commands
        and not request.messages
        and 0 < since_ns < transaction.now_ns - limit_ns
    )


def _leaves_no_trace(
    transaction: Transaction, task: WorkflowTask, request: RespondWorkflowTaskCompletedRequest
) -> bool:
    """Whether a speculative task may be dropped because the worker only rejected updates.

    The worker must also have received no new events with the task, or be able to receive them again.
    """
    state = transaction.state
    return (
        task.kind is TaskKind.SPECULATIVE
        and not request.commands
        and not request.force_create_new_workflow_task
        and (
            state.next_event_id == state.completed_task_event_id + 1
            or request.capabilities.discard_speculative_workflow_task_with_events
        )
        and all(message.body.Is(Rejection.DESCRIPTOR) for message in request.messages)
    )


def _drop(
    transaction: Transaction,
    request: RespondWorkflowTaskCompletedRequest,
    dependencies: CommandDependencies,
    *,
    has_updates: bool,
) -> Completion:
    transaction.state.live.unwritten_task = None
    answer = TaskResponse(
        transaction=transaction,
        dependencies=dependencies,
        completed_event_id=0,
        identity=request.identity,
        messages={},
        has_unseen=transaction.buffered_count > 0,
    )
    for message in request.messages:
        protocol_message.handle_message(answer, message)
    new_task = _schedule_next(answer, request, has_updates=has_updates)
    return Completion(new_task=new_task, update_news=tuple(answer.update_news), left_no_trace=True)


def command_name(kind: CommandType.ValueType) -> str:
    """The command type in Go's spelling; a worker may send a number without a name."""
    return _name(CommandType.Name(kind), "COMMAND_TYPE_") if kind in CommandType.values() else str(kind)


def _name(text: str, prefix: str) -> str:
    """An enum value in Go's spelling: `UNHANDLED_COMMAND` is `UnhandledCommand`."""
    return "".join(word.capitalize() for word in text.removeprefix(prefix).split("_"))
