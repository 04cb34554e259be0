"""The steps by which others speak to a workflow: signals, and the request to end."""

from collections.abc import Iterable

from temporalio.api.common.v1 import Link, WorkflowExecution
from temporalio.api.history.v1 import (
    WorkflowExecutionCancelRequestedEventAttributes,
    WorkflowExecutionSignaledEventAttributes,
)

from fairlead.core.versions import LOCAL_VERSION
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import Busy
from fairlead.history.state.run import RunState


def signal(
    transaction: Transaction,
    attributes: WorkflowExecutionSignaledEventAttributes,
    *,
    links: Iterable[Link] = (),
    wakes: bool = True,
) -> bool:
    """Hand a signal to the workflow; false if the same request did so before.

    `wakes` is false where the run begins with the signal, and its first workflow task comes next.
    """
    state = transaction.state
    state.check_open()
    if not _is_new(state, attributes.request_id):
        return False
    if state.signal_count >= transaction.limits.signals_max:
        raise Busy("exceeded workflow execution limit for signal events")
    if transaction.version != LOCAL_VERSION and not attributes.request_id:
        # What it is known by from now on, on whatever line and in whatever run of whatever cluster it is written again.
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
    links: Iterable[Link] = (),
) -> bool:
    """Ask the workflow to end; false if it was asked before. It hears of it at once, even in its first backoff."""
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
