"""A history service beside a real matching host, over one store in memory that fails on demand; for tests of shards."""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import RetryPolicy, WorkflowExecution
from temporalio.api.enums.v1 import CommandType, EventType, ParentClosePolicy, QueryResultType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    PollActivityTaskQueueResponse,
    PollWorkflowTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
    RespondQueryTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
)

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.api.worker_deployments import Deployments
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.history.service import HistoryService
from fairlead.history.shard.shard import Shard
from fairlead.history.state import RunState, decode
from fairlead.history.state.tasks import QueueRow, decode_row
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import PollResponse, QueueKind
from fairlead.matching.sticky_polls import StickyPolls
from fairlead.rpc.hosts.caller import Caller
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.server.host import Host, HostRing
from fairlead.settings import DynamicSettings
from fairlead.storage.history import CurrentRun, RunKey, TaskKey
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.telemetry import Metrics

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND_NS
NAMESPACE = Namespace(id="namespace-id", name="default", retention_ns=86_400 * SECOND_NS)
TASK_QUEUE = "queue"
DAY_S = 86_400
ANSWERED = QueryResultType.QUERY_RESULT_TYPE_ANSWERED


def now_ns() -> int:
    """The time of the virtual loop, as a Unix time in nanoseconds."""
    return BEGIN_NS + int(asyncio.get_running_loop().time() * SECOND_NS)


class Faults:
    """Planned faults. `before` and `after` are called with the name of each operation of the store."""

    def __init__(self) -> None:
        self.on_before: Callable[[str], Awaitable[None]] | None = None
        self.on_after: Callable[[str], Awaitable[None]] | None = None

    async def before(self, operation: str, _shard_id: int | None) -> None:
        """See `FaultsAt`."""
        if self.on_before is not None:
            await self.on_before(operation)

    async def after(self, operation: str, _shard_id: int | None) -> None:
        """See `FaultsAt`."""
        if self.on_after is not None:
            await self.on_after(operation)

    def fail_once(self, operation: str, failure: Exception, *, is_applied: bool = False) -> None:
        """Let the next operation of that name fail, after it took effect or before."""

        async def fail(name: str) -> None:
            if name == operation:
                self.on_before = self.on_after = None
                raise failure

        if is_applied:
            self.on_after = fail
        else:
            self.on_before = fail

    def hold(self, operation: str) -> tuple[asyncio.Event, asyncio.Event]:
        """Hold the next operation of that name before it takes effect: (event: it has come, event: let it go on)."""
        has_come, goes_on = asyncio.Event(), asyncio.Event()

        async def wait(name: str) -> None:
            if name == operation and not has_come.is_set():
                has_come.set()
                await goes_on.wait()

        self.on_before = wait
        return has_come, goes_on


class World:
    """The stores and the network, which survive the hosts."""

    def __init__(self, *, shards: int = 1, clusters: Clusters | None = None, namespace: Namespace = NAMESPACE) -> None:
        self.faults = Faults()
        self.store = MemoryHistory(self.faults)
        self.clusters = clusters
        self.namespace = namespace
        self.new_id: Callable[[], str] = lambda: str(uuid.uuid4())
        self.tasks = MemoryStore()
        self.network = LocalNetwork()
        self.settings = DynamicSettings()
        self.shards = shards
        self.hosts: dict[str, OneHost] = {}

    async def start(self, name: str = "host", *, store: Any = None) -> "OneHost":
        """Start a host; `store` replaces the store that it uses."""
        host = self.hosts[name] = OneHost(self, name, store or self.store)
        await host.open()
        return host

    async def close(self) -> None:
        """Stop all hosts."""
        for host in list(self.hosts.values()):
            await host.close()

    def run_row(self, shard_id: int, key: RunKey) -> RunState | None:
        """The stored state of a run."""
        stored = self.store._shards[shard_id].runs.get(key)
        return None if stored is None else decode(stored.state)

    def current(self, workflow_id: str) -> CurrentRun | None:
        """The stored current-run pointer of a workflow id."""
        for shard in self.store._shards.values():
            found = shard.currents.get((NAMESPACE.id, workflow_id))
            if found is not None:
                return found
        return None

    def runs_of(self, workflow_id: str) -> list[RunKey]:
        """The keys of all stored runs of a workflow id."""
        return [key for shard in self.store._shards.values() for key in shard.runs if key.workflow_id == workflow_id]

    async def stored_rows(self, queue: str) -> list[QueueRow]:
        """The stored tasks of a queue, of all shards."""
        rows = []
        for shard_id in self.store._shards:
            page = await self.store.read_tasks(shard_id, queue, after=TaskKey(-1, -1), until_ns=None, limit=10_000)
            rows += [decode_row(each.payload) for each in page]
        return rows


class OneHost:
    """A host with matching and history."""

    def __init__(self, world: World, name: str, store: Any) -> None:
        self.world = world
        self.name = name
        self._caller: Caller = world.network.caller()
        # Virtual time, like the loop: on a busy machine, real time would let heartbeats expire.
        self._ring = HostRing(
            name, store=world.tasks, caller=self._caller, settings=world.settings, clock=lambda: now_ns() / SECOND_NS
        )
        self.namespaces = Namespaces(store, clock=time.time)
        self.matching = MatchingClient(
            self._caller, self._ring.view, settings=world.settings, clock=time.time, random=random.Random(1).random
        )
        self._deployments = Deployments(store, clock_ns=now_ns)
        self.metrics = Metrics()
        self.history = HistoryService(
            name,
            store=store,
            caller=self._caller,
            ring=self._ring.view,
            settings=world.settings,
            shards=world.shards,
            namespaces=self.namespaces,
            matching=self.matching,
            deployments=self._deployments,
            metrics=self.metrics,
            clock_ns=now_ns,
            clusters=world.clusters,
            new_id=world.new_id,
        )
        self._host = Host(
            name,
            store=world.tasks,
            caller=self._caller,
            settings=world.settings,
            metrics=Metrics(),
            start=self.history.start_task,
            ring=self._ring,
        )
        self.matching.reserve_locally(self._host.matching.reserve)
        self.sticky_polls = StickyPolls(name, self._ring.view, world.settings)
        self.matching.reserve_sticky(self.sticky_polls.reserve)
        self.history.client.offer_polls(self.matching.reserve_offered)
        for method, handle in self.history.handlers():
            self._host.handlers.add(method, handle)
        self._is_open = False

    async def open(self) -> None:
        """Start serving."""
        self._is_open = True
        await self.namespaces.ensure(self.world.namespace)
        await self.namespaces.open()
        await self._deployments.open()
        self.world.network.register(self.name, self._host.handlers)
        self._host.start()
        await self._host.join()
        await self.history.open()
        for shard_id in range(self.world.shards):
            if self.history.owns(shard_id):
                await self.history._opened(shard_id)

    async def close(self, *, leaves: bool = True) -> None:
        """Stop; with `leaves=False` the other members still take the host for alive."""
        if not self._is_open:
            return
        self._is_open = False
        self.world.hosts.pop(self.name, None)
        if leaves:
            await self._host.leave()
        await self.history.close()
        await self._host.membership.leave()
        await self._host.close()
        await self._deployments.close()
        await self.namespaces.close()
        self.world.network.unregister(self.name)

    @property
    def shard(self) -> Shard:
        """The only shard."""
        return self.history.shards[0]

    async def call(self, name: str, workflow_id: str, request: Any, *, timeout_s: float = 10.0) -> bytes:
        """Call the history service."""
        return await self.history.client.call(name, NAMESPACE.id, workflow_id, request, timeout_s=timeout_s)

    async def begin(self, workflow_id: str, request_id: str = "", **fields: Any) -> str:
        """Start a workflow; return its run id."""
        answer = await self.call(
            "StartWorkflowExecution",
            workflow_id,
            start_request(workflow_id, request_id or f"start-{workflow_id}", **fields),
        )
        return StartWorkflowExecutionResponse.FromString(answer).run_id

    async def signal(self, workflow_id: str, name: str, request_id: str = "") -> None:
        """Signal a workflow."""
        await self.call("SignalWorkflowExecution", workflow_id, signal_request(workflow_id, name, request_id))

    async def events(self, workflow_id: str, run_id: str = "") -> list[HistoryEvent]:
        """The whole history of a run."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=NAMESPACE.name, execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
        )
        answer = await self.call("GetWorkflowExecutionHistory", workflow_id, request)
        return list(GetWorkflowExecutionHistoryResponse.FromString(answer).history.events)

    async def poll(self, *, timeout_s: float = 20.0) -> PollWorkflowTaskQueueResponse | None:
        """Wait for a workflow task, as a worker does."""
        answer = await self.matching.poll(
            TaskQueueId(NAMESPACE.id, TASK_QUEUE, TaskType.WORKFLOW), "worker", timeout_s=timeout_s
        )
        return None if answer.task is None else PollWorkflowTaskQueueResponse.FromString(answer.task)

    async def poll_sticky(self, task_queue: TaskQueueId, identity: str, *, timeout_s: float = 60.0) -> PollResponse:
        """Wait for a task of a sticky task queue, as a worker does that is connected to this host."""
        forward = partial(self.matching.poll, task_queue, identity, kind=QueueKind.STICKY)
        return await self.sticky_polls.wait(task_queue, identity, b"", timeout_s=timeout_s, forward=forward)

    def owns_partition(self, partition: Partition) -> bool:
        """Whether the ring routes the partition to this host."""
        return self._ring.view.route(partition) == self.name

    async def poll_activity(self, *, timeout_s: float = 20.0) -> PollActivityTaskQueueResponse | None:
        """Wait for an activity task."""
        answer = await self.matching.poll(
            TaskQueueId(NAMESPACE.id, TASK_QUEUE, TaskType.ACTIVITY), "worker", timeout_s=timeout_s
        )
        return None if answer.task is None else PollActivityTaskQueueResponse.FromString(answer.task)

    async def respond(
        self, task: PollWorkflowTaskQueueResponse, commands: Sequence[Command] = (), **fields: Any
    ) -> bytes:
        """Respond to a workflow task."""
        request = RespondWorkflowTaskCompletedRequest(
            namespace=NAMESPACE.name, task_token=task.task_token, identity="worker", commands=commands, **fields
        )
        return await self.call("RespondWorkflowTaskCompleted", task.workflow_execution.workflow_id, request)


class Worker:
    """Polls for workflow and activity tasks, and responds; failed responses are left to the server's timeouts."""

    def __init__(self, decide: Callable[[PollWorkflowTaskQueueResponse], dict[str, Any]]) -> None:
        """`decide` returns the fields of the response to a workflow task."""
        self._decide = decide
        self._tasks: list[asyncio.Task[None]] = []
        self.activities = 0

    def start(self, host: OneHost) -> None:
        """Poll a host until `stop`."""
        self._tasks = [asyncio.create_task(self._workflows(host)), asyncio.create_task(self._activities(host))]

    async def stop(self) -> None:
        """Stop polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _workflows(self, host: OneHost) -> None:
        while True:
            try:
                task = await host.poll()
                if task is None:
                    continue
                if task.HasField("query"):
                    request = RespondQueryTaskCompletedRequest(task_token=task.task_token, completed_type=ANSWERED)
                    await host.call("RespondQueryTaskCompleted", task.workflow_execution.workflow_id, request)
                    continue
                await host.respond(task, **self._decide(task))
            except FairleadError:
                await asyncio.sleep(0.1)

    async def _activities(self, host: OneHost) -> None:
        while True:
            try:
                task = await host.poll_activity()
                if task is None:
                    continue
                self.activities += 1
                request = RespondActivityTaskCompletedRequest(task_token=task.task_token, identity="worker")
                await host.call("RespondActivityTaskCompleted", task.workflow_execution.workflow_id, request)
            except FairleadError:
                await asyncio.sleep(0.1)


def start_request(workflow_id: str, request_id: str, **fields: Any) -> StartWorkflowExecutionRequest:
    """A start request as the frontend forwards it."""
    request = StartWorkflowExecutionRequest(
        namespace=NAMESPACE.name,
        workflow_id=workflow_id,
        request_id=request_id,
        identity="client",
        workflow_task_timeout=Duration(seconds=10),
        **fields,
    )
    request.workflow_type.name = workflow_id.partition("-")[0]
    request.task_queue.name = TASK_QUEUE
    return request


def signal_request(workflow_id: str, name: str, request_id: str = "") -> SignalWorkflowExecutionRequest:
    """A signal request as the frontend forwards it."""
    return SignalWorkflowExecutionRequest(
        namespace=NAMESPACE.name,
        workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        signal_name=name,
        request_id=request_id,
    )


def command(kind: str, attributes: Message | None = None, **fields: Any) -> Command:
    """A command by its short name, with its attributes."""
    made = Command(command_type=CommandType.Value(f"COMMAND_TYPE_{kind}"))
    field = f"{kind.lower()}_command_attributes"
    target = getattr(made, field)
    target.SetInParent()
    target.MergeFrom(type(target)(**fields))
    return made


def schedule_activity(activity_id: str = "activity") -> Command:
    """An activity with retries: an attempt is repeated if its worker is silent for too long."""
    made = command(
        "SCHEDULE_ACTIVITY_TASK",
        activity_id=activity_id,
        schedule_to_close_timeout=Duration(seconds=DAY_S),
        schedule_to_start_timeout=Duration(seconds=DAY_S),
        start_to_close_timeout=Duration(seconds=5),
        retry_policy=RetryPolicy(
            initial_interval=Duration(seconds=1), backoff_coefficient=1.0, maximum_interval=Duration(seconds=1)
        ),
    )
    attributes = made.schedule_activity_task_command_attributes
    attributes.activity_type.name = "activity"
    attributes.task_queue.name = TASK_QUEUE
    return made


def start_timer(seconds: int, timer_id: str = "timer") -> Command:
    """A timer."""
    return command("START_TIMER", timer_id=timer_id, start_to_fire_timeout=Duration(seconds=seconds))


def start_child(
    workflow_id: str,
    policy: ParentClosePolicy.ValueType = ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE,
) -> Command:
    """A child."""
    made = command(
        "START_CHILD_WORKFLOW_EXECUTION",
        namespace=NAMESPACE.name,
        workflow_id=workflow_id,
        workflow_task_timeout=Duration(seconds=10),
        parent_close_policy=policy,
    )
    attributes = made.start_child_workflow_execution_command_attributes
    attributes.workflow_type.name = workflow_id.partition("-")[0]
    attributes.task_queue.name = TASK_QUEUE
    return made


def signal_external(workflow_id: str, name: str) -> Command:
    """A signal to another workflow."""
    made = command("SIGNAL_EXTERNAL_WORKFLOW_EXECUTION", namespace=NAMESPACE.name, signal_name=name)
    made.signal_external_workflow_execution_command_attributes.execution.workflow_id = workflow_id
    return made


def complete() -> Command:
    """The command that completes the workflow."""
    return command("COMPLETE_WORKFLOW_EXECUTION")


def kinds(events: Sequence[HistoryEvent]) -> list[str]:
    """The types of events, by their short names."""
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events]
