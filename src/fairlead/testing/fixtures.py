"""Fixtures for pytest: `pytest_plugins = ["fairlead.testing.fixtures"]` in the conftest.py at the root of your tests.

They need pytest and pytest-asyncio, which are yours to install.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from fairlead.testing.server import FairleadServer

if TYPE_CHECKING:
    from temporalio.client import Client


@pytest.fixture(scope="session")
def fairlead_options() -> dict[str, Any]:
    """What `FairleadServer.run_process` is given; define a fixture of this name to change it."""
    return {}


@pytest.fixture(scope="session")
def fairlead_server(fairlead_options: dict[str, Any]) -> Iterator[FairleadServer]:
    """One server for all tests, in a child process: each test uses workflow ids and task queues of its own."""
    with FairleadServer.run_process(**fairlead_options) as server:
        yield server


@pytest_asyncio.fixture
async def fairlead_client(fairlead_server: FairleadServer) -> "Client":
    """A client of that server, in the event loop of the test."""
    return await fairlead_server.connect()
