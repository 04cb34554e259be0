"""The modules that the command loads, and when: loading modules takes most of the start time.

These tests measure no times: they name each module that is loaded too early, on any machine. `python -m
benchmarks.startup` measures the times.
"""

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

import fairlead
from fairlead.cli.commands import COMMANDS
from fairlead.server import warm_up
from tests.cli.processes import ANSWER_S_MAX, run
from tests.server.test_server import http_status

# Writes the names of the modules that are loaded when "Ready" is printed to the file $MODULES.
AT_READY = """
import json, os, sys

class Out:
    def __init__(self, out):
        self._out = out
    def __getattr__(self, name):
        return getattr(self._out, name)
    def write(self, text):
        if "Ready" in text:
            with open(os.environ["MODULES"], "w") as file:
                json.dump(sorted(name for name, module in sys.modules.items() if module is not None), file)
        return self._out.write(text)

sys.stdout = Out(sys.stdout)
from fairlead.cli.main import main
main()
"""

# Modules that a development server does not need, or can load later, with the start time that each would cost.
NOT_AT_READY = (
    "fairlead.api.search.grammar",  # 80 ms
    "fairlead.frontend.http",  # 30 ms
    "fairlead.http.server",
    "fairlead.ui.app",
    "httptools",  # 10 ms
    "fairlead.replication",
    "fairlead.storage.postgres",
    "fairlead.telemetry.process_metrics",
    "google.api_core",
    "grpc",  # 20 ms
    "lark",  # 25 ms
    "matplotlib",
    "prometheus_client",  # 35 ms
    "psycopg",
    "pyspark",
    "rich",  # 45 ms
    "temporalio.bridge",  # 60 ms, with the modules that it imports
    "temporalio.client",
    "temporalio.service",
    "yaml.loader",  # 13 ms
)


async def loaded_after(code: str) -> set[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{code}\nimport json, sys; print('\\n' + json.dumps(list(sys.modules)))"), stdout=PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return set(json.loads(out.splitlines()[-1]))


@asynccontextmanager
async def start_dev(modules: Path, *arguments: str) -> AsyncIterator[dict[str, str]]:
    """Run `server start-dev`: yields its output up to "Ready", and writes the modules loaded by then to `modules`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AT_READY, "server", "start-dev", "--port", "0", *arguments),
        stdout=PIPE,
        env={**os.environ, "MODULES": str(modules)},
    )
    try:
        assert process.stdout is not None
        reported: dict[str, str] = {}
        async with asyncio.timeout(ANSWER_S_MAX):
            while not (line := (await process.stdout.readline()).decode()).startswith("Ready"):
                assert line, "it has ended"
                what, _, value = line.partition(": ")
                reported[what] = value.strip()
        yield reported
    finally:
        process.kill()
        await process.wait()


def within(names: set[str], package: str) -> set[str]:
    return {name for name in names if name == package or name.startswith(f"{package}.")}


async def test_the_version_is_printed_without_loading_any_library() -> None:
    plain = await loaded_after("import json")
    loaded = await loaded_after(
        "import sys; sys.argv = ['fairlead', '--version']; from fairlead.cli.main import main; main()"
    )
    assert loaded - plain == {"fairlead", "fairlead.cli", "fairlead.cli.main"}


async def test_the_help_loads_no_command_and_shows_the_first_line_of_each_commands_help() -> None:
    loaded = await loaded_after(
        "import sys; sys.argv = ['fairlead', '--help']; from fairlead.cli.main import main; main()"
    )
    ours = within(loaded, "fairlead") - within(loaded, "fairlead.core")
    assert ours == {"fairlead", "fairlead.cli", "fairlead.cli.main", "fairlead.cli.commands"}
    code = (
        "import json; from importlib import import_module; from fairlead.cli.commands import COMMANDS; "
        "print(json.dumps({name: getattr(import_module(f'fairlead.cli.{name}'), name).get_short_help_str(limit=64) "
        "for name in COMMANDS}))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    out, _ = await process.communicate()
    assert json.loads(out) == COMMANDS
    shown = (await run("--help")).out
    for name, help_text in COMMANDS.items():
        assert f"{name:10}{help_text}" in shown


@pytest.mark.parametrize("arguments", [(), ("--db-filename", "dev.db")])
async def test_a_server_loads_no_deferrable_module_before_it_is_ready(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modules = tmp_path / "modules.json"
    async with start_dev(modules, *arguments):
        loaded = set(json.loads(modules.read_text()))
    assert [name for name in NOT_AT_READY if within(loaded, name)] == []
    assert bool(within(loaded, "fairlead.storage.sqlite")) is bool(arguments)


async def test_a_server_serves_every_request_as_soon_as_it_is_ready(tmp_path: Path) -> None:
    """Requests also work if they need modules that load later, such as the list filter parser and the metrics."""
    async with start_dev(tmp_path / "modules.json") as reported:
        client = await Client.connect(reported["Server"])
        handle = await client.start_workflow("Order", id="order-1", task_queue="orders")
        found = [one.id async for one in client.list_workflows("WorkflowType = 'Order' AND WorkflowId IN ('order-1')")]
        assert found == ["order-1"]
        assert (await handle.describe()).workflow_type == "Order"
        metrics = reported["Metrics"].removeprefix("http://").removesuffix("/metrics")
        status, page = await http_status(metrics, "/metrics")
        assert status == 200
        assert "process_cpu_seconds_total" in page
        # The internal port is served without the gRPC library.
        admin = reported["Admin"].split()[3]
        described = await run("admin", "--address", admin, "ring", "show")
        assert (described.code, described.err) == (0, "")


async def test_deferred_modules_are_loaded_soon_after_the_start() -> None:
    code = (
        "import asyncio; from fairlead.cli.lean_imports import import_lean; import_lean(); "
        "from fairlead.server import warm_up; warm_up.WAIT_S = 0; asyncio.run(warm_up.warm_up())"
    )
    assert set(warm_up.MODULES) <= await loaded_after(code)


async def test_the_complete_sdk_can_be_imported_after_the_start() -> None:
    code = (
        "from fairlead.cli.lean_imports import import_lean; import_lean(); "
        "import sys; assert 'temporalio.service' not in sys.modules; "
        "import temporalio; assert temporalio.__version__; import temporalio.client, temporalio.worker; "
        "from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub; import rich, grpc; "
        "assert temporalio.client.Client and type(temporalio).__name__ == 'module'"
    )
    assert {"temporalio.service", "temporalio.client", "grpc", "rich"} <= await loaded_after(code)


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    """A copy of the package that has no bytecode and where no bytecode can be written.

    `__pycache__` is a file here, because root could write into a read-only folder.
    """
    package = tmp_path / "installed" / "fairlead"
    shutil.copytree(Path(fairlead.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "pipeline"))
    for folder in (package, *(path for path in package.rglob("*") if path.is_dir())):
        (folder / "__pycache__").write_text("")
    return package.parent


async def run_installed(installed: Path, **environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairlead", "--help"),
        stdout=PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), **environment},
    )
    out, _ = await process.communicate()
    assert (process.returncode, b"Usage: fairlead" in out) == (0, True)


async def test_bytecode_is_kept_in_the_users_cache_if_it_can_not_be_kept_beside_the_sources(
    read_only: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    await run_installed(read_only, XDG_CACHE_HOME=str(cache))
    kept = {path.name.partition(".")[0] for path in (cache / "fairlead" / "bytecode").rglob("*.pyc")}
    assert {"commands", "core"} <= kept


async def test_no_bytecode_is_kept_if_the_user_forbids_it_or_there_is_no_cache(read_only: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    await run_installed(read_only, XDG_CACHE_HOME=str(cache), PYTHONDONTWRITEBYTECODE="1")
    assert not cache.exists()
    # The cache folder can't be created: a file has its name.
    cache.write_text("")
    await run_installed(read_only, XDG_CACHE_HOME=str(cache))
    assert cache.read_text() == ""
