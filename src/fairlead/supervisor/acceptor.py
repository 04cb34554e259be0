"""Accepts the connections of SDKs and hands each to one of the processes."""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from fairlead.settings.static.config import Address
from fairlead.telemetry import CannotListen, get_log, refusal

# Connections that the operating system queues until they are accepted.
BACKLOG_MAX = 1_024
# Connections accepted in one turn of the event loop.
ACCEPTED_MAX = 64
# Seconds to wait when no process can take a connection, or the supervisor has no file descriptors left.
PAUSE_S = 0.05

_log = get_log("supervisor")


class Taker(Protocol):
    """A process that serves connections."""

    @property
    def connections(self) -> int:
        """Number of connections that the process serves or will serve."""
        ...

    def take(self, accepted: socket.socket) -> bool:
        """Hand a connection over; False if the process can't take it now."""
        ...


class Acceptor:
    """Listens on the port for SDKs, and gives each connection to the process with the fewest.

    The supervisor alone accepts connections, so that it never gives one to a process that is about to stop, and a
    connection that arrives while a process restarts goes to another process. `SO_REUSEPORT` guarantees neither, and
    divides a small number of connections unevenly.
    """

    def __init__(self, listen: Address, takers: Callable[[], list[Taker]], *, key: str) -> None:
        """`takers` returns the processes that serve now; `key` is the setting of the address, for messages."""
        self._takers = takers
        self._socket = _bound(listen, key)
        self._is_reading = False
        self._is_closed = False
        self._pause: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """The address, with the chosen port if the configured one was 0."""
        return str(Address(*self._socket.getsockname()[:2]))

    def resume(self) -> None:
        """Accept, if a process serves; otherwise connections wait in the system's queue."""
        is_wanted = bool(self._takers()) and not self._is_closed and self._pause is None
        if is_wanted and not self._is_reading:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)
        elif self._is_reading and not is_wanted:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._is_reading = is_wanted

    def close(self) -> None:
        """Accept no more connections."""
        if not self._is_closed:
            self._is_closed = True
            if self._pause is not None:
                self._pause.cancel()
            self.resume()
            self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_MAX):
            takers = self._takers()
            if not takers:
                self.resume()
                return
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as failed:
                # Too many open files, or the client is gone already.
                _log.warning("connection not accepted", error=str(failed))
                self._wait()
                return
            with accepted:
                if not _hand_over(accepted, takers):
                    _log.warning("connection refused: no process takes it")
                    self._wait()
                    return

    def _wait(self) -> None:
        def go_on() -> None:
            self._pause = None
            self.resume()

        self._pause = asyncio.get_running_loop().call_later(PAUSE_S, go_on)
        self.resume()


def _hand_over(accepted: socket.socket, takers: list[Taker]) -> bool:
    """Hand a connection to the first process that can take it; those with the fewest connections come first."""
    return any(taker.take(accepted) for taker in sorted(takers, key=lambda taker: taker.connections))


def _bound(listen: Address, key: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG_MAX)
        except OSError:
            bound.close()
            raise
    except OSError as refused:
        raise CannotListen(f"can't listen at {listen}: {refusal(refused, key=key)}") from refused
    bound.setblocking(False)  # noqa: FBT003 - its name says what is true or false
    return bound
