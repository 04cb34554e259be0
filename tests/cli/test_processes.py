"""`fairlead server start --processes N` as a user runs it: one port, several processes that come and go under load.

Every test starts real processes and waits for their ring, which takes seconds.
"""

import asyncio
import os
import re
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import psycopg
import pytest
import temporalio.api.workflowservice.v1 as api
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue

from tests.cli.processes import MARK, RunningServer, left_behind, run, running, server
from tests.patience import PATIENCE_S
from tests.server.test_server import http_status
from tests.storage.postgres_cluster import PostgresCluster, run_folder_of, shared_cluster

PROCESSES = 2
START = "/temporal.api.workflowservice.v1.WorkflowService/StartWorkflowExecution"
CONFIG = """\
listen: 127.0.0.1:0
frontend: {listen: 127.0.0.1:0}
store: {postgres: {dsnEnv: DSN}}
metrics: {listen: 127.0.0.1:0}
history: {shards: 16}
log: {format: json}
stop: {handOver: 1s, grace: 10s}
"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    with shared_cluster(run_folder_of(tmp_path_factory.getbasetemp())) as cluster:
        yield cluster


class Processes:
    """A supervisor with its processes."""

    def __init__(self, started: RunningServer, mark: str, dsn: str) -> None:
        self.started = started
        self.mark = mark
        self.dsn = dsn
        self.supervisor = started.process.pid
        self._log: list[str] = []
        self.reading = asyncio.create_task(self._read())

    @property
    def frontend(self) -> str:
        return self._said(r"SDKs connect to ([^,]+),")

    @property
    def metrics(self) -> str:
        return self._said(r"metrics at http://([^/]+)/metrics")

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the hosts by number."""
        found = {}
        for pid, command in running(self.mark).items():
            if number := re.search(r"--process (\d+)", command):
                found[int(number[1])] = pid
        return found

    @property
    def log(self) -> str:
        return "".join(self._log)

    async def page(self) -> str:
        reader, writer = await asyncio.open_connection(*self.metrics.rsplit(":", 1))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        content = (await reader.read()).decode()
        writer.close()
        return content

    async def stored(self) -> set[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            found = await connection.execute("SELECT workflow_id FROM history_currents")
            return {workflow_id for (workflow_id,) in await found.fetchall()}

    async def _read(self) -> None:
        assert self.started.process.stderr is not None
        while line := await self.started.process.stderr.readline():
            self._log.append(line.decode())

    def _said(self, pattern: str) -> str:
        found = re.search(pattern, self.started.ready)
        assert found, self.started.ready
        return found[1]


@asynccontextmanager
async def processes(postgres: PostgresCluster, tmp_path: Path) -> AsyncIterator[Processes]:
    file = tmp_path / "hosts.yaml"
    file.write_text(CONFIG)
    mark, dsn = uuid.uuid4().hex, postgres.create_database()
    arguments = ("--config", str(file), "--processes", str(PROCESSES))
    async with server(*arguments, environment={"DSN": dsn, MARK: mark}) as started:
        there = Processes(started, mark, dsn)
        try:
            yield there
        finally:
            for pid in running(mark):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not left_behind(mark))
            await there.reading


class Load:
    """Starts workflows over several connections all the time; knows which were acknowledged, and which calls failed."""

    def __init__(self, address: str, *, connections: int = 4, callers: int = 12) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels: list[Any] = [grpc.aio.insecure_channel(address, options=options) for _ in range(connections)]
        self._callers = callers
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self.acknowledged: list[str] = []
        self.failures: list[grpc.aio.AioRpcError] = []

    async def __aenter__(self) -> Self:
        calls: list[Any] = [channel.unary_unary(START) for channel in self._channels]
        self._tasks = [asyncio.create_task(self._call(calls[number % len(calls)])) for number in range(self._callers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        for channel in self._channels:
            await channel.close()

    async def more(self, starts: int) -> None:
        """Wait until more starts were acknowledged."""
        wanted = len(self.acknowledged) + starts
        await until(lambda: len(self.acknowledged) >= wanted)

    async def _call(self, call: Any) -> None:
        while not self._is_over:
            workflow_id = f"w-{uuid.uuid4()}"
            request = api.StartWorkflowExecutionRequest(
                namespace="default",
                workflow_id=workflow_id,
                workflow_type=WorkflowType(name="Nothing"),
                task_queue=TaskQueue(name="nobody"),
                request_id=workflow_id,
                identity="test",
            )
            try:
                await call(request.SerializeToString(), timeout=60)
            except grpc.aio.AioRpcError as failed:
                self.failures.append(failed)
                await asyncio.sleep(0.05)
            else:
                self.acknowledged.append(workflow_id)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - other processes have no event to wait for
            await asyncio.sleep(0.02)


async def test_a_process_that_is_killed_under_load_comes_back_and_nothing_acknowledged_is_lost(
    postgres: PostgresCluster, tmp_path: Path
) -> None:
    async with processes(postgres, tmp_path) as there:
        assert ": 2 processes (127.0.0.1:" in there.started.ready
        before = there.pids
        assert sorted(before) == [0, 1]
        async with Load(there.frontend) as load:
            await load.more(50)
            os.kill(before[0], signal.SIGKILL)
            await until(lambda: '"process died, starting it again"' in there.log)
            # The other process still serves calls.
            await load.more(50)
            await until(lambda: there.pids.get(0) not in (None, before[0]))
            await until(lambda: there.log.count('"process serves"') == 3)
            await load.more(50)
        assert set(load.acknowledged) <= await there.stored()
        assert '"reason": "killed by SIGKILL"' in there.log
        assert f'"pid": {before[0]}' in there.log
        page = await there.page()
        assert 'process_restarts{process="0"} 1\n' in page
        assert 'process_restarts{process="1"} 0\n' in page
        assert 'process_up{process="0"} 1\n' in page
        # Both hosts count their calls, and every metric has one head.
        pattern = r'^service_requests{process="(\d)",.*operation="StartWorkflowExecution"} (\d+)$'
        calls = re.findall(pattern, page, re.MULTILINE)
        assert {process for process, count in calls if int(count)} == {"0", "1"}
        assert page.count("# TYPE service_requests ") == 1
        assert (await http_status(there.metrics, "/healthz"))[0] == 200


async def test_processes_restart_one_by_one_under_load_without_a_failed_call_and_stop_one_by_one(
    postgres: PostgresCluster, tmp_path: Path
) -> None:
    async with processes(postgres, tmp_path) as there:
        before = there.pids
        async with Load(there.frontend) as load:
            await load.more(50)
            os.kill(there.supervisor, signal.SIGHUP)
            await until(lambda: '"rolling restart done"' in there.log)
            await load.more(50)
            # Connections of the process that restarted first move to the one that restarted last.
            await until(lambda: _is_balanced(there))
            await load.more(50)
        assert load.failures == []
        assert not set(before.values()) & set(there.pids.values())
        assert set(load.acknowledged) <= await there.stored()
        os.kill(there.supervisor, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await there.started.process.wait() == 0
        assert left_behind(there.mark) == []
        stops = re.findall(r'"event": "(stopping process|stopped)"', there.log)
        assert stops[-4:] == ["stopping process", "stopped"] * 2


def _is_balanced(there: Processes) -> bool:
    """Whether both processes have established connections to the frontend's port."""
    port = int(there.frontend.rsplit(":", 1)[1])
    return all(_connections(pid, port) for pid in there.pids.values()) and len(there.pids) == PROCESSES


def _connections(pid: int, port: int) -> int:
    """Number of connections from the port that a process has."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(entry.readlink().name)
        except OSError:
            continue
    found = 0
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        found += int(local.rsplit(":", 1)[1], 16) == port and state == "01" and f"socket:[{inode}]" in inodes
    return found


async def test_processes_stop_when_their_supervisor_is_killed(postgres: PostgresCluster, tmp_path: Path) -> None:
    async with processes(postgres, tmp_path) as there:
        assert len(there.pids) == PROCESSES
        os.kill(there.supervisor, signal.SIGKILL)
        await until(lambda: not left_behind(there.mark))
        assert there.log.count('"event": "stopped"') == PROCESSES


async def test_several_processes_need_postgresql(tmp_path: Path) -> None:
    done = await run("server", "start", "--processes", "2", folder=tmp_path)
    assert done.code == 2
    assert "--processes 2 needs a PostgreSQL store" in done.line
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - an async function


async def test_a_port_for_sdks_that_is_taken_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        file = tmp_path / "hosts.yaml"
        file.write_text(
            CONFIG.replace(
                "frontend: {listen: 127.0.0.1:0}", f"frontend: {{listen: 127.0.0.1:{taken.getsockname()[1]}}}"
            )
        )
        done = await run("server", "start", "--config", str(file), "--processes", "2", environment={"DSN": "host=none"})
    assert done.code == 2
    assert "frontend.listen" in done.line


async def test_a_process_that_can_not_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(CONFIG)
    mark = uuid.uuid4().hex
    environment = {"DSN": "host=127.0.0.1 port=1 dbname=none", MARK: mark}
    done = await run("server", "start", "--config", str(file), "--processes", "2", environment=environment)
    assert done.code == 1
    assert "is it running" in done.err
    assert "ended before it was ready (exit code 1)" in done.err
    assert left_behind(mark) == []
