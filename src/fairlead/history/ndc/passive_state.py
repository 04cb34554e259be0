"""A run's state in a passive cluster: applies the active cluster's events, and resets values that no event sets."""

from collections.abc import Iterable

from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import from_timestamp
from fairlead.history.events import apply
from fairlead.history.events.activity_attempts import first_progress
from fairlead.history.state import RunState
from fairlead.history.state.pending import ActivityProgress


def follow(state: RunState, events: Iterable[HistoryEvent], size_bytes: int) -> None:
    """Apply events of another cluster; `size_bytes` is their serialized size."""
    replay(state, events)
    state.live.history_size_bytes += size_bytes
    settle(state)


def replay(state: RunState, events: Iterable[HistoryEvent]) -> None:
    """Apply events, and set the reset times that follow from them."""
    for event in events:
        started_ns = 0 if state.origin is None else state.origin.started_ns
        apply(state, event)
        if event.event_id == state.reset_event_id:
            # The active cluster set the same values at the reset.
            state.live.last_reset_ns = from_timestamp(event.event_time)
            state.live.original_started_ns = state.live.original_started_ns or started_ns


def settle(state: RunState, *, carried: dict[int, ActivityProgress] | None = None, stamp_min: int = 0) -> None:
    """Reset the values that no event changes.

    A workflow task without events is dropped, because newer events have taken its ids. Progress is kept only for
    pending activities. `carried` is progress from another branch, for activities from before the fork. `stamp_min`
    invalidates the tasks that exist already for activities.
    """
    live = state.live
    live.unwritten_task = None
    live.sticky_task_queue = ""
    live.sticky_timeout_ns = 0
    known = live.activities if carried is None else carried
    live.activities = {
        event_id: _kept(known.get(event_id), first_progress(activity), stamp_min)
        for event_id, activity in state.activities.items()
    }
    live.nexus = {event_id: live.nexus[event_id] for event_id in state.nexus_operations if event_id in live.nexus}


def _kept(known: ActivityProgress | None, first: ActivityProgress, stamp_min: int) -> ActivityProgress:
    # If the progress has no changes, compute it again from the activity, because a reset changes the activity's times.
    is_first = known is None or (known.changed_version, known.changes) == (first.changed_version, 0)
    progress = first if known is None or is_first else known
    if known is not None:
        progress.stamp = known.stamp
    if stamp_min:
        progress.stamp = max(progress.stamp + 1, stamp_min)
    return progress
