"""Fixtures that open every history store empty for each test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.sqlite import SqliteStore
from tests.storage.history.hosts import OpenStore

STORES = ["memory", "sqlite", "postgres"]


@asynccontextmanager
async def opened(name: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[HistoryStore]:
    if name == "memory":
        memory = MemoryHistory()
        yield memory
        await memory.close()
        return
    store: SqliteStore | PostgresStore
    if name == "sqlite":
        store = await SqliteStore.open(folder / "history.db")
    else:
        store = await PostgresStore.open(request.getfixturevalue("migrated_dsn"))
    yield store.history
    await store.close()


@pytest.fixture
async def open_store(postgres_dsn: str) -> AsyncIterator[OpenStore]:
    """Opens one more store on the test's database of PostgreSQL; each is another host."""
    stores: list[PostgresStore] = []

    async def open_one(dsn: str = postgres_dsn, **options: Any) -> PostgresStore:
        stores.append(await PostgresStore.open(dsn, application_name=f"host{len(stores)}", **options))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    """Runs the test once with each kind of history store, empty."""
    async with opened(request.param, tmp_path, request) as history:
        yield history


@pytest.fixture
async def all_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[HistoryStore]]:
    """All kinds of history stores side by side, to compare them."""
    async with (
        opened("memory", tmp_path, request) as memory,
        opened("sqlite", tmp_path, request) as sqlite,
        opened("postgres", tmp_path, request) as postgres,
    ):
        yield [memory, sqlite, postgres]
