"""The registry of namespaces: its own changes are visible at once, those of other hosts after a refresh."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from google.protobuf.any_pb2 import Any
from temporalio.api.errordetails.v1 import (
    NamespaceAlreadyExistsFailure,
    NamespaceInvalidStateFailure,
    NamespaceNotFoundFailure,
)

from fairlead.api import namespaces as module
from fairlead.api.errors import AlreadyExists, ApiError, Exhausted, FailedPrecondition, InvalidArgument, NotFound
from fairlead.api.namespaces import (
    DELETED,
    DEPRECATED,
    REGISTERED,
    Namespace,
    NamespaceBusy,
    Namespaces,
    UnreadableNamespace,
)
from fairlead.storage.history import HistoryStore, StoredNamespace
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.tasks import StoreUnavailable
from tests.rpc.served import until

DAY_NS = 86_400 * 10**9


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def some(name: str, number: int = 1, **fields: object) -> Namespace:
    plain = Namespace(id=f"{number:08}-0000-4000-8000-000000000000", name=name, retention_ns=DAY_NS)
    return msgspec.structs.replace(plain, **fields)


@asynccontextmanager
async def opened(store: HistoryStore, clock: Clock | None = None, refresh_s: float = 1000) -> AsyncIterator[Namespaces]:
    namespaces = Namespaces(store, clock=clock or Clock(), refresh_s=refresh_s)
    await namespaces.open()
    yield namespaces
    await namespaces.close()


def detail_of(error: ApiError) -> Any:
    return Any.FromString(error.detail)


async def test_a_namespace_is_found_by_name_and_id_and_after_a_restart(tmp_path: Path) -> None:
    namespace = some("mine", data={"k": "v"}, search_attributes={"Size": 3}, description="d", owner_email="o")
    store = await SqliteStore.open(tmp_path / "fairlead.db")
    async with opened(store.history) as namespaces:
        created = await namespaces.create(namespace)
        assert created == msgspec.structs.replace(namespace, version=1)
        assert await namespaces.find("mine") is await namespaces.find_id(namespace.id) is created
        assert namespaces.cached("mine") is namespaces.cached_id(namespace.id) is created
        assert (namespaces.cached("other"), namespaces.cached_id("other")) == (None, None)
    await store.close()
    store = await SqliteStore.open(tmp_path / "fairlead.db")
    async with opened(store.history) as namespaces:
        assert namespaces.all() == [created]
    await store.close()


async def test_a_namespace_name_is_unique() -> None:
    async with opened(MemoryHistory()) as namespaces:
        first = await namespaces.create(some("mine"))
        with pytest.raises(AlreadyExists, match='Namespace "mine" already exists') as raised:
            await namespaces.create(some("mine", 2))
        assert detail_of(raised.value).Is(NamespaceAlreadyExistsFailure.DESCRIPTOR)
        assert await namespaces.ensure(some("mine", 3)) is first
        assert (await namespaces.ensure(some("yours", 4))).name == "yours"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", InvalidArgument, "Namespace is empty."),
        ("x" * 1001, InvalidArgument, "Namespace length exceeds limit."),
        ("ü" * 501, InvalidArgument, "Namespace length exceeds limit."),
        ("x" * 1000, NotFound, f"Namespace {'x' * 1000} is not found."),
        ("a\0b", NotFound, "Namespace a\0b is not found."),
    ],
)
async def test_an_unknown_or_invalid_namespace_is_rejected(name: str, error: type[ApiError], message: str) -> None:
    async with opened(MemoryHistory()) as namespaces:
        for find in (namespaces.find, namespaces.find_registered):
            with pytest.raises(error) as raised:
                await find(name)
            assert str(raised.value) == message
        with pytest.raises(ApiError) as raised:
            await namespaces.find_id("no-id")
        failure = NamespaceNotFoundFailure()
        assert detail_of(raised.value).Unpack(failure)
        assert failure.namespace == "no-id"


async def test_a_deprecated_namespace_rejects_starts_and_a_deleted_one_rejects_all_calls() -> None:
    async with opened(MemoryHistory()) as namespaces:
        mine = await namespaces.create(some("mine"))
        assert await namespaces.find_registered("mine") is mine
        await namespaces.update("mine", lambda present: msgspec.structs.replace(present, state=int(DEPRECATED)))
        assert (await namespaces.find("mine")).state == DEPRECATED
        with pytest.raises(FailedPrecondition) as raised:
            await namespaces.find_registered("mine")
        assert str(raised.value) == "Namespace has invalid state: Deprecated. Must be Registered."
        await namespaces.update("mine", lambda present: msgspec.structs.replace(present, state=int(DELETED)))
        with pytest.raises(FailedPrecondition) as raised:
            await namespaces.find("mine")
        assert str(raised.value) == "Namespace has invalid state: Deleted. Must be Registered or Deprecated."
        failure = NamespaceInvalidStateFailure()
        assert detail_of(raised.value).Unpack(failure)
        assert failure == NamespaceInvalidStateFailure(
            namespace="mine", state=DELETED, allowed_states=[REGISTERED, DEPRECATED]
        )
        assert (await namespaces.find_id(mine.id)).state == DELETED


async def test_other_hosts_see_a_new_namespace_at_once_and_a_change_after_a_refresh() -> None:
    store, clock = MemoryHistory(), Clock()
    async with opened(store, clock) as here, opened(store, clock, refresh_s=0.02) as there:
        await here.create(some("mine"))
        assert (await there.find("mine")).description == ""
        await here.update("mine", lambda present: msgspec.structs.replace(present, description="new"))
        assert (await here.find("mine")).description == "new"
        await until(lambda: there.cached("mine") == here.cached("mine"))


async def test_a_missing_name_is_cached_for_a_while() -> None:
    store, clock = MemoryHistory(), Clock()
    async with opened(store, clock) as here, opened(store, clock) as there:
        for namespaces in (here, there):
            with pytest.raises(ApiError):
                await namespaces.find("mine")
        await here.create(some("mine"))
        assert (await here.find("mine")).name == "mine"
        with pytest.raises(ApiError):
            await there.find("mine")
        clock.now_s += 1.0
        assert (await there.find("mine")).name == "mine"


async def test_the_number_of_cached_missing_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISSED_NAMES_MAX", 10)
    async with opened(MemoryHistory()) as namespaces:
        for number in range(100):
            with pytest.raises(ApiError):
                await namespaces.find(f"missing-{number}")
            assert len(namespaces._missed_s) <= 10


async def test_concurrent_changes_of_a_namespace_on_two_hosts_are_not_lost() -> None:
    store = MemoryHistory()
    async with opened(store) as here, opened(store) as there:
        await here.create(some("mine"))

        async def add(namespaces: Namespaces, key: str) -> None:
            def change(present: Namespace) -> Namespace:
                return msgspec.structs.replace(present, data={**present.data, key: ""})

            await namespaces.update("mine", change)

        async def add_all(namespaces: Namespaces, prefix: str) -> None:
            for number in range(20):
                await add(namespaces, f"{prefix}{number}")

        await asyncio.gather(add_all(here, "a"), add_all(there, "b"))
        assert len((await here.read("mine")).data) == 40


async def test_an_update_without_a_change_writes_nothing_and_repeated_conflicts_end_with_an_error() -> None:
    store = MemoryHistory()
    async with opened(store) as here:
        created = await here.create(some("mine"))
        assert await here.update("mine", lambda present: present) is created

        # Another host always writes first.
        async def overtake() -> None:
            stored = await store.read_namespace(name="mine")
            assert stored is not None
            await store.update_namespace(stored.namespace_id, stored.payload, expected_version=stored.version)

        class Overtaken(Namespaces):
            async def read_id(self, namespace_id: str) -> Namespace:
                found = await super().read_id(namespace_id)
                await overtake()
                return found

        async with asyncio.timeout(5):
            slow = Overtaken(store, clock=Clock())
            with pytest.raises(NamespaceBusy):
                await slow.update("mine", lambda present: msgspec.structs.replace(present, description="x"))


async def test_a_late_read_does_not_replace_a_newer_namespace() -> None:
    """A refresh that was running when this host changed a namespace returns the older one."""
    store = MemoryHistory()
    async with opened(store) as here:
        await here.create(some("mine"))
        old = await store.read_namespace(name="mine")
        assert old is not None
        await here.update("mine", lambda present: msgspec.structs.replace(present, description="new"))
        assert here._keep(old).description == "new"
        assert (await here.find("mine")).description == "new"


async def test_a_deleted_namespace_frees_its_name_and_stays_until_it_is_purged() -> None:
    store = MemoryHistory()
    async with opened(store) as here, opened(store) as there:
        mine = await here.create(some("mine", 1))
        assert await there.find("mine") == mine
        deleted = await here.delete(mine.id, purge_after_ns=5)
        assert (deleted.name, deleted.state, deleted.purge_after_ns) == ("mine-deleted-00000", DELETED, 5)
        assert here.cached("mine") is None
        assert here.cached_id(mine.id) == here.cached("mine-deleted-00000") == deleted
        # A second delete has no further effect.
        assert (await here.delete(mine.id, purge_after_ns=5)).name == "mine-deleted-00000"
        second = await here.create(some("mine", 2))
        assert (await here.delete(second.id, purge_after_ns=5)).name == "mine-deleted-000000"
        third = await here.create(some("mine", 3))
        await there.refresh()
        assert await there.find("mine") == third
        assert {namespace.name for namespace in there.all()} == {"mine-deleted-00000", "mine-deleted-000000", "mine"}
        with pytest.raises(ApiError, match="is not deleted"):
            await here.purge(third.id)
        await here.purge(mine.id)
        assert here.cached_id(mine.id) is None
        await there.refresh()
        assert (there.cached_id(mine.id), there.cached("mine-deleted-00000")) == (None, None)


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
async def test_a_reused_name_belongs_to_the_new_namespace_in_any_order_of_reading(old: int, new: int) -> None:
    store = MemoryHistory()
    async with opened(store) as here, opened(store) as there:
        await there.read_id((await here.create(some("mine", old))).id)
        await here.delete(some("mine", old).id, purge_after_ns=1)
        await here.create(some("mine", new))
        await there.refresh()
        assert there.cached("mine") == here.cached("mine") == await there.find_id(some("mine", new).id)


async def test_an_interrupted_deletion_is_completed_by_the_next_one() -> None:
    store = MemoryHistory()
    async with opened(store) as here:
        mine = await here.create(some("mine"))
        await here.update("mine", lambda present: msgspec.structs.replace(present, state=int(DELETED)))
        assert (await here.delete(mine.id, purge_after_ns=9)).name == "mine-deleted-00000"


async def test_a_refresh_reads_all_pages_and_removes_deleted_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_MAX", 3)
    store = MemoryHistory()
    async with opened(store) as here, opened(store) as there:
        for number in range(1, 8):
            await here.create(some(f"n{number}", number))
        await there.refresh()
        assert len(there.all()) == 7
        await store.delete_namespace(some("n3", 3).id, expected_version=1)
        await there.refresh()
        assert there.cached("n3") is None
        assert [found.name for found in await there.list(after=some("", 4).id, limit=2)] == ["n5", "n6"]


class FailingStore(MemoryHistory):
    fails = False
    failures = 0

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        if self.fails:
            self.failures += 1
            raise StoreUnavailable("down")
        return await super().list_namespaces(after=after, limit=limit)


async def test_cached_namespaces_stay_in_use_during_a_store_outage() -> None:
    store = FailingStore()
    async with opened(store, refresh_s=0.01) as here, opened(store) as there:
        await here.create(some("mine"))
        store.fails = True
        await until(lambda: store.failures > 1)
        assert (await here.find("mine")).name == "mine"
        await there.create(some("yours", 2))
        store.fails = False
        await until(lambda: here.cached("yours") is not None)


async def test_the_number_and_the_size_of_namespaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMESPACES_MAX", 1)
    async with opened(MemoryHistory()) as namespaces:
        with pytest.raises(ApiError, match="the limit is 65536"):
            await namespaces.create(some("mine", data={"k": "x" * 70_000}))
        with pytest.raises(ApiError, match="NUL character"):
            await namespaces.create(some("a\0b"))
        await namespaces.create(some("mine"))
        with pytest.raises(Exhausted, match="the limit is 1"):
            await namespaces.create(some("yours", 2))


async def test_an_unreadable_stored_namespace_raises_an_error() -> None:
    store = MemoryHistory()
    await store.create_namespace("id", "name", b"\xc1")
    with pytest.raises(UnreadableNamespace, match="'name' can't be read"):
        await Namespaces(store, clock=Clock()).open()


async def test_concurrent_refresh_requests_share_one_refresh_that_begins_after_them() -> None:
    store = _Counted()
    async with opened(store) as namespaces:
        store.refreshes, store.may_continue = 0, asyncio.Event()
        under_way = asyncio.create_task(namespaces.refresh_after_now())
        await until(lambda: store.refreshes == 1)
        await Namespaces(store, clock=Clock()).create(some("orders"))
        later = [asyncio.create_task(namespaces.refresh_after_now()) for _ in range(100)]
        await asyncio.sleep(0)
        later[0].cancel()
        store.may_continue.set()
        await asyncio.gather(under_way, *later[1:])
        # One refresh that was running, and one for all callers since.
        assert store.refreshes == 2
        assert namespaces.cached("orders") is not None


class _Counted(MemoryHistory):
    """Counts the refreshes of all namespaces; each waits until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshes = 0
        self.may_continue = asyncio.Event()
        self.may_continue.set()

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        self.refreshes += 1
        await self.may_continue.wait()
        return await super().list_namespaces(after=after, limit=limit)
