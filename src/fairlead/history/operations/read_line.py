"""The lines of a run's history: the events of any of its branches, and which branches there are."""

import msgspec

from fairlead.core.versions import VersionHistory
from fairlead.history.refusals import not_found
from fairlead.history.scope import Operation, Scope
from fairlead.history.state import RunState
from fairlead.history.stream_messages import (
    BranchesAnswer,
    BranchesRequest,
    ReadLineAnswer,
    ReadLineBatch,
    ReadLineRequest,
)
from fairlead.history.stream_rows import progress_of

READ_BYTES_MAX = 2 << 20

_encode = msgspec.msgpack.Encoder().encode


async def read_line(scope: Scope, request: ReadLineRequest) -> bytes:
    """Batches of the branch that a line is on, or how far the activities on it are."""
    shard, namespace_id = scope.shard, scope.namespace.id
    line = VersionHistory.from_pairs(request.items)
    async with shard.lock(namespace_id, request.workflow_id):
        state = (await shard.load(namespace_id, request.workflow_id, request.run_id)).state
        branch_id = _branch_with(state, line)
        start_request_id = state.live.start_request_id
        if not request.from_event_id:
            return _encode(ReadLineAnswer((), start_request_id, progress_of(state, request.items) or b""))
    batches = await scope.services.store.read_branch(
        state.identity.tree_id,
        branch_id,
        request.from_event_id,
        min(request.to_event_id, line.last.event_id + 1),
        limit_bytes=max(1, min(request.bytes_max, READ_BYTES_MAX)),
    )
    found = tuple(ReadLineBatch(batch.first_event_id, batch.last_event_id, batch.payload) for batch in batches)
    return _encode(ReadLineAnswer(found, start_request_id))


def _branch_with(state: RunState, line: VersionHistory) -> str:
    """The branch that goes through the line's last event."""
    last = line.last
    branches = [(branch.branch_id, VersionHistory.from_pairs(branch.items)) for branch in state.live.branches]
    if state.versions is not None:
        branches.insert(0, (state.identity.branch_id, state.versions))
    for branch_id, versions in branches:
        if versions.contains(event_id=last.event_id, version=last.version):
            return branch_id
    raise not_found(
        f"run {state.identity.run_id} has no branch with event {last.event_id} at version {last.version}: it has "
        f"{[versions.to_pairs() for _, versions in branches]}"
    )


async def branches(scope: Scope, request: BranchesRequest) -> bytes:
    """All branches of a run, the current one first."""
    shard, namespace_id = scope.shard, scope.namespace.id
    async with shard.lock(namespace_id, request.workflow_id):
        run = await shard.load(namespace_id, request.workflow_id, request.run_id)
        state = run.state
        found = [(state.identity.branch_id, () if state.versions is None else state.versions.to_pairs())]
        found += [(branch.branch_id, tuple(branch.items)) for branch in state.live.branches]
        return _encode(
            BranchesAnswer(run.key.run_id, tuple(found), status=state.status, is_zombie=state.live.is_zombie)
        )


OPERATIONS = {"ReadLine": Operation(ReadLineRequest, read_line), "Branches": Operation(BranchesRequest, branches)}
