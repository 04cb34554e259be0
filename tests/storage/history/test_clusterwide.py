"""Namespaces and cluster metadata on every store: writes are conditional on the version that was read."""

import asyncio

import pytest

from fairlead.core.errors import FixRequest
from fairlead.storage.history import HistoryStore, StoredMetadata, StoredNamespace
from fairlead.storage.history_conflicts import MetadataConflict, NamespaceConflict


async def test_a_namespace_is_found_by_id_and_by_name(store: HistoryStore) -> None:
    await store.create_namespace("id-1", "default", b"\0one", 5)
    stored = StoredNamespace("id-1", "default", b"\0one", 5)
    assert await store.read_namespace(namespace_id="id-1") == stored
    assert await store.read_namespace(name="default") == stored
    assert await store.read_namespace(namespace_id="default") is None
    assert await store.read_namespace(name="id-1") is None
    with pytest.raises(FixRequest, match="namespace_id or name"):
        await store.read_namespace()


@pytest.mark.parametrize(("namespace_id", "name"), [("id-1", "another"), ("id-2", "default")])
async def test_two_namespaces_can_not_have_the_same_id_or_name(
    store: HistoryStore, namespace_id: str, name: str
) -> None:
    await store.create_namespace("id-1", "default", b"one")
    with pytest.raises(NamespaceConflict) as raised:
        await store.create_namespace(namespace_id, name, b"two")
    assert raised.value.present == StoredNamespace("id-1", "default", b"one", 1)
    assert len(await store.list_namespaces(after=None, limit=10)) == 1


async def test_a_namespace_is_changed_only_if_its_version_is_unchanged_since_the_read(store: HistoryStore) -> None:
    await store.create_namespace("id-1", "default", b"one")
    assert await store.update_namespace("id-1", b"two", expected_version=1) == 2
    for expected_version in (1, 3):
        with pytest.raises(NamespaceConflict) as raised:
            await store.update_namespace("id-1", b"three", expected_version=expected_version)
        assert raised.value.present == StoredNamespace("id-1", "default", b"two", 2)
    with pytest.raises(NamespaceConflict) as missing:
        await store.update_namespace("id-2", b"", expected_version=1)
    assert missing.value.present is None


async def test_only_one_of_many_concurrent_changes_to_one_version_succeeds(store: HistoryStore) -> None:
    await store.create_namespace("id-1", "default", b"one")
    outcomes = await asyncio.gather(
        *(store.update_namespace("id-1", b"%d" % number, expected_version=1) for number in range(10)),
        return_exceptions=True,
    )
    assert [outcome for outcome in outcomes if not isinstance(outcome, NamespaceConflict)] == [2]
    found = await store.read_namespace(namespace_id="id-1")
    assert found == StoredNamespace("id-1", "default", b"%d" % outcomes.index(2), 2)


async def test_a_namespace_can_be_renamed_and_deleted(store: HistoryStore) -> None:
    await store.create_namespace("id-1", "one", b"1")
    await store.create_namespace("id-2", "two", b"2")
    with pytest.raises(NamespaceConflict) as taken:
        await store.rename_namespace("id-1", "two", expected_version=1)
    assert taken.value.present == StoredNamespace("id-2", "two", b"2", 1)
    assert await store.rename_namespace("id-1", "three", expected_version=1) == 2
    assert await store.read_namespace(name="three") == StoredNamespace("id-1", "three", b"1", 2)
    assert await store.read_namespace(name="one") is None
    with pytest.raises(NamespaceConflict):
        await store.delete_namespace("id-1", expected_version=1)
    await store.delete_namespace("id-1", expected_version=2)
    assert [found.namespace_id for found in await store.list_namespaces(after=None, limit=10)] == ["id-2"]
    await store.create_namespace("id-3", "three", b"3")


async def test_namespaces_are_listed_by_id(store: HistoryStore) -> None:
    for number in (3, 1, 2, 5, 4):
        await store.create_namespace(f"id-{number}", f"name {9 - number}", b"")
    first = await store.list_namespaces(after=None, limit=2)
    rest = await store.list_namespaces(after=first[-1].namespace_id, limit=10)
    assert [found.namespace_id for found in first + rest] == [f"id-{number}" for number in range(1, 6)]


async def test_metadata_is_written_only_if_its_version_is_unchanged_since_the_read(store: HistoryStore) -> None:
    assert await store.read_metadata("a") is None
    with pytest.raises(MetadataConflict) as missing:
        await store.write_metadata("a", b"x", expected_version=1)
    assert missing.value.present is None
    assert await store.write_metadata("a", b"one", expected_version=0) == 1
    assert await store.write_metadata("a", b"two", expected_version=1) == 2
    for expected_version in (0, 1, 3):
        with pytest.raises(MetadataConflict) as raised:
            await store.write_metadata("a", b"x", expected_version=expected_version)
        assert raised.value.present == StoredMetadata("a", b"two", 2)
        with pytest.raises(MetadataConflict):
            await store.delete_metadata("a", expected_version=expected_version)
    await store.delete_metadata("a", expected_version=2)
    assert await store.read_metadata("a") is None


async def test_metadata_is_listed_by_prefix(store: HistoryStore) -> None:
    for name in ("endpoint/b", "endpoint/a", "endpoint", "other/a", "endpoint/é", "endpoint/%"):
        await store.write_metadata(name, name.encode(), expected_version=0)
    first = await store.list_metadata(prefix="endpoint/", after=None, limit=2)
    rest = await store.list_metadata(prefix="endpoint/", after=first[-1].key, limit=10)
    assert [found.key for found in first + rest] == ["endpoint/%", "endpoint/a", "endpoint/b", "endpoint/é"]
