"""Fixtures for pytest: `pytest_plugins = ["fairlead.testing.fixtures"]` in the conftest.py at the root of your tests.

They need pytest and pytest-asyncio, which Fairlead does not install.
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
    """Options for `FairleadServer.run_process`; define a fixture of this name to change them."""
    return {}


@pytest.fixture(scope="session")
def fairlead_server(fairlead_options: dict[str, Any]) -> Iterator[FairleadServer]:
    """One server for all tests, in a child process; each test should use its own workflow ids and task queues."""
    with FairleadServer.run_process(**fairlead_options) as server:
        yield server


@pytest_asyncio.fixture
async def fairlead_client(fairlead_server: FairleadServer) -> "Client":
    """A client of `fairlead_server`, in the test's event loop."""
    return await fairlead_server.connect()
