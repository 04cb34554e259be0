"""Reads the store of a cluster for the checks, without waiting and without the injected faults."""

from typing import Any, NamedTuple, cast

import msgspec
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.namespaces import Namespace
from fairlead.history.events.apply import rebuild
from fairlead.history.state import RunState, decode
from fairlead.storage.history import RunKey
from fairlead.storage.memory.history import MemoryHistory

Pairs = tuple[tuple[int, int], ...]
_EVERYTHING = 1 << 60


class Branch(NamedTuple):
    """One branch of a run, with all its events."""

    pairs: Pairs
    events: tuple[HistoryEvent, ...]


class Run(NamedTuple):
    """A run in one cluster: its state, its current branch, and its other branches by their last version."""

    state: RunState
    current: Branch
    others: tuple[Branch, ...]

    @property
    def is_zombie(self) -> bool:
        """Whether the run is a zombie in this cluster."""
        return bool(self.state.live.is_zombie)


class Snapshot(NamedTuple):
    """The contents of one cluster's store."""

    runs: dict[RunKey, Run]
    currents: dict[tuple[str, str], str]
    namespaces: dict[str, Namespace]


def runs_of(store: MemoryHistory, namespace_id: str, workflow_id: str) -> dict[RunKey, Run]:
    """All runs of a workflow."""
    still = _still(store)
    return {
        key: _run(still, decode(stored.state))
        for shard in store._shards.values()
        for key, stored in shard.runs.items()
        if key[:2] == (namespace_id, workflow_id)
    }


def snapshot(store: MemoryHistory) -> Snapshot:
    """All runs that the store holds now."""
    still = _still(store)
    runs: dict[RunKey, Run] = {}
    currents: dict[tuple[str, str], str] = {}
    for shard in store._shards.values():
        for key, stored in shard.runs.items():
            state = decode(stored.state)
            runs[key] = _run(still, state)
        currents |= {key: current.run_id for key, current in shard.currents.items()}
    namespaces = {
        one.namespace_id: msgspec.msgpack.decode(one.payload, type=Namespace) for one in store._namespaces.values()
    }
    return Snapshot(dict(sorted(runs.items())), currents, namespaces)


def _still(store: MemoryHistory) -> MemoryHistory:
    """The same store, without injected faults."""
    still: Any = object.__new__(MemoryHistory)
    still.__dict__ = store.__dict__ | {"_faults": None}
    return cast("MemoryHistory", still)


def _run(still: MemoryHistory, state: RunState) -> Run:
    assert state.versions is not None
    current = _read_branch(still, state.identity.tree_id, state.identity.branch_id, state.versions.to_pairs())
    others = [
        _read_branch(
            still, state.identity.tree_id, branch.branch_id, tuple((one, version) for one, version in branch.items)
        )
        for branch in state.live.branches
    ]
    return Run(state, current, tuple(sorted(others, key=lambda line: line.pairs)))


def _read_branch(still: MemoryHistory, tree_id: str, branch_id: str, pairs: Pairs) -> Branch:
    end = pairs[-1][0] + 1
    reading = still.read_branch(tree_id, branch_id, 1, end, limit_bytes=_EVERYTHING)
    try:
        reading.send(None)
    except StopIteration as read:
        batches = read.value
    else:
        raise AssertionError("a store without faults has waited")
    events = [event for batch in batches for event in History.FromString(batch.payload).events]
    return Branch(pairs, tuple(event for event in events if event.event_id < end))


def rebuilt(run: Run) -> RunState:
    """The state that follows from the events of a run's current branch."""
    state = rebuild(run.state.identity, run.current.events)
    state.last_event_task_id = run.current.events[-1].task_id
    return state
