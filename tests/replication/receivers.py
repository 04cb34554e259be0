"""A receiving cluster without histories: it records what it gets, and detects gaps like the real one."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from temporalio.api.history.v1 import History

from fairlead.api.errors import OutOfRange
from fairlead.history.client import HistoryClient
from fairlead.history.messages.ndc import (
    ApplyResponse,
    Outcome,
    ReplicatedBatch,
    ReplicatedProgress,
    encode_answer,
)
from fairlead.history.messages.stream import (
    PullRequest,
    PullResponse,
    ReadBranchBatch,
    ReadBranchResponse,
    ReplicationTask,
)
from fairlead.replication.applier import Applier
from fairlead.replication.dead_letters import DeadLetters
from fairlead.replication.lanes import Room
from fairlead.replication.messages import (
    ClusterInfo,
    DeadLetterCount,
    DeadLetterCountRequest,
    FailOverRequest,
    FailOverResponse,
    NamespacesRequest,
    NamespacesResponse,
    RemoteReadBranch,
    RepairRequest,
    RepairResponse,
)
from fairlead.replication.puller import Puller, Stream
from fairlead.replication.remote import RemoteUnavailable
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import Buckets, Metrics
from tests.replication.streams import SHARD, Owner


class Receiver(HistoryClient):
    """Keeps the events of each workflow, and responds like the history service."""

    def __init__(self) -> None:
        self.events: dict[str, list[int]] = {}
        self.progress: list[tuple[str, int]] = []
        # The outcome of each batch, also of batches that came together in one call.
        self.outcomes: list[str] = []
        self.calls = 0
        self.latency_s = 0.0
        self.at_once = self.at_once_max = 0
        # Called before an event is applied; it may raise an error.
        self.on_event: Callable[[str, int], None] = lambda _workflow_id, _event_id: None

    async def call(
        self,
        name: str,
        namespace_id: str,
        workflow_id: str,
        request: Any,
        *,
        timeout_s: float = 10,
        sticky_task_queue: str = "",
    ) -> bytes:
        assert request.source == "a"
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await asyncio.sleep(self.latency_s)
            answer = self._batch(request) if isinstance(request, ReplicatedBatch) else self._progress(request)
        finally:
            self.at_once -= 1
        self.calls += 1
        parts = len(getattr(request, "sizes", ())) or 1
        self.outcomes += [answer.outcome] * (1 if answer.outcome == Outcome.GAP else parts)
        return encode_answer(answer)

    def _batch(self, batch: ReplicatedBatch) -> ApplyResponse:
        ids = [event.event_id for event in History.FromString(batch.events).events]
        assert sum(batch.sizes) == (len(batch.events) if batch.sizes else 0)
        for event_id in ids:
            self.on_event(batch.workflow_id, event_id)
        known = self.events.setdefault(batch.workflow_id, [])
        if ids[-1] in known:
            return ApplyResponse(Outcome.DUPLICATE)
        if ids[0] > len(known) + 1:
            return ApplyResponse(Outcome.GAP, len(known) + 1, ids[0])
        known += [event_id for event_id in ids if event_id not in known]
        return ApplyResponse(Outcome.APPLIED)

    def _progress(self, progress: ReplicatedProgress) -> ApplyResponse:
        self.progress += [(progress.workflow_id, activity.attempt) for _, _, activity in progress.activities]
        return ApplyResponse(Outcome.APPLIED)


class Source:
    """A `Remote` with the stream of an owner, over a network that may be down or lose responses."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.is_away = False
        self.is_silent = False
        self.loses = 0
        self.pulls: list[PullRequest] = []
        self.branches: list[RemoteReadBranch] = []
        self.now_ns = 0
        self.source_id = "id-a"
        # Whether the source ignores the reader's position.
        self.is_stranger = False

    async def info(self) -> ClusterInfo:
        return ClusterInfo("a", self.source_id, 1, 10, 1)

    async def pull(self, request: PullRequest) -> PullResponse:
        self._check()
        while self.is_silent:  # noqa: ASYNC110 - a plain flag
            await asyncio.sleep(0.01)
        self.pulls.append(request)
        stream = self.owner.stream
        if request.source_id != self.source_id or self.is_stranger:
            raise OutOfRange(f"cluster a has the id {self.source_id}, not {request.source_id}")
        await stream.check_given(max(request.after_id, request.ack_id))
        stream.acknowledge(request.cluster, request.ack_id)
        rows, through_id = await stream.read(
            request.cluster,
            request.after_id,
            rows_max=request.rows_max,
            bytes_max=request.bytes_max,
            wait_s=request.wait_s,
        )
        self._check()
        tasks = [
            ReplicationTask(
                streamed.task_id,
                0,
                streamed.row.namespace_id,
                streamed.row.workflow_id,
                streamed.row.run_id,
                streamed.row.first_event_id,
                streamed.row.last_event_id,
                streamed.row.items,
                streamed.payload,
            )
            for streamed in rows
            if streamed.payload is not None
        ]
        return PullResponse(tuple(tasks), through_id, self.now_ns, await stream.count_behind(through_id))

    async def read_branch(self, request: RemoteReadBranch) -> ReadBranchResponse:
        self._check()
        self.branches.append(request)
        batches = await self.owner.store.read_branch(
            request.run_id, "branch", request.from_event_id, request.to_event_id, limit_bytes=request.bytes_max
        )
        found = tuple(ReadBranchBatch(one.first_event_id, one.last_event_id, one.payload) for one in batches)
        return ReadBranchResponse(found)

    async def namespaces(self, request: NamespacesRequest) -> NamespacesResponse:
        raise NotImplementedError

    async def fail_over(self, request: FailOverRequest) -> FailOverResponse:
        raise NotImplementedError

    async def count_dead_letters(self, request: DeadLetterCountRequest) -> DeadLetterCount:
        raise NotImplementedError

    async def nudge(self) -> None:
        raise NotImplementedError

    async def repair(self, request: RepairRequest) -> RepairResponse:
        raise NotImplementedError

    def _check(self) -> None:
        if self.is_away:
            raise RemoteUnavailable("cluster a does not answer")
        if self.loses:
            self.loses -= 1
            raise RemoteUnavailable("the answer of cluster a was lost")


class Pulling:
    """A puller of the stream, with its dependencies."""

    def __init__(
        self, source: Source, receiver: Receiver, store: HistoryStore, *, bytes_max: int = 1 << 20, attempts: int = 3
    ) -> None:
        self.room = Room(bytes_max=bytes_max, calls_max=16)
        self.dead_letters = DeadLetters(store)
        self.latency = Buckets()
        metrics = Metrics()
        self.metrics = metrics
        self.applier = Applier("a", remote=lambda: source, history=receiver, metrics=metrics)
        self.puller = Puller(
            Stream("a", SHARD),
            host="host",
            here="b",
            remote=lambda: source,
            applier=self.applier,
            store=store,
            dead_letters=self.dead_letters,
            room=self.room,
            streams=lambda: 1,
            attempts_max=lambda: attempts,
            metrics=metrics,
            latency=self.latency,
            clock_ns=lambda: 7,
            uniform=lambda: 1.0,
        )

    async def __aenter__(self) -> Self:
        self.puller.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.puller.close()


async def until(is_so: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - it hangs on many things
            await asyncio.sleep(0.002)
