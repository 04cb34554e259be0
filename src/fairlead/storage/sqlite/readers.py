import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from fairlead.storage.tasks import StoreUnavailable

Row = tuple[Any, ...]
_Response = TypeVar("_Response")


class Readers:
    """Read-only connections: reads don't wait for commits, and see all changes acknowledged before."""

    def __init__(self, connections: Sequence[sqlite3.Connection], threads: ThreadPoolExecutor) -> None:
        """Give as many threads as connections, so that a thread always finds a free connection."""
        self._threads = threads
        self._connections: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        for connection in connections:
            self._connections.put(connection)
        self._reads: set[asyncio.Future[Any]] = set()
        self._is_closing = False

    async def run(self, read: Callable[[sqlite3.Connection], _Response]) -> _Response:
        """Call a function with a free connection, in a thread."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing")
        reading = asyncio.get_running_loop().run_in_executor(self._threads, self._run, read)
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)
        return await reading

    async def rows(self, statement: str, values: Sequence[object], make: Callable[[Row], _Response]) -> list[_Response]:
        """Execute a statement, and convert each row with `make`."""
        return await self.run(lambda reader: [make(row) for row in reader.execute(statement, values).fetchall()])

    async def close(self) -> None:
        """Reject new reads, and wait for the reads that have begun."""
        self._is_closing = True
        if self._reads:
            await asyncio.wait(self._reads)
        self._threads.shutdown()

    def _run(self, read: Callable[[sqlite3.Connection], _Response]) -> _Response:
        reader = self._connections.get()
        try:
            return read(reader)
        except sqlite3.OperationalError as failed:
            raise StoreUnavailable(f"the store could not be read: {failed}") from failed
        finally:
            self._connections.put(reader)
