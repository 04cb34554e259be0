"""A shard: the runs of part of the workflow ids, owned by one host at a time.

A change of a run takes the lock of its workflow id, changes the state in memory, and writes all results in one commit.
The range id of the shard fences the commit, so a host that is no longer the owner can't write.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NoReturn, TypeVar

from temporalio.api.common.v1 import Principal
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.limits import LimitedSize
from fairlead.api.namespaces import Namespace
from fairlead.api.principals import current_principal
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FixRequest
from fairlead.history.events import Transaction, needs_start_event, terminate
from fairlead.history.events.write_workflow_tasks import HISTORY_SERVICE
from fairlead.history.shard.background import BackgroundWork
from fairlead.history.shard.commit import Step
from fairlead.history.shard.context import Services
from fairlead.history.shard.current_runs import CurrentRuns
from fairlead.history.shard.direct_start import DirectStart, DirectStarter
from fairlead.history.shard.event_reader import EventReader
from fairlead.history.shard.grouped_steps import GroupedSteps
from fairlead.history.shard.handover_writes import HandoverWrites, NotHandedOverInTime
from fairlead.history.shard.ids import ShardIds
from fairlead.history.shard.ownership import Ownership
from fairlead.history.shard.queues import ShardQueues
from fairlead.history.shard.replication_work import ReplicationWork
from fairlead.history.shard.run_cache import LoadedRun, RunCache
from fairlead.history.shard.slots import ShardSlots
from fairlead.history.shard.store_writes import StoreWrites
from fairlead.history.shard.stream import JOURNALED, REPLICATION, ShardStream
from fairlead.history.shard.watchers import RunWatchers
from fairlead.history.shard.workflow_locks import WorkflowLock, WorkflowLocks
from fairlead.history.shard.writer import Condition, ShardWriter
from fairlead.history.state import RunClosed, RunIdentity, RunState
from fairlead.history.state.tasks import QueueRow, Task
from fairlead.storage.commit import Commit
from fairlead.storage.history import RunKey

T = TypeVar("T")


class Shard:
    """One shard on the host that owns it. Loads runs and changes them by steps; its parts do all other work.

    After `ownership.is_lost` a shard does nothing more, and the host opens a new one.
    """

    def __init__(
        self,
        shard_id: int,
        *,
        services: Services,
        run_task: Callable[["Shard", QueueRow], Coroutine[None, None, None]],
        is_over: Callable[[RunState, Task], bool],
        replication_work: Callable[["Shard"], ReplicationWork],
        start_directly: "Callable[[Shard, Namespace, LoadedRun, Transaction], DirectStart | None]",
        on_lost: Callable[["Shard"], None],
    ) -> None:
        """`run_task` executes a task of the queues, unless `is_over` shows that it would have no effect."""
        store = services.store
        self.shard_id = shard_id
        self.services = services
        self.run_task = partial(run_task, self)
        self._has_no_effect = is_over
        self.start_directly: DirectStarter = partial(start_directly, self)
        self._locks = WorkflowLocks()
        self.ownership = Ownership(shard_id, host=services.host, store=store, on_lost=partial(on_lost, self))
        self.store_writes = StoreWrites(self.ownership, store)
        self.ids = ShardIds(self.ownership, self.store_writes)
        self.runs = RunCache(shards=services.shards)
        self.current_runs = CurrentRuns(shard_id, store, shards=services.shards)
        self.events = EventReader(self.runs, store)
        self.watchers = RunWatchers(self.ownership)
        self.background = BackgroundWork(shard_id, run=self.run_task)
        self.queues = ShardQueues(self.ownership, self.ids, services, run=self.run_task, is_over=self._is_over)
        self.slots = ShardSlots(
            shard_id,
            services=services,
            ownership=self.ownership,
            background=self.background,
            lock=self.lock,
            load=self.load,
        )
        self.stream = ShardStream(
            shard_id,
            store=store,
            journal=services.journal,
            remotes=lambda: services.clusters.remotes,
            range_id=lambda: self.ownership.range_id,
            next_id=lambda: self.ids.next_id,
            on_lost=self.ownership.lose,
            shards=services.shards,
        )
        self.handover_writes = HandoverWrites(services)
        self.writer = ShardWriter(
            services,
            ownership=self.ownership,
            ids=self.ids,
            store_writes=self.store_writes,
            queues=self.queues,
            stream=self.stream,
            handover_writes=self.handover_writes,
            runs=self.runs,
            current_runs=self.current_runs,
            watchers=self.watchers,
            background=self.background,
            slots=self.slots,
        )
        self.grouped_steps = GroupedSteps(self)
        self.replication_work = replication_work(self)

    async def open(self) -> None:
        """Become the owner, and continue the tasks and the replication work that are in the store."""
        lease = await self.ownership.acquire()
        self.ids.begin_range()
        self.replication_work.take_over()
        if self.services.clusters.remotes:
            # A handover may have begun after this host read the namespaces; then even the first write must wait.
            await self.services.namespaces.refresh_after_now()
        await self.replication_work.read()
        await self.queues.open(lease.levels)
        self.stream.open(lease.levels.get(REPLICATION), lease.levels.get(JOURNALED))
        self.replication_work.open()
        self.slots.open()

    async def close(self) -> None:
        """Stop all work, and wake waiting callers, which then get the error that the shard is lost."""
        was_lost, self.ownership.is_lost = self.ownership.is_lost, True
        self.background.cancel_timers()
        self.slots.close()
        self._release_callers()
        await self.replication_work.close()
        await self.queues.close()
        await self.stream.close(is_lost=was_lost)
        await self.background.close()
        # The work that has just ended may have loaded further runs.
        self._release_callers()

    def _release_callers(self) -> None:
        for run in self.runs.clear():
            run.abandon()
        self.watchers.notify_all()

    # Runs

    def lock(self, namespace_id: str, workflow_id: str) -> WorkflowLock:
        """The lock of a workflow id, for `async with shard.lock(...)`."""
        self.ownership.check()
        return self._locks(namespace_id, workflow_id)

    def is_locked(self, namespace_id: str, workflow_id: str) -> bool:
        """Whether a caller has the lock of a workflow id."""
        return self._locks.is_held(namespace_id, workflow_id)

    def _is_over(self, row: QueueRow) -> bool:
        """Whether the stored state of a run in memory shows that its task has no effect any more."""
        # While a caller has the lock, the state in memory may be ahead of the stored state.
        if self._locks.is_held(row.namespace_id, row.workflow_id):
            return False
        run = self.runs.get(RunKey(row.namespace_id, row.workflow_id, row.run_id))
        return run is not None and self._has_no_effect(run.state, row.task)

    async def load(self, namespace_id: str, workflow_id: str, run_id: str = "") -> LoadedRun:
        """A run; without `run_id`, the current run. The caller must hold the lock."""
        # The shard may have been lost while the caller waited for the lock: the caller would wait here for changes that
        # happen at another host.
        self.ownership.check()
        if not run_id:
            current = await self.current_runs.find(namespace_id, workflow_id)
            if current is None:
                raise NotFound(f"workflow not found for ID: {workflow_id}")
            run_id = current.run_id
        key = RunKey(namespace_id, workflow_id, run_id)
        run = self.runs.get(key)
        if run is None:
            stored = await self.services.store.read_run(self.shard_id, namespace_id, workflow_id, run_id)
            if stored is None:
                raise NotFound(f'workflow execution not found for workflow ID "{workflow_id}" and run ID "{run_id}"')
            run = LoadedRun.from_store(stored)
            self.runs.put(run)
        return run

    def new_run(self, namespace_id: str, workflow_id: str, run_id: str) -> LoadedRun:
        """A run that is not yet in the store."""
        identity = RunIdentity(namespace_id, workflow_id, run_id, run_id, self.services.new_id())
        return LoadedRun(RunKey(namespace_id, workflow_id, run_id), RunState(identity), None)

    # Steps

    def transaction(
        self,
        namespace: Namespace,
        state: RunState,
        *,
        start_event: HistoryEvent | None = None,
        skipped_ns: int | None = None,
    ) -> Transaction:
        """Begin a step of a run, with the current time, and the namespace's version and limits.

        `skipped_ns` is the time by which the clock of a new run is ahead of the wall clock.
        """
        services = self.services
        kind, name = current_principal()
        return Transaction(
            state,
            now_ns=services.clock_ns() + (state.skipped_ns if skipped_ns is None else skipped_ns),
            version=max(namespace.failover_version, state.last_version),
            new_id=services.new_id,
            uniform=services.uniform,
            limits=services.limits.of(namespace.id),
            retention_ns=namespace.retention_ns,
            start_event=start_event,
            workflow_rules=namespace.workflow_rules,
            principal=Principal(type=kind, name=name) if name else None,
        )

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
        """Lock a workflow id, take a step of its run, and return the step's result when the step is durable.

        Pass `may_close=True` if the step may close the run and start the next run, for which it needs the first event.
        """
        async with self.lock(namespace.id, workflow_id):
            run = await self.load(namespace.id, workflow_id, run_id)
            if only_open and not run.state.is_open:
                raise RunClosed
            return await self.step(namespace, run, step, may_close=may_close)

    async def change_locked(
        self, namespace: Namespace, workflow_id: str, run_id: str, step: Callable[[Transaction, LoadedRun], T]
    ) -> T:
        """Like `change` for an open run, for a caller that holds the lock."""
        run = await self.load(namespace.id, workflow_id, run_id)
        if not run.state.is_open:
            raise RunClosed
        return await self.step(namespace, run, step)

    async def step(
        self,
        namespace: Namespace,
        run: LoadedRun,
        step: Callable[[Transaction, LoadedRun], T],
        *,
        may_close: bool = False,
    ) -> T:
        """Like `change`, for a caller that holds the lock and has loaded the run."""
        namespace = await self.check_writable(namespace, run)
        start_event = None
        if may_close and run.state.is_open and needs_start_event(run.state):
            start_event = await self.events.read_event(run.state, 1)
        transaction = self.transaction(namespace, run.state, start_event=start_event)
        try:
            result = step(transaction, run)
        except BaseException as failure:
            run.on_commit.clear()
            run.skip_write = False
            # If a step rejects its request before it changes anything, the run in memory stays valid.
            if (
                not isinstance(failure, ApiError | FixRequest)
                or transaction.state is not run.state
                or transaction.events
                or transaction.tasks
                or transaction.buffered_count > len(run.state.live.buffered)
            ):
                self.writer.discard(run)
            raise
        if transaction.is_long or transaction.excess:
            self._warn_of_history(namespace, run, transaction)
        if transaction.excess:
            await self._end_beyond_limit(namespace, run, transaction.excess)
        if run.skip_write:
            run.skip_write = False
            self.ownership.check()
            run.state = transaction.state
            self.runs.put(run)
            self.writer.applied(run, transaction.tasks)
        else:
            await self.write_step(namespace, run, transaction)
        return result

    async def write_step(
        self,
        namespace: Namespace,
        run: LoadedRun,
        transaction: Transaction,
        *,
        condition: Condition | None = None,
        request_id: str = "",
        may_start: bool = True,
    ) -> None:
        """Write a step, see `ShardWriter.write`; if a poll waits for the task that it has scheduled, start the task.

        `may_start` is False if the task must not start yet.
        """
        try:
            started = self.start_directly(namespace, run, transaction) if may_start else None
        except BaseException:
            self.writer.discard(run)
            raise
        if started is None:
            await self.writer.write(namespace, [Step(run, transaction)], condition=condition, request_id=request_id)
            return
        run.on_commit.append(started.committed)
        try:
            await self.writer.write(namespace, [Step(run, transaction)], condition=condition, request_id=request_id)
            await started.give()
        except asyncio.CancelledError:
            # The caller was cancelled, but the worker must get the task.
            if started.is_committed:
                self.background.start(started.give())
            else:
                started.release()
            raise
        except BaseException:
            started.release()
            raise

    async def check_writable(self, namespace: Namespace, run: LoadedRun) -> Namespace:
        """The latest known namespace; raises an API error if this cluster may not write to the run."""
        if namespace.failover_version or run.state.last_version:
            return await self.handover_writes.check(namespace, run.state)
        return namespace

    def _warn_of_history(self, namespace: Namespace, run: LoadedRun, transaction: Transaction) -> None:
        """Log a history that is above its limits or its warning limits."""
        state, limits = transaction.state, transaction.limits
        for kind, size, warn, error in (
            (
                LimitedSize.HISTORY_SIZE,
                state.live.history_size_bytes,
                limits.history_size_warn,
                limits.history_size_max,
            ),
            (LimitedSize.HISTORY_COUNT, state.next_event_id - 1, limits.history_count_warn, limits.history_count_max),
        ):
            self.services.size_warnings.check(
                kind,
                size,
                warn=warn,
                error=error,
                namespace=namespace.name,
                workflow_id=run.key.workflow_id,
                operation=transaction.last_event_name,
            )

    async def _end_beyond_limit(self, namespace: Namespace, run: LoadedRun, excess: str) -> NoReturn:
        """Reject a step of a run whose history is too large, and terminate the run instead."""
        run.skip_write = False
        self.writer.discard(run)
        stored = await self.load(*run.key)
        transaction = self.transaction(namespace, stored.state)
        terminate(transaction, reason=excess, identity=HISTORY_SERVICE)
        await self.writer.write(namespace, [Step(stored, transaction)])
        raise InvalidArgument(excess)

    # Other clusters

    async def hand_over(self, namespace_id: str, until_ns: int) -> int:
        """Make writes of a namespace wait, at most until `until_ns`; return the id of the last row of the stream.

        On return no write is in flight, and buffered events are written, so each acknowledged write has a row up to
        that id.
        """
        left_s = (until_ns - self.services.clock_ns()) / SECOND_NS
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                await self.handover_writes.hand_over(namespace_id, until_ns)
                await self.replication_work.write_buffered_events(await self.services.namespaces.find_id(namespace_id))
                # An empty commit proves that this host is still the owner. A later owner reads the namespace after the
                # handover began.
                await self.store_writes.commit(Commit())
        except TimeoutError:
            raise NotHandedOverInTime(
                f"shard {self.shard_id}: writes of namespace {namespace_id} did not end within the time limit of the "
                "handover: try again"
            ) from None
        return self.stream.last_id

    def namespace_changed(self, namespace: Namespace) -> None:
        """Act on a change of a namespace's active cluster, its clusters or its handover."""
        self.handover_writes.notify()
        self.replication_work.namespace_changed(namespace)
