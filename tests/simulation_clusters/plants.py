"""Bugs that can be planted into the real code, to show that the simulation finds such bugs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from fairlead.core.versions import Append, BranchTree, Decision, EventBatch, Fork, Item, VersionHistory, ancestor
from fairlead.history.applying import activations, batches, flushing, progress
from fairlead.history.duties import reapplying
from fairlead.history.namespaces import Namespace
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Services
from fairlead.history.shard import Shard
from fairlead.history.shared_writes import SharedWrites
from fairlead.history.state import RunState
from fairlead.replication.messages import PullAnswer
from fairlead.replication.pulling import SAVE_S, Puller


@contextmanager
def _patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.callback(setattr, owner, name, owner.__dict__[name])
            setattr(owner, name, replacement)
        yield


def prefix_unchecked() -> AbstractContextManager[None]:
    """Of two histories the shorter is taken for the beginning of the longer, whatever their items say."""

    def lowest_common_ancestor(left: VersionHistory, right: VersionHistory) -> Item:
        return min(left.last, right.last)

    return _patched((ancestor, "lowest_common_ancestor", lowest_common_ancestor))


def in_memory_deduplication() -> AbstractContextManager[None]:
    """Which signals were brought to the winner is known to the process that did so, and to no event."""

    def brought(services: Services) -> set[str]:
        # Kept beside its keys: another life must not come to stand at the address of one that is gone.
        return _lives.setdefault(id(services), (services, set()))[1]

    async def missing(shard: Shard, _run: LoadedRun, debts: list[Any]) -> list[Any]:
        return [debt for debt in debts if debt.key not in brought(shard.services)]

    async def take_over(scope: Any, run: LoadedRun, target: LoadedRun, wanted: list[Any]) -> None:
        brought(scope.shard.services).update(debt.key for debt in wanted)
        await original(scope, run, target, wanted)

    _lives: dict[int, tuple[Services, set[str]]] = {}
    original = reapplying._take_over
    return _patched((reapplying, "missing", missing), (reapplying, "_take_over", take_over))


def current_branch_moved_without_newer_version() -> AbstractContextManager[None]:
    """The branch whose events came last is the current one, of whatever version they are."""

    def plan(self: BranchTree, batch: EventBatch) -> Decision:
        decision = original(self, batch)
        if isinstance(decision, Append) and decision.branch_index != self.current_index:
            return Append(decision.events, decision.branch, decision.branch_index, switches_current=True)
        if isinstance(decision, Fork):
            return Fork(decision.events, decision.branch, decision.branch_index, decision.after, switches_current=True)
        return decision

    original: Callable[[BranchTree, EventBatch], Decision] = BranchTree.plan
    return _patched((BranchTree, "plan", plan), (BranchTree, "__post_init__", lambda _self: None))


def tasks_not_regenerated() -> AbstractContextManager[None]:
    """A run that is taken up here, or rebuilt, gets no tasks."""

    def forget(_transaction: object) -> None:
        """Nothing is left to be done."""

    return _patched(*((module, "refresh", forget) for module in (activations, batches, progress, flushing)))


def buffer_not_flushed() -> AbstractContextManager[None]:
    """What waits for a workflow task is forgotten when the namespace moves on."""

    async def forget(_shard: Shard, _namespace: Namespace, run: LoadedRun) -> None:
        run.state.live.buffered = []

    return _patched(*((module, "flush", forget) for module in (activations, batches)))


def cursor_saved_before_applied() -> AbstractContextManager[None]:
    """What has come from another cluster counts as taken in, and is noted so at once."""

    def take(self: Puller, answer: PullAnswer, now_s: float) -> None:
        original(self, answer, now_s)
        self._saved_s = now_s - SAVE_S

    original = Puller._take
    return _patched((Puller, "_cursor", property(lambda self: self._read_id)), (Puller, "_take", take))


def zombie_written() -> AbstractContextManager[None]:
    """A run that has lost its place to another one is written to as if it had not."""

    async def check(self: SharedWrites, namespace: Namespace, *states: RunState, last_version: int = 0) -> Namespace:
        marks = [state.live.is_zombie for state in states]
        for state in states:
            state.live.is_zombie = False
        try:
            return await original(self, namespace, *states, last_version=last_version)
        finally:
            for state, mark in zip(states, marks, strict=True):
                state.live.is_zombie = mark

    original = SharedWrites.check
    return _patched((SharedWrites, "check", check))


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "prefix-unchecked": prefix_unchecked,
    "in-memory-deduplication": in_memory_deduplication,
    "current-branch-moved-without-newer-version": current_branch_moved_without_newer_version,
    "tasks-not-regenerated": tasks_not_regenerated,
    "buffer-not-flushed": buffer_not_flushed,
    "cursor-saved-before-applied": cursor_saved_before_applied,
    "zombie-written": zombie_written,
}
