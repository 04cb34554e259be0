"""What is larger than a message between hosts crosses in parts, and what nobody asks for is forgotten."""

import os

import pytest

from fairlead.cluster.calls import CallLost, Handlers
from fairlead.cluster.grpc_caller import GrpcCaller
from fairlead.cluster.grpc_server import GrpcServer
from fairlead.cluster.wire import Errors
from fairlead.history.client import CALL, HistoryCall, encode_request
from fairlead.history.large_calls import (
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
from tests.history.shard_world import NAMESPACE, World, start_request
from tests.virtual_time import on_virtual_time

LARGE = os.urandom(3 * PART_BYTES_MAX + 17)


async def test_a_large_request_and_answer_cross_by_grpc() -> None:
    kept = KeptParts()
    handlers = Handlers()
    handlers.add(SEND_PART, kept.add)
    handlers.add(NEXT_PART, kept.next)
    server = GrpcServer(handlers, errors=Errors())
    address = await server.start()
    caller = GrpcCaller(errors=Errors())
    try:
        key = await send_parts(caller, address, LARGE, timeout_s=10)
        assert kept.take(key) == LARGE
        kept.keep("answer", LARGE)
        assert await get_rest(caller, address, "answer", timeout_s=10) == LARGE
        # It is gone with its last part.
        with pytest.raises(PartsGone):
            kept.take("answer")
    finally:
        await caller.close()
        await server.stop(0)


async def test_what_is_not_asked_for_in_time_is_forgotten() -> None:
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


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.large_calls.KEPT_BYTES_MAX", 10)
    kept = KeptParts()
    kept.keep("one", bytes(6))
    with pytest.raises(NoRoom):
        kept.keep("two", bytes(5))
    kept.take("one")
    kept.keep("two", bytes(10))


@on_virtual_time
async def test_whoever_asked_for_what_was_carried_out_and_has_too_large_an_answer_hears_that_it_may_have_been() -> None:
    world = World()
    host = await world.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("fairlead.history.service.PART_BYTES_MAX", 1)
            patched.setattr("fairlead.history.large_calls.KEPT_BYTES_MAX", 1)
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
