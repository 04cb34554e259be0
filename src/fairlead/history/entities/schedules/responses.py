"""Schedules in responses: the description, and the entry in a list."""

from collections.abc import Mapping, Sequence

from temporalio.api.common.v1 import Memo, SearchAttributes, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.schedule.v1 import ScheduleActionResult, ScheduleInfo, ScheduleListInfo
from temporalio.api.workflowservice.v1 import DescribeScheduleResponse

from fairlead.api.schedules.lists import _INFO, PAUSED, SCHEDULE_ID
from fairlead.api.search.attributes import WrongValue, to_value
from fairlead.api.search.names import TYPE_NAMES, type_of
from fairlead.api.times import to_timestamp
from fairlead.core.hashing import hash64
from fairlead.history.entities.schedules.machine import Machine
from fairlead.history.entities.schedules.state import Action, ScheduleRecord
from fairlead.storage.visibility import SearchValue, VisibilityRow

# Maximum number of recent and of future actions in a list entry.
LISTED_ACTIONS_MAX = 5
TOKEN_BYTES = 8


def token_of(record: ScheduleRecord) -> bytes:
    """The conflict token: an update sends it to name the state on which it is based."""
    return record.conflict_token.to_bytes(TOKEN_BYTES, "big")


def described(machine: Machine) -> DescribeScheduleResponse:
    """The response to DescribeSchedule."""
    record = machine.record
    info = ScheduleInfo(
        action_count=record.action_count,
        missed_catchup_window=record.missed_catchup_window,
        overlap_skipped=record.overlap_skipped,
        buffer_dropped=record.buffer_dropped,
        buffer_size=len(record.buffered),
        running_workflows=[
            WorkflowExecution(workflow_id=running.workflow_id, run_id=running.run_id) for running in record.running
        ],
        recent_actions=_results(record.recent),
        future_action_times=[to_timestamp(time_ns) for time_ns in machine.future_times()],
        create_time=to_timestamp(record.created_ns),
    )
    if record.updated_ns:
        info.update_time.CopyFrom(to_timestamp(record.updated_ns))
    return DescribeScheduleResponse(
        schedule=machine.schedule,
        info=info,
        memo=Memo.FromString(record.memo) if record.memo else None,
        search_attributes=SearchAttributes.FromString(record.search_attributes) if record.search_attributes else None,
        conflict_token=token_of(record),
    )


def row_of(
    machine: Machine, *, namespace_id: str, schedule_id: str, run_id: str, custom: Mapping[str, int]
) -> VisibilityRow | None:
    """The visibility row of the schedule; None if the stored row is up to date."""
    record = machine.record
    memo = Memo.FromString(record.memo)
    info = _list_info(machine)
    memo.fields[_INFO].data = info.SerializeToString(deterministic=True)
    values = _values(SearchAttributes.FromString(record.search_attributes), custom)
    values[SCHEDULE_ID] = schedule_id
    values[PAUSED] = machine.schedule.state.paused
    serialized = memo.SerializeToString(deterministic=True)
    listed = hash64(repr((serialized, sorted(values.items(), key=str)))) >> 1
    if listed == record.listed:
        return None
    record.listed = listed
    return VisibilityRow(
        namespace_id,
        run_id,
        schedule_id,
        workflow_type=machine.schedule.action.start_workflow.workflow_type.name,
        status=int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING),
        start_time_ns=record.created_ns,
        execution_time_ns=record.created_ns,
        task_queue="",
        memo=serialized,
        search_attributes=values,
    )


def with_types(attributes: SearchAttributes, custom: Mapping[str, int]) -> bytes:
    """The search attributes to store, each with its type; without the one that the schedule sets itself."""
    kept = SearchAttributes()
    for name, payload in attributes.indexed_fields.items():
        number = type_of(name, custom)
        if name != PAUSED and number is not None:
            kept.indexed_fields[name].CopyFrom(payload)
            kept.indexed_fields[name].metadata["type"] = TYPE_NAMES[number].encode()
    return kept.SerializeToString(deterministic=True)


def _list_info(machine: Machine) -> ScheduleListInfo:
    schedule = machine.schedule
    info = ScheduleListInfo(
        spec=schedule.spec,
        notes=schedule.state.notes,
        paused=schedule.state.paused,
        recent_actions=_results(machine.record.recent[-LISTED_ACTIONS_MAX:]),
        future_action_times=[to_timestamp(time_ns) for time_ns in machine.future_times(LISTED_ACTIONS_MAX)],
    )
    info.spec.ClearField("timezone_data")
    if schedule.action.HasField("start_workflow"):
        info.workflow_type.CopyFrom(schedule.action.start_workflow.workflow_type)
    return info


def _results(actions: Sequence[Action]) -> list[ScheduleActionResult]:
    return [
        ScheduleActionResult(
            schedule_time=to_timestamp(action.scheduled_ns),
            actual_time=to_timestamp(action.actual_ns),
            start_workflow_result=WorkflowExecution(workflow_id=action.workflow_id, run_id=action.run_id),
            start_workflow_status=WorkflowExecutionStatus.ValueType(action.status),
        )
        for action in actions
    ]


def _values(attributes: SearchAttributes, custom: Mapping[str, int]) -> dict[str, SearchValue]:
    values: dict[str, SearchValue] = {}
    for name, payload in attributes.indexed_fields.items():
        number = type_of(name, custom)
        if number is None:
            continue
        try:
            value = to_value(payload, number)
        except WrongValue:
            continue
        if value is not None:
            values[name] = value
    return values
