"""A server for tests of your own workflows, in the test's process or in a child process.

    async with FairleadServer.start() as server:
        client = await server.connect()
        ...

With pytest, `pytest_plugins = ["fairlead.testing.fixtures"]` in a conftest.py provides the fixtures `fairlead_server`
and `fairlead_client`.

`start_time_skipping`, `start_time_skipping_v2` and `start_local` start the SDK's test environments on Fairlead.
"""

from fairlead.testing.clusters import FairleadClusters
from fairlead.testing.environments import start_local, start_time_skipping, start_time_skipping_v2
from fairlead.testing.server import FairleadServer

__all__ = ["FairleadClusters", "FairleadServer", "start_local", "start_time_skipping", "start_time_skipping_v2"]
