"""`fairlead.client`, the public client of task queues, against a server that listens on a port."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

import fairlead.client
from fairlead.client import (
    AddResult,
    FixRequest,
    InvalidNamespace,
    RetryLater,
    Task,
    TaskQueueClient,
    connect,
)
from fairlead.server import Server
from fairlead.settings.static.config import Address, MemoryConfig, Role, StaticConfig
from tests.patience import PATIENCE_S

CONFIG = StaticConfig(
    listen=Address("127.0.0.1", 0), roles=frozenset({Role.MATCHING}), store=MemoryConfig(), hand_over_s=0.0
)
# An address where no server listens: the discard port, which only root can use.
NO_SERVER = "127.0.0.1:9"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = Server(CONFIG)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@pytest.fixture
async def client(address: str) -> AsyncIterator[TaskQueueClient]:
    async with connect(address) as connected:
        yield connected


async def test_a_task_is_stored_until_it_is_polled(client: TaskQueueClient) -> None:
    assert await client.add("orders", b"one") == AddResult(is_started=False)
    assert await client.poll("orders", timeout_s=PATIENCE_S) == Task(b"one", was_backlogged=True)


async def test_a_task_is_matched_directly_with_a_waiting_poll(client: TaskQueueClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        is_started = False
        # If the task arrives before the poll, it is stored: then try again.
        while not is_started:
            polling = asyncio.create_task(client.poll("orders", timeout_s=PATIENCE_S))
            await asyncio.sleep(0)
            is_started = (await client.add("orders", b"one")).is_started
            assert await polling == Task(b"one", was_backlogged=not is_started)


async def test_a_poll_without_a_task_returns_none(client: TaskQueueClient) -> None:
    assert await client.poll("orders", timeout_s=0.05) is None


async def test_tenants_get_shares_by_weight_and_lower_priorities_come_first(client: TaskQueueClient) -> None:
    for tenant, weight in (("small", 1.0), ("large", 4.0)):
        for _ in range(5):
            await client.add("orders", tenant.encode(), fairness_key=tenant, weight=weight)
    await client.add("orders", b"urgent", priority=1)
    payloads = []
    for _ in range(11):
        task = await client.poll("orders", timeout_s=PATIENCE_S)
        assert task is not None
        payloads.append(task.payload.decode())
    assert payloads[0] == "urgent"
    assert payloads[1:6].count("large") == 4
    assert sorted(payloads[1:]) == ["large"] * 5 + ["small"] * 5


async def test_namespaces_separate_task_queues_with_the_same_name(address: str) -> None:
    async with connect(address, namespace="blue") as blue, connect(address, namespace="green") as green:
        await blue.add("orders", b"of blue")
        assert await green.poll("orders", timeout_s=0.05) is None
        assert await blue.poll("orders", timeout_s=PATIENCE_S) == Task(b"of blue", was_backlogged=True)


async def test_the_next_address_is_tried_if_the_first_does_not_respond(address: str) -> None:
    async with connect(NO_SERVER, address) as client:
        assert await client.add("orders", b"one") == AddResult(is_started=False)


async def test_connect_fails_with_the_address_if_no_server_responds() -> None:
    with pytest.raises(RetryLater, match=NO_SERVER):
        async with connect(NO_SERVER):
            raise AssertionError


@pytest.mark.parametrize("namespace", ["", "blue#1"])
async def test_an_invalid_namespace_is_rejected(address: str, namespace: str) -> None:
    with pytest.raises(InvalidNamespace, match="namespace is"):
        async with connect(address, namespace=namespace):
            raise AssertionError


async def test_invalid_requests_raise_fix_request(client: TaskQueueClient) -> None:
    with pytest.raises(FixRequest, match="priority is 9"):
        await client.add("orders", b"one", priority=9)
    with pytest.raises(FixRequest, match="weight -1"):
        await client.add("orders", b"one", weight=-1.0)
    with pytest.raises(FixRequest, match="name is empty"):
        await client.add("", b"one")
    with pytest.raises(FixRequest, match="name is empty"):
        await client.poll("")


async def test_the_identity_of_a_poll_is_its_process_by_default(client: TaskQueueClient) -> None:
    seen: list[str] = []
    poll = client._client.poll

    async def recorded(task_queue: object, identity: str, **options: object) -> object:
        seen.append(identity)
        return await poll(task_queue, identity, **options)  # type: ignore[arg-type]

    client._client.poll = recorded  # type: ignore[assignment, method-assign]
    await client.poll("orders", timeout_s=0.05)
    await client.poll("orders", timeout_s=0.05, identity="worker-1")
    assert seen[0].startswith(f"{os.getpid()}@")
    assert seen[1] == "worker-1"


def test_everything_public_is_documented() -> None:
    for name in fairlead.client.__all__:
        value = getattr(fairlead.client, name)
        assert not callable(value) or value.__doc__, name
