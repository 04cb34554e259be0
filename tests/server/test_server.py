"""The composition root: the parts of a server, the order of start and stop, and what it leaves behind."""

import asyncio
import dataclasses
import io
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.connection import connect
from fairlead.matching.messages import DESCRIBE, POLL, DescribeRequest, NewTask, PollRequest
from fairlead.membership.ring import RING, NoResponse, RemoteRing, RingRequest
from fairlead.server import CannotOpenStore, LocalCluster, Server, new_caller, open_store, process
from fairlead.settings import DynamicSettings, InvalidSettings, Plain
from fairlead.settings.static.config import (
    Address,
    MemoryConfig,
    PostgresConfig,
    Role,
    SqliteConfig,
    StaticConfig,
    StoreConfig,
)
from fairlead.storage import watched
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.store import Store
from fairlead.storage.tasks import Member, StoreUnavailable
from fairlead.telemetry import CannotListen, configure_logs
from tests.patience import until
from tests.traffic import Traffic

LOOPBACK = Address("127.0.0.1", 0)
# Task queues only, without workflows.
IN_MEMORY = StaticConfig(listen=LOOPBACK, roles=frozenset({Role.MATCHING}), store=MemoryConfig(), hand_over_s=0.3)
# A store that many hosts share keeps the members of other hosts.
SHARED = dataclasses.replace(IN_MEMORY, store=PostgresConfig(""))
ORDERS = TaskQueueId("default", "orders", TaskType.ACTIVITY)
QUICK: dict[str, Plain] = {"system.membershipHeartbeatInterval": "50ms", "matching.membershipUnloadDelay": "50ms"}


def task(payload: bytes) -> NewTask:
    return NewTask(priority=3, fairness_key="", weight=1.0, payload=payload)


@asynccontextmanager
async def running(config: StaticConfig = IN_MEMORY, overrides: Mapping[str, Plain] = QUICK) -> AsyncIterator[Server]:
    server = Server(config, overrides=overrides)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(*addresses: str) -> AsyncIterator[MatchingClient]:
    caller = new_caller()
    ring = RemoteRing(caller, addresses, clock=time.time)
    try:
        await ring.open()
        yield MatchingClient(caller, ring, settings=DynamicSettings(), clock=time.time, random=random.random)
    finally:
        await ring.close()
        await caller.close()


async def http_status(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    # Sends end-of-stream, so that the other side closes.
    writer.write_eof()
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        answer: HealthCheckResponse = await check(HealthCheckRequest())
        return int(answer.status)


class OpenToAll(MemoryStore):
    """One store for several servers in this process; records what works when a member joins."""

    def __init__(self) -> None:
        super().__init__()
        self.answered_at_join: dict[str, bool] = {}
        self.is_away = False

    async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
        if self.is_away:
            raise StoreUnavailable("away")
        if member.host not in self.answered_at_join:
            caller = new_caller()
            await caller.call(member.host, RING, RingRequest(), timeout_s=5)
            await caller.close()
            self.answered_at_join[member.host] = True
        return await super().heartbeat(member, now_s=now_s)

    async def close(self) -> None:
        """The servers close the store one by one; the test closes it after the last."""


def share_store(monkeypatch: pytest.MonkeyPatch) -> OpenToAll:
    """Makes all servers of a test use one store."""
    store = OpenToAll()

    async def open_shared(_config: StoreConfig) -> Store:
        return store

    monkeypatch.setattr(process, "open_store", open_shared)
    return store


@pytest.fixture
def shared_store(monkeypatch: pytest.MonkeyPatch) -> OpenToAll:
    return share_store(monkeypatch)


async def test_a_server_dispatches_added_tasks_to_workers() -> None:
    async with running() as server, client_of(server.address) as client:
        await client.add(ORDERS, task(b"one"))
        assert (await client.poll(ORDERS, "worker", timeout_s=5)).task == b"one"


async def test_acknowledged_tasks_are_there_after_a_restart(tmp_path: Path) -> None:
    config = dataclasses.replace(IN_MEMORY, store=SqliteConfig(tmp_path / "tasks.db"))
    async with running(config) as server, client_of(server.address) as client:
        await client.add(ORDERS, task(b"kept"))
    # The second server has another port and another name.
    async with running(config) as server, client_of(server.address) as client:
        assert (await client.poll(ORDERS, "worker", timeout_s=5)).task == b"kept"


async def test_a_killed_host_of_a_database_file_is_not_in_the_ring_after_a_restart(tmp_path: Path) -> None:
    """One process owns a SQLite file: any other member that it lists is dead and owns nothing."""
    store = await SqliteStore.open(tmp_path / "tasks.db")
    await store.heartbeat(Member("127.0.0.1:1", time.time() + 3600))
    await store.close()
    config = dataclasses.replace(IN_MEMORY, store=SqliteConfig(tmp_path / "tasks.db"))
    async with running(config) as server:
        caller = new_caller()
        answer = await caller.call(server.address, RING, RingRequest(), timeout_s=5)
        await caller.close()
        assert answer.hosts == [server.address]


async def test_a_host_serves_before_it_joins_the_ring(shared_store: OpenToAll) -> None:
    async with running(SHARED) as server:
        assert shared_store.answered_at_join == {server.address: True}


async def test_a_stopping_host_hands_over_without_a_failed_request(shared_store: OpenToAll) -> None:
    """FL-17."""
    eight: dict[str, Plain] = {
        "matching.numTasklistReadPartitions": 8,
        "matching.numTasklistWritePartitions": 8,
        **QUICK,
    }
    async with (
        running(SHARED, eight) as one,
        running(SHARED, eight) as two,
        client_of(one.address, two.address) as client,
        Traffic(client, ORDERS, pairs=3) as traffic,
    ):
        await traffic.more(50)
        await one.stop()
        await traffic.more(50)
    assert traffic.added <= traffic.taken


async def test_a_stopping_host_keeps_serving_and_announces_that_it_leaves(shared_store: OpenToAll) -> None:
    config = dataclasses.replace(SHARED, metrics_listen=LOOPBACK, hand_over_s=1.0)
    # Heartbeats are too slow here: the other hosts must be notified directly.
    slow: dict[str, Plain] = {"system.membershipHeartbeatInterval": "5s", "system.membershipExpiry": "30s"}
    async with running(SHARED, slow) as other, running(config, slow) as server:
        assert server.metrics_address is not None
        assert (await http_status(server.metrics_address, "/healthz"))[0] == 200
        assert await health(server.address) == HealthCheckResponse.SERVING
        stopping = asyncio.create_task(server.stop())
        caller = new_caller()

        async def knows(host: str) -> bool:
            return (await caller.call(host, RING, RingRequest(), timeout_s=5)).hosts == [other.address]

        # Heartbeats would bring the change only after seconds, when the server has stopped.
        for host in (server.address, other.address):
            await until(partial(knows, host))
        await caller.close()
        assert (await http_status(server.metrics_address, "/healthz"))[0] == 503
        assert await health(server.address) == HealthCheckResponse.NOT_SERVING
        await stopping


async def test_a_single_server_stops_without_a_handover_and_answers_its_polls() -> None:
    server = Server(dataclasses.replace(IN_MEMORY, hand_over_s=60.0))
    await server.start()
    caller = new_caller()
    request = PollRequest(Partition(ORDERS, 0), "worker", "poll-1", timeout_s=30.0)
    polling = asyncio.create_task(caller.call(server.address, POLL, request, timeout_s=30.0))

    async def waits() -> bool:
        described = await caller.call(server.address, DESCRIBE, DescribeRequest(Partition(ORDERS, 0)), timeout_s=5)
        return described.polls_waiting == 1

    await until(waits)
    began_s = time.monotonic()
    await server.stop()
    # Less than the time of a poll, a handover and the grace period.
    assert time.monotonic() - began_s < 20
    assert (await polling).task is None
    await caller.close()


async def test_metrics_count_the_requests_by_grpc() -> None:
    async with running(dataclasses.replace(IN_MEMORY, metrics_listen=LOOPBACK)) as server:
        async with client_of(server.address) as client:
            await client.add(ORDERS, task(b"one"))
        assert server.metrics_address is not None
        status, text = await http_status(server.metrics_address, "/metrics")
        assert status == 200
        assert 'service_requests{service_name="matching",operation="Add"} 1' in text
        assert 'approximate_backlog_count{namespace="default",taskqueue="orders",task_type="Activity"' in text


async def test_an_address_in_use_is_reported_and_nothing_is_left_open(tmp_path: Path) -> None:
    config = dataclasses.replace(IN_MEMORY, store=SqliteConfig(tmp_path / "tasks.db"), metrics_listen=LOOPBACK)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        with pytest.raises(CannotListen, match=f"can't listen at {address}: Address already in use"):
            await Server(dataclasses.replace(config, listen=address)).start()
    # The file is unlocked again, and the port is free.
    async with running(dataclasses.replace(config, listen=address)) as server:
        assert server.address == str(address)


async def test_an_address_in_use_is_reported_before_the_store_is_opened(tmp_path: Path) -> None:
    config = dataclasses.replace(IN_MEMORY, store=SqliteConfig(tmp_path / "tasks.db"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        for refused in (
            dataclasses.replace(config, listen=address),
            dataclasses.replace(config, metrics_listen=address),
        ):
            with pytest.raises(FixRequest, match="Address already in use"):
                await Server(refused).start()
    assert list(tmp_path.glob("*")) == []  # noqa: ASYNC240 - nothing waits for it


def _ring_changes(log: io.StringIO, host: str) -> int:
    """The number of ring changes that a host has logged."""
    lines = (json.loads(line) for line in log.getvalue().splitlines())
    return sum(line["event"] == "ring changed" and line["host"] == host for line in lines)


async def test_the_log_reports_hosts_that_join_and_leave_the_ring(shared_store: OpenToAll) -> None:
    log = io.StringIO()
    configure_logs("info", "json", stream=log)
    async with running(SHARED) as one:
        async with client_of(one.address) as client:
            await client.add(ORDERS, task(b"one"))
        async with running(SHARED) as two:
            names = one.address, two.address
            await until(lambda: _ring_changes(log, names[0]) == 2)
        await until(lambda: _ring_changes(log, names[0]) == 3)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    changes = [line for line in lines if line["event"] == "ring changed" and line["host"] == names[0]]
    assert [line.get("joined", []) for line in changes] == [[names[0]], [names[1]], [], []]
    assert [line.get("left", []) for line in changes] == [[], [], [names[1]], [names[0]]]
    assert changes[1]["hosts"] == sorted(names)
    assert (changes[0]["partitions_loaded"], changes[1]["partitions_loaded"]) == (0, 1)


async def test_every_log_event_names_its_component() -> None:
    log = io.StringIO()
    configure_logs("debug", "json", stream=log)
    async with LocalCluster() as cluster:
        await cluster.client().add(ORDERS, task(b"one"))
        await cluster.operator().update(ORDERS, read=4, write=4, force=True)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["logger"] for line in lines if line["event"] == "partition_config_changed"] == ["matching"]
    assert all(line["logger"] for line in lines)


async def _is_health(server: Server, expected: int) -> bool:
    return await health(server.address) == expected


async def _is_status(server: Server, expected: int) -> bool:
    assert server.metrics_address is not None
    return (await http_status(server.metrics_address, "/healthz"))[0] == expected


async def test_the_health_reports_a_failing_store_until_it_recovers(
    shared_store: OpenToAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "UNAVAILABLE_AFTER_S", 0.3)
    async with running(dataclasses.replace(SHARED, metrics_listen=LOOPBACK)) as server:
        assert server.metrics_address is not None
        shared_store.is_away = True
        await until(lambda: _is_status(server, 503))
        _, said = await http_status(server.metrics_address, "/healthz")
        assert "store unavailable since 20" in said
        await until(lambda: _is_health(server, HealthCheckResponse.NOT_SERVING))
        shared_store.is_away = False
        await until(lambda: _is_status(server, 200))
        await until(lambda: _is_health(server, HealthCheckResponse.SERVING))


async def test_connect_returns_a_client_and_fails_for_an_address_without_a_server() -> None:
    async with running() as server, connect(server.address) as client:
        await client.add(ORDERS, task(b"one"))
        assert (await client.poll(ORDERS, "worker", timeout_s=5)).task == b"one"
    with pytest.raises(NoResponse, match="is the server running"):
        async with connect(server.address):
            raise AssertionError


async def test_the_address_of_a_host_is_its_configured_name() -> None:
    async with running(dataclasses.replace(IN_MEMORY, name=Address("localhost", 1234))) as server:
        assert server.address == "localhost:1234"


async def test_changed_dynamic_settings_take_effect_and_an_invalid_file_keeps_the_last_valid_ones(
    tmp_path: Path,
) -> None:
    """FL-73."""
    file = tmp_path / "dynamic.yaml"
    file.write_text("matching.spreadRoutingBatchSize: [{value: 2}]\n")
    config = dataclasses.replace(IN_MEMORY, dynamic_file=file, dynamic_poll_interval_s=0.05)
    log = io.StringIO()
    configure_logs("info", "json", stream=log)
    caller = new_caller()
    async with running(config) as server:

        async def batch_size() -> object:
            answer = await caller.call(server.address, RING, RingRequest(), timeout_s=5)
            return answer.spread_batch_size

        assert await batch_size() == 2
        file.write_text("matching.spreadRoutingBatchSize: [{value: 4}]\n")

        async def is_followed() -> bool:
            return await batch_size() == 4

        await until(is_followed)
        file.write_text("matching.spreadRoutingBatchSize: [{value: -4}]\n")
        await until(lambda: "settings refused" in log.getvalue())
        assert await batch_size() == 4
    await caller.close()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    refused = [line for line in lines if line["event"].startswith("settings refused")]
    assert len(refused) == 1
    assert "line 1: matching.spreadRoutingBatchSize: -4 is out of bounds" in refused[0]["problems"][0]
    assert [line["changed"] for line in lines if line["event"] == "settings loaded"] == [
        ["matching.spreadRoutingBatchSize"]
    ]


async def test_settings_of_temporals_server_without_effect_are_named_in_one_line_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text("matching.rps: [{value: 2}]\nhistory.rps: [{value: 2}]\n")
    log = io.StringIO()
    configure_logs("info", "json", stream=log)
    config = dataclasses.replace(IN_MEMORY, dynamic_file=file)
    async with running(config):
        pass
    named = [json.loads(line).get("keys") for line in log.getvalue().splitlines() if "without effect" in line]
    assert named == [["matching.rps", "history.rps"]]


def test_invalid_settings_at_the_start_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text("matching.nonsense: [{value: 2}]\n")
    with pytest.raises(InvalidSettings, match=r"line 1: 'matching\.nonsense' is not a setting"):
        Server(dataclasses.replace(IN_MEMORY, dynamic_file=file))


@pytest.mark.parametrize("dsn", ["hunter2", "postgresql://u:hunter2@h/d?x=1"])
async def test_an_invalid_connection_string_is_refused_without_showing_it(dsn: str) -> None:
    with pytest.raises(CannotOpenStore, match="connection string of store") as raised:
        await open_store(PostgresConfig(dsn))
    assert "hunter2" not in f"{raised.value} {raised.value.__cause__}"


async def test_a_cluster_in_one_process_serves_its_clients_while_hosts_join_and_leave() -> None:
    settings = DynamicSettings(overrides={**QUICK, "matching.numTasklistReadPartitions": 4})
    async with LocalCluster(hosts=3, settings=settings) as cluster:
        client = cluster.client()
        for number in range(30):
            await client.add(ORDERS, task(b"%d" % number))
        await cluster.stop_host("host-1", hand_over_s=0.2)
        await cluster.start_host("host-3")
        polled = {(await cluster.client().poll(ORDERS, "worker", timeout_s=5)).task for _ in range(30)}
        assert polled == {b"%d" % number for number in range(30)}
        rings = await cluster.operator().rings()
        assert sorted(cluster.hosts) == ["host-0", "host-2", "host-3"]
        assert all(not isinstance(answer, Exception) for answer in rings.values())
