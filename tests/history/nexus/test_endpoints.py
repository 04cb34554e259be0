"""Endpoints in the store."""

import pytest
from temporalio.api.nexus.v1 import Endpoint, EndpointSpec, EndpointTarget

from fairlead.history.nexus.endpoints import Endpoints
from fairlead.history.refusals import Refused
from fairlead.rpc import Code
from fairlead.storage.history_memory import MemoryHistory


def endpoint(name: str, endpoint_id: str, *, version: int = 1) -> Endpoint:
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue="queue"))
    return Endpoint(id=endpoint_id, version=version, spec=EndpointSpec(name=name, target=target))


async def test_a_name_is_given_once() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    with pytest.raises(Refused, match="Endpoint with name a already registered") as taken:
        await endpoints.create(endpoint("a", "2"))
    assert taken.value.code == Code.ALREADY_EXISTS
    assert await endpoints.ids(["a", "b"]) == {"a": "1"}


async def test_a_new_name_takes_the_place_of_the_old_one() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    changed = await endpoints.update(endpoint("b", "1"))
    assert changed.version == 2
    assert await endpoints.named("a") is None
    assert await endpoints.find("1", name="a") == changed
    await endpoints.create(endpoint("a", "2"))
    with pytest.raises(Refused, match="already registered"):
        await endpoints.update(endpoint("a", "1", version=2))


async def test_a_change_is_of_the_version_that_its_author_saw() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    await endpoints.update(endpoint("a", "1"))
    for stale in (endpoints.update(endpoint("a", "1")), endpoints.delete("1", 1)):
        with pytest.raises(Refused, match=r"version mismatch\. received: 1 expected 2"):
            await stale
    await endpoints.delete("1", 2)
    assert await endpoints.all() == []


async def test_an_empty_id_is_no_endpoints_id() -> None:
    endpoints = Endpoints(MemoryHistory())
    await endpoints.create(endpoint("a", "1"))
    assert await endpoints.find("") is None
    for refused in (endpoints.update(endpoint("b", "")), endpoints.delete("", 1)):
        with pytest.raises(Refused) as missing:
            await refused
        assert missing.value.code == Code.NOT_FOUND


async def test_what_a_stopped_change_left_behind_goes_with_the_next() -> None:
    """A host that stops between the two writes of a new name leaves both."""
    store = MemoryHistory()
    endpoints = Endpoints(store)
    await endpoints.create(endpoint("a", "1"))
    await store.write_metadata(
        "nexus-endpoint/b", endpoint("b", "1", version=2).SerializeToString(), expected_version=0
    )
    assert [each.spec.name for each in await endpoints.all()] == ["b"]
    await endpoints.delete("1", 2)
    assert await endpoints.named("a") is None
