"""Workflows of the official SDK that run while clusters fail over, and their expected results."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payloads
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from tests.sdk.stage import execution, make_worker

QUEUE = "orders"
ROUNDS = 3
BEATS = 3
TIMER_S = 1.0
TASK_TIMEOUT = timedelta(seconds=5)
AGAIN_S = 0.05
# The SDK warns about an activity that ends at the moment when its worker learns that the result is not needed.
ACTIVITY_IS_OVER = "ignore:Cannot find activity to cancel for token"
_RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0)
# Errors that a client gets from a cluster that is killed or not active. The request may still have been carried out: a
# retry must use the same request id.
_PASSING = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


@activity.defn
async def double(number: int) -> int:
    """Fails at first, then sends some heartbeats."""
    if activity.info().attempt == 1:
        raise ApplicationError("not yet")
    for beat in range(BEATS):
        activity.heartbeat(beat)
        await asyncio.sleep(0.05)
    return 2 * number


@workflow.defn
class Order:
    """A workflow that adds up the results of activities between timers, and ends after its number of signals."""

    def __init__(self) -> None:
        self._told: list[int] = []

    @workflow.run
    async def run(self, number: int, wanted: int) -> list[int]:
        """The sum, and all signals, including repeated ones."""
        total = 0
        for each in range(ROUNDS):
            total += await workflow.execute_activity(
                double,
                number + each,
                start_to_close_timeout=timedelta(seconds=10),
                heartbeat_timeout=timedelta(seconds=3),
                retry_policy=_RETRY,
            )
            await workflow.sleep(TIMER_S)
        await workflow.wait_condition(lambda: len(set(self._told)) >= wanted)
        return [total, *sorted(self._told)]

    @workflow.signal
    def tell(self, number: int) -> None:
        """Record the number, also if it arrives twice."""
        self._told.append(number)


def result_of(number: int, wanted: int) -> list[int]:
    """The expected result of an order that got each of the signals 0, 1, ... once."""
    return [sum(2 * (number + each) for each in range(ROUNDS)), *range(wanted)]


@asynccontextmanager
async def worker(client: Client, **options: Any) -> AsyncIterator[None]:
    """A worker for orders."""
    async with make_worker(client, QUEUE, [Order], [double], graceful_shutdown_timeout=timedelta(), **options):
        yield


class Acknowledged:
    """A client that retries at any cluster until it gets a response, with the same request id each time."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._turn = 0
        # By error message: the number of requests that failed with it.
        self.errors: dict[str, int] = {}

    async def signal(self, workflow_id: str, number: int) -> None:
        """Signal until it is acknowledged."""
        payloads = await DataConverter.default.encode([number])
        await self._ask(
            "signal_workflow_execution",
            SignalWorkflowExecutionRequest(
                namespace=self._clients[0].namespace,
                workflow_execution=execution(workflow_id),
                signal_name="tell",
                input=Payloads(payloads=payloads),
                request_id=f"{workflow_id}/{number}",
            ),
        )

    async def start(self, workflow_id: str, number: int, wanted: int) -> None:
        """Start until it is acknowledged."""
        while True:
            try:
                await self._next().start_workflow(
                    Order.run, args=[number, wanted], id=workflow_id, task_queue=QUEUE, task_timeout=TASK_TIMEOUT
                )
            except WorkflowAlreadyStartedError:
                # The first attempt was carried out, but its response was lost.
                return
            except RPCError as error:
                await self._note(error)
            else:
                return

    async def result(self, workflow_id: str) -> list[int]:
        """The result of the workflow."""
        while True:
            try:
                result: list[int] = await self._next().get_workflow_handle(workflow_id, result_type=list[int]).result()
            except RPCError as error:
                await self._note(error)
            else:
                return result

    def _next(self) -> Client:
        self._turn += 1
        return self._clients[self._turn % len(self._clients)]

    async def _ask(self, method: str, request: Any) -> None:
        while True:
            try:
                await getattr(self._next().workflow_service, method)(request, timeout=timedelta(seconds=10))
            except RPCError as error:
                await self._note(error)
            else:
                return

    async def _note(self, error: RPCError) -> None:
        is_broken = error.status is RPCStatusCode.UNKNOWN and error.message == "transport error"
        if not is_broken and error.status not in _PASSING and not _is_behind(error):
            raise error
        said = f"{error.status.name}: {error.message}"
        self.errors[said] = self.errors.get(said, 0) + 1
        await asyncio.sleep(AGAIN_S)


def _is_behind(error: RPCError) -> bool:
    """After a forced failover, a cluster may lack what the other one has acknowledged."""
    return error.status is RPCStatusCode.NOT_FOUND
