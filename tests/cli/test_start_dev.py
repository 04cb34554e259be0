"""`fairlead server start-dev` as a user runs it."""

import asyncio
import os
import re
import signal
import socket
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListClustersRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from tests.cli.processes import ANSWER_S_MAX, FAIRLEAD, Done, run
from tests.test_server import health, http_status

TEMPORAL = Path(sys.executable).with_name("temporal")


@dataclass(slots=True)
class Dev:
    """A development server that is a process."""

    process: asyncio.subprocess.Process
    banner: dict[str, str]

    @property
    def address(self) -> str:
        return self.banner["Server"]

    async def ended(self) -> Done:
        async with asyncio.timeout(ANSWER_S_MAX):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return Done(self.process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def start_dev(*arguments: str) -> AsyncIterator[Dev]:
    """Run it at a free port until the test is over."""
    process = await asyncio.create_subprocess_exec(
        *(str(FAIRLEAD), "server", "start-dev", "--port", "0", *arguments), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        banner: dict[str, str] = {}
        async with asyncio.timeout(ANSWER_S_MAX):
            while True:
                line = (await process.stdout.readline()).decode()
                if not line:
                    raise AssertionError((await process.communicate())[1].decode())
                if line.startswith("Ready"):
                    break
                what, _, told = line.partition(": ")
                banner[what] = told.strip()
        yield Dev(process, banner)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_it_tells_what_there_is_to_know_and_serves_the_default_namespace() -> None:
    async with start_dev() as dev:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", dev.address)
        assert (dev.banner["Namespaces"], dev.banner["Persistence"]) == ("default", "in memory")
        metrics = dev.banner["Metrics"].removeprefix("http://").removesuffix("/metrics")
        status, scraped = await http_status(metrics, "/metrics")
        assert status == 200
        assert "service_requests" in scraped
        assert await health(dev.address) == HealthCheckResponse.SERVING
        client = await Client.connect(dev.address)
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
        assert described.config.workflow_execution_retention_ttl.ToSeconds() == 86_400


async def test_the_official_command_line_finds_its_namespaces_and_search_attributes() -> None:
    flags = ("--namespace", "orders", "-n", "billing", "--search-attribute", "Customer=Keyword")
    async with start_dev(*flags, "--search-attribute", "Amount=Double") as dev:
        assert dev.banner["Namespaces"] == "default, orders, billing"
        for namespace in ("default", "orders", "billing"):
            client = await Client.connect(dev.address, namespace=namespace)
            found = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=namespace)
            )
            assert dict(found.custom_attributes) == {
                "Customer": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
                "Amount": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
            }
        asked = await asyncio.create_subprocess_exec(
            *(str(TEMPORAL), "operator", "namespace", "list", "--address", dev.address), stdout=PIPE, stderr=PIPE
        )
        out, err = await asked.communicate()
        assert asked.returncode == 0, err.decode()
        assert {"default", "orders", "billing"} <= set(out.decode().split())


async def test_it_is_ready_within_two_seconds_after_its_imports() -> None:
    code = (
        "import sys, time; from fairlead.cli import serving; from fairlead.server import workflows; "
        "from fairlead.cli.main import main; began = time.monotonic(); "
        "echo = serving.click.echo; "
        "serving.click.echo = lambda line: (echo(f'Took: {time.monotonic() - began}'), sys.stdout.flush()); "
        "sys.argv = ['fairlead', 'server', 'start-dev', '--port', '0', '--stop-with-input']; main()"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(ANSWER_S_MAX):
        line = (await process.stdout.readline()).decode()
        _, err = await process.communicate(b"")
    assert process.returncode == 0, err.decode()
    assert float(line.removeprefix("Took: ")) < 2.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_quietly_and_at_once(number: signal.Signals) -> None:
    async with start_dev() as dev:
        began_s = time.monotonic()
        dev.process.send_signal(number)
        done = await dev.ended()
    assert (done.code, done.out, done.err) == (0, "", "")
    assert time.monotonic() - began_s < 3


async def test_it_stops_when_its_input_ends_where_that_is_asked_for() -> None:
    async with start_dev("--stop-with-input") as dev:
        assert dev.process.stdin is not None
        dev.process.stdin.write(b"more\n")
        await dev.process.stdin.drain()
        await asyncio.sleep(0.2)
        assert dev.process.returncode is None
        dev.process.stdin.close()
        assert (await dev.ended()).code == 0


async def test_what_is_in_a_file_is_there_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "dev.db"
    async with start_dev("--db-filename", str(file), "--namespace", "orders") as dev:
        assert dev.banner["Persistence"] == f"SQLite file {file}"
        dev.process.send_signal(signal.SIGTERM)
        await dev.ended()
    async with start_dev("-f", str(file)) as dev:
        client = await Client.connect(dev.address, namespace="orders")
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="orders"))
        assert described.namespace_info.name == "orders"


async def test_flags_without_anything_behind_them_are_told_in_a_line_each() -> None:
    flags = ["--ui-port", "8233", "--ui-codec-endpoint", "http://x", "--http-port", "1", "--sqlite-pragma", "a=b"]
    unknown = ["--dynamic-config-value", "frontend.enableUpdateWorkflowExecution=true"]
    async with start_dev("--headless", *flags, *unknown) as dev:
        dev.process.send_signal(signal.SIGTERM)
        lines = (await dev.ended()).err.splitlines()
    assert [line.partition(" has no effect: ")[0] for line in lines] == [
        "--dynamic-config-value frontend.enableUpdateWorkflowExecution",
        "--ui-port",
        "--ui-codec-endpoint",
        "--http-port",
        "--sqlite-pragma",
    ]


async def test_the_configuration_is_shown_where_that_is_asked_for() -> None:
    async with start_dev("--log-config") as dev:
        dev.process.send_signal(signal.SIGTERM)
        shown = (await dev.ended()).err
    assert "frontend_listen: 127.0.0.1:0" in shown
    assert "store: MemoryConfig()" in shown


async def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = await run("server", "start-dev", "--port", port, "--db-filename", str(tmp_path / "dev.db"))
    assert done.code == 2
    assert done.line.startswith(f"can't listen at 127.0.0.1:{port}: Address already in use")
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing waits for it


async def test_a_file_of_the_reference_server_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "temporal.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE namespaces (id BLOB PRIMARY KEY)")
    database.close()
    before = file.read_bytes()
    done = await run("server", "start-dev", "--port", "0", "--db-filename", str(file))
    assert done.code == 2
    assert done.line == f"{file} is a database of something else: give the store a file of its own"
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--search-attribute", "Customer"], "--search-attribute 'Customer' is not of the form KEY=TYPE"),
        (["--search-attribute", "Customer=Number"], "has 'Number' as the type of Customer: choose Text, Keyword"),
        (["--search-attribute", "a=Int", "--search-attribute", "a=Bool"], "--search-attribute a is given twice"),
        (["--namespace", "a b"], "--namespace 'a b' is no name of a namespace"),
        (["--port", "70000"], "70000 is not in the range 0<=x<=65535"),
        (["--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warn', 'error', 'never'"),
        (["--dynamic-config-value", "matching.rps"], "is not of the form KEY=JSON"),
        (["--dynamic-config-value", "matching.numTasklistReadPartitions=-1"], "'-1' is out of bounds"),
        (["--port", "0", "--search-attribute", "RunId=Keyword"], "RunId is there in every namespace"),
        (["--port", "0", "--ip", "192.0.2.1"], "this machine has no such address"),
    ],
)
async def test_bad_arguments_get_one_clear_line(arguments: list[str], complaint: str) -> None:
    done = await run("server", "start-dev", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.line


async def test_every_flag_of_the_reference_is_taken() -> None:
    asked = await asyncio.create_subprocess_exec(TEMPORAL, "server", "start-dev", "--help", stdout=PIPE, stderr=PIPE)
    out, _ = await asked.communicate()
    flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", out.decode(), re.MULTILINE))
    assert len(flags) > 15
    code = "from fairlead.cli.start_dev import start_dev; print(*[o for p in start_dev.params for o in p.opts])"
    ours = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    out, _ = await ours.communicate()
    assert flags - set(out.decode().split()) == {"--help"}


async def test_who_asks_for_help_does_not_wait_for_the_services_to_load() -> None:
    code = (
        "import sys; from fairlead.cli.main import COMMANDS; [__import__(name) for name in COMMANDS.values()]; "
        "slow = ('temporalio', 'fairlead.frontend', 'fairlead.history'); "
        "print(*[name for name in sys.modules if name.startswith(slow)])"
    )
    asked = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    out, _ = await asked.communicate()
    assert (asked.returncode, out.decode().split()) == (0, [])


async def test_it_is_one_of_several_clusters_where_it_is_named() -> None:
    async with start_dev("--cluster-name", "a", "--remote-cluster", "b=2@127.0.0.1:1") as dev:
        assert dev.banner["Cluster"] == "a"
        client = await Client.connect(dev.address)
        listed = await client.operator_service.list_clusters(ListClustersRequest())
        assert [(one.cluster_name, one.initial_failover_version, one.address) for one in listed.clusters] == [
            ("a", 1, dev.address),
            ("b", 2, "127.0.0.1:1"),
        ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--remote-cluster", "b=2@h:1"), "--remote-cluster is given without --cluster-name"),
        (("--cluster-name", "a", "--remote-cluster", "b@h:1"), "is not of the form NAME=VERSION@HOST:PORT"),
        (("--cluster-name", "a", "--remote-cluster", "b=2@h:0"), "is no address that other hosts can call"),
        (("--cluster-name", "a", "--remote-cluster", "b=1@h:1"), "both have initial version 1"),
        (("--cluster-name", "a", "--remote-cluster", "a=2@h:1"), "is this one, and one of the remote ones"),
        (("--cluster-name", "a", *("--remote-cluster", "b=2@h:1") * 2), "--remote-cluster b is given twice"),
        (("--cluster-name", "a", "--cluster-initial-version", "10"), "below the shared increment 10"),
        (("--cluster-name", "../a"), "is no name of a cluster"),
    ],
)
async def test_clusters_that_can_not_be_told_apart_are_refused(arguments: tuple[str, ...], complaint: str) -> None:
    refused = await run("server", "start-dev", "--port", "0", *arguments)
    assert refused.code == 2
    assert complaint in refused.line
