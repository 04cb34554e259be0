"""Three processes on PostgreSQL: every host serves every request, and killing or stopping hosts loses nothing."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from temporalio import activity, workflow
from temporalio.api.batch.v1 import BatchOperationTermination
from temporalio.api.enums.v1 import EventType, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    RegisterNamespaceRequest,
    ResetWorkflowExecutionRequest,
    StartBatchOperationRequest,
)
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode, WorkflowService
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from tests.depth import IS_DEEP
from tests.sdk.hosts import Host, three_hosts
from tests.sdk.stage import execution, make_worker

QUEUE = "travel"
SEED = 20_261_116
WORKFLOWS = 50 if IS_DEEP else 25
# Each host is killed at least once.
KILLS = 6 if IS_DEEP else 3
ROUNDS = 6
WAIT_S_MAX = 60.0
END_S_MAX = 120.0
_CHECK_S = 0.05


@activity.defn
async def double(number: int) -> int:
    await asyncio.sleep(0.02)
    return 2 * number


@activity.defn
async def left_to_others() -> str:
    activity.raise_complete_async()


@workflow.defn
class Trip:
    """Adds the results of an activity, a timer and a child workflow."""

    @workflow.run
    async def run(self, number: int) -> int:
        doubled = await workflow.execute_activity(double, number, start_to_close_timeout=timedelta(seconds=20))
        await workflow.sleep(0.2)
        return doubled + await workflow.execute_child_workflow(Leg.run, number, id=f"{workflow.info().workflow_id}/leg")


@workflow.defn
class Leg:
    """A child workflow with its own activity."""

    @workflow.run
    async def run(self, number: int) -> int:
        return await workflow.execute_activity(double, 10 * number, start_to_close_timeout=timedelta(seconds=20))


@workflow.defn
class Talk:
    """Collects signals and updates until a signal ends it."""

    def __init__(self) -> None:
        self._heard: list[str] = []
        self._may_end = False

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self._may_end and workflow.all_handlers_finished())
        return self._heard

    @workflow.signal
    def tell(self, word: str) -> None:
        self._heard.append(word)

    @workflow.signal
    def end(self) -> None:
        self._may_end = True

    @workflow.query
    def heard(self) -> list[str]:
        return self._heard

    @workflow.update
    async def ask(self, word: str) -> int:
        self._heard.append(word)
        await workflow.sleep(0.1)
        return len(self._heard)

    @ask.validator
    def check(self, word: str) -> None:
        if not word:
            raise ApplicationError("say something")


@workflow.defn
class Chain:
    """Continues as new until the number is 0."""

    @workflow.run
    async def run(self, number: int) -> str:
        if number:
            workflow.continue_as_new(number - 1)
        return workflow.info().first_execution_run_id


@workflow.defn
class Messenger:
    """Sends signals and cancel requests to other workflows."""

    @workflow.run
    async def run(self, other: str) -> None:
        handle: workflow.ExternalWorkflowHandle[Talk] = workflow.get_external_workflow_handle_for(Talk.run, other)
        await handle.signal(Talk.tell, "from afar")
        await handle.cancel()


@workflow.defn
class Patient:
    """Waits until another client completes its activity."""

    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(
            left_to_others, activity_id="left", start_to_close_timeout=timedelta(seconds=60)
        )


@workflow.defn
class Adder:
    """Adds the results of activities, and waits for as many signals."""

    def __init__(self) -> None:
        self._signals: set[int] = set()

    @workflow.run
    async def run(self, number: int) -> int:
        total = 0
        for each in range(ROUNDS):
            total += await workflow.execute_activity(
                double,
                number + each,
                start_to_close_timeout=timedelta(seconds=5),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
            )
            await workflow.sleep(0.5)
        await workflow.wait_condition(lambda: len(self._signals) == ROUNDS)
        return total

    @workflow.signal
    def tell(self, number: int) -> None:
        self._signals.add(number)

    @workflow.query
    def received(self) -> int:
        return len(self._signals)

    @workflow.update
    def ask(self, number: int) -> int:
        return -number


PROGRAMS: Sequence[type] = (Trip, Leg, Talk, Chain, Messenger, Patient, Adder)


def sum_of(number: int) -> int:
    return sum(2 * (number + each) for each in range(ROUNDS))


def talk(client: Client, name: str, run_id: str | None = None) -> WorkflowHandle[Talk, list[str]]:
    return client.get_workflow_handle_for(Talk.run, name, run_id=run_id)


async def until(is_there: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; the test's own timeout ends a wait that is too long."""
    while not await is_there():  # noqa: ASYNC110 - it is another process that it waits for
        await asyncio.sleep(_CHECK_S)


@asynccontextmanager
async def workers(hosts: Sequence[Host]) -> AsyncIterator[list[Client]]:
    """Connect a client to each host and run a worker on each."""
    async with AsyncExitStack() as stack:
        clients = [await Client.connect(host.address, identity=f"client-of-{host.number}") for host in hosts]
        for host in hosts:
            # A separate connection, so that the polls don't share one with the calls of the test.
            client = await Client.connect(host.address)
            worker = make_worker(client, QUEUE, PROGRAMS, [double, left_to_others], identity=f"worker-of-{host.number}")
            await stack.enter_async_context(worker)
        yield clients


# Behaviours across hosts: client `here` starts a workflow with a name of its own, client `there` of another host
# continues.


async def activities_timers_and_children(here: Client, there: Client, name: str) -> None:
    await here.start_workflow(Trip.run, 4, id=name, task_queue=QUEUE)
    assert await there.get_workflow_handle(name, result_type=int).result() == 8 + 80
    assert await here.get_workflow_handle(f"{name}/leg", result_type=int).result() == 80
    history = await there.get_workflow_handle(name).fetch_history()
    assert [event.event_id for event in history.events] == list(range(1, len(history.events) + 1))
    await Replayer(workflows=PROGRAMS, workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(history)


async def signals(here: Client, there: Client, name: str) -> None:
    mine = await here.start_workflow(Talk.run, id=name, task_queue=QUEUE)
    theirs = talk(there, name)
    for number in range(3):
        await mine.signal(Talk.tell, f"here {number}")
        await theirs.signal(Talk.tell, f"there {number}")
    await mine.signal(Talk.end)
    expected = [f"{side} {number}" for number in range(3) for side in ("here", "there")]
    assert await theirs.result() == expected


async def signal_with_start(here: Client, there: Client, name: str) -> None:
    for client in (here, there, here):
        await client.start_workflow(
            Talk.run, id=name, task_queue=QUEUE, start_signal="tell", start_signal_args=["word"]
        )
    handle = talk(there, name)
    await handle.signal(Talk.end)
    assert await handle.result() == ["word"] * 3


async def queries(here: Client, there: Client, name: str) -> None:
    mine = await here.start_workflow(Talk.run, id=name, task_queue=QUEUE)
    theirs = talk(there, name)
    assert await theirs.query(Talk.heard) == []
    await mine.signal(Talk.tell, "one")
    assert await theirs.query(Talk.heard) == ["one"]
    await theirs.signal(Talk.end)
    await mine.result()
    assert await theirs.query(Talk.heard) == ["one"]


async def updates(here: Client, there: Client, name: str) -> None:
    mine = await here.start_workflow(Talk.run, id=name, task_queue=QUEUE)
    theirs = talk(there, name)
    assert await theirs.execute_update(Talk.ask, "one") == 1
    started = await mine.start_update(Talk.ask, "two", id="second", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    assert await theirs.get_update_handle("second", result_type=int).result() == 2
    assert await started.result() == 2
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await theirs.execute_update(Talk.ask, "")
    assert str(raised.value.cause) == "say something"
    # The same update id is the same update on every host.
    assert await theirs.execute_update(Talk.ask, "two", id="second") == 2
    await mine.signal(Talk.end)
    assert await theirs.result() == ["one", "two"]


async def update_with_start(here: Client, there: Client, name: str) -> None:
    for number, client in enumerate((here, there), 1):
        start = WithStartWorkflowOperation(
            Talk.run, id=name, task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )
        answer = await client.execute_update_with_start_workflow(Talk.ask, "word", start_workflow_operation=start)
        assert answer == number
    handle = talk(there, name)
    await handle.signal(Talk.end)
    assert await handle.result() == ["word", "word"]


async def cancellation(here: Client, there: Client, name: str) -> None:
    handle = await here.start_workflow(Talk.run, id=name, task_queue=QUEUE)
    await there.get_workflow_handle(name).cancel()
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)


async def termination(here: Client, there: Client, name: str) -> None:
    handle = await here.start_workflow(Talk.run, id=name, task_queue=QUEUE)
    waiting = asyncio.create_task(handle.result())
    await there.get_workflow_handle(name).terminate(reason="enough")
    with pytest.raises(WorkflowFailureError) as failure:
        await waiting
    assert isinstance(failure.value.cause, TerminatedError)
    assert (await there.get_workflow_handle(name).describe()).status == WorkflowExecutionStatus.TERMINATED
    with pytest.raises(RPCError) as raised:
        await handle.signal(Talk.end)
    assert raised.value.status == RPCStatusCode.NOT_FOUND


async def continue_as_new(here: Client, there: Client, name: str) -> None:
    handle = await here.start_workflow(Chain.run, 3, id=name, task_queue=QUEUE)
    assert await handle.result() == handle.first_execution_run_id
    followed = there.get_workflow_handle(name, run_id=handle.first_execution_run_id, result_type=str)
    assert await followed.result() == handle.first_execution_run_id


async def external_workflows(here: Client, there: Client, name: str) -> None:
    other = await here.start_workflow(Talk.run, id=f"{name}/other", task_queue=QUEUE)
    await there.execute_workflow(Messenger.run, other.id, id=name, task_queue=QUEUE)
    with pytest.raises(WorkflowFailureError) as failure:
        await other.result()
    assert isinstance(failure.value.cause, CancelledError)
    assert await talk(there, other.id).query(Talk.heard) == ["from afar"]


async def reset(here: Client, there: Client, name: str) -> None:
    first = await here.start_workflow(Talk.run, id=name, task_queue=QUEUE)
    await first.execute_update(Talk.ask, "kept")
    await first.terminate()
    answer = await there.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=execution(name),
            request_id="again",
            reason="again",
            workflow_task_finish_event_id=4,
        )
    )
    second = talk(here, name, run_id=answer.run_id)
    # The reset reapplies an update that was accepted after the reset point.
    await until(lambda: _heard(second, ["kept"]))
    await second.signal(Talk.end)
    assert await talk(there, name).result() == ["kept"]


async def _heard(handle: WorkflowHandle[Talk, list[str]], words: list[str]) -> bool:
    return await handle.query(Talk.heard) == words


async def visibility(here: Client, there: Client, name: str) -> None:
    handles = [await here.start_workflow(Talk.run, id=f"{name}/{each}", task_queue=QUEUE) for each in range(3)]
    await handles[0].terminate()
    running = f"WorkflowId STARTS_WITH '{name}/' AND ExecutionStatus = 'Running'"

    async def is_seen() -> bool:
        return (await there.count_workflows(running)).count == 2

    await until(is_seen)
    found = {each.id async for each in there.list_workflows(running)}
    assert found == {handle.id for handle in handles[1:]}


async def activities_that_others_complete(here: Client, there: Client, name: str) -> None:
    handle = await here.start_workflow(Patient.run, id=name, task_queue=QUEUE)

    async def has_begun() -> bool:
        pending = (await there.get_workflow_handle(name).describe()).raw_description.pending_activities
        return any(each.attempt == 1 and each.HasField("last_started_time") for each in pending)

    await until(has_begun)
    left = there.get_async_activity_handle(workflow_id=name, run_id=handle.first_execution_run_id, activity_id="left")
    await left.heartbeat("still here")
    await left.complete("by others")
    assert await handle.result() == "by others"


async def activities_that_stand_alone(here: Client, there: Client, name: str) -> None:
    timeout = timedelta(seconds=20)
    handle = await here.start_activity(double, 21, id=name, task_queue=QUEUE, start_to_close_timeout=timeout)
    assert await there.get_activity_handle(name, result_type=int).result() == 42
    assert await handle.result() == 42


async def namespaces(here: Client, there: Client, name: str) -> None:
    await here.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=timedelta(days=2))  # type: ignore[arg-type]
    )
    described = await there.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=name))
    assert described.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=2)
    handle = await _within(there, name).start_workflow(Talk.run, id="in it", task_queue=QUEUE)
    assert (await talk(_within(here, name), "in it").describe()).run_id == handle.first_execution_run_id


def _within(client: Client, namespace: str) -> Client:
    """A client for another namespace on the same connection."""
    return Client(client.service_client, namespace=namespace)


async def schedules(here: Client, there: Client, name: str) -> None:
    action = ScheduleActionStartWorkflow(Trip.run, 4, id=f"{name}/begun", task_queue=QUEUE)
    every_day = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=1))])
    await here.create_schedule(name, Schedule(action=action, spec=every_day))
    theirs = there.get_schedule_handle(name)
    await theirs.trigger()

    async def has_ended() -> bool:
        info = (await theirs.describe()).info
        return info.num_actions == 1 and not info.running_actions

    await until(has_ended)
    (begun,) = (await here.get_schedule_handle(name).describe()).info.recent_actions
    assert isinstance(begun.action, ScheduleActionExecutionStartWorkflow)
    assert await there.get_workflow_handle(begun.action.workflow_id, result_type=int).result() == 88
    await theirs.delete()
    with pytest.raises(RPCError):
        await here.get_schedule_handle(name).describe()


async def batches(here: Client, there: Client, name: str) -> None:
    handles = [await here.start_workflow(Talk.run, id=f"{name}/{each}", task_queue=QUEUE) for each in range(5)]
    await there.workflow_service.start_batch_operation(
        StartBatchOperationRequest(
            namespace="default",
            job_id=name,
            reason="enough",
            executions=[execution(handle.id) for handle in handles],
            termination_operation=BatchOperationTermination(identity="batch"),
        )
    )
    for handle in handles:
        with pytest.raises(WorkflowFailureError):
            await talk(here, handle.id).result()


async def pollers(here: Client, there: Client, name: str) -> None:
    request = DescribeTaskQueueRequest(
        namespace="default", task_queue=TaskQueue(name=QUEUE), task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    )
    for client in (here, there):

        async def are_seen(service: WorkflowService = client.workflow_service) -> bool:
            seen = {each.identity for each in (await service.describe_task_queue(request)).pollers}
            return seen == {"worker-of-1", "worker-of-2", "worker-of-3"}

        await until(are_seen)


BEHAVIOURS = (
    activities_timers_and_children,
    signals,
    signal_with_start,
    queries,
    updates,
    update_with_start,
    cancellation,
    termination,
    continue_as_new,
    external_workflows,
    reset,
    visibility,
    activities_that_others_complete,
    activities_that_stand_alone,
    namespaces,
    schedules,
    batches,
    pollers,
)


@pytest.mark.timeout(300)
async def test_a_change_at_one_host_is_visible_at_every_other(postgres_dsn: str, tmp_path: Path) -> None:
    failures: list[Exception] = []

    async def watch(behaviour: Callable[[Client, Client, str], Awaitable[None]], here: int, there: int) -> None:
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await behaviour(clients[here], clients[there], f"{behaviour.__name__}-{here}-{there}")
        except Exception as failure:  # noqa: BLE001 - each failure is reported with its name
            failure.add_note(f"{behaviour.__name__}, begun at host {here + 1} and seen at host {there + 1}")
            failures.append(failure)

    async with three_hosts(postgres_dsn, tmp_path) as hosts, workers(hosts) as clients:
        for here, there in ((0, 1), (1, 2), (2, 0)):
            await asyncio.gather(*(watch(behaviour, here, there) for behaviour in BEHAVIOURS))
        if failures:
            raise ExceptionGroup("across hosts", failures)
        assert_no_errors(hosts)


def assert_no_errors(hosts: Sequence[Host]) -> None:
    """Hosts of a healthy cluster log no errors."""
    lines = [f"host {host.number}: {line}" for host in hosts for line in host.log().splitlines()]
    assert [line for line in lines if "[error" in line or "Traceback" in line] == []


async def _persist(clients: Sequence[Client], chance: random.Random, ask: Callable[[Client], Awaitable[Any]]) -> Any:
    """Repeat the call on random hosts until one responds, as a client that must not lose a request does."""
    while True:
        try:
            return await ask(chance.choice(clients))
        except RPCError as failure:
            # The SDK reports a connection that breaks during a call with this code.
            is_broken = failure.status == RPCStatusCode.UNKNOWN and failure.message == "transport error"
            if not is_broken and failure.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
                raise
            await asyncio.sleep(_CHECK_S)


async def _live(clients: Sequence[Client], number: int, chance: random.Random) -> int:
    name = f"adder-{number}"

    async def start(client: Client) -> None:
        with suppress(WorkflowAlreadyStartedError):
            await client.start_workflow(Adder.run, number, id=name, task_queue=QUEUE, task_timeout=timedelta(seconds=2))

    await _persist(clients, chance, start)
    for each in range(ROUNDS):
        await asyncio.sleep(chance.uniform(0, 4.0))
        await _persist(clients, chance, partial(_tell, name=name, number=each))
    result: int = await _persist(clients, chance, lambda client: _handle(client, name).result())
    return result


async def _tell(client: Client, *, name: str, number: int) -> None:
    try:
        await _handle(client, name).signal(Adder.tell, number)
    except RPCError as failure:
        # The server had accepted the first request, only the response was lost: the workflow has ended since.
        if failure.message != "workflow execution already completed":
            raise


def _handle(client: Client, name: str) -> WorkflowHandle[Adder, int]:
    return client.get_workflow_handle_for(Adder.run, name)


async def _check_histories(client: Client, names: Sequence[str]) -> None:
    """Event ids have no gaps, every activity ends once, and the SDK replays the history to the same end."""
    replayer = Replayer(workflows=PROGRAMS, workflow_runner=UnsandboxedWorkflowRunner())
    for name in names:
        history = await client.get_workflow_handle(name).fetch_history()
        _check(history)
        await replayer.replay_workflow(history)


def _check(history: WorkflowHistory) -> None:
    assert [event.event_id for event in history.events] == list(range(1, len(history.events) + 1))
    ends = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    assert len({each.activity_task_completed_event_attributes.scheduled_event_id for each in ends}) == ROUNDS
    assert len(ends) == ROUNDS


@pytest.mark.sim
@pytest.mark.timeout(400)
async def test_all_workflows_end_well_though_one_host_after_another_is_killed(
    postgres_dsn: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    async with three_hosts(postgres_dsn, tmp_path) as hosts, workers(hosts) as clients:
        living = [asyncio.create_task(_live(clients, number, chance)) for number in range(WORKFLOWS)]
        kills = 0
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.5, 2.0))
            if all(task.done() for task in living):
                break
            victim = hosts[kills % len(hosts)]
            await victim.kill()
            kills += 1
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await victim.start()
        async with asyncio.timeout(END_S_MAX):
            results = await asyncio.gather(*living)
        assert results == [sum_of(number) for number in range(WORKFLOWS)], f"seed {SEED}"
        assert kills == KILLS, "the workflows were over before the last kill: let them take longer"
        await _check_histories(clients[0], [f"adder-{number}" for number in range(WORKFLOWS)])


class Balancer:
    """One address for all hosts, like a load balancer: each connection goes to the next host that accepts it."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._turn = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(_close, writer)
            for _ in self._hosts:
                self._turn += 1
                host, port = self._hosts[self._turn % len(self._hosts)].address.split(":")
                with suppress(OSError):
                    from_host, to_host = await asyncio.open_connection(host, int(port))
                    closing.push_async_callback(_close, to_host)
                    await asyncio.gather(_pump(reader, to_host), _pump(from_host, writer))
                    return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.mark.timeout(300)
async def test_hosts_are_restarted_one_by_one_under_load_and_no_client_sees_an_error(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """All calls go through a load balancer; only errors that the SDK retries may occur."""
    async with three_hosts(postgres_dsn, tmp_path) as hosts, Balancer(hosts) as balancer, AsyncExitStack() as stack:
        clients = [await Client.connect(balancer.address) for _ in range(3)]
        for number in range(3):
            worker_client = await Client.connect(balancer.address)
            worker = make_worker(worker_client, QUEUE, PROGRAMS, [double], identity=f"worker-{number}")
            await stack.enter_async_context(worker)
        is_over = asyncio.Event()
        living = [
            asyncio.create_task(_live_carelessly(client, number, is_over)) for number, client in enumerate(clients)
        ]
        for host in hosts:
            # Each host is stopped under load, not at once.
            await asyncio.sleep(1.0)
            assert await host.stop() == 0
            await host.start()
        is_over.set()
        async with asyncio.timeout(END_S_MAX):
            counts = await asyncio.gather(*living)
        assert min(counts) >= 3, "hardly any load"
        names = [f"careless-{number}-{each}" for number, count in enumerate(counts) for each in range(count)]
        await _check_histories(clients[0], names[::4])
        assert_no_errors(hosts)


async def _live_carelessly(client: Client, number: int, is_over: asyncio.Event) -> int:
    """Run workflows one after the other without any error handling; returns their number."""
    count = 0
    ends: list[asyncio.Task[int]] = []
    while not is_over.is_set():
        name = f"careless-{number}-{count}"
        handle = await client.start_workflow(Adder.run, count, id=name, task_queue=QUEUE)
        for each in range(ROUNDS):
            await handle.signal(Adder.tell, each)
        assert await handle.query(Adder.received) == ROUNDS
        assert await handle.execute_update(Adder.ask, each) == -each
        ends.append(asyncio.create_task(handle.result()))
        count += 1
        await asyncio.sleep(0.1)
    assert await asyncio.gather(*ends) == [sum_of(each) for each in range(count)]
    return count
