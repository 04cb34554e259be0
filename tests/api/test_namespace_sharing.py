"""Whether a namespace is shared with a cluster, and that a refusal costs the same whether or not it exists."""

import pytest
from msgspec.structs import replace

from fairlead.api.namespace_sharing import is_shared, is_shared_id
from fairlead.api.namespaces import DELETED, Namespace, Namespaces
from fairlead.storage.history import StoredNamespace
from fairlead.storage.memory.history import MemoryHistory

SHARED = Namespace(id="1", name="shared", retention_ns=1, is_global=True, clusters=("a", "b"), failover_version=1)
OTHERS = replace(SHARED, id="2", name="others", clusters=("a", "c"))
LOCAL = Namespace(id="3", name="local", retention_ns=1, clusters=("a", "b"))


class CountedReads(MemoryHistory):
    """Counts the reads of namespaces."""

    reads = 0

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        self.reads += 1
        return await super().read_namespace(namespace_id=namespace_id, name=name)


async def cached(store: MemoryHistory) -> Namespaces:
    namespaces = Namespaces(store, clock=lambda: 0.0)
    for namespace in (SHARED, OTHERS, LOCAL):
        await namespaces.create(namespace)
    return namespaces


@pytest.mark.parametrize(("cluster", "expected"), [("b", {"shared"}), ("c", {"others"}), ("", {"shared", "others"})])
async def test_a_namespace_is_shared_with_its_clusters_if_it_is_global(cluster: str, expected: set[str]) -> None:
    namespaces = await cached(MemoryHistory())
    for namespace in (SHARED, OTHERS, LOCAL):
        assert await is_shared_id(namespaces, namespace.id, cluster) is (namespace.name in expected)
        assert await is_shared(namespaces, namespace.name, cluster) is (namespace.name in expected)


async def test_a_deleted_namespace_is_shared_by_its_id_only() -> None:
    """Its runs are replicated until the namespace is purged."""
    namespaces = await cached(MemoryHistory())
    await namespaces.change(SHARED.id, lambda now: replace(now, state=int(DELETED)))
    assert not await is_shared(namespaces, SHARED.name, "b")
    assert await is_shared_id(namespaces, SHARED.id, "b")


@pytest.mark.parametrize("one", [OTHERS, LOCAL, replace(OTHERS, id="4", name="absent")])
async def test_a_refusal_reads_the_store_once_whether_or_not_the_namespace_exists(one: Namespace) -> None:
    store = CountedReads()
    namespaces = await cached(store)
    for _ in range(3):
        before = store.reads
        assert not await is_shared(namespaces, one.name, "b")
        assert store.reads == before + 1
        assert not await is_shared_id(namespaces, one.id, "b")
        assert store.reads == before + 2
    before = store.reads
    assert await is_shared(namespaces, SHARED.name, "b")
    assert store.reads == before
