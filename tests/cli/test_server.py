"""`fairlead server start` as a user runs it: a process that prints when it is ready, and stops on a signal."""

import asyncio
import json
import os
import resource
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.connection import connect
from fairlead.matching.messages import NewTask
from tests.cli.processes import Done, RunningServer, run, server
from tests.patience import until
from tests.server.test_server import client_of, health, http_status
from tests.storage.postgres_cluster import PostgresCluster, run_folder_of, shared_cluster
from tests.traffic import Traffic

ORDERS = TaskQueueId("default", "orders", TaskType.ACTIVITY)
CONFIG = """\
listen: 127.0.0.1:0
roles: [matching]
store: {sqlite: {file: tasks.db}}
metrics: {listen: 127.0.0.1:0}
stop: {handOver: 60s}
"""
FAILED_HEARTBEAT = 'persistence_error_with_type{operation="heartbeat"'


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "fairlead.yaml"
    file.write_text(CONFIG)
    return str(file)


def task(payload: bytes) -> NewTask:
    return NewTask(priority=3, fairness_key="", weight=1.0, payload=payload)


async def test_a_ready_server_prints_its_address_and_store_in_one_line(config: str, tmp_path: Path) -> None:
    async with server("--config", config) as started:
        assert started.ready.startswith("Fairlead is ready at 127.0.0.1:")
        assert f"SQLite file {tmp_path / 'tasks.db'}" in started.ready
        assert "metrics at http://127.0.0.1:" in started.ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_shuts_the_server_down_in_order(config: str, number: signal.Signals) -> None:
    async with server("--config", config, "--log-level", "error") as started:
        started.process.send_signal(number)
        done = await started.ended()
    assert (done.code, done.out, done.err) == (0, "", "")


async def test_two_signals_at_the_same_time_count_as_one(config: str) -> None:
    """Ctrl-C reaches all processes of a terminal, and a parent may forward it as well."""
    async with server("--config", config) as started:
        # Two different signals: a pending signal would absorb a second one of the same number.
        started.process.send_signal(signal.SIGINT)
        started.process.send_signal(signal.SIGTERM)
        done = await started.ended()
    assert done.code == 0
    assert events(done)[-1] == "stopped"


async def test_with_json_logs_every_line_of_output_is_json(tmp_path: Path) -> None:
    file = tmp_path / "json.yaml"
    file.write_text(CONFIG + "log: {format: json, level: info}\n")
    config = str(file)
    async with server("--config", config) as started:
        started.process.send_signal(signal.SIGTERM)
        done = await started.ended()
    assert events(done) == [
        "ring changed",
        "started",
        "stopping; send the signal again to stop at once",
        "ring changed",
        "stopped",
    ]
    (tmp_path / "tasks.db").write_bytes(b"no database at all" * 1000)
    done = await run("server", "start", "--config", config)
    assert (done.code, events(done)) == (2, ["not started"])


def events(done: Done) -> list[str]:
    """The events of the server's log, every line of which must be JSON."""
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert all(line["logger"] for line in lines)
    return [line["event"] for line in lines]


async def _has(address: str, status: int, path: str, text: str = "") -> bool:
    """Whether the endpoint responds with this status, and with a page that contains `text`."""
    found, page = await http_status(address, path)
    return found == status and text in page


async def _is_health(started: RunningServer, expected: int) -> bool:
    return await health(started.address) == expected


async def test_a_failing_disk_shows_in_the_log_the_metrics_and_the_health(config: str) -> None:
    async with server("--config", config) as started:
        metrics = started.ready.split("http://")[1].split("/metrics")[0]
        _, limit = resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE)
        # From now on the server can't write a byte to any file.
        resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (0, limit))
        await until(lambda: _has(metrics, 200, "/metrics", FAILED_HEARTBEAT))
        # The health changes only after several seconds of failures.
        assert (await http_status(metrics, "/healthz"))[0] == 200
        await until(lambda: _has(metrics, 503, "/healthz"))
        _, said = await http_status(metrics, "/healthz")
        assert "store unavailable since 20" in said
        await until(lambda: _is_health(started, HealthCheckResponse.NOT_SERVING))
        resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        await until(lambda: _has(metrics, 200, "/healthz"))
        await until(lambda: _is_health(started, HealthCheckResponse.SERVING))
        async with connect(started.address) as client:
            await client.add(ORDERS, task(b"kept"))
        started.process.send_signal(signal.SIGTERM)
        done = await started.ended()
    failed = [json.loads(line) for line in done.err.splitlines() if '"store failed"' in line]
    assert {line["operation"] for line in failed} == {"heartbeat"}
    assert all("disk I/O error" in line["reason"] or "disk is full" in line["reason"] for line in failed)
    assert events(done).count("store takes writes again") == 1


async def test_a_second_signal_stops_the_server_at_once(config: str, tmp_path: Path) -> None:
    async with server("--config", config, "--dynamic-config-value", 'system.membershipHeartbeatInterval="50ms"') as one:
        # Another host, so that the first waits to hand over: a minute, by its configuration.
        with closing(sqlite3.connect(tmp_path / "tasks.db")) as database, database:
            database.execute("INSERT INTO members VALUES ('127.0.0.1:1', ?)", (time.time() + 3600,))
        database.close()
        # The server reads the list of members with each heartbeat, every 50 ms.
        await asyncio.sleep(0.3)
        one.process.send_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await one.process.wait()
        one.process.send_signal(signal.SIGTERM)
        done = await one.ended()
    assert done.code == 128 + signal.SIGTERM
    assert events(done)[-1] == "stopped at once"


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    """The PostgreSQL server of this test run."""
    with shared_cluster(run_folder_of(tmp_path_factory.getbasetemp())) as cluster:
        yield cluster


async def test_hosts_on_one_database_find_each_other_and_hand_over_partitions(
    postgres: PostgresCluster, tmp_path: Path
) -> None:
    """FL-17."""
    file = tmp_path / "host.yaml"
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {postgres: {dsnEnv: DSN}}\nstop: {handOver: 1s}\n")
    counts = [f"matching.numTasklist{kind}Partitions=8" for kind in ("Read", "Write")]
    arguments = ("--config", str(file), *(part for count in counts for part in ("--dynamic-config-value", count)))
    environment = {"DSN": postgres.create_database()}
    async with server(*arguments, environment=environment) as one, server(*arguments, environment=environment) as two:
        assert "PostgreSQL database test_" in one.ready
        rings = json.loads((await run("admin", "--address", one.address, "ring", "show", "-o", "json")).out)
        assert [row["host"] for row in rings["hosts"]] == sorted([one.address, two.address])
        assert rings["headline"] == "2 hosts; all agree"
        async with client_of(one.address, two.address) as client, Traffic(client, ORDERS, pairs=2) as traffic:
            await traffic.more(30)
            one.process.send_signal(signal.SIGTERM)
            assert (await one.ended()).code == 0
            await traffic.more(30)
    assert traffic.added <= traffic.taken


async def test_acknowledged_tasks_survive_a_kill(config: str) -> None:
    async with server("--config", config) as started:
        async with client_of(started.address) as client:
            await client.add(ORDERS, task(b"kept"))
        started.process.kill()
        assert (await started.ended()).code == -signal.SIGKILL
    async with server("--config", config) as started, client_of(started.address) as client:
        assert (await client.poll(ORDERS, "worker", timeout_s=5)).task == b"kept"


async def test_dynamic_values_from_the_command_line_are_in_force(config: str) -> None:
    value = "matching.numTasklistReadPartitions=3"
    async with server("--config", config, "--dynamic-config-value", value) as started:
        async with client_of(started.address) as client:
            answer = await client.add(ORDERS, task(b"one"))
        assert answer.config.read == 3


async def test_a_database_file_in_use_by_another_process_is_reported_in_one_line(config: str, tmp_path: Path) -> None:
    async with server("--config", config) as started:
        done = await run("server", "start", "--config", config)
    assert done.code == 2
    assert done.line.startswith(f"{tmp_path / 'tasks.db'} is open already, in process {started.process.pid}: ")


async def test_a_schema_that_is_too_new_is_reported_in_one_line(config: str, tmp_path: Path) -> None:
    async with server("--config", config):
        pass
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as database, database:
        known = database.execute("SELECT max(version) FROM schema_migrations").fetchone()[0]
        for version in range(known + 1, 100):
            database.execute("INSERT INTO schema_migrations (version, name) VALUES (?, 'of the future')", (version,))
    database.close()
    done = await run("server", "start", "--config", config)
    assert done.code == 1
    assert (
        f"tasks.db has schema version 99, this release knows versions up to {known}: nothing was changed" in done.line
    )


@pytest.mark.parametrize("place", ["header", "tables", "end"])
async def test_a_damaged_database_file_is_reported_in_one_line_with_what_to_do(
    config: str, tmp_path: Path, place: str
) -> None:
    async with server("--config", config) as started:
        async with connect(started.address) as client:
            for _ in range(20):
                await client.add(ORDERS, task(b"x" * 5000))
        started.process.send_signal(signal.SIGTERM)
        await started.ended()
    file = tmp_path / "tasks.db"
    content = file.read_bytes()
    damaged = {
        "header": b"\xff" * 100 + content[100:],
        "tables": content[:100] + b"\xff" * (len(content) - 100),
        "end": content[:5000],
    }
    file.write_bytes(damaged[place])
    done = await run("server", "start", "--config", config)
    assert done.code == 2
    assert done.line.startswith(f"{file} is damaged or not a database: SQLite says ")
    assert "restore it from a backup, or move it and tasks.db-wal away" in done.line
    assert file.read_bytes() == damaged[place]


async def test_a_server_that_fails_for_its_port_creates_no_database_file(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for place in (f"listen: {address}", f"listen: 127.0.0.1:0\nmetrics: {{listen: {address}}}"):
            file = tmp_path / "taken.yaml"
            file.write_text(f"roles: [matching]\n{place}\n")
            assert (await run("server", "start", "--config", str(file))).code == 2
            assert os.listdir(tmp_path) == [file.name]  # noqa: PTH208 - nothing waits for it


async def test_an_address_of_another_machine_is_reported_as_such(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.yaml"
    file.write_text("roles: [matching]\nstore: {memory: }\nlisten: 192.0.2.1:7240\n")
    done = await run("server", "start", "--config", str(file))
    assert done.line == (
        "can't listen at 192.0.2.1:7240: Cannot assign requested address; "
        "this machine has no such address, so give one of its own as `listen`"
    )


async def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for place, said in (("listen: {}", f"can't listen at {address}"), ("metrics: {{listen: {}}}", address)):
            file = tmp_path / "taken.yaml"
            file.write_text(f"roles: [matching]\nstore: {{memory: }}\n{place.format(address)}\n")
            done = await run("server", "start", "--config", str(file))
            assert done.code == 2
            assert said in done.line
            assert "address already in use" in done.line.lower()


async def test_an_unreachable_database_is_reported_without_the_password(tmp_path: Path) -> None:
    file = tmp_path / "postgres.yaml"
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {postgres: {dsnEnv: DSN}}\n")
    dsn = "host=127.0.0.1 port=1 dbname=fairlead password=hunter2"
    done = await run("server", "start", "--config", str(file), environment={"DSN": dsn})
    assert done.code == 1
    assert done.line.startswith("no connection to PostgreSQL within 5.0 s: ")
    assert "connection refused" in done.line.lower()
    assert "hunter2" not in done.err


async def test_the_message_of_postgresql_is_reported_when_it_refuses_a_connection(
    postgres: PostgresCluster, tmp_path: Path
) -> None:
    file = tmp_path / "postgres.yaml"
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {postgres: {dsnEnv: DSN}}\n")
    dsn = f"{postgres.dsn('nodb')} password=hunter2"
    done = await run("server", "start", "--config", str(file), environment={"DSN": dsn})
    assert done.code == 1
    assert 'database "nodb" does not exist' in done.line
    assert "hunter2" not in done.err


async def test_all_mistakes_of_a_configuration_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("roles: [history]\nlisten: nowhere\n")
    done = await run("server", "start", "--config", str(file))
    assert (done.code, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert first.startswith(f'{file}:1: roles: ["history"] has history without matching')
    assert second.startswith(f"{file}:2: listen: 'nowhere' is not an address")


async def test_all_mistakes_of_the_dynamic_settings_are_reported_together(tmp_path: Path) -> None:
    dynamic, file = tmp_path / "dynamic.yaml", tmp_path / "fairlead.yaml"
    dynamic.write_text("matching.nonsense: [{value: 2}]\nmatching.spreadRoutingBatchSize: [{value: -4}]\n")
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {memory: }\ndynamicConfig: {file: dynamic.yaml}\n")
    done = await run("server", "start", "--config", str(file))
    assert done.code == 2
    assert [line.split(" ")[0] for line in done.err.splitlines()] == [f"{dynamic}:1:", f"{dynamic}:2:"]


async def test_mistakes_on_the_command_line_are_not_blamed_on_the_file(tmp_path: Path) -> None:
    (tmp_path / "dynamic.yaml").write_text("")
    file = tmp_path / "fairlead.yaml"
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {memory: }\ndynamicConfig: {file: dynamic.yaml}\n")
    wrong = [f"matching.{name}=1" for name in ("one", "two")]
    arguments = [part for value in wrong for part in ("--dynamic-config-value", value)]
    done = await run("server", "start", "--config", str(file), *arguments)
    assert done.code == 2
    assert done.line.startswith("the command line has 2 problems: ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--config", "/no/such/file"], "/no/such/file can't be read: No such file or directory"),
        (["--dynamic-config-value", "matching.rpz=1"], "'matching.rpz' is not a setting"),
        (["--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
async def test_bad_arguments_get_one_clear_line(arguments: list[str], complaint: str) -> None:
    done = await run("server", "start", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.line
