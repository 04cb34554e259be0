"""Commits of one shard. Each commit is one write to the store: steps of runs, changes of entities, or a deletion.

All writes are fenced by the shard's range id. After a failed write, its runs are dropped from memory, because their
state in memory may differ from the stored state.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fairlead.api.entity_namespaces import base_namespace_id
from fairlead.api.namespaces import Namespace
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import RetryElsewhere
from fairlead.history.events import Transaction
from fairlead.history.events.write_time_skipping import skip_time
from fairlead.history.events.write_workflow_tasks import write_unwritten
from fairlead.history.shard.background import BackgroundWork
from fairlead.history.shard.commit import Step, Written
from fairlead.history.shard.context import Services
from fairlead.history.shard.current_runs import CurrentRuns
from fairlead.history.shard.handover_writes import HandoverWrites
from fairlead.history.shard.ids import ShardIds
from fairlead.history.shard.ownership import Ownership
from fairlead.history.shard.queues import AssignedTask, ShardQueues
from fairlead.history.shard.run_cache import LoadedRun, RunCache
from fairlead.history.shard.slots import ShardSlots
from fairlead.history.shard.store_writes import StoreWrites
from fairlead.history.shard.stream import ShardStream
from fairlead.history.shard.watchers import RunWatchers
from fairlead.history.state import TaskKind
from fairlead.history.state.tasks import AnyTask, QueueRow, TaskTimeout, WorkflowTaskTimeout
from fairlead.history.state.work import NO_WORK, work_of
from fairlead.storage.commit import Absent, BranchWrite, Commit, CurrentWrite, IsRun, NotOpen, RunWrite
from fairlead.storage.history import CurrentRun, RunKey, VisibilityDelete, VisibilityRow

Condition = Absent | IsRun | NotOpen


class NamespaceMovedHere(RetryElsewhere):
    """A step began at a version of another cluster, but the namespace has become active here: nothing was written."""


class ShardWriter:
    """Writes the changes of one shard to the store. Callers must hold the lock of the workflow id."""

    def __init__(
        self,
        services: Services,
        *,
        ownership: Ownership,
        ids: ShardIds,
        store_writes: StoreWrites,
        queues: ShardQueues,
        stream: ShardStream,
        handover_writes: HandoverWrites,
        runs: RunCache,
        current_runs: CurrentRuns,
        watchers: RunWatchers,
        background: BackgroundWork,
        slots: ShardSlots,
    ) -> None:
        self._services = services
        self._ownership = ownership
        self._ids = ids
        self._store_writes = store_writes
        self._queues = queues
        self._stream = stream
        self._handover_writes = handover_writes
        self._runs = runs
        self._current_runs = current_runs
        self._watchers = watchers
        self._background = background
        self._slots = slots

    # Runs

    async def write(
        self,
        namespace: Namespace,
        steps: Sequence[Step],
        *,
        condition: Condition | None = None,
        request_id: str = "",
        branches: Sequence[BranchWrite] = (),
    ) -> None:
        """Write steps of the runs of one workflow id, all or nothing.

        For a step that starts a run, `condition` is the condition on the current run, and `request_id` is the start
        request.
        """
        try:
            is_replicated = await self._begin_global_write(namespace, steps, condition)
        except BaseException:
            self._discard_all(step.run for step in steps)
            raise
        try:
            await self.write_unchecked(namespace, steps, condition=condition, request_id=request_id, branches=branches)
        finally:
            if is_replicated:
                self._handover_writes.end(namespace.id)

    async def _begin_global_write(
        self, namespace: Namespace, steps: Sequence[Step], condition: Condition | None
    ) -> bool:
        """Check that this cluster may write the steps.

        If it returns True, `handover_writes` counts the write, and the caller must call its `end`.
        """
        runs = [step.run for step in steps]
        states = [run.state for run in runs]
        if not namespace.failover_version and not any(state.last_version for state in states):
            return False
        present = None
        # With the condition `Absent`, no run precedes the new run.
        if not isinstance(condition, Absent) and any(run.db_version is None for run in runs):
            present = await self._current_of(runs[0].key)
        # The version of the run that precedes the new run.
        last_version = 0 if present is None else present.last_write_version
        await self._handover_writes.check(namespace, *states, last_version=last_version)
        clusters = self._services.clusters
        for _, transaction in steps:
            if transaction.version and not clusters.versions.is_owned_by(transaction.version, clusters.here):
                raise NamespaceMovedHere(
                    f"namespace {namespace.name!r} has become active in cluster {clusters.here!r} since the step began "
                    f"at version {transaction.version}, which is not this cluster's: try again"
                )
        self._handover_writes.begin(namespace.id)
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
        """Like `write`, but for any active cluster: only for events at a version of this cluster.

        Such events follow the last event of that version, so they don't conflict with events of other clusters.
        """
        parts = [*steps]
        try:
            self._ownership.check()
            for run, transaction in steps:
                _keep_task(transaction)
                if transaction.new_run is not None:
                    identity = transaction.new_run.state.identity
                    key = RunKey(run.key.namespace_id, run.key.workflow_id, identity.run_id)
                    parts.append(Step(LoadedRun(key, transaction.new_run.state, None), transaction.new_run))
            for _, transaction in parts:
                skip_time(transaction)
            begun = [step for step in parts if step.run.db_version is None]
            present = None
            if begun:
                live = begun[-1].transaction.state.live
                request_id = request_id or self._services.new_id()
                live.start_request_id = live.start_request_id or request_id
            elif namespace.failover_version or not all(step.transaction.state.is_open for step in parts):
                present = await self._current_of(parts[0].run.key)
            await self._ids.ensure(sum(map(_ids_of, parts)))
            written = self.empty(namespace)
            for step in parts:
                waiting = len(step.transaction.events) + step.transaction.buffered_count
                written.add_step(step, first_id=self._ids.take(waiting + 1))
        except BaseException:
            self._discard_all(step.run for step in parts)
            raise
        if begun:
            follows = IsRun(parts[0].run.key.run_id) if condition is None else condition
            current = [_current_write(begun[-1].run, request_id, follows)]
        else:
            current = [] if present is None else _current_after(parts, present)
        await self.store(written, current=current, branches=branches)

    def empty(self, namespace: Namespace) -> Written:
        """An empty commit for a namespace."""
        services = self._services
        # The namespace may have more clusters than when the caller read it: stream to the new clusters too.
        known = services.namespaces.cached_id(namespace.id) or namespace
        return Written(
            namespace,
            is_streamed=self._stream.wants(known),
            is_replicated=bool(self._stream.readers_of(known)),
            is_active=services.clusters.is_active(namespace),
        )

    async def store(
        self, written: Written, *, current: Sequence[CurrentWrite] = (), branches: Sequence[BranchWrite] = ()
    ) -> None:
        """Write a commit, all or nothing, and update its runs in memory; if the write fails, drop the runs from memory.

        The ids for its rows must have been reserved.
        """
        runs = [kept.run for kept in written.kept]
        streamed = {self._ids.take(1): row for row in written.streamed} if written.streamed else {}
        tasks = [self._stream.assign(one, *row) for one, row in streamed.items()]
        commit = Commit(written.runs, written.batches, tuple(branches), current, tasks, written.visibility)
        try:
            was_cancelled = await self._commit(commit, written.rows, on_failure=partial(self._discard_all, runs))
        except BaseException:
            # If the shard is lost, the rows may have been written: the next owner will read them.
            if streamed and not self._ownership.is_lost:
                self._stream.not_written([*streamed])
            raise
        if streamed:
            self._stream.written([*streamed])
        for run, batches, kept_tasks in written.kept:
            run.db_version = (run.db_version or 0) + 1
            for batch in batches:
                run.keep(batch)
            self._runs.replace(run)
            self.applied(run, kept_tasks)
        if was_cancelled:
            raise asyncio.CancelledError

    def applied(self, run: LoadedRun, tasks: Sequence[AnyTask]) -> None:
        """Complete a step of a run in memory: set its timers, call its callbacks, wake its watchers."""
        for task in tasks:
            if type(task) is WorkflowTaskTimeout and task.in_memory:
                now_ns = self._services.clock_ns() + run.state.skipped_ns
                self._background.call_later((task.fire_at_ns - now_ns) / SECOND_NS, QueueRow(*run.key, task))
        if run.on_commit:
            for callback in run.on_commit:
                callback()
            run.on_commit.clear()
        if run.updates is not None and not run.state.is_open:
            run.updates.on_closed(run.state)
        if run.queries is not None and run.state.workflow_task is None:
            run.queries.unblock()
        if self._services.on_work is not None:
            self._services.on_work(run.key, work_of(run.state, self._services.clock_ns() + run.state.skipped_ns))
        if self._slots.held:
            self._slots.note_run(run.key, run.state)
        self._watchers.notify(run.key, is_closed=not run.state.is_open)

    def discard(self, run: LoadedRun) -> None:
        """Drop a run whose state in memory may differ from the stored state.

        Its speculative workflow task is lost, because the store does not have it; the callers of its updates send them
        again.
        """
        run.on_commit.clear()
        before = self._runs.drop(run.key)
        self._current_runs.drop(run.key)
        run.abandon()
        if before is not None and before is not run:
            before.abandon()

    def _discard_all(self, runs: Iterable[LoadedRun]) -> None:
        for run in runs:
            self.discard(run)

    async def delete(self, run: LoadedRun) -> None:
        """Delete a run and its events."""
        tree_id, live = run.state.identity.tree_id, run.state.live
        branch_ids = [run.state.identity.branch_id, *(branch.branch_id for branch in live.branches)]
        try:
            await self._delete(run.key, branches=[(tree_id, branch_id) for branch_id in branch_ids])
        finally:
            self.discard(run)
            self._runs.forget(run.key)

    # Entities

    async def write_entities(
        self,
        entities: Sequence[RunWrite],
        *,
        current: Sequence[CurrentWrite] = (),
        rows: Sequence[QueueRow] = (),
        visibility: Sequence[VisibilityRow | VisibilityDelete] = (),
    ) -> None:
        """Write entities of one namespace, all or nothing; entities have no events."""
        known = self._services.namespaces.cached_id
        namespace = known(base_namespace_id(entities[0].namespace_id)) if entities else None
        if namespace is not None and namespace.failover_version:
            await self._handover_writes.check(namespace)
        await self._ids.ensure(len(rows))
        was_cancelled = await self._commit(Commit(entities, (), (), current, (), visibility), rows)
        for entity in entities:
            key = RunKey(entity.namespace_id, entity.workflow_id, entity.run_id)
            self._slots.note_entity(key, entity.state)
            self._watchers.notify(key)
        if was_cancelled:
            raise asyncio.CancelledError

    async def delete_entity(self, key: RunKey) -> None:
        """Delete an entity."""
        await self._delete(key, branches=())

    # Runs and entities

    async def _current_of(self, key: RunKey) -> CurrentRun | None:
        return await self._current_runs.find(key.namespace_id, key.workflow_id)

    async def _commit(
        self, commit: Commit, rows: Sequence[QueueRow], *, on_failure: Callable[[], None] = lambda: None
    ) -> bool:
        """Write a commit with tasks, and pass the tasks to the queues; return whether the caller was cancelled."""
        assigned: list[AssignedTask] = []
        try:
            assigned = self._queues.assign(rows)
            runs, batches, branches, current, tasks, visibility = commit
            tasks = [*tasks, *[task.write for task in assigned]]
            was_cancelled = await self._store_writes.commit(Commit(runs, batches, branches, current, tasks, visibility))
        except BaseException:
            # If the shard is lost, the tasks may be in the store: keep their keys in the queues, so that no task above
            # them is deleted.
            if not self._ownership.is_lost:
                self._queues.not_written(assigned)
            on_failure()
            raise
        for write in commit.current:
            self._current_runs.put(CurrentRun.of(write))
        self._queues.written(assigned)
        return was_cancelled

    async def _delete(self, key: RunKey, *, branches: Sequence[tuple[str, str]]) -> None:
        try:
            was_cancelled = await self._store_writes.delete_run(key, branches=branches)
        finally:
            self._current_runs.drop(key)
            if self._services.on_work is not None:
                self._services.on_work(key, NO_WORK)
            self._watchers.notify(key)
        self._slots.note_deleted(key)
        if was_cancelled:
            raise asyncio.CancelledError


def _ids_of(step: Step) -> int:
    """Upper bound of the ids that a step takes: in the worst case each event is a batch with another version."""
    transaction = step.transaction
    return 2 * len(transaction.events) + transaction.buffered_count + len(transaction.tasks) + 8


def _current_write(run: LoadedRun, request_id: str, condition: Condition) -> CurrentWrite:
    state = run.state
    return CurrentWrite(*run.key, request_id, state.status, state.last_version, condition)


def _current_after(parts: Sequence[Step], present: CurrentRun) -> list[CurrentWrite]:
    """The current-run row after the steps, if it changes because its run has closed or has a new last version."""
    for run, _ in parts:
        state = run.state
        is_changed = not state.is_open or state.last_version != present.last_write_version
        if run.key.run_id == present.run_id and not present.is_closed and is_changed:
            return [_current_write(run, present.request_id, IsRun(run.key.run_id))]
    return []


def _keep_task(transaction: Transaction) -> None:
    """Write the events of a started speculative workflow task, if buffered events wait for the end of the task.

    The task is only in memory: after a crash, the buffered events would wait for ever.
    """
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
