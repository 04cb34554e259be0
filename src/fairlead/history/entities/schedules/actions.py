"""The requests by which a schedule starts, cancels and terminates workflows."""

import json
from datetime import UTC, datetime

import msgspec
from temporalio.api.common.v1 import Callback, Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowIdReusePolicy
from temporalio.api.failure.v1 import Failure
from temporalio.api.schedule.v1 import Schedule
from temporalio.api.workflowservice.v1 import (
    RequestCancelWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
)

from fairlead.api.times import SECOND_NS
from fairlead.history.entities.schedules.state import ScheduleRecord, Start, Stop


class Watch(msgspec.Struct, array_like=True, frozen=True, tag="schedule"):
    """Data of the internal callback of a started workflow: the schedule to notify of its end, and the action."""

    schedule_id: str
    schedule_run_id: str
    number: int


def start_request(
    record: ScheduleRecord, start: Start, *, namespace: str, schedule_id: str, run_id: str
) -> StartWorkflowExecutionRequest:
    """The request to start a workflow.

    It is the same for each retry of an action, so that a retry starts no second workflow.
    """
    schedule = Schedule.FromString(record.schedule)
    action = schedule.action.start_workflow
    nominal = datetime.fromtimestamp(start.nominal_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    keeps_id = schedule.policies.keep_original_workflow_id
    request = StartWorkflowExecutionRequest(
        namespace=namespace,
        workflow_id=action.workflow_id if keeps_id else f"{action.workflow_id}-{nominal}",
        identity=identity(namespace, schedule_id),
        request_id=f"{run_id}-{start.number}",
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
    )
    for field, value in action.ListFields():
        if field.name not in ("workflow_id", "workflow_id_reuse_policy", "cron_schedule"):
            getattr(request, field.name).CopyFrom(value)
    fields = request.search_attributes.indexed_fields
    fields["TemporalScheduledStartTime"].CopyFrom(_payload(nominal, b"Datetime"))
    fields["TemporalScheduledById"].CopyFrom(_payload(schedule_id, b"Keyword"))
    if not start.overlaps:
        # A workflow that overlaps others has no single predecessor, and so gets no last result.
        if record.last_result:
            request.last_completion_result.CopyFrom(Payloads.FromString(record.last_result))
        if record.last_failure:
            request.continued_failure.CopyFrom(Failure.FromString(record.last_failure))
    watch = msgspec.msgpack.encode(Watch(schedule_id, run_id, start.number))
    request.completion_callbacks.append(Callback(internal=Callback.Internal(data=watch)))
    return request


def stop_request(
    stop: Stop, *, namespace: str, schedule_id: str
) -> RequestCancelWorkflowExecutionRequest | TerminateWorkflowExecutionRequest:
    """The request to cancel or terminate a workflow: the current run of the chain that began with `stop.run_id`."""
    execution = WorkflowExecution(workflow_id=stop.workflow_id)
    name = identity(namespace, schedule_id)
    if stop.terminates:
        return TerminateWorkflowExecutionRequest(
            namespace=namespace,
            workflow_execution=execution,
            first_execution_run_id=stop.run_id,
            reason="terminated by schedule overlap policy",
            identity=name,
        )
    return RequestCancelWorkflowExecutionRequest(
        namespace=namespace,
        workflow_execution=execution,
        first_execution_run_id=stop.run_id,
        reason="cancelled by schedule overlap policy",
        request_id=f"{stop.run_id}-cancel",
        identity=name,
    )


def identity(namespace: str, schedule_id: str) -> str:
    """The identity in a schedule's requests."""
    return f"temporal-scheduler-{namespace}-{schedule_id}"


def _payload(value: str, kind: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain", "type": kind}, data=json.dumps(value).encode())
