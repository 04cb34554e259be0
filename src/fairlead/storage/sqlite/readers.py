import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from fairlead.storage.contract import StoreUnavailable

Row = tuple[Any, ...]
_Answer = TypeVar("_Answer")


class Readers:
    """The connections that only read: they wait for no commit, and see all that was acknowledged before them."""

    def __init__(self, connections: Sequence[sqlite3.Connection], threads: ThreadPoolExecutor) -> None:
        """There are as many threads as connections, so that one of these is always free."""
        self._threads = threads
        self._connections: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        for connection in connections:
            self._connections.put(connection)
        self._reads: set[asyncio.Future[Any]] = set()
        self._is_closing = False

    async def run(self, look: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        """What a function finds, in a thread, with a connection for itself."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing")
        reading = asyncio.get_running_loop().run_in_executor(self._threads, self._look, look)
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)
        return await reading

    async def rows(self, statement: str, values: Sequence[object], make: Callable[[Row], _Answer]) -> list[_Answer]:
        """What is made of each row that a statement finds."""
        return await self.run(lambda reader: [make(row) for row in reader.execute(statement, values).fetchall()])

    async def close(self) -> None:
        """Take no more, and wait for those that were begun."""
        self._is_closing = True
        if self._reads:
            await asyncio.wait(self._reads)
        self._threads.shutdown()

    def _look(self, look: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        reader = self._connections.get()
        try:
            return look(reader)
        except sqlite3.OperationalError as failed:
            raise StoreUnavailable(f"the store could not be read: {failed}") from failed
        finally:
            self._connections.put(reader)
