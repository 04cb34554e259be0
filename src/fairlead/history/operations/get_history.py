"""The events of a run: in pages, forwards or back, and as they come."""

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

from fairlead.history.pages import (
    PAGE_EVENTS,
    PAGE_EVENTS_MAX,
    PageToken,
    decode_page_token,
    encode_page_token,
    read_page,
    spliced,
    unwritten_events,
)
from fairlead.history.refusals import invalid
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.shard import PAGE_BYTES_MAX


class Moment(NamedTuple):
    """A run as it was when nobody worked on it. What is read later may be in the middle of a step."""

    run: LoadedRun
    is_open: bool
    next_event_id: int
    close_event_id: int
    # The events of a workflow task that are not written, or not yet.
    unwritten: bytes
    branch_id: str


_CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT


async def get(scope: Scope, request: GetWorkflowExecutionHistoryRequest) -> Message | bytes:
    """A page of events. Who waits for new ones is answered when there are some, or with none when its time is over."""
    execution = request.execution
    token = decode_page_token(request.next_page_token) if request.next_page_token else None
    if token is not None and execution.run_id and execution.run_id != token.run_id:
        raise invalid("RunId in the request does not match the NextPageToken.")
    only_close = request.history_event_filter_type == _CLOSE_EVENT
    run_id = token.run_id if token is not None else execution.run_id
    moment = await _look(scope, execution.workflow_id, run_id)
    if not only_close:
        _check_branch(moment, token)
    # What the client has seen, or must see first.
    seen = token.next_event_id if token is not None else 1
    if request.wait_new_event and moment.is_open and (only_close or token is not None):
        moment = await _wait(scope, moment, seen, only_close=only_close)
        if not only_close:
            _check_branch(moment, token)
    if only_close:
        return await _close_event(scope, moment, waits=request.wait_new_event)
    run = moment.run
    events_max = min(request.maximum_page_size or PAGE_EVENTS, PAGE_EVENTS_MAX)
    is_waiting = request.wait_new_event
    end = moment.next_event_id if token is None or is_waiting else token.end_event_id
    payloads, next_event_id = await read_page(scope.shard, run.state, seen, end, events_max=events_max)
    answer = GetWorkflowExecutionHistoryResponse()
    task = token.task if token is not None else None
    if next_event_id < end or (is_waiting and moment.is_open):
        answer.next_page_token = encode_page_token(
            PageToken(run.key.run_id, next_event_id, end, run.state.identity.branch_id, task)
        )
    elif end == moment.next_event_id or task is not None:
        payloads = [*payloads, moment.unwritten]
    payloads = [payload for payload in payloads if payload]
    if not payloads:
        answer.history.SetInParent()
    return spliced(answer, "history", payloads)


def _check_branch(moment: Moment, token: PageToken | None) -> None:
    """Pages of two branches are no history."""
    if token is not None and token.branch_id != moment.branch_id:
        raise invalid("Current branch of the workflow has changed: read its history from the beginning.")


async def _look(scope: Scope, workflow_id: str, run_id: str) -> Moment:
    shard = scope.shard
    async with shard.lock(scope.namespace.id, workflow_id):
        run = await shard.load(scope.namespace.id, workflow_id, run_id)
        state = run.state
        task = state.workflow_task
        unwritten = b"" if task is None else unwritten_events(state, task)
        branch_id = state.identity.branch_id
        return Moment(run, state.is_open, state.next_event_id, state.close_event_id, unwritten, branch_id)


async def _wait(scope: Scope, moment: Moment, seen: int, *, only_close: bool) -> Moment:
    """Wait until there are events that were not seen, or the run is closed, or the time is over."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + scope.timeout_s
    shard, key = scope.shard, moment.run.key
    while moment.is_open and (only_close or moment.next_event_id <= seen):
        left_s = end_s - loop.time()
        if left_s <= 0:
            break
        change = shard.watch(key, only_close=only_close)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await change.wait()
        finally:
            shard.unwatch(key, change)
        moment = await _look(scope, key.workflow_id, key.run_id)
    return moment


async def _close_event(scope: Scope, moment: Moment, *, waits: bool) -> Message:
    """The last event of a run that is closed. Who waits for it comes back; who does not gets nothing."""
    answer = GetWorkflowExecutionHistoryResponse(history=History())
    run = moment.run
    if not moment.is_open:
        answer.history.events.append(await scope.shard.read_event(run.state, moment.close_event_id))
    elif waits:
        end = moment.next_event_id
        answer.next_page_token = encode_page_token(PageToken(run.key.run_id, end, end, run.state.identity.branch_id))
    return answer


async def get_reverse(scope: Scope, request: GetWorkflowExecutionHistoryReverseRequest) -> Message:
    """A page of events, the last first."""
    execution = request.execution
    token = decode_page_token(request.next_page_token) if request.next_page_token else None
    run_id = token.run_id if token is not None else execution.run_id
    moment = await _look(scope, execution.workflow_id, run_id)
    _check_branch(moment, token)
    run, state = moment.run, moment.run.state
    end = token.next_event_id if token is not None else moment.next_event_id
    events_max = min(request.maximum_page_size or PAGE_EVENTS, PAGE_EVENTS_MAX)
    answer = GetWorkflowExecutionHistoryReverseResponse(history=History())
    batches = await scope.services.store.read_branch(
        state.identity.tree_id, state.identity.branch_id, 1, end, limit_bytes=PAGE_BYTES_MAX, reverse=True
    )
    first = end
    for batch in batches:
        events = [event for event in History.FromString(batch.payload).events if event.event_id < first]
        answer.history.events.extend(reversed(events))
        first = batch.first_event_id
        if len(answer.history.events) >= events_max:
            break
    # A batch may be larger than a page, and this one is decoded anyway: it may end within a batch.
    del answer.history.events[events_max:]
    if answer.history.events:
        first = answer.history.events[-1].event_id
    if first > 1:
        answer.next_page_token = encode_page_token(
            PageToken(run.key.run_id, first, moment.next_event_id, state.identity.branch_id)
        )
    return answer


OPERATIONS = {
    "GetWorkflowExecutionHistory": Operation(GetWorkflowExecutionHistoryRequest, get),
    "GetWorkflowExecutionHistoryReverse": Operation(GetWorkflowExecutionHistoryReverseRequest, get_reverse),
}
