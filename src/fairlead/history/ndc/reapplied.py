"""Explains for operators what became of the signals and updates on a run's losing branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import in_seconds
from fairlead.core.versions import lowest_common_ancestor
from fairlead.history.messages.stream import ReappliedEvent
from fairlead.history.ndc.branches import StoredBranch, branches_of
from fairlead.history.ndc.reapply import events_on, is_without_request, key_of, runs_with
from fairlead.history.state.run import ClosedBy

if TYPE_CHECKING:
    from fairlead.history.shard.run_cache import LoadedRun
    from fairlead.history.shard.shard import Shard

# Number of signals and updates that one response explains.
EVENTS_MAX = 200

_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_ADMITTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED


async def reapplied_events(shard: Shard, run: LoadedRun) -> tuple[list[ReappliedEvent], bool]:
    """The signals and updates of the losing branches with their copies, and whether there are more of them.

    A run that was ended for a newer run has lost with its current branch, too. Call it with the workflow's lock held.
    """
    tree_id, run_id = run.state.identity.tree_id, run.key.run_id
    current, *sides = branches_of(run.state)
    lost: list[tuple[StoredBranch, int]] = [
        (side, lowest_common_ancestor(side.history, current.history).event_id) for side in sides
    ]
    has_lost = run.state.closed_by == ClosedBy.NEWER_RUN
    if has_lost:
        lost.append((current, 0))
    found: list[tuple[str, ReappliedEvent]] = []
    is_cut = False
    for branch, forked_after in lost:
        async for event in events_on(shard, tree_id, branch, forked_after + 1):
            key = key_of(event, run_id)
            if not key or is_without_request(event):
                continue
            if len(found) == EVENTS_MAX:
                is_cut = True
                break
            found.append((key, _explained(event, branch.branch_id)))
    copies = await runs_with(shard, run, {key for key, _ in found})
    own_ids: dict[str, int] = {}
    if run_id in copies.values() and not has_lost:
        first = min(forked_after for _, forked_after in lost) + 1
        own_ids = {
            key: event.event_id
            async for event in events_on(shard, tree_id, current, first)
            if (key := key_of(event, run_id)) in copies
        }
    explained = [
        ReappliedEvent(
            *(one.kind, one.name, one.branch_id, one.event_id, one.version, one.time_s),
            to_run_id=copies.get(key, ""),
            to_event_id=own_ids.get(key, 0) if copies.get(key) == run_id else 0,
        )
        for key, one in found
    ]
    return explained, is_cut


def _explained(event: HistoryEvent, branch_id: str) -> ReappliedEvent:
    if event.event_type == _SIGNALED:
        kind, name = "signal", event.workflow_execution_signaled_event_attributes.signal_name
    elif event.event_type == _ADMITTED:
        kind, name = "update", event.workflow_execution_update_admitted_event_attributes.request.input.name
    else:
        kind, name = "update", event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
    time_s = in_seconds(event.event_time)
    return ReappliedEvent(kind, name, branch_id, event.event_id, event.version, time_s)
