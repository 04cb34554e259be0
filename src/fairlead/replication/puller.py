"""Pulls one stream, that of one shard of another cluster, from the stored cursor on."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fairlead.aio.backoff import Backoff
from fairlead.api.errors import OutOfRange
from fairlead.core.errors import FairleadError, GiveUp, RetryLater, reported
from fairlead.replication.applier import Applier, is_its_own, is_permanent
from fairlead.replication.cursors import BEGINNING, StoredCursor
from fairlead.replication.dead_letters import DeadLetters, dead_letter_of
from fairlead.replication.lanes import TASKS_MAX, Lanes, Received, Room
from fairlead.replication.messages import PullRequest, PullResponse
from fairlead.replication.remote import Remote
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import REPLICATION_DLQ_ENQUEUED, REPLICATION_TASKS_FAILED, Buckets, Metrics, get_log

# Rows and bytes of a page, at most; with many streams, pages are smaller.
ROWS_A_PAGE = 1_000
PAGE_BYTES_MAX = 1 << 20
PAGE_BYTES_MIN = 64 << 10
# Seconds that the source may wait for new tasks: less while tasks are being applied, so that it gets acknowledgements
# soon.
IDLE_WAIT_S = 15.0
BUSY_WAIT_S = 0.1
# Seconds from one pull to the next if the page was not full. With a pause, a page has more rows, and rows of one run
# are applied together: pauses of 10 ms took twice the CPU time per workflow.
PULL_S_MIN = 0.05
# Seconds between writes of the cursor: while tasks are being applied, and while none are. An idle stream also writes
# it.
SAVE_S = 1.0
SAVE_EMPTY_S = 0.25
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
# Seconds until a task is tried again, at first and at most.
ATTEMPT_S_MIN = 0.05
ATTEMPT_S_MAX = 10.0
# Seconds by which a response may be late before the source counts as unreachable.
LATE_S = 5.0
CLOSE_S_MAX = 1.0

_log = get_log("replication.pulling")


class BegunAnew(RetryLater):
    """The cursor is not valid for this stream: the stream is pulled from its beginning."""


class DisorderedResponse(GiveUp):
    """A response contains other tasks than those that were requested."""


class Stream(NamedTuple):
    """One shard of another cluster."""

    source: str
    shard_id: int

    @property
    def cursor_key(self) -> str:
        """The metadata key of the cursor."""
        return f"replication/cursor/{self.source}/{self.shard_id}"


class StreamStatus(msgspec.Struct, array_like=True, frozen=True):
    """Progress of a stream. All tasks up to `cursor` are safe here, all up to `read_id` are received.

    `lag_tasks` counts the received tasks that are not applied, and those not received, as the source reported them.
    `lag_s` is the age of the oldest of these tasks. If tasks are not received yet, or the source does not respond, it
    is at least the time since this host last had all tasks.
    """

    source: str
    shard_id: int
    host: str
    cursor: int
    read_id: int
    lag_tasks: int
    lag_s: float
    outstanding: int
    dead_letters: int
    # The reason why the stream can't be pulled; empty while it is pulled.
    error: str = ""


class Puller:
    """Pulls a stream and applies it: the cursor passes a task only after the task was applied or stored as a dead
    letter.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        host: str,
        here: str,
        remote: Callable[[], Remote],
        applier: Applier,
        store: HistoryStore,
        dead_letters: DeadLetters,
        room: Room,
        streams: Callable[[], int],
        attempts_max: Callable[[], int],
        metrics: Metrics,
        latency: Buckets,
        clock_ns: Callable[[], int],
        uniform: Callable[[], float],
    ) -> None:
        """`streams` returns the number of streams that this host pulls: they share its memory and its calls in flight.

        `uniform` makes random numbers in [0, 1), which vary the pauses between attempts.
        """
        self.stream = stream
        self._host = host
        self._here = here
        self._remote = remote
        self._applier = applier
        self._dead_letters = dead_letters
        self._room = room
        self._streams = streams
        self._attempts_max = attempts_max
        self._metrics = metrics
        self._latency = latency
        self._clock_ns = clock_ns
        self._uniform = uniform
        self._lanes = Lanes(self._do, room=room)
        self._saved = StoredCursor(store, stream.cursor_key)
        self._read_id = BEGINNING
        self._saved_s = 0.0
        self._behind = 0
        # The last time when all tasks were received, and the time when the pending response is due.
        self._is_whole = False
        self._whole_s = self._due_s = 0.0
        self._error = ""
        self.dead_letters = 0
        self._running: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start pulling."""
        self._whole_s = self._due_s = asyncio.get_running_loop().time()
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop, and store the cursor."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        cursor = self._cursor
        await self._lanes.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._saved.save(cursor)
        except (FairleadError, TimeoutError) as failure:
            _log.info("cursor not stored when the stream was closed", **self._named, reason=str(failure))

    def status(self) -> StreamStatus:
        """The progress of the stream."""
        return StreamStatus(
            *self.stream,
            host=self._host,
            cursor=self._saved.task_id,
            read_id=self._read_id,
            lag_tasks=len(self._lanes) + self._behind,
            lag_s=self._lag_s(),
            outstanding=len(self._lanes),
            dead_letters=self.dead_letters,
            error=self._error,
        )

    def _lag_s(self) -> float:
        """The age of the oldest task not applied; tasks not received may be as old as the last complete pull."""
        now_s = asyncio.get_running_loop().time()
        first = self._lanes.first
        lag_s = 0.0 if first is None else now_s - first.written_s
        is_cut = bool(self._error) or now_s > self._due_s + LATE_S
        if is_cut or self._behind:
            lag_s = max(lag_s, now_s - self._whole_s)
        return max(0.0, lag_s)

    # Pulling

    async def _run(self) -> None:
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, random=self._uniform)
        is_begun = False
        while True:
            try:
                if not is_begun:
                    await self._begin()
                    is_begun = True
                await self._pull()
                backoff.reset()
                if self._error:
                    _log.info("stream is pulled again", **self._named)
                    self._error = ""
            except Exception as failure:  # noqa: BLE001 - the stream is pulled again after any error
                if not self._error:
                    _log.warning("stream can't be pulled", **self._named, **reported(failure, "reason"))
                self._error = str(failure) or type(failure).__name__
                await asyncio.sleep(backoff.next_s())

    async def _begin(self) -> None:
        await self._saved.read()
        if not self._saved.source_id:
            await self._saved.begin_anew((await self._remote().info()).cluster_id)
        self._read_id = self._saved.task_id
        self.dead_letters = await self._dead_letters.count(source=self.stream.source, shard_id=self.stream.shard_id)

    async def _pull(self) -> None:
        loop = asyncio.get_running_loop()
        await self._room.wait()
        await self._lanes.wait_below(TASKS_MAX)
        await self._save_if_due()
        began_s = loop.time()
        is_idle = not self._lanes and self._cursor <= self._saved.task_id
        wait_s = IDLE_WAIT_S if is_idle else BUSY_WAIT_S
        if self._is_whole:
            self._whole_s, self._is_whole = began_s, False
        self._due_s = began_s + wait_s
        bytes_max = max(PAGE_BYTES_MIN, min(PAGE_BYTES_MAX, self._room.bytes_max // max(1, self._streams())))
        request = PullRequest(
            self._here,
            self.stream.shard_id,
            self._read_id,
            self._saved.task_id,
            ROWS_A_PAGE,
            bytes_max,
            wait_s,
            self._saved.source_id,
        )
        try:
            answer = await self._remote().pull(request)
        except OutOfRange as error:
            await self._begin_anew(error)
            raise
        self._take(answer, loop.time())
        if not answer.tasks and not self._lanes:
            await self._saved.save(self._cursor)
        elif not answer.behind:
            await asyncio.sleep(max(0.0, began_s + PULL_S_MIN - loop.time()))

    def _take(self, answer: PullResponse, now_s: float) -> None:
        self._check(answer)
        self._behind = answer.behind
        self._is_whole = not answer.behind
        for task in answer.tasks:
            # The age is computed from the source's clock only.
            age_s = max(0.0, (answer.now_ns / 1000 - task.time_us) / 1_000_000)
            self._lanes.add(Received(task, now_s - age_s))
        self._read_id = answer.through_id

    def _check(self, answer: PullResponse) -> None:
        """Raise if task ids don't increase: a task would be mistaken for another one, or skipped."""
        ids = [self._read_id, *(task.task_id for task in answer.tasks)]
        if any(later <= earlier for earlier, later in pairwise(ids)) or answer.through_id < ids[-1]:
            raise DisorderedResponse(
                f"cluster {self.stream.source!r} was asked for tasks after {self._read_id}, but sent "
                f"{len(answer.tasks)} tasks, the first {[*ids[1:11]]}, as all up to {answer.through_id}: "
                "the response is dropped"
            )

    # The cursor

    @property
    def _cursor(self) -> int:
        first = self._lanes.first
        return self._read_id if first is None else first.task.task_id - 1

    async def _save_if_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._saved_s >= (SAVE_S if self._lanes else SAVE_EMPTY_S):
            self._saved_s = now_s
            await self._saved.save(self._cursor)

    async def _begin_anew(self, error: OutOfRange) -> None:
        """Restart the stream: the source does not have the ids received so far, because its store is new or was
        restored.
        """
        # Finish the received tasks first: the source can't send them again, and their ids may be reused.
        await self._lanes.wait_below(1)
        await self._saved.begin_anew((await self._remote().info()).cluster_id)
        self._read_id = BEGINNING
        raise BegunAnew(f"the stream is pulled from its beginning again: {error}") from error

    # Tasks

    async def _do(self, together: Sequence[Received]) -> None:
        """Apply tasks of one run, together if possible; a task that can't be applied becomes a dead letter."""
        if len(together) > 1:
            try:
                async with self._room.calls:
                    await self._applier.apply_together([received.task for received in together])
            except Exception as failure:  # noqa: BLE001 - after any error, each task is applied separately
                _log.info(
                    "tasks can't be applied together, applying them one by one", **self._named, reason=str(failure)
                )
            else:
                for received in together:
                    self._latency.observe(asyncio.get_running_loop().time() - received.written_s)
                return
        for received in together:
            await self._do_one(received)

    async def _do_one(self, received: Received) -> None:
        attempt = 0
        backoff = Backoff(ATTEMPT_S_MIN, ATTEMPT_S_MAX, random=self._uniform)
        while True:
            try:
                async with self._room.calls:
                    await self._applier.apply(received.task)
            except Exception as failure:  # noqa: BLE001 - no error of a task may stop the stream
                self._metrics.count(REPLICATION_TASKS_FAILED, self.stream.source)
                # Count only failures of the task itself: the source, a host or the store may fail for any time.
                attempt += is_its_own(failure)
                is_final = is_permanent(failure) or attempt >= self._attempts_max()
                if is_final and await self._enqueue_dead_letter(received, failure, attempt):
                    return
                await asyncio.sleep(backoff.next_s())
            else:
                self._latency.observe(asyncio.get_running_loop().time() - received.written_s)
                return

    async def _enqueue_dead_letter(self, received: Received, failure: Exception, attempts: int) -> bool:
        """Enqueue a task to the DLQ; returns whether it is stored."""
        error = f"{type(failure).__name__}: {failure}"
        dead_letter = dead_letter_of(
            received.task,
            source=self.stream.source,
            shard_id=self.stream.shard_id,
            error=error,
            attempts=attempts,
            dead_ns=self._clock_ns(),
        )
        task = received.task
        _log.error(
            "task of another cluster can't be applied, enqueued to the DLQ",
            **self._named,
            task_id=task.task_id,
            workflow_id=task.workflow_id,
            run_id=task.run_id,
            attempts=attempts,
            **reported(failure) | {"error": error},
        )
        try:
            # In two statements: `+=` with an await would lose the counts of tasks enqueued meanwhile.
            is_new = await self._dead_letters.put(dead_letter)
            self.dead_letters += is_new
        except Exception as unkept:  # noqa: BLE001 - after any error, the task stays in its lane
            _log.warning(
                "dead letter not stored, retrying the task", **self._named, task_id=task.task_id, reason=str(unkept)
            )
            return False
        self._metrics.count(REPLICATION_DLQ_ENQUEUED, self.stream.source)
        return True

    @property
    def _named(self) -> dict[str, object]:
        return {"source": self.stream.source, "shard": self.stream.shard_id}
