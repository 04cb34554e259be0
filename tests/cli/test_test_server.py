"""`fairlead-test-server` as a user runs it."""

import asyncio
from asyncio.subprocess import PIPE
from pathlib import Path

from fairlead import __version__
from tests.cli.processes import ANSWER_S_MAX, FAIRLEAD, Done

TEST_SERVER = FAIRLEAD.with_name("fairlead-test-server")


async def run(*arguments: str) -> Done:
    process = await asyncio.create_subprocess_exec(TEST_SERVER, *arguments, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(ANSWER_S_MAX):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def test_an_invalid_argument_is_reported_in_one_line_that_names_the_command() -> None:
    for arguments, problem in [
        ((), "Missing argument 'PORT'"),
        (("seven",), "'seven' is not a valid integer range"),
        (("70000",), "70000 is not in the range 0<=x<=65535"),
        (("0", "--search-attribute", "Customer"), "is not of the form KEY=TYPE"),
    ]:
        done = await run(*arguments)
        assert done.code == 2
        assert done.err.startswith("fairlead-test-server: ")
        assert problem in done.err
        assert done.err.count("\n") == 1


async def test_the_test_server_prints_its_version_and_its_help() -> None:
    assert (await run("--version")).out == f"fairlead-test-server {__version__}\n"
    assert "--enable-time-skipping" in (await run("--help")).out


async def test_the_test_server_listens_at_a_free_port_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        TEST_SERVER, "0", "--stop-with-input", "--namespace", "orders", stdin=PIPE, stdout=PIPE, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdin is not None
    lines: list[str] = []
    async with asyncio.timeout(ANSWER_S_MAX):
        while not lines or not lines[-1].startswith("Ready"):
            lines.append((await process.stdout.readline()).decode())
    address = next(line.split()[1] for line in lines if line.startswith("Server:"))
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    process.stdin.close()
    async with asyncio.timeout(ANSWER_S_MAX):
        assert await process.wait() == 0
