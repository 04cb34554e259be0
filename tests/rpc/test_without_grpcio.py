"""Servers, clients and commands of Fairlead work where grpcio is not installed; only Spark Connect needs it."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import fairlead
from tests.patience import PATIENCE_S

SOURCE = Path(fairlead.__file__).parent
MISSING = ("grpc", "grpc_health", "grpc_reflection", "grpc_status")

IMPORT_ALL = """
import importlib, pkgutil
import fairlead
for module in pkgutil.walk_packages(fairlead.__path__, "fairlead."):
    if not module.name.startswith("fairlead.pipeline") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""

RUN_WORKFLOW = """
import asyncio
from fairlead.testing import FairleadServer

async def main():
    async with FairleadServer.start() as server:
        client = await server.connect()
        await client.start_workflow("Some", id="a", task_queue="q")
        assert (await client.get_workflow_handle("a").describe()).id == "a"

asyncio.run(main())
"""

ADD_TASK = """
import asyncio, sys
from fairlead.client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        await client.add("q", b"payload")
        task = await client.poll("q", timeout_s=30)
        assert task.payload == b"payload"

asyncio.run(main())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing grpcio fails, here and in every process that is started from it."""
    for name in MISSING:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(SOURCE.parent)))}


@pytest.mark.parametrize("script", [IMPORT_ALL, RUN_WORKFLOW])
def test_everything_but_the_pipeline_works_without_grpcio(environment: dict[str, str], script: str) -> None:
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)  # noqa: S603


def test_the_public_client_and_the_commands_work_without_grpcio(environment: dict[str, str], tmp_path: Path) -> None:
    listen, frontend = (f"127.0.0.1:{port}" for port in _free_ports(2))
    config = tmp_path / "fairlead.yaml"
    config.write_text(f"listen: {listen}\nfrontend:\n  listen: {frontend}\nstore:\n  memory: {{}}\n")
    command = [sys.executable, "-m", "fairlead"]
    with subprocess.Popen([*command, "server", "start", "--config", str(config)], env=environment) as server:  # noqa: S603
        try:
            _await(listen)
            subprocess.run([sys.executable, "-c", ADD_TASK, listen], env=environment, check=True, timeout=120)  # noqa: S603
            ring = [*command, "admin", "ring", "show", "--address", listen]
            shown = subprocess.run(ring, env=environment, check=True, timeout=120, capture_output=True, text=True)  # noqa: S603
            assert listen in shown.stdout
        finally:
            server.terminate()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def _await(address: str) -> None:
    host, _, port = address.rpartition(":")
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"no server at {address}")
