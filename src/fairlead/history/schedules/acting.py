"""A schedule's tasks carried out: its workflows started and stopped, and the schedule woken when its time comes."""

from dataclasses import dataclass, field

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    StartWorkflowExecutionResponse,
)

from fairlead.core.errors import FixRequest, RetryElsewhere, RetryLater
from fairlead.history.entities import EntityKey
from fairlead.history.events import complete_request
from fairlead.history.refusals import Refused
from fairlead.history.schedules import records
from fairlead.history.schedules.actions import start_request, stop_request
from fairlead.history.schedules.machine import Machine
from fairlead.history.schedules.state import Running, ScheduleRecord, Start, Stop, WorkflowClosed
from fairlead.history.scope import Scope
from fairlead.history.state.errors import NotPending, RunClosed
from fairlead.history.state.times import SECOND_NS, from_timestamp
from fairlead.rpc import Code
from fairlead.telemetry import get_log

# Workflows that are started between two writes of the schedule.
STARTS_A_STEP_MAX = 20
# A workflow that ended so long ago and was not told to the schedule never will be.
UNTOLD_NS = 10 * SECOND_NS

_RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
_GONE = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED
_WORTH_ANOTHER_TRY = (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.ABORTED)

_log = get_log("history.schedules")


async def run_task(scope: Scope, key: EntityKey, data: bytes) -> None:
    """Do what a task of a schedule says."""
    if data == records.ACT:
        while await _act(scope, key):
            pass
    else:
        await _wake(scope, key, int.from_bytes(data.removeprefix(records.WAKE), "big"))


async def _wake(scope: Scope, key: EntityKey, wake_ns: int) -> None:
    record = await records.read_if_there(scope, key.entity_id, key.run_id)
    if record is None or record.wake_ns != wake_ns:
        return
    untold = [ended for running in record.running if (ended := await _ended_untold(scope, key, running)) is not None]

    def wake(machine: Machine) -> Machine:
        for ended in untold:
            machine.closed(ended)
        return machine

    woken = await records.change_if_there(scope, key.entity_id, key.run_id, wake, is_wake=True)
    if woken is not None and woken.is_over():
        _log.info("schedule has nothing more to do", namespace=scope.namespace.name, schedule_id=key.entity_id)
        await records.delete(scope, key.entity_id, key.run_id)


@dataclass(slots=True)
class _Done:
    """What became of what was decided."""

    stopped: list[Stop] = field(default_factory=list)
    started: list[tuple[int, str, str]] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    # What has to be tried again.
    failure: Exception | None = None

    def tell(self, machine: Machine) -> None:
        machine.stopped(self.stopped)
        for number, workflow_id, run_id in self.started:
            machine.started(number, workflow_id=workflow_id, run_id=run_id)
        for number in self.given_up:
            machine.not_started(number)


async def _act(scope: Scope, key: EntityKey) -> bool:
    """Stop and start what is to be, some at a time. Whether there may be more."""
    record = await records.read_if_there(scope, key.entity_id, key.run_id)
    if record is None or not (record.stopping or record.starting):
        return False
    done = _Done()
    for stop in record.stopping:
        await _stop(scope, key, stop, done)
    for start in record.starting[:STARTS_A_STEP_MAX]:
        await _start(scope, key, record, start, done)
    if done.stopped or done.started or done.given_up:
        await records.change_if_there(scope, key.entity_id, key.run_id, done.tell)
    if done.failure is not None:
        # The queue tries again, after ever longer waits.
        raise done.failure
    return True


async def _start(scope: Scope, key: EntityKey, record: ScheduleRecord, start: Start, done: _Done) -> None:
    request = start_request(record, start, namespace=scope.namespace.name, schedule_id=key.entity_id, run_id=key.run_id)
    complete_request(request, scope.services.limits)
    try:
        answer = await scope.services.history.call(
            "StartWorkflowExecution", scope.namespace.id, request.workflow_id, request
        )
    except (FixRequest, RetryLater, RetryElsewhere) as error:
        now_ns = scope.services.clock_ns()
        gives_up_ns = records.machine_of(scope, key.entity_id, record, now_ns).gives_up_ns(start)
        if not _may_succeed(error) or now_ns > gives_up_ns:
            # As in Temporal's server: it is left out, and the schedule goes on.
            _log.warning(
                "action left out", schedule_id=key.entity_id, workflow_id=request.workflow_id, error=str(error)
            )
            done.given_up.append(start.number)
        else:
            done.failure = error
        return
    run_id = StartWorkflowExecutionResponse.FromString(answer).run_id
    done.started.append((start.number, request.workflow_id, run_id))


async def _stop(scope: Scope, key: EntityKey, stop: Stop, done: _Done) -> None:
    request = stop_request(stop, namespace=scope.namespace.name, schedule_id=key.entity_id)
    name = "TerminateWorkflowExecution" if stop.terminates else "RequestCancelWorkflowExecution"
    try:
        await scope.services.history.call(name, scope.namespace.id, stop.workflow_id, request)
    except (RetryLater, RetryElsewhere) as error:
        done.failure = error
        return
    except (FixRequest, NotPending, RunClosed) as error:
        if _may_succeed(error):
            done.failure = error
            return
        # It has ended by itself, or is gone: there is nothing to stop.
    done.stopped.append(stop)


def _may_succeed(error: Exception) -> bool:
    """Whether the same request may be granted later."""
    if isinstance(error, Refused):
        return error.code in _WORTH_ANOTHER_TRY
    return isinstance(error, RetryLater | RetryElsewhere)


async def _ended_untold(scope: Scope, key: EntityKey, running: Running) -> WorkflowClosed | None:
    """What to record of a workflow that is thought to run and does not: somebody has deleted it, perhaps."""
    try:
        status = await _status(scope, running)
    except (FixRequest, RetryLater, RetryElsewhere):
        return None
    return None if status is None else WorkflowClosed(key.entity_id, key.run_id, running.number, status)


async def _status(scope: Scope, running: Running) -> int | None:
    """The status with which the workflow ended a while ago; None if it runs, or ended just now."""
    for run_id in ("", running.run_id):
        execution = WorkflowExecution(workflow_id=running.workflow_id, run_id=run_id)
        request = DescribeWorkflowExecutionRequest(namespace=scope.namespace.name, execution=execution)
        try:
            answer = await scope.services.history.call(
                "DescribeWorkflowExecution", scope.namespace.id, running.workflow_id, request
            )
        except Refused as error:
            if error.code == Code.NOT_FOUND:
                return int(_GONE)
            raise
        info = DescribeWorkflowExecutionResponse.FromString(answer).workflow_execution_info
        if running.run_id in (info.execution.run_id, info.first_run_id):
            ended_ns = from_timestamp(info.close_time)
            is_old = info.status != _RUNNING and scope.services.clock_ns() - ended_ns > UNTOLD_NS
            return int(info.status) if is_old else None
        # Another workflow has the id now: ask for the run itself.
    return None
