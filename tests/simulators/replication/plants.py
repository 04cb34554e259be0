"""Bugs that can be planted into the real code, to prove that the simulation finds them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from fairlead.api.namespaces import Namespace
from fairlead.core.versions import Append, BranchTree, Decision, EventBatch, Fork, Item, VersionHistory, ancestor
from fairlead.history.ndc import activity_progress, apply, buffered_events, failover
from fairlead.history.shard.context import Services
from fairlead.history.shard.handover_writes import HandoverWrites
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.shard import Shard
from fairlead.history.state import RunState
from fairlead.history.task_executors import reapply
from fairlead.replication.messages import PullResponse
from fairlead.replication.puller import SAVE_S, Puller


@contextmanager
def _patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.callback(setattr, owner, name, owner.__dict__[name])
            setattr(owner, name, replacement)
        yield


def prefix_unchecked() -> AbstractContextManager[None]:
    """The shorter of two version histories counts as a prefix of the longer one, without a comparison."""

    def lowest_common_ancestor(left: VersionHistory, right: VersionHistory) -> Item:
        return min(left.last, right.last)

    return _patched((ancestor, "lowest_common_ancestor", lowest_common_ancestor))


def in_memory_deduplication() -> AbstractContextManager[None]:
    """The deduplication keys of reapplied signals are only in memory, not in the events."""

    def reapplied_keys(services: Services) -> set[str]:
        # Keep `services` too: otherwise a new life could get the same address, and with it the old keys.
        return _lives.setdefault(id(services), (services, set()))[1]

    async def missing(shard: Shard, _run: LoadedRun, wanted: list[Any]) -> list[Any]:
        return [one for one in wanted if one.key not in reapplied_keys(shard.services)]

    async def take_over(context: Any, run: LoadedRun, target: LoadedRun, wanted: list[Any]) -> None:
        reapplied_keys(context.shard.services).update(one.key for one in wanted)
        await original(context, run, target, wanted)

    _lives: dict[int, tuple[Services, set[str]]] = {}
    original = reapply._take_over
    return _patched((reapply, "missing", missing), (reapply, "_take_over", take_over))


def current_branch_moved_without_newer_version() -> AbstractContextManager[None]:
    """The branch that got the last events becomes the current one, with any version."""

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
    """No tasks are generated for a run after a failover or a rebuild."""

    def forget(_transaction: object) -> None:
        """Generate no tasks."""

    return _patched(*((module, "refresh", forget) for module in (failover, apply, activity_progress, buffered_events)))


def buffer_not_flushed() -> AbstractContextManager[None]:
    """Buffered events are dropped at a failover."""

    async def forget(_shard: Shard, _namespace: Namespace, run: LoadedRun) -> None:
        run.state.live.buffered = []

    return _patched(*((module, "flush", forget) for module in (failover, apply)))


def cursor_saved_before_applied() -> AbstractContextManager[None]:
    """Pulled events count as applied at once: the cursor is saved before they are applied."""

    def take(self: Puller, answer: PullResponse, now_s: float) -> None:
        original(self, answer, now_s)
        self._saved_s = now_s - SAVE_S

    original = Puller._take
    return _patched((Puller, "_cursor", property(lambda self: self._read_id)), (Puller, "_take", take))


def zombie_written() -> AbstractContextManager[None]:
    """A zombie run is written to as if it were the current run."""

    async def check(self: HandoverWrites, namespace: Namespace, *states: RunState, last_version: int = 0) -> Namespace:
        marks = [state.live.is_zombie for state in states]
        for state in states:
            state.live.is_zombie = False
        try:
            return await original(self, namespace, *states, last_version=last_version)
        finally:
            for state, mark in zip(states, marks, strict=True):
                state.live.is_zombie = mark

    original = HandoverWrites.check
    return _patched((HandoverWrites, "check", check))


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "prefix-unchecked": prefix_unchecked,
    "in-memory-deduplication": in_memory_deduplication,
    "current-branch-moved-without-newer-version": current_branch_moved_without_newer_version,
    "tasks-not-regenerated": tasks_not_regenerated,
    "buffer-not-flushed": buffer_not_flushed,
    "cursor-saved-before-applied": cursor_saved_before_applied,
    "zombie-written": zombie_written,
}
