"""The step with which a worker answers a workflow task: its commands become events, or the task fails."""

from collections.abc import Callable
from typing import NamedTuple

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import CommandType, WorkerVersioningMode
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import WorkflowTaskCompletedEventAttributes
from temporalio.api.update.v1 import Rejection
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest

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
from fairlead.history.commands.answer import Answer, Surroundings, UpdateNews
from fairlead.history.events.copying import copy_set
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_activities import start_activity
from fairlead.history.events.write_closing import terminate
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
from fairlead.history.state.times import from_duration
from fairlead.history.state.workflow_task import TaskKind, WorkflowTask

Handler = Callable[[Answer, Command], None]

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
# Workers of one run whose caches are trusted; one that is forgotten is doubted once more.
TRUSTED_CACHES_MAX = 32
_PASSED_ON = ("sdk_metadata", "metering_metadata", "deployment")


class Completion(NamedTuple):
    """What came of an answer. `failed`: the task failed instead, and the worker hears INVALID_ARGUMENT with `message`.

    `eager_activities` were given to the answering worker; `new_task` is the next workflow task, started for it if it
    is one that it asked to have returned. `left_no_trace`: a speculative task came to nothing. `outlived`: the task was
    timed out instead, because the worker has kept the run for too long, which hears NOT_FOUND. `doubted`: the task
    failed instead, because what the worker has in its cache may be of events that have lost; it hears NOT_FOUND, too.
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
    surroundings: Surroundings,
    *,
    scheduled_event_id: int,
    attempt: int,
    has_updates: bool = False,
) -> Completion:
    """Carry the answer out whole, or fail the task and carry out none of it.

    The two numbers are from the token that the worker was given. `has_updates`: there are updates that were not
    delivered with this task. Reads `transaction.state` anew afterwards.
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
        return _drop(transaction, request, surroundings, has_updates=has_updates)
    checkpoint = transaction.checkpoint()
    try:
        answer = _carry_out(transaction, request, surroundings, has_unseen=transaction.buffered_count > 0)
    except BadCommand as bad:
        transaction.roll_back(checkpoint)
        return _fail(transaction, request, bad)
    eager = _start_eagerly(answer)
    new_task = _schedule_next(answer, request, has_updates=has_updates)
    return Completion(new_task=new_task, eager_activities=eager, update_news=tuple(answer.update_news))


def _check_sequence(request: RespondWorkflowTaskCompletedRequest) -> None:
    kinds = [command.command_type for command in request.commands]
    for place, kind in enumerate(kinds):
        if kind not in HANDLERS:
            raise BadRequest(f"unknown command type: {_command_name(kind)}")
        if kind in CLOSING_COMMANDS and place + 1 < len(kinds):
            names = ", ".join(_command_name(each) for each in kinds)
            raise BadRequest(
                f"invalid command sequence: [{names}], command {_command_name(kind)} must be the last command."
            )


def _carry_out(
    transaction: Transaction,
    request: RespondWorkflowTaskCompletedRequest,
    surroundings: Surroundings,
    *,
    has_unseen: bool,
) -> Answer:
    task = write_unwritten(transaction)
    live = transaction.state.live
    live.sticky_task_queue = request.sticky_attributes.worker_task_queue.name
    live.sticky_timeout_ns = from_duration(request.sticky_attributes.schedule_to_start_timeout)
    state = transaction.state
    builds = state.reset_points if state.completed_task_event_id else None
    versioning = transaction.state.versioning
    shown = None if versioning is None else (versioning.behavior, versioning.version)
    completed = transaction.add(_completed_attributes(request, task))
    versioning = transaction.state.versioning
    if versioning is not None and shown != (versioning.behavior, versioning.version):
        transaction.show()
    if state.reset_points is not builds:
        # The run is found by the builds of the workers that it had.
        transaction.show()
    answer = Answer(
        transaction=transaction,
        surroundings=surroundings,
        completed_event_id=completed.event_id,
        identity=request.identity,
        messages={message.id: message for message in request.messages},
        has_unseen=has_unseen,
    )
    for command in request.commands:
        HANDLERS[command.command_type](answer, command)
    if transaction.state.is_open:
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


def _start_eagerly(answer: Answer) -> tuple[int, ...]:
    """Give the worker the activities it asked for, unless they or the run ended within the same answer."""
    transaction = answer.transaction
    started = []
    for scheduled_event_id in answer.eager_activities:
        if transaction.state.is_open and transaction.state.open_activity(scheduled_event_id) is not None:
            start_activity(transaction, scheduled_event_id, request_id=transaction.new_id(), identity=answer.identity)
            started.append(scheduled_event_id)
    return tuple(started)


def _schedule_next(
    answer: Answer, request: RespondWorkflowTaskCompletedRequest, *, has_updates: bool
) -> WorkflowTask | None:
    """The next workflow task, if the workflow has something to hear or its worker wants to keep it.

    One that only brings updates to the worker that has just answered leaves no trace if it rejects them.
    """
    transaction = answer.transaction
    heartbeat = request.force_create_new_workflow_task
    is_needed = answer.has_unseen or answer.needs_task or heartbeat
    if not transaction.state.is_open or not (is_needed or has_updates):
        return None
    if answer.has_unseen:
        # The run may be paused by what waited: then it hears of the rest when it goes on.
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


def _fail(transaction: Transaction, request: RespondWorkflowTaskCompletedRequest, bad: BadCommand) -> Completion:
    """The task fails for the command's sake, and the next attempt is scheduled, or the run ended."""
    name = _name(Cause.Name(bad.cause), "WORKFLOW_TASK_FAILED_CAUSE_")
    message = f"{name}: {bad.message}" if bad.message else name
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
    """Whether the worker may have answered from a cache of events that are not this run's any more.

    A worker knows the events in its cache by their ids. After a failover the same ids may be other events, and what it
    answers then may not follow from this history: nobody could replay it.
    """
    state, version = transaction.state, transaction.version
    cache = request.sticky_attributes.worker_task_queue.name
    if not cache or state.versions is None:
        return False
    if not state.live.branches and len(state.versions.items) == 1 and state.last_version == version:
        return False
    return state.live.trusted_version != version or cache not in state.live.trusted_caches


def _doubt(transaction: Transaction, request: RespondWorkflowTaskCompletedRequest) -> Completion:
    """Fail the task, so that the worker forgets its cache: its next answer is from the events as they are."""
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
    """Whether the worker only keeps the run to itself, and has done so for as long as it may."""
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
    """Whether a speculative task may vanish: the worker only rejected.

    And it was shown no events with it, or can be shown them again.
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
    surroundings: Surroundings,
    *,
    has_updates: bool,
) -> Completion:
    transaction.state.live.unwritten_task = None
    answer = Answer(
        transaction=transaction,
        surroundings=surroundings,
        completed_event_id=0,
        identity=request.identity,
        messages={},
        has_unseen=transaction.buffered_count > 0,
    )
    for message in request.messages:
        protocol_message.handle_message(answer, message)
    new_task = _schedule_next(answer, request, has_updates=has_updates)
    return Completion(new_task=new_task, update_news=tuple(answer.update_news), left_no_trace=True)


def _command_name(kind: CommandType.ValueType) -> str:
    """A worker may send a number that has no name."""
    return _name(CommandType.Name(kind), "COMMAND_TYPE_") if kind in CommandType.values() else str(kind)


def _name(text: str, prefix: str) -> str:
    """An enumeration's value as Go writes it: `UNHANDLED_COMMAND` is `UnhandledCommand`."""
    return "".join(word.capitalize() for word in text.removeprefix(prefix).split("_"))
