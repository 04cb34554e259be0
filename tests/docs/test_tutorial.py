"""The tutorial's commands and files do what the page says, in its order."""

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

from tests.cli.processes import ANSWER_S_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
ADDRESS = "127.0.0.1:7233"
START = "fairlead server start-dev "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_the_tutorial_runs_in_one_terminal(tmp_path: Path) -> None:
    port = free_port()
    # A free port: port 7233 may be in use.
    page = PAGE.replace(ADDRESS, f"127.0.0.1:{port}").replace(START, f"{START}--port {port} ")
    blocks = re.findall(r"```(sh|text|python)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks].count("text") == 4
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = await asyncio.create_subprocess_exec(
        "bash",
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    printed: list[str] = []
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            for language, block in blocks:
                if language == "python":
                    name = re.match(r"# (\w+\.py)\n", block)
                    assert name is not None, block
                    (tmp_path / name[1]).write_text(block)
                elif language == "sh":
                    shell.stdin.write(block.encode())
                else:
                    for line in block.splitlines():
                        while not printed or printed[-1] != line:
                            got = await shell.stdout.readline()
                            assert got, "\n".join(printed)
                            printed.append(got.decode().rstrip("\n"))
            shell.stdin.close()
            rest, _ = await asyncio.gather(shell.stdout.read(), shell.wait())
    finally:
        # Kill the process group even if the shell has ended: its background processes may still run.
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()
    everything = "\n".join([*printed, rest.decode()])
    assert shell.returncode == 0, everything
    assert everything.count("charged for the anchor") == 1, everything
