import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.any_pb2 import Any
from temporalio.api.common.v1 import Callback
from temporalio.api.errordetails.v1 import MultiOperationExecutionFailure
from temporalio.api.failure.v1 import MultiOperationExecutionAborted

from fairlead.api.errors import ApiError, FailedPrecondition, NotFound
from tests.frontend.bad_requests import LINK, NAMESPACE, execution, multi, query, signal_with_start, start, update
from tests.frontend.setup import NAMESPACE_ID, Setup, set_up


@pytest.fixture
async def setup() -> Setup:
    return await set_up()


async def test_a_start_request_is_passed_completely_to_its_workflows_shard(setup: Setup) -> None:
    setup.history.answer = b"started"

    assert await setup.ask(start()) == b"started"

    (passed,) = setup.history.passed
    assert (passed.name, passed.namespace_id, passed.workflow_id) == (
        "StartWorkflowExecution",
        NAMESPACE_ID,
        "bad-requests",
    )
    assert len(passed.request.request_id) == 36
    assert passed.request.workflow_id_reuse_policy == 1
    assert passed.request.workflow_id_conflict_policy == 1
    assert passed.request.workflow_task_timeout.seconds == 10


async def test_explicit_values_of_a_start_request_are_not_replaced_by_defaults(setup: Setup) -> None:
    await setup.ask(start(request_id="mine", workflow_id_reuse_policy=2, workflow_id_conflict_policy=2))

    request = setup.history.passed[0].request
    assert (request.request_id, request.workflow_id_reuse_policy, request.workflow_id_conflict_policy) == ("mine", 2, 2)


async def test_a_signal_with_start_signals_the_existing_run(setup: Setup) -> None:
    await setup.ask(signal_with_start())

    request = setup.history.passed[0].request
    assert request.workflow_id_conflict_policy == 2
    assert request.workflow_task_timeout.seconds == 10
    assert len(request.request_id) == 36


async def test_a_link_that_comes_with_a_callback_is_recorded_once(setup: Setup) -> None:
    callback = Callback(nexus=Callback.Nexus(url="temporal://system", header={"Name": "value"}), links=[LINK])

    await setup.ask(start(links=[LINK], completion_callbacks=[callback]))

    request = setup.history.passed[0].request
    assert not request.links
    assert dict(request.completion_callbacks[0].nexus.header) == {"name": "value"}


async def test_a_start_in_a_deprecated_namespace_is_refused(setup: Setup) -> None:
    for request in (start(namespace="second"), signal_with_start(namespace="second")):
        with pytest.raises(FailedPrecondition, match=r"Namespace has invalid state: Deprecated\. Must be Registered\."):
            await setup.ask(request)
    assert not setup.history.passed


async def test_the_error_of_an_update_with_start_names_the_invalid_operation(setup: Setup) -> None:
    with pytest.raises(ApiError) as raised:
        await setup.ask(multi(start(cron_schedule="* * * * *")))

    failure = MultiOperationExecutionFailure()
    assert Any.FromString(raised.value.detail).Unpack(failure)
    assert [(status.code, status.message) for status in failure.statuses] == [
        (3, "CronSchedule is not allowed."),
        (10, "Operation was aborted."),
    ]
    assert failure.statuses[1].details[0].Is(MultiOperationExecutionAborted.DESCRIPTOR)


async def test_an_update_with_start_with_two_workflow_ids_blames_the_second(setup: Setup) -> None:
    with pytest.raises(ApiError) as raised:
        await setup.ask(multi(start(workflow_id="another")))

    failure = MultiOperationExecutionFailure()
    assert Any.FromString(raised.value.detail).Unpack(failure)
    assert [status.code for status in failure.statuses] == [10, 3]


async def test_an_update_with_start_is_passed_on_as_one_request(setup: Setup) -> None:
    request = multi(start(namespace=""), update(namespace=""))

    await setup.ask(request)

    (passed,) = setup.history.passed
    assert passed.name == "ExecuteMultiOperation"
    assert passed.request.operations[0].start_workflow.namespace == NAMESPACE
    assert passed.request.operations[1].update_workflow.wait_policy.lifecycle_stage == 3


async def test_a_termination_without_reason_or_identity_gets_the_default_ones(setup: Setup) -> None:
    await setup.ask(api.TerminateWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=execution()))

    request = setup.history.passed[0].request
    assert (request.reason, request.identity) == ("terminated by user via frontend", "frontend-service")


@pytest.mark.parametrize(("asked", "given"), [(0, 256), (-3, 256), (10, 10), (1000, 256)])
async def test_a_page_of_history_has_a_limited_number_of_events(setup: Setup, asked: int, given: int) -> None:
    await setup.ask(
        api.GetWorkflowExecutionHistoryRequest(namespace=NAMESPACE, execution=execution(), maximum_page_size=asked)
    )

    assert setup.history.passed[0].request.maximum_page_size == given


@pytest.mark.parametrize(("deadline_s", "wait_s"), [(None, 20.0), (70.0, 20.0), (10.0, 9.0), (1.0, 0.5)])
async def test_a_long_poll_of_a_history_returns_before_its_callers_deadline(
    setup: Setup, deadline_s: float | None, wait_s: float
) -> None:
    request = api.GetWorkflowExecutionHistoryRequest(namespace=NAMESPACE, execution=execution(), wait_new_event=True)

    await setup.ask(request, timeout_s=deadline_s)
    await setup.ask(update(), timeout_s=deadline_s)

    assert [passed.timeout_s for passed in setup.history.passed] == pytest.approx([wait_s, wait_s], abs=0.1)


async def test_a_query_waits_until_its_callers_deadline(setup: Setup) -> None:
    await setup.ask(query(), timeout_s=None)
    await setup.ask(query(), timeout_s=5.0)

    assert [passed.timeout_s for passed in setup.history.passed] == pytest.approx([30.0, 4.0], abs=0.1)
    assert setup.history.passed[0].request.query_reject_condition == 1


async def test_an_id_that_no_store_can_hold_is_not_found(setup: Setup) -> None:
    with pytest.raises(NotFound):
        await setup.ask(query(execution__workflow_id="a\0b"))
