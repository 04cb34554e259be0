"""The contents of one commit: steps of runs, and the store rows that they produce."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.api.namespaces import Namespace
from fairlead.history.events import Batch, Transaction
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.stream_rows import StreamRow, progress_of, progress_row, stream_row
from fairlead.history.shard.visibility_rows import row_of
from fairlead.history.state import RunState, encode
from fairlead.history.state.tasks import AnyTask, DeleteAfterRetention, QueueRow, UpsertVisibility, WorkflowTaskTimeout
from fairlead.storage.commit import BatchWrite, RunWrite
from fairlead.storage.history import VisibilityDelete, VisibilityRow


class Step(NamedTuple):
    """The part of a commit that belongs to one run."""

    run: LoadedRun
    transaction: Transaction


class Kept(NamedTuple):
    """A run to update in memory when the commit is durable: its new events, and tasks with in-memory timers."""

    run: LoadedRun
    batches: Sequence[Batch]
    tasks: Sequence[AnyTask] = ()


@dataclass(slots=True)
class Written:
    """The store rows that a commit writes, and the runs that it updates in memory.

    `is_streamed` is true if the journal or another cluster reads the commits of this namespace from the shard's stream;
    `is_replicated` is true if another cluster reads them. `is_active` is true if the namespace is active in this
    cluster; if it is not, its runs have no tasks here.
    """

    namespace: Namespace
    is_streamed: bool
    is_replicated: bool
    is_active: bool
    runs: list[RunWrite] = field(default_factory=list)
    batches: list[BatchWrite] = field(default_factory=list)
    rows: list[QueueRow] = field(default_factory=list)
    visibility: list[VisibilityRow | VisibilityDelete] = field(default_factory=list)
    streamed: list[tuple[StreamRow, bytes]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    def add_step(self, step: Step, *, first_id: int) -> None:
        """Add a step of this cluster; the task ids of its events begin with `first_id`."""
        run, transaction = step
        batch = transaction.finish(first_id)
        state = run.state = transaction.state
        batches = batch.cut(transaction.events) if batch.payload else []
        for each in batches:
            self.add_batch(run, each, transaction_id=first_id, now_ns=transaction.now_ns)
        has_progress = transaction.has_progress or _begins_version(state, batches)
        if has_progress and state.activities and self.is_replicated:
            row = progress_row(run.key, state, now_ns=transaction.now_ns)
            # With an empty payload, the stream reads the progress from the store.
            self.streamed.append((row, progress_of(state, row.items) or b""))
        self.add_run(run, batches=batches, tasks=transaction.tasks)

    def add_run(self, run: LoadedRun, *, batches: Sequence[Batch] = (), tasks: Sequence[AnyTask] = ()) -> None:
        """Add a run's state and tasks."""
        state = run.state
        state.live.transitions += 1
        self.runs.append(_run_write(run))
        self.kept.append(Kept(run, batches, tasks))
        for task in tasks:
            if isinstance(task, UpsertVisibility):
                self.show(state)
            elif isinstance(task, WorkflowTaskTimeout) and task.in_memory:
                continue
            elif self.is_active or isinstance(task, DeleteAfterRetention):
                self.rows.append(QueueRow(*run.key, task, state.skipped_ns))

    def add_batch(self, run: LoadedRun, batch: Batch, *, transaction_id: int, now_ns: int, origin: str = "") -> None:
        """Add a batch at the end of a run's current branch; `origin` is the cluster from which it came."""
        state = run.state
        identity, version = state.identity, state.version_at(batch.last_event_id)
        self.batches.append(
            BatchWrite(
                identity.tree_id,
                identity.branch_id,
                batch.first_event_id,
                batch.last_event_id,
                version,
                transaction_id,
                batch.payload,
            )
        )
        if self.is_streamed:
            row = stream_row(run.key, state, batch, now_ns=now_ns, origin=origin, is_replicated=self.is_replicated)
            self.streamed.append((row, batch.payload))

    def show(self, state: RunState) -> None:
        """Add the visibility row of a run.

        A zombie has none, because another run of the workflow id is open.
        """
        if state.is_zombie:
            self.visibility.append(VisibilityDelete(state.identity.namespace_id, state.identity.run_id))
        else:
            self.visibility.append(row_of(state, custom=self.namespace.search_attributes))


def _begins_version(state: RunState, batches: Sequence[Batch]) -> bool:
    """Whether these are a run's first events of a version, which may make this branch current in another cluster.

    A cluster with another current branch may have ignored this branch's activity progress, so the progress is sent
    again.
    """
    first = batches[0].first_event_id if batches else 1
    return first > 1 and state.version_at(first - 1) != state.last_version


def _run_write(run: LoadedRun) -> RunWrite:
    state = run.state
    return RunWrite(*run.key, encode(state), run.db_version, state.next_event_id, state.status, state.last_version)
