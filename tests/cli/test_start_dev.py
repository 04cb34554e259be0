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
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListClustersRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from fairlead import __version__
from fairlead.cli.dev_server import GRACE_S, UiFlags, parse_ui
from fairlead.settings.static.config import UiConfig
from tests.cli.processes import ANSWER_S_MAX, FAIRLEAD, Done, run
from tests.frontend.http import client as web
from tests.server.test_server import health, http_status

TEMPORAL = Path(sys.executable).with_name("temporal")


@dataclass(slots=True)
class Dev:
    """A development server in its own process."""

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
    """Run it at a free port until the test ends."""
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
                what, _, reported = line.partition(": ")
                banner[what] = reported.strip()
        yield Dev(process, banner)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_dev_server_prints_its_addresses_and_serves_the_default_namespace() -> None:
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


async def test_the_official_command_line_finds_the_configured_namespaces_and_search_attributes() -> None:
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_dev_server_at_once_without_output(number: signal.Signals) -> None:
    async with start_dev() as dev:
        began_s = time.monotonic()
        dev.process.send_signal(number)
        done = await dev.ended()
    assert (done.code, done.out, done.err) == (0, "", "")
    # No call is open, so it does not wait for any.
    assert time.monotonic() - began_s < GRACE_S


async def test_a_dev_server_with_that_flag_stops_when_its_standard_input_ends() -> None:
    async with start_dev("--stop-with-input") as dev:
        assert dev.process.stdin is not None
        dev.process.stdin.write(b"more\n")
        await dev.process.stdin.drain()
        # Only time can show that a line of input does not stop the server.
        await asyncio.sleep(0.2)
        assert dev.process.returncode is None
        dev.process.stdin.close()
        assert (await dev.ended()).code == 0


async def test_data_in_a_database_file_is_there_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "dev.db"
    async with start_dev("--db-filename", str(file), "--namespace", "orders") as dev:
        assert dev.banner["Persistence"] == f"SQLite file {file}"
        dev.process.send_signal(signal.SIGTERM)
        await dev.ended()
    async with start_dev("-f", str(file)) as dev:
        client = await Client.connect(dev.address, namespace="orders")
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="orders"))
        assert described.namespace_info.name == "orders"


async def test_flags_without_effect_are_reported_in_one_line_for_each_reason() -> None:
    flags = ["--ui-disable-news-fetch", "--sqlite-pragma", "a=b"]
    async with start_dev("--headless", *flags) as dev:
        dev.process.send_signal(signal.SIGTERM)
        lines = (await dev.ended()).err.splitlines()
    assert [line.partition(" no effect: ")[0] for line in lines] == [
        "--sqlite-pragma has",
    ]


async def test_http_and_the_web_page_are_served_at_once_at_the_addresses_of_the_banner(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("the page")
    async with start_dev("--ui-asset-path", str(tmp_path), "--ui-public-path", "/page/") as dev:
        api, ui = (dev.banner[name].removeprefix("http://") for name in ("HTTP API", "Web UI"))
        ui, _, path = ui.partition("/")
        assert path == "page"
        async with web.Client(int(api.rpartition(":")[2])) as client:
            assert b"serverVersion" in (await client.send("GET", "/api/v1/system-info")).body
        async with web.Client(int(ui.rpartition(":")[2])) as client:
            assert (await client.send("GET", "/page/namespaces")).body == b"the page"
            # The server prints the console's address before its ready line, so the console must respond at once.
            assert dev.banner["Console"] == f"http://{ui}/page/console/"
            overview = await client.send("GET", "/page/console/")
            assert (overview.status, b"<h1>Overview</h1>" in overview.body) == (200, True)
        dev.process.send_signal(signal.SIGTERM)
        assert (await dev.ended()).code == 0


async def test_a_headless_server_has_no_web_page() -> None:
    async with start_dev("--headless") as dev:
        assert "Web UI" not in dev.banner


async def test_the_web_page_is_a_thousand_ports_above_the_servers_or_at_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ui_port = taken.getsockname()[1]
        if ui_port <= 2_000:
            pytest.skip("the system gave a low port")
        config = parse_ui(UiFlags(None, None, None, None, None), ip="127.0.0.1", port=ui_port - 1_000)
        assert config.port == 0
    assert parse_ui(UiFlags(None, None, None, None, None), ip="127.0.0.1", port=ui_port - 1_000).port == ui_port
    assert parse_ui(UiFlags(None, None, None, None, None), ip="127.0.0.1", port=65_000).port == 0
    assert parse_ui(UiFlags(7, "::1", None, None, None), ip="127.0.0.1", port=1) == UiConfig("::1", 7)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--ui-asset-path", "nowhere"], "--ui-asset-path nowhere: there is no index.html"),
        (["--ui-public-path", "x y"], "--ui-public-path is not a path: write it like /temporal"),
        (["--ui-public-path", '/"><script>'], "--ui-public-path is not a path"),
        (["--ui-codec-endpoint", "codec"], "--ui-codec-endpoint is not a URL"),
    ],
)
async def test_wrong_flags_of_the_web_page_are_reported(flags: list[str], complaint: str) -> None:
    done = await run("server", "start-dev", "--port", "0", *flags)
    assert (done.code, complaint in done.line) == (2, True)


async def test_dynamic_settings_without_effect_are_reported_in_one_line() -> None:
    """The settings that SDK tests pass are reported in one line, not in one line each."""
    # The tests of Temporal's Python SDK start their server with keys like these.
    keys = (
        "frontend.enableExecuteMultiOperation",
        "frontend.workerVersioningDataAPIs",
        "system.forceSearchAttributesCacheRefreshOnRead",
        "component.callbacks.unheardOf",
        "matching.numTasklistReadPartition",
    )
    async with start_dev(*(part for key in keys for part in ("--dynamic-config-value", f"{key}=true"))) as dev:
        dev.process.send_signal(signal.SIGTERM)
        (line,) = (await dev.ended()).err.splitlines()
    assert line.startswith("--dynamic-config-value ")
    for key in keys:
        assert key in line
    # The last key is a misspelled setting of Fairlead.
    assert line.count("did you mean") == 1
    assert "(did you mean matching.numTasklistReadPartitions?)" in line
    assert "have no effect here" in line


async def test_the_first_line_is_printed_before_any_service_is_loaded(tmp_path: Path) -> None:
    """The command prints its first line at once."""
    # Importing a part of the server ends the process.
    code = (
        "import sys\n"
        "class Loads:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('fairlead.server', 'fairlead.settings', 'structlog', 'temporalio', 'asyncio')):\n"
        "            raise SystemExit(f'loads {name}')\n"
        "sys.meta_path.insert(0, Loads())\n"
        "from fairlead.cli.main import main\n"
        "main()\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "server", "start-dev", "--port", "7000", "-f", "dev.db"),
        stdout=PIPE,
        stderr=PIPE,
        cwd=tmp_path,
    )
    out, err = await process.communicate()
    assert out.decode() == f"Fairlead {__version__} is starting at 127.0.0.1:7000, SQLite file dev.db.\n"
    assert "loads " in err.decode()


async def test_the_configuration_is_shown_on_request() -> None:
    async with start_dev("--log-config") as dev:
        dev.process.send_signal(signal.SIGTERM)
        shown = (await dev.ended()).err
    assert "frontend_listen: 127.0.0.1:0" in shown
    assert "store: MemoryConfig()" in shown


async def test_a_port_that_is_taken_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = await run("server", "start-dev", "--port", port, "--db-filename", str(tmp_path / "dev.db"))
    assert done.code == 2
    assert done.line == (
        f"can't listen at 127.0.0.1:{port}: Address already in use; stop what listens there, or choose another `--port`"
    )
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing waits for it


async def test_an_unusable_value_is_reported_with_its_flag_and_as_it_was_given(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = {
            ("--metrics-port", port): f"metrics can't be served at 127.0.0.1:{port}: Address already in use; "
            "stop what listens there, or choose another `--metrics-port`",
            ("--ip", "192.0.2.1"): "can't listen at 192.0.2.1:0: Cannot assign requested address; "
            "this machine has no such address, so give one of its own as `--ip`",
            ("-f", "no/such/dev.db"): "--db-filename no/such/dev.db: there is no folder no/such; "
            "make it, or give another file (see 'fairlead server start-dev --help')",
            ("-f", "."): "--db-filename . is a folder: give a file (see 'fairlead server start-dev --help')",
            ("--journal", "/proc/none"): "can't keep a journal in /proc/none: No such file or directory; "
            "choose another `--journal`",
        }
        found = await asyncio.gather(
            *(run("server", "start-dev", "--port", "0", *flags, folder=tmp_path) for flags in refused)
        )
    assert [done.line for done in found] == list(refused.values())
    assert {done.code for done in found} == {2}
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing waits for it


async def test_a_store_of_another_cluster_is_refused_with_the_flags_to_give(tmp_path: Path) -> None:
    file = str(tmp_path / "dev.db")
    async with start_dev("-f", file, "--cluster-name", "east", "--cluster-initial-version", "2") as dev:
        dev.process.send_signal(signal.SIGTERM)
        await dev.ended()
    refused = await run("server", "start-dev", "--port", "0", "-f", file)
    assert refused.line == (
        "this store belongs to cluster east, which can't be changed: "
        "give --cluster-name east --cluster-initial-version 2 --cluster-increment 10"
    )


async def test_a_file_of_the_reference_server_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "temporal.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE namespaces (id BLOB PRIMARY KEY)")
    database.close()
    before = file.read_bytes()
    done = await run("server", "start-dev", "--port", "0", "--db-filename", str(file))
    assert done.code == 2
    assert done.line == f"{file} is another program's database: use a separate file for the store"
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--search-attribute", "Customer"], "--search-attribute 'Customer' is not of the form KEY=TYPE"),
        (["--search-attribute", "Customer=Number"], "has 'Number' as the type of Customer: choose Text, Keyword"),
        (["--search-attribute", "a=Int", "--search-attribute", "a=Bool"], "--search-attribute a is given twice"),
        (["--namespace", "a b"], "--namespace 'a b' is not a valid namespace name"),
        (["--port", "70000"], "70000 is not in the range 0<=x<=65535"),
        (["--log-level", "loud"], "'loud' is not one of 'debug', 'info', 'warn', 'error', 'never'"),
        (["--dynamic-config-value", "matching.rps"], "is not of the form KEY=JSON"),
        (["--dynamic-config-value", "matching.numTasklistReadPartitions=-1"], "'-1' is out of bounds"),
        (["--port", "0", "--search-attribute", "RunId=Keyword"], "RunId exists in every namespace"),
        (["--port", "0", "--ip", "192.0.2.1"], "this machine has no such address"),
    ],
)
async def test_bad_arguments_get_one_clear_line(arguments: list[str], complaint: str) -> None:
    done = await run("server", "start-dev", *arguments)
    assert done.code == 2
    # The command prints at most its first line, which says what it starts.
    assert done.out.count("\n") <= 1
    assert complaint in done.line


async def test_every_flag_of_the_reference_server_is_accepted() -> None:
    asked = await asyncio.create_subprocess_exec(TEMPORAL, "server", "start-dev", "--help", stdout=PIPE, stderr=PIPE)
    out, _ = await asked.communicate()
    flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", out.decode(), re.MULTILINE))
    assert len(flags) > 15
    code = "from fairlead.cli.start_dev import start_dev; print(*[o for p in start_dev.params for o in p.opts])"
    ours = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    out, _ = await ours.communicate()
    assert flags - set(out.decode().split()) == {"--help"}


async def test_the_help_does_not_load_the_services() -> None:
    code = (
        "import sys; from fairlead.cli.commands import COMMANDS; [__import__(f'fairlead.cli.{n}') for n in COMMANDS]; "
        "slow = ('temporalio', 'fairlead.frontend', 'fairlead.history'); "
        "print(*[name for name in sys.modules if name.startswith(slow)])"
    )
    asked = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    out, _ = await asked.communicate()
    assert (asked.returncode, out.decode().split()) == (0, [])


async def test_a_dev_server_with_a_cluster_name_can_connect_to_other_clusters() -> None:
    async with start_dev("--cluster-name", "a", "--remote-cluster", "b=2@127.0.0.1:1") as dev:
        assert dev.banner["Cluster"] == "a"
        client = await Client.connect(dev.address)
        listed = await client.operator_service.list_clusters(ListClustersRequest())
        assert [(one.cluster_name, one.initial_failover_version, one.address) for one in listed.clusters] == [
            ("a", 1, dev.address),
            ("b", 2, "127.0.0.1:1"),
        ]
        assert f"http://{listed.clusters[0].http_address}" == dev.banner["HTTP API"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--remote-cluster", "b=2@h:1"), "--remote-cluster is given without --cluster-name"),
        (("--cluster-name", "a", "--remote-cluster", "b@h:1"), "is not of the form NAME=VERSION@HOST:PORT"),
        (("--cluster-name", "a", "--remote-cluster", "b=2@h:0"), "is not an address that other hosts can call"),
        (("--cluster-name", "a", "--remote-cluster", "b=1@h:1"), "both have initial version 1"),
        (("--cluster-name", "a", "--remote-cluster", "a=2@h:1"), "is this cluster and also a remote one"),
        (("--cluster-name", "a", *("--remote-cluster", "b=2@h:1") * 2), "--remote-cluster b is given twice"),
        (("--cluster-name", "a", "--cluster-initial-version", "10"), "below the shared increment 10"),
        (("--cluster-name", "../a"), "is not a valid cluster name"),
    ],
)
async def test_clusters_with_clashing_failover_versions_are_refused(arguments: tuple[str, ...], complaint: str) -> None:
    refused = await run("server", "start-dev", "--port", "0", *arguments)
    assert refused.code == 2
    assert complaint in refused.line
