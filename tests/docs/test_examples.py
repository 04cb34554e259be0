"""The examples print what they promise, against servers as a user starts them."""

import ast
import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

import pytest

from fairlead.testing import FairleadServer
from tests.cli.processes import ANSWER_S_MAX, server

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
PUBLIC = {"fairlead.client", "fairlead.testing"}


async def lines_of(*command: str, uses_sdk: bool = True) -> list[str]:
    """Run Python with these arguments to a successful end; return the lines that it prints.

    A program of Temporal's SDK may crash when it has ended, while Python finalizes (sdk-python issue 300): with a
    message on Python 3.11, without one on later versions.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(ANSWER_S_MAX):
        out, err = await process.communicate()
    if uses_sdk and process.returncode == -signal.SIGABRT:
        assert err.startswith(b"Fatal Python error: PyGILState_Release"), err
        assert b"Python runtime state: finalizing" in err
    else:
        assert process.returncode in ((0, -signal.SIGSEGV) if uses_sdk else (0,))
        assert err == b""
    return out.decode().splitlines()


async def test_hello_prints_the_greetings_of_every_tenant(tmp_path: Path) -> None:
    config = tmp_path / "fairlead.yaml"
    config.write_text("listen: 127.0.0.1:0\nroles: [matching]\n")
    async with server("--config", str(config)) as started:
        lines = await lines_of(str(FOLDER / "hello.py"), started.address, uses_sdk=False)
    assert Counter(lines) == Counter(
        f"hello {number} from {tenant}" for number in (1, 2, 3) for tenant in ("acme", "globex", "initech")
    )
    # Dispatch by weight: the heaviest tenant gets its last greeting before the lightest gets its second.
    assert lines.index("hello 3 from acme") < lines.index("hello 2 from initech")


async def test_hello_workflow_prints_its_greeting() -> None:
    async with FairleadServer.start() as started:
        lines = await lines_of(str(FOLDER / "hello_workflow.py"), started.address)
    assert lines[0] == "Hello, world!"


async def test_signal_query_update_prints_what_each_of_them_returns() -> None:
    async with FairleadServer.start() as started:
        lines = await lines_of(str(FOLDER / "signal_query_update.py"), started.address)
    assert lines == [
        "update: items now 1",
        "update: items now 2",
        "update rejected: the item has no name",
        "query: items 2",
        "result: ['rope', 'anchor']",
    ]


async def test_schedule_prints_the_results_of_two_runs_and_deletes_the_schedule() -> None:
    async with FairleadServer.start() as started:
        lines = await lines_of(str(FOLDER / "schedule.py"), started.address)
        client = await started.connect()
        assert [one async for one in await client.list_schedules()] == []
    assert lines == ["result: report about sales"] * 2 + ["schedule deleted"]


async def test_the_test_of_a_reminder_passes() -> None:
    lines = await lines_of(
        *("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", str(FOLDER / "test_reminder.py"))
    )
    assert lines[-1].startswith("1 passed")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_imports_only_the_sdk_and_the_public_modules(example: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(example.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module))
    insides = {name for name in imported if name not in PUBLIC and name.partition(".")[0] != "temporalio"}
    assert {name for name in insides if name.partition(".")[0] not in sys.stdlib_module_names} == set()


def test_every_example_has_a_test_of_its_output() -> None:
    source = Path(__file__).read_text()
    assert [example.name for example in EXAMPLES if f'FOLDER / "{example.name}"' not in source] == []
