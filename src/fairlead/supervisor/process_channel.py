"""The socket between a supervisor and one of its processes.

The supervisor sends connections that it has accepted, each with one byte, and orders of one byte each; all arrive in
order. The process sends lines of JSON: one when it is ready, and further ones when connections have ended. When the
channel closes, each side knows that the other has ended.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

_CONNECTION = b"c"
_RELEASE = b"r"
_STOP = b"s"
# Bytes of a line of the process.
LINE_BYTES_MAX = 4096
# Seconds between reports of the connections that have ended.
REPORT_INTERVAL_S = 0.25


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A process serves: its name in the ring, and the address of its metrics."""

    host: str
    metrics: str | None


class Gone(msgspec.Struct, frozen=True, tag=True):
    """Number of connections that a process was given and that have ended, or whose peers were asked to leave.

    The supervisor knows how many connections it gave, so the difference is right even if this message is late.
    """

    count: int


class Frontend(Protocol):
    """The gRPC server of a process."""

    @property
    def lasting_connections(self) -> int:
        """Number of open connections whose peers were not asked to leave."""
        ...

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        ...

    def release(self) -> None:
        """Ask the peer of one connection to open another one."""
        ...


class ProcessChannel:
    """The process's side of the channel: adopts connections, and stops the server when ordered or when the supervisor
    ends.
    """

    def __init__(self, fd: int, *, stop: Callable[[], None]) -> None:
        """Begin to read; `stop` is called at most once, in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)  # noqa: FBT003 - its name says what is true or false
        self._stop = stop
        self._frontend: Frontend | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._adopted = 0
        self._reporting: asyncio.Task[None] | None = None
        self._loop.add_reader(self._socket, self._read)

    def serve(self, frontend: Frontend | None, ready: Ready) -> None:
        """Tell the supervisor that the process serves, and take connections from now on."""
        self._frontend = frontend
        self._tell(ready)
        if frontend is not None:
            self._reporting = self._loop.create_task(self._report(frontend))

    async def close(self) -> None:
        """Wait until the connections that came are served, and close the channel."""
        if self._reporting is not None:
            self._reporting.cancel()
        self._loop.remove_reader(self._socket)
        if self._adopting:
            await asyncio.wait(self._adopting)
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                kind, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                kind, descriptors = b"", []
            for descriptor in descriptors:
                self._adopt(socket.socket(fileno=descriptor))
            if kind == _RELEASE and self._frontend is not None:
                self._frontend.release()
            elif kind != _CONNECTION:
                self._loop.remove_reader(self._socket)
                self._stop()
                return

    def _adopt(self, accepted: socket.socket) -> None:
        if self._frontend is None:
            accepted.close()
            return
        self._adopted += 1
        task = self._loop.create_task(self._frontend.adopt(accepted))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _report(self, frontend: Frontend) -> None:
        known = 0
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            gone = self._adopted - len(self._adopting) - frontend.lasting_connections
            if gone != known:
                known = gone
                self._tell(Gone(gone))

    def _tell(self, message: Ready | Gone) -> None:
        # A supervisor that is gone, or too busy to read, needs no report.
        with suppress(OSError):
            self._socket.send(msgspec.json.encode(message) + b"\n")


class SupervisorChannel:
    """The supervisor's side of the channel."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair()
        self._socket.setblocking(False)  # noqa: FBT003 - its name says what is true or false
        self._rest = b""

    @property
    def process_fd(self) -> int:
        """File descriptor of the process's side, for the child to inherit."""
        return self._theirs.fileno()

    def started(self) -> None:
        """Close the process's side in this process, so that each side notices when the other ends."""
        self._theirs.close()

    async def receive(self) -> Ready | Gone | None:
        """The next message of the process; None if it ended."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            try:
                part = await loop.sock_recv(self._socket, LINE_BYTES_MAX)
            except OSError:
                return None
            if not part or len(self._rest) > LINE_BYTES_MAX:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return msgspec.json.decode(line, type=Ready | Gone)

    def hand_over(self, accepted: socket.socket) -> bool:
        """Hand a connection to the process; False if it can't take it now."""
        try:
            socket.send_fds(self._socket, [_CONNECTION], [accepted.fileno()])
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Order the process to ask the peer of one connection to open another one."""
        with suppress(OSError):
            self._socket.send(_RELEASE)

    def stop(self) -> None:
        """Order the process to stop."""
        try:
            self._socket.send(_STOP)
        except OSError:
            # The process has ended, or its channel is full: closing the channel orders it to stop, too.
            self.close()

    def close(self) -> None:
        """Close the channel; a process that still runs stops."""
        self._socket.close()
