"""The histories recorded from the reference server, and a comparison of events."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.state import RunIdentity

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))

# Fields with ids, times and sizes, which differ from run to run.
_OWN = frozenset(
    {
        "eventTime",
        "taskId",
        "version",
        "requestId",
        "historySizeBytes",
        "newExecutionRunId",
        "expireTime",
        "workflowExecutionExpirationTime",
    }
)
_BACKOFF_ATTEMPT_MIN = 4


def load(name: str) -> list[HistoryEvent]:
    history = ParseDict(json.loads((RECORDED / f"{name}.json").read_text()), History())
    return list(history.events)


def identity_of(events: list[HistoryEvent]) -> RunIdentity:
    first = events[0].workflow_execution_started_event_attributes
    run_id = first.original_execution_run_id
    return RunIdentity("namespace-id", first.workflow_id, run_id, run_id, "branch")


def comparable(event: HistoryEvent) -> dict[str, Any]:
    """The event without the fields that differ from run to run."""
    plain = _without(MessageToDict(event), _OWN)
    assert isinstance(plain, dict)
    scheduled = plain.get("workflowTaskScheduledEventAttributes")
    if scheduled and scheduled["attempt"] >= _BACKOFF_ATTEMPT_MIN:
        # This timeout has a random part.
        del scheduled["startToCloseTimeout"]
    return plain


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    return value
