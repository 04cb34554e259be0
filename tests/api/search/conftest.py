"""Every history store, opened empty for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.storage.history import HistoryStore
from tests.storage.history.conftest import STORES, opened


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    """An empty store, of each kind in turn."""
    async with opened(request.param, tmp_path, request) as history:
        yield history
