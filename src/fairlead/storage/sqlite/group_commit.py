import asyncio
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from fairlead.core.errors import FairleadError
from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable

# Changes that wait for the writer. More callers wait for room; what a change holds is theirs until it is answered.
CHANGES_WAITING_MAX = 10_000
# A transaction takes no more changes than this, so that none waits long behind the others of its own.
BATCH_CHANGES_MAX = 4_000
BATCH_BYTES_MAX = 16 * 1024 * 1024

Answer = TypeVar("Answer")


class Transactions(Protocol):
    """What changes are made in, one transaction at a time."""

    def begin(self) -> None:
        """Begin the transaction in which the next changes are made."""
        ...

    def flush(self) -> None:
        """Write all that has been changed, so that nothing but the commit is left."""
        ...

    def commit(self) -> None:
        """Make the changes durable: when this has returned, they survive a crash of the machine."""
        ...

    def roll_back(self) -> None:
        """Undo the changes of this transaction, and forget what was remembered of them."""
        ...


class _Change(NamedTuple):
    answer: "asyncio.Future[Any]"
    make: Callable[[], object]
    size_bytes: int


# What becomes of a change: its answer, or the error to raise.
_Outcome = tuple["asyncio.Future[Any]", object, Exception | None]


class GroupCommit:
    """Makes changes durable, many with one commit: all that came while the last commit was under way.

    One thread makes the changes in the order in which they came. A change that is refused leaves the others of its
    transaction alone; a transaction that fails as a whole fails all of them.
    """

    def __init__(self, tables: Transactions, *, on_end: Callable[[], None]) -> None:
        """Start the thread. `on_end` is called in it when the last change has been made."""
        self._tables = tables
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(CHANGES_WAITING_MAX)
        self._waiting: SimpleQueue[_Change | None] = SimpleQueue()
        self._is_closing = False
        self._ended = self._loop.create_future()
        self._commits = 0
        # A daemon, so that a program that forgot to close the store can end: what was acknowledged is on disk.
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._thread.start()

    @property
    def commits(self) -> int:
        """How many transactions have been committed."""
        return self._commits

    async def run(self, make: Callable[[], Answer], *, size_bytes: int = 0) -> Answer:
        """Make a change in the writer's thread, and return what it returned when it is durable."""
        await self._room.acquire()
        # Looked at after the wait, not before it: nothing may come behind the mark that ends the queue.
        if self._is_closing:
            self._room.release()
            raise StoreUnavailable("the store is closing: nothing was changed")
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.put(_Change(answer, make, size_bytes))
        # Where the caller is cancelled the change is made all the same, and keeps its room until then.
        return await answer

    async def close(self) -> None:
        """Make the changes that came before this, refuse those that come after it, and end the thread."""
        if not self._is_closing:
            self._is_closing = True
            self._waiting.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch, is_last = self._next_batch()
            if batch:
                outcomes = self._commit(batch)
                if not self._call_loop(self._answer, outcomes):
                    break
        try:
            self._on_end()
        finally:
            self._call_loop(self._ended.set_result, None)

    def _call_loop(self, function: Callable[..., object], argument: object) -> bool:
        """Have the loop call a function; False if it is gone, and with it all who waited."""
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            return False
        return True

    def _next_batch(self) -> tuple[list[_Change], bool]:
        """Wait for a change, then take all that wait, within a transaction's bounds; and say whether that was all."""
        batch: list[_Change] = []
        size_bytes = 0
        change = self._waiting.get()
        while change is not None:
            batch.append(change)
            size_bytes += change.size_bytes
            if len(batch) >= BATCH_CHANGES_MAX or size_bytes >= BATCH_BYTES_MAX:
                return batch, False
            try:
                change = self._waiting.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Change]) -> list[_Outcome]:
        try:
            outcomes = self._make(batch)
        except sqlite3.OperationalError as failed:
            # The disk is full or broken. SQLite has undone, or now undoes, what it did of the transaction.
            self._roll_back()
            message = f"the changes could not be written: {failed}; nothing was changed"
            return [(change.answer, None, StoreUnavailable(message)) for change in batch]
        except Exception as failed:  # noqa: BLE001 - whatever it is, its caller is told, and the thread goes on
            self._roll_back()
            if len(batch) == 1:
                return [(batch[0].answer, None, failed)]
            # One of them can't be written. Each by itself, it spoils no other.
            return [outcome for change in batch for outcome in self._commit([change])]
        try:
            self._tables.commit()
        except sqlite3.Error as failed:
            # What is in the log but not synced may come back after a crash, until the next commit overwrites it.
            self._roll_back()
            message = f"the commit failed: {failed}; renew the lease, then see what is there"
            return [(change.answer, None, OutcomeUnknown(message)) for change in batch]
        self._commits += 1
        return outcomes

    def _make(self, batch: list[_Change]) -> list[_Outcome]:
        self._tables.begin()
        outcomes: list[_Outcome] = []
        for answer, make, _ in batch:
            try:
                outcomes.append((answer, make(), None))
            except FairleadError as refused:
                outcomes.append((answer, None, refused))
        self._tables.flush()
        return outcomes

    def _roll_back(self) -> None:
        try:
            self._tables.roll_back()
        except sqlite3.Error:
            # It is undone when the next transaction begins, or that one fails too.
            return

    def _answer(self, outcomes: list[_Outcome]) -> None:
        for answer, value, error in outcomes:
            self._room.release()
            if answer.done():
                continue
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)
