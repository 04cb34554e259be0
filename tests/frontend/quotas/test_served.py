"""Quotas on a running server, with Temporal's SDK as the client."""

import asyncio
from collections.abc import Awaitable

from temporalio.api.errordetails.v1 import ResourceExhaustedFailure
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest, PollActivityTaskQueueRequest
from temporalio.service import RPCError, RPCStatusCode

from fairlead.testing import FairleadServer

ACCEPTED_S = 0.3


async def error_of(call: Awaitable[object], *, within_s: float = ACCEPTED_S) -> RPCError | None:
    """The error of a call; None if it is answered, or accepted and still open after `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            await call
    except RPCError as error:
        return error
    except TimeoutError:
        pass
    return None


async def test_a_namespace_above_its_rate_gets_resource_exhausted_with_cause_and_scope() -> None:
    settings = {"frontend.namespaceRPS.visibility": 1, "frontend.namespaceBurstRatio.visibility": 5.0}
    async with FairleadServer.start(dynamic_config=settings) as server:
        client = await server.connect()
        answered, error = 0, None
        request = CountWorkflowExecutionsRequest(namespace="default")
        while error is None and answered < 50:
            error = await error_of(client.workflow_service.count_workflow_executions(request, retry=False))
            answered += error is None
        assert answered >= 5
        assert error is not None
        assert (error.status, error.message) == (RPCStatusCode.RESOURCE_EXHAUSTED, "namespace rate limit exceeded")
        detail = ResourceExhaustedFailure()
        assert error.grpc_status.details[0].Unpack(detail)
        assert (detail.cause, detail.scope) == (1, 1)
        # A person who looks for the cause, for example in the web page.
        of_operator = client.workflow_service.count_workflow_executions(
            request, retry=False, metadata={"caller-type": "operator"}
        )
        assert await error_of(of_operator) is None


async def test_open_polls_above_the_limit_are_refused_and_ended_ones_make_room() -> None:
    async with FairleadServer.start(dynamic_config={"frontend.namespaceCount": 1}) as server:
        client = await server.connect()
        request = PollActivityTaskQueueRequest(namespace="default", identity="me")
        request.task_queue.name = "q"

        async def poll() -> None:
            await client.workflow_service.poll_activity_task_queue(request, retry=False)

        waiting = asyncio.create_task(error_of(poll(), within_s=30))
        async with asyncio.timeout(10):
            while (error := await error_of(poll())) is None:
                if waiting.done():
                    # The other poll had arrived first.
                    waiting = asyncio.create_task(error_of(poll(), within_s=30))
        assert error.status is RPCStatusCode.RESOURCE_EXHAUSTED
        assert "namespace concurrent poller limit exceeded" in error.message
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(10):
            while (error := await error_of(poll())) is not None:
                # The server has not seen the cancellation yet.
                assert error.status is RPCStatusCode.RESOURCE_EXHAUSTED
