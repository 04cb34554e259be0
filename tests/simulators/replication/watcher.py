"""Checks of every commit of every cluster, with any faults."""

from collections import defaultdict
from typing import NamedTuple

import xxhash
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.versions import ClusterVersions
from fairlead.history.shard.journal import event_digest
from fairlead.history.state import RunState, decode
from fairlead.history.state.run import ClosedBy
from fairlead.storage.commit import Commit
from fairlead.storage.history import RunKey
from fairlead.storage.memory.history import MemoryHistory
from tests.simulators.matching.transcript import Transcript
from tests.simulators.replication.reader import runs_of

TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


class Written(NamedTuple):
    """The first copy of an event that a cluster wrote."""

    cluster: str
    digest: str
    name: str


class Watching:
    """Checks every commit of every cluster."""

    def __init__(self, transcript: Transcript, versions: ClusterVersions) -> None:
        self._transcript = transcript
        self._versions = versions
        # By run, event id and version: the content, which must be the same in every cluster.
        self._events: dict[tuple[RunKey, int, int], Written] = {}
        # The same by workflow, without the run: a reset run begins with copies of another run's events, which may have
        # other task ids.
        self._handover_writes: dict[tuple[str, str, int, int], set[str]] = defaultdict(set)
        # The open runs of a workflow in each cluster, without zombies.
        self._open: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
        # The clusters that wrote a signal themselves (not by replication), each with the run, on any branch.
        self._signals: dict[tuple[str, str, str], dict[tuple[str, RunKey], None]] = defaultdict(dict)
        # The run of each branch, by cluster and branch id.
        self._branches: dict[tuple[str, str], RunKey] = {}
        self.forks = 0
        self.zombies: set[RunKey] = set()

    @property
    def events(self) -> int:
        """The number of distinct events of all runs."""
        return len(self._events)

    def committed(self, cluster: str, commit: Commit, *, store: MemoryHistory) -> None:
        """See `CommitWatch`."""
        states: dict[RunKey, RunState] = {}
        for write in commit.runs:
            if "#" not in write.namespace_id:
                key = RunKey(*write[:3])
                states[key] = self._keep(cluster, key, decode(write.state))
        for workflow in {(cluster, *key[:2]) for key in states}:
            self._check_open(*workflow, store)
        for batch in commit.batches:
            key_of = self._branches.get((cluster, batch.branch_id))
            if key_of is None:
                self._transcript.violate(
                    cluster, f"has written events to branch {batch.branch_id}, which belongs to no run"
                )
                continue
            for event in History.FromString(batch.payload).events:
                if self._check_event(cluster, key_of, event, states[key_of]):
                    self._check_signal(cluster, key_of, event, store)
        for key, state in states.items():
            for waiting in state.live.buffered:
                self._check_signal(cluster, key, HistoryEvent.FromString(waiting), store)

    def deleted(self, cluster: str, key: RunKey) -> None:
        """See `CommitWatch`."""
        self._transcript.violate(cluster, f"has deleted {key} before the end of its retention")

    def _keep(self, cluster: str, key: RunKey, state: RunState) -> RunState:
        for branch_id in (state.identity.branch_id, *(branch.branch_id for branch in state.live.branches)):
            if self._branches.setdefault((cluster, branch_id), key) != key:
                self._transcript.violate(cluster, f"has branch {branch_id} in two runs, one of them {key}")
        runs = self._open[cluster, key.namespace_id, key.workflow_id]
        if state.live.is_zombie:
            self.zombies.add(key)
        if state.is_open and not state.live.is_zombie:
            runs[key.run_id] = None
        else:
            runs.pop(key.run_id, None)
        return state

    def _check_open(self, cluster: str, namespace_id: str, workflow_id: str, store: MemoryHistory) -> None:
        runs = self._open[cluster, namespace_id, workflow_id]
        current = next(
            (
                shard.currents[namespace_id, workflow_id].run_id
                for shard in store._shards.values()
                if (namespace_id, workflow_id) in shard.currents
            ),
            None,
        )
        if len(runs) > 1:
            self._transcript.violate(cluster, f"has {len(runs)} open runs of {workflow_id}: {', '.join(runs)}")
        elif runs and current not in runs:
            self._transcript.violate(
                cluster, f"has {current} as the current run of {workflow_id}, while {[*runs]} is open"
            )

    def _check_event(self, cluster: str, key: RunKey, event: HistoryEvent, state: RunState) -> bool:
        """Check an event; return whether it is new, not a copy of an event written elsewhere."""
        place = (key, event.event_id, event.version)
        content = event.SerializeToString(deterministic=True)
        digest = xxhash.xxh64_hexdigest(content)
        known = self._events.get(place)
        if known is not None:
            if known.digest != digest:
                self._transcript.violate(
                    cluster,
                    f"has another event {event.event_id} of version {event.version} of {key.workflow_id} {key.run_id} "
                    f"({_name(event)}) than {known.cluster} ({known.name})",
                )
            return False
        self._events[place] = Written(cluster, digest, _name(event))
        shared = self._handover_writes[key.namespace_id, key.workflow_id, event.event_id, event.version]
        copied = event_digest(event)
        is_copy = copied in shared
        shared.add(copied)
        where = f"{key.workflow_id} {key.run_id[:8]} {event.event_id}@{event.version}"
        self._transcript.note(cluster, f"{where} {_name(event)}")
        if not is_copy and not self._versions.is_owned_by(event.version, cluster):
            self._transcript.violate(cluster, f"has written {where} {_name(event)} at a version that is not its own")
        if event.event_type == TASK_COMPLETED and not is_copy:
            self._check_seen(cluster, where, event, state)
        return not is_copy

    def _check_signal(self, cluster: str, key: RunKey, event: HistoryEvent, store: MemoryHistory) -> None:
        """No cluster writes a signal again that is on a current branch, except into newer and reset runs."""
        name = _signal_of(event)
        # Signals from other workflows are sent again after a failover, to the run that is current then.
        if not name.startswith("client"):
            return
        known = self._signals[key.namespace_id, key.workflow_id, name]
        # Check a signal when it is accepted, even if it stays buffered until a workflow task ends.
        if (cluster, key) in known:
            return
        known[cluster, key] = None
        if len(known) == 1:
            return
        runs = runs_of(store, key.namespace_id, key.workflow_id)
        if runs[key].state.reset_base_run_id:
            return
        for other, run in runs.items():
            if other == key or run.state.closed_by == ClosedBy.NEWER_RUN:
                continue
            if any(name == _signal_of(each) for each in run.current.events):
                self._transcript.violate(
                    cluster,
                    f"has reapplied signal {name} to {key.workflow_id} {key.run_id} (event {event.event_id} of version "
                    f"{event.version}), although it is on the current branch of {other.run_id}",
                )

    def _check_seen(self, cluster: str, where: str, event: HistoryEvent, state: RunState) -> None:
        """Check that the worker has seen the branch to which its response is written; its identity names the event."""
        attributes = event.workflow_task_completed_event_attributes
        seen = attributes.identity.split("|")
        if len(seen) != 3 or not seen[2] or state.versions is None:
            return
        version = state.versions.version_of(attributes.started_event_id)
        if (int(seen[1]), int(seen[2])) != (attributes.started_event_id, version):
            self._transcript.violate(
                cluster,
                f"has written {where}, the response to the task started by event {seen[1]} of version {seen[2]}, to a "
                f"branch whose task was started by event {attributes.started_event_id} of version {version}",
            )


def _name(event: HistoryEvent) -> str:
    name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
    return f"{name} {_signal_of(event)}".rstrip()


def _signal_of(event: HistoryEvent) -> str:
    return event.workflow_execution_signaled_event_attributes.signal_name
