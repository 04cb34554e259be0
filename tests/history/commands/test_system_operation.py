"""Operations of the server's own Nexus endpoint, as a workflow schedules them."""

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest as QueryResult
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest as Request

from fairlead.history.commands import CommandDependencies, Completion, complete_workflow_task
from fairlead.history.commands.system_operation import OPERATION, SERVICE, SYSTEM_ENDPOINT
from fairlead.history.state.tasks import CallNexus
from tests.history.scenario import Scenario, command


def request(**fields: object) -> Request:
    wanted = Request(workflow_id="other", signal_name="hear")
    wanted.workflow_type.name = "Listens"
    wanted.task_queue.name = "queue"
    wanted.MergeFrom(Request(**fields))  # type: ignore[arg-type]
    return wanted


def schedule(data: bytes, *, service: str = SERVICE, operation: str = OPERATION, enabled: bool = True) -> Completion:
    run = Scenario()
    run.start_task()
    wanted = command(
        "schedule_nexus_operation",
        endpoint=SYSTEM_ENDPOINT,
        service=service,
        operation=operation,
        input=Payload(data=data),
    )
    endpoints = {SYSTEM_ENDPOINT: ""} if enabled else {}
    completion = run.step(
        lambda transaction: complete_workflow_task(
            transaction,
            QueryResult(identity="worker", commands=[wanted]),
            CommandDependencies("default", {"default": "namespace-id"}.get, nexus_endpoints=endpoints),
            scheduled_event_id=2,
            attempt=1,
        )
    )
    if completion.failed is None:
        assert run.types(4) == ["NEXUS_OPERATION_SCHEDULED"]
        assert run.task(CallNexus).scheduled_event_id == 5
    return completion


def test_the_system_operation_signal_with_start_needs_no_endpoint() -> None:
    assert schedule(request().SerializeToString()).failed is None


def test_a_namespace_without_the_setting_has_no_such_endpoint() -> None:
    completion = schedule(request().SerializeToString(), enabled=False)
    assert completion.message.endswith('endpoint "__temporal_system" not found')


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xff", "input is not a SignalWithStartWorkflowExecutionRequest"),
        (Request().SerializeToString(), "workflow ID not set"),
        (Request(workflow_id="w").SerializeToString(), "signal not set"),
        (Request(workflow_id="w", signal_name="s").SerializeToString(), "workflow type not set"),
        (request(workflow_id="w" * 1001).SerializeToString(), "workflow ID exceeds length limit of 1000"),
        (request(signal_name="a\0b").SerializeToString(), "signal name contains a zero byte"),
        (request(namespace="another").SerializeToString(), "namespace another is not the namespace of the workflow"),
        (request(workflow_id_conflict_policy=1).SerializeToString(), "WORKFLOW_ID_CONFLICT_POLICY_FAIL"),
        (request(cron_schedule="never").SerializeToString(), "invalid CronSchedule"),
    ],
)
def test_a_request_that_can_not_be_carried_out_fails_the_workflow_task(data: bytes, message: str) -> None:
    completion = schedule(data)
    assert completion.failed is not None
    assert message in completion.message


@pytest.mark.parametrize(("service", "operation"), [("other", OPERATION), (SERVICE, "StartWorkflowExecution")])
def test_other_system_operations_are_refused(service: str, operation: str) -> None:
    completion = schedule(request().SerializeToString(), service=service, operation=operation)
    assert f"unsupported system operation: {service}/{operation}" in completion.message
