"""Stores of histories, opened empty for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.storage.history_contract import HistoryStore
from fairlead.storage.history_memory import MemoryHistory
from fairlead.storage.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    """One empty store after the other."""
    if request.param == "memory":
        yield MemoryHistory()
        return
    opened = await SqliteStore.open(tmp_path / "history.db")
    yield opened.history
    await opened.close()
