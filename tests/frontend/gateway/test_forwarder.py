"""The headers of a call that is forwarded to another cluster, over real gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.frontend.gateway.forwarder import Forwarder
from fairlead.rpc import Call, RpcServer
from fairlead.rpc.client import Channel
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials, with_api_key

PATH = "/temporal.api.workflowservice.v1.WorkflowService/StartWorkflowExecution"
SENT = (
    ("authorization", "Bearer of the caller"),
    ("authorization-extras", "extras of the caller"),
    ("x-token", "token of the caller"),
    ("fairlead-internode-secret", "secret of the caller"),
    ("temporal-principal", "forged"),
    ("client-name", "temporal-python"),
    ("trace-bin", b"\x01\x02"),
)
HEADERS = ("x-token", "authorization-extras")


@asynccontextmanager
async def forwarded(credentials: Credentials) -> AsyncIterator[dict[str, str | bytes]]:
    """The headers that the other cluster gets."""
    found: dict[str, str | bytes] = {}

    async def note(_: bytes, call: Call) -> bytes:
        found.update(call.metadata)
        found.update(call.binary_metadata)
        return b""

    there, here = RpcServer("127.0.0.1:0"), RpcServer("127.0.0.1:0")
    there.add(PATH, note)
    address = await there.start()
    forwarder = Forwarder(lambda _: address, lambda _: credentials, credential_headers=HEADERS)
    here.add(PATH, lambda data, call: forwarder.send("b", data, call))
    caller = Channel(await here.start())
    try:
        await caller.unary(PATH, b"", timeout_s=10, metadata=SENT)
        yield found
    finally:
        await caller.close()
        await forwarder.close()
        await here.stop(0)
        await there.stop(0)


async def test_a_cluster_with_its_own_proof_forwards_no_credential_of_the_caller() -> None:
    async with forwarded(with_api_key("fl_key", None)) as found:
        assert found["authorization"] == "Bearer fl_key"
        assert not {"authorization-extras", "x-token", "fairlead-internode-secret", "temporal-principal"} & found.keys()
        assert b"of the caller" not in repr(found).encode()
        # Other headers are forwarded.
        assert (found["client-name"], found["trace-bin"]) == ("temporal-python", b"\x01\x02")


async def test_a_cluster_without_a_proof_forwards_the_credentials_of_the_caller() -> None:
    async with forwarded(ANONYMOUS) as found:
        assert found["authorization"] == "Bearer of the caller"
        assert found["authorization-extras"] == "extras of the caller"
        assert found["x-token"] == "token of the caller"
        # The secret is that of this cluster's hosts only.
        assert not {"fairlead-internode-secret", "temporal-principal"} & found.keys()
