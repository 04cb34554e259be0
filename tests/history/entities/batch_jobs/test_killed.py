"""A batch job whose server is killed continues after the restart, and counts each workflow once."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.client import Client

from tests.history.entities.batch_jobs.jobs import COMPLETED, begin, counts, describe, ended, start_many, statuses
from tests.patience import PATIENCE_S

READY_S_MAX = PATIENCE_S


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    command += ["--port", str(port), "--db-filename", str(folder / "server.db"), "--log-level", "error"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603


async def _connect(port: int) -> Client:
    async with asyncio.timeout(READY_S_MAX):
        while True:
            try:
                return await Client.connect(f"127.0.0.1:{port}")
            except RuntimeError:
                await asyncio.sleep(0.1)


async def _until_complete(client: Client, count: int) -> None:
    while True:
        if (await describe(client, "job")).complete_operation_count >= count:
            return
        await asyncio.sleep(0.02)


async def test_a_job_continues_after_its_server_was_killed(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    server = _start(tmp_path, port)
    try:
        client = await _connect(port)
        ids = await start_many(client, 9)
        named = [WorkflowExecution(workflow_id=each) for each in ids]
        await begin(client, "job", executions=named, max_operations_per_second=2)
        for killed_after in (2, 5):
            async with asyncio.timeout(READY_S_MAX):
                await _until_complete(client, killed_after)
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = _start(tmp_path, port)
            client = await _connect(port)
        answer = await ended(client, "job")
        assert (answer.state, counts(answer)) == (COMPLETED, (9, 9, 0))
        assert set((await statuses(client)).values()) == {"TERMINATED"}
    finally:
        server.kill()
        server.wait()
