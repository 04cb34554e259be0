"""Reads the branches of a run: the events of one branch, or a list of all branches."""

import msgspec

from fairlead.api.errors import NotFound
from fairlead.core.versions import VersionHistory
from fairlead.history.messages.stream import (
    BranchesRequest,
    BranchesResponse,
    ReadBranchBatch,
    ReadBranchRequest,
    ReadBranchResponse,
)
from fairlead.history.ndc.reapplied import reapplied_events
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.stream_rows import progress_of
from fairlead.history.state import RunState

READ_BYTES_MAX = 2 << 20

_encode = msgspec.msgpack.Encoder().encode


async def read_branch(context: OperationContext, request: ReadBranchRequest) -> bytes:
    """Batches of the branch with this version history; without `from_event_id`, the progress of its activities."""
    shard, namespace_id = context.shard, context.namespace.id
    wanted = VersionHistory.from_pairs(request.items)
    async with shard.lock(namespace_id, request.workflow_id):
        state = (await shard.load(namespace_id, request.workflow_id, request.run_id)).state
        branch_id = _branch_with(state, wanted)
        start_request_id = state.live.start_request_id
        if not request.from_event_id:
            return _encode(ReadBranchResponse((), start_request_id, progress_of(state, request.items) or b""))
    batches = await context.services.store.read_branch(
        state.identity.tree_id,
        branch_id,
        request.from_event_id,
        min(request.to_event_id, wanted.last.event_id + 1),
        limit_bytes=max(1, min(request.bytes_max, READ_BYTES_MAX)),
    )
    found = tuple(ReadBranchBatch(batch.first_event_id, batch.last_event_id, batch.payload) for batch in batches)
    return _encode(ReadBranchResponse(found, start_request_id))


def _branch_with(state: RunState, wanted: VersionHistory) -> str:
    """The id of the branch that contains the last event of a version history."""
    last = wanted.last
    branches = [(branch.branch_id, VersionHistory.from_pairs(branch.items)) for branch in state.live.branches]
    if state.versions is not None:
        branches.insert(0, (state.identity.branch_id, state.versions))
    for branch_id, versions in branches:
        if versions.contains(event_id=last.event_id, version=last.version):
            return branch_id
    raise NotFound(
        f"run {state.identity.run_id} has no branch with event {last.event_id} at version {last.version}: it has "
        f"{[versions.to_pairs() for _, versions in branches]}"
    )


async def branches(context: OperationContext, request: BranchesRequest) -> bytes:
    """All branches of a run, the current branch first."""
    shard, namespace_id = context.shard, context.namespace.id
    async with shard.lock(namespace_id, request.workflow_id):
        run = await shard.load(namespace_id, request.workflow_id, request.run_id)
        state = run.state
        found = [(state.identity.branch_id, () if state.versions is None else state.versions.to_pairs())]
        found += [(branch.branch_id, tuple(branch.items)) for branch in state.live.branches]
        reapplied, is_cut = await reapplied_events(shard, run) if request.with_reapplied else ([], False)
        return _encode(
            BranchesResponse(
                run.key.run_id,
                tuple(found),
                status=state.status,
                is_zombie=state.live.is_zombie,
                reapplied=tuple(reapplied),
                is_reapplied_cut=is_cut,
            )
        )


OPERATIONS = {"ReadBranch": Operation(ReadBranchRequest, read_branch), "Branches": Operation(BranchesRequest, branches)}
