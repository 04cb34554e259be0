"""Pulls one stream, that of one shard of another cluster: from the durable cursor on, while it is this host's."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fairlead.core.errors import FairleadError, GiveUp, RetryLater
from fairlead.history.refusals import Refused
from fairlead.replication.applying import Applier, is_its_own, is_permanent
from fairlead.replication.cursors import BEGINNING, StoredCursor
from fairlead.replication.dead_letters import DeadLetters, letter_of
from fairlead.replication.lanes import TASKS_MAX, Lanes, Received, Room
from fairlead.replication.messages import PullAnswer, PullRequest
from fairlead.replication.remote import Remote
from fairlead.rpc import Code
from fairlead.storage.history_contract import HistoryStore
from fairlead.telemetry import REPLICATION_DLQ_ENQUEUED, REPLICATION_TASKS_FAILED, Buckets, Metrics, get_log

# Rows and bytes of a page, at most; where many streams are pulled, each page is smaller.
ROWS_A_PAGE = 1_000
PAGE_BYTES_MAX = 1 << 20
PAGE_BYTES_MIN = 64 << 10
# For how long the source may wait for something new. While something is under way it is asked again sooner, so that it
# hears what is done by then.
IDLE_WAIT_S = 15.0
BUSY_WAIT_S = 0.1
# A page that is not full is followed by another after this time at the earliest: some more rows will be in it, and
# those of one run are taken in together. At 10 ms a follower took twice the processor time for each workflow.
PULL_S_MIN = 0.05
# The cursor is written when nothing more comes; until then so often, and more often where nothing is under way.
SAVE_S = 1.0
SAVE_EMPTY_S = 0.25
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
# How soon a task is tried again, at first and at most.
ATTEMPT_S_MIN = 0.05
ATTEMPT_S_MAX = 10.0
# An answer that is later than this is not on its way any more: the source can't be reached, perhaps.
LATE_S = 5.0
CLOSE_S_MAX = 1.0
SECOND_NS = 1_000_000_000

_log = get_log("replication.pulling")


class BegunAnew(RetryLater):
    """A stream is none that the place in it is of: it is pulled from its beginning from now on."""


class DisorderedAnswer(GiveUp):
    """The tasks that another cluster has sent are not those that were asked for."""


class Stream(NamedTuple):
    """One shard of another cluster."""

    source: str
    shard_id: int

    @property
    def cursor_key(self) -> str:
        """Where it is kept up to which task all are safe here."""
        return f"replication/cursor/{self.source}/{self.shard_id}"


class StreamStatus(msgspec.Struct, array_like=True, frozen=True):
    """How far this cluster is with a stream. All up to `cursor` is safe here, all up to `read_id` has come.

    `lag_tasks` counts what has come and is not done, and what is yet to come, as far as the source says. `lag_s` is the
    age of the oldest of them; of what is yet to come, and may be where no answer comes, the time since all had come.
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
    # Why nothing comes, while nothing does.
    error: str = ""


class Puller:
    """Pulls a stream and has all of it taken in: a task has ended well, or is a dead letter, when the cursor passes."""

    def __init__(
        self,
        stream: Stream,
        *,
        host: str,
        here: str,
        remote: Callable[[], Remote],
        applier: Applier,
        store: HistoryStore,
        letters: DeadLetters,
        room: Room,
        streams: Callable[[], int],
        attempts_max: Callable[[], int],
        metrics: Metrics,
        latency: Buckets,
        clock_ns: Callable[[], int],
    ) -> None:
        """`streams` is how many this host pulls, which share the room."""
        self.stream = stream
        self._host = host
        self._here = here
        self._remote = remote
        self._applier = applier
        self._letters = letters
        self._room = room
        self._streams = streams
        self._attempts_max = attempts_max
        self._metrics = metrics
        self._latency = latency
        self._clock_ns = clock_ns
        self._lanes = Lanes(self._do, room=room)
        self._saved = StoredCursor(store, stream.cursor_key)
        self._read_id = BEGINNING
        self._saved_s = 0.0
        self._behind = 0
        # When there was nothing that had not come, and when the answer that is waited for should have come.
        self._is_whole = False
        self._whole_s = self._due_s = 0.0
        self._error = ""
        self.dead_letters = 0
        self._running: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Pull from now on."""
        self._whole_s = self._due_s = asyncio.get_running_loop().time()
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop, and note how far it has come."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        cursor = self._cursor
        await self._lanes.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._saved.save(cursor)
        except (FairleadError, TimeoutError) as failure:
            _log.info("cursor not saved at the end", **self._named, reason=str(failure))

    def status(self) -> StreamStatus:
        """How far it is."""
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
        """How old the oldest may be that is not done: what has come is as old as it is, what has not may be older."""
        now_s = asyncio.get_running_loop().time()
        first = self._lanes.first
        lag_s = 0.0 if first is None else now_s - first.written_s
        is_cut = bool(self._error) or now_s > self._due_s + LATE_S
        if is_cut or self._behind:
            lag_s = max(lag_s, now_s - self._whole_s)
        return max(0.0, lag_s)

    # Pulling

    async def _run(self) -> None:
        wait_s = RETRY_S_MIN
        is_begun = False
        while True:
            try:
                if not is_begun:
                    await self._begin()
                    is_begun = True
                await self._pull()
                wait_s = RETRY_S_MIN
                if self._error:
                    _log.info("stream is pulled again", **self._named)
                    self._error = ""
            except Exception as failure:  # noqa: BLE001 - whatever it is, the stream is pulled again
                if not self._error:
                    unexpected = None if isinstance(failure, FairleadError) else failure
                    _log.warning("stream can't be pulled", **self._named, reason=str(failure), exc_info=unexpected)
                self._error = str(failure) or type(failure).__name__
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)

    async def _begin(self) -> None:
        await self._saved.read()
        if not self._saved.source_id:
            await self._saved.begin_anew((await self._remote().info()).cluster_id)
        self._read_id = self._saved.task_id
        self.dead_letters = await self._letters.count(source=self.stream.source, shard_id=self.stream.shard_id)

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
        except Refused as refusal:
            if refusal.code == Code.OUT_OF_RANGE:
                await self._begin_anew(refusal)
            raise
        self._take(answer, loop.time())
        if not answer.tasks and not self._lanes:
            await self._saved.save(self._cursor)
        elif not answer.behind:
            await asyncio.sleep(max(0.0, began_s + PULL_S_MIN - loop.time()))

    def _take(self, answer: PullAnswer, now_s: float) -> None:
        self._check(answer)
        self._behind = answer.behind
        self._is_whole = not answer.behind
        for task in answer.tasks:
            # Its age is measured by the clock that wrote it.
            age_s = max(0.0, (answer.now_ns / 1000 - task.time_us) / 1_000_000)
            self._lanes.add(Received(task, now_s - age_s))
        self._read_id = answer.through_id

    def _check(self, answer: PullAnswer) -> None:
        """Refuse ids that don't rise: a task would be taken for another one, or never be looked for again."""
        ids = [self._read_id, *(task.task_id for task in answer.tasks)]
        if any(later <= earlier for earlier, later in pairwise(ids)) or answer.through_id < ids[-1]:
            raise DisorderedAnswer(
                f"cluster {self.stream.source!r} was asked for tasks after {self._read_id}, and has sent "
                f"{[*ids[1:11]]} of {len(answer.tasks)}, with none up to {answer.through_id}: nothing is taken of it"
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

    async def _begin_anew(self, refusal: Refused) -> None:
        """The source never had what was received up to here: its store is another one, or one from before."""
        # What has come is to be had from nobody else any more, and ids may come again.
        await self._lanes.wait_below(1)
        await self._saved.begin_anew((await self._remote().info()).cluster_id)
        self._read_id = BEGINNING
        raise BegunAnew(f"the stream is pulled from its beginning again: {refusal}") from refusal

    # Tasks

    async def _do(self, together: Sequence[Received]) -> None:
        """Have tasks of one run taken in, all at once if that can be; each that can't is kept as a dead letter."""
        if len(together) > 1:
            try:
                async with self._room.calls:
                    await self._applier.apply_together([received.task for received in together])
            except Exception as failure:  # noqa: BLE001 - whatever it is, each is tried by itself
                _log.info("tasks are taken in one by one", **self._named, reason=str(failure))
            else:
                for received in together:
                    self._latency.observe(asyncio.get_running_loop().time() - received.written_s)
                return
        for received in together:
            await self._do_one(received)

    async def _do_one(self, received: Received) -> None:
        attempt = 0
        wait_s = ATTEMPT_S_MIN
        while True:
            try:
                async with self._room.calls:
                    await self._applier.apply(received.task)
            except Exception as failure:  # noqa: BLE001 - whatever it is, it must not hold up the stream
                self._metrics.count(REPLICATION_TASKS_FAILED, self.stream.source)
                # However long a source is away, or a host or the store here: that is no fault of the task.
                attempt += is_its_own(failure)
                is_final = is_permanent(failure) or attempt >= self._attempts_max()
                if is_final and await self._bury(received, failure, attempt):
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, ATTEMPT_S_MAX)
            else:
                self._latency.observe(asyncio.get_running_loop().time() - received.written_s)
                return

    async def _bury(self, received: Received, failure: Exception, attempts: int) -> bool:
        """Keep a task as a dead letter; whether it is kept."""
        error = f"{type(failure).__name__}: {failure}"
        letter = letter_of(
            received.task,
            source=self.stream.source,
            shard_id=self.stream.shard_id,
            error=error,
            attempts=attempts,
            dead_ns=self._clock_ns(),
        )
        task = received.task
        _log.error(
            "task of another cluster can't be taken in",
            **self._named,
            task_id=task.task_id,
            workflow_id=task.workflow_id,
            run_id=task.run_id,
            attempts=attempts,
            error=error,
            exc_info=None if isinstance(failure, FairleadError) else failure,
        )
        try:
            # Not in one: others are buried while this one is.
            is_new = await self._letters.put(letter)
            self.dead_letters += is_new
        except Exception as unkept:  # noqa: BLE001 - whatever it is, the task is kept in its lane
            _log.warning("dead letter not kept", **self._named, task_id=task.task_id, reason=str(unkept))
            return False
        self._metrics.count(REPLICATION_DLQ_ENQUEUED, self.stream.source)
        return True

    @property
    def _named(self) -> dict[str, object]:
        return {"source": self.stream.source, "shard": self.stream.shard_id}
