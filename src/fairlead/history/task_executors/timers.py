"""Executors of timer tasks: user timers, timeouts, backoffs and retention."""

from collections.abc import Callable

from fairlead.history.events import (
    Transaction,
    end_activity_backoff,
    end_backoff,
    fire_timer,
    time_out_activity,
    time_out_run,
    time_out_workflow_task,
)
from fairlead.history.events.write_time_skipping import end_fast_forward
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending
from fairlead.history.state.tasks import (
    ActivityRetry,
    ActivityTimeout,
    DeleteAfterRetention,
    ExecutionTimeout,
    FastForwardEnd,
    QueueRow,
    RunTimeout,
    UserTimer,
    WorkflowBackoff,
    WorkflowTaskTimeout,
)
from fairlead.history.task_executors.verification import is_meant
from fairlead.storage.history import RunKey


async def if_due(
    context: OperationContext,
    row: QueueRow,
    step: Callable[[Transaction], bool],
    *,
    may_close: bool = False,
    after: Callable[[LoadedRun], None] | None = None,
) -> None:
    """Run the step; if it returns False, it had no effect and nothing is written."""

    def take(transaction: Transaction, run: LoadedRun) -> None:
        if not is_meant(transaction.state, row.task) or not step(transaction):
            raise NotPending("the task has no effect any more")
        if after is not None:
            after(run)

    await context.shard.change(context.namespace, row.workflow_id, row.run_id, take, may_close=may_close)


async def user_timer(context: OperationContext, row: QueueRow, timer: UserTimer) -> None:
    """Fire a timer."""
    await if_due(context, row, lambda transaction: fire_timer(transaction, timer))


async def workflow_task_timeout(context: OperationContext, row: QueueRow, due: WorkflowTaskTimeout) -> None:
    """Time out a workflow task that no worker completed in time, or no poll took from a sticky queue in time."""

    def after(run: LoadedRun) -> None:
        if run.updates is not None:
            run.on_commit.append(run.updates.on_task_failed)

    await if_due(context, row, lambda transaction: time_out_workflow_task(transaction, due), after=after)


async def activity_timeout(context: OperationContext, row: QueueRow, due: ActivityTimeout) -> None:
    """Time an activity out."""
    await if_due(context, row, lambda transaction: time_out_activity(transaction, due))


async def activity_retry(context: OperationContext, row: QueueRow, due: ActivityRetry) -> None:
    """Start the next attempt of an activity after its backoff."""
    await if_due(context, row, lambda transaction: end_activity_backoff(transaction, due))


async def workflow_backoff(context: OperationContext, row: QueueRow, _due: WorkflowBackoff) -> None:
    """Schedule the first workflow task after the start delay, or the backoff of a cron schedule or retry."""
    await if_due(context, row, end_backoff)


async def run_timeout(context: OperationContext, row: QueueRow, due: RunTimeout) -> None:
    """Time out a run."""

    def step(transaction: Transaction) -> bool:
        expires_ns = transaction.state.started.run_expires_at_ns
        if not expires_ns or expires_ns > due.fire_at_ns:
            return False
        time_out_run(transaction)
        return True

    await if_due(context, row, step, may_close=True)


async def execution_timeout(context: OperationContext, row: QueueRow, due: ExecutionTimeout) -> None:
    """Time out the current run of a chain whose execution timeout has passed."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        time_out_run(transaction)

    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        current = await shard.current_runs.find(row.namespace_id, row.workflow_id)
        if current is None or current.is_closed:
            return
        run = await shard.load(*RunKey.of(current))
        origin = run.state.started
        # A run that a reset began has its own execution timeout.
        if origin.first_run_id == due.first_run_id and origin.expires_at_ns <= due.fire_at_ns:
            await shard.step(context.namespace, run, step, may_close=True)


async def fast_forward_end(context: OperationContext, row: QueueRow, due: FastForwardEnd) -> None:
    """End the fast-forward at its target time."""
    await if_due(context, row, lambda transaction: end_fast_forward(transaction, due))


async def delete_after_retention(context: OperationContext, row: QueueRow, due: DeleteAfterRetention) -> None:
    """Delete a run after its retention."""
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        # A run that closed on another branch may be open again, or have closed at another version.
        if not run.state.is_open and run.state.last_version == due.version:
            await shard.writer.delete(run)
