"""Several clusters, each with a real history service and store, that exchange batches in any order."""

import asyncio
import itertools
import random
import uuid
from collections.abc import Sequence
from typing import Any, Self

import msgspec
from temporalio.api.history.v1 import History

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespace
from fairlead.core.versions import ClusterVersions
from fairlead.history.events import apply
from fairlead.history.messages.ndc import (
    ApplyResponse,
    Outcome,
    ReplicatedBatch,
    ReplicatedProgress,
    decode_answer,
)
from fairlead.history.messages.progress import decode_progress
from fairlead.history.messages.stream import ReadBranchRequest, ReadBranchResponse
from fairlead.history.ndc.shard_work import ShardReplicationWork
from fairlead.history.shard.journal import event_digest
from fairlead.history.shard.shard import Shard
from fairlead.history.shard.stream_rows import Streamed
from fairlead.history.state import RunState, without_live
from fairlead.storage.history import CurrentRun, RunKey
from tests.history.shard_world import NAMESPACE, OneHost, World

INCREMENT = 10
NAMES = ("a", "b", "c")
VERSIONS = ClusterVersions(INCREMENT, {name: place + 1 for place, name in enumerate(NAMES)})
GLOBAL_NAMESPACE = msgspec.structs.replace(
    NAMESPACE, is_global=True, failover_version=1, active_cluster="a", clusters=NAMES
)
ALL = 2**62


def replication_work(shard: Shard) -> ShardReplicationWork:
    work = shard.replication_work
    assert isinstance(work, ShardReplicationWork)
    return work


class Cluster:
    """One cluster: its store and network, which survive restarts, and its host."""

    def __init__(self, name: str, *, namespace: Namespace = GLOBAL_NAMESPACE) -> None:
        self.name = name
        remotes = [other for other in NAMES if other != name]
        self.world = World(clusters=Clusters(name, VERSIONS, remotes), namespace=namespace)
        numbers = itertools.count()
        # Unique ids, but the same ones whenever a test run is repeated.
        self.world.new_id = lambda: str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name}-{next(numbers)}"))
        self._host: OneHost | None = None

    async def start(self, *, store: Any = None) -> OneHost:
        """Start the host; `store` replaces the store that it uses."""
        self._host = await self.world.start(store=store)
        return self._host

    async def restart(self) -> None:
        """Restart the host as after a crash: everything in memory is lost."""
        await self.world.close()
        await self.start()

    @property
    def host(self) -> OneHost:
        assert self._host is not None
        return self._host

    @property
    def shard(self) -> Shard:
        return self.host.shard

    async def set_version(self, version: int) -> None:
        """Make a failover known to this cluster."""

        def change(namespace: Namespace) -> Namespace:
            return msgspec.structs.replace(namespace, failover_version=version, active_cluster=VERSIONS.owner(version))

        await self.host.namespaces.change(GLOBAL_NAMESPACE.id, change)
        await self.settle()

    async def settle(self) -> None:
        """Wait until all work that follows from a change of the namespace is done."""
        await asyncio.sleep(0.01)
        while not replication_work(self.shard)._failovers.is_idle:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(0.01)

    async def rows(self, after_id: int = -1) -> tuple[list[Streamed], int]:
        """The rows of the replication stream, and the id through which they were read."""
        rows: list[Streamed] = []
        while True:
            page, through = await self.shard.stream.read("nobody", after_id, rows_max=1_000, bytes_max=ALL, wait_s=0.0)
            rows += page
            if not page:
                return rows, through
            after_id = through

    def state(self, workflow_id: str, run_id: str = "") -> RunState:
        """The stored state of a run; of the current run if `run_id` is empty."""
        if not run_id:
            current = self.current(workflow_id)
            assert current is not None
            run_id = current.run_id
        found = self.world.run_row(0, RunKey(GLOBAL_NAMESPACE.id, workflow_id, run_id))
        assert found is not None
        return found

    def current(self, workflow_id: str) -> CurrentRun | None:
        return self.world.current(workflow_id)

    def branches(self, workflow_id: str, run_id: str = "") -> set[tuple[tuple[int, int], ...]]:
        """The version histories of all branches of a run."""
        state = self.state(workflow_id, run_id)
        assert state.versions is not None
        return {
            state.versions.to_pairs(),
            *(tuple((event_id, version) for event_id, version in side.items) for side in state.live.branches),
        }

    async def apply(self, batch: ReplicatedBatch) -> ApplyResponse:
        return decode_answer(await self.host.call("ApplyBatch", batch.workflow_id, batch))


def batch_of(source: str, streamed: Streamed) -> ReplicatedBatch:
    """A row as the batch that another cluster receives."""
    row, payload = streamed.row, streamed.payload
    assert payload is not None
    return ReplicatedBatch(
        row.namespace_id, row.workflow_id, row.run_id, source, row.items, payload, row.start_request_id
    )


async def deliver(source: Cluster, target: Cluster, streamed: Streamed) -> str:
    """Apply a row in another cluster, after filling any gap; return the outcome."""
    row = streamed.row
    if streamed.payload is None:
        return "gone"
    for _ in range(10):
        if row.is_batch:
            answer = await target.apply(batch_of(source.name, streamed))
        else:
            progress = ReplicatedProgress(
                *(row.namespace_id, row.workflow_id, row.run_id, source.name, row.items),
                activities=decode_progress(streamed.payload),
            )
            answer = decode_answer(await target.host.call("ApplyProgress", row.workflow_id, progress))
        if answer.outcome != Outcome.GAP:
            return answer.outcome
        await fill(source, target, streamed, answer)
    raise AssertionError(f"a gap that is not filled: {row}")


async def fill(source: Cluster, target: Cluster, streamed: Streamed, answer: ApplyResponse) -> None:
    """Bring the missing events of the row's branch to `target`."""
    row = streamed.row
    first = answer.missing_from
    while first < answer.missing_to:
        request = ReadBranchRequest(row.workflow_id, row.run_id, row.items, first, answer.missing_to, bytes_max=1 << 20)
        read = msgspec.msgpack.decode(
            await source.host.call("ReadBranch", row.workflow_id, request), type=ReadBranchResponse
        )
        assert read.batches
        for batch in read.batches:
            applied = await target.apply(
                ReplicatedBatch(
                    *(row.namespace_id, row.workflow_id, row.run_id, source.name, row.items),
                    batch.events,
                    read.start_request_id,
                )
            )
            assert applied.outcome != Outcome.GAP
            first = batch.last_event_id + 1


class Several:
    """Clusters, and for each pair of source and target the cursor of replication."""

    def __init__(self, names: Sequence[str] = NAMES, *, namespace: Namespace = GLOBAL_NAMESPACE) -> None:
        self.clusters = {name: Cluster(name, namespace=namespace) for name in names}
        self.cursors: dict[tuple[str, str], int] = {}

    def __getitem__(self, name: str) -> Cluster:
        return self.clusters[name]

    async def __aenter__(self) -> Self:
        for cluster in self.clusters.values():
            await cluster.start()
            await cluster.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        for cluster in self.clusters.values():
            await cluster.world.close()

    async def fail_over(self, version: int, *names: str) -> None:
        """Make a failover known to the named clusters, or to all if none is named."""
        for name in names or self.clusters:
            await self[name].set_version(version)

    async def bring(self, source: str, *targets: str) -> list[str]:
        """Replicate new rows from one cluster to others, in order; return the outcome of each row."""
        outcomes = []
        for target in targets or [name for name in self.clusters if name != source]:
            rows, through = await self[source].rows(self.cursors.get((source, target), -1))
            outcomes += [await deliver(self[source], self[target], streamed) for streamed in rows]
            self.cursors[source, target] = through
        return outcomes

    async def converge(self, chance: random.Random | None = None) -> None:
        """Replicate everything everywhere, until nothing is new; with `chance`, in random order and some rows twice."""
        quiet = 0
        while quiet < 2:
            quiet += 1
            for source in self.clusters:
                for target in self.clusters:
                    if source == target:
                        continue
                    rows, through = await self[source].rows(self.cursors.get((source, target), -1))
                    if chance is not None and rows:
                        rows = [*rows, *chance.sample(rows, len(rows) // 3)]
                        chance.shuffle(rows)
                    for streamed in rows:
                        quiet = 0
                        await deliver(self[source], self[target], streamed)
                    self.cursors[source, target] = through
            # Let the active cluster run its tasks and reapply events.
            await asyncio.sleep(0.2)


# `live` is left out, because these fields may differ: they are local to one cluster, or known only to an active one.
# history_size_bytes: the same events, in other batches. task_attempt, task_row_since_ns, unwritten_task, sticky...:
# attempts of workflow tasks that leave no event, and the worker that has the run in its cache. buffered, ending,
# cancel_buffered, request_ids: buffered events are in no other cluster; the latest requests, with cancellations. nexus,
# callbacks, watchers, routing_revision, start_request_id, last_reset_ns, original_started_ns, reset_run_id,
# transitions, rebuilds, ancestors: they depend on how this cluster got its state.
def run_view(cluster: Cluster, key: RunKey) -> dict[str, Any]:
    """The part of a run's state that must be the same in every cluster."""
    state = cluster.world.run_row(0, key)
    assert state is not None
    plain = without_live(state)
    plain.identity = msgspec.structs.replace(plain.identity, tree_id="", branch_id="")
    progress = {}
    for event_id, each in state.live.activities.items():
        progress[event_id] = msgspec.structs.replace(each, stamp=0)
    return {
        "state": msgspec.to_builtins(plain),
        "branches": cluster.branches(key.workflow_id, key.run_id),
        "zombie": state.is_zombie,
        "progress": msgspec.to_builtins(progress),
    }


async def events_view(cluster: Cluster, key: RunKey) -> dict[tuple[tuple[int, int], ...], list[str]]:
    """By version history: the events of each branch."""
    state = cluster.world.run_row(0, key)
    assert state is not None
    assert state.versions is not None
    branches = [(state.identity.branch_id, state.versions.to_pairs())]
    branches += [
        (side.branch_id, tuple((event_id, version) for event_id, version in side.items)) for side in state.live.branches
    ]
    view = {}
    for branch_id, items in branches:
        last = items[-1][0]
        found: list[str] = []
        while len(found) < last:
            page = await cluster.world.store.read_branch(
                state.identity.tree_id, branch_id, len(found) + 1, last + 1, limit_bytes=ALL
            )
            assert page, (cluster.name, key, items, len(found))
            for batch in page:
                for event in History.FromString(batch.payload).events:
                    if event.event_id == len(found) + 1 and event.event_id <= last:
                        found.append(f"{event.event_id}@{event.version}:{event_digest(event)}:{event.task_id}")
        view[items] = found
    return view


async def check_same(several: Several, workflow_ids: Sequence[str]) -> None:
    """All clusters hold the same, and each workflow id has at most one open run that is not a zombie."""
    first, *others = several.clusters.values()
    for workflow_id in workflow_ids:
        runs = set(first.world.runs_of(workflow_id))
        for cluster in several.clusters.values():
            assert set(cluster.world.runs_of(workflow_id)) == runs, (workflow_id, cluster.name)
            check_one_open(cluster, workflow_id)
            for key in runs:
                await check_rebuilt(cluster, key)
        for other in others:
            ours, theirs = first.current(workflow_id), other.current(workflow_id)
            assert ours is not None
            assert theirs is not None
            assert (ours.run_id, ours.status, ours.last_write_version) == (
                theirs.run_id,
                theirs.status,
                theirs.last_write_version,
            ), (workflow_id, other.name)
            for key in runs:
                assert run_view(first, key) == run_view(other, key), (key, first.name, other.name)
                assert await events_view(first, key) == await events_view(other, key), (key, other.name)


async def check_rebuilt(cluster: Cluster, key: RunKey) -> None:
    """The stored state equals the state rebuilt from the stored events of the current branch."""
    state = cluster.state(key.workflow_id, key.run_id)
    rebuilt, last = RunState(state.identity), 0
    while last + 1 < state.next_event_id:
        page = await cluster.world.store.read_branch(
            state.identity.tree_id, state.identity.branch_id, last + 1, state.next_event_id, limit_bytes=ALL
        )
        for batch in page:
            for event in History.FromString(batch.payload).events:
                if last < event.event_id < state.next_event_id:
                    apply(rebuilt, event)
                    last = event.event_id
    assert msgspec.to_builtins(without_live(rebuilt)) == msgspec.to_builtins(without_live(state)), key


def check_one_open(cluster: Cluster, workflow_id: str) -> None:
    states = [cluster.state(workflow_id, key.run_id) for key in cluster.world.runs_of(workflow_id)]
    assert sum(state.is_open and not state.is_zombie for state in states) <= 1, (workflow_id, cluster.name)
