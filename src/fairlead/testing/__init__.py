"""A server for tests of your own workflows: in the test's own process, or in a child of it.

    async with FairleadServer.start() as server:
        client = await server.connect()
        ...

With pytest, `pytest_plugins = ["fairlead.testing.fixtures"]` in a conftest.py gives the fixtures `fairlead_server` and
`fairlead_client`.
"""

from fairlead.testing.clusters import FairleadClusters
from fairlead.testing.server import FairleadServer

__all__ = ["FairleadClusters", "FairleadServer"]
