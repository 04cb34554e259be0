"""A shard loses nothing and does nothing twice, despite faults, stops and moves to another host."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType, ParentClosePolicy
from temporalio.api.history.v1 import WorkflowExecutionSignaledEventAttributes
from temporalio.api.protocol.v1 import Message
from temporalio.api.query.v1 import WorkflowQueryResult
from temporalio.api.update.v1 import Acceptance, Outcome, Request, Response
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    PollWorkflowTaskQueueResponse,
    QueryWorkflowRequest,
    ResetWorkflowExecutionRequest,
    ResetWorkflowExecutionResponse,
    RespondQueryTaskCompletedRequest,
    TerminateWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.api.errors import (
    ApiError,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    Gone,
    InvalidArgument,
    NotFound,
)
from fairlead.core.errors import FairleadError
from fairlead.core.versions import EventBatch, EventRange, VersionHistory
from fairlead.history.events import Batch, Transaction, terminate
from fairlead.history.handlers import get_history, start
from fairlead.history.handlers.child_workflows import ChildClosed, SignalFrom
from fairlead.history.handlers.update import update_workflow
from fairlead.history.shard import queue as queues
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.ownership import NotOwner
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.shard import Shard
from fairlead.history.shard.stream_rows import stream_row
from fairlead.history.shard.updates import COMPLETED
from fairlead.history.state import RunClosed, encode
from fairlead.history.state.errors import BadRequest
from fairlead.history.state.tasks import QueueRow, RunTimeout, UpsertVisibility, encode_row
from fairlead.simulations.virtual_loop import run
from fairlead.storage.commit import Commit, TaskWrite
from fairlead.storage.history import HistoryStore, RunKey
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, StoreUnavailable
from fairlead.telemetry import SHARD_LOST
from tests.history.shard.test_queue import World as QueueWorld
from tests.history.shard_world import (
    ANSWERED,
    NAMESPACE,
    SECOND_NS,
    TASK_QUEUE,
    Faults,
    OneHost,
    Worker,
    World,
    command,
    complete,
    kinds,
    schedule_activity,
    signal_external,
    start_child,
    start_request,
    start_timer,
)
from tests.virtual_time import on_virtual_time

CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT


def _decide(task: PollWorkflowTaskQueueResponse) -> list[Command]:
    """The parent has an activity, a timer, a child that it signals, and a client's signal; the child awaits it."""
    seen = Counter(kinds(task.history.events))
    if task.workflow_type.name == "child":
        return [complete()] if seen["WORKFLOW_EXECUTION_SIGNALED"] else []
    if not seen["ACTIVITY_TASK_SCHEDULED"]:
        return [schedule_activity(), start_timer(2), start_child("child-1")]
    commands = []
    if seen["CHILD_WORKFLOW_EXECUTION_STARTED"] and not seen["SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"]:
        commands.append(signal_external("child-1", "go"))
    ended = (
        "ACTIVITY_TASK_COMPLETED",
        "TIMER_FIRED",
        "CHILD_WORKFLOW_EXECUTION_COMPLETED",
        "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_EXECUTION_SIGNALED",
    )
    if all(seen[each] for each in ended):
        commands.append(complete())
    return commands


class _Dying:
    """The store as one host reaches it: after a number of commits the host is dead, and all calls fail."""

    def __init__(self, store: HistoryStore, commits: int, *, is_applied: bool) -> None:
        self._store = store
        self._left = commits
        self._is_applied = is_applied
        self.has_died = asyncio.Event()
        self.commits = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if self.has_died.is_set():
                raise StoreUnavailable("the host is gone")
            if name == "commit":
                self.commits += 1
                if self.commits == self._left:
                    self.has_died.set()
                    if self._is_applied:
                        await method(*arguments, **named)
                    raise OutcomeUnknown("the host is gone")
            return await method(*arguments, **named)

        return call


async def _check_ended(world: World, host: OneHost) -> None:
    """Every event was written exactly once; only retention and timeout tasks are left."""
    counted = Counter(kinds(await host.events("parent-1")))
    for each in (
        "ACTIVITY_TASK_SCHEDULED",
        "ACTIVITY_TASK_COMPLETED",
        "TIMER_FIRED",
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
        "CHILD_WORKFLOW_EXECUTION_STARTED",
        "CHILD_WORKFLOW_EXECUTION_COMPLETED",
        "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_EXECUTION_COMPLETED",
    ):
        assert counted[each] == 1, (each, counted)
    assert counted["SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED"] == 0
    child = Counter(kinds(await host.events("child-1")))
    assert child["WORKFLOW_EXECUTION_SIGNALED"] == child["WORKFLOW_EXECUTION_COMPLETED"] == 1
    assert len(world.runs_of("parent-1")) == len(world.runs_of("child-1")) == 1
    assert await world.stored_rows("transfer") == []
    timers = Counter(type(row.task).__name__ for row in await world.stored_rows("timer"))
    assert set(timers) <= {"DeleteAfterRetention", "ActivityTimeout"}, timers


async def _scenario(world: World, died_after: int, *, is_applied: bool) -> int:
    """Run the workflows, with a crash of the first host; return the number of its commits."""
    dying = _Dying(world.store, died_after, is_applied=is_applied)
    host = await world.start(store=dying)
    worker = Worker(lambda task: {"commands": _decide(task)})
    worker.start(host)

    async def client() -> None:
        nonlocal host
        for action in (
            lambda: host.begin("parent-1", "start"),
            lambda: asyncio.sleep(1),
            lambda: host.signal("parent-1", "hello", "signal"),
        ):
            while True:
                try:
                    await action()
                    break
                except FairleadError:
                    await asyncio.sleep(0.2)

    talking = asyncio.create_task(client())

    async def restart() -> None:
        nonlocal host
        await dying.has_died.wait()
        await worker.stop()
        await host.close()
        host = await world.start()
        worker.start(host)

    restarting = asyncio.create_task(restart())
    async with asyncio.timeout(200):
        while True:
            await asyncio.sleep(0.5)
            current = world.current("parent-1")
            if current is not None and current.is_closed and (not dying.has_died.is_set() or restarting.done()):
                break
    await talking
    restarting.cancel()
    await asyncio.gather(restarting, return_exceptions=True)
    # Wait until the last timeouts have passed and executed tasks are deleted.
    await asyncio.sleep(100)
    await _check_ended(world, host)
    await worker.stop()
    await world.close()
    return dying.commits


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("shards", [1, 4])
def test_the_next_host_completes_everything_after_a_crash_at_any_commit(shards: int, is_applied: bool) -> None:
    commits = 0

    @on_virtual_time
    async def count() -> None:
        nonlocal commits
        commits = await _scenario(World(shards=shards), 10_000, is_applied=is_applied)

    count()
    assert commits > 15

    for died_after in range(1, commits + 1):

        @on_virtual_time
        async def crash(died_after: int = died_after) -> None:
            await _scenario(World(shards=shards), died_after, is_applied=is_applied)

        crash()


def _update(workflow_id: str, update_id: str) -> UpdateWorkflowExecutionRequest:
    request = UpdateWorkflowExecutionRequest(workflow_execution=WorkflowExecution(workflow_id=workflow_id))
    request.request.meta.update_id = update_id
    request.request.input.name = "update"
    request.wait_policy.lifecycle_stage = COMPLETED
    return request


def _delete(workflow_id: str) -> DeleteWorkflowExecutionRequest:
    return DeleteWorkflowExecutionRequest(workflow_execution=WorkflowExecution(workflow_id=workflow_id))


def _terminate(workflow_id: str) -> TerminateWorkflowExecutionRequest:
    return TerminateWorkflowExecutionRequest(workflow_execution=WorkflowExecution(workflow_id=workflow_id))


async def _equal(world: World, host: OneHost) -> None:
    """The runs and current-run pointers in memory equal those in the store."""
    for shard_id, shard in host.history.shards.items():
        stored = world.store._shards[shard_id]
        for key, loaded in shard.runs._runs.items():
            assert loaded.db_version == stored.runs[key].db_version
            assert encode(loaded.state) == stored.runs[key].state
        assert dict(shard.current_runs._rows).items() <= stored.currents.items()


@pytest.mark.parametrize("is_applied", [True, False])
@on_virtual_time
async def test_a_start_whose_response_is_lost_leaves_one_run_and_a_working_shard(is_applied: bool) -> None:
    world = World()
    host = await world.start()
    world.faults.fail_once("commit", OutcomeUnknown("no answer"), is_applied=is_applied)

    with pytest.raises(OutcomeUnknown):
        await host.begin("w", "same request")
    run_id = await host.begin("w", "same request")

    assert [key.run_id for key in world.runs_of("w")] == [run_id]
    assert host.metrics.snapshot().events[SHARD_LOST] == {(): 1}
    await host.signal("w", "s", "once")
    world.faults.fail_once("commit", OutcomeUnknown("no answer"), is_applied=is_applied)
    with pytest.raises(OutcomeUnknown):
        await host.signal("w", "t", "twice")
    await host.signal("w", "t", "twice")
    assert kinds(await host.events("w")).count("WORKFLOW_EXECUTION_SIGNALED") == 2
    task = await host.poll()
    assert task is not None
    await host.respond(task, [complete()])
    assert kinds(await host.events("w"))[-1] == "WORKFLOW_EXECUTION_COMPLETED"
    await _equal(world, host)
    await world.close()


@on_virtual_time
async def test_after_a_takeover_the_old_owner_writes_nothing_and_redirects_waiting_callers() -> None:
    world = World()
    host = await world.start()
    run_id = await host.begin("w")
    first = host.shard
    context = OperationContext(first, NAMESPACE, first.services, 60.0)
    request = GetWorkflowExecutionHistoryRequest(
        execution=WorkflowExecution(workflow_id="w", run_id=run_id),
        wait_new_event=True,
        history_event_filter_type=CLOSE_EVENT,
    )
    waiting = asyncio.create_task(get_history.get(context, request))
    await asyncio.sleep(1)

    await world.store.take_shard(0)
    with pytest.raises(NotOwner):
        await first.change(NAMESPACE, "w", "", lambda step, _run: terminate(step, reason="", identity=""))
    with pytest.raises(NotOwner):
        await asyncio.wait_for(waiting, 5)

    assert kinds(await host.events("w"))[-1] == "WORKFLOW_TASK_SCHEDULED"
    assert host.shard is not first
    await _equal(world, host)
    await world.close()


@on_virtual_time
async def test_a_caller_of_a_closing_shard_does_not_wait() -> None:
    world = World()
    host = await world.start()
    run_id = await host.begin("w")
    first = host.shard
    context = OperationContext(first, NAMESPACE, first.services, 60.0)
    request = GetWorkflowExecutionHistoryRequest(
        execution=WorkflowExecution(workflow_id="w", run_id=run_id),
        wait_new_event=True,
        history_event_filter_type=CLOSE_EVENT,
    )
    lock = first.lock(NAMESPACE.id, "w")
    async with lock:
        waiting = asyncio.create_task(get_history.get(context, request))
        update = asyncio.create_task(update_workflow(context, _update("w", "u")))
        await asyncio.sleep(1)
        await first.close()

    for each in (waiting, update):
        with pytest.raises(NotOwner):
            await asyncio.wait_for(each, 5)
    await world.close()


@on_virtual_time
async def test_a_call_cancelled_during_a_commit_leaves_memory_and_store_equal() -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    await asyncio.sleep(1)
    has_come, goes_on = world.faults.hold("commit")
    going = asyncio.create_task(host.signal("w", "s", "request"))
    await has_come.wait()

    going.cancel()
    await asyncio.sleep(0)
    going.cancel()
    goes_on.set()
    await asyncio.gather(going, return_exceptions=True)

    assert going.cancelled()
    assert kinds(await host.events("w")).count("WORKFLOW_EXECUTION_SIGNALED") == 1
    await _equal(world, host)
    await world.close()


@on_virtual_time
async def test_a_call_cancelled_during_a_deletion_leaves_memory_and_store_equal() -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    await host.call("TerminateWorkflowExecution", "w", _terminate("w"))
    await asyncio.sleep(1)
    has_come, goes_on = world.faults.hold("delete_run")
    going = asyncio.create_task(host.call("DeleteWorkflowExecution", "w", _delete("w")))
    await has_come.wait()

    going.cancel()
    await asyncio.sleep(0)
    signalling = asyncio.create_task(host.events("w"))
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(going, signalling, return_exceptions=True)

    await _equal(world, host)
    await world.close()


@pytest.mark.parametrize("is_applied", [True, False])
@on_virtual_time
async def test_a_deletion_whose_response_is_lost_leaves_memory_and_store_equal(is_applied: bool) -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    await host.call("TerminateWorkflowExecution", "w", _terminate("w"))
    await asyncio.sleep(1)
    world.faults.fail_once("delete_run", OutcomeUnknown("no answer"), is_applied=is_applied)

    with pytest.raises(OutcomeUnknown):
        await host.call("DeleteWorkflowExecution", "w", _delete("w"))

    await _equal(world, host)
    await world.close()


@pytest.mark.parametrize("failure", [ValueError("a bug"), InvalidArgument("wrong")])
@on_virtual_time
async def test_a_failing_step_leaves_the_state_unchanged(failure: Exception) -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    await asyncio.sleep(1)

    def with_event(transaction: Transaction, _run: LoadedRun) -> None:
        terminate(transaction, reason="", identity="")
        raise failure

    def buffering(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.add(WorkflowExecutionSignaledEventAttributes(signal_name="s"))
        raise failure

    def in_place(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.live.sticky_task_queue = "sticky"
        raise ValueError("a bug")

    def rolled_back(transaction: Transaction, _run: LoadedRun) -> None:
        checkpoint = transaction.checkpoint()
        terminate(transaction, reason="", identity="")
        transaction.roll_back(checkpoint)
        raise failure

    def written_badly(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.memo["m"] = object()  # type: ignore[assignment]

    for step in (with_event, buffering, in_place, rolled_back, written_badly):
        with pytest.raises((ValueError, ApiError, TypeError)):
            await host.shard.change(NAMESPACE, "w", "", step)
        await _equal(world, host)
        await host.signal("w", step.__name__)
        await _equal(world, host)
    await world.close()


@on_virtual_time
async def test_a_run_to_be_replaced_continues_if_the_new_one_can_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    host = await world.start()
    await host.begin("w")

    def refuse(*_: object) -> None:
        raise BadRequest("no such schedule")

    with monkeypatch.context() as patch:
        patch.setattr(start, "start_workflow", refuse)
        with pytest.raises(BadRequest):
            await host.begin("w", "other", workflow_id_conflict_policy=3)

    await _equal(world, host)
    await host.signal("w", "s")
    await world.close()


@on_virtual_time
async def test_a_repeated_start_keeps_its_completion_callbacks() -> None:
    world = World()
    host = await world.start()
    world.faults.fail_once("commit", LeaseLost("another was here"))
    request = start_request("w", "request")
    request.completion_callbacks.add().internal.data = b"schedule"

    await host.call("StartWorkflowExecution", "w", request)

    [key] = world.runs_of("w")
    state = world.run_row(0, key)
    assert state is not None
    assert state.live.watchers == [b"schedule"]
    await world.close()


@on_virtual_time
async def test_a_shard_that_is_lost_while_it_is_opened_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    host = await world.start()
    await host.begin("w", workflow_start_delay=Duration(seconds=100))
    await host.close()
    opened = Shard.open

    async def lose(shard: Shard) -> None:
        await opened(shard)
        monkeypatch.undo()
        shard.ownership.lose()

    monkeypatch.setattr(Shard, "open", lose)
    host = await world.start()
    await asyncio.sleep(5)

    assert not host.shard.ownership.is_lost
    await asyncio.sleep(120)
    assert "WORKFLOW_TASK_SCHEDULED" in kinds(await host.events("w"))
    await world.close()


async def _idle_run(host: OneHost, workflow_id: str = "w") -> None:
    """Start a run and complete its first workflow task without commands."""
    await host.begin(workflow_id)
    task = await host.poll()
    assert task is not None
    await host.respond(task)


def _accept(task: PollWorkflowTaskQueueResponse) -> dict[str, Any]:
    """Accept and complete the updates that came with a task."""
    messages, commands = [], []
    for message in task.messages:
        request = Request.FromString(message.body.value)
        acceptance = Acceptance(
            accepted_request_message_id=message.id,
            accepted_request_sequencing_event_id=message.event_id,
            accepted_request=request,
        )
        for name, body in (
            ("accept", acceptance),
            ("complete", Response(meta=request.meta, outcome=Outcome(success=Payloads()))),
        ):
            made = Message(id=f"{message.id}/{name}", protocol_instance_id=message.protocol_instance_id)
            made.body.Pack(body)
            messages.append(made)
            commands.append(command("PROTOCOL_MESSAGE", message_id=made.id))
    return {"commands": commands, "messages": messages}


async def _ask(host: OneHost, update_id: str) -> UpdateWorkflowExecutionResponse:
    answer = await host.call("UpdateWorkflowExecution", "w", _update("w", update_id), timeout_s=60)
    return UpdateWorkflowExecutionResponse.FromString(answer)


@on_virtual_time
async def test_events_during_a_speculative_workflow_task_reach_the_next_host() -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    asking = asyncio.create_task(_ask(host, "u"))
    task = await host.poll()
    assert task is not None
    assert task.messages
    await host.signal("w", "s", "request")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    # As after a crash: all memory is lost.
    await host.close()

    host = await world.start()
    task = await host.poll(timeout_s=60)

    assert task is not None
    assert "WORKFLOW_EXECUTION_SIGNALED" in kinds(task.history.events)
    await world.close()


@on_virtual_time
async def test_a_worker_keeps_a_speculative_task_that_was_written_with_a_signal() -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    asking = asyncio.create_task(_ask(host, "u"))
    task = await host.poll()
    assert task is not None
    assert task.messages
    await host.signal("w", "s", "request")

    await host.respond(task, **_accept(task))

    assert (await asking).stage == 3
    following = await host.poll(timeout_s=5)
    assert following is not None
    events = await host.events("w")
    assert [event.event_id for event in events] == list(range(1, len(events) + 1))
    assert kinds(events)[4:7] == ["WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_COMPLETED"]
    await _equal(world, host)
    await world.close()


@on_virtual_time
async def test_an_update_whose_workflow_task_was_lost_with_a_failed_write_is_delivered_again() -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    asking = asyncio.create_task(_ask(host, "u"))
    task = await host.poll()
    assert task is not None
    assert task.messages
    world.faults.fail_once("commit", StoreUnavailable("not now"))
    with pytest.raises(StoreUnavailable):
        await host.respond(task, **_accept(task))

    task = await host.poll(timeout_s=30)

    assert task is not None
    assert task.messages
    await host.respond(task, **_accept(task))
    assert (await asking).stage == 3
    await world.close()


@pytest.mark.parametrize("moves", [True, False])
@on_virtual_time
async def test_waiting_callers_keep_waiting_when_the_same_host_takes_the_shard_again(moves: bool) -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    asking = asyncio.create_task(_ask(host, "u"))
    request = GetWorkflowExecutionHistoryRequest(
        execution=WorkflowExecution(workflow_id="w"), wait_new_event=True, history_event_filter_type=CLOSE_EVENT
    )
    waiting = asyncio.create_task(host.call("GetWorkflowExecutionHistory", "w", request, timeout_s=60))
    query = QueryWorkflowRequest(execution=WorkflowExecution(workflow_id="w"))
    querying = asyncio.create_task(host.call("QueryWorkflow", "w", query, timeout_s=60))
    await asyncio.sleep(0.01)
    if moves:
        other = await world.start("other")
        await host._host.leave()
    else:
        other = host
        host.shard.ownership.lose()
    await asyncio.sleep(1)
    assert 0 in other.history.shards

    answered = False
    while not answered:
        task = await other.poll(timeout_s=30)
        assert task is not None
        if task.HasField("query"):
            answer = RespondQueryTaskCompletedRequest(task_token=task.task_token, completed_type=ANSWERED)
            await other.call("RespondQueryTaskCompleted", "w", answer)
            continue
        results = {each: {"result_type": 1} for each in task.queries}
        accepted = _accept(task)
        accepted["commands"].append(complete())
        await other.respond(task, **accepted, query_results=results)
        answered = True
    assert (await asyncio.wait_for(asking, 5)).stage == 3
    assert GetWorkflowExecutionHistoryResponse.FromString(await asyncio.wait_for(waiting, 5)).history.events
    # The response to the query may need more turns of the event loop.
    await asyncio.sleep(0.01)
    if not querying.done():
        task = await other.poll(timeout_s=5)
        assert task is not None
        answer = RespondQueryTaskCompletedRequest(task_token=task.task_token, completed_type=ANSWERED)
        await other.call("RespondQueryTaskCompleted", "w", answer)
    await asyncio.wait_for(querying, 5)
    await world.close()


async def _parent_with_child(
    host: OneHost, policy: ParentClosePolicy.ValueType = ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE
) -> None:
    """Start a parent and a child; both stay open without a workflow task."""
    await host.begin("parent-1")
    task = await host.poll()
    assert task is not None
    await host.respond(task, [start_child("child-1", policy)])
    for _ in range(2):
        task = await host.poll()
        assert task is not None
        await host.respond(task)


@on_virtual_time
async def test_a_parent_is_notified_of_a_deleted_child() -> None:
    world = World(shards=4)
    host = await world.start()
    await _parent_with_child(host)

    await host.call("DeleteWorkflowExecution", "child-1", _delete("child-1"))
    await asyncio.sleep(5)

    assert world.runs_of("child-1") == []
    assert "CHILD_WORKFLOW_EXECUTION_TERMINATED" in kinds(await host.events("parent-1"))
    await world.close()


@on_virtual_time
async def test_the_children_of_a_deleted_parent_are_ended() -> None:
    world = World(shards=4)
    host = await world.start()
    await _parent_with_child(host)

    await host.call("DeleteWorkflowExecution", "parent-1", _delete("parent-1"))
    await asyncio.sleep(5)

    assert world.runs_of("parent-1") == []
    assert kinds(await host.events("child-1"))[-1] == "WORKFLOW_EXECUTION_TERMINATED"
    await world.close()


@pytest.mark.parametrize("crashes", [True, False])
@on_virtual_time
async def test_a_child_does_not_start_if_its_parent_closed_first(crashes: bool) -> None:
    world = World()
    host = await world.start()
    await host.begin("parent-1")
    task = await host.poll()
    assert task is not None
    # The first commit belongs to the parent, the second to the child.
    commits = 0
    terminated = asyncio.Event()

    async def terminate_parent(operation: str) -> None:
        nonlocal commits
        commits += operation == "commit"
        if commits == 2:
            world.faults.on_after = None
            await host.call("TerminateWorkflowExecution", "parent-1", _terminate("parent-1"))
            terminated.set()
            if crashes:
                raise OutcomeUnknown("no answer")

    world.faults.on_after = terminate_parent
    await host.respond(task, [start_child("child-1")])
    await terminated.wait()
    await asyncio.sleep(5)

    events = kinds(await host.events("child-1"))
    assert "WORKFLOW_TASK_SCHEDULED" not in events
    assert events[-1] == "WORKFLOW_EXECUTION_TERMINATED"
    await world.close()


@on_virtual_time
async def test_the_end_of_a_child_is_reported_only_to_the_run_that_started_it() -> None:
    world = World()
    host = await world.start()
    await _parent_with_child(host, ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON)
    [first] = world.runs_of("child-1")
    # The parent continues as new, and then the child does.
    await host.signal("parent-1", "go on")
    task = await host.poll()
    assert task is not None
    going_on = command(
        "CONTINUE_AS_NEW_WORKFLOW_EXECUTION", workflow_type={"name": "parent"}, task_queue={"name": TASK_QUEUE}
    )
    await host.respond(task, [going_on])
    await host.call("TerminateWorkflowExecution", "child-1", _terminate("child-1"))
    await asyncio.sleep(1)
    task = await host.poll()
    assert task is not None
    await host.respond(task, [start_child("child-1")])
    await asyncio.sleep(1)

    # Run the task again, as a reopened queue does.
    state = world.run_row(0, first)
    assert state is not None
    assert state.started.parent is not None
    async with host.shard.lock(*first[:2]):
        run = await host.shard.load(*first)
    event = await host.shard.events.read_event(run.state, run.state.close_event_id)
    closed = ChildClosed(
        "parent-1",
        state.started.parent.run_id,
        state.started.parent.initiated_event_id,
        "child-1",
        first.run_id,
        first.run_id,
        event.SerializeToString(),
    )
    await host.call("ChildClosed", "parent-1", closed)

    current = world.current("parent-1")
    assert current is not None
    state = world.run_row(0, RunKey(*current[:3]))
    assert state is not None
    assert [child.workflow_id for child in state.children.values()] == ["child-1"]
    assert "CHILD_WORKFLOW_EXECUTION_TERMINATED" not in kinds(await host.events("parent-1"))
    await world.close()


@pytest.mark.parametrize("is_timed", [True, False])
@on_virtual_time
async def test_a_task_that_does_not_fit_in_memory_is_not_deleted_with_later_ones(is_timed: bool) -> None:
    gate = asyncio.Event()

    async def wait(row: QueueRow) -> None:
        if row.run_id.startswith("slow"):
            await gate.wait()

    world = await QueueWorld(MemoryHistory(), is_timed=is_timed, do=wait, tasks_max=3).open()
    await asyncio.sleep(10)
    early = world.queue.assign(0, world._next_id + 500)
    world._next_id += 1000
    await world.write("after it", 5 * SECOND_NS)
    await asyncio.sleep(0.01)
    assert world.done == ["after it"]
    for number in range(2):
        await world.write(f"slow {number}", 9 * SECOND_NS)
    other = world.queue.assign(9 * SECOND_NS, world._next_id + 500)
    task = RunTimeout(0, 0) if is_timed else UpsertVisibility(0)
    row = QueueRow("namespace", "workflow", "early", task)
    await world.store.commit(1, world.range_id, Commit(tasks=[TaskWrite("queue", *early, encode_row(row))]))
    world.queue.written(early, row)
    world.queue.not_written(other)
    assert world.queue.pending == 2
    await asyncio.sleep(3)
    assert "early" in await world.stored()
    gate.set()
    await asyncio.sleep(60)

    assert "early" in world.done
    assert await world.stored() == []
    await world.queue.close()


@on_virtual_time
async def test_a_task_written_during_a_page_read_that_does_not_fit_is_read_later() -> None:
    faults = Faults()
    world = await QueueWorld(MemoryHistory(faults), is_timed=True, tasks_max=10).open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "PAGE_MAX", 4)
        for number in range(8):
            await world.write(f"far {number}", (61 + number) * SECOND_NS)
        for number in range(9):
            await world.write(f"near {number}", (50 + number) * SECOND_NS)
        has_read = asyncio.Event()
        goes_on = asyncio.Event()

        async def hold(operation: str) -> None:
            if operation == "read_tasks" and not has_read.is_set():
                has_read.set()
                await goes_on.wait()

        faults.on_after = hold
        await has_read.wait()
        for number in range(4):
            await world.write(f"late {number}", (30 + number) * SECOND_NS)
        goes_on.set()
        await asyncio.sleep(300)

    assert len(set(world.done)) == 21
    assert await world.stored() == []
    await world.queue.close()


@on_virtual_time
async def test_timers_far_away_cost_no_memory() -> None:
    world = await QueueWorld(MemoryHistory(), is_timed=True).open()
    await world.write("near", 55 * SECOND_NS)
    for number in range(3 * queues.PAGE_MAX):
        await world.write(str(number), (10_000 + number) * SECOND_NS)

    await asyncio.sleep(5)

    assert len(world.queue._keys) <= queues.PAGE_MAX + 2
    await world.queue.close()


@on_virtual_time
async def test_tasks_that_keep_failing_do_not_block_others() -> None:
    async def fail(row: QueueRow) -> None:
        if row.run_id.startswith("bad"):
            raise StoreUnavailable("never")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "CONCURRENT_MAX", 5)
        for is_timed in (True, False):
            world = await QueueWorld(MemoryHistory(), is_timed=is_timed, do=fail).open()
            for number in range(20):
                await world.write(f"bad {number}")
            for number in range(20):
                await world.write(f"good {number}")
            await asyncio.sleep(5)

            assert len(world.done) == 20
            assert len(await world.stored()) == 40
            await world.queue.close()


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.5, 1.0, 1.01, 2.0, 2.01])
@on_virtual_time
async def test_all_workflows_complete_while_shards_move_between_hosts(after_s: float) -> None:
    world = World(shards=8)
    host = await world.start()
    worker = Worker(lambda task: {"commands": _decide(task)})
    worker.start(host)
    running = asyncio.create_task(host.begin("parent-1", "start"))
    await asyncio.sleep(after_s)
    other = await world.start("other")
    others = Worker(lambda task: {"commands": _decide(task)})
    others.start(other)
    await running
    owned = set(other.history.shards)
    assert 0 < len(owned) < 8
    await asyncio.sleep(0.1)
    signalling = asyncio.create_task(host.signal("parent-1", "hello", "signal"))
    await asyncio.sleep(0)
    await host._host.leave()
    await signalling
    await worker.stop()
    await host.close()
    await asyncio.sleep(100)

    assert set(other.history.shards) == set(range(8))
    await _check_ended(world, other)
    await others.stop()
    await world.close()


@on_virtual_time
async def test_a_timed_out_wait_for_events_leaves_nothing_behind() -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    request = GetWorkflowExecutionHistoryRequest(
        execution=WorkflowExecution(workflow_id="w"), wait_new_event=True, history_event_filter_type=CLOSE_EVENT
    )

    await host.call("GetWorkflowExecutionHistory", "w", request, timeout_s=5)

    assert host.shard.watchers._changes == {}
    await world.close()


@on_virtual_time
async def test_a_request_is_attached_once_though_a_worker_has_a_task() -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    task = await host.poll()
    assert task is not None

    for _ in range(2):
        await host.begin(
            "w", "other request", workflow_id_conflict_policy=2, on_conflict_options={"attach_request_id": True}
        )
    await host.respond(task)

    assert kinds(await host.events("w")).count("WORKFLOW_EXECUTION_OPTIONS_UPDATED") == 1
    await world.close()


@on_virtual_time
async def test_a_redirected_caller_does_not_wait_longer_than_its_timeout() -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    request = GetWorkflowExecutionHistoryRequest(
        execution=WorkflowExecution(workflow_id="w"), wait_new_event=True, history_event_filter_type=CLOSE_EVENT
    )
    waiting = asyncio.create_task(host.call("GetWorkflowExecutionHistory", "w", request, timeout_s=20))
    await asyncio.sleep(15)
    host.shard.ownership.lose()

    await asyncio.wait_for(waiting, 6)
    await world.close()


@on_virtual_time
async def test_a_timer_for_an_unreachable_time_is_stored_like_any_other() -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    task = await host.poll()
    assert task is not None

    await host.respond(task, [start_timer(315_576_000_000)])
    await host.shard.change(NAMESPACE, "w", "", lambda step, _run: step.add_task(RunTimeout(0, 2**63 + 1)))

    assert len(await world.stored_rows("timer")) == 3
    assert all(key.fire_at_ns < 2**63 for key in world.store._shards[0].queues["timer"].keys)
    await world.close()


# Transient API errors: a timeout, a run or update that is not there yet, or a workflow task that has just failed.
_PASSING = (DeadlineExceeded, NotFound, Gone, FailedPrecondition)


class _Unlucky:
    """Lets a limited number of store operations fail at random."""

    def __init__(self, order: random.Random, faults: int) -> None:
        self._order = order
        self.left = faults

    async def before(self, operation: str) -> None:
        """Fail before the operation takes effect, with a definite or unknown outcome, or only delay it."""
        if operation == "commit" and self._order.random() < 0.2:
            await asyncio.sleep(self._order.random())
        failures: list[FairleadError] = [StoreUnavailable("not now")]
        if operation in ("commit", "complete_tasks", "take_shard"):
            failures += [OutcomeUnknown("no answer"), LeaseLost("another has it")]
        self._fail(failures)

    async def after(self, operation: str) -> None:
        """Fail with unknown outcome, after the operation took effect."""
        if operation in ("commit", "complete_tasks", "take_shard"):
            self._fail([OutcomeUnknown("no answer")])

    def _fail(self, failures: Sequence[FairleadError]) -> None:
        if self.left and self._order.random() < 0.1:
            self.left -= 1
            raise self._order.choice(failures)


def _decide_all(task: PollWorkflowTaskQueueResponse) -> dict[str, Any]:
    """As `_decide`, with an update before the end."""
    accepted = _accept(task)
    commands = _decide(task)
    seen = Counter(kinds(task.history.events))
    is_updated = seen["WORKFLOW_EXECUTION_UPDATE_COMPLETED"] or accepted["commands"]
    if task.workflow_type.name == "parent" and commands and commands[-1] == complete() and not is_updated:
        commands.pop()
    results = {query_id: WorkflowQueryResult(result_type=ANSWERED) for query_id in task.queries}
    return {**accepted, "commands": accepted["commands"] + commands, "query_results": results}


@pytest.mark.parametrize("seed", range(40))
def test_everything_happens_once_despite_any_failures(seed: int) -> None:
    order = random.Random(seed)

    async def scenario() -> None:
        world = World(shards=order.choice([1, 3]))
        host = await world.start()
        worker = Worker(_decide_all)
        worker.start(host)
        unlucky = _Unlucky(order, order.choice([3, 10, 30]))
        world.faults.on_before, world.faults.on_after = unlucky.before, unlucky.after

        async def insist(action: Callable[[], Awaitable[Any]]) -> Any:
            while True:
                try:
                    return await action()
                except FairleadError as failure:
                    if isinstance(failure, ApiError) and not isinstance(failure, _PASSING):
                        raise
                    await asyncio.sleep(0.2)

        await insist(lambda: host.begin("parent-1", "start"))
        query = QueryWorkflowRequest(execution=WorkflowExecution(workflow_id="parent-1"))

        async def update() -> None:
            while True:
                answer = await host.call(
                    "UpdateWorkflowExecution", "parent-1", _update("parent-1", "u"), timeout_s=order.choice([5, 30])
                )
                if UpdateWorkflowExecutionResponse.FromString(answer).stage == COMPLETED:
                    return

        async def ask() -> None:
            for _ in range(5):
                await asyncio.sleep(order.random())
                with suppress(ApiError):
                    await host.call("QueryWorkflow", "parent-1", query)

        async with asyncio.timeout(1_000), asyncio.TaskGroup() as group:
            group.create_task(insist(lambda: host.signal("parent-1", "hello", "signal")))
            group.create_task(insist(update))
            group.create_task(insist(ask))
        async with asyncio.timeout(1_000):
            while (current := world.current("parent-1")) is None or not current.is_closed:  # noqa: ASYNC110
                await asyncio.sleep(1)
        world.faults.on_before = world.faults.on_after = None
        await asyncio.sleep(100)

        await _check_ended(world, host)
        counted = Counter(kinds(await host.events("parent-1")))
        assert counted["WORKFLOW_EXECUTION_UPDATE_ACCEPTED"] == counted["WORKFLOW_EXECUTION_UPDATE_COMPLETED"] == 1
        await _equal(world, host)
        await worker.stop()
        await world.close()

    _, loop = run(scenario(), order=order)
    assert loop.failures == []


@on_virtual_time
async def test_a_delivered_signal_does_not_fail_when_its_receiver_has_closed() -> None:
    world = World()
    host = await world.start()
    await _idle_run(host)
    attributes = WorkflowExecutionSignaledEventAttributes(signal_name="s", request_id="request")
    request = SignalFrom("w", "", attributes.SerializeToString(), None)
    await host.call("SignalFrom", "w", request)
    await host.call("TerminateWorkflowExecution", "w", _terminate("w"))

    await host.call("SignalFrom", "w", request)

    other = WorkflowExecutionSignaledEventAttributes(signal_name="s", request_id="another")
    with pytest.raises(RunClosed):
        await host.call("SignalFrom", "w", SignalFrom("w", "", other.SerializeToString(), None))
    await world.close()


@on_virtual_time
async def test_a_reset_after_a_failover_writes_no_batch_with_two_versions() -> None:
    """The copied events have another version than the added ones; replication checks each batch separately."""
    world = World()
    host = await world.start()

    async def fail_over(version: int) -> None:
        await host.namespaces.update(
            NAMESPACE.name, lambda found: msgspec.structs.replace(found, failover_version=version)
        )

    async def reset(event_id: int) -> str:
        request = ResetWorkflowExecutionRequest(
            namespace=NAMESPACE.name,
            workflow_execution=WorkflowExecution(workflow_id="parent-1"),
            workflow_task_finish_event_id=event_id,
        )
        answer = await host.call("ResetWorkflowExecution", "parent-1", request)
        return ResetWorkflowExecutionResponse.FromString(answer).run_id

    async def work() -> None:
        task = await host.poll()
        assert task is not None
        await host.respond(task)

    try:
        await fail_over(1)
        await host.begin("parent-1")
        await work()
        await fail_over(11)
        await reset(4)
        await fail_over(21)
        # Reset to the same workflow task again, now of a run that shares the events before it.
        run_id = await reset(4)
        run = await host.shard.load(NAMESPACE.id, "parent-1", run_id)
        written = await world.store.read_branch(
            run.state.identity.tree_id, run.state.identity.branch_id, 1, run.state.next_event_id, limit_bytes=1 << 20
        )
        events = await host.events("parent-1", run_id)
        versions = {event.event_id: event.version for event in events}
        assert set(versions.values()) == {1, 21}
        assert [*versions] == [
            event_id for one in written for event_id in range(one.first_event_id, one.last_event_id + 1)
        ]
        assert all(
            len({versions[one.first_event_id], versions[one.last_event_id], one.version}) == 1 for one in written
        )
        for one in run.batches:
            row = stream_row(run.key, run.state, one, now_ns=0)
            # The constructor rejects a batch with several versions.
            EventBatch(EventRange(*one[:2]), row.version, VersionHistory.from_pairs(row.items))
        assert run.batches == [Batch(one.first_event_id, one.last_event_id, one.payload) for one in written]
    finally:
        await world.close()


@pytest.mark.parametrize("error", [Exhausted("full"), InvalidArgument("wrong"), RunClosed()])
@on_virtual_time
async def test_a_step_that_rejects_its_request_leaves_the_run_in_memory(error: ApiError) -> None:
    """Otherwise updates and queries that wait in memory would be lost."""
    world = World()
    host = await world.start()
    run_id = await host.begin("workflow")
    key = RunKey(NAMESPACE.id, "workflow", run_id)
    loaded = host.shard.runs.get(key)
    assert loaded is not None

    def reject(_transaction: Transaction, _run: LoadedRun) -> None:
        raise error

    with pytest.raises(type(error)):
        await host.shard.change(NAMESPACE, "workflow", run_id, reject)
    assert host.shard.runs.get(key) is loaded
    await world.close()
