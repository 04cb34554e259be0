"""Every store, opened empty for each test, and a look at what it leaves behind."""

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead.storage.contract import TaskStore
from fairlead.storage.memory import MemoryStore
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    """One empty store after the other."""
    opened: TaskStore
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "sqlite":
        opened = await SqliteStore.open(tmp_path / "tasks.db")
    else:
        opened = await PostgresStore.open(request.getfixturevalue("postgres_dsn"))
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def no_thread_survives() -> Iterator[None]:
    """Whatever a test opens, it closes."""
    before = set(threading.enumerate())
    yield
    survivors = [thread.name for thread in threading.enumerate() if thread not in before and "sqlite" in thread.name]
    assert survivors == []
