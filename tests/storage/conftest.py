"""Fixtures that open every store empty for each test, and close what a test leaves open."""

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.tasks import TaskStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    """Runs the test once with each kind of store, empty."""
    opened: TaskStore
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "sqlite":
        opened = await SqliteStore.open(tmp_path / "tasks.db")
    else:
        opened = await PostgresStore.open(request.getfixturevalue("migrated_dsn"))
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def no_thread_survives() -> Iterator[None]:
    """Opens stores; closes all of them after the test."""
    before = set(threading.enumerate())
    yield
    survivors = [thread.name for thread in threading.enumerate() if thread not in before and "sqlite" in thread.name]
    assert survivors == []
