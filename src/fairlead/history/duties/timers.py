"""What is done at a time: timers, timeouts, the ends of waits, and the end of what is kept."""

from collections.abc import Callable

from fairlead.history.duties.verifying import is_meant
from fairlead.history.events import (
    Transaction,
    end_activity_backoff,
    end_backoff,
    fire_timer,
    time_out_activity,
    time_out_run,
    time_out_workflow_task,
)
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope
from fairlead.history.state import NotPending
from fairlead.history.state.tasks import (
    ActivityRetry,
    ActivityTimeout,
    DeleteAfterRetention,
    ExecutionTimeout,
    QueueRow,
    RunTimeout,
    UserTimer,
    WorkflowBackoff,
    WorkflowTaskTimeout,
)


async def if_due(
    scope: Scope,
    row: QueueRow,
    step: Callable[[Transaction], bool],
    *,
    may_close: bool = False,
    after: Callable[[LoadedRun], None] | None = None,
) -> None:
    """Take the step, which says whether it meant anything; nothing is written if it did not."""

    def take(transaction: Transaction, run: LoadedRun) -> None:
        if not is_meant(transaction.state, row.task) or not step(transaction):
            raise NotPending("it means nothing any more")
        if after is not None:
            after(run)

    await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, take, may_close=may_close)


async def user_timer(scope: Scope, row: QueueRow, timer: UserTimer) -> None:
    """Fire a timer."""
    await if_due(scope, row, lambda transaction: fire_timer(transaction, timer))


async def workflow_task_timeout(scope: Scope, row: QueueRow, due: WorkflowTaskTimeout) -> None:
    """Take a task away from a worker that has not answered, or from a queue where nobody took it."""

    def after(run: LoadedRun) -> None:
        if run.updates is not None:
            run.on_commit.append(run.updates.on_task_failed)

    await if_due(scope, row, lambda transaction: time_out_workflow_task(transaction, due), after=after)


async def activity_timeout(scope: Scope, row: QueueRow, due: ActivityTimeout) -> None:
    """Time an activity out."""
    await if_due(scope, row, lambda transaction: time_out_activity(transaction, due))


async def activity_retry(scope: Scope, row: QueueRow, due: ActivityRetry) -> None:
    """The wait before an attempt is over."""
    await if_due(scope, row, lambda transaction: end_activity_backoff(transaction, due))


async def workflow_backoff(scope: Scope, row: QueueRow, _due: WorkflowBackoff) -> None:
    """The wait before the first workflow task is over."""
    await if_due(scope, row, end_backoff)


async def run_timeout(scope: Scope, row: QueueRow, due: RunTimeout) -> None:
    """The run has taken too long."""

    def step(transaction: Transaction) -> bool:
        expires_ns = transaction.state.started.run_expires_at_ns
        if not expires_ns or expires_ns > due.fire_at_ns:
            return False
        time_out_run(transaction)
        return True

    await if_due(scope, row, step, may_close=True)


async def execution_timeout(scope: Scope, row: QueueRow, due: ExecutionTimeout) -> None:
    """The chain of runs has taken too long, whichever of them is the current one."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        time_out_run(transaction)

    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        current = await shard.current(row.namespace_id, row.workflow_id)
        if current is None or current.is_closed:
            return
        run = await shard.load(*current[:3])
        origin = run.state.started
        # A run that was begun anew by a reset has its own time.
        if origin.first_run_id == due.first_run_id and origin.expires_at_ns <= due.fire_at_ns:
            await shard.step(scope.namespace, run, step, may_close=True)


async def delete_after_retention(scope: Scope, row: QueueRow, due: DeleteAfterRetention) -> None:
    """Nobody is promised the run any more."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        # One that was closed on a branch that has lost is open again, or was closed later.
        if not run.state.is_open and run.state.last_version == due.version:
            await shard.delete(run)
