"""GetWorkflowExecutionHistory: pages of a run's events, forwards or in reverse, with a long poll for new events."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
)

from fairlead.aio.admission import end_turn
from fairlead.api.errors import InvalidArgument
from fairlead.history.handlers.history_pages import (
    PAGE_EVENTS,
    PAGE_EVENTS_MAX,
    HistoryPageToken,
    decode_page_token,
    encode_page_token,
    read_page,
    spliced,
    unwritten_events,
)
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.event_reader import PAGE_BYTES_MAX
from fairlead.history.shard.run_cache import LoadedRun


class Moment(NamedTuple):
    """A copy of a run's values, taken under the run's lock, because a step may change several of them."""

    run: LoadedRun
    is_open: bool
    next_event_id: int
    close_event_id: int
    # The serialized events of a pending workflow task that are not yet in the store.
    unwritten: bytes
    branch_id: str


_CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT


async def get(context: OperationContext, request: GetWorkflowExecutionHistoryRequest) -> Message | bytes:
    """A page of events.

    A long poll returns when there are new events, or with an empty page when it times out.
    """
    execution = request.execution
    token = decode_page_token(request.next_page_token) if request.next_page_token else None
    if token is not None and execution.run_id and execution.run_id != token.run_id:
        raise InvalidArgument("RunId in the request does not match the NextPageToken.")
    only_close = request.history_event_filter_type == _CLOSE_EVENT
    run_id = token.run_id if token is not None else execution.run_id
    moment = await _read_moment(context, execution.workflow_id, run_id)
    if not only_close:
        _check_branch(moment, token)
    # The first event id that the client has not read.
    seen = token.next_event_id if token is not None else 1
    if request.wait_new_event and moment.is_open and (only_close or token is not None):
        moment = await _wait(context, moment, seen, only_close=only_close)
        if not only_close:
            _check_branch(moment, token)
    if only_close:
        return await _close_event(context, moment, waits=request.wait_new_event)
    run = moment.run
    events_max = min(request.maximum_page_size or PAGE_EVENTS, PAGE_EVENTS_MAX)
    is_waiting = request.wait_new_event
    end = moment.next_event_id if token is None or is_waiting else token.end_event_id
    payloads, next_event_id = await read_page(context.shard, run.state, seen, end, events_max=events_max)
    answer = GetWorkflowExecutionHistoryResponse()
    task = token.task if token is not None else None
    if next_event_id < end or (is_waiting and moment.is_open):
        answer.next_page_token = encode_page_token(
            HistoryPageToken(run.key.run_id, next_event_id, end, run.state.identity.branch_id, task)
        )
    elif end == moment.next_event_id or task is not None:
        payloads = [*payloads, moment.unwritten]
    payloads = [payload for payload in payloads if payload]
    if not payloads:
        answer.history.SetInParent()
    return spliced(answer, "history", payloads)


def _check_branch(moment: Moment, token: HistoryPageToken | None) -> None:
    """Reject a token of another branch: pages of two branches don't form a valid history."""
    if token is not None and token.branch_id != moment.branch_id:
        raise InvalidArgument("Current branch of the workflow has changed: read its history from the beginning.")


async def _read_moment(context: OperationContext, workflow_id: str, run_id: str) -> Moment:
    shard = context.shard
    async with shard.lock(context.namespace.id, workflow_id):
        run = await shard.load(context.namespace.id, workflow_id, run_id)
        state = run.state
        task = state.workflow_task
        # If newer events have taken the task's event ids, the task will get other ids: don't show its events.
        follows = task is not None and (task is state.task or task.scheduled_event_id == state.next_event_id)
        unwritten = unwritten_events(state, task) if task is not None and follows else b""
        branch_id = state.identity.branch_id
        return Moment(run, state.is_open, state.next_event_id, state.close_event_id, unwritten, branch_id)


async def _wait(context: OperationContext, moment: Moment, seen: int, *, only_close: bool) -> Moment:
    """Wait until there are new events, the run is closed, or the poll times out."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + context.timeout_s
    shard, key = context.shard, moment.run.key
    end_turn()
    while moment.is_open and (only_close or moment.next_event_id <= seen):
        left_s = end_s - loop.time()
        if left_s <= 0:
            break
        change = shard.watchers.watch(key, only_close=only_close)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await change.wait()
        finally:
            shard.watchers.unwatch(key, change)
        moment = await _read_moment(context, key.workflow_id, key.run_id)
    return moment


async def _close_event(context: OperationContext, moment: Moment, *, waits: bool) -> Message:
    """The last event of a closed run; for an open run an empty page, with a token for the next poll if `waits`."""
    answer = GetWorkflowExecutionHistoryResponse(history=History())
    run = moment.run
    if not moment.is_open:
        answer.history.events.append(await context.shard.events.read_event(run.state, moment.close_event_id))
    elif waits:
        end = moment.next_event_id
        answer.next_page_token = encode_page_token(
            HistoryPageToken(run.key.run_id, end, end, run.state.identity.branch_id)
        )
    return answer


async def get_reverse(context: OperationContext, request: GetWorkflowExecutionHistoryReverseRequest) -> Message:
    """A page of events, newest first."""
    execution = request.execution
    token = decode_page_token(request.next_page_token) if request.next_page_token else None
    run_id = token.run_id if token is not None else execution.run_id
    moment = await _read_moment(context, execution.workflow_id, run_id)
    _check_branch(moment, token)
    run, state = moment.run, moment.run.state
    end = token.next_event_id if token is not None else moment.next_event_id
    events_max = min(request.maximum_page_size or PAGE_EVENTS, PAGE_EVENTS_MAX)
    answer = GetWorkflowExecutionHistoryReverseResponse(history=History())
    # Read no further than this page: the next page would read the rest again.
    begin = max(1, end - events_max)
    batches = await context.services.store.read_branch(
        state.identity.tree_id, state.identity.branch_id, begin, end, limit_bytes=PAGE_BYTES_MAX, reverse=True
    )
    first = end
    for batch in batches:
        events = [event for event in History.FromString(batch.payload).events if event.event_id < first]
        answer.history.events.extend(reversed(events))
        first = batch.first_event_id
        if len(answer.history.events) >= events_max:
            break
    # Batches are read whole, but a page may end within a batch: cut it to the requested size.
    del answer.history.events[events_max:]
    if answer.history.events:
        first = answer.history.events[-1].event_id
    if first > 1:
        answer.next_page_token = encode_page_token(
            HistoryPageToken(run.key.run_id, first, moment.next_event_id, state.identity.branch_id)
        )
    return answer


OPERATIONS = {
    "GetWorkflowExecutionHistory": Operation(GetWorkflowExecutionHistoryRequest, get),
    "GetWorkflowExecutionHistoryReverse": Operation(GetWorkflowExecutionHistoryReverseRequest, get_reverse),
}
