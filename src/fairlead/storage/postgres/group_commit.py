"""Group commit: writes that wait at the same time share a round trip, a transaction and a flush of PostgreSQL's log."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

import psycopg
from psycopg import errors

from fairlead.core.errors import FairleadError
from fairlead.storage.postgres.connections import ATTEMPTS_MAX, Connections, translated
from fairlead.storage.postgres.pipeline import Parameter, Pipeline, Prepared, Row
from fairlead.storage.postgres.verdicts import AGAIN, Again, Busy, Done, Verdict
from fairlead.storage.tasks import StoreUnavailable

# Maximum number and bytes of waiting writes; further writes are rejected.
WRITES_WAITING_MAX = 10_000
BYTES_WAITING_MAX = 256 * 1024 * 1024
# Number of batches in flight at the same time: while PostgreSQL flushes one, it receives the next.
BATCHES_IN_FLIGHT_MAX = 4
# Minimum number of writes in a batch that is sent while another is in flight. Fewer writes wait, since a small batch
# costs nearly as much as a large one.
EARLY_WRITES_MIN = 32

Explain = Callable[[Exception], Awaitable[Exception]]


class Write:
    """A waiting write, with the facts that the group commit needs."""

    __slots__ = ("attempts", "explain", "fence", "keys", "outcome", "range_id", "rows", "size_bytes")

    def __init__(self, fence: Hashable, range_id: int, *, keys: Sequence[Hashable], rows: int, size_bytes: int) -> None:
        """`fence` is the shard or queue to which the range id belongs. Writes with a common key keep their order."""
        self.fence = fence
        self.range_id = range_id
        self.keys = keys
        self.rows = rows
        self.size_bytes = size_bytes
        self.attempts = 0
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Makes the error of a rejected write, and may read the store for it. If None, the rejection itself is the
        # error.
        self.explain: Explain | None = None


W = TypeVar("W", bound=Write)
W_contra = TypeVar("W_contra", bound=Write, contravariant=True)


class Batches(Protocol[W_contra]):
    """One kind of writes, and the statement that carries out many of them."""

    # Maximum rows and bytes of a batch: larger batches are no faster, and later writes would wait longer.
    rows_max: int
    bytes_max: int

    def statement(self, *, waits: bool) -> Prepared:
        """The statement. It waits for locks of other transactions, or reports them."""
        ...

    def parameters(self, batch: Sequence[W_contra], *, waits: bool) -> list[Parameter]:
        """The parameters for a batch."""
        ...

    def verdicts(self, batch: Sequence[W_contra], rows: Sequence[Row]) -> list[Verdict]:
        """The outcome of each write of the batch."""
        ...

    def error(self, write: W_contra, failure: psycopg.Error) -> Exception | None:
        """The error of a batch of one write; None to try the write again and wait for locks."""
        ...


class GroupCommit(Generic[W]):
    """Sends all waiting writes as one batch, while earlier batches are in flight.

    A rejected write does not affect the others of its batch. If a batch fails as a whole, its writes are sent one by
    one. A write that needs a lock of another transaction waits for it on another connection, together with the later
    writes of its fence; writes of other fences continue.
    """

    def __init__(self, batches: Batches[W], connections: Connections) -> None:
        self._batches = batches
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._pipeline: Pipeline | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[W] = deque()
        # Writes of failed batches, each to be sent alone.
        self._alone: deque[W] = deque()
        self._waiting_bytes = 0
        # Keys of the writes in flight.
        self._keys: set[Hashable] = set()
        self._in_flight = 0
        # Fences with a write that waits for a lock, and their later writes.
        self._blocked: dict[Hashable, deque[W]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Number of accepted writes without an outcome, and the number of these writes that are in flight.
        self._open = 0
        self._sent = 0
        self._is_turn_due = False
        self._is_closing = False
        self._unused = asyncio.Event()
        self._unused.set()

    async def write(self, write: W) -> int:
        """Commit a write and return its result. If the caller is cancelled, the write may still take effect."""
        self.begin(write)
        return await write.outcome

    def begin(self, write: W) -> None:
        """Accept a write; its `outcome` gets the result when it is committed."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing: nothing was changed")
        waiting = self._open - self._sent
        if waiting >= WRITES_WAITING_MAX or self._waiting_bytes + write.size_bytes > BYTES_WAITING_MAX:
            raise StoreUnavailable(
                f"{waiting} writes and {self._waiting_bytes} bytes wait, the limits are {WRITES_WAITING_MAX} and "
                f"{BYTES_WAITING_MAX}: nothing was changed, try again later"
            )
        self._open += 1
        self._waiting_bytes += write.size_bytes
        self._unused.clear()
        self._enqueue(write)

    async def close(self) -> None:
        """Reject new writes, wait for the outcomes of all accepted ones, and disconnect."""
        self._is_closing = True
        await self._unused.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._pipeline is not None:
            self._pipeline.close()

    def _enqueue(self, write: W) -> None:
        blocked = self._blocked.get(write.fence)
        if blocked is not None:
            blocked.append(write)
            return
        self._waiting.append(write)
        self._schedule()

    def _schedule(self) -> None:
        """Send a batch after the callbacks that are ready now, so that simultaneous writes share it."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        while self._is_batch_due():
            pipeline = self._pipeline
            if pipeline is None or not pipeline.is_open:
                self._connect()
                return
            batch = [self._alone.popleft()] if self._alone else self._take(self._waiting)
            if not batch:
                # Every waiting write has a key of a write in flight.
                return
            self._hold(batch)
            statement = self._batches.statement(waits=False)
            answer = pipeline.send(statement, self._batches.parameters(batch, waits=False))
            answer.add_done_callback(lambda done, batch=batch: self._answered(batch, done))  # type: ignore[misc]

    def _is_batch_due(self) -> bool:
        waiting = len(self._waiting) + len(self._alone)
        return bool(waiting) and (
            not self._in_flight or (waiting >= EARLY_WRITES_MIN and self._in_flight < BATCHES_IN_FLIGHT_MAX)
        )

    def _take(self, waiting: deque[W]) -> list[W]:
        """The first writes within the limits of a batch. Writes with a key of an earlier write stay, in order."""
        batch: list[W] = []
        left: list[W] = []
        taken = set(self._keys)
        rows, size_bytes = 0, 0
        while waiting:
            write = waiting[0]
            if batch and (
                rows + write.rows > self._batches.rows_max or size_bytes + write.size_bytes > self._batches.bytes_max
            ):
                break
            waiting.popleft()
            if write.fence in self._blocked:
                self._blocked[write.fence].append(write)
                continue
            if taken.isdisjoint(write.keys):
                batch.append(write)
                rows += write.rows
                size_bytes += write.size_bytes
            else:
                left.append(write)
            taken.update(write.keys)
        waiting.extendleft(reversed(left))
        return batch

    def _hold(self, batch: Sequence[W]) -> None:
        self._in_flight += 1
        self._sent += len(batch)
        for write in batch:
            self._keys.update(write.keys)

    def _answered(self, batch: list[W], answer: asyncio.Future[list[Row]]) -> None:
        self._in_flight -= 1
        self._sent -= len(batch)
        for write in batch:
            self._keys.difference_update(write.keys)
        failure = answer.exception()
        if failure is None:
            verdicts = self._batches.verdicts(batch, answer.result())
            self._waiting.extendleft(
                write for write, verdict in zip(reversed(batch), reversed(verdicts), strict=True) if verdict is AGAIN
            )
            for write, verdict in zip(batch, verdicts, strict=True):
                self._judge(write, verdict)
        elif isinstance(failure, psycopg.Error):
            self._rejected(batch, failure)
        else:
            for write in batch:
                self._end(write, failure)
        if self._waiting or self._alone:
            self._schedule()

    def _judge(self, write: W, verdict: Verdict) -> None:
        match verdict:
            case Done(result):
                self._end(write, result)
            case Busy():
                self._block(write)
            case Exception():
                self._end(write, verdict)
            case Again():
                # The write was put back, before later writes: it waits for its next attempt.
                pass

    def _rejected(self, batch: list[W], failure: psycopg.Error) -> None:
        """Handle a batch that PostgreSQL rolled back."""
        if _is_of_server(failure):
            for write in batch:
                self._end(write, translated(failure))
            return
        for write in batch:
            write.attempts += 1
            if len(batch) > 1:
                self._alone.append(write)
            elif write.attempts > ATTEMPTS_MAX:
                self._end(write, _lost(failure))
            elif (error := self._batches.error(write, failure)) is not None:
                self._end(write, error)
            else:
                self._block(write)

    def _end(self, write: W, outcome: "int | BaseException") -> None:
        self._open -= 1
        self._waiting_bytes -= write.size_bytes
        if not self._open:
            self._unused.set()
        if write.outcome.done():
            return
        if not isinstance(outcome, BaseException):
            write.outcome.set_result(outcome)
            return
        if isinstance(outcome, FairleadError):
            # A new error for each caller: a shared error would collect the tracebacks of all callers.
            copy = type(outcome)(*outcome.args)
            copy.__cause__ = outcome.__cause__ or outcome
            outcome = copy
        elif write.explain is not None and isinstance(outcome, Exception):
            self._run(self._explain(write, outcome, write.explain))
            return
        write.outcome.set_exception(outcome)

    async def _explain(self, write: W, rejection: Exception, explain: Explain) -> None:
        try:
            error = await explain(rejection)
        except Exception as failure:  # noqa: BLE001 - the waiting caller gets the error
            error = failure
        if not write.outcome.done():
            write.outcome.set_exception(error)

    # Writes that wait for a lock

    def _block(self, write: W) -> None:
        blocked = self._blocked.get(write.fence)
        if blocked is not None:
            blocked.append(write)
            return
        self._blocked[write.fence] = deque([write])
        self._run(self._write_blocked(write.fence))

    async def _write_blocked(self, fence: Hashable) -> None:
        """Send the writes that wait for the locks of a fence, on a connection of the pool, until none is left."""
        blocked = self._blocked[fence]
        while blocked:
            batch = self._take_blocked(blocked)
            self._sent += len(batch)
            try:
                rows = await self._connections.pipelined(
                    self._batches.statement(waits=True), self._batches.parameters(batch, waits=True)
                )
            except psycopg.Error as failure:
                self._rejected_blocked(batch, failure, blocked)
                continue
            except Exception as failure:  # noqa: BLE001 - the waiting callers get the error
                for write in batch:
                    self._end(write, failure)
                continue
            finally:
                self._sent -= len(batch)
            verdicts = self._batches.verdicts(batch, rows)
            for write, verdict in zip(reversed(batch), reversed(verdicts), strict=True):
                if isinstance(verdict, Busy | Again):
                    blocked.appendleft(write)
                else:
                    self._judge(write, verdict)
        # There was no await after the loop saw the list empty, so no write can have been added to it.
        del self._blocked[fence]

    def _take_blocked(self, blocked: deque[W]) -> list[W]:
        batch: list[W] = []
        keys: set[Hashable] = set()
        rows, size_bytes = 0, 0
        while blocked:
            write = blocked[0]
            rows += write.rows
            size_bytes += write.size_bytes
            is_full = rows > self._batches.rows_max or size_bytes > self._batches.bytes_max
            # A batch has one range id and one write for each key. Stop at the first write that does not fit, to keep
            # the order.
            is_other = batch and (write.range_id != batch[0].range_id or not keys.isdisjoint(write.keys))
            # A write that failed in a batch is sent alone.
            if batch and (is_full or is_other or write.attempts or batch[0].attempts):
                break
            batch.append(blocked.popleft())
            keys.update(write.keys)
        return batch

    def _rejected_blocked(self, batch: list[W], failure: psycopg.Error, blocked: deque[W]) -> None:
        for write in reversed(batch):
            write.attempts += 1
            error = translated(failure) if _is_of_server(failure) else self._batches.error(write, failure)
            is_tried_alone = len(batch) > 1 and not _is_of_server(failure)
            if is_tried_alone or (error is None and write.attempts <= ATTEMPTS_MAX):
                blocked.appendleft(write)
            else:
                self._end(write, error or _lost(failure))

    # The connection

    def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = self._run(self._open_pipeline())

    async def _open_pipeline(self) -> None:
        try:
            self._pipeline = await self._connections.open_pipeline()
        except Exception as failure:  # noqa: BLE001 - the waiting callers get the error
            waiting = [*self._alone, *self._waiting]
            self._alone.clear()
            self._waiting.clear()
            for write in waiting:
                self._end(write, failure)
        finally:
            self._connecting = None
        self._schedule()

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_of_server(failure: psycopg.Error) -> bool:
    """Whether the failure has its cause in the server, not in the write: no memory or disk left, or too slow."""
    return isinstance(failure, psycopg.OperationalError | psycopg.InternalError) and not isinstance(
        failure, errors.DeadlockDetected | errors.SerializationFailure | errors.ProgramLimitExceeded
    )


def _lost(failure: psycopg.Error) -> StoreUnavailable:
    lost = StoreUnavailable(f"other transactions won in {ATTEMPTS_MAX} attempts, nothing was changed: {failure}")
    lost.__cause__ = failure
    return lost
