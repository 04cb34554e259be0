"""Effects of events on a run's memo and search attributes; also of markers, which have none on the server."""

from collections.abc import Mapping

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import from_duration
from fairlead.history.state.run import RunState

_NULL_ENCODING = b"binary/null"
_EMPTY_VALUES = (b"", b"null", b"[]")


def merge_payloads(kept: dict[str, bytes], changes: Mapping[str, Payload]) -> None:
    """Merge the changes; a null or empty value removes its key."""
    for key, payload in changes.items():
        if _is_nothing(payload):
            kept.pop(key, None)
        else:
            kept[key] = payload.SerializeToString(deterministic=True)


def _is_nothing(payload: Payload) -> bool:
    return payload.metadata.get("encoding") == _NULL_ENCODING or payload.data in _EMPTY_VALUES


def search_attributes_upserted(state: RunState, event: HistoryEvent) -> None:
    """UpsertWorkflowSearchAttributes: merge the search attributes."""
    changes = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
    merge_payloads(state.search_attributes, changes)


def properties_modified(state: RunState, event: HistoryEvent) -> None:
    """WorkflowPropertiesModified: the workflow changed its memo."""
    merge_payloads(state.memo, event.workflow_properties_modified_event_attributes.upserted_memo.fields)


def properties_modified_externally(state: RunState, event: HistoryEvent) -> None:
    """WorkflowPropertiesModifiedExternally: a client changed the run's memo, task queue or timeouts."""
    attributes = event.workflow_properties_modified_externally_event_attributes
    origin = state.started
    merge_payloads(state.memo, attributes.upserted_memo.fields)
    origin.task_queue = attributes.new_task_queue or origin.task_queue
    origin.task_timeout_ns = from_duration(attributes.new_workflow_task_timeout) or origin.task_timeout_ns
    origin.run_timeout_ns = from_duration(attributes.new_workflow_run_timeout) or origin.run_timeout_ns
    execution_ns = from_duration(attributes.new_workflow_execution_timeout)
    origin.execution_timeout_ns = execution_ns or origin.execution_timeout_ns


def marked(_state: RunState, _event: HistoryEvent) -> None:
    """MarkerRecorded: no effect, because only the worker reads markers."""
