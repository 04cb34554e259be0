"""The examples do what they show, against a server as a user starts it."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

from fairlead.testing import FairleadServer
from tests.cli.processes import ANSWER_S_MAX, server

FOLDER = Path(__file__).parents[1] / "examples"


async def test_hello_prints_the_greetings_of_every_tenant(tmp_path: Path) -> None:
    config = tmp_path / "fairlead.yaml"
    config.write_text("listen: 127.0.0.1:0\nroles: [matching]\n")
    async with server("--config", str(config)) as started:
        hello = await asyncio.create_subprocess_exec(
            sys.executable, str(FOLDER / "hello.py"), started.address, stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(ANSWER_S_MAX):
            out, err = await hello.communicate()
    assert (hello.returncode, err) == (0, b"")
    lines = out.decode().splitlines()
    assert Counter(lines) == Counter(
        f"hello {number} from {tenant}" for number in (1, 2, 3) for tenant in ("acme", "globex", "initech")
    )
    # By weight: the heaviest has its last greeting before the lightest has its second.
    assert lines.index("hello 3 from acme") < lines.index("hello 2 from initech")


async def test_hello_workflow_prints_its_greeting() -> None:
    async with FairleadServer.start() as started:
        hello = await asyncio.create_subprocess_exec(
            sys.executable, str(FOLDER / "hello_workflow.py"), started.address, stdout=PIPE
        )
        async with asyncio.timeout(ANSWER_S_MAX):
            out, _ = await hello.communicate()
    assert out.decode().splitlines()[0] == "Hello, world!"
