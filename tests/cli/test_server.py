"""`fairlead server start` as a user runs it: a process that says when it is ready, and stops when it is told to."""

import asyncio
import json
import os
import resource
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.messages import NewTask
from fairlead.server import connect
from tests.cli.processes import Done, run, server
from tests.storage.postgres_cluster import PostgresCluster, run_folder_of, shared_cluster
from tests.test_server import client_of, health, http_status
from tests.traffic import Traffic

ORDERS = TaskList("default", "orders", TaskType.ACTIVITY)
CONFIG = """\
listen: 127.0.0.1:0
roles: [matching]
store: {sqlite: {file: tasks.db}}
metrics: {listen: 127.0.0.1:0}
stop: {handOver: 60s}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "fairlead.yaml"
    file.write_text(CONFIG)
    return str(file)


def task(payload: bytes) -> NewTask:
    return NewTask(priority=3, fairness_key="", weight=1.0, payload=payload)


async def test_it_says_in_one_line_where_it_is_and_what_it_uses(config: str, tmp_path: Path) -> None:
    async with server("--config", config) as started:
        assert started.ready.startswith("Fairlead is ready at 127.0.0.1:")
        assert f"SQLite file {tmp_path / 'tasks.db'}" in started.ready
        assert "metrics at http://127.0.0.1:" in started.ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_in_order(config: str, number: signal.Signals) -> None:
    async with server("--config", config, "--log-level", "error") as started:
        started.process.send_signal(number)
        done = await started.ended()
    assert (done.code, done.out, done.err) == (0, "", "")


async def test_two_signals_at_once_are_one(config: str) -> None:
    """Ctrl-C goes to all of a terminal's processes, of which a parent may send it on."""
    async with server("--config", config) as started:
        # Not the same twice: of these, one that is still waiting swallows the other.
        started.process.send_signal(signal.SIGINT)
        started.process.send_signal(signal.SIGTERM)
        done = await started.ended()
    assert done.code == 0
    assert events(done)[-1] == "stopped"


async def test_all_that_it_says_of_itself_is_json_where_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "json.yaml"
    file.write_text(CONFIG + "log: {format: json, level: info}\n")
    config = str(file)
    async with server("--config", config) as started:
        started.process.send_signal(signal.SIGTERM)
        done = await started.ended()
    assert events(done) == ["ring changed", "started", "stopping; once more to stop at once", "ring changed", "stopped"]
    (tmp_path / "tasks.db").write_bytes(b"no database at all" * 1000)
    done = await run("server", "start", "--config", config)
    assert (done.code, events(done)) == (2, ["not started"])


def events(done: Done) -> list[str]:
    """The events of its log, of which every line is JSON."""
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert all(line["logger"] for line in lines)
    return [line["event"] for line in lines]


async def test_a_disk_that_fails_is_told_by_the_log_the_metrics_and_the_health(config: str) -> None:
    async with server("--config", config) as started:
        metrics = started.ready.split("http://")[1].split("/metrics")[0]
        _, limit = resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE)
        # From now on it can't write a byte to any file.
        resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (0, limit))
        await asyncio.sleep(2)
        assert (await http_status(metrics, "/healthz"))[0] == 200
        await asyncio.sleep(5.5)
        status, said = await http_status(metrics, "/healthz")
        assert status == 503
        assert "store unavailable since 20" in said
        assert await health(started.address) == HealthCheckResponse.NOT_SERVING
        _, scraped = await http_status(metrics, "/metrics")
        assert 'persistence_error_with_type{operation="heartbeat"' in scraped
        resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        await asyncio.sleep(2)
        assert (await http_status(metrics, "/healthz"))[0] == 200
        assert await health(started.address) == HealthCheckResponse.SERVING
        async with connect(started.address) as client:
            await client.add(ORDERS, task(b"kept"))
        started.process.send_signal(signal.SIGTERM)
        done = await started.ended()
    failed = [json.loads(line) for line in done.err.splitlines() if '"store failed"' in line]
    assert {line["operation"] for line in failed} == {"heartbeat"}
    assert all("disk I/O error" in line["reason"] or "disk is full" in line["reason"] for line in failed)
    assert events(done).count("store takes writes again") == 1


async def test_a_second_signal_stops_it_at_once(config: str, tmp_path: Path) -> None:
    async with server("--config", config, "--dynamic-config-value", 'system.membershipHeartbeatInterval="50ms"') as one:
        # Somebody else to hand over to, which takes a minute by the configuration.
        with sqlite3.connect(tmp_path / "tasks.db") as database:
            database.execute("INSERT INTO members VALUES ('127.0.0.1:1', ?)", (time.time() + 3600,))
        database.close()
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
    """The one PostgreSQL server of this run of the tests."""
    with shared_cluster(run_folder_of(tmp_path_factory.getbasetemp())) as cluster:
        yield cluster


async def test_hosts_on_one_database_find_each_other_and_hand_over(postgres: PostgresCluster, tmp_path: Path) -> None:
    """Issue 3: 'A host that stops leaves the ring first and hands its partitions over without failed requests.'"""
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


async def test_what_was_acknowledged_outlives_a_kill(config: str) -> None:
    async with server("--config", config) as started:
        async with client_of(started.address) as client:
            await client.add(ORDERS, task(b"kept"))
        started.process.kill()
        assert (await started.ended()).code == -signal.SIGKILL
    async with server("--config", config) as started, client_of(started.address) as client:
        assert (await client.poll(ORDERS, "worker", timeout_s=5)).task == b"kept"


async def test_dynamic_values_of_the_command_line_are_in_force(config: str) -> None:
    value = "matching.numTasklistReadPartitions=3"
    async with server("--config", config, "--dynamic-config-value", value) as started:
        async with client_of(started.address) as client:
            answer = await client.add(ORDERS, task(b"one"))
        assert answer.config.read == 3


async def test_a_file_that_another_process_has_is_told_in_one_line(config: str, tmp_path: Path) -> None:
    async with server("--config", config) as started:
        done = await run("server", "start", "--config", config)
    assert done.code == 2
    assert done.line.startswith(f"{tmp_path / 'tasks.db'} is open already, in process {started.process.pid}: ")


async def test_a_schema_that_is_too_new_is_told_in_one_line(config: str, tmp_path: Path) -> None:
    async with server("--config", config):
        pass
    with sqlite3.connect(tmp_path / "tasks.db") as database:
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
async def test_a_damaged_file_is_told_in_one_line_with_what_to_do(config: str, tmp_path: Path, place: str) -> None:
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
    assert done.line.startswith(f"{file} is damaged, or no database: SQLite says ")
    assert "restore it from a backup, or move it and tasks.db-wal away" in done.line
    assert file.read_bytes() == damaged[place]


async def test_who_is_refused_for_a_port_leaves_no_new_file_behind(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for place in (f"listen: {address}", f"listen: 127.0.0.1:0\nmetrics: {{listen: {address}}}"):
            file = tmp_path / "taken.yaml"
            file.write_text(f"roles: [matching]\n{place}\n")
            assert (await run("server", "start", "--config", str(file))).code == 2
            assert os.listdir(tmp_path) == [file.name]  # noqa: PTH208 - nothing waits for it


async def test_an_address_of_another_machine_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.yaml"
    file.write_text("roles: [matching]\nstore: {memory: }\nlisten: 192.0.2.1:7240\n")
    done = await run("server", "start", "--config", str(file))
    assert done.line == (
        "can't listen at 192.0.2.1:7240: Cannot assign requested address; "
        "this machine has no such address, so give one of its own as `listen`"
    )


async def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
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


async def test_a_database_that_is_not_there_is_told_without_the_password(tmp_path: Path) -> None:
    file = tmp_path / "postgres.yaml"
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {postgres: {dsnEnv: DSN}}\n")
    dsn = "host=127.0.0.1 port=1 dbname=fairlead password=hunter2"
    done = await run("server", "start", "--config", str(file), environment={"DSN": dsn})
    assert done.code == 1
    assert done.line.startswith("no connection to PostgreSQL within 5.0 s: ")
    assert "connection refused" in done.line.lower()
    assert "hunter2" not in done.err


async def test_what_postgresql_says_is_told_where_it_refuses(postgres: PostgresCluster, tmp_path: Path) -> None:
    file = tmp_path / "postgres.yaml"
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {postgres: {dsnEnv: DSN}}\n")
    dsn = f"{postgres.dsn('nodb')} password=hunter2"
    done = await run("server", "start", "--config", str(file), environment={"DSN": dsn})
    assert done.code == 1
    assert 'database "nodb" does not exist' in done.line
    assert "hunter2" not in done.err


async def test_all_mistakes_of_a_configuration_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("roles: [history]\nlisten: nowhere\n")
    done = await run("server", "start", "--config", str(file))
    assert (done.code, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert first.startswith(f'{file}:1: roles: ["history"] has history without matching')
    assert second.startswith(f"{file}:2: listen: 'nowhere' is no address")


async def test_all_mistakes_of_the_dynamic_settings_are_told_at_once(tmp_path: Path) -> None:
    dynamic, file = tmp_path / "dynamic.yaml", tmp_path / "fairlead.yaml"
    dynamic.write_text("matching.nonsense: [{value: 2}]\nmatching.spreadRoutingBatchSize: [{value: -4}]\n")
    file.write_text("listen: 127.0.0.1:0\nroles: [matching]\nstore: {memory: }\ndynamicConfig: {file: dynamic.yaml}\n")
    done = await run("server", "start", "--config", str(file))
    assert done.code == 2
    assert [line.split(" ")[0] for line in done.err.splitlines()] == [f"{dynamic}:1:", f"{dynamic}:2:"]


async def test_mistakes_of_the_command_line_are_not_told_of_the_file(tmp_path: Path) -> None:
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
        (["--dynamic-config-value", "matching.rps=1"], "'matching.rps' is no setting"),
        (["--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
async def test_bad_arguments_get_one_clear_line(arguments: list[str], complaint: str) -> None:
    done = await run("server", "start", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.line
