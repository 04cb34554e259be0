"""The identity of a signal: the same in every cluster and on every branch."""

from temporalio.api.history.v1 import HistoryEvent


def signal_id(event: HistoryEvent, run_id: str) -> str:
    """Identify a signal by its request id, or else by run id, event id and version of its first event."""
    request_id: str = event.workflow_execution_signaled_event_attributes.request_id
    return request_id or f"{run_id}:{event.event_id}:{event.version}"
