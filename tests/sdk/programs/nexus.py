"""Nexus operations: results, failures, retries, cancellation, timeouts, and the workflows behind them."""

import asyncio
import contextlib
import re
from collections import Counter
from datetime import timedelta
from typing import Any

import nexusrpc
from nexusrpc.handler import StartOperationContext, service_handler, sync_operation
from temporalio import nexus, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import (
    CreateNexusEndpointRequest,
    DeleteNexusEndpointRequest,
    GetNexusEndpointRequest,
    ListNexusEndpointsRequest,
    UpdateNexusEndpointRequest,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, NexusOperationError
from temporalio.service import RPCError

from tests.sdk.gates import hold_task
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, NO_ONE, Handle, Stage, program

SOON = timedelta(seconds=20)
_calls: Counter[str] = Counter()


@workflow.defn
class Handled:
    """The workflow that an operation starts; its argument or a signal decides how and when it ends."""

    def __init__(self) -> None:
        self._how = ""

    @workflow.signal
    def end(self, how: str) -> None:
        self._how = how

    @workflow.run
    async def run(self, how: str) -> str:
        if how == "deaf":
            # The workflow receives the cancel request and ignores it.
            with contextlib.suppress(asyncio.CancelledError):
                await workflow.wait_condition(lambda: bool(self._how))
        if how in ("wait", "deaf"):
            await workflow.wait_condition(lambda: bool(self._how))
            how = self._how
        if how == "fail":
            raise ApplicationError("handled badly", {"a": 1}, type="Bad", non_retryable=True) from ValueError("why")
        if how == "cancel":
            raise asyncio.CancelledError
        if how == "continue":
            workflow.continue_as_new("ends anew")
        return f"handled {how}"


@service_handler(name="Desk")
class Desk:
    """The operations that the programs call."""

    @sync_operation
    async def echo(self, _context: StartOperationContext, given: str) -> str:
        return f"echo {given}"

    @sync_operation
    async def headers(self, context: StartOperationContext, _given: str) -> dict[str, str]:
        return {name: value for name, value in context.headers.items() if name.startswith("my-")}

    @sync_operation
    async def links(self, context: StartOperationContext, _given: str) -> list[str]:
        return [f"{link.type} {link.url}" for link in context.inbound_links]

    @sync_operation
    async def nothing(self, _context: StartOperationContext, _given: str) -> None:
        return None

    @sync_operation
    async def refuse(self, _context: StartOperationContext, how: str) -> str:
        match how:
            case "failed":
                raise nexusrpc.OperationError("it failed", state=nexusrpc.OperationErrorState.FAILED)
            case "canceled":
                raise nexusrpc.OperationError("it was canceled", state=nexusrpc.OperationErrorState.CANCELED)
            case "bad request":
                raise nexusrpc.HandlerError("a bad one", type=nexusrpc.HandlerErrorType.BAD_REQUEST) from KeyError("no")
            case "internal for good":
                raise nexusrpc.HandlerError("never", type=nexusrpc.HandlerErrorType.INTERNAL, retryable_override=False)
            case _:
                raise ApplicationError("a plain one", {"b": 2}, type="Plain", non_retryable=True)

    @sync_operation
    async def sometimes(self, context: StartOperationContext, fails: int) -> str:
        _calls[context.request_id] += 1
        if _calls[context.request_id] <= fails:
            raise nexusrpc.HandlerError("not yet", type=nexusrpc.HandlerErrorType.UNAVAILABLE)
        return f"after {_calls[context.request_id]}"

    @nexus.workflow_run_operation
    async def start(self, context: nexus.WorkflowRunOperationContext, given: list[str]) -> nexus.WorkflowHandle[str]:
        workflow_id, how = given
        return await context.start_workflow(Handled.run, how, id=workflow_id)

    @nexus.workflow_run_operation
    async def join(self, context: nexus.WorkflowRunOperationContext, workflow_id: str) -> nexus.WorkflowHandle[str]:
        return await context.start_workflow(
            Handled.run, "wait", id=workflow_id, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )


@workflow.defn
class Calls:
    """Calls one operation and returns its failure as the result; a signal cancels the operation."""

    def __init__(self) -> None:
        self._cancel = False
        self._end = False

    @workflow.signal
    def cancel(self) -> None:
        self._cancel = True

    @workflow.signal
    def end(self) -> None:
        self._end = True

    @workflow.run
    async def run(self, endpoint: str, operation: str, given: Any, options: dict[str, Any]) -> Any:
        held, service = options.pop("hold", ""), options.pop("service", "Desk")
        timeouts = {name: timedelta(seconds=value) for name, value in options.items() if name.endswith("timeout")}
        rest = {name: value for name, value in options.items() if not name.endswith("timeout")}
        if "cancellation_type" in rest:
            rest["cancellation_type"] = workflow.NexusOperationCancellationType(rest["cancellation_type"])
        client: Any = workflow.create_nexus_client(service=service, endpoint=endpoint)
        try:
            handle = await client.start_operation(operation, given, output_type=Any, **timeouts, **rest)
            if held:
                await workflow.wait_condition(lambda: self._end)
                hold_task(held)
            if options.get("cancellation_type") is not None:
                await workflow.wait_condition(lambda: self._cancel)
                handle.cancel()
            return [handle.operation_token, await handle]
        except NexusOperationError as error:
            return [str(error), error.endpoint, error.service, error.operation, repr(error.__cause__)]
        except asyncio.CancelledError:
            return "canceled"


@workflow.defn
class CancelsAtOnce:
    @workflow.run
    async def run(self, endpoint: str) -> str:
        client = workflow.create_nexus_client(service="Desk", endpoint=endpoint)
        starting = asyncio.create_task(client.start_operation("echo", "x", output_type=str))
        await asyncio.sleep(0)
        starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            return "canceled"
        except NexusOperationError as error:
            return repr(error.__cause__)
        return "not canceled"


@workflow.defn
class CallsMany:
    @workflow.run
    async def run(self, endpoint: str, count: int) -> list[str]:
        client = workflow.create_nexus_client(service="Desk", endpoint=endpoint)
        return [
            await client.execute_operation("echo", str(number), output_type=str, summary=f"number {number}")
            for number in range(count)
        ]


HANDLERS: list[Any] = [Desk()]


async def endpoint_of(stage: Stage, queue: str = "") -> str:
    """The endpoint of the worker that all programs share, or of a task queue without pollers."""
    name = re.sub("[^a-z0-9]", "-", f"of-{queue or stage.queue}")
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace=NAMESPACE, task_queue=queue or stage.queue))
    with contextlib.suppress(RPCError):
        await stage.client.operator_service.create_nexus_endpoint(
            CreateNexusEndpointRequest(spec=EndpointSpec(name=name, target=target))
        )

    async def there() -> bool:
        found = await stage.client.operator_service.list_nexus_endpoints(ListNexusEndpointsRequest(name=name))
        return bool(found.endpoints)

    await stage.until_true(there, f"endpoint {name}")
    return name


async def _calling(stage: Stage, operation: str, given: Any, *, queue: str = "", **options: Any) -> Handle:
    return await stage.start(Calls, await endpoint_of(stage, queue), operation, given, options)


async def _outcome(stage: Stage, operation: str, given: Any, **options: Any) -> Any:
    return await stage.outcome((await _calling(stage, operation, given, **options)).result())


async def _handled(stage: Stage, caller: Handle) -> Handle:
    """The workflow that the operation has started."""
    await stage.until(caller, "NEXUS_OPERATION_STARTED")
    await stage.saw_current("handled")
    return stage.client.get_workflow_handle(stage.id("handled"))


async def _callback_made(stage: Stage) -> None:
    """Wait until the handler's workflow has delivered its completion callback."""

    async def there() -> bool:
        callbacks = (await stage.describe(stage.id("handled"))).callbacks
        return bool(callbacks) and callbacks[0].HasField("last_attempt_complete_time")

    await stage.until_true(there, "the callback")


@program
async def nexus_sync(stage: Stage) -> Any:
    return await _outcome(stage, "echo", "this", summary="to the desk", headers={"My-Own": "header"})


@program
async def nexus_headers(stage: Stage) -> Any:
    return await _outcome(stage, "headers", "", headers={"My-Own": "header"})


@program
async def nexus_sync_nothing(stage: Stage) -> Any:
    return await _outcome(stage, "nothing", "")


@program
async def nexus_many(stage: Stage) -> Any:
    return await stage.run(CallsMany, await endpoint_of(stage), 5)


@program
async def nexus_refused_failed(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "failed")


@program
async def nexus_refused_canceled(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "canceled")


@program
async def nexus_refused_bad_request(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "bad request")


@program
async def nexus_refused_for_good(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "internal for good")


@program
async def nexus_refused_application_error(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "application error")


@program
async def nexus_unknown_operation(stage: Stage) -> Any:
    return await _outcome(stage, "there is none", "x")


@program
async def nexus_retried(stage: Stage) -> Any:
    caller = await _calling(stage, "sometimes", 1)

    async def backs_off() -> bool:
        pending = (await stage.describe(stage.id())).pending_nexus_operations
        return bool(pending) and pending[0].attempt == 1

    await stage.until_true(backs_off, "the first attempt's end")
    stage.note("pending", list((await stage.describe(stage.id())).pending_nexus_operations))
    return await stage.outcome(caller.result())


@program
async def nexus_unknown_endpoint(stage: Stage) -> Any:
    caller = await stage.start(Calls, "no-such-endpoint", "echo", "x", {})
    await stage.until(caller, "WORKFLOW_TASK_FAILED")
    await caller.terminate("seen enough")
    return await stage.outcome(caller.result())


@program
async def nexus_workflow(stage: Stage) -> Any:
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"], schedule_to_close_timeout=50)
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    stage.note("pending", list((await stage.describe(stage.id())).pending_nexus_operations))
    stage.note("callbacks", list((await stage.describe(stage.id("handled"))).callbacks))
    await handled.signal("end", "well")
    outcome = await stage.outcome(caller.result())
    await _callback_made(stage)
    return outcome


async def _ends(stage: Stage, how: str) -> Any:
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"])
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    if how == "terminate":
        await handled.terminate("enough")
    elif how == "cancel":
        await handled.cancel()
    else:
        await handled.signal("end", how)
    outcome = await stage.outcome(caller.result())
    await _callback_made(stage)
    return outcome


@program
async def nexus_workflow_fails(stage: Stage) -> Any:
    return await _ends(stage, "fail")


@program
async def nexus_workflow_terminated(stage: Stage) -> Any:
    return await _ends(stage, "terminate")


@program
async def nexus_workflow_canceled(stage: Stage) -> Any:
    return await _ends(stage, "cancel")


@program
async def nexus_workflow_continues(stage: Stage) -> Any:
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"])
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    await handled.signal("end", "continue")
    outcome = await stage.outcome(caller.result())
    await _callback_made(stage)
    return outcome


@program
async def nexus_workflow_exists(stage: Stage) -> Any:
    there = await stage.start(Waits, suffix="handled")
    outcome = await _outcome(stage, "start", [stage.id("handled"), "wait"])
    await there.terminate()
    return outcome


@program
async def nexus_workflow_joined(stage: Stage) -> Any:
    """Two operations wait for one workflow."""
    first = await _calling(stage, "join", stage.id("handled"))
    handled = await _handled(stage, first)
    await stage.idle(first)
    await stage.idle(handled)
    second = await stage.start(Calls, await endpoint_of(stage), "join", stage.id("handled"), {}, suffix="second")
    await stage.until(second, "NEXUS_OPERATION_STARTED")
    await stage.idle(second)
    await handled.signal("end", "for both")
    outcomes = [await stage.outcome(first.result()), await stage.outcome(second.result())]

    async def all_made() -> bool:
        callbacks = (await stage.describe(stage.id("handled"))).callbacks
        return len(callbacks) == 2 and all(each.HasField("last_attempt_complete_time") for each in callbacks)

    await stage.until_true(all_made, "both callbacks")
    return outcomes


async def _left_running(stage: Stage, kind: int) -> Any:
    """The caller doesn't wait; the handler's workflow runs on until it is terminated."""
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"], cancellation_type=kind)
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    await caller.signal("cancel")
    outcome = await stage.outcome(caller.result())
    await asyncio.sleep(0.3)
    stage.note("handled", repr((await handled.describe()).status))
    await handled.terminate()
    await _callback_made(stage)
    return outcome


@program
async def nexus_cancel_wait_completed(stage: Stage) -> Any:
    kind = workflow.NexusOperationCancellationType.WAIT_COMPLETED
    caller = await _calling(stage, "start", [stage.id("handled"), "deaf"], cancellation_type=kind)
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    await caller.signal("cancel")
    await stage.until(caller, "NEXUS_OPERATION_CANCEL_REQUEST_COMPLETED")
    await stage.idle(caller)
    await stage.idle(handled)
    await handled.signal("end", "cancel")
    outcome = await stage.outcome(caller.result())
    await _callback_made(stage)
    return outcome


@program
async def nexus_cancel_wait_requested(stage: Stage) -> Any:
    kind = workflow.NexusOperationCancellationType.WAIT_REQUESTED
    caller = await _calling(stage, "start", [stage.id("handled"), "deaf"], cancellation_type=kind)
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    await caller.signal("cancel")
    outcome = await stage.outcome(caller.result())
    await stage.idle(handled)
    await handled.signal("end", "later")
    await handled.result()
    await _callback_made(stage)
    return outcome


@program
async def nexus_cancel_try(stage: Stage) -> Any:
    return await _left_running(stage, workflow.NexusOperationCancellationType.TRY_CANCEL)


@program
async def nexus_cancel_abandon(stage: Stage) -> Any:
    return await _left_running(stage, workflow.NexusOperationCancellationType.ABANDON)


@program
async def nexus_cancel_at_once(stage: Stage) -> Any:
    return await stage.run(CancelsAtOnce, await endpoint_of(stage, NO_ONE))


@program
async def nexus_timeout_schedule_to_close(stage: Stage) -> Any:
    return await _outcome(stage, "echo", "x", queue=NO_ONE, schedule_to_close_timeout=2)


@program
async def nexus_timeout_schedule_to_start(stage: Stage) -> Any:
    return await _outcome(stage, "echo", "x", queue=NO_ONE, schedule_to_start_timeout=2)


@program
async def nexus_timeout_start_to_close(stage: Stage) -> Any:
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"], start_to_close_timeout=1)
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    outcome = await stage.outcome(caller.result())
    await handled.signal("end", "too late")
    await handled.result()
    await _callback_made(stage)
    return outcome


@program
async def nexus_result_buffered(stage: Stage) -> Any:
    """The operation ends while a worker has a workflow task of the caller."""
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"], hold="held")
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    await caller.signal("end")
    await stage.reached("held")
    await handled.signal("end", "meanwhile")
    await handled.result()
    await _callback_made(stage)
    stage.note("pending", list((await stage.describe(stage.id())).pending_nexus_operations))
    stage.open("held")
    return await stage.outcome(caller.result())


@program
async def nexus_caller_reset(stage: Stage) -> Any:
    """After a reset the new run receives the completion of an operation that the old run had started."""
    caller = await _calling(stage, "start", [stage.id("handled"), "wait"])
    handled = await _handled(stage, caller)
    await stage.idle(caller)
    await stage.idle(handled)
    last = [event.event_id for event in await stage.events(caller) if event.event_type == _COMPLETED][-1]
    await stage.reset(caller, last)
    again = stage.client.get_workflow_handle(stage.id())
    await stage.idle(again)
    await handled.signal("end", "after all")
    outcome = await stage.outcome(again.result())
    await _callback_made(stage)
    return outcome


_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


@program
async def nexus_endpoints(stage: Stage) -> Any:
    """Endpoints as operators see them."""
    service = stage.client.operator_service
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace=NAMESPACE, task_queue=stage.queue))
    name = re.sub("[^a-z0-9]", "-", stage.name)
    made = await service.create_nexus_endpoint(CreateNexusEndpointRequest(spec=EndpointSpec(name=name, target=target)))
    stage.note("created", made)
    again = service.create_nexus_endpoint(CreateNexusEndpointRequest(spec=EndpointSpec(name=name, target=target)))
    stage.note("again", await stage.outcome(again))
    external = EndpointTarget(external=EndpointTarget.External(url="http://127.0.0.1:1/there"))
    update = UpdateNexusEndpointRequest(
        id=made.endpoint.id, version=made.endpoint.version, spec=EndpointSpec(name=f"{name}-2", target=external)
    )
    changed = await service.update_nexus_endpoint(update)
    stage.note("changed", [changed.endpoint.spec, changed.endpoint.version])
    stage.note("stale", await stage.outcome(service.update_nexus_endpoint(update)))
    found = await service.get_nexus_endpoint(GetNexusEndpointRequest(id=made.endpoint.id))
    stage.note("found", found.endpoint.spec)
    named = await service.list_nexus_endpoints(ListNexusEndpointsRequest(name=f"{name}-2"))
    stage.note("named", [endpoint.spec for endpoint in named.endpoints])
    await service.delete_nexus_endpoint(DeleteNexusEndpointRequest(id=made.endpoint.id, version=2))
    gone = service.get_nexus_endpoint(GetNexusEndpointRequest(id=made.endpoint.id))
    stage.note("gone", await stage.outcome(gone))
