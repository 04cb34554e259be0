"""The steps for signals and cancel requests."""

from collections.abc import Collection

from temporalio.api.common.v1 import Link, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import (
    WorkflowExecutionCancelRequestedEventAttributes,
    WorkflowExecutionSignaledEventAttributes,
)

from fairlead.core.versions import LOCAL_VERSION
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state import problems
from fairlead.history.state.errors import TooManySignals, workflow_closing
from fairlead.history.state.run import RunState

_CLOSE_REFUSED = problems.failed(WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND)


def signal(
    transaction: Transaction,
    attributes: WorkflowExecutionSignaledEventAttributes,
    *,
    links: Collection[Link] = (),
    wakes: bool = True,
    signals_before: int = 0,
) -> bool:
    """Add a signal; return False if the same request was applied before.

    `wakes` is False for a signal-with-start, since the start schedules a workflow task. `signals_before` is the number
    of signals that other signals of the same step have added.
    """
    state = transaction.state
    state.check_open()
    if not _is_new(state, attributes.request_id):
        return False
    if _is_closing(state):
        raise workflow_closing()
    if 0 < transaction.limits.signals_max <= state.signal_count + signals_before:
        raise TooManySignals("exceeded workflow execution limit for signal events")
    if transaction.version != LOCAL_VERSION and not attributes.request_id:
        # The request id identifies the signal when it is reapplied to other branches, runs and clusters.
        attributes.request_id = transaction.new_id()
    transaction.add(attributes, links=links)
    state.remember_request(attributes.request_id)
    if wakes and not attributes.skip_generate_workflow_task:
        wake(transaction)
    return True


def request_cancel(
    transaction: Transaction,
    *,
    request_id: str,
    cause: str = "",
    identity: str = "",
    external: WorkflowExecution | None = None,
    external_initiated_event_id: int = 0,
    links: Collection[Link] = (),
) -> bool:
    """Request cancellation; return False if it was requested before.

    Schedules a workflow task even during the first backoff.
    """
    state = transaction.state
    state.check_open()
    if state.cancel_requested or state.live.cancel_buffered:
        return False
    transaction.add(
        WorkflowExecutionCancelRequestedEventAttributes(
            cause=cause,
            identity=identity,
            external_workflow_execution=external,
            external_initiated_event_id=external_initiated_event_id,
        ),
        links=links,
    )
    state.live.cancel_buffered = True
    state.remember_request(request_id)
    wake(transaction, despite_backoff=True)
    return True


def _is_new(state: RunState, request_id: str) -> bool:
    return not request_id or request_id not in state.live.request_ids


def _is_closing(state: RunState) -> bool:
    """Whether a worker has the workflow task that follows a failed attempt to close the run because of a new signal.

    Another signal would make this task fail as well: under a steady stream of signals, a workflow could never close.
    """
    task = state.workflow_task
    return task is not None and task.is_started and state.live.task_problem == _CLOSE_REFUSED
