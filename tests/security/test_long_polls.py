"""A long poll ends when its key is revoked: the holder of a revoked key gets no task any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from fairlead.authorization.messages import CREATE_KEY, REVOKE_KEY, CreateKeyRequest, RevokeKeyRequest
from fairlead.core.errors import RetryLater
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.messages import POLL, PollRequest
from fairlead.rpc.hosts.credentials import with_api_key, with_secret
from fairlead.server import Server, new_caller
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import Address, MemoryConfig, SecurityConfig, StaticConfig

SECRET = "0123456789abcdef"  # noqa: S105 - of a test
LOOPBACK = Address("127.0.0.1", 0)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server(
        StaticConfig(
            frontend_listen=LOOPBACK,
            listen=LOOPBACK,
            store=MemoryConfig(),
            security=SecurityConfig(AuthorizationConfig(authorizer="default"), secret=SECRET),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_a_poll_ends_soon_after_its_key_is_revoked_and_another_continues() -> None:
    async with serving() as server:
        caller = new_caller(with_secret(SECRET))
        try:
            made = [
                await caller.call(server.address, CREATE_KEY, CreateKeyRequest(name, "default", "worker"), timeout_s=10)
                for name in ("revoked", "kept")
            ]
            assert server.frontend_address is not None
            async with grpc.aio.insecure_channel(server.frontend_address) as channel:
                any_channel: Any = channel
                service: Any = WorkflowServiceStub(any_channel)
                request = PollActivityTaskQueueRequest(
                    namespace="default", task_queue=TaskQueue(name="q"), identity="w"
                )
                revoked, kept = (
                    asyncio.ensure_future(
                        service.PollActivityTaskQueue(
                            request, timeout=70, metadata=[("authorization", f"Bearer {key.key}")]
                        )
                    )
                    for key in made
                )
                done, _ = await asyncio.wait((revoked, kept), timeout=0.5)
                assert not done
                await caller.call(server.address, REVOKE_KEY, RevokeKeyRequest(made[0].id), timeout_s=10)
                # Long before the end of the poll.
                async with asyncio.timeout(30):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await revoked
                # The client may have a new key already: its next call says so.
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert not kept.done()
                kept.cancel()
        finally:
            await caller.close()


async def test_a_poll_of_the_public_client_ends_soon_after_its_key_is_revoked_and_another_continues() -> None:
    async with serving() as server, AsyncExitStack() as closing:
        caller = new_caller(with_secret(SECRET))
        closing.push_async_callback(caller.close)
        made = [
            await caller.call(server.address, CREATE_KEY, CreateKeyRequest(name, "default", "worker"), timeout_s=10)
            for name in ("revoked", "kept")
        ]
        clients = [new_caller(with_api_key(key.key)) for key in made]
        for client in clients:
            closing.push_async_callback(client.close)
        queue = Partition(TaskQueueId("default", "q", TaskType.ACTIVITY), 0)
        revoked, kept = (
            asyncio.ensure_future(
                client.call(server.address, POLL, PollRequest(queue, "worker", "1", 60.0), timeout_s=70)
            )
            for client in clients
        )
        done, _ = await asyncio.wait((revoked, kept), timeout=0.5)
        assert not done
        await caller.call(server.address, REVOKE_KEY, RevokeKeyRequest(made[0].id), timeout_s=10)
        async with asyncio.timeout(30):
            with pytest.raises(RetryLater, match="credential of this call has ended"):
                await revoked
        assert not kept.done()
        kept.cancel()
        await asyncio.gather(kept, return_exceptions=True)
