"""A shard: the runs of some of the workflow ids, with one owner at a time, and everything that is written of them.

Whoever changes a run has the lock of its workflow id, works on the state in memory, and has all that follows written
in one commit. The commit is fenced by the shard's range id: an owner that is none any more writes nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TypeVar

from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater
from fairlead.history.applying.activations import Activations
from fairlead.history.applying.announcements import Announcements
from fairlead.history.applying.handing_over import Buffers
from fairlead.history.events import Batch, Transaction, needs_start_event, terminate
from fairlead.history.events.write_workflow_tasks import write_unwritten
from fairlead.history.namespaces import Namespace
from fairlead.history.pushing import push_workflow_task
from fairlead.history.queue import END_OF_TIME, TASKS_A_SHARD_MIN, TASKS_IN_MEMORY_MAX, ShardQueue
from fairlead.history.refusals import not_found
from fairlead.history.runs import LoadedRun, RunCache, WorkflowLock, WorkflowLocks
from fairlead.history.scope import Services
from fairlead.history.shared_writes import SharedWrites
from fairlead.history.state import RunClosed, RunIdentity, RunState, TaskKind
from fairlead.history.state.tasks import (
    AnyTask,
    QueueRow,
    TaskTimeout,
    TimerTask,
    WorkflowTaskTimeout,
    encode_row,
)
from fairlead.history.streaming import JOURNALED, REPLICATION, ShardStream
from fairlead.history.writing import Step, Written
from fairlead.storage.history_contract import (
    Absent,
    BranchWrite,
    Commit,
    CurrentRun,
    CurrentWrite,
    IsRun,
    LeaseLost,
    NotOpen,
    OutcomeUnknown,
    RunKey,
    RunWrite,
    StoredBatch,
    TaskKey,
    TaskWrite,
    VisibilityDelete,
    VisibilityRow,
)
from fairlead.telemetry import TASK_ERRORS, get_log

T = TypeVar("T")

TRANSFER = "transfer"
TIMER = "timer"

# Ids of one range: then the range is renewed.
_RANGE_BITS = 24
# Workflow ids whose current run is remembered.
CURRENT_IN_MEMORY_MAX = 50_000
CURRENT_A_SHARD_MIN = 500
PAGE_BYTES_MAX = 4 * 1024 * 1024
HISTORY_EVENTS_MAX = 51_200
HISTORY_BYTES_MAX = 50 * 1024 * 1024
SECOND_NS = 1_000_000_000

_log = get_log("history.shard")

Condition = Absent | IsRun | NotOpen


class NamespaceMovedHere(RetryElsewhere):
    """A step was begun at a version of another cluster, and this one may write by now: nothing was done."""


class NotHandedOverInTime(RetryLater):
    """Something that was under way in a shard did not end before the time of a hand-over was over."""


class NotOwner(RetryElsewhere):
    """The shard belongs to another host, or will in a moment: nothing was done."""


class Shard:
    """The runs of one shard, while this host owns it."""

    def __init__(
        self,
        shard_id: int,
        *,
        services: Services,
        do: Callable[["Shard", QueueRow], Coroutine[None, None, None]],
        on_lost: Callable[["Shard"], None],
    ) -> None:
        self.shard_id = shard_id
        self.services = services
        self.runs = RunCache(shards=services.shards)
        self._store = services.store
        self._locks = WorkflowLocks()
        self._current_max = max(CURRENT_IN_MEMORY_MAX // services.shards, CURRENT_A_SHARD_MIN)
        self._current: OrderedDict[tuple[str, str], CurrentRun] = OrderedDict()
        self._watchers: dict[RunKey, asyncio.Event] = {}
        # Of those who wait for the end of a run and nothing else: most of its changes need not wake them.
        self._close_watchers: dict[RunKey, asyncio.Event] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._do = do
        self._on_lost = on_lost
        self._range_id = 0
        self._next_id = 0
        self._last_id = 0
        self._renewing = asyncio.Lock()
        # What is on its way to the store.
        self._writing: set[asyncio.Future[None]] = set()
        self.is_lost = False
        self.queues = {
            name: ShardQueue(
                name,
                shard_id=shard_id,
                store=self._store,
                run=self._run_row,
                clock_ns=services.clock_ns,
                range_id=lambda: self._range_id,
                on_lost=self.lose,
                on_error=partial(self._count_error, name),
                is_timed=name == TIMER,
                tasks_max=max(TASKS_IN_MEMORY_MAX // services.shards, TASKS_A_SHARD_MIN),
            )
            for name in (TRANSFER, TIMER)
        }
        self.stream = ShardStream(
            shard_id,
            store=self._store,
            journal=services.journal,
            remotes=lambda: services.clusters.remotes,
            range_id=lambda: self._range_id,
            next_id=lambda: self._next_id,
            on_lost=self.lose,
            shards=services.shards,
        )
        self.shared = SharedWrites(services)
        self._activations = Activations(self)
        self._announcements = Announcements(self)
        self._buffers = Buffers(self, self.queues[TIMER])

    async def open(self) -> None:
        """Become the owner, and take up what is to be done."""
        lease = await self._store.take_shard(self.shard_id)
        self._begin_range(lease.range_id)
        self._buffers.open()
        if self.services.clusters.remotes:
            # A namespace may be handed over since this host looked at it: then its writes wait from the first one on.
            await self.services.namespaces.look_again()
        # Before any task is looked at: one of a namespace that is active here again must not be dropped.
        await self._activations.read()
        # Before anything is written: the clusters that were told of what there was must hear of it.
        await self._announcements.read()
        for name, queue in self.queues.items():
            await queue.open(lease.levels.get(name))
        self.stream.open(lease.levels.get(REPLICATION), lease.levels.get(JOURNALED))
        self._activations.open()
        self._announcements.open()

    async def close(self) -> None:
        """Do nothing more. Who waits is told that the shard is elsewhere."""
        was_lost, self.is_lost = self.is_lost, True
        for timer in self._timers:
            timer.cancel()
        self._send_on()
        await self._activations.close()
        await self._announcements.close()
        for queue in self.queues.values():
            await queue.close()
        await self.stream.close(is_lost=was_lost)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        # What was under way may have left some more.
        self._send_on()

    def _send_on(self) -> None:
        for run in self.runs.clear():
            _abandon(run)
        for event in (*self._watchers.values(), *self._close_watchers.values()):
            event.set()

    def lose(self) -> None:
        """Somebody else owns the shard, or it can't be known what was written: it has to be taken anew."""
        if not self.is_lost:
            self.is_lost = True
            self._on_lost(self)

    def _count_error(self, queue: str, row: QueueRow) -> None:
        self.services.metrics.count(TASK_ERRORS, queue, type(row.task).__name__)

    # Reading

    def lock(self, namespace_id: str, workflow_id: str) -> WorkflowLock:
        """Have a workflow id to oneself: `async with shard.lock(...)`."""
        self._check_owned()
        return self._locks(namespace_id, workflow_id)

    def _check_owned(self) -> None:
        if self.is_lost:
            raise NotOwner(
                f"shard {self.shard_id} is not of host {self.services.host} any more: ask for its owner again"
            )

    async def current(self, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        """The run that a workflow id stands for. To be asked with the lock."""
        key = (namespace_id, workflow_id)
        known = self._current.get(key)
        if known is None:
            known = await self._store.read_current(self.shard_id, namespace_id, workflow_id)
            if known is not None:
                self._remember_current(known)
        else:
            self._current.move_to_end(key)
        return known

    async def load(self, namespace_id: str, workflow_id: str, run_id: str = "") -> LoadedRun:
        """A run, the current one if none is named. To be asked with the lock."""
        # Whoever has waited for the lock meanwhile would wait for news here that come elsewhere.
        self._check_owned()
        if not run_id:
            current = await self.current(namespace_id, workflow_id)
            if current is None:
                raise not_found(f"workflow not found for ID: {workflow_id}")
            run_id = current.run_id
        key = RunKey(namespace_id, workflow_id, run_id)
        run = self.runs.get(key)
        if run is None:
            stored = await self._store.read_run(self.shard_id, namespace_id, workflow_id, run_id)
            if stored is None:
                raise not_found(f'workflow execution not found for workflow ID "{workflow_id}" and run ID "{run_id}"')
            run = LoadedRun.from_store(stored)
            self.runs.put(run)
        return run

    async def read_batches(
        self, state: RunState, from_event_id: int, to_event_id: int, *, limit_bytes: int = PAGE_BYTES_MAX
    ) -> list[Batch]:
        """The batches with the events of a half-open range, in order, as many as may be read at once.

        The ones at the ends may hold events outside of the range.
        """
        identity = state.identity
        run = self.runs.get(RunKey(identity.namespace_id, identity.workflow_id, identity.run_id))
        if run is not None and run.batches and run.batches[0].first_event_id <= from_event_id:
            found: list[Batch] = []
            size = 0
            for batch in run.batches:
                if batch.last_event_id >= from_event_id and batch.first_event_id < to_event_id:
                    size += len(batch.payload)
                    if found and size > limit_bytes:
                        break
                    found.append(batch)
            return found
        stored = await self._store.read_branch(
            identity.tree_id, identity.branch_id, from_event_id, to_event_id, limit_bytes=limit_bytes
        )
        return [_batch(each) for each in stored]

    async def read_event(self, state: RunState, event_id: int) -> HistoryEvent:
        """One event of a run."""
        for batch in await self.read_batches(state, event_id, event_id + 1):
            for event in History.FromString(batch.payload).events:
                if event.event_id == event_id:
                    return event
        raise not_found(f"event {event_id} of run {state.identity.run_id} is not there")

    # Changing

    def transaction(
        self, namespace: Namespace, state: RunState, *, start_event: HistoryEvent | None = None
    ) -> Transaction:
        """A step of a run, at this moment and in this namespace."""
        services = self.services
        return Transaction(
            state,
            now_ns=services.clock_ns(),
            version=max(namespace.failover_version, state.last_version),
            new_id=services.new_id,
            uniform=services.uniform,
            limits=services.limits,
            retention_ns=namespace.retention_ns,
            start_event=start_event,
        )

    def new_run(self, namespace_id: str, workflow_id: str, run_id: str) -> LoadedRun:
        """A run that is not there yet."""
        identity = RunIdentity(namespace_id, workflow_id, run_id, run_id, self.services.new_id())
        return LoadedRun(RunKey(namespace_id, workflow_id, run_id), RunState(identity), None)

    async def change(
        self,
        namespace: Namespace,
        workflow_id: str,
        run_id: str,
        step: Callable[[Transaction, LoadedRun], T],
        *,
        only_open: bool = True,
        may_close: bool = False,
    ) -> T:
        """Take one step of a run, and return what it returned when all of it is durable.

        `may_close`: the step may end the run so that another one begins, for which the first event is needed.
        """
        async with self.lock(namespace.id, workflow_id):
            run = await self.load(namespace.id, workflow_id, run_id)
            if only_open and not run.state.is_open:
                raise RunClosed
            return await self.step(namespace, run, step, may_close=may_close)

    async def step(
        self,
        namespace: Namespace,
        run: LoadedRun,
        step: Callable[[Transaction, LoadedRun], T],
        *,
        may_close: bool = False,
    ) -> T:
        """The same for who has the lock already, and the run."""
        namespace = await self.check_writable(namespace, run)
        start_event = None
        if may_close and run.state.is_open and needs_start_event(run.state):
            start_event = await self.read_event(run.state, 1)
        transaction = self.transaction(namespace, run.state, start_event=start_event)
        try:
            result = step(transaction, run)
        except BaseException as failure:
            run.on_commit.clear()
            run.skip_write = False
            # A step that refuses before it has done anything has changed nothing.
            if (
                not isinstance(failure, FixRequest)
                or transaction.state is not run.state
                or transaction.events
                or transaction.tasks
                or transaction.buffered_count > len(run.state.live.buffered)
            ):
                self._drop(run)
            raise
        if run.skip_write:
            run.skip_write = False
            self._check_owned()
            run.state = transaction.state
            self.runs.put(run)
            self._set_timers(run.key, transaction.tasks)
            self._committed(run)
        else:
            await self.write(namespace, [Step(run, transaction)])
        return result

    async def check_writable(self, namespace: Namespace, run: LoadedRun) -> Namespace:
        """The namespace as it is known by now, if this cluster may write to the run."""
        if namespace.failover_version or run.state.last_version:
            return await self.shared.check(namespace, run.state)
        return namespace

    async def write(
        self,
        namespace: Namespace,
        steps: Sequence[Step],
        *,
        condition: Condition | None = None,
        request_id: str = "",
        branches: Sequence[BranchWrite] = (),
    ) -> None:
        """Write the steps of one workflow id's runs, all or nothing. `condition` is for a run that begins with it."""
        try:
            is_shared = await self._begin_shared(namespace, steps, condition)
        except BaseException:
            self._drop_all(step.run for step in steps)
            raise
        try:
            await self.write_unchecked(namespace, steps, condition=condition, request_id=request_id, branches=branches)
        finally:
            if is_shared:
                self.shared.end(namespace.id)

    async def _begin_shared(self, namespace: Namespace, steps: Sequence[Step], condition: Condition | None) -> bool:
        """Whether the write is one that `shared` is to be told the end of; refused if this cluster may not make it."""
        runs = [step.run for step in steps]
        states = [run.state for run in runs]
        if not namespace.failover_version and not any(state.last_version for state in states):
            return False
        present = None
        # One that is written only where there is no other follows none.
        if not isinstance(condition, Absent) and any(run.db_version is None for run in runs):
            present = await self.current(*runs[0].key[:2])
        # What a new run follows.
        last_version = 0 if present is None else present.last_write_version
        await self.shared.check(namespace, *states, last_version=last_version)
        clusters = self.services.clusters
        for _, transaction in steps:
            if transaction.version and not clusters.versions.is_owned_by(transaction.version, clusters.here):
                raise NamespaceMovedHere(
                    f"namespace {namespace.name!r} has become active in cluster {clusters.here!r} since the step began "
                    f"at version {transaction.version}, which is not this cluster's: take the step again"
                )
        self.shared.begin(namespace.id)
        return True

    async def write_unchecked(
        self,
        namespace: Namespace,
        steps: Sequence[Step],
        *,
        condition: Condition | None = None,
        request_id: str = "",
        branches: Sequence[BranchWrite] = (),
    ) -> None:
        """The same without asking whether this cluster may: for events at a version of its own, wherever it is active.

        Such extend the chain of that version where it ends, so they contradict nobody.
        """
        parts = [*steps]
        try:
            self._check_owned()
            for run, transaction in steps:
                _end_if_too_long(transaction)
                _keep_task(transaction)
                if transaction.new_run is not None:
                    identity = transaction.new_run.state.identity
                    key = RunKey(run.key.namespace_id, run.key.workflow_id, identity.run_id)
                    parts.append(Step(LoadedRun(key, transaction.new_run.state, None), transaction.new_run))
            begun = [step for step in parts if step.run.db_version is None]
            present = None
            if begun:
                live = begun[-1].transaction.state.live
                request_id = request_id or self.services.new_id()
                live.start_request_id = live.start_request_id or request_id
            elif namespace.failover_version or not all(step.transaction.state.is_open for step in parts):
                present = await self.current(*parts[0].run.key[:2])
            await self.ensure_ids(sum(map(_ids_of, parts)))
            written = self.written(namespace)
            for step in parts:
                waiting = len(step.transaction.events) + step.transaction.buffered_count
                written.add_step(step, first_id=self.take_ids(waiting + 1))
        except BaseException:
            self._drop_all(step.run for step in parts)
            raise
        if begun:
            follows = IsRun(parts[0].run.key.run_id) if condition is None else condition
            current = [_current_of(begun[-1].run, request_id, follows)]
        else:
            current = [] if present is None else _current_after(parts, present)
        await self.store(written, current=current, branches=branches)

    def written(self, namespace: Namespace) -> Written:
        """An empty commit in a namespace."""
        services = self.services
        # Who reads it is known by now, perhaps, though the write began before.
        known = services.namespaces.cached_id(namespace.id) or namespace
        return Written(
            namespace,
            is_streamed=self.stream.wants(known),
            is_shared=bool(self.stream.readers_of(known)),
            is_active=services.clusters.is_active(namespace),
        )

    async def store(
        self, written: Written, *, current: Sequence[CurrentWrite] = (), branches: Sequence[BranchWrite] = ()
    ) -> None:
        """Write it, all or nothing; the runs in memory are as it says afterwards, or forgotten if it fails.

        To be called with the lock, and with ids for each of its rows ensured.
        """
        runs = [kept.run for kept in written.kept]
        streamed = {self.take_ids(1): row for row in written.streamed}
        tasks = [self.stream.place(one, *row) for one, row in streamed.items()]
        commit = Commit(written.runs, written.batches, tuple(branches), current, tasks, written.visibility)
        try:
            was_cancelled = await self._commit_tasks(commit, written.rows, on_failure=partial(self._drop_all, runs))
        except BaseException:
            # Of a shard that is lost it is not known whether they were: the next owner finds out.
            if not self.is_lost:
                self.stream.not_written([*streamed])
            raise
        self.stream.written([*streamed])
        for run, batches, kept_tasks in written.kept:
            run.db_version = (run.db_version or 0) + 1
            for batch in batches:
                run.keep(batch)
            self._replace(run)
            self._set_timers(run.key, kept_tasks)
            self._committed(run)
        if was_cancelled:
            raise asyncio.CancelledError

    def _replace(self, run: LoadedRun) -> None:
        """Keep a run. Where it is another object than before, those who wait for what only that one knew ask again."""
        before = self.runs.get(run.key)
        if before is not None and before is not run:
            self.runs.drop(run.key)
            _abandon(before)
        self.runs.put(run)

    async def _commit_tasks(
        self, commit: Commit, rows: Sequence[QueueRow], *, on_failure: Callable[[], None] = lambda: None
    ) -> bool:
        """Write it with the rows of the queues, which are begun when it is durable."""
        keys: list[TaskKey] = []
        try:
            payloads = [encode_row(row) for row in rows]
            keys += [self._place(row.task) for row in rows]
            tasks = [
                TaskWrite(_queue_of(row.task), key.fire_at_ns, key.task_id, payload)
                for key, row, payload in zip(keys, rows, payloads, strict=True)
            ]
            was_cancelled = await self._commit(commit._replace(tasks=[*commit.tasks, *tasks]))
        except BaseException:
            # In a shard that is lost by it they may have been written: what is done is not deleted beyond them.
            if not self.is_lost:
                for key, row in zip(keys, rows, strict=False):
                    self.queues[_queue_of(row.task)].not_written(key)
            on_failure()
            raise
        for write in commit.current:
            self._remember_current(CurrentRun(*write[:6]))
        for key, row in zip(keys, rows, strict=True):
            self.queues[_queue_of(row.task)].written(key, row)
        return was_cancelled

    def _drop_all(self, runs: Iterable[LoadedRun]) -> None:
        for run in runs:
            self._drop(run)

    async def write_rows(
        self,
        runs: Sequence[RunWrite],
        *,
        current: Sequence[CurrentWrite] = (),
        rows: Sequence[QueueRow] = (),
        visibility: Sequence[VisibilityRow | VisibilityDelete] = (),
    ) -> None:
        """Write what has no events, as entities are: fenced and all or nothing as well."""
        namespace = self.services.namespaces.cached_id(runs[0].namespace_id.partition("#")[0]) if runs else None
        if namespace is not None and namespace.failover_version:
            await self.shared.check(namespace)
        await self.ensure_ids(len(rows))
        was_cancelled = await self._commit_tasks(Commit(runs, (), (), current, (), visibility), rows)
        for run in runs:
            self.notify(RunKey(*run[:3]))
        if was_cancelled:
            raise asyncio.CancelledError

    async def delete(self, run: LoadedRun) -> None:
        """Delete a run and its events; to be called with the lock."""
        tree_id, live = run.state.identity.tree_id, run.state.live
        branch_ids = [run.state.identity.branch_id, *(branch.branch_id for branch in live.branches)]
        try:
            await self._delete(run.key, branches=[(tree_id, branch_id) for branch_id in branch_ids])
        finally:
            self._drop(run)
            self.runs.forget(run.key)

    async def delete_entity(self, key: RunKey) -> None:
        """Delete what has no events; to be called with the lock."""
        await self._delete(key)

    async def _delete(self, key: RunKey, *, branches: Sequence[tuple[str, str]] = ()) -> None:
        try:
            was_cancelled = await self._settled(
                self._store.delete_run(self.shard_id, self._range_id, key, branches=branches)
            )
        finally:
            self._current.pop(key[:2], None)
            self.notify(key)
        if was_cancelled:
            raise asyncio.CancelledError

    # Other clusters

    async def hand_over(self, namespace_id: str, until_ns: int) -> int:
        """Have writes of a namespace wait, until then at most; the id of the last row of the stream.

        When this returns none is under way, and what waited for workflow tasks is written: all that was acknowledged
        has a row up to that id.
        """
        left_s = (until_ns - self.services.clock_ns()) / SECOND_NS
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                await self.shared.hand_over(namespace_id, until_ns)
                await self._buffers.write(await self.services.namespaces.find_id(namespace_id))
                # Still its owner: another one that takes the shard from here on reads first that writes wait.
                await self._commit(Commit())
        except TimeoutError:
            raise NotHandedOverInTime(
                f"shard {self.shard_id}: writes of namespace {namespace_id} were under way all the time: try again"
            ) from None
        return self.stream.last_id

    def namespace_changed(self, namespace: Namespace) -> None:
        """Do what follows where it is active here, or is not any more, or lives in other clusters than before."""
        self.shared.tell()
        self._activations.look_at(namespace)
        self._announcements.look_at(namespace)

    def is_told(self, namespace: Namespace, cluster: str) -> bool:
        """Whether a cluster has all that there was before it was one of the namespace's."""
        return self._announcements.is_told(namespace, cluster)

    async def until_written(self) -> None:
        """Until all has ended that is on its way to the store now."""
        if self._writing:
            await asyncio.wait(self._writing)

    # Waiting

    def notify(self, key: RunKey, *, is_over: bool = True) -> None:
        """Wake those who wait for a change of a run; `is_over`: those who wait for its end too."""
        for watchers in (self._watchers, self._close_watchers) if is_over else (self._watchers,):
            event = watchers.pop(key, None)
            if event is not None:
                event.set()

    def watch(self, key: RunKey, *, only_close: bool = False) -> asyncio.Event:
        """Set at the next change of a run, or when it is over."""
        self._check_owned()
        watchers = self._close_watchers if only_close else self._watchers
        event = watchers.get(key)
        if event is None:
            event = watchers[key] = asyncio.Event()
        return event

    def unwatch(self, key: RunKey, event: asyncio.Event) -> None:
        """Nobody need be told any more, if nobody else waits: an event that nobody waits for is forgotten."""
        for watchers in (self._watchers, self._close_watchers):
            if watchers.get(key) is event and not event._waiters:  # noqa: SLF001
                del watchers[key]

    async def push_workflow_task(self, run: LoadedRun) -> None:
        """Offer a workflow task to workers that no queue knows of: a speculative one. To be called without the lock."""
        task = run.state.workflow_task
        if task is not None and not task.is_started:
            await push_workflow_task(self.services, run.key, run.state, task)

    @property
    def background_count(self) -> int:
        """How much is being done that nobody waits for."""
        return len(self._background)

    def in_background(self, work: Coroutine[None, None, None]) -> None:
        """Have something done that nobody waits for and that need not survive."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def call_later(self, delay_s: float, row: QueueRow) -> None:
        """Do a task at a time that need not survive this process."""

        def fire() -> None:
            self._timers.discard(handle)
            self.in_background(self._run_quietly(row))

        handle = asyncio.get_running_loop().call_later(max(0.0, delay_s), fire)
        self._timers.add(handle)

    # Inside

    async def _run_row(self, row: QueueRow) -> None:
        await self._do(self, row)

    async def _run_quietly(self, row: QueueRow) -> None:
        try:
            await self._do(self, row)
        except FairleadError as failure:
            _log.warning("task in memory failed", shard=self.shard_id, task=repr(row.task), error=str(failure))

    def _set_timers(self, key: RunKey, tasks: Sequence[AnyTask]) -> None:
        for task in tasks:
            if isinstance(task, WorkflowTaskTimeout) and task.in_memory:
                delay_s = (task.fire_at_ns - self.services.clock_ns()) / SECOND_NS
                self.call_later(delay_s, QueueRow(*key, task))

    def _committed(self, run: LoadedRun) -> None:
        for callback in run.on_commit:
            callback()
        run.on_commit.clear()
        if run.updates is not None and not run.state.is_open:
            run.updates.on_closed(run.state)
        if run.queries is not None and run.state.workflow_task is None:
            run.queries.unblock()
        self.notify(run.key, is_over=not run.state.is_open)

    def _drop(self, run: LoadedRun) -> None:
        """What is in memory may not be what is in the store.

        With it goes a speculative task, which is nowhere else: those who wait for that ask again.
        """
        run.on_commit.clear()
        before = self.runs.drop(run.key)
        self._current.pop(run.key[:2], None)
        _abandon(run)
        if before is not None and before is not run:
            _abandon(before)

    async def _commit(self, commit: Commit) -> bool:
        return await self._settled(self._store.commit(self.shard_id, self._range_id, commit))

    async def _settled(self, write: Coroutine[None, None, None]) -> bool:
        """Have it written; whether the one who asked for it has gone away meanwhile. It is not cut short by that.

        Else nobody would know whether it was written.
        """
        writing = asyncio.ensure_future(write)
        self._writing.add(writing)
        was_cancelled = False
        try:
            while True:
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:
                    if writing.cancelled():
                        raise
                    was_cancelled = True
                    continue
                return was_cancelled
        except FairleadError as failure:
            if isinstance(failure, LeaseLost | OutcomeUnknown):
                self.lose()
            if was_cancelled:
                # Whoever was told to end does not go on because this failed: the shard's own end waits for it.
                raise asyncio.CancelledError from failure
            if isinstance(failure, LeaseLost):
                raise NotOwner(f"shard {self.shard_id} has another owner by now: ask for it again") from failure
            raise
        finally:
            self._writing.discard(writing)

    def _remember_current(self, current: CurrentRun) -> None:
        self._current[current.namespace_id, current.workflow_id] = current
        self._current.move_to_end((current.namespace_id, current.workflow_id))
        if len(self._current) > self._current_max:
            self._current.popitem(last=False)

    def _place(self, task: AnyTask) -> TaskKey:
        # Some stores know of no later time.
        fire_at_ns = min(task.fire_at_ns, END_OF_TIME.fire_at_ns - 1) if isinstance(task, TimerTask) else 0
        return self.queues[_queue_of(task)].place(fire_at_ns, self.take_ids(1))

    def _begin_range(self, range_id: int) -> None:
        self._range_id = range_id
        self._next_id = range_id << _RANGE_BITS
        self._last_id = (range_id + 1) << _RANGE_BITS

    def take_ids(self, count: int) -> int:
        """The first of so many ids that nobody else has; `ensure_ids` has seen to it that there are as many."""
        first = self._next_id
        self._next_id += count
        return first

    async def ensure_ids(self, wanted: int) -> None:
        """Renew the range before its ids run out; what is in flight by the old one has ended by then, or never will."""
        if self._next_id + wanted < self._last_id:
            return
        async with self._renewing:
            if self._next_id + wanted < self._last_id:
                return
            # What was sent by the old range would be refused by the new one.
            while self._writing:
                await self.until_written()
            try:
                self._begin_range(await self._store.renew_shard(self.shard_id, self._range_id))
            except LeaseLost as lost:
                self.lose()
                raise NotOwner(f"shard {self.shard_id} has another owner by now: ask for it again") from lost


def _queue_of(task: AnyTask) -> str:
    return TIMER if isinstance(task, TimerTask) else TRANSFER


def _batch(stored: StoredBatch) -> Batch:
    return Batch(stored.first_event_id, stored.last_event_id, stored.payload)


def _ids_of(step: Step) -> int:
    """How many ids a step takes at most: at worst each event is a batch, too, of another version than that before."""
    transaction = step.transaction
    return 2 * len(transaction.events) + transaction.buffered_count + len(transaction.tasks) + 8


def _current_of(run: LoadedRun, request_id: str, condition: Condition) -> CurrentWrite:
    state = run.state
    return CurrentWrite(*run.key, request_id, state.status, state.last_version, condition)


def _current_after(parts: Sequence[Step], present: CurrentRun) -> list[CurrentWrite]:
    """What the row of the current run says after the steps, if that changes: that it is closed, or its version."""
    for run, _ in parts:
        state = run.state
        is_changed = not state.is_open or state.last_version != present.last_write_version
        if run.key.run_id == present.run_id and not present.is_closed and is_changed:
            return [_current_of(run, present.request_id, IsRun(run.key.run_id))]
    return []


def _end_if_too_long(transaction: Transaction) -> None:
    """A history that grows without end is ended, so that it can still be read."""
    state = transaction.state
    if not state.is_open:
        return
    if state.next_event_id > HISTORY_EVENTS_MAX:
        terminate(transaction, reason="Workflow history count exceeds limit.", identity="history-service")
    elif state.live.history_size_bytes > HISTORY_BYTES_MAX:
        terminate(transaction, reason="Workflow history size exceeds limit.", identity="history-service")


def _keep_task(transaction: Transaction) -> None:
    """What waits for the end of a workflow task must not wait for one that only memory knows: then it is written."""
    state = transaction.state
    task = state.live.unwritten_task
    if (
        state.is_open
        and transaction.buffered_count
        and task is not None
        and task.kind is TaskKind.SPECULATIVE
        and task.is_started
    ):
        written = write_unwritten(transaction)
        transaction.add_task(
            WorkflowTaskTimeout(
                version=written.version,
                fire_at_ns=task.started_ns + task.timeout_ns,
                scheduled_event_id=written.scheduled_event_id,
                attempt=written.attempt,
                kind=TaskTimeout.START_TO_CLOSE,
            )
        )


def _abandon(run: LoadedRun) -> None:
    if run.updates is not None:
        run.updates.abandon()
    if run.queries is not None:
        run.queries.abandon()
