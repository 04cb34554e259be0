"""Endpoints in the store."""

import pytest
from temporalio.api.nexus.v1 import Endpoint, EndpointSpec, EndpointTarget

from fairlead.api.errors import AlreadyExists, ApiError, NotFound
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.storage.memory.history import MemoryHistory


def endpoint(name: str, endpoint_id: str, *, version: int = 1) -> Endpoint:
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue="queue"))
    return Endpoint(id=endpoint_id, version=version, spec=EndpointSpec(name=name, target=target))


async def test_two_endpoints_can_not_have_the_same_name() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    with pytest.raises(AlreadyExists, match="Endpoint with name a already registered"):
        await endpoints.create(endpoint("a", "2"))
    assert await endpoints.ids(["a", "b"]) == {"a": "1"}


async def test_renaming_an_endpoint_frees_its_old_name() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    changed = await endpoints.update(endpoint("b", "1"))
    assert changed.version == 2
    assert await endpoints.named("a") is None
    assert await endpoints.find("1", name="a") == changed
    await endpoints.create(endpoint("a", "2"))
    with pytest.raises(ApiError, match="already registered"):
        await endpoints.update(endpoint("a", "1", version=2))


async def test_a_change_is_made_only_to_the_version_that_was_read() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    await endpoints.update(endpoint("a", "1"))
    for stale in (endpoints.update(endpoint("a", "1")), endpoints.delete("1", 1)):
        with pytest.raises(ApiError, match=r"version mismatch\. received: 1 expected 2"):
            await stale
    await endpoints.delete("1", 2)
    assert await endpoints.all() == []


async def test_an_empty_id_is_no_endpoints_id() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    assert await endpoints.find("") is None
    for rejected in (endpoints.update(endpoint("b", "")), endpoints.delete("", 1)):
        with pytest.raises(NotFound):
            await rejected


async def test_the_next_change_cleans_up_after_an_interrupted_one() -> None:
    """A host that stops while it renames an endpoint leaves the rows of both names."""
    store = MemoryHistory()
    endpoints = Endpoints(store)
    await endpoints.create(endpoint("a", "1"))
    await store.write_metadata(
        "nexus-endpoint/b", endpoint("b", "1", version=2).SerializeToString(), expected_version=0
    )
    assert [each.spec.name for each in await endpoints.all()] == ["b"]
    await endpoints.delete("1", 2)
    assert await endpoints.named("a") is None
