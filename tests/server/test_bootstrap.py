"""What a store holds from its first start on."""

from collections.abc import Mapping
from itertools import count

import pytest
from temporalio.api.enums.v1 import IndexedValueType

from fairlead.history.namespaces import Namespaces
from fairlead.server.bootstrap import (
    SHARDS_KEY,
    CannotBootstrap,
    ClusterFixed,
    ShardsFixed,
    ensure_namespaces,
    fix_cluster,
    fix_shards,
)
from fairlead.settings.static import (
    ClusterConfig,
    MemoryConfig,
    NamespaceConfig,
    PostgresConfig,
    SearchAttributeType,
    StaticConfig,
)
from fairlead.storage.history_contract import MetadataConflict, StoredMetadata
from fairlead.storage.history_memory import MemoryHistory

KEYWORD, INT = SearchAttributeType.KEYWORD, SearchAttributeType.INT


def config(shards: int | None = None) -> StaticConfig:
    return StaticConfig(store=MemoryConfig(), history_shards=shards)


async def ensure(store: MemoryHistory, *wanted: NamespaceConfig) -> Namespaces:
    numbers = count()
    namespaces = Namespaces(store, clock=lambda: 0.0)
    await ensure_namespaces(namespaces, wanted, new_id=lambda: f"id-{next(numbers)}", now_ns=5)
    return namespaces


def named(name: str, attributes: Mapping[str, SearchAttributeType]) -> NamespaceConfig:
    return NamespaceConfig(name, search_attributes=attributes)


async def test_the_first_start_fixes_the_number_of_shards() -> None:
    store = MemoryHistory()
    assert await fix_shards(store, config(16)) == 16
    assert await fix_shards(store, config(16)) == 16
    # Who says nothing takes what there is, whatever would be the default.
    assert await fix_shards(store, config()) == 16
    assert await fix_shards(store, StaticConfig(store=PostgresConfig(""))) == 16


async def test_another_number_of_shards_is_refused_with_what_to_write() -> None:
    store = MemoryHistory()
    assert await fix_shards(store, config()) == 4
    with pytest.raises(ShardsFixed, match=r"begun with 4, .* write history: \{shards: 4\}, or leave it out"):
        await fix_shards(store, config(8))
    assert await fix_shards(store, config()) == 4


class AnotherIsFaster(MemoryHistory):
    """Between the look of one host and its write, another one writes."""

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        stored = StoredMetadata(key, b"32", 1)
        await super().write_metadata(key, stored.payload, expected_version=0)
        raise MetadataConflict("taken", stored)


async def test_of_two_hosts_that_start_at_once_the_first_one_fixes_it() -> None:
    assert await fix_shards(AnotherIsFaster(), config()) == 32
    with pytest.raises(ShardsFixed):
        await fix_shards(AnotherIsFaster(), config(8))


async def test_a_store_goes_on_as_the_cluster_that_it_is_of() -> None:
    store = MemoryHistory()
    # One that was alone may get a name; from then on it has it.
    await fix_cluster(store, StaticConfig())
    await fix_cluster(store, StaticConfig(cluster=ClusterConfig("a", 1, 10)))
    await fix_cluster(store, StaticConfig(cluster=ClusterConfig("a", 1, 10)))
    for other in (None, ClusterConfig("b", 1, 10), ClusterConfig("a", 2, 10), ClusterConfig("a", 1, 100)):
        with pytest.raises(ClusterFixed, match=r"write cluster: \{name: a, initialVersion: 1, increment: 10\}"):
            await fix_cluster(store, StaticConfig(cluster=other))


async def test_the_namespaces_are_made_once() -> None:
    store = MemoryHistory()
    await ensure(store, NamespaceConfig("default"), NamespaceConfig("orders", 7200.0))
    namespaces = await ensure(store, NamespaceConfig("orders", 3600.0))
    found = {namespace.name: namespace for namespace in await namespaces.list(after=None, limit=10)}
    assert sorted(found) == ["default", "orders"]
    # What is there stays as it is: it may have been changed on purpose.
    assert found["orders"].retention_ns == 7200 * 10**9
    assert found["default"].retention_ns == 24 * 3600 * 10**9
    assert found["orders"].created_ns == 5


async def test_search_attributes_that_are_missing_are_added() -> None:
    store = MemoryHistory()
    await ensure(store, named("orders", {"Customer": KEYWORD}))
    namespaces = await ensure(store, named("orders", {"Customer": KEYWORD, "Amount": INT}))
    assert (await namespaces.find("orders")).search_attributes == {
        "Customer": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "Amount": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    }
    # Those that are no longer named are still there.
    namespaces = await ensure(store, named("orders", {}))
    assert len((await namespaces.find("orders")).search_attributes) == 2


async def test_a_search_attribute_of_another_type_is_refused() -> None:
    store = MemoryHistory()
    await ensure(store, named("orders", {"Customer": KEYWORD}))
    with pytest.raises(CannotBootstrap, match="Customer of namespace orders is Keyword already, not Int"):
        await ensure(store, named("orders", {"Customer": INT}))
    with pytest.raises(CannotBootstrap, match="WorkflowId is there in every namespace"):
        await ensure(store, named("orders", {"WorkflowId": KEYWORD}))


async def test_the_number_of_shards_is_kept_as_text() -> None:
    store = MemoryHistory()
    await fix_shards(store, config(9))
    stored = await store.read_metadata(SHARDS_KEY)
    assert stored is not None
    assert stored.payload == b"9"
