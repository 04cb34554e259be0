"""The secret of the cluster's hosts opens their own port, and no other one."""

import msgspec
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from fairlead.api.errors import ApiError
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.rpc.client import Channel
from fairlead.rpc.hosts.credentials import with_secret
from tests.security.test_garbage import SECRET, locked_server


async def test_the_secret_of_hosts_grants_nothing_at_the_port_for_sdks_and_clusters() -> None:
    secret = with_secret(SECRET)
    async with locked_server() as server:
        assert server.frontend_address is not None
        channel = Channel(server.address)
        ring = await channel.unary("/fairlead/cluster.Ring", b"\x90", timeout_s=10, metadata=secret.headers)
        assert msgspec.msgpack.decode(ring)
        await channel.close()
        client = await Client.connect(server.frontend_address, rpc_metadata=dict(secret.headers))
        with pytest.raises(RPCError) as refused:
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
        assert refused.value.status is RPCStatusCode.PERMISSION_DENIED
        remote = GrpcRemote(server.frontend_address, here="b", credentials=secret)
        with pytest.raises(ApiError, match="Request unauthorized"):
            await remote.info()
        await remote.close()
