"""Fixtures that open history stores empty for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    """Runs the test once with each kind of store, empty."""
    if request.param == "memory":
        yield MemoryHistory()
        return
    opened = await SqliteStore.open(tmp_path / "history.db")
    yield opened.history
    await opened.close()
