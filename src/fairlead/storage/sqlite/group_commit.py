import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from fairlead.aio.cancellation import Uncancellable
from fairlead.core.errors import FairleadError
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable

# Maximum number of changes that wait for the writer thread; further callers wait with their data.
CHANGES_WAITING_MAX = 10_000
# Maximum changes and bytes of a transaction, so that no change waits long for the others of its transaction.
BATCH_CHANGES_MAX = 4_000
BATCH_BYTES_MAX = 16 * 1024 * 1024

Response = TypeVar("Response")


class Transactions(Protocol):
    """The transactions in which the changes are made, one transaction at a time."""

    def begin(self) -> None:
        """Begin the transaction of the next changes."""
        ...

    def read_ahead(self, changes: Sequence[Callable[[], object]]) -> None:
        """Read the rows that the next changes need, in few calls of SQLite, because each call releases the GIL."""
        ...

    def flush(self) -> None:
        """Write all pending changes, so that only the commit is left."""
        ...

    def commit(self) -> None:
        """Commit: when this returns, the changes survive a crash of the machine."""
        ...

    def roll_back(self) -> None:
        """Roll back this transaction, and drop the cached state."""
        ...


class _Change(NamedTuple):
    answer: "asyncio.Future[Any]"
    make: Callable[[], object]
    size_bytes: int


# The outcome of a change: its result or its error.
_Outcome = tuple["asyncio.Future[Any]", object, Exception | None]


class GroupCommit:
    """Group commit: one transaction for all changes that arrived during the previous commit.

    One thread makes the changes in their order of arrival. A rejected change does not affect the others of its
    transaction; if a transaction fails, all of its changes fail.
    """

    def __init__(self, tables: Transactions, *, on_end: Callable[[], None]) -> None:
        """Start the thread, which calls `on_end` after the last change."""
        self._tables = tables
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting_count = 0
        # Callers that wait because too many changes wait, in order of arrival.
        self._for_room: deque[asyncio.Future[None]] = deque()
        self._waiting: SimpleQueue[_Change | None] = SimpleQueue()
        self._is_closing = False
        self._ended = self._loop.create_future()
        self._commits = 0
        # A daemon thread, so that a program can exit without closing the store: acknowledged changes are on disk.
        self._thread = threading.Thread(target=self._run, name="sqlite-writer", daemon=True)
        self._thread.start()

    @property
    def commits(self) -> int:
        """Number of committed transactions."""
        return self._commits

    async def run(self, make: Callable[[], Response], *, size_bytes: int = 0) -> Response:
        """Make a change in the writer thread, and return its result when the change is durable."""
        while self._waiting_count >= CHANGES_WAITING_MAX:
            room = self._loop.create_future()
            self._for_room.append(room)
            try:
                await room
            except asyncio.CancelledError:
                # If this caller was given a free place, pass it on to the next caller.
                self._give_room()
                raise
        try:
            answer: asyncio.Future[Response] = self._loop.create_future()
            made = self._begin(make, size_bytes, answer)
        except StoreUnavailable:
            # This caller failed and uses no place: wake the next caller, which fails too.
            self._give_room()
            raise
        # If the caller is cancelled, the change is still made, and counts as waiting until then.
        return await made

    def begin(self, make: Callable[[], Response], *, size_bytes: int = 0) -> "asyncio.Future[Response]":
        """Like `run`, without a coroutine: the future gets the result.

        It can be cancelled only if too many changes wait.
        """
        if self._waiting_count >= CHANGES_WAITING_MAX:
            return self._loop.create_task(self.run(make, size_bytes=size_bytes))
        return self._begin(make, size_bytes, Uncancellable(loop=self._loop))

    def _begin(
        self, make: Callable[[], Response], size_bytes: int, answer: "asyncio.Future[Response]"
    ) -> "asyncio.Future[Response]":
        # Check after the wait for a free place: no change may follow the end mark in the queue.
        if self._is_closing:
            raise StoreUnavailable("the store is closing: nothing was changed")
        self._waiting_count += 1
        self._waiting.put(_Change(answer, make, size_bytes))
        return answer

    def _give_room(self) -> None:
        while self._for_room and self._waiting_count < CHANGES_WAITING_MAX:
            room = self._for_room.popleft()
            if not room.done():
                room.set_result(None)
                return

    async def close(self) -> None:
        """Make all changes that were requested before this call, reject later changes, and end the thread."""
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
        """Call a function in the event loop; False if the loop is closed, which has ended all waiting callers."""
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            return False
        return True

    def _next_batch(self) -> tuple[list[_Change], bool]:
        """Wait for a change, take all waiting changes within the limits; also return whether the queue has ended."""
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
            # The disk is full or broken. SQLite has rolled back the transaction, or `_roll_back` does so.
            self._roll_back()
            message = f"the changes could not be written: {failed}; nothing was changed"
            return [(change.answer, None, StoreUnavailable(message)) for change in batch]
        except Exception as failed:  # noqa: BLE001 - the caller gets the error, and the thread continues
            self._roll_back()
            if len(batch) == 1:
                return [(batch[0].answer, None, failed)]
            # One of the changes can't be written: commit each change alone, so that the other changes are not affected.
            return [outcome for change in batch for outcome in self._commit([change])]
        try:
            self._tables.commit()
        except sqlite3.Error as failed:
            # After a crash, data in the unsynced log may reappear, until the next commit overwrites it.
            self._roll_back()
            message = f"the commit failed: {failed}; renew the lease, then read the state again"
            return [(change.answer, None, OutcomeUnknown(message)) for change in batch]
        self._commits += 1
        return outcomes

    def _make(self, batch: list[_Change]) -> list[_Outcome]:
        self._tables.begin()
        self._tables.read_ahead([change.make for change in batch])
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
            # If the rollback fails, it is tried again when the next transaction begins; if it fails again, so does that
            # transaction.
            return

    def _answer(self, outcomes: list[_Outcome]) -> None:
        for answer, value, error in outcomes:
            self._waiting_count -= 1
            if self._for_room:
                self._give_room()
            if answer.done():
                continue
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)
