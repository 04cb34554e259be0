"""Handlers of the history service for schedules."""

import asyncio

from google.protobuf.message import Message
from temporalio.api.errordetails.v1 import QueryFailedFailure
from temporalio.api.workflowservice.v1 import (
    CreateScheduleRequest,
    CreateScheduleResponse,
    DeleteScheduleRequest,
    DeleteScheduleResponse,
    DescribeScheduleRequest,
    ListScheduleMatchingTimesRequest,
    ListScheduleMatchingTimesResponse,
    PatchScheduleRequest,
    PatchScheduleResponse,
    UpdateScheduleRequest,
    UpdateScheduleResponse,
)

from fairlead.api.error_details import already_started, packed
from fairlead.api.errors import FailedPrecondition, InvalidArgument
from fairlead.api.schedules.lists import ARCHETYPE
from fairlead.api.search.attributes import add_types
from fairlead.api.times import SECOND_NS, from_timestamp, to_timestamp
from fairlead.history.entities import entity
from fairlead.history.entities.entity import Archetype, register
from fairlead.history.entities.schedules import records
from fairlead.history.entities.schedules.machine import REQUEST_IDS_MAX, Machine, filled_in
from fairlead.history.entities.schedules.responses import described, token_of, with_types
from fairlead.history.entities.schedules.state import ScheduleRecord, WorkflowClosed
from fairlead.history.entities.schedules.task_executors import is_pending, run_task
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.storage.history_conflicts import CurrentConflict

MATCHING_TIMES_MAX = 1000
# Maximum seconds that DescribeSchedule waits for a workflow start that was decided during this time.
START_WAIT_S = 2


async def create(context: OperationContext, request: CreateScheduleRequest) -> Message:
    """Create a schedule; the spec of the request is in structured form."""
    now_ns = context.services.clock_ns()
    record = ScheduleRecord(
        filled_in(request.schedule).SerializeToString(deterministic=True),
        request.memo.SerializeToString(deterministic=True),
        with_types(request.search_attributes, context.namespace.search_attributes),
        created_ns=now_ns,
        after_ns=now_ns,
    )
    machine = records.machine_of(context, request.schedule_id, record, now_ns)
    if request.HasField("initial_patch"):
        machine.patch(request.initial_patch)
    machine.advance()
    run_id = context.services.new_id()
    try:
        await records.create(context, request.schedule_id, run_id, machine, request_id=request.request_id)
    except CurrentConflict as conflict:
        present = conflict.present
        if present is None:
            raise
        if present.request_id != request.request_id:
            message = f'schedule "{request.schedule_id}" is already registered'
            raise already_started(message, request_id=present.request_id, run_id=present.run_id) from None
        # The request is a retry: return the same response.
        _, record = await records.read(context, request.schedule_id)
    return CreateScheduleResponse(conflict_token=token_of(record))


async def describe(context: OperationContext, request: DescribeScheduleRequest) -> Message:
    """Describe a schedule, including the workflows that it has just decided to start."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + min(context.timeout_s, START_WAIT_S)
    while True:
        run_id, record = await records.read(context, request.schedule_id)
        now_ns = context.services.clock_ns()
        if loop.time() >= end_s or not _begins_soon(record, now_ns):
            break
        await entity.wait_for_change(
            context, records.archetype(), request.schedule_id, run_id, max(0.0, end_s - loop.time())
        )
    machine = records.machine_of(context, request.schedule_id, record, now_ns)
    add_types(machine.schedule.action.start_workflow.search_attributes, context.namespace)
    return described(machine)


def _begins_soon(record: ScheduleRecord, now_ns: int) -> bool:
    """Whether a workflow start was decided just now; a start that keeps failing does not count."""
    return any(now_ns - start.decided_ns < START_WAIT_S * SECOND_NS for start in record.starting)


async def update(context: OperationContext, request: UpdateScheduleRequest) -> Message:
    """Replace the schedule; fails if the conflict token of the request is outdated."""

    def act(machine: Machine) -> None:
        record = machine.record
        if not _is_new(record, request.request_id):
            return
        # The old spec applies to times that are due by now.
        machine.advance()
        if request.conflict_token and request.conflict_token != token_of(record):
            raise FailedPrecondition("mismatched conflict token")
        machine.update(request.schedule)
        if request.HasField("search_attributes"):
            record.search_attributes = with_types(request.search_attributes, context.namespace.search_attributes)
        if request.HasField("memo"):
            record.memo = request.memo.SerializeToString(deterministic=True)

    await records.change(context, request.schedule_id, "", act)
    return UpdateScheduleResponse()


async def patch(context: OperationContext, request: PatchScheduleRequest) -> Message:
    """Trigger, backfill, pause or unpause."""

    def act(machine: Machine) -> None:
        if _is_new(machine.record, request.request_id):
            # A pause applies to later times, not to times that are due by now.
            machine.advance()
            machine.patch(request.patch)

    await records.change(context, request.schedule_id, "", act)
    return PatchScheduleResponse()


async def delete(context: OperationContext, request: DeleteScheduleRequest) -> Message:
    """Delete a schedule. Workflows that it started continue."""
    await records.delete(context, request.schedule_id)
    return DeleteScheduleResponse()


async def matching_times(context: OperationContext, request: ListScheduleMatchingTimesRequest) -> Message:
    """List the times between two times at which a schedule fires."""
    _, record = await records.read(context, request.schedule_id)
    if not request.HasField("start_time") or not request.HasField("end_time"):
        raise InvalidArgument("missing or invalid query", packed(QueryFailedFailure()))
    machine = records.machine_of(context, request.schedule_id, record, context.services.clock_ns())
    start_ns, end_ns = from_timestamp(request.start_time), from_timestamp(request.end_time)
    times = machine.matching_times(start_ns, end_ns, MATCHING_TIMES_MAX)
    return ListScheduleMatchingTimesResponse(start_time=[to_timestamp(time_ns) for time_ns in times])


async def workflow_closed(context: OperationContext, closed: WorkflowClosed) -> bytes:
    """Record the end of a workflow that the schedule started; does nothing if the schedule was deleted."""

    def act(machine: Machine) -> None:
        machine.closed(closed)

    await records.change_if_there(context, closed.schedule_id, closed.schedule_run_id, act)
    return b""


def _is_new(record: ScheduleRecord, request_id: str) -> bool:
    """Whether the request was not carried out before; also remembers its id."""
    if not request_id:
        return True
    if request_id in record.request_ids:
        return False
    record.request_ids = [*record.request_ids, request_id][-REQUEST_IDS_MAX:]
    return True


register(Archetype(ARCHETYPE, ScheduleRecord, run_task, is_pending))

OPERATIONS = {
    "CreateSchedule": Operation(CreateScheduleRequest, create),
    "DescribeSchedule": Operation(DescribeScheduleRequest, describe),
    "UpdateSchedule": Operation(UpdateScheduleRequest, update),
    "PatchSchedule": Operation(PatchScheduleRequest, patch),
    "DeleteSchedule": Operation(DeleteScheduleRequest, delete),
    "ListScheduleMatchingTimes": Operation(ListScheduleMatchingTimesRequest, matching_times),
    "ScheduleWorkflowClosed": Operation(WorkflowClosed, workflow_closed),
}
