"""System and cluster information for the official clients."""

import json

import pytest
import temporalio.client
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest, GetSystemInfoRequest, GetSystemInfoResponse

import fairlead
from fairlead.frontend import read_cluster_id
from fairlead.frontend.handlers.system import SERVER_VERSION, SYSTEM_CAPABILITIES
from fairlead.storage.memory.history import MemoryHistory
from tests.frontend.served import needs_command_line, serving


async def test_the_system_info_has_each_capability_of_the_table() -> None:
    async with serving() as served:
        info = await served.workflow.GetSystemInfo(GetSystemInfoRequest())
    assert info.server_version == SERVER_VERSION
    assert {name: getattr(info.capabilities, name) for name in SYSTEM_CAPABILITIES} == SYSTEM_CAPABILITIES
    # A capability that a newer API adds must be decided on as well.
    assert set(SYSTEM_CAPABILITIES) == set(GetSystemInfoResponse.Capabilities.DESCRIPTOR.fields_by_name)


async def test_the_cluster_info_names_fairlead() -> None:
    async with serving() as served:
        info = await served.workflow.GetClusterInfo(GetClusterInfoRequest())
        assert info.cluster_id == served.frontend.cluster_id
    assert (info.server_version, info.cluster_name, info.history_shard_count) == (SERVER_VERSION, "active", 4)
    assert (info.initial_failover_version, info.failover_version_increment) == (1, 10)
    assert info.supported_clients["temporal-cli"] == "<2.0.0"
    assert f"Fairlead {fairlead.__version__}" in info.version_info.instructions


async def test_the_cluster_id_is_created_once() -> None:
    store = MemoryHistory()
    first = await read_cluster_id(store)
    assert len(first) == 36
    assert await read_cluster_id(store) == first
    assert await read_cluster_id(MemoryHistory()) != first


async def test_the_official_sdks_client_connects() -> None:
    async with serving() as served:
        client = await temporalio.client.Client.connect(served.address)
        assert await client.service_client.check_health()


@needs_command_line
@pytest.mark.timeout(120)
async def test_the_official_command_line_shows_the_cluster() -> None:
    async with serving() as served:
        assert "SERVING" in await served.temporal("operator", "cluster", "health")
        described = json.loads(await served.temporal("operator", "cluster", "describe", "--detail", "-o", "json"))
        assert described["clusterId"] == served.frontend.cluster_id
        system = json.loads(await served.temporal("operator", "cluster", "system", "-o", "json"))
        assert system["serverVersion"] == SERVER_VERSION
        assert served.address in await served.temporal("operator", "cluster", "list")
