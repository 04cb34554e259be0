"""Finds the signals and updates on branches that are not current, which must be reapplied to the current branch.

The key of an event is the request id of the signal or the id of the update; for a signal without a request id, it is
made of run id, event id and version. Reapplying writes an event with the same key. So in every cluster and after every
rebuild, the events of a branch show which keys it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.versions import lowest_common_ancestor
from fairlead.history.events.signal_ids import signal_id
from fairlead.history.ndc.branches import StoredBranch, branches_of, read_branch
from fairlead.history.shard.run_cache import ReappliedKeys
from fairlead.history.state.run import ClosedBy
from fairlead.storage.history import RunKey

if TYPE_CHECKING:
    from fairlead.history.shard.run_cache import LoadedRun
    from fairlead.history.shard.shard import Shard

# Number of runs of a workflow listed in one page.
PAGE_MAX = 100

_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_ADMITTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED
_ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED


class EventToReapply(NamedTuple):
    """A signal or update to reapply, and its key."""

    key: str
    event: HistoryEvent


def key_of(event: HistoryEvent, run_id: str) -> str:
    """The key of a signal or an update, the same on every branch; empty for other events."""
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            return f"signal/{signal_id(event, run_id)}"
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
            return f"update/{event.workflow_execution_update_admitted_event_attributes.request.meta.update_id}"
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            attributes = event.workflow_execution_update_accepted_event_attributes
            return f"update/{attributes.accepted_request.meta.update_id or attributes.protocol_instance_id}"
        case _:
            return ""


async def events_to_reapply(shard: Shard, run: LoadedRun) -> list[EventToReapply]:
    """The signals and updates of branches that are not current, or of a replaced run; in order, without duplicates."""
    tree_id, run_id = run.state.identity.tree_id, run.key.run_id
    current, *sides = branches_of(run.state)
    found: dict[str, EventToReapply] = {}

    async def collect(branch: StoredBranch, after: int) -> None:
        async for event in events_on(shard, tree_id, branch, after + 1):
            key = key_of(event, run_id)
            if key and key not in found and not is_without_request(event):
                found[key] = EventToReapply(key, event)

    for side in sorted(sides, key=lambda side: side.history.last.version):
        await collect(side, lowest_common_ancestor(side.history, current.history).event_id)
    if run.state.closed_by == ClosedBy.NEWER_RUN:
        await collect(current, 0)
    return list(found.values())


async def keys_on(shard: Shard, run: LoadedRun) -> frozenset[str]:
    """The keys of all signals and updates on a run's current branch, including buffered ones.

    For a cached run each event is read only once, because branches only grow.
    """
    run_id = run.key.run_id
    current = branches_of(run.state)[0]
    reapplied = run.reapplied if run.reapplied.branch_id == current.branch_id else ReappliedKeys(current.branch_id)
    last_event_id = current.history.last.event_id
    if reapplied.last_event_id < last_event_id:
        tree_id = run.state.identity.tree_id
        read = {
            key_of(event, run_id) async for event in events_on(shard, tree_id, current, reapplied.last_event_id + 1)
        }
        reapplied = ReappliedKeys(current.branch_id, last_event_id, reapplied.keys | read)
    run.reapplied = reapplied
    waiting = map(HistoryEvent.FromString, run.state.live.buffered)
    return reapplied.keys | {key_of(event, run_id) for event in waiting}


async def missing(shard: Shard, run: LoadedRun, wanted: Iterable[EventToReapply]) -> list[EventToReapply]:
    """The events that no run of the workflow has on its current branch: any run may have reapplied them."""
    by_key = {one.key: one for one in wanted}
    found = await runs_with(shard, run, by_key)
    return [one for key, one in by_key.items() if key not in found]


async def runs_with(shard: Shard, run: LoadedRun, keys: Iterable[str]) -> dict[str, str]:
    """The id of the run that has each key on its current branch, without the keys that no run of the workflow has.

    Another cluster may have reapplied an event, even more than once; only the events of the runs show that. A run that
    was terminated because of a newer run is left out: its own events must be reapplied. Reading stops when all events
    are found.
    """
    left = set(keys)
    found: dict[str, str] = {}
    after = RunKey(*run.key.workflow, "")
    while left:
        page = await shard.services.store.list_runs(shard.shard_id, after=after, limit=PAGE_MAX)
        listed = [one for one in page if one[:2] == run.key[:2]]
        # The latest run first, because it most likely has the events.
        for one in sorted(listed, key=lambda one: one.last_write_version, reverse=True):
            if not left:
                break
            other = await shard.load(*RunKey.of(one))
            if other.state.closed_by != ClosedBy.NEWER_RUN:
                on_it = left & await keys_on(shard, other)
                found |= dict.fromkeys(on_it, other.key.run_id)
                left -= on_it
        if len(listed) < PAGE_MAX:
            break
        after = RunKey(*listed[-1][:3])
    return found


def is_without_request(event: HistoryEvent) -> bool:
    """Whether the update's request is in an earlier event, which admitted the update."""
    return event.event_type == _ACCEPTED and not (
        event.workflow_execution_update_accepted_event_attributes.HasField("accepted_request")
    )


async def events_on(shard: Shard, tree_id: str, branch: StoredBranch, first: int) -> AsyncIterator[HistoryEvent]:
    """The events of a branch from an event id on."""
    end = branch.history.last.event_id + 1
    async for batch in read_branch(shard, tree_id, branch, first, end):
        for event in History.FromString(batch.payload).events:
            if first <= event.event_id < end:
                yield event
