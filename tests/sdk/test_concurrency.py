"""Limits on running activities, with the official SDK: never exceeded, and no slot is lost however an activity ends."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.server import Server
from fairlead.settings.static.config import Address, MemoryConfig, SqliteConfig, StaticConfig, StoreConfig
from fairlead.storage.postgres import PostgresStore
from fairlead.telemetry import ACTIVITY_STARTS_LIMITED
from tests.patience import until
from tests.sdk.hosts import Host
from tests.sdk.stage import execution

QUEUE = "limited"
LONG = timedelta(minutes=5)
# Workflows of each key while hosts are killed, of three activities each.
BATCHES = 8
Handle = WorkflowHandle[Any, Any]


@dataclass
class Watch:
    """Activities that the workers of this process run, by fairness key, and the highest numbers so far."""

    running: Counter[str] = field(default_factory=Counter)
    peaks: Counter[str] = field(default_factory=Counter)
    all_peak: int = 0
    started: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def has_started(self, count: int) -> bool:
        return len(self.started) >= count

    def begin(self, key: str, name: str) -> None:
        self.started.append(name)
        self.running[key] += 1
        self.peaks[key] = max(self.peaks[key], self.running[key])
        self.all_peak = max(self.all_peak, self.running.total())


class Activities:
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    @activity.defn
    async def work(self, key: str, work_s: float) -> None:
        self.watch.begin(key, activity.info().activity_id)
        try:
            await asyncio.sleep(work_s)
        finally:
            self.watch.running[key] -= 1

    @activity.defn
    async def hold(self, name: str) -> None:
        """Runs until its gate opens; then its first attempt fails, if it is to fail."""
        self.watch.begin("", name)
        try:
            while not self.watch.gate.is_set():
                activity.heartbeat()
                await asyncio.sleep(0.05)
            if name == "failing" and activity.info().attempt == 1:
                raise RuntimeError("the first attempt fails")
        finally:
            self.watch.running[""] -= 1

    @activity.defn
    async def vanish(self, name: str) -> None:
        """Never responds, like a worker that was killed."""
        self.watch.started.append(name)
        activity.raise_complete_async()


@workflow.defn
class Batch:
    @workflow.run
    async def run(self, key: str, tasks: int, work_s: float) -> None:
        await asyncio.gather(
            *(
                workflow.execute_activity(
                    "work",
                    args=[key, work_s],
                    start_to_close_timeout=timedelta(seconds=10) if work_s < 1 else LONG,
                    priority=Priority(fairness_key=key),
                )
                for _ in range(tasks)
            )
        )


@workflow.defn
class One:
    @workflow.run
    async def run(self, kind: str, name: str, start_to_close_s: float, heartbeat_s: float, attempts: int) -> None:
        await workflow.execute_activity(
            kind,
            name,
            start_to_close_timeout=timedelta(seconds=start_to_close_s),
            heartbeat_timeout=timedelta(seconds=heartbeat_s) if heartbeat_s else None,
            retry_policy=RetryPolicy(maximum_attempts=attempts, initial_interval=timedelta(seconds=1)),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


def settings_file(folder: Path, **limits: int) -> Path:
    file = folder / "dynamic.yaml"
    file.write_text("".join(f"matching.{name}:\n- value: {limit}\n" for name, limit in limits.items()))
    return file


@asynccontextmanager
async def serving(folder: Path, store: StoreConfig | None = None, **limits: int) -> AsyncIterator[Server]:
    server = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=store or MemoryConfig(),
            dynamic_file=settings_file(folder, **limits),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connect(server: Server) -> Client:
    assert server.frontend_address is not None
    return await Client.connect(server.frontend_address)


def worker_of(client: Client, watch: Watch, *, activities_max: int = 50) -> Worker:
    activities = Activities(watch)
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Batch, One],
        activities=[activities.work, activities.hold, activities.vanish],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=activities_max,
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_no_more_activities_of_a_key_or_a_task_queue_run_than_the_limits_allow(kind: str, tmp_path: Path) -> None:
    """FL-80, FL-84, FL-86: a key at its limit is parked, and others go on; the SDK asks for eager starts."""
    watch = Watch()
    store = MemoryConfig() if kind == "memory" else SqliteConfig(tmp_path / "server.db")
    async with serving(tmp_path, store, fairnessKeyConcurrency=2, taskQueueConcurrency=5) as server:
        client = await connect(server)
        async with worker_of(client, watch):
            await asyncio.gather(
                *(
                    client.execute_workflow(Batch.run, args=[key, tasks, 0.1], id=f"batch-{key}", task_queue=QUEUE)
                    for key, tasks in (("a", 20), ("b", 6), ("c", 6), ("", 6))
                )
            )
        limited = server._metrics.snapshot().events[ACTIVITY_STARTS_LIMITED]
        assert limited["key",] > 0
        assert limited["task_queue",] > 0
    assert len(watch.started) == 38
    assert max(watch.peaks.values()) == 2
    assert watch.all_peak == 5


async def test_a_key_at_its_limit_does_not_hold_up_another(tmp_path: Path) -> None:
    """FL-84: many tasks of a full key wait in front, and a task of another key starts nevertheless."""
    watch = Watch()
    async with serving(tmp_path, fairnessKeyConcurrency=1) as server:
        client = await connect(server)
        async with worker_of(client, watch):
            full = await client.start_workflow(Batch.run, args=["a", 30, 60.0], id="full", task_queue=QUEUE)
            await until(lambda: watch.running["a"] == 1)
            async with asyncio.timeout(5):
                await client.execute_workflow(Batch.run, args=["b", 3, 0.0], id="other", task_queue=QUEUE)
            assert watch.running["a"] == watch.peaks["a"] == 1
            assert await running_of(server) == {"a": 1}
            await full.terminate()


async def test_standalone_activities_hold_slots_too(tmp_path: Path) -> None:
    """FL-80, FL-81: beside activities of workflows, under the same limit."""
    watch = Watch()
    async with serving(tmp_path, taskQueueConcurrency=2) as server:
        client = await connect(server)
        async with worker_of(client, watch):
            batch = client.execute_workflow(Batch.run, args=["a", 4, 0.1], id="batch", task_queue=QUEUE)
            alone = [
                client.execute_activity(
                    "work",
                    args=["b", 0.1],
                    id=f"alone-{number}",
                    task_queue=QUEUE,
                    start_to_close_timeout=LONG,
                    priority=Priority(fairness_key="b"),
                )
                for number in range(6)
            ]
            await asyncio.gather(batch, *alone)
    assert len(watch.started) == 10
    assert watch.all_peak == 2


async def running_of(server: Server) -> dict[str, int]:
    """The running activities by key, as an operator's command shows them."""
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairlead", "admin", "fairness", "running", "--tasklist", QUEUE),
        *("--namespace", "default", "--address", server.address, "-o", "json"),
        stdout=PIPE,
    )
    said, _ = await command.communicate()
    return {row["key"]: row["running"] for row in json.loads(said)["keys"]}


async def test_limits_hold_while_hosts_are_killed_and_no_slot_is_lost(postgres_dsn: str, tmp_path: Path) -> None:
    """FL-80, FL-82: three hosts on PostgreSQL, each killed while activities run."""
    watch = Watch()
    limits = f"dynamicConfig: {{file: '{settings_file(tmp_path, fairnessKeyConcurrency=2, taskQueueConcurrency=5)}'}}\n"
    hosts = [Host(number, postgres_dsn, tmp_path, more=limits) for number in (1, 2, 3)]
    store = await PostgresStore.open(postgres_dsn)
    try:
        await asyncio.gather(*(host.start() for host in hosts))
        async with AsyncExitStack() as workers:
            clients = [await Client.connect(host.address) for host in hosts]
            for client in clients:
                await workers.enter_async_context(worker_of(client, watch))
            batches = [
                asyncio.create_task(_persist(clients, f"{key}-{number}", key))
                for key in ("a", "b", "c")
                for number in range(BATCHES)
            ]
            for number, host in enumerate(hosts):
                # A third of the work is done between two kills.
                await until(partial(watch.has_started, (number + 1) * BATCHES))
                await host.kill()
                await host.start()
            await asyncio.gather(*batches)
        namespaces = await store.history.list_namespaces(after=None, limit=10)
        (default,) = (each.namespace_id for each in namespaces if each.name == "default")

        async def all_are_free() -> bool:
            return not await store.history.count_slots(default, QUEUE)

        await until(all_are_free)
    finally:
        await asyncio.gather(*(host.kill() for host in hosts))
        await store.close()
    assert max(watch.peaks.values()) <= 2, watch.peaks
    assert watch.all_peak <= 5


async def _persist(clients: list[Client], workflow_id: str, key: str) -> None:
    """Run a batch to its end, at whichever host answers."""
    turn = 0
    while True:
        client = clients[turn % len(clients)]
        turn += 1
        with suppress(RPCError, WorkflowAlreadyStartedError):
            await client.start_workflow(Batch.run, args=[key, 3, 0.1], id=workflow_id, task_queue=QUEUE)
        with suppress(RPCError):
            await client.get_workflow_handle(workflow_id).result()
            return
        await asyncio.sleep(0.1)


async def _complete(_client: Client, _handle: Handle, watch: Watch) -> None:
    watch.gate.set()


async def _wait(_client: Client, _handle: Handle, _watch: Watch) -> None:
    """The server ends the activity by itself."""


async def _cancel(_client: Client, handle: Handle, _watch: Watch) -> None:
    await handle.cancel()


async def _terminate(_client: Client, handle: Handle, _watch: Watch) -> None:
    await handle.terminate()


async def _delete(client: Client, handle: Handle, _watch: Watch) -> None:
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution(handle.id))
    )


async def _reset(client: Client, handle: Handle, watch: Watch) -> None:
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=execution(handle.id),
            workflow_task_finish_event_id=4,
            request_id="reset",
        )
    )
    watch.gate.set()


End = Callable[[Client, Handle, Watch], Awaitable[None]]


@pytest.mark.parametrize(
    ("kind", "name", "start_to_close_s", "heartbeat_s", "attempts", "end"),
    [
        pytest.param("hold", "completed", 60.0, 0.0, 1, _complete, id="completed"),
        pytest.param("hold", "failing", 60.0, 0.0, 1, _complete, id="failed"),
        pytest.param("hold", "failing", 60.0, 0.0, 2, _complete, id="retried"),
        pytest.param("vanish", "late", 1.0, 0.0, 1, _wait, id="start-to-close"),
        pytest.param("vanish", "silent", 60.0, 1.0, 1, _wait, id="heartbeat"),
        pytest.param("vanish", "backing-off", 1.0, 0.0, 0, _wait, id="backing off"),
        pytest.param("hold", "cancelled", 60.0, 1.0, 1, _cancel, id="cancelled"),
        pytest.param("vanish", "terminated", 60.0, 0.0, 1, _terminate, id="terminated"),
        pytest.param("vanish", "deleted", 60.0, 0.0, 1, _delete, id="deleted"),
        pytest.param("hold", "reset", 60.0, 0.0, 1, _reset, id="reset"),
    ],
)
async def test_every_end_of_an_activity_frees_its_slot(
    kind: str, name: str, start_to_close_s: float, heartbeat_s: float, attempts: int, end: End, tmp_path: Path
) -> None:
    """FL-81: a slot is freed by the commit that ends its attempt, for every kind of end."""
    watch = Watch()
    async with serving(tmp_path, fairnessKeyConcurrency=1) as server:
        client = await connect(server)
        async with worker_of(client, watch):
            first: Handle = await client.start_workflow(
                One.run, args=[kind, name, start_to_close_s, heartbeat_s, attempts], id="first", task_queue=QUEUE
            )
            await until(lambda: name in watch.started)
            second: Handle = await client.start_workflow(
                One.run, args=["hold", "second", 60.0, 0.0, 1], id="second", task_queue=QUEUE
            )
            await end(client, first, watch)
            await until(lambda: "second" in watch.started)
            watch.gate.set()
            await second.result()


async def test_slots_outlive_a_restart_and_those_of_ended_activities_are_found(tmp_path: Path) -> None:
    """FL-82: after a stop and a start, running activities still hold their slots, and ended ones don't."""
    watch = Watch()
    store = SqliteConfig(tmp_path / "server.db")
    async with serving(tmp_path, store, fairnessKeyConcurrency=1) as server:
        client = await connect(server)
        async with worker_of(client, watch):
            await client.start_workflow(One.run, args=["vanish", "first", 6.0, 0.0, 1], id="first", task_queue=QUEUE)
            await until(lambda: "first" in watch.started)
            await client.start_workflow(One.run, args=["hold", "second", 60.0, 0.0, 1], id="second", task_queue=QUEUE)
    watch.gate.set()
    async with serving(tmp_path, store, fairnessKeyConcurrency=1) as server:
        client = await connect(server)
        async with worker_of(client, watch):
            handle = client.get_workflow_handle("second")
            first = client.get_workflow_handle("first")
            await until(lambda: "second" in watch.started)
            # It had to wait for the first, which has timed out.
            events = [event.event_type for event in (await first.fetch_history()).events]
            assert EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT in events
            await handle.result()
