"""What was said to a workflow on a line of events that has lost: the signals and updates that the winner has to take.

Each has a key, which is on the event itself: the request id of the signal or the id of the update; where a signal had
none, the run, event and version by which it was written. Who takes it over writes it with that key, so that the events
of a line say what was taken over to it, in every cluster and after every rebuild.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.versions import lowest_common_ancestor
from fairlead.history.applying.branches import StoredBranch, branches_of, read_line
from fairlead.history.runs import Told
from fairlead.history.state.run import ClosedBy
from fairlead.storage.history_contract import RunKey

if TYPE_CHECKING:
    from fairlead.history.runs import LoadedRun
    from fairlead.history.shard import Shard

# Runs of a workflow that are listed at a time.
PAGE_MAX = 100

_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_ADMITTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED
_ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED


class Debt(NamedTuple):
    """A signal, or an update, and the key by which it is known."""

    key: str
    event: HistoryEvent


def key_of(event: HistoryEvent, run_id: str) -> str:
    """What a signal or an update is known by, wherever it is written; empty for every other event."""
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


def signal_id(event: HistoryEvent, run_id: str) -> str:
    """What a signal is known by: its request id, or where it was written first."""
    request_id: str = event.workflow_execution_signaled_event_attributes.request_id
    return request_id or f"{run_id}:{event.event_id}:{event.version}"


async def debts_of(shard: Shard, run: LoadedRun) -> list[Debt]:
    """All that the branches of a run which have lost, or the run itself, were told, in order, each once."""
    tree_id, run_id = run.state.identity.tree_id, run.key.run_id
    current, *sides = branches_of(run.state)
    found: dict[str, Debt] = {}

    async def collect(branch: StoredBranch, after: int) -> None:
        async for event in _events(shard, tree_id, branch, after + 1):
            key = key_of(event, run_id)
            if key and key not in found and not _is_without_request(event):
                found[key] = Debt(key, event)

    for side in sorted(sides, key=lambda side: side.history.last.version):
        await collect(side, lowest_common_ancestor(side.history, current.history).event_id)
    if run.state.closed_by == ClosedBy.NEWER_RUN:
        await collect(current, 0)
    return list(found.values())


async def keys_on(shard: Shard, run: LoadedRun) -> frozenset[str]:
    """The keys of all signals and updates on a run's line, those that wait to be written included.

    Of a run that stays in memory each event is read once: a branch is added to, and never changes.
    """
    run_id = run.key.run_id
    current = branches_of(run.state)[0]
    told = run.told if run.told.branch_id == current.branch_id else Told(current.branch_id)
    last_event_id = current.history.last.event_id
    if told.last_event_id < last_event_id:
        tree_id = run.state.identity.tree_id
        read = {key_of(event, run_id) async for event in _events(shard, tree_id, current, told.last_event_id + 1)}
        told = Told(current.branch_id, last_event_id, told.keys | read)
    run.told = told
    waiting = map(HistoryEvent.FromString, run.state.live.buffered)
    return told.keys | {key_of(event, run_id) for event in waiting}


async def missing(shard: Shard, run: LoadedRun, debts: Iterable[Debt]) -> list[Debt]:
    """Those that are on the line of no run of the workflow: any of them may have taken over what `run` owes.

    Another cluster may have done it, and what it took over may have been taken over before: only the events say so. A
    run that is itself ended for a newer one has nothing to keep. As soon as all are found, no more is read.
    """
    left = {debt.key: debt for debt in debts}
    after = RunKey(*run.key[:2], "")
    while left:
        page = await shard.services.store.list_runs(shard.shard_id, after=after, limit=PAGE_MAX)
        listed = [one for one in page if one[:2] == run.key[:2]]
        # Most likely it was done by the latest.
        for one in sorted(listed, key=lambda one: one.last_write_version, reverse=True):
            if not left:
                break
            other = await shard.load(*one[:3])
            if other.state.closed_by != ClosedBy.NEWER_RUN:
                for key in await keys_on(shard, other):
                    left.pop(key, None)
        if len(listed) < PAGE_MAX:
            break
        after = RunKey(*listed[-1][:3])
    return list(left.values())


def _is_without_request(event: HistoryEvent) -> bool:
    """Whether an update's request is in another event, which admitted it before."""
    return event.event_type == _ACCEPTED and not (
        event.workflow_execution_update_accepted_event_attributes.HasField("accepted_request")
    )


async def _events(shard: Shard, tree_id: str, branch: StoredBranch, first: int) -> AsyncIterator[HistoryEvent]:
    end = branch.history.last.event_id + 1
    async for batch in read_line(shard, tree_id, branch, first, end):
        for event in History.FromString(batch.payload).events:
            if first <= event.event_id < end:
                yield event
