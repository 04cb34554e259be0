"""Requests and responses above the message size cross between hosts in parts; unfetched parts are dropped."""

import os

import pytest

from fairlead.api.codes import code_of
from fairlead.history.client import CALL, HistoryCall, encode_request
from fairlead.history.messages.large_calls import (
    KEPT_S_MAX,
    NEXT_PART,
    PART_BYTES_MAX,
    SEND_PART,
    KeptParts,
    NextPart,
    NoRoom,
    PartsGone,
    get_rest,
    send_parts,
)
from fairlead.rpc.hosts.caller import CallLost, Handlers
from fairlead.rpc.hosts.grpc_caller import GrpcCaller
from fairlead.rpc.hosts.grpc_server import GrpcServer
from fairlead.rpc.hosts.wire import Errors
from tests.history.shard_world import NAMESPACE, World, start_request
from tests.virtual_time import on_virtual_time

LARGE = os.urandom(3 * PART_BYTES_MAX + 17)


async def test_a_large_request_and_response_are_transferred_by_grpc() -> None:
    kept = KeptParts()
    handlers = Handlers()
    handlers.add(SEND_PART, kept.add)
    handlers.add(NEXT_PART, kept.next)
    server = GrpcServer(handlers, errors=Errors(), code_of=code_of)
    address = await server.start()
    caller = GrpcCaller(errors=Errors())
    try:
        key = await send_parts(caller, address, LARGE, timeout_s=10)
        assert kept.take(key) == LARGE
        kept.keep("answer", LARGE)
        assert await get_rest(caller, address, "answer", timeout_s=10) == LARGE
        # The parts are deleted with the last one.
        with pytest.raises(PartsGone):
            kept.take("answer")
    finally:
        await caller.close()
        await server.stop(0)


async def test_a_large_response_that_is_not_fetched_in_time_is_dropped() -> None:
    now_s = 0.0
    kept = KeptParts(clock=lambda: now_s)
    kept.keep("old", b"1")
    now_s = KEPT_S_MAX - 1
    kept.keep("new", b"22")
    now_s = KEPT_S_MAX + 1
    with pytest.raises(CallLost, match="old"):
        await kept.next(NextPart("old", 0))
    assert kept.take("new") == b"22"
    assert kept._bytes == 0


def test_the_size_of_kept_large_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.messages.large_calls.KEPT_BYTES_MAX", 10)
    kept = KeptParts()
    kept.keep("one", bytes(6))
    with pytest.raises(NoRoom):
        kept.keep("two", bytes(5))
    kept.take("one")
    kept.keep("two", bytes(10))


@on_virtual_time
async def test_an_executed_call_whose_response_is_too_large_fails_with_an_unknown_outcome() -> None:
    world = World()
    host = await world.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("fairlead.history.service.PART_BYTES_MAX", 1)
            patched.setattr("fairlead.history.messages.large_calls.KEPT_BYTES_MAX", 1)
            call = HistoryCall(
                *("StartWorkflowExecution", 0, NAMESPACE.id),
                encode_request(start_request("flow", "request")),
                timeout_s=10.0,
            )
            with pytest.raises(CallLost, match="StartWorkflowExecution was carried out"):
                await world.network.caller().call(host.name, CALL, call, timeout_s=10.0)
        assert world.current("flow") is not None
    finally:
        await world.close()
