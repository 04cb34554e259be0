"""Updates in flight: admitted once, delivered until a worker responds, and never left without a response."""

import asyncio

import pytest
from temporalio.api.enums.v1 import UpdateAdmittedEventOrigin
from temporalio.api.failure.v1 import Failure
from temporalio.api.update.v1 import Input, Meta, Outcome, Request

from fairlead.api.errors import ApiError, Exhausted, FailedPrecondition, NotFound
from fairlead.core.errors import RetryElsewhere
from fairlead.history.commands import UpdateAccepted, UpdateCompleted, UpdateRejected
from fairlead.history.events import admit_update, terminate
from fairlead.history.shard.updates import ACCEPTED, ADMITTED, COMPLETED, Update, UpdateRegistry
from fairlead.history.state import DEFAULT_LIMITS, RunIdentity, RunState, UpdateRecord
from tests.history.scenario import Scenario, command, payloads

SUCCESS = Outcome(success=payloads('"done"'))
NO_WAIT = 0.0


def request(update_id: str = "u") -> Request:
    return Request(meta=Meta(update_id=update_id, identity="client"), input=Input(name="update"))


def open_state() -> RunState:
    return RunState(RunIdentity("namespace-id", "workflow", "run", "run", "branch"))


def admitted(registry: UpdateRegistry, update_id: str = "u") -> Update:
    return registry.admit(open_state(), request(update_id), DEFAULT_LIMITS)


async def error_of(update: Update) -> type[ApiError]:
    with pytest.raises(ApiError) as raised:
        await update.wait(COMPLETED, 1.0)
    return raised.type


async def test_an_update_is_delivered_once_with_the_event_that_it_comes_after() -> None:
    registry = UpdateRegistry()
    admitted(registry)
    (message,) = registry.to_send(7)
    assert (message.id, message.protocol_instance_id, message.event_id) == ("u/request", "u", 7)
    delivered = Request()
    assert message.body.Unpack(delivered)
    assert delivered == request()
    assert not registry.has_unsent
    assert registry.to_send(9) == []
    assert registry.requests() == {"u": request()}


async def test_updates_are_delivered_in_the_order_in_which_they_came() -> None:
    registry = UpdateRegistry()
    for update_id in ("c", "a", "b"):
        admitted(registry, update_id)
    assert [message.protocol_instance_id for message in registry.to_send(2)] == ["c", "a", "b"]


async def test_an_update_of_a_failed_task_is_delivered_again_with_the_next() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    registry.to_send(2)
    registry.on_task_failed()
    assert registry.has_unsent
    assert [message.event_id for message in registry.to_send(5)] == [5]
    registry.on_news(UpdateAccepted("u", 7))
    assert (await update.wait(ACCEPTED, 1.0)).stage == ACCEPTED


async def test_a_retried_workflow_task_delivers_the_same_updates() -> None:
    registry = UpdateRegistry()
    admitted(registry)
    registry.to_send(2)
    assert len(registry.to_send(5, resend=True)) == 1


async def test_an_update_is_aborted_if_its_response_cannot_be_carried_out() -> None:
    """Same as the reference server; updates that were not delivered keep waiting."""
    registry = UpdateRegistry()
    sent = admitted(registry, "sent")
    registry.to_send(2)
    waiting = admitted(registry, "waiting")
    registry.on_task_failed(was_rejected=True)
    assert await error_of(sent) is FailedPrecondition
    assert (await waiting.wait(ACCEPTED, NO_WAIT)).stage == ADMITTED
    assert list(registry.requests()) == ["waiting"]


async def test_waiting_callers_get_each_stage_when_it_is_reached() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    for_acceptance = asyncio.create_task(update.wait(ACCEPTED, 10.0))
    for_outcome = asyncio.create_task(update.wait(COMPLETED, 10.0))
    await asyncio.sleep(0)
    registry.to_send(2)
    registry.on_news(UpdateAccepted("u", 5))
    assert (await for_acceptance).stage == ACCEPTED
    assert not for_outcome.done()
    registry.on_news(UpdateCompleted("u", 6, SUCCESS))
    status = await for_outcome
    assert (status.stage, status.outcome, status.was_accepted) == (COMPLETED, SUCCESS, True)


async def test_callers_that_wait_for_acceptance_get_an_outcome_of_the_same_task() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    waiting = asyncio.create_task(update.wait(ACCEPTED, 10.0))
    await asyncio.sleep(0)
    registry.on_news(UpdateAccepted("u", 5))
    registry.on_news(UpdateCompleted("u", 6, SUCCESS))
    assert (await waiting).outcome == SUCCESS


async def test_a_wait_that_times_out_returns_the_stage_reached() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    assert (await update.wait(COMPLETED, 0.01)).stage == ADMITTED
    registry.on_news(UpdateAccepted("u", 5))
    assert (await update.wait(COMPLETED, 0.01)).stage == ACCEPTED


async def test_a_rejected_update_is_forgotten_and_may_be_requested_again() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    registry.on_news(UpdateRejected("u", Failure(message="no")))
    status = await update.wait(COMPLETED, 1.0)
    assert status.outcome is not None
    assert (status.outcome.failure.message, status.was_accepted) == ("no", False)
    assert registry.find(open_state(), "u") is None
    admitted(registry)


async def test_updates_that_the_worker_ignores_are_rejected() -> None:
    registry = UpdateRegistry()
    sent = admitted(registry, "sent")
    registry.to_send(2)
    waiting = admitted(registry, "waiting")
    registry.reject_unprocessed()
    outcome = (await sent.wait(COMPLETED, 1.0)).outcome
    assert outcome is not None
    assert outcome.failure.application_failure_info.type == "UnprocessedUpdate"
    assert (await waiting.wait(COMPLETED, NO_WAIT)).stage == ADMITTED


async def test_the_close_of_a_run_completes_accepted_updates_and_rejects_the_others() -> None:
    registry = UpdateRegistry()
    accepted, sent = admitted(registry, "accepted"), admitted(registry, "sent")
    registry.to_send(2)
    registry.on_news(UpdateAccepted("accepted", 5))
    waiting = admitted(registry, "waiting")
    run = Scenario()
    run.step(lambda transaction: terminate(transaction, reason="", identity=""))
    registry.on_closed(run.state)
    outcome = (await accepted.wait(COMPLETED, 1.0)).outcome
    assert outcome is not None
    assert outcome.failure.application_failure_info.type == "AcceptedUpdateCompletedWorkflow"
    assert await error_of(sent) is NotFound
    assert await error_of(waiting) is NotFound
    assert registry.is_idle


async def test_a_request_may_be_repeated_if_another_run_continues() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    run = Scenario()
    run.work(command("continue_as_new_workflow_execution"))
    registry.on_closed(run.state)
    assert await error_of(update) is Exhausted


async def test_waiting_callers_are_redirected_when_their_host_loses_the_run() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    registry.abandon()
    with pytest.raises(RetryElsewhere):
        await update.wait(COMPLETED, 1.0)


async def test_updates_in_flight_and_in_total_are_bounded() -> None:
    registry, state = UpdateRegistry(), open_state()
    state.updates = {"accepted": UpdateRecord(accepted_event_id=5)}
    for number in range(DEFAULT_LIMITS.updates_in_flight_max - 1):
        registry.admit(state, request(f"u{number}"), DEFAULT_LIMITS)
    with pytest.raises(Exhausted, match="concurrent in-flight updates has been reached"):
        registry.admit(state, request("more"), DEFAULT_LIMITS)
    state.updates = {f"old{number}": UpdateRecord(0, 5, 6) for number in range(DEFAULT_LIMITS.updates_max)}
    with pytest.raises(FailedPrecondition, match="total updates has been reached"):
        UpdateRegistry().admit(state, request("more"), DEFAULT_LIMITS)


async def test_only_unwritten_and_awaited_updates_keep_a_run_in_memory() -> None:
    registry = UpdateRegistry()
    idle = [registry.is_idle]
    update = admitted(registry)
    idle.append(registry.is_idle)
    registry.on_news(UpdateAccepted("u", 5))
    idle.append(registry.is_idle)
    waiting = asyncio.create_task(update.wait(COMPLETED, 10.0))
    await asyncio.sleep(0)
    idle.append(registry.is_idle)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    idle.append(registry.is_idle)
    assert idle == [True, False, True, False, True]


async def test_an_accepted_update_is_found_by_its_events_after_the_registry_is_gone() -> None:
    state = open_state()
    state.updates = {"u": UpdateRecord(accepted_event_id=5), "old": UpdateRecord(0, 5, 6)}
    registry = UpdateRegistry()
    update = registry.find(state, "u")
    assert update is not None
    assert registry.find(state, "u") is update
    assert registry.find(state, "old") is None
    registry.on_news(UpdateCompleted("u", 9, SUCCESS))
    assert (await update.wait(COMPLETED, 1.0)).outcome == SUCCESS


async def test_an_update_that_an_event_admitted_has_no_message_of_its_own() -> None:
    run = Scenario()
    run.work()
    run.step(
        lambda transaction: admit_update(
            transaction, request(), UpdateAdmittedEventOrigin.UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY
        )
    )
    registry = UpdateRegistry()
    update = registry.find(run.state, "u")
    assert update is not None
    assert not registry.has_unsent
    assert registry.to_send(7) == []
    registry.on_news(UpdateAccepted("u", 8))
    assert (await update.wait(ACCEPTED, 1.0)).stage == ACCEPTED
