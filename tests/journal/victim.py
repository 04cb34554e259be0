"""A server with a journal that tests kill and restart."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

READY_S_MAX = PATIENCE_S


class Victim:
    """A server with a database file and a journal; it can be killed and restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        command = ["server", "start-dev", "--headless", "--port", str(self._port), "--stop-with-input"]
        command += ["--db-filename", str(self._folder / "f.db"), "--journal", str(self._folder / "journal")]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - returns at once
                [sys.executable, "-m", "fairlead", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        await asyncio.wait_for(asyncio.to_thread(self._read_until_ready), READY_S_MAX)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._end()

    async def stop(self) -> int:
        """Close standard input, as a closing terminal does; returns the exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await asyncio.to_thread(self._end)

    def _end(self) -> int:
        assert self._process is not None
        code = self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return code

    def _read_until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("Ready"):
                return
        raise AssertionError((self._folder / "server.log").read_text())
