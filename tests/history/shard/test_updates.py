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


async def test_a_further_attempt_delivers_what_the_one_before_had() -> None:
    registry = UpdateRegistry()
    admitted(registry)
    registry.to_send(2)
    assert len(registry.to_send(5, resend=True)) == 1


async def test_nothing_comes_of_an_update_whose_answer_can_not_be_carried_out() -> None:
    """Same as the reference server; updates that were not delivered keep waiting."""
    registry = UpdateRegistry()
    sent = admitted(registry, "sent")
    registry.to_send(2)
    waiting = admitted(registry, "waiting")
    registry.on_task_failed(was_rejected=True)
    assert await error_of(sent) is FailedPrecondition
    assert (await waiting.wait(ACCEPTED, NO_WAIT)).stage == ADMITTED
    assert list(registry.requests()) == ["waiting"]


async def test_whoever_waits_hears_of_each_stage_when_it_is_reached() -> None:
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


async def test_an_outcome_of_the_same_task_is_heard_by_those_who_wait_for_acceptance() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    waiting = asyncio.create_task(update.wait(ACCEPTED, 10.0))
    await asyncio.sleep(0)
    registry.on_news(UpdateAccepted("u", 5))
    registry.on_news(UpdateCompleted("u", 6, SUCCESS))
    assert (await waiting).outcome == SUCCESS


async def test_when_the_time_is_over_the_stage_that_was_reached_is_reported() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    assert (await update.wait(COMPLETED, 0.01)).stage == ADMITTED
    registry.on_news(UpdateAccepted("u", 5))
    assert (await update.wait(COMPLETED, 0.01)).stage == ACCEPTED


async def test_a_rejected_update_is_forgotten_and_may_be_asked_for_again() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    registry.on_news(UpdateRejected("u", Failure(message="no")))
    status = await update.wait(COMPLETED, 1.0)
    assert status.outcome is not None
    assert (status.outcome.failure.message, status.was_accepted) == ("no", False)
    assert registry.find(open_state(), "u") is None
    admitted(registry)


async def test_what_the_worker_does_not_mention_is_rejected() -> None:
    registry = UpdateRegistry()
    sent = admitted(registry, "sent")
    registry.to_send(2)
    waiting = admitted(registry, "waiting")
    registry.reject_unprocessed()
    outcome = (await sent.wait(COMPLETED, 1.0)).outcome
    assert outcome is not None
    assert outcome.failure.application_failure_info.type == "UnprocessedUpdate"
    assert (await waiting.wait(COMPLETED, NO_WAIT)).stage == ADMITTED


async def test_the_end_of_a_run_is_an_outcome_for_what_it_accepted_and_a_refusal_for_the_rest() -> None:
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


async def test_where_another_run_goes_on_the_request_may_be_made_again() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    run = Scenario()
    run.work(command("continue_as_new_workflow_execution"))
    registry.on_closed(run.state)
    assert await error_of(update) is Exhausted


async def test_who_waits_at_a_host_that_loses_the_run_is_sent_to_the_next() -> None:
    registry = UpdateRegistry()
    update = admitted(registry)
    registry.abandon()
    with pytest.raises(RetryElsewhere):
        await update.wait(COMPLETED, 1.0)


async def test_updates_are_bounded_in_flight_and_in_all() -> None:
    registry, state = UpdateRegistry(), open_state()
    state.updates = {"accepted": UpdateRecord(accepted_event_id=5)}
    for number in range(DEFAULT_LIMITS.updates_in_flight_max - 1):
        registry.admit(state, request(f"u{number}"), DEFAULT_LIMITS)
    with pytest.raises(Exhausted, match="concurrent in-flight updates has been reached"):
        registry.admit(state, request("more"), DEFAULT_LIMITS)
    state.updates = {f"old{number}": UpdateRecord(0, 5, 6) for number in range(DEFAULT_LIMITS.updates_max)}
    with pytest.raises(FailedPrecondition, match="total updates has been reached"):
        UpdateRegistry().admit(state, request("more"), DEFAULT_LIMITS)


async def test_only_what_no_event_tells_of_and_what_is_waited_for_keeps_a_run_in_memory() -> None:
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
