"""What the history service is asked for about schedules."""

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

from fairlead.history.entities import Archetype, register
from fairlead.history.refusals import already_started, failed_precondition, refused
from fairlead.history.schedules import records
from fairlead.history.schedules.acting import run_task
from fairlead.history.schedules.answers import described, token_of, with_types
from fairlead.history.schedules.machine import REQUEST_IDS_MAX, Machine, filled_in
from fairlead.history.schedules.state import ScheduleRecord, WorkflowClosed
from fairlead.history.scope import Operation, Scope
from fairlead.history.state.times import from_timestamp, to_timestamp
from fairlead.rpc import Code
from fairlead.storage.history_contract import CurrentConflict

MATCHING_TIMES_MAX = 1000


async def create(scope: Scope, request: CreateScheduleRequest) -> Message:
    """Begin a schedule, whose spec is in structured form."""
    now_ns = scope.services.clock_ns()
    record = ScheduleRecord(
        filled_in(request.schedule).SerializeToString(deterministic=True),
        request.memo.SerializeToString(deterministic=True),
        with_types(request.search_attributes, scope.namespace.search_attributes),
        created_ns=now_ns,
        after_ns=now_ns,
    )
    machine = records.machine_of(scope, request.schedule_id, record, now_ns)
    if request.HasField("initial_patch"):
        machine.patch(request.initial_patch)
    machine.advance()
    run_id = scope.services.new_id()
    try:
        await records.create(scope, request.schedule_id, run_id, machine, request_id=request.request_id)
    except CurrentConflict as conflict:
        present = conflict.present
        if present is None:
            raise
        if present.request_id != request.request_id:
            message = f'schedule "{request.schedule_id}" is already registered'
            raise already_started(message, request_id=present.request_id, run_id=present.run_id) from None
        # The same request again: the same answer.
        _, record = await records.read(scope, request.schedule_id)
    return CreateScheduleResponse(conflict_token=token_of(record))


async def describe(scope: Scope, request: DescribeScheduleRequest) -> Message:
    """All about a schedule."""
    _, record = await records.read(scope, request.schedule_id)
    return described(records.machine_of(scope, request.schedule_id, record, scope.services.clock_ns()))


async def update(scope: Scope, request: UpdateScheduleRequest) -> Message:
    """Replace what users have set, unless it is not any more what they saw."""

    def act(machine: Machine) -> None:
        record = machine.record
        if not _is_new(record, request.request_id):
            return
        # What was due until now is due by the old spec.
        machine.advance()
        if request.conflict_token and request.conflict_token != token_of(record):
            raise failed_precondition("mismatched conflict token")
        machine.update(request.schedule)
        if request.HasField("search_attributes"):
            record.search_attributes = with_types(request.search_attributes, scope.namespace.search_attributes)
        if request.HasField("memo"):
            record.memo = request.memo.SerializeToString(deterministic=True)

    await records.change(scope, request.schedule_id, "", act)
    return UpdateScheduleResponse()


async def patch(scope: Scope, request: PatchScheduleRequest) -> Message:
    """Trigger, backfill, pause or go on."""

    def act(machine: Machine) -> None:
        if _is_new(machine.record, request.request_id):
            # A pause is for what comes, not for what is due already.
            machine.advance()
            machine.patch(request.patch)

    await records.change(scope, request.schedule_id, "", act)
    return PatchScheduleResponse()


async def delete(scope: Scope, request: DeleteScheduleRequest) -> Message:
    """Delete a schedule. Workflows that it started go on."""
    await records.delete(scope, request.schedule_id)
    return DeleteScheduleResponse()


async def matching_times(scope: Scope, request: ListScheduleMatchingTimesRequest) -> Message:
    """When a schedule fires in a span of time."""
    _, record = await records.read(scope, request.schedule_id)
    if not request.HasField("start_time") or not request.HasField("end_time"):
        raise refused(Code.INVALID_ARGUMENT, "missing or invalid query", QueryFailedFailure())
    machine = records.machine_of(scope, request.schedule_id, record, scope.services.clock_ns())
    start_ns, end_ns = from_timestamp(request.start_time), from_timestamp(request.end_time)
    times = machine.matching_times(start_ns, end_ns, MATCHING_TIMES_MAX)
    return ListScheduleMatchingTimesResponse(start_time=[to_timestamp(time_ns) for time_ns in times])


async def workflow_closed(scope: Scope, closed: WorkflowClosed) -> bytes:
    """A workflow of a schedule has ended. If the schedule is gone meanwhile, nobody needs to know."""

    def act(machine: Machine) -> None:
        machine.closed(closed)

    await records.change_if_there(scope, closed.schedule_id, closed.schedule_run_id, act)
    return b""


def _is_new(record: ScheduleRecord, request_id: str) -> bool:
    """Whether the request was not carried out yet; remembers it."""
    if not request_id:
        return True
    if request_id in record.request_ids:
        return False
    record.request_ids = [*record.request_ids, request_id][-REQUEST_IDS_MAX:]
    return True


register(Archetype(records.ARCHETYPE, ScheduleRecord, run_task))

OPERATIONS = {
    "CreateSchedule": Operation(CreateScheduleRequest, create),
    "DescribeSchedule": Operation(DescribeScheduleRequest, describe),
    "UpdateSchedule": Operation(UpdateScheduleRequest, update),
    "PatchSchedule": Operation(PatchScheduleRequest, patch),
    "DeleteSchedule": Operation(DeleteScheduleRequest, delete),
    "ListScheduleMatchingTimes": Operation(ListScheduleMatchingTimesRequest, matching_times),
    "ScheduleWorkflowClosed": Operation(WorkflowClosed, workflow_closed),
}
