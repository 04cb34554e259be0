"""A state that follows another cluster's events: what they say, and what is known without events in their wake."""

from collections.abc import Iterable

from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.events import apply
from fairlead.history.events.write_activities import first_progress
from fairlead.history.state import RunState
from fairlead.history.state.pending import ActivityProgress
from fairlead.history.state.times import from_timestamp


def follow(state: RunState, events: Iterable[HistoryEvent], size_bytes: int) -> None:
    """Apply events that another cluster wrote; `size_bytes` is what they take."""
    replay(state, events)
    state.live.history_size_bytes += size_bytes
    settle(state)


def replay(state: RunState, events: Iterable[HistoryEvent]) -> None:
    """Apply events, and note of resets what follows from them."""
    for event in events:
        started_ns = 0 if state.origin is None else state.origin.started_ns
        apply(state, event)
        if event.event_id == state.reset_event_id:
            # As the reset itself has noted it where it was made.
            state.live.last_reset_ns = from_timestamp(event.event_time)
            state.live.original_started_ns = state.live.original_started_ns or started_ns


def settle(state: RunState, *, carried: dict[int, ActivityProgress] | None = None, stamp_min: int = 0) -> None:
    """Bring in line what is known without events.

    A workflow task that only memory knows stands behind events that are not the last any more; attempts are of
    activities that are pending. `carried` are those that were made on another branch: an activity from before the
    branches parted has come as far as that. With `stamp_min`, what was made for activities before is void.
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
    # One that has not come further is as its activity says, whose time a reset changes.
    is_first = known is None or (known.changed_version, known.changes) == (first.changed_version, 0)
    progress = first if known is None or is_first else known
    if known is not None:
        progress.stamp = known.stamp
    if stamp_min:
        progress.stamp = max(progress.stamp + 1, stamp_min)
    return progress
