"""One process of a supervisor, from its start to its end."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from fairlead.supervisor.process_channel import Ready, SupervisorChannel
from fairlead.telemetry import get_log

_log = get_log("supervisor")


class HostProcess:
    """A host that runs as a process of its own."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: SupervisorChannel) -> None:
        """Call `start` instead of this constructor."""
        self.number = number
        self.ready: Ready | None = None
        self.is_draining = False
        # Number of connections given to the process, and number of those that have ended or were asked to leave.
        self._given = 0
        self._gone = 0
        # Value of `_gone` after which all ordered releases have taken effect.
        self._gone_ordered = 0
        self._process = process
        self._channel = channel
        self._started_s = time.monotonic()
        self._is_ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, number: int, arguments: Sequence[str]) -> "HostProcess":
        """Start a process with the arguments of `fairlead server start`."""
        channel = SupervisorChannel()
        command = [*(sys.executable, "-m", "fairlead", "server", "start"), *arguments]
        try:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--process", str(number), "--channel", str(channel.process_fd)),
                pass_fds=[channel.process_fd],
                stdin=asyncio.subprocess.DEVNULL,
                # A terminal's Ctrl-C is for the supervisor, which stops the processes one by one.
                process_group=0,
            )
        except BaseException:
            channel.close()
            raise
        finally:
            channel.started()
        return cls(number, process, channel)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def is_serving(self) -> bool:
        """Whether the process takes new connections."""
        return self.ready is not None and not self.is_draining and self._process.returncode is None

    @property
    def connections(self) -> int:
        """Number of connections that the process serves or will serve."""
        return self._given - max(self._gone, self._gone_ordered)

    @property
    def is_releasing(self) -> bool:
        """Whether connections that were told to leave are still open."""
        return self._gone < self._gone_ordered

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    async def until_ready(self) -> bool:
        """Wait until the process serves; False if it ended before."""
        await self._is_ready.wait()
        return self.ready is not None

    def take(self, accepted: socket.socket) -> bool:
        """Hand a connection over; False if the process can't take it now."""
        is_taken = self._channel.hand_over(accepted)
        self._given += is_taken
        return is_taken

    def release(self, connections: int) -> None:
        """Ask the peers of some connections to connect again; another process gets the new connections."""
        self._gone_ordered = self._gone + connections
        for _ in range(connections):
            self._channel.release()

    async def stop(self, within_s: float) -> None:
        """Drain the process and wait for its end; kill it if that takes too long."""
        self.is_draining = True
        self._channel.stop()
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            _log.error("process does not stop, killing it", process=self.number, pid=self.pid, waited_s=within_s)
            self.kill()
            await self._process.wait()

    async def wait(self) -> int:
        """Wait for the end of the process; its exit code, negative for a signal."""
        code = await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._channel.close()
        return code

    def kill(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _read(self) -> None:
        try:
            while (message := await self._channel.receive()) is not None:
                if isinstance(message, Ready):
                    self.ready = message
                    self._is_ready.set()
                else:
                    self._gone = message.count
        finally:
            self._is_ready.set()


def reason_of_end(code: int) -> str:
    """The exit code of a process in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
