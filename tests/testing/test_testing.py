"""`fairlead.testing`, as users' own tests use it."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.settings import InvalidValue
from fairlead.testing import FairleadServer, start_local, start_time_skipping
from fairlead.testing.child import ChildFailed, child
from fairlead.testing.environments import CommandMissing, command_path
from tests.patience import PATIENCE_S


@workflow.defn
class Greeting:
    """The smallest workflow."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Greet."""
        return f"hello {name}"


async def greet(server: FairleadServer, *, workflow_id: str = "greeting") -> str:
    client = await server.connect()
    async with Worker(
        client, task_queue="greetings", workflows=[Greeting], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        async with asyncio.timeout(20):
            return await client.execute_workflow(Greeting.run, "world", id=workflow_id, task_queue="greetings")


async def test_a_server_in_the_tests_own_process_runs_workflows() -> None:
    async with FairleadServer.start() as server:
        assert await greet(server) == "hello world"


async def test_a_server_in_a_child_process_runs_workflows_and_ends_with_the_block() -> None:
    async with FairleadServer.start_process() as server:
        assert await greet(server) == "hello world"
    with pytest.raises((RPCError, RuntimeError)):
        await server.connect()


@pytest.mark.parametrize("start", [start_local, start_time_skipping])
async def test_the_environments_of_the_sdk_run_on_our_servers(
    start: Callable[[], Awaitable[WorkflowEnvironment]],
) -> None:
    async with await start() as env:
        assert env.supports_time_skipping is (start is start_time_skipping)
        async with Worker(
            env.client, task_queue="greetings", workflows=[Greeting], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            greeting = env.client.execute_workflow(Greeting.run, "world", id="greeting", task_queue="greetings")
            assert await asyncio.wait_for(greeting, 20) == "hello world"


def test_a_missing_command_is_named_in_the_error() -> None:
    with pytest.raises(CommandMissing, match=r"fairlead-nothing .* install fairlead again"):
        command_path("fairlead-nothing")


async def test_two_servers_are_independent() -> None:
    async with FairleadServer.start() as one, FairleadServer.start() as two:
        assert one.address != two.address
        assert await greet(one) == await greet(two) == "hello world"


async def test_the_configured_namespaces_and_search_attributes_exist() -> None:
    for start in (FairleadServer.start, FairleadServer.start_process):
        async with start(
            namespace="orders", other_namespaces=["billing"], search_attributes={"Customer": "Keyword"}
        ) as server:
            client = await server.connect()
            assert client.namespace == server.namespace == "orders"
            for namespace in ("default", "orders", "billing"):
                found = await client.operator_service.list_search_attributes(
                    ListSearchAttributesRequest(namespace=namespace)
                )
                assert dict(found.custom_attributes) == {"Customer": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD}


async def test_data_in_a_file_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "tests.db"
    async with FairleadServer.start(db_filename=file) as server:
        await greet(server)
    async with FairleadServer.start(db_filename=file) as server:
        client = await server.connect()
        assert await client.get_workflow_handle("greeting").result() == "hello world"


async def test_invalid_arguments_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="as the type of Customer"):
        async with FairleadServer.start(search_attributes={"Customer": "Number"}):
            raise AssertionError
    with pytest.raises(ChildFailed, match="ended with 2 before it was ready"):
        async with FairleadServer.start_process(search_attributes={"Customer": "Number"}):
            raise AssertionError


def test_the_child_process_ends_with_the_block_even_if_the_block_fails() -> None:
    with (
        pytest.raises(RuntimeError, match="of the test"),
        child(namespaces=[], search_attributes={}, db_filename=None, dynamic_config={}) as address,
    ):
        raise RuntimeError("of the test")
    host, _, port = address.rpartition(":")
    assert subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", f"import socket; socket.create_connection(('{host}', {port}), 1)"],
        check=False,
        capture_output=True,
    ).returncode


def test_the_fixtures_work_in_a_users_project(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent(
            """\
            import pytest

            pytest_plugins = ["fairlead.testing.fixtures"]

            @pytest.fixture(scope="session")
            def fairlead_options():
                return {"namespace": "orders"}
            """
        )
    )
    (tmp_path / "test_users.py").write_text(
        textwrap.dedent(
            """\
            import pytest

            addresses = set()

            @pytest.mark.asyncio
            @pytest.mark.parametrize("number", [1, 2])
            async def test_it_answers(fairlead_client, fairlead_server, number):
                assert fairlead_client.namespace == "orders"
                assert await fairlead_client.count_workflows() is not None
                addresses.add(fairlead_server.address)
                assert len(addresses) == 1
            """
        )
    )
    done = subprocess.run(  # noqa: S603 - our own tests
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_is_not_needed_to_use_the_server() -> None:
    code = "import sys; import fairlead.testing; assert 'pytest' not in sys.modules; import fairlead.testing.server"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own program
