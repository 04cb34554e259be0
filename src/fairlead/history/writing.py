"""What one commit writes of runs: steps, and the rows of the store that they come to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.history.events import Batch, Transaction
from fairlead.history.namespaces import Namespace
from fairlead.history.runs import LoadedRun
from fairlead.history.search.rows import row_of
from fairlead.history.state import RunState, encode
from fairlead.history.state.tasks import AnyTask, DeleteAfterRetention, QueueRow, UpsertVisibility, WorkflowTaskTimeout
from fairlead.history.stream_rows import StreamRow, progress_of, progress_row, stream_row
from fairlead.storage.history_contract import BatchWrite, RunWrite, VisibilityDelete, VisibilityRow


class Step(NamedTuple):
    """One run's part of a commit."""

    run: LoadedRun
    transaction: Transaction


class Kept(NamedTuple):
    """What is done with a run in memory when the commit is durable: its new events, and timers that only live there."""

    run: LoadedRun
    batches: Sequence[Batch]
    tasks: Sequence[AnyTask] = ()


@dataclass(slots=True)
class Written:
    """The rows of the store that a commit writes, and what it leaves in memory.

    `is_streamed`: somebody reads the shard's stream of what is written in the namespace; `is_shared`: another cluster
    does. `is_active`: the namespace is active in this cluster; where it is not, its runs have no tasks here.
    """

    namespace: Namespace
    is_streamed: bool
    is_shared: bool
    is_active: bool
    runs: list[RunWrite] = field(default_factory=list)
    batches: list[BatchWrite] = field(default_factory=list)
    rows: list[QueueRow] = field(default_factory=list)
    visibility: list[VisibilityRow | VisibilityDelete] = field(default_factory=list)
    streamed: list[tuple[StreamRow, bytes]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    def add_step(self, step: Step, *, first_id: int) -> None:
        """What a step of this cluster's own has come to; its events are numbered from `first_id` on."""
        run, transaction = step
        batch = transaction.finish(first_id)
        state = run.state = transaction.state
        batches = batch.cut_by_version(transaction.events) if batch.payload else []
        for each in batches:
            self.add_batch(run, each, transaction_id=first_id, now_ns=transaction.now_ns)
        has_progress = transaction.has_progress or _begins_version(state, batches)
        if has_progress and state.activities and self.is_shared:
            row = progress_row(run.key, state, now_ns=transaction.now_ns)
            # Read again from the store only where memory does not have it any more.
            self.streamed.append((row, progress_of(state, row.items) or b""))
        self.add_run(run, batches=batches, tasks=transaction.tasks)

    def add_run(self, run: LoadedRun, *, batches: Sequence[Batch] = (), tasks: Sequence[AnyTask] = ()) -> None:
        """A run's state, and the tasks that are its own."""
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
                self.rows.append(QueueRow(*run.key, task))

    def add_batch(self, run: LoadedRun, batch: Batch, *, transaction_id: int, now_ns: int, origin: str = "") -> None:
        """Events at the end of a run's current branch; `origin` is the cluster that they came from."""
        state = run.state
        identity, version = state.identity, state.version_at(batch.last_event_id)
        self.batches.append(
            BatchWrite(identity.tree_id, identity.branch_id, *batch[:2], version, transaction_id, batch.payload)
        )
        if self.is_streamed:
            row = stream_row(run.key, state, batch, now_ns=now_ns, origin=origin, is_shared=self.is_shared)
            self.streamed.append((row, batch.payload))

    def show(self, state: RunState) -> None:
        """Let lists show the run as it is, but not a zombie: the workflow id has another open run there."""
        if state.is_zombie:
            self.visibility.append(VisibilityDelete(state.identity.namespace_id, state.identity.run_id))
        else:
            self.visibility.append(row_of(state, custom=self.namespace.search_attributes))


def _begins_version(state: RunState, batches: Sequence[Batch]) -> bool:
    """Whether these are a run's first events of a version: where they come, another branch may have to give way.

    What was said of activities before was perhaps not heard there, because that branch does not have them.
    """
    first = batches[0].first_event_id if batches else 1
    return first > 1 and state.version_at(first - 1) != state.last_version


def _run_write(run: LoadedRun) -> RunWrite:
    state = run.state
    return RunWrite(*run.key, encode(state), run.db_version, state.next_event_id, state.status, state.last_version)
