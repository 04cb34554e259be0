"""The two clusters of the demonstration: one process and one store each; they can be killed and restarted."""

import asyncio
import re
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.duration_pb2 import Duration
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError

from fairlead.cli.admin.cluster import connect
from fairlead.cli.demo.server import READY_S_MAX, NoServer, Running, stop
from fairlead.replication.failover import FAIL_OVER
from fairlead.replication.messages import FailOverRequest

NAMES = ("east", "west")
NAMESPACE = "shipping"
INCREMENT = 10
RETENTION_S = 86_400
KNOWN_S_MAX = 30.0
POLL_S = 0.05
_READY = re.compile(r"ready at (\S+): SDKs connect to (\S+),")


class Clusters:
    """Both clusters, at fixed addresses that each has in its configuration."""

    def __init__(self, folder: Path, journal: Path) -> None:
        self._folder = folder
        self._journal = journal
        self._addresses = dict(zip(NAMES, _free_addresses(len(NAMES)), strict=True))
        self._processes: dict[str, Process] = {}
        self.running: dict[str, Running] = {}
        # Suppress the SDK's logs: connection errors during a failover are expected.
        self._runtime = Runtime(telemetry=TelemetryConfig(logging=None))

    async def start(self, name: str) -> None:
        """Start a cluster, with the data in its store."""
        config = self._folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(self._config(name)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fairlead", "server", "start", "--config", str(config)),
            *("--stop-with-input", "--log-level", "error"),
            # The server stops when this pipe closes, so it also ends if this process is killed.
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        self._processes[name] = process
        self.running[name] = await _ready(process, name)

    async def kill(self, name: str) -> None:
        """Kill a cluster, like a power failure."""
        process = self._processes.pop(name)
        del self.running[name]
        process.kill()
        await process.communicate()

    async def stop(self) -> None:
        """Stop the running clusters cleanly."""
        await asyncio.gather(*(stop(process) for process in self._processes.values()))

    async def client(self, name: str) -> Client:
        """Connect a client of Temporal's SDK."""
        return await Client.connect(self._addresses[name], namespace=NAMESPACE, runtime=self._runtime)

    async def share(self) -> None:
        """Register a global namespace in both clusters, active in the first."""
        client = await self.client(NAMES[0])
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace=NAMESPACE,
                workflow_execution_retention_period=Duration(seconds=RETENTION_S),
                is_global_namespace=True,
                active_cluster_name=NAMES[0],
                clusters=[ClusterReplicationConfig(cluster_name=name) for name in NAMES],
            )
        )
        await self.until_active(NAMES[0])

    async def fail_over(self, to: str, *, is_graceful: bool) -> int:
        """Make a cluster active, like `fairlead admin failover`; return its failover version."""
        request = FailOverRequest(NAMESPACE, to, is_graceful, KNOWN_S_MAX)
        async with connect(self.running[to].admin_address, timeout_s=KNOWN_S_MAX) as cluster:
            version = (await cluster.ask(FAIL_OVER, request)).failover_version
        await self.until_active(to)
        return version

    async def until_active(self, name: str) -> None:
        """Wait until all running clusters know which one is active."""
        async with asyncio.timeout(KNOWN_S_MAX):
            for each in list(self.running):
                client = await self.client(each)
                while await _active(client) != name:  # noqa: ASYNC110 - another process changes it
                    await asyncio.sleep(POLL_S)

    def _config(self, name: str) -> dict[str, Any]:
        versions = {each: number for number, each in enumerate(NAMES, 1)}
        remotes = {
            each: {"initialVersion": versions[each], "address": self._addresses[each]} for each in NAMES if each != name
        }
        return {
            "frontend": {"listen": self._addresses[name]},
            "listen": "127.0.0.1:0",
            "store": {"sqlite": {"file": str(self._folder / f"{name}.db")}},
            "journal": {"folder": str(self._journal.resolve()), "payloads": True},
            "stop": {"handOver": "0s", "grace": "1s"},
            "cluster": {
                "name": name,
                "initialVersion": versions[name],
                "increment": INCREMENT,
                "remotes": remotes,
            },
        }


@asynccontextmanager
async def clusters(folder: Path, journal: Path) -> AsyncIterator[Clusters]:
    """Run both clusters until the block ends, with their files in `folder`."""
    both = Clusters(folder, journal)
    try:
        await asyncio.gather(*map(both.start, NAMES))
        await both.share()
        yield both
    finally:
        await asyncio.shield(both.stop())


async def _ready(process: Process, name: str) -> Running:
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    try:
        async with asyncio.timeout(READY_S_MAX):
            while line := (await process.stdout.readline()).decode():
                if found := _READY.search(line):
                    return Running(found[2], found[1])
    except TimeoutError:
        raise NoServer(f"cluster {name} was not ready within {READY_S_MAX:g} s: is the machine very busy?") from None
    raise NoServer(f"cluster {name} ended before it was ready")


async def _active(client: Client) -> str:
    try:
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    except RPCError:
        return ""
    return described.replication_config.active_cluster_name


def _free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()
