"""PollWorkflowExecutionTimeSkipping: waits for the end of a fast-forward."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from google.protobuf.message import Message
from temporalio.api.enums.v1.time_skipping_pb2 import FastForwardPollingResult as Result
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionTimeSkippingRequest,
    PollWorkflowExecutionTimeSkippingResponse,
)

from fairlead.aio.admission import end_turn
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import RunState

if TYPE_CHECKING:
    Response = PollWorkflowExecutionTimeSkippingResponse

_OTHER = "the requested fast_forward_id does not match the execution's current fast-forward"
_ENDED = "the execution ended before the fast-forward completed"
_DISABLED = "time skipping was disabled before the fast-forward completed"


async def poll(context: OperationContext, request: PollWorkflowExecutionTimeSkippingRequest) -> Message:
    """Wait until the fast-forward has completed or has failed, or the poll times out.

    Without a run id, the poll follows the fast-forward to the next runs of the chain.
    """
    shard, execution = context.shard, request.workflow_execution
    loop = asyncio.get_running_loop()
    end_s = loop.time() + context.timeout_s
    while True:
        async with shard.lock(context.namespace.id, execution.workflow_id):
            run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
            answer = _answer(run, request.fast_forward_id)
            if answer is not None:
                return answer
            changed = shard.watchers.watch(run.key)
        left_s = end_s - loop.time()
        end_turn()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left_s)):
                    await changed.wait()
        finally:
            shard.watchers.unwatch(run.key, changed)
        if left_s <= 0:
            return _response(run.state, Result.FAST_FORWARD_POLLING_RESULT_POLL_TIMEOUT)


def _answer(run: LoadedRun, fast_forward_id: str) -> "Response | None":
    """The outcome of the fast-forward; None while it is pending."""
    state = run.state
    clock = state.time_skipping
    info = None if clock is None else clock.fast_forward_info()
    if state.is_open and _waits(state, fast_forward_id):
        return None
    if clock is None or info is None or info.fast_forward_id != fast_forward_id:
        return _response(state, Result.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED, _OTHER)
    if clock.has_completed:
        return _response(state, Result.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_COMPLETED)
    if not state.is_open:
        return _response(state, Result.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED, _ENDED)
    if not clock.is_enabled:
        return _response(state, Result.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED, _DISABLED)
    return None


def _waits(state: RunState, fast_forward_id: str) -> bool:
    """Whether a buffered event will begin the fast-forward when the workflow task ends."""
    configs = (
        HistoryEvent.FromString(stored).workflow_execution_options_updated_event_attributes.time_skipping_config
        for stored in state.live.buffered
    )
    return any(config.fast_forward_config.id == fast_forward_id for config in configs)


def _response(state: RunState, result: Result.ValueType, failed_reason: str = "") -> "Response":
    clock = state.time_skipping
    return PollWorkflowExecutionTimeSkippingResponse(
        fast_forward_polling_result=result,
        failed_reason=failed_reason,
        fast_forward_info=None if clock is None else clock.fast_forward_info(),
    )


OPERATIONS = {"PollWorkflowExecutionTimeSkipping": Operation(PollWorkflowExecutionTimeSkippingRequest, poll)}
