"""The stored branches of a run, and the ancestors that hold the first events of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlead.core.errors import RetryElsewhere
from fairlead.core.versions import BranchTree, VersionHistory
from fairlead.history.state import RunState
from fairlead.history.state.run import SideBranch
from fairlead.storage.commit import Ancestor
from fairlead.storage.history import StoredBatch

if TYPE_CHECKING:
    from fairlead.history.shard.shard import Shard

PAGE_BYTES_MAX = 4 * 1024 * 1024


class EventsMissing(RetryElsewhere):
    """Events of a run are missing in the store: the run was deleted in the meantime, or its rows are damaged."""


class StoredBranch(NamedTuple):
    """A branch: its first events belong to its ancestors, the later events to the branch itself."""

    branch_id: str
    history: VersionHistory
    ancestors: tuple[Ancestor, ...]

    def ancestors_before(self, end_event_id: int) -> tuple[Ancestor, ...]:
        """The ancestors of a new branch that shares this branch's events before `end_event_id`."""
        shared: list[Ancestor] = []
        for ancestor in self.ancestors:
            if ancestor.end_event_id >= end_event_id:
                return (*shared, Ancestor(ancestor.branch_id, end_event_id))
            shared.append(ancestor)
        return (*shared, Ancestor(self.branch_id, end_event_id))


def branches_of(state: RunState) -> list[StoredBranch]:
    """All branches of a run, the current branch first."""
    current = StoredBranch(
        state.identity.branch_id, _history(state), tuple(Ancestor(*each) for each in state.live.ancestors)
    )
    return [current, *map(_stored, state.live.branches)]


def tree_of(branches: list[StoredBranch]) -> BranchTree:
    """The branch tree for `plan`; its branches have the same order."""
    return BranchTree(tuple(branch.history for branch in branches))


def side_branch(branch: StoredBranch, *, settled_event_id: int = 0) -> SideBranch:
    """A branch that is not current, in the form that the state stores."""
    return SideBranch(
        branch.branch_id,
        branch.history.to_pairs(),
        [(ancestor.branch_id, ancestor.end_event_id) for ancestor in branch.ancestors],
        settled_event_id,
    )


def make_current(state: RunState, branch: StoredBranch) -> None:
    """Make a branch the current branch."""
    state.identity = msgspec.structs.replace(state.identity, branch_id=branch.branch_id)
    state.live.ancestors = [(ancestor.branch_id, ancestor.end_event_id) for ancestor in branch.ancestors]


async def read_branch(
    shard: Shard, tree_id: str, branch: StoredBranch, from_event_id: int, to_event_id: int
) -> AsyncIterator[StoredBatch]:
    """The stored batches with the events of a half-open range of a branch, page by page.

    Raises `EventsMissing` if events are missing.
    """
    while from_event_id < to_event_id:
        page = await shard.services.store.read_branch(
            tree_id, branch.branch_id, from_event_id, to_event_id, limit_bytes=PAGE_BYTES_MAX
        )
        for batch in page:
            if batch.first_event_id > from_event_id:
                break
            yield batch
            from_event_id = batch.last_event_id + 1
        else:
            if page:
                continue
        raise EventsMissing(
            f"tree {tree_id}: branch {branch.branch_id} lacks event {from_event_id} of those up to {to_event_id - 1}"
        )


def _history(state: RunState) -> VersionHistory:
    if state.versions is None:
        raise EventsMissing(f"run {state.identity.run_id} has no events")
    return state.versions


def _stored(side: SideBranch) -> StoredBranch:
    ancestors = tuple(Ancestor(*each) for each in side.ancestors)
    return StoredBranch(side.branch_id, VersionHistory.from_pairs(side.items), ancestors)
