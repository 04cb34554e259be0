"""Repeats the inputs of a recorded history with our own code: the result should be the same history.

The inputs are read from the recorded events, in the order of their times: a buffered event is written late, but has the
time of its arrival. Events that follow from an input (another workflow task, the failure of an aborted one, the events
of commands) are not read: our code has to produce them by itself.
"""

from collections.abc import Callable
from itertools import count

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message as ProtobufMessage
from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import CommandType, EventType, TaskQueueKind
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Acceptance, Response
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest, StartWorkflowExecutionRequest

from fairlead.api.times import MILLISECOND_NS, SECOND_NS, from_duration, from_timestamp
from fairlead.history.commands import CommandDependencies, complete_workflow_task
from fairlead.history.events import (
    Continuation,
    StartRun,
    Transaction,
    cancel_activity,
    child_closed,
    child_start_failed,
    child_started,
    complete_activity,
    end_backoff,
    external_cancel_requested,
    external_signaled,
    fail_activity,
    fail_workflow_task,
    fire_timer,
    heartbeat_activity,
    rebuild,
    request_cancel,
    schedule_first_workflow_task,
    schedule_workflow_task,
    signal,
    start_activity,
    start_workflow,
    start_workflow_task,
    terminate,
    time_out_activity,
    time_out_run,
    time_out_workflow_task,
)
from fairlead.history.events.field_copies import copy_set
from fairlead.history.state import Parent, RunState, TaskKind, decode, encode, without_live
from fairlead.history.state.tasks import (
    ActivityTimeout,
    ActivityTimeoutKind,
    TaskTimeout,
    UserTimer,
    WorkflowTaskTimeout,
)
from tests.history.recordings import identity_of

T = EventType
NAMESPACE = "default"

# By event type: the command that it came from, and the command's names of fields that have other names there.
_COMMANDS = {
    T.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "schedule_activity_task",
    T.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: "request_cancel_activity_task",
    T.EVENT_TYPE_TIMER_STARTED: "start_timer",
    T.EVENT_TYPE_TIMER_CANCELED: "cancel_timer",
    T.EVENT_TYPE_MARKER_RECORDED: "record_marker",
    T.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "upsert_workflow_search_attributes",
    T.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: "modify_workflow_properties",
    T.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "start_child_workflow_execution",
    T.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "signal_external_workflow_execution",
    T.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "request_cancel_external_workflow_execution",
    T.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "complete_workflow_execution",
    T.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "fail_workflow_execution",
    T.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancel_workflow_execution",
    T.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continue_as_new_workflow_execution",
}
_UPDATES = (T.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED, T.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED)


def attributes_of(event: HistoryEvent) -> ProtobufMessage:
    attributes = getattr(event, event.WhichOneof("attributes") or "")
    assert isinstance(attributes, ProtobufMessage)
    return attributes


class Replayer:
    """Replays one run. `written` are our events, `batches` their bytes, `new_run` is the run that continues it."""

    def __init__(self, recorded: list[HistoryEvent], namespace_id: str) -> None:
        self.recorded = recorded
        self.by_id = {event.event_id: event for event in recorded}
        self.state = RunState(identity_of(recorded))
        self.state.identity = type(self.state.identity)(
            namespace_id, *(getattr(self.state.identity, n) for n in ("workflow_id", "run_id", "tree_id", "branch_id"))
        )
        self.written: list[HistoryEvent] = []
        self.batches: list[bytes] = []
        self.new_run: Transaction | None = None
        self._ids = (f"id-{number}" for number in count(1))
        self._answered: set[int] = set()

    def replay(self) -> None:
        steps = {
            T.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: self._start,
            T.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: self._ensure_task,
            T.EVENT_TYPE_WORKFLOW_TASK_STARTED: self._start_task,
            T.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: self._answer,
            T.EVENT_TYPE_WORKFLOW_TASK_FAILED: self._fail_task,
            T.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: self._time_out_task,
            T.EVENT_TYPE_ACTIVITY_TASK_STARTED: self._start_activity,
            T.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: self._complete_activity,
            T.EVENT_TYPE_ACTIVITY_TASK_FAILED: self._fail_activity,
            T.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: self._time_out_activity,
            T.EVENT_TYPE_ACTIVITY_TASK_CANCELED: self._cancel_activity,
            T.EVENT_TYPE_TIMER_FIRED: self._fire_timer,
            T.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: self._signal,
            T.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: self._request_cancel,
            T.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: self._terminate,
            T.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: self._time_out_run,
            T.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED: self._child_started,
            T.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: self._child_start_failed,
            T.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: self._child_completed,
            T.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: self._child_failed,
            T.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: self._child_canceled,
            T.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: self._child_timed_out,
            T.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED: self._external_signaled,
            T.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: self._external_signal_failed,
            T.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED: self._external_canceled,
            T.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: self._external_cancel_failed,
        }
        for event in sorted(self.recorded, key=lambda event: (from_timestamp(event.event_time), event.event_id)):
            step = steps.get(event.event_type)
            if step is None:
                assert event.event_type in _COMMANDS or event.event_type in _UPDATES, EventType.Name(event.event_type)
                continue
            self._step(event, step)

    def _step(self, event: HistoryEvent, step: Callable[[Transaction, HistoryEvent], None]) -> None:
        transaction = Transaction(
            self.state,
            now_ns=from_timestamp(event.event_time),
            version=0,
            new_id=lambda: next(self._ids),
            retention_ns=24 * 3600 * SECOND_NS,
            start_event=self.written[0] if self.written else None,
        )
        step(transaction, event)
        batch = transaction.finish()
        self.state = transaction.state
        self.new_run = transaction.new_run or self.new_run
        self.written += transaction.events
        if batch.payload:
            self.batches.append(batch.payload)
        stored = decode(encode(self.state))
        assert stored == self.state
        self.state = stored
        assert without_live(rebuild(self.state.identity, self.written)) == without_live(self.state)

    def _start(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.workflow_execution_started_event_attributes
        request = StartWorkflowExecutionRequest(
            workflow_type=recorded.workflow_type,
            task_queue=recorded.task_queue,
            identity=recorded.identity,
            cron_schedule=recorded.cron_schedule,
            workflow_start_delay=recorded.first_workflow_task_backoff,
        )
        names = (
            "input", "retry_policy", "memo", "search_attributes", "header", "workflow_execution_timeout",
            "workflow_run_timeout", "workflow_task_timeout", "priority",
        )  # fmt: skip
        copy_set(recorded, request, names)
        if event.HasField("user_metadata"):
            request.user_metadata.CopyFrom(event.user_metadata)
        parent = None
        if recorded.HasField("parent_workflow_execution"):
            parent = Parent(
                recorded.parent_workflow_namespace,
                recorded.parent_workflow_namespace_id,
                recorded.parent_workflow_execution.workflow_id,
                recorded.parent_workflow_execution.run_id,
                recorded.parent_initiated_event_id,
                recorded.parent_initiated_event_version,
            )
        continuation = None
        if recorded.continued_execution_run_id:
            result = recorded.last_completion_result
            continuation = Continuation(
                previous_run_id=recorded.continued_execution_run_id,
                first_run_id=recorded.first_execution_run_id,
                initiator=recorded.initiator,
                attempt=recorded.attempt,
                failure=recorded.continued_failure if recorded.HasField("continued_failure") else None,
                last_completion_result=result if recorded.HasField("last_completion_result") else None,
                backoff_ns=from_duration(recorded.first_workflow_task_backoff),
                expires_at_ns=from_timestamp(recorded.workflow_execution_expiration_time),
                reset_points=tuple(recorded.prev_auto_reset_points.points),
            )
        root = recorded.root_workflow_execution if recorded.HasField("root_workflow_execution") else None
        start_workflow(
            transaction,
            StartRun(request, parent=parent, root=root, continuation=continuation, schedules_task=False),
        )

    def _ensure_task(self, transaction: Transaction, event: HistoryEvent) -> None:
        """Schedule the workflow tasks that follow from no input: the first one, and those that only deliver updates."""
        state = transaction.state
        if state.workflow_task is not None or any(each.event_id == event.event_id for each in self.written):
            return
        if state.in_backoff:
            assert end_backoff(transaction)
        elif not state.had_task:
            schedule_first_workflow_task(transaction)
        else:
            schedule_workflow_task(transaction, kind=TaskKind.SPECULATIVE)

    def _start_task(self, transaction: Transaction, event: HistoryEvent) -> None:
        if event.event_id in self._answered:
            return
        recorded = event.workflow_task_started_event_attributes
        wanted = self.by_id[recorded.scheduled_event_id].workflow_task_scheduled_event_attributes.attempt
        while (task := transaction.state.workflow_task) is not None and task.attempt < wanted:
            # Attempts that left no event in the history.
            start_workflow_task(transaction, task.scheduled_event_id, request_id="x", identity=recorded.identity)
            fail_workflow_task(transaction, Cause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE)
            schedule_workflow_task(transaction)
        assert task is not None
        start_workflow_task(
            transaction,
            task.scheduled_event_id,
            request_id=recorded.request_id,
            identity=recorded.identity,
            worker_version=recorded.worker_version if recorded.HasField("worker_version") else None,
        )

    def _answer(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.workflow_task_completed_event_attributes
        request = RespondWorkflowTaskCompletedRequest(
            identity=recorded.identity,
            binary_checksum=recorded.binary_checksum,
            versioning_behavior=recorded.versioning_behavior,
        )
        copy_set(recorded, request, ("sdk_metadata", "metering_metadata"))
        if recorded.HasField("worker_version"):
            request.worker_version_stamp.CopyFrom(recorded.worker_version)
        self._look_ahead(event, request)
        for following in self._caused_by(event.event_id):
            _add_command(request, following)
        self._complete(transaction, request)

    def _complete(self, transaction: Transaction, request: RespondWorkflowTaskCompletedRequest) -> None:
        task = transaction.state.workflow_task
        assert task is not None
        complete_workflow_task(
            transaction,
            request,
            CommandDependencies(NAMESPACE, lambda _name: None),
            scheduled_event_id=task.scheduled_event_id,
            attempt=task.attempt,
        )

    def _look_ahead(self, event: HistoryEvent, request: RespondWorkflowTaskCompletedRequest) -> None:
        """Read from later events whether the worker cached the run, and got the next task in the response."""
        for following in self.recorded[event.event_id :]:
            if following.event_type == T.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
                queue = following.workflow_task_scheduled_event_attributes.task_queue
                if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY:
                    request.sticky_attributes.worker_task_queue.name = queue.name
                    request.sticky_attributes.schedule_to_start_timeout.seconds = 10
                started = self.by_id.get(following.event_id + 1)
                scheduled_ns, now_ns = from_timestamp(following.event_time), from_timestamp(event.event_time)
                if (
                    started is not None
                    and started.event_type == T.EVENT_TYPE_WORKFLOW_TASK_STARTED
                    and from_timestamp(started.event_time) - scheduled_ns < MILLISECOND_NS
                    and scheduled_ns - now_ns < MILLISECOND_NS
                ):
                    request.return_new_workflow_task = True
                    self._answered.add(started.event_id)
                return

    def _caused_by(self, completed_event_id: int) -> list[HistoryEvent]:
        """The events that came from the commands and messages of one response."""
        caused = []
        for following in self.recorded[completed_event_id:]:
            if following.event_type in _UPDATES:
                caused.append(following)
            elif following.event_type in _COMMANDS:
                attributes = attributes_of(following)
                assert getattr(attributes, "workflow_task_completed_event_id") == completed_event_id  # noqa: B009
                caused.append(following)
            else:
                break
        return caused

    def _fail_task(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.workflow_task_failed_event_attributes
        if recorded.cause == Cause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND:
            return
        if recorded.cause == Cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND:
            request = RespondWorkflowTaskCompletedRequest(identity=recorded.identity)
            command = request.commands.add(command_type=CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION)
            command.complete_workflow_execution_command_attributes.SetInParent()
            self._complete(transaction, request)
            return
        fail_workflow_task(transaction, recorded.cause, failure=recorded.failure, identity=recorded.identity)
        schedule_workflow_task(transaction)

    def _time_out_task(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.workflow_task_timed_out_event_attributes
        task = transaction.state.workflow_task
        assert task is not None
        kind = TaskTimeout(recorded.timeout_type)
        due = WorkflowTaskTimeout(0, transaction.now_ns, task.scheduled_event_id, task.attempt, kind)
        assert time_out_workflow_task(transaction, due)

    def _start_activity(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.activity_task_started_event_attributes
        scheduled_event_id = recorded.scheduled_event_id
        now_ns = transaction.now_ns
        for attempt in range(1, recorded.attempt):
            # The times of earlier attempts are not recorded: choose one that leaves time for this attempt.
            transaction.now_ns = transaction.state.activities[scheduled_event_id].scheduled_ns
            failure = recorded.last_failure
            start_activity(transaction, scheduled_event_id, request_id=f"{attempt}", identity="earlier")
            if failure.HasField("timeout_failure_info"):
                kind = ActivityTimeoutKind(failure.timeout_failure_info.timeout_type)
                assert time_out_activity(
                    transaction, ActivityTimeout(0, transaction.now_ns, scheduled_event_id, kind, attempt, 0)
                )
            else:
                fail_activity(transaction, scheduled_event_id, attempt=attempt, failure=failure, identity="earlier")
        transaction.now_ns = now_ns
        start_activity(
            transaction,
            scheduled_event_id,
            request_id=recorded.request_id,
            identity=recorded.identity,
            worker_version=recorded.worker_version if recorded.HasField("worker_version") else None,
        )

    def _complete_activity(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.activity_task_completed_event_attributes
        complete_activity(
            transaction,
            recorded.scheduled_event_id,
            attempt=None,
            result=recorded.result if recorded.HasField("result") else None,
            identity=recorded.identity,
        )

    def _fail_activity(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.activity_task_failed_event_attributes
        fail_activity(
            transaction,
            recorded.scheduled_event_id,
            attempt=None,
            failure=recorded.failure,
            identity=recorded.identity,
        )

    def _time_out_activity(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.activity_task_timed_out_event_attributes
        information = recorded.failure.timeout_failure_info
        scheduled_event_id = recorded.scheduled_event_id
        progress = transaction.state.live.activities[scheduled_event_id]
        if information.HasField("last_heartbeat_details"):
            heartbeat_activity(
                transaction, scheduled_event_id, attempt=None, details=information.last_heartbeat_details
            )
            progress.heartbeat_at_ns -= 60 * SECOND_NS
        kind = ActivityTimeoutKind(information.timeout_type)
        assert time_out_activity(
            transaction, ActivityTimeout(0, transaction.now_ns, scheduled_event_id, kind, progress.attempt, 0)
        )

    def _cancel_activity(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.activity_task_canceled_event_attributes
        if not recorded.started_event_id:
            return
        cancel_activity(
            transaction,
            recorded.scheduled_event_id,
            attempt=None,
            details=recorded.details if recorded.HasField("details") else None,
            identity=recorded.identity,
        )

    def _fire_timer(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.timer_fired_event_attributes
        state = transaction.state
        if recorded.timer_id in state.timers and recorded.started_event_id not in state.live.ending:
            # The timer may have fired together with another one.
            assert fire_timer(transaction, UserTimer(0, 0, recorded.timer_id, recorded.started_event_id))

    def _signal(self, transaction: Transaction, event: HistoryEvent) -> None:
        assert signal(transaction, event.workflow_execution_signaled_event_attributes)

    def _request_cancel(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.workflow_execution_cancel_requested_event_attributes
        external = recorded.external_workflow_execution
        assert request_cancel(
            transaction,
            request_id="",
            cause=recorded.cause,
            identity=recorded.identity,
            external=external if recorded.HasField("external_workflow_execution") else None,
            external_initiated_event_id=recorded.external_initiated_event_id,
        )

    def _terminate(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.workflow_execution_terminated_event_attributes
        details = recorded.details if recorded.HasField("details") else None
        terminate(transaction, reason=recorded.reason, identity=recorded.identity, details=details)

    def _time_out_run(self, transaction: Transaction, _event: HistoryEvent) -> None:
        time_out_run(transaction)

    def _child_started(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.child_workflow_execution_started_event_attributes
        assert child_started(
            transaction,
            recorded.initiated_event_id,
            run_id=recorded.workflow_execution.run_id,
            header=recorded.header if recorded.HasField("header") else None,
        )

    def _child_start_failed(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.start_child_workflow_execution_failed_event_attributes
        child_start_failed(transaction, recorded.initiated_event_id, recorded.cause)

    def _child_completed(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.child_workflow_execution_completed_event_attributes
        close = HistoryEvent(event_type=T.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
        copy_set(recorded, close.workflow_execution_completed_event_attributes, ("result",))
        child_closed(transaction, recorded.initiated_event_id, execution=recorded.workflow_execution, close_event=close)

    def _child_failed(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.child_workflow_execution_failed_event_attributes
        close = HistoryEvent(event_type=T.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED)
        close.workflow_execution_failed_event_attributes.failure.CopyFrom(recorded.failure)
        close.workflow_execution_failed_event_attributes.retry_state = recorded.retry_state
        child_closed(transaction, recorded.initiated_event_id, execution=recorded.workflow_execution, close_event=close)

    def _child_canceled(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.child_workflow_execution_canceled_event_attributes
        close = HistoryEvent(event_type=T.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED)
        copy_set(recorded, close.workflow_execution_canceled_event_attributes, ("details",))
        child_closed(transaction, recorded.initiated_event_id, execution=recorded.workflow_execution, close_event=close)

    def _child_timed_out(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.child_workflow_execution_timed_out_event_attributes
        close = HistoryEvent(event_type=T.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT)
        close.workflow_execution_timed_out_event_attributes.retry_state = recorded.retry_state
        child_closed(transaction, recorded.initiated_event_id, execution=recorded.workflow_execution, close_event=close)

    def _external_signaled(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.external_workflow_execution_signaled_event_attributes
        external_signaled(transaction, recorded.initiated_event_id)

    def _external_signal_failed(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.signal_external_workflow_execution_failed_event_attributes
        external_signaled(transaction, recorded.initiated_event_id, recorded.cause)

    def _external_canceled(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.external_workflow_execution_cancel_requested_event_attributes
        external_cancel_requested(transaction, recorded.initiated_event_id)

    def _external_cancel_failed(self, transaction: Transaction, event: HistoryEvent) -> None:
        recorded = event.request_cancel_external_workflow_execution_failed_event_attributes
        external_cancel_requested(transaction, recorded.initiated_event_id, recorded.cause)


def _add_command(request: RespondWorkflowTaskCompletedRequest, event: HistoryEvent) -> None:
    """Add the command that an event came from: fields of the same name, and renamed fields."""
    if event.event_type in _UPDATES:
        _add_update(request, event)
        return
    name = _COMMANDS[event.event_type]
    command = Command(
        command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"), event_group_markers=event.event_group_markers
    )
    if event.HasField("user_metadata"):
        command.user_metadata.CopyFrom(event.user_metadata)
    wanted, recorded = getattr(command, f"{name}_command_attributes"), attributes_of(event)
    wanted.SetInParent()
    for field, value in recorded.ListFields():
        target = wanted.DESCRIPTOR.fields_by_name.get(field.name)
        if target is None:
            continue
        if field.is_repeated:
            getattr(wanted, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(wanted, field.name).CopyFrom(value)
        else:
            setattr(wanted, field.name, value)
    if name == "signal_external_workflow_execution":
        execution = event.signal_external_workflow_execution_initiated_event_attributes.workflow_execution
        wanted.execution.CopyFrom(execution)
    if name == "request_cancel_external_workflow_execution":
        execution = event.request_cancel_external_workflow_execution_initiated_event_attributes.workflow_execution
        wanted.workflow_id, wanted.run_id = execution.workflow_id, execution.run_id
    request.commands.append(command)


def _add_update(request: RespondWorkflowTaskCompletedRequest, event: HistoryEvent) -> None:
    body = AnyMessage()
    if event.event_type == T.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
        accepted = event.workflow_execution_update_accepted_event_attributes
        update_id = accepted.protocol_instance_id
        body.Pack(
            Acceptance(
                accepted_request_message_id=accepted.accepted_request_message_id,
                accepted_request_sequencing_event_id=accepted.accepted_request_sequencing_event_id,
                accepted_request=accepted.accepted_request,
            )
        )
    else:
        completed = event.workflow_execution_update_completed_event_attributes
        update_id = completed.meta.update_id
        body.Pack(Response(meta=completed.meta, outcome=completed.outcome))
    message_id = f"{update_id}/{event.event_id}"
    request.messages.append(Message(id=message_id, protocol_instance_id=update_id, body=body))
    command = request.commands.add(command_type=CommandType.COMMAND_TYPE_PROTOCOL_MESSAGE)
    command.protocol_message_command_attributes.message_id = message_id
