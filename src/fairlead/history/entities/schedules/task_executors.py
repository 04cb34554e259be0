"""Task executors of schedules: start and stop workflows, and wake the schedule when it is due."""

from dataclasses import dataclass, field

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    StartWorkflowExecutionResponse,
)

from fairlead.api.errors import NotFound
from fairlead.api.start_requests import complete_request
from fairlead.api.times import SECOND_NS, from_timestamp
from fairlead.core.errors import FixRequest, RetryElsewhere, RetryLater
from fairlead.history.entities.entity import EntityKey
from fairlead.history.entities.schedules import records
from fairlead.history.entities.schedules.actions import start_request, stop_request
from fairlead.history.entities.schedules.machine import Machine, is_expiry
from fairlead.history.entities.schedules.state import Running, ScheduleRecord, Start, Stop, WorkflowClosed
from fairlead.history.shard.context import OperationContext
from fairlead.telemetry import get_log

# Maximum number of workflow starts between two writes of the schedule.
STARTS_A_STEP_MAX = 20
# Nanoseconds after a workflow's end after which a missing close notification counts as lost.
UNREPORTED_NS = 10 * SECOND_NS

_RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
_GONE = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED

_log = get_log("history.schedules")


async def run_task(context: OperationContext, key: EntityKey, data: bytes) -> None:
    """Execute a task of a schedule."""
    if data == records.ACT:
        while await _act(context, key):
            pass
    else:
        await _wake(context, key, int.from_bytes(data.removeprefix(records.WAKE), "big"))


async def _wake(context: OperationContext, key: EntityKey, wake_ns: int) -> None:
    record = await records.read_if_there(context, key.entity_id, key.run_id)
    if record is None or record.wake_ns != wake_ns:
        return
    missed = [ended for running in record.running if (ended := await _missed_close(context, key, running)) is not None]

    def wake(machine: Machine) -> Machine:
        for ended in missed:
            machine.closed(ended)
        return machine

    woken = await records.change_if_there(context, key.entity_id, key.run_id, wake, is_wake=True)
    if woken is not None and woken.is_over():
        _log.info("idle schedule deleted", namespace=context.namespace.name, schedule_id=key.entity_id)
        await records.delete(context, key.entity_id, key.run_id)


def is_pending(record: ScheduleRecord, data: bytes, fire_at_ns: int) -> bool:
    """Whether a wake-up will have an effect. The deletion of an idle schedule does not count."""
    wake_ns = int.from_bytes(data.removeprefix(records.WAKE), "big")
    return record.wake_ns == wake_ns and not is_expiry(record, fire_at_ns)


@dataclass(slots=True)
class _Done:
    """Results of the decided starts and stops."""

    stopped: list[Stop] = field(default_factory=list)
    started: list[tuple[int, str, str]] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    # The error because of which the task is retried.
    failure: Exception | None = None

    def notify(self, machine: Machine) -> None:
        machine.stopped(self.stopped)
        for number, workflow_id, run_id in self.started:
            machine.started(number, workflow_id=workflow_id, run_id=run_id)
        for number in self.given_up:
            machine.not_started(number)


async def _act(context: OperationContext, key: EntityKey) -> bool:
    """Carry out the stops and some starts; return whether there may be more."""
    record = await records.read_if_there(context, key.entity_id, key.run_id)
    if record is None or not (record.stopping or record.starting):
        return False
    done = _Done()
    for stop in record.stopping:
        await _stop(context, key, stop, done)
    for start in record.starting[:STARTS_A_STEP_MAX]:
        await _start(context, key, record, start, done)
    if done.stopped or done.started or done.given_up:
        await records.change_if_there(context, key.entity_id, key.run_id, done.notify)
    if done.failure is not None:
        # The queue retries the task with backoff.
        raise done.failure
    return True


async def _start(context: OperationContext, key: EntityKey, record: ScheduleRecord, start: Start, done: _Done) -> None:
    request = start_request(
        record, start, namespace=context.namespace.name, schedule_id=key.entity_id, run_id=key.run_id
    )
    complete_request(request, context.services.limits.of(context.namespace.id))
    try:
        answer = await context.services.history.call(
            "StartWorkflowExecution", context.namespace.id, request.workflow_id, request
        )
    except (FixRequest, RetryLater, RetryElsewhere) as error:
        now_ns = context.services.clock_ns()
        gives_up_ns = records.machine_of(context, key.entity_id, record, now_ns).gives_up_ns(start)
        if isinstance(error, FixRequest) or now_ns > gives_up_ns:
            # Temporal's server drops the action as well; the schedule continues.
            _log.warning(
                "schedule action dropped", schedule_id=key.entity_id, workflow_id=request.workflow_id, error=str(error)
            )
            done.given_up.append(start.number)
        else:
            done.failure = error
        return
    run_id = StartWorkflowExecutionResponse.FromString(answer).run_id
    done.started.append((start.number, request.workflow_id, run_id))


async def _stop(context: OperationContext, key: EntityKey, stop: Stop, done: _Done) -> None:
    request = stop_request(stop, namespace=context.namespace.name, schedule_id=key.entity_id)
    name = "TerminateWorkflowExecution" if stop.terminates else "RequestCancelWorkflowExecution"
    try:
        await context.services.history.call(name, context.namespace.id, stop.workflow_id, request)
    except (RetryLater, RetryElsewhere) as error:
        done.failure = error
        return
    except FixRequest:
        # The workflow has closed or was deleted: there is nothing to stop.
        pass
    done.stopped.append(stop)


async def _missed_close(context: OperationContext, key: EntityKey, running: Running) -> WorkflowClosed | None:
    """The end of a workflow that is recorded as running; None if it still runs or has just closed."""
    try:
        status = await _status(context, running)
    except (FixRequest, RetryLater, RetryElsewhere):
        return None
    return None if status is None else WorkflowClosed(key.entity_id, key.run_id, running.number, status)


async def _status(context: OperationContext, running: Running) -> int | None:
    """The status of a workflow that closed a while ago; None if it runs or has just closed."""
    for run_id in ("", running.run_id):
        execution = WorkflowExecution(workflow_id=running.workflow_id, run_id=run_id)
        request = DescribeWorkflowExecutionRequest(namespace=context.namespace.name, execution=execution)
        try:
            answer = await context.services.history.call(
                "DescribeWorkflowExecution", context.namespace.id, running.workflow_id, request
            )
        except NotFound:
            return int(_GONE)
        info = DescribeWorkflowExecutionResponse.FromString(answer).workflow_execution_info
        if running.run_id in (info.execution.run_id, info.first_run_id):
            ended_ns = from_timestamp(info.close_time)
            is_old = info.status != _RUNNING and context.services.clock_ns() - ended_ns > UNREPORTED_NS
            return int(info.status) if is_old else None
        # Another workflow uses the id now: describe the run by its run id.
    return None
