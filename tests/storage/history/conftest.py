"""Every history store, opened empty for each test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.storage.history_contract import HistoryStore
from fairlead.storage.history_memory import MemoryHistory
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.sqlite import SqliteStore

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
        store = await PostgresStore.open(request.getfixturevalue("postgres_dsn"))
    yield store.history
    await store.close()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    """One empty store after the other."""
    async with opened(request.param, tmp_path, request) as history:
        yield history


@pytest.fixture
async def all_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[HistoryStore]]:
    """All of them side by side, to be compared."""
    async with (
        opened("memory", tmp_path, request) as memory,
        opened("sqlite", tmp_path, request) as sqlite,
        opened("postgres", tmp_path, request) as postgres,
    ):
        yield [memory, sqlite, postgres]
