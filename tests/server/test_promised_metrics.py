"""A running server has a value for each metric in docs/metrics.md, after the workload that produces it.

Two clusters share a namespace, and each is a process; the first has a SQLite file, a journal and dynamic settings.
The test repeats the workload until every metric of `PRODUCED` is above 0, or until its time is over.
"""

import asyncio
import random
import re
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from temporalio import activity, workflow
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.core.balancing import NotAPartition
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask
from fairlead.matching.operator_client import OperatorClient
from fairlead.membership.ring import RemoteRing
from fairlead.server import new_caller
from fairlead.settings import DynamicSettings
from fairlead.telemetry import Component
from tests.cli.processes import RunningServer, server
from tests.frontend.http import client as web
from tests.ports import free_port
from tests.server.test_server import http_status

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| (`[^|]*`) \| (counter|gauge|histogram) \|", re.MULTILINE)
SUFFIXES = {"counter": "_total", "histogram": "_count"}
WORK_S_MAX = 60.0

# The part of the workload that raises each counter and histogram above 0.
PRODUCED = {
    "a worker runs workflows": (
        "tasks_added sync_matches local_to_local_matches poll_success poll_success_sync lease_requests poll_latency "
        "syncmatch_latency task_dispatch_latency service_requests service_latency membership_changed_count"
    ),
    "tasks wait for a worker": "no_poller_tasks backlog_matches task_write_latency asyncmatch_latency",
    "a workflow is terminated before its task is taken": "tasks_dropped",
    "tasks and polls meet in a tree of partitions": (
        "local_to_remote_matches remote_to_local_matches remote_to_remote_matches forwarded forwarded_tasks "
        "forwarded_tasks_matched forwarded_tasks_failed forwarded_tasks_throttled forwarded_polls "
        "forwarded_polls_matched polls_sent_down polls_sent_down_matched poll_timeouts"
    ),
    "more polls wait at a leaf than may go up, and their callers go away": "forwarded_polls_throttled poll_cancelled",
    "more tasks come than may wait to be stored": "appends_refused",
    "partitions are taken away, and a client does not know it yet": "stale_configs",
    "the load of a task queue rises and falls": (
        "partition_upscale_per_tl partition_downscale_per_tl partition_drained_per_tl partition_scale_events"
    ),
    "requests are wrong": "service_errors service_error_with_type",
    "a request comes by HTTP": "http_service_requests",
    "the settings file changes": "dynamic_config_reloads",
    "the journal is written, with little room": "journal_records journal_bytes journal_records_dropped",
    "clusters share a namespace, and each has another one of the same name": (
        "replication_tasks_applied replication_latency namespace_replication_conflicts client_redirection_requests"
    ),
    "the disk fails": (
        "persistence_error_with_type task_errors lease_failures tasklist_partition_update_failed_per_tl"
    ),
}
# Counters that this workload does not raise: their series must exist with the value 0. `activity_starts_limited` is
# raised in tests/sdk/test_concurrency.py, the others by faults.
FAULTS = (
    "forwarded_polls_failed condition_failed_errors fair_reader_stuck_detected shard_closed_count "
    "reapplied_events_lost replication_batches_resent replication_tasks_failed "
    "replication_dlq_enqueued replication_tasks_skipped activity_starts_limited"
)
# Metrics of servers with authorization or TLS, which this workload's servers don't have: tests/security/test_metrics.py
# produces them.
OF_SECURITY = frozenset(
    (
        *("service_errors_unauthorized", "service_errors_authorize_failed"),
        *("certificates_expired", "certificates_expiring", "certificates_next_expiry_seconds"),
    )
)
# Metrics of a supervisor, on its own page: tests/cli/test_processes.py produces them.
OF_SUPERVISOR = frozenset(("process_up", "process_restarts"))
SETTINGS = """
matching.numTasklistReadPartitions: [{value: 2, constraints: {namespace: default, taskQueueName: quiet}}]
matching.numTasklistWritePartitions: [{value: 2, constraints: {namespace: default, taskQueueName: quiet}}]
matching.outstandingTaskAppendsThreshold: [{value: 1, constraints: {taskQueueName: narrow}}]
matching.enableAdaptiveScaler: [{value: true, constraints: {namespace: default, taskQueueName: scaled}}]
matching.adaptiveScalerUpdateInterval: [{value: 100ms}]
matching.qpsTrackerInterval: [{value: 200ms}]
matching.partitionUpscaleRPS: [{value: 20}]
matching.partitionUpscaleSustainedDuration: [{value: 0s}]
matching.partitionDownscaleSustainedDuration: [{value: 300ms}]
matching.forwarderMaxRatePerSecond: [{value: 1000}]
journal.queueRecords: [{value: 20}]
journal.flushInterval: [{value: 100ms}]
system.membershipHeartbeatInterval: [{value: 200ms}]
"""


@workflow.defn
class Ordering:
    """Runs one activity."""

    @workflow.run
    async def run(self) -> str:
        """Order."""
        return await workflow.execute_activity(pack, start_to_close_timeout=timedelta(seconds=20))


@activity.defn
async def pack() -> str:
    """Pack."""
    return "packed"


def promised() -> dict[str, str]:
    """The metrics on the page, including aliases, with their types."""
    rows = ROW.findall(PAGE.read_text())
    found = {name: kind for names, kind in rows for name in re.findall(r"`([a-z_]+)`", names)}
    elsewhere = OF_SECURITY | OF_SUPERVISOR
    assert found.keys() >= elsewhere
    return {name: kind for name, kind in found.items() if name not in elsewhere}


def samples_of(answer: str) -> Iterator[tuple[str, Sample]]:
    """The samples in a response of the metrics endpoint, each with the name of its metric."""
    for family in text_string_to_metric_families(answer.partition("\r\n\r\n")[2]):
        for sample in family.samples:
            # Samples of counters and histograms have a suffix that is not part of the metric's name.
            yield sample.name.removesuffix(SUFFIXES.get(family.type, "")), sample


def test_every_promised_counter_and_histogram_is_in_the_tables_of_this_test() -> None:
    produced = {name for names in PRODUCED.values() for name in names.split()} | set(FAULTS.split())
    aliases = {f"{name}_per_tl" for name in produced}
    assert {name for name, kind in promised().items() if kind != "gauge"} - aliases == produced - {
        name for name, kind in promised().items() if kind == "gauge"
    }


@dataclass(slots=True)
class World:
    """Two clusters and their clients."""

    first: RunningServer
    second: RunningServer
    here: Client
    there: Client
    settings: Path
    namespace_id: str
    stack: AsyncExitStack
    clients: dict[int, MatchingClient] = field(default_factory=dict)
    operator: OperatorClient | None = None
    round: int = 0
    # By metric: the components and namespaces that have reported a partition configuration.
    components: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    def queue(self, name: str, task_type: TaskType = TaskType.ACTIVITY) -> TaskQueueId:
        return TaskQueueId(self.namespace_id, name, task_type)

    async def scrape(self) -> dict[str, float]:
        """The sum of each metric's samples in both clusters; metrics without a sample are left out."""
        found: dict[str, float] = {}
        for each in (self.first, self.second):
            address = each.ready.split("metrics at http://")[1].split("/metrics")[0]
            status, answer = await http_status(address, "/metrics")
            assert status == 200
            for name, sample in samples_of(answer):
                found[name] = found.get(name, 0.0) + sample.value
                if "component" in sample.labels:
                    reported = self.components.setdefault(name, set())
                    reported.add((sample.labels["component"], sample.labels["namespace"]))
        return found

    async def client(self, partition: int) -> MatchingClient:
        """A client that sends every task and poll to one partition, once it knows the task queue."""
        if partition not in self.clients:
            caller = new_caller()
            ring = RemoteRing(caller, [self.first.address], clock=time.time)
            self.stack.push_async_callback(caller.close)
            self.stack.push_async_callback(ring.close)
            await ring.open()
            self.clients[partition] = MatchingClient(
                caller,
                ring,
                settings=DynamicSettings(),
                clock=time.time,
                random=random.random,
                forced_read=partition,
                forced_write=partition,
            )
            self.operator = OperatorClient(caller, ring, random=random.random)
        return self.clients[partition]


def config(folder: Path, name: str, version: int, *, port: int, other: str, other_version: int, other_port: int) -> str:
    file = folder / f"{name}.yaml"
    store = f"sqlite: {{file: {name}.db}}" if name == "a" else "memory: {}"
    extra = "journal: {folder: journal}\ndynamicConfig: {file: dynamic.yaml, pollInterval: 1s}\n" if name == "a" else ""
    file.write_text(
        f"listen: 127.0.0.1:0\nfrontend: {{listen: '127.0.0.1:{port}', http: {{listen: '127.0.0.1:0'}}}}\n"
        "metrics: {listen: '127.0.0.1:0'}\n"
        f"store: {{{store}}}\nhistory: {{shards: 2}}\nlog: {{level: error}}\n{extra}"
        f"cluster: {{name: {name}, initialVersion: {version}, increment: 10, remotes: "
        f"{{{other}: {{initialVersion: {other_version}, address: '127.0.0.1:{other_port}'}}}}}}\n"
    )
    return str(file)


@asynccontextmanager
async def clusters(folder: Path) -> AsyncIterator[World]:
    ports = free_port(), free_port()
    settings = folder / "dynamic.yaml"
    settings.write_text(SETTINGS)
    a = config(folder, "a", 1, port=ports[0], other="b", other_version=2, other_port=ports[1])
    b = config(folder, "b", 2, port=ports[1], other="a", other_version=1, other_port=ports[0])
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(server("--config", a))
        second = await stack.enter_async_context(server("--config", b))
        here = await Client.connect(f"127.0.0.1:{ports[0]}")
        there = await Client.connect(f"127.0.0.1:{ports[1]}", namespace="shared")
        described = await here.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
        yield World(first, second, here, there, settings, described.namespace_info.id, stack)


async def run_workflows(world: World) -> None:
    queue = f"orders-{world.round}"
    # Start before the worker, so that the first task waits.
    handle = await world.here.start_workflow(Ordering.run, id=f"waits-{world.round}", task_queue=queue)
    async with Worker(
        world.here,
        task_queue=queue,
        workflows=[Ordering],
        activities=[pack],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await handle.result()
        await world.here.execute_workflow(Ordering.run, id=f"order-{world.round}", task_queue=queue)


async def terminate(world: World) -> None:
    queue = f"doomed-{world.round}"
    handle = await world.here.start_workflow("Any", id=queue, task_queue=queue)
    await handle.terminate()
    await (await world.client(0)).poll(world.queue(queue, TaskType.WORKFLOW), "worker", timeout_s=0.5)


async def use_the_tree(world: World) -> None:
    tree = world.queue(f"tree-{world.round}")
    clients = [await world.client(number) for number in range(4)]
    assert world.operator is not None
    await world.operator.update(tree, read=4, write=4, force=True)
    for client in clients:
        await client.add(tree, task())
        await client.poll(tree, "worker", timeout_s=2)
    # Polls wait at the root and at a leaf; tasks are added to the root and to another leaf.
    polls = [asyncio.create_task(clients[number].poll(tree, "worker", timeout_s=1)) for number in (0, 2, 2, 2, 0)]
    for _ in range(3):
        await asyncio.gather(*(clients[number].add(tree, task()) for number in (3, 0, 3, 3)))
    await asyncio.gather(*polls)
    # Tasks are stored at a leaf while there are no pollers; then a client polls the root.
    await asyncio.gather(*(clients[3].add(tree, task()) for _ in range(3)))
    while (await clients[0].poll(tree, "worker", timeout_s=0.5)).task is not None:
        pass
    # A poll at one leaf and a task at another meet at the root.
    waiting = asyncio.create_task(clients[2].poll(tree, "worker", timeout_s=1))
    await asyncio.gather(*(clients[3].add(tree, task()) for _ in range(2)), waiting)


async def poll_in_vain(world: World) -> None:
    """A second poll comes while the first one is forwarded to the parent; then both callers cancel."""
    quiet, client = world.queue("quiet"), await world.client(1)
    await client.poll(quiet, "worker", timeout_s=0.1)
    gone = []
    for _ in range(2):
        gone.append(asyncio.create_task(client.poll(quiet, "worker", timeout_s=20)))
        # The first poll has been forwarded when the second comes.
        await asyncio.sleep(0.5)
    for poll in gone:
        poll.cancel()
    await asyncio.gather(*gone, return_exceptions=True)


async def crowd(world: World) -> None:
    client = await world.client(0)
    await asyncio.gather(*(client.add(world.queue("narrow"), task()) for _ in range(100)), return_exceptions=True)


async def take_partitions_away(world: World) -> None:
    shrunk = world.queue(f"shrunk-{world.round}")
    client = await world.client(1)
    assert world.operator is not None
    await world.operator.update(shrunk, read=2, write=2, force=True)
    for _ in range(2):
        await client.add(shrunk, task())
    await world.operator.update(shrunk, read=2, write=1, force=True)
    # The client is refused for its old configuration, and the new one has no such partition.
    with pytest.raises(NotAPartition):
        await client.add(shrunk, task())


async def scale(world: World) -> None:
    scaled, client = world.queue("scaled"), await world.client(0)
    for _ in range(5):
        await asyncio.gather(*(client.add(scaled, task()) for _ in range(20)))
        # The scaler measures rates over real time.
        await asyncio.sleep(0.1)
    while (await client.poll(scaled, "worker", timeout_s=0.5)).task is not None:
        pass


async def err(world: World) -> None:
    with pytest.raises(RPCError):
        await world.here.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="nobody"))


async def ask_by_http(world: World) -> None:
    for host in (world.first, world.second):
        address = host.ready.split("HTTP API at http://")[1].split(",")[0]
        async with web.Client(int(address.rpartition(":")[2])) as client:
            assert (await client.send("GET", "/api/v1/system-info")).status == 200


async def change_settings(world: World) -> None:
    world.settings.write_text(f"{SETTINGS}# {world.round}\n")


async def share(world: World) -> None:
    if world.round == 0:
        day = Duration(seconds=86_400)
        alone = RegisterNamespaceRequest(namespace="both", workflow_execution_retention_period=day)
        await world.there.workflow_service.register_namespace(alone)
        for name in ("shared", "both"):
            await world.here.workflow_service.register_namespace(
                RegisterNamespaceRequest(
                    namespace=name,
                    is_global_namespace=True,
                    active_cluster_name="a",
                    clusters=[ClusterReplicationConfig(cluster_name=cluster) for cluster in ("a", "b")],
                    workflow_execution_retention_period=day,
                )
            )
    # The second cluster redirects the call to the first one, once it knows the namespace.
    await world.there.start_workflow("Any", id=f"shared-{world.round}", task_queue="nobody")


ROUND: tuple[Callable[[World], Awaitable[None]], ...] = (
    run_workflows,
    terminate,
    use_the_tree,
    poll_in_vain,
    crowd,
    take_partitions_away,
    scale,
    err,
    ask_by_http,
    change_settings,
    share,
)


async def fail_the_disk(world: World) -> None:
    """A timer and a heartbeat become due, a task queue is used and another is changed; no file can be written."""
    late, tree = timedelta(seconds=1), world.queue("tree-0")
    client = await world.client(0)
    assert world.operator is not None
    await world.operator.explain(tree)
    await world.here.start_workflow("Any", id=f"late-{world.round}", task_queue="nobody", run_timeout=late)
    process = world.first.process.pid
    _, limit = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, limit))
    attempts = [
        asyncio.create_task(client.add(world.queue("fresh"), task(), timeout_s=2)),
        asyncio.create_task(world.operator.update(tree, read=6, write=6, timeout_s=20)),
    ]
    try:
        async with asyncio.timeout(20):
            found: dict[str, float] = {}
            while not all(found.get(name) for name in ("persistence_error_with_type", "task_errors", "lease_failures")):
                await asyncio.sleep(0.1)
                found = await world.scrape()
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (limit, limit))
    # The add may succeed now, at its next attempt.
    await asyncio.gather(*attempts, return_exceptions=True)


def task() -> NewTask:
    return NewTask(priority=3, fairness_key="", weight=1.0, payload=b"any")


async def test_every_promised_metric_has_a_value_after_the_work_that_produces_it(tmp_path: Path) -> None:
    """Takes several rounds: some kinds of matches in a tree of partitions depend on timing."""
    names = promised()
    wanted = {name for names in PRODUCED.values() for name in names.split()}
    of_disk = set(PRODUCED["the disk fails"].split())
    async with clusters(tmp_path) as world:
        missing = wanted
        began_s = time.monotonic()
        while missing - of_disk and time.monotonic() - began_s < WORK_S_MAX:
            results = await asyncio.gather(*(work(world) for work in ROUND), return_exceptions=True)
            failures = [one for one in results if isinstance(one, BaseException)]
            # Expected errors: the second cluster does not know the namespace yet, or a full partition refuses tasks.
            assert all(isinstance(one, RPCError | FairleadError) for one in failures), failures
            world.round += 1
            found = await world.scrape()
            missing = {name for name in wanted if not found.get(name)}
        await fail_the_disk(world)
        found = await world.scrape()
    assert sorted(name for name in wanted if not found.get(name)) == []
    assert sorted(name for name in names if name not in found) == []
    # SC-15: the root, other partitions, pollers and producers report, with the names of namespaces.
    assert len(world.components) == 3
    for reported in world.components.values():
        assert {(component, "default") for component in Component} <= reported
