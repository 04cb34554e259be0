"""Sends requests to Nexus handlers, times them out, and delivers completion callbacks."""

from contextlib import suppress

from temporalio.api.common.v1 import Callback, Link
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.links import event_link, request_link
from fairlead.history.commands.system_operation import SYSTEM_ENDPOINT
from fairlead.history.events import Transaction
from fairlead.history.events.write_nexus import (
    call_failed,
    cancel_answered,
    end_call_backoff,
    give_up_call,
    is_called,
    operation_completed,
    operation_failed,
    time_out_operation,
)
from fairlead.history.messages.matching_tasks import MatchedEntityTask
from fairlead.history.nexus.callbacks import NO_RESULT, outcome_of
from fairlead.history.nexus.delivery import deliver
from fairlead.history.nexus.dispatch import dispatch
from fairlead.history.nexus.requests import NexusCall, encode_call
from fairlead.history.nexus.system import call_system, result_of
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending, RunClosed, RunState
from fairlead.history.state.outcomes import closed_before_outcome
from fairlead.history.state.pending import UpdateRecord
from fairlead.history.state.tasks import (
    CallNexus,
    DeliverCallback,
    DeliverUpdateCallback,
    NexusCallTimeout,
    NexusRetry,
    NexusTimeout,
    QueueRow,
)
from fairlead.history.task_executors.timers import if_due
from fairlead.history.task_executors.verification import is_meant


async def call(context: OperationContext, row: QueueRow, task: CallNexus) -> None:
    """Offer a request to the workers of the endpoint, in the background, because it may wait until its timeout.

    If no worker takes it, or this host fails, the request is made again after its durable timeout.
    """
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        if not is_meant(run.state, task) or not is_called(
            run.state, task.scheduled_event_id, task.attempt, is_cancel=task.is_cancel
        ):
            return
        operation = run.state.nexus_operations[task.scheduled_event_id]
        skipped_ns = run.state.skipped_ns
        is_system = operation.endpoint == SYSTEM_ENDPOINT
        event = await shard.events.read_event(run.state, task.scheduled_event_id) if is_system else None
    if event is not None:
        await _call_system(context, row, task, event)
        return

    def matched(handler_namespace_id: str, now_ns: int) -> MatchedEntityTask:
        data = encode_call(
            NexusCall(handler_namespace_id, task.scheduled_event_id, task.attempt, task.is_cancel, now_ns + skipped_ns)
        )
        return MatchedEntityTask(row.namespace_id, row.workflow_id, row.run_id, "StartNexusTask", data)

    failure = await dispatch(context, endpoint_id=operation.endpoint_id, endpoint=operation.endpoint, task=matched)
    if failure is not None:
        await _reject(context, row, task, failure)


async def _call_system(context: OperationContext, row: QueueRow, task: CallNexus, event: HistoryEvent) -> None:
    """Run an operation of the server's own endpoint."""
    link = event_link(
        namespace=context.namespace.name,
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        event_id=event.event_id,
        event_type=event.event_type,
    )
    response, failure = await call_system(context, event, link)

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        event_id, attempt = task.scheduled_event_id, task.attempt
        if failure is not None:
            operation_failed(transaction, event_id, cause=failure, attempt=attempt)
        elif response is not None:
            operation_completed(
                transaction, event_id, result=result_of(response), links=[response.signal_link], attempt=attempt
            )

    with suppress(NotPending, RunClosed):
        await context.shard.change(context.namespace, row.workflow_id, row.run_id, step)


async def _reject(context: OperationContext, row: QueueRow, task: CallNexus, failure: Failure) -> None:
    """Fail a request that no worker can take."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        answer = cancel_answered if task.is_cancel else call_failed
        answer(transaction, task.scheduled_event_id, failure=failure, attempt=task.attempt)

    await context.shard.change(context.namespace, row.workflow_id, row.run_id, step)


async def call_timeout(context: OperationContext, row: QueueRow, due: NexusCallTimeout) -> None:
    """Time out a request without a response."""
    await if_due(context, row, lambda transaction: give_up_call(transaction, due))


async def retry(context: OperationContext, row: QueueRow, due: NexusRetry) -> None:
    """Make a request again after its backoff."""
    await if_due(context, row, lambda transaction: end_call_backoff(transaction, due))


async def operation_timeout(context: OperationContext, row: QueueRow, due: NexusTimeout) -> None:
    """Time out an operation."""
    await if_due(context, row, lambda transaction: time_out_operation(transaction, due))


async def deliver_callback(context: OperationContext, row: QueueRow, task: DeliverCallback) -> None:
    """Report a run's close to the caller of the Nexus operation that the run backs."""
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        state = run.state
        if task.number in state.live.callbacks or not is_meant(state, task):
            return
        callback = Callback.FromString(state.started.completion_callbacks[task.number])
        event = await shard.events.read_event(state, task.close_event_id)
    result, failure = outcome_of(event)
    progress = await deliver(
        context,
        callback,
        started_ns=state.started.started_ns,
        link=_started_link(context, state),
        result=result,
        failure=failure,
    )

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.live.callbacks[task.number] = progress

    await shard.change(context.namespace, row.workflow_id, row.run_id, step, only_open=False)


async def deliver_update_callback(context: OperationContext, row: QueueRow, task: DeliverUpdateCallback) -> None:
    """Report an update's outcome to the caller of the Nexus operation that the update backs."""
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        state = run.state
        record = state.updates.get(task.update_id)
        delivered = state.live.update_callbacks.get(task.update_id, {})
        if record is None or task.number >= len(record.callbacks):
            return
        if task.number in delivered or not is_meant(state, task):
            return
        registered = record.callbacks[task.number]
        event = await shard.events.read_event(state, task.event_id)
    outcome = event.workflow_execution_update_completed_event_attributes.outcome
    if not record.completed_event_id:
        outcome = closed_before_outcome()
    payloads = outcome.success.payloads
    progress = await deliver(
        context,
        Callback.FromString(registered.callback),
        started_ns=registered.registered_ns,
        link=_accepted_link(context, state, record),
        result=payloads[0] if payloads else NO_RESULT,
        failure=outcome.failure if outcome.HasField("failure") else None,
    )

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.live.update_callbacks.setdefault(task.update_id, {})[task.number] = progress

    await shard.change(context.namespace, row.workflow_id, row.run_id, step, only_open=False)


def _accepted_link(context: OperationContext, state: RunState, record: UpdateRecord) -> Link:
    identity = state.identity
    return request_link(
        namespace=context.namespace.name,
        workflow_id=identity.workflow_id,
        run_id=identity.run_id,
        request_id=record.request_id,
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    )


def _started_link(context: OperationContext, state: RunState) -> Link:
    identity = state.identity
    return event_link(
        namespace=context.namespace.name,
        workflow_id=identity.workflow_id,
        run_id=identity.run_id,
        event_id=1,
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    )
