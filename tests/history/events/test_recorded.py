"""Histories of the reference server: each can be applied, and our code makes the same ones from the same inputs."""

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.times import MILLISECOND_NS, from_duration, from_timestamp
from fairlead.history.events import rebuild
from fairlead.history.state import decode, encode
from fairlead.history.state.run import PAUSED, RUNNING
from tests.history.recordings import NAMES, comparable, identity_of, load
from tests.history.replayer import Replayer

# All but the reset, which begins with events of another run that are not recorded here.
REPLAYED = [name for name in NAMES if name != "reset"]
STILL_OPEN = {"child_abandoned-child"}


def namespace_id_of(events: list[HistoryEvent]) -> str:
    for event in events:
        attributes = getattr(event, event.WhichOneof("attributes") or "")
        namespace_id = getattr(attributes, "namespace_id", "")
        if namespace_id:
            return str(namespace_id)
    return "namespace-id"


def expiry_ns(first: HistoryEvent) -> int:
    return from_timestamp(first.workflow_execution_started_event_attributes.workflow_execution_expiration_time)


def test_there_are_enough_recordings() -> None:
    assert len(NAMES) >= 60
    kinds = {event.event_type for name in NAMES for event in load(name)}
    assert len(kinds) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_can_be_applied(name: str) -> None:
    events = load(name)
    state = rebuild(identity_of(events), events)
    assert state.next_event_id == len(events) + 1
    assert state.versions is not None
    assert state.versions.to_pairs() == ((len(events), 0),)
    assert decode(encode(state)) == state
    if name in STILL_OPEN:
        assert state.status in (RUNNING, PAUSED)
        return
    ending = EventType.Name(events[-1].event_type)
    assert not state.is_open
    assert state.close_event_id == len(events), ending
    pending = (state.activities, state.activity_ids, state.timers, state.children, state.external_signals)
    assert not any((*pending, state.external_cancels, state.nexus_operations, state.task))


@pytest.mark.parametrize("name", REPLAYED)
def test_the_same_inputs_give_the_recorded_history(name: str) -> None:
    """FL-54: event by event; only ids and times differ."""
    recorded = load(name)
    replayer = Replayer(recorded, namespace_id_of(recorded))
    replayer.replay()
    ours = [EventType.Name(event.event_type) for event in replayer.written]
    theirs = [EventType.Name(event.event_type) for event in recorded]
    assert ours == theirs
    for our, their in zip(replayer.written, recorded, strict=True):
        assert comparable(our) == comparable(their)
    assert abs(expiry_ns(replayer.written[0]) - expiry_ns(recorded[0])) < 60 * MILLISECOND_NS
    # Pages are concatenated from stored batches without decoding them.
    spliced = History.FromString(b"".join(replayer.batches))
    assert list(spliced.events) == replayer.written


@pytest.mark.parametrize("name", [name for name in REPLAYED if any(f"{name}.{n}" in NAMES for n in (2, 3, 4))])
def test_the_next_run_starts_like_that_of_the_reference_server(name: str) -> None:
    following = load(f"{name}.2")
    recorded = load(name)
    replayer = Replayer(recorded, namespace_id_of(recorded))
    replayer.replay()
    assert replayer.new_run is not None
    ours, theirs = replayer.new_run.events[0], following[0]
    started, expected = comparable(ours), comparable(theirs)
    attributes = started["workflowExecutionStartedEventAttributes"]
    wanted = expected["workflowExecutionStartedEventAttributes"]
    for each in (attributes, wanted):
        for chance in ("originalExecutionRunId", "firstWorkflowTaskBackoff"):
            del each[chance]
        for point in each.get("prevAutoResetPoints", {}).get("points", []):
            # The reference server uses its own clock here, we use the time of the event.
            del point["createTime"]
    assert attributes == wanted
    backoff_ns = from_duration(ours.workflow_execution_started_event_attributes.first_workflow_task_backoff)
    their_ns = from_duration(theirs.workflow_execution_started_event_attributes.first_workflow_task_backoff)
    assert abs(backoff_ns - their_ns) < 60 * MILLISECOND_NS
