import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import errors

from fairlead.core.errors import FairleadError
from fairlead.storage.contract import LeaseLost, Levels, LevelTaken, QueueId, StoredTask, StoreUnavailable
from fairlead.storage.postgres import statements
from fairlead.storage.postgres.connections import Connections, Unstorable

# More in one transaction are no faster, and those that wait behind it would wait for longer.
GROUP_TASKS_MAX = 1000
GROUP_BYTES_MAX = 4 * 1024 * 1024
APPENDS_WAITING_MAX = 10_000
BYTES_WAITING_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Append:
    """What one caller wants to store; `outcome` is set to None when it is committed, else to what went wrong."""

    range_id: int
    priority: int
    tasks: Sequence[StoredTask]
    levels: Levels
    fairness_keys: list[bytes]
    size_bytes: int
    outcome: asyncio.Future[Exception | None]


class Appends:
    """Joins the appends that wait for the same queue into one transaction; different queues go side by side.

    The lock on the queue's row lets only one of them through at a time, and each would pay for a commit of its own.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._waiting: dict[QueueId, deque[_Append]] = {}
        self._writers: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._is_closing = False

    async def append(
        self,
        queue: QueueId,
        digest: bytes,
        *,
        range_id: int,
        priority: int,
        tasks: Sequence[StoredTask],
        levels: Levels,
    ) -> None:
        """Store the tasks with whatever else waits; where the caller is cancelled, they may be stored all the same."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing: nothing was changed")
        try:
            fairness_keys = [task.fairness_key.encode() for task in tasks]
        except UnicodeEncodeError as wrong:
            raise Unstorable(f"fairness key {wrong.object!r} has no UTF-8 form: {wrong.reason}") from wrong
        size_bytes = sum(len(task.payload) for task in tasks) + sum(map(len, fairness_keys))
        waiting = self._waiting.get(queue, ())
        if len(waiting) >= APPENDS_WAITING_MAX or self._waiting_bytes + size_bytes > BYTES_WAITING_MAX:
            raise StoreUnavailable(
                f"{len(waiting)} appends wait for {queue} and {self._waiting_bytes} bytes for all queues, "
                f"the most are {APPENDS_WAITING_MAX} and {BYTES_WAITING_MAX}: nothing was changed, try again later"
            )
        outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._enqueue(queue, digest, _Append(range_id, priority, tasks, levels, fairness_keys, size_bytes, outcome))
        failure = await outcome
        if isinstance(failure, FairleadError):
            # Each caller gets an error of its own: a shared one would collect the traceback of them all.
            raise type(failure)(*failure.args) from failure
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Take no more, and wait until all that was taken has its outcome."""
        self._is_closing = True
        if self._writers:
            await asyncio.wait(self._writers)

    def _enqueue(self, queue: QueueId, digest: bytes, append: _Append) -> None:
        self._waiting_bytes += append.size_bytes
        waiting = self._waiting.get(queue)
        if waiting is not None:
            waiting.append(append)
            return
        self._waiting[queue] = deque([append])
        # A task of its own, which goes on when a caller is cancelled. It begins after whatever is ready to run now, so
        # that appends which were made at the same moment are joined.
        writer = asyncio.create_task(self._write_all(queue, digest))
        self._writers.add(writer)
        writer.add_done_callback(self._writers.discard)

    async def _write_all(self, queue: QueueId, digest: bytes) -> None:
        waiting = self._waiting[queue]
        while waiting:
            group = _take_group(waiting)
            await self._write_group(queue, digest, group)
            self._waiting_bytes -= sum(append.size_bytes for append in group)
        # Nothing has run since it was found empty, so nobody is forgotten.
        del self._waiting[queue]

    async def _write_group(self, queue: QueueId, digest: bytes, group: Sequence[_Append]) -> None:
        failure = await self._try_group(queue, digest, group)
        if isinstance(failure, LevelTaken | Unstorable) and len(group) > 1:
            # One of them is to blame, and the others are not to suffer for it.
            for append in group:
                await self._write_group(queue, digest, [append])
            return
        for append in group:
            if not append.outcome.done():
                append.outcome.set_result(failure)

    async def _try_group(self, queue: QueueId, digest: bytes, group: Sequence[_Append]) -> Exception | None:
        try:
            rows = await self._connections.write(statements.APPEND, _parameters(digest, group))
        except errors.UniqueViolation as refused:
            return LevelTaken(f"{queue}: a level is stored already, nothing was changed: {refused.diag.message_detail}")
        except Exception as failed:  # noqa: BLE001 - it belongs to those who wait, not to the writer
            return failed
        return None if rows else lease_lost(queue, group[0].range_id)


def lease_lost(queue: QueueId, range_id: int) -> LeaseLost:
    """Says that a write was refused by the fence."""
    return LeaseLost(f"{queue}: range id {range_id} wanted to write and has no longer the lease: nothing was changed")


def level_parameters(levels: Iterable[tuple[int, Levels]]) -> dict[str, object]:
    """The levels of several priorities, each given once, as columns."""
    rows = list(levels)
    return {
        "priorities": _array(priority for priority, _ in rows),
        "ack_passes": _array(reached.ack_level.pass_number for _, reached in rows),
        "ack_ids": _array(reached.ack_level.task_id for _, reached in rows),
        "max_passes": _array(reached.max_level.pass_number for _, reached in rows),
        "max_ids": _array(reached.max_level.task_id for _, reached in rows),
    }


def _take_group(waiting: deque[_Append]) -> list[_Append]:
    """The first that waits, and as many after it as belong to the same lease and fit."""
    first = waiting.popleft()
    group, tasks, size_bytes = [first], len(first.tasks), first.size_bytes
    while waiting and waiting[0].range_id == first.range_id:
        tasks += len(waiting[0].tasks)
        size_bytes += waiting[0].size_bytes
        if tasks > GROUP_TASKS_MAX or size_bytes > GROUP_BYTES_MAX:
            break
        group.append(waiting.popleft())
    return group


def _parameters(digest: bytes, group: Sequence[_Append]) -> dict[str, object]:
    levels: dict[int, Levels] = {}
    for append in group:
        ack_level, max_level = levels.get(append.priority, append.levels)
        levels[append.priority] = Levels(
            max(ack_level, append.levels.ack_level), max(max_level, append.levels.max_level)
        )
    tasks = [task for append in group for task in append.tasks]
    return {
        "digest": digest,
        "range_id": group[0].range_id,
        **level_parameters(levels.items()),
        "task_priorities": _array(append.priority for append in group for _ in append.tasks),
        "passes": _array(task.level.pass_number for task in tasks),
        "task_ids": _array(task.level.task_id for task in tasks),
        "weights": _array(task.weight for task in tasks),
        "fairness_keys": [key for append in group for key in append.fairness_keys],
        "payloads": [task.payload for task in tasks],
        "created": _array(task.created_s for task in tasks),
    }


def _array(numbers: Iterable[float]) -> str:
    """An array in PostgreSQL's own notation: much cheaper than a parameter that is encoded element by element."""
    return "{" + ",".join(map(str, numbers)) + "}"
