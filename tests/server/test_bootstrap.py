"""Data that a server writes to its store at the first start."""

from collections.abc import Mapping
from itertools import count

import pytest
from temporalio.api.enums.v1 import IndexedValueType

from fairlead.api.namespaces import Namespaces
from fairlead.server.bootstrap import (
    SHARDS_KEY,
    CannotBootstrap,
    ClusterFixed,
    ShardsFixed,
    ensure_namespaces,
    fix_cluster,
    fix_shards,
)
from fairlead.settings.static.config import (
    ClusterConfig,
    MemoryConfig,
    NamespaceConfig,
    PostgresConfig,
    SearchAttributeType,
    StaticConfig,
)
from fairlead.storage.history import StoredMetadata
from fairlead.storage.history_conflicts import MetadataConflict
from fairlead.storage.memory.history import MemoryHistory

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
    # Without a setting, a server uses the stored number, not the default.
    assert await fix_shards(store, config()) == 16
    assert await fix_shards(store, StaticConfig(store=PostgresConfig(""))) == 16


async def test_another_number_of_shards_is_refused_with_an_error_that_names_the_right_one() -> None:
    store = MemoryHistory()
    assert await fix_shards(store, config()) == 4
    with pytest.raises(ShardsFixed, match=r"created with 4 shards, .* write history: \{shards: 4\}, or leave it out"):
        await fix_shards(store, config(8))
    assert await fix_shards(store, config()) == 4


class AnotherIsFaster(MemoryHistory):
    """A store in which another host writes between this host's read and its write."""

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        stored = StoredMetadata(key, b"32", 1)
        await super().write_metadata(key, stored.payload, expected_version=0)
        raise MetadataConflict("taken", stored)


async def test_the_first_of_two_hosts_that_start_together_fixes_the_number_of_shards() -> None:
    assert await fix_shards(AnotherIsFaster(), config()) == 32
    with pytest.raises(ShardsFixed):
        await fix_shards(AnotherIsFaster(), config(8))


async def test_a_store_keeps_the_name_of_its_cluster() -> None:
    store = MemoryHistory()
    # A cluster without a name may get one; from then on the name is fixed.
    await fix_cluster(store, StaticConfig())
    await fix_cluster(store, StaticConfig(cluster=ClusterConfig("a", 1, 10)))
    await fix_cluster(store, StaticConfig(cluster=ClusterConfig("a", 1, 10)))
    for other in (None, ClusterConfig("b", 1, 10), ClusterConfig("a", 2, 10), ClusterConfig("a", 1, 100)):
        with pytest.raises(ClusterFixed, match=r"write cluster: \{name: a, initialVersion: 1, increment: 10\}"):
            await fix_cluster(store, StaticConfig(cluster=other))


async def test_the_configured_namespaces_are_created_once() -> None:
    store = MemoryHistory()
    await ensure(store, NamespaceConfig("default"), NamespaceConfig("orders", 7200.0))
    namespaces = await ensure(store, NamespaceConfig("orders", 3600.0))
    found = {namespace.name: namespace for namespace in await namespaces.list(after=None, limit=10)}
    assert sorted(found) == ["default", "orders"]
    # Existing namespaces are not changed: an operator may have changed them on purpose.
    assert found["orders"].retention_ns == 7200 * 10**9
    assert found["default"].retention_ns == 24 * 3600 * 10**9
    assert found["orders"].created_ns == 5


async def test_missing_search_attributes_are_added() -> None:
    store = MemoryHistory()
    await ensure(store, named("orders", {"Customer": KEYWORD}))
    namespaces = await ensure(store, named("orders", {"Customer": KEYWORD, "Amount": INT}))
    assert (await namespaces.find("orders")).search_attributes == {
        "Customer": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "Amount": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    }
    # Attributes that are no longer configured are kept.
    namespaces = await ensure(store, named("orders", {}))
    assert len((await namespaces.find("orders")).search_attributes) == 2


async def test_a_search_attribute_of_another_type_is_refused() -> None:
    store = MemoryHistory()
    await ensure(store, named("orders", {"Customer": KEYWORD}))
    with pytest.raises(CannotBootstrap, match="Customer of namespace orders is Keyword already, not Int"):
        await ensure(store, named("orders", {"Customer": INT}))
    with pytest.raises(CannotBootstrap, match="WorkflowId exists in every namespace"):
        await ensure(store, named("orders", {"WorkflowId": KEYWORD}))


async def test_the_number_of_shards_is_stored_as_text() -> None:
    store = MemoryHistory()
    await fix_shards(store, config(9))
    stored = await store.read_metadata(SHARDS_KEY)
    assert stored is not None
    assert stored.payload == b"9"
