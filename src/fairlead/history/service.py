"""The history service of one host: opens and closes its shards, and runs operations in them."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from google.protobuf.message import DecodeError, Message
from structlog.typing import FilteringBoundLogger

from fairlead.aio.admission import Admission
from fairlead.api.clusters import Clusters
from fairlead.api.errors import ApiError, Gone, InvalidArgument, NotActive, NotFound, Unimplemented
from fairlead.api.ids import id_maker
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.api.principals import use_principal
from fairlead.api.run_limits import RunLimits
from fairlead.api.size_warnings import SizeWarnings
from fairlead.api.times import SECOND_NS
from fairlead.api.worker_deployments import Deployments, decode_mark
from fairlead.core.errors import FairleadError, RetryElsewhere, RetryLater
from fairlead.core.routing import NoHosts
from fairlead.history.client import CALL, HistoryCall, HistoryClient, HistoryResponse, partition_of, shard_of
from fairlead.history.handlers import OPERATIONS
from fairlead.history.handlers.direct_start import start_directly
from fairlead.history.handlers.shard import SHARD_OPERATIONS, ShardOperation
from fairlead.history.messages.large_calls import NEXT_PART, PART_BYTES_MAX, SEND_PART, KeptParts, NoRoom, new_key
from fairlead.history.messages.matching_tasks import decode_matched
from fairlead.history.messages.slots import RunningRequest, RunningResponse
from fairlead.history.messages.stream import BranchesRequest, BranchesResponse, TreeRequest
from fairlead.history.namespace_deletion import Sweeper
from fairlead.history.ndc.shard_work import ShardReplicationWork
from fairlead.history.shard.context import OperationContext, Services
from fairlead.history.shard.handover_writes import BeingHandedOver
from fairlead.history.shard.journal import HistoryJournal
from fairlead.history.shard.offered_poll import use_offer
from fairlead.history.shard.ownership import NotOwner
from fairlead.history.shard.queue import AHEAD_NS
from fairlead.history.shard.queues import TIMER, TRANSFER
from fairlead.history.shard.shard import Shard
from fairlead.history.shard.slots import LIMIT_LABELS
from fairlead.history.state.errors import KeyAtLimit, QueueAtLimit
from fairlead.history.state.work import Work
from fairlead.history.task_executors import run_row
from fairlead.history.task_executors.pending_timers import is_over
from fairlead.matching.client import MatchingClient
from fairlead.matching.task_starter import NotStarted
from fairlead.membership.ring import RingView
from fairlead.rpc.hosts.caller import Caller, CallLost, Handlers, Method
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.quotas import TASKS_AT_ONCE
from fairlead.storage.history import HistoryStore, RunKey
from fairlead.telemetry import ACTIVITY_STARTS_LIMITED, SHARD_LOST, HistoryGauges, Metrics

START_TIMEOUT_S = 5.0
# Seconds after which a host tries again to open a shard.
REOPEN_S = 0.2
# Number of shards that open at the same time; other calls and the heartbeats need the store too.
OPENING_MAX = 8

TREE = Method("history.Tree", TreeRequest, BranchesResponse)
RUNNING = Method("history.Running", RunningRequest, RunningResponse)


class HistoryService:
    """The history role of a host."""

    def __init__(
        self,
        host: str,
        *,
        store: HistoryStore,
        caller: Caller,
        ring: RingView,
        settings: DynamicSettings,
        shards: int,
        namespaces: Namespaces,
        matching: MatchingClient,
        deployments: Deployments | None = None,
        metrics: Metrics,
        clock_ns: Callable[[], int] = time.time_ns,
        new_id: Callable[[], str] | None = None,
        uniform: Callable[[], float] = random.random,
        log: FilteringBoundLogger | None = None,
        journal: HistoryJournal | None = None,
        clusters: Clusters | None = None,
        on_work: Callable[[RunKey, Work], None] | None = None,
        timers_ahead_ns: int | None = AHEAD_NS,
    ) -> None:
        """`on_work` gets the tasks in flight of each run that changes; see `Services`."""
        self.host = host
        self.client = HistoryClient(host, caller, ring, shards=shards, uniform=uniform)
        self.client.serve_locally(self.run)
        self._ring = ring
        self._log = (log or structlog.get_logger()).bind(host=host)
        self._shards_count = shards
        self._services = Services(
            host=host,
            shards=shards,
            store=store,
            history=self.client,
            matching=matching,
            namespaces=namespaces,
            settings=settings,
            clock_ns=clock_ns,
            new_id=new_id or id_maker(clock_ns),
            uniform=uniform,
            metrics=metrics,
            limits=RunLimits(settings),
            size_warnings=SizeWarnings(lambda: clock_ns() / SECOND_NS),
            deployments=deployments or Deployments(store, clock_ns=clock_ns),
            journal=journal,
            clusters=clusters or Clusters(),
            on_work=on_work,
            timers_ahead_ns=timers_ahead_ns,
            turns=Admission(lambda: settings.get(TASKS_AT_ONCE)),
        )
        self._parts = KeptParts()
        self._shards: dict[int, Shard] = {}
        self._sweeper = Sweeper(
            store=store, namespaces=namespaces, shards=lambda: self._shards, shards_count=shards, clock_ns=clock_ns
        )
        self._opening: dict[int, asyncio.Task[Shard]] = {}
        self._opening_room = asyncio.Semaphore(OPENING_MAX)
        self._closing: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._metrics = metrics
        for limit in LIMIT_LABELS:
            metrics.expect(ACTIVITY_STARTS_LIMITED, limit)
        metrics.watch(self.gauges)
        ring.on_change(self._ring_changed)
        namespaces.on_change(self._namespace_changed)
        self._services.clusters.on_change(self._clusters_changed)

    @property
    def shards_count(self) -> int:
        """The number of shards of all hosts."""
        return self._shards_count

    @property
    def shards(self) -> dict[int, Shard]:
        """The shards that this host has open."""
        return self._shards

    def handlers(self) -> Handlers:
        """The handlers of calls from other hosts."""
        handlers = Handlers()
        handlers.add(CALL, self._call)
        handlers.add(SEND_PART, self._parts.add)
        handlers.add(NEXT_PART, self._parts.next)
        handlers.add(TREE, self._tree)
        handlers.add(RUNNING, self._running)
        return handlers

    async def open(self) -> None:
        """Open the shards of this host, now and at each change of the ring."""
        self._is_open = True
        self._ring_changed()
        self._sweeper.open()

    async def close(self) -> None:
        """Close all shards; unfinished tasks stay in the store."""
        self._is_open = False
        await self._sweeper.close()
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(shard.close() for shard in self._shards.values()), return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._shards.clear()

    async def run(
        self, name: str, shard_id: int, namespace_id: str, request: Message | msgspec.Struct, timeout_s: float
    ) -> bytes:
        """Run an operation in a shard of this host, and return its encoded response."""
        operation = OPERATIONS.get(name)
        shard = self._shards.get(shard_id)
        if shard is None or shard.ownership.is_lost:
            shard = await self._opened(shard_id)
        if operation is None:
            return await _shard_operation(name).run(shard, request)
        namespaces = self._services.namespaces
        namespace = namespaces.cached_id(namespace_id) or await namespaces.find_id(namespace_id)
        context = OperationContext(shard, namespace, self._services, timeout_s)
        try:
            answer = await operation.run(context, request)
        except BeingHandedOver:
            answer = await shard.handover_writes.do_after_handover(namespace, lambda: operation.run(context, request))
        return answer if type(answer) is bytes else answer.SerializeToString()  # type: ignore[union-attr]

    async def start_task(self, payload: bytes, identity: str, worker: bytes = b"") -> bytes | NotStarted:
        """Start a task that matching has given to a poll, and return the encoded response to the poll.

        If history has not added the task, its payload is the response.
        """
        decoded = decode_matched(payload, identity, worker)
        if decoded is None:
            return payload
        name, request = decoded
        is_review = decode_mark(worker) is not None
        if is_review:
            name = "ReviewTask"
        try:
            answer = await self.client.call(
                name, request.namespace_id, request.workflow_id, request, timeout_s=START_TIMEOUT_S
            )
        except (NotFound, Gone, InvalidArgument, NotActive):
            # If the namespace is active in another cluster, that cluster starts the task.
            return NotStarted.GONE
        except (KeyAtLimit, QueueAtLimit) as full:
            return NotStarted.KEY_FULL if isinstance(full, KeyAtLimit) else NotStarted.QUEUE_FULL
        except (ApiError, RetryLater, RetryElsewhere):
            return NotStarted.REFUSED
        if is_review and answer:
            return NotStarted.REFUSED
        return answer or NotStarted.GONE

    async def _call(self, call: HistoryCall) -> HistoryResponse:
        operation = OPERATIONS.get(call.name) or _shard_operation(call.name)
        use_principal(call.principal)
        if not 0 <= call.shard_id < self._shards_count:
            raise InvalidArgument(f"shard {call.shard_id} does not exist: there are {self._shards_count} shards")
        data = self._parts.take(call.parts_key) if call.parts_key else call.request
        request = _decode(operation.request, data)
        offered = None if call.offer is None else use_offer(call.offer)
        answer = await self.run(call.name, call.shard_id, call.namespace_id, request, call.timeout_s)
        task = b"" if offered is None else offered.task
        if len(answer) <= PART_BYTES_MAX:
            return HistoryResponse(answer, task=task)
        rest_key = new_key()
        try:
            self._parts.keep(rest_key, answer[PART_BYTES_MAX:])
        except NoRoom as full:
            # Don't raise `NoRoom`: the caller would conclude that the operation was not carried out.
            raise CallLost(f"{call.name} was carried out, but its response can't be kept: {full}") from full
        return HistoryResponse(answer[:PART_BYTES_MAX], rest_key, task)

    async def _tree(self, request: TreeRequest) -> BranchesResponse:
        namespace = await self._services.namespaces.find(request.namespace)
        asked = BranchesRequest(request.workflow_id, request.run_id, request.with_reapplied)
        answer = await self.client.call("Branches", namespace.id, request.workflow_id, asked)
        return msgspec.msgpack.decode(answer, type=BranchesResponse)

    async def _running(self, request: RunningRequest) -> RunningResponse:
        namespace_id, task_queue = request.namespace_id, request.task_queue
        limits = self._services.limits.concurrency.of(namespace_id, task_queue)
        return RunningResponse(await self._services.store.count_slots(namespace_id, task_queue), *limits)

    # Shards

    def owns(self, shard_id: int) -> bool:
        """Whether this host owns the shard according to the ring."""
        try:
            return self._ring.route(partition_of(shard_id)) == self.host
        except NoHosts:
            return False

    async def _opened(self, shard_id: int) -> Shard:
        self._check_owner(shard_id)
        return await asyncio.shield(self._open(shard_id))

    def _check_owner(self, shard_id: int) -> None:
        if not self._is_open or not self.owns(shard_id):
            raise NotOwner(f"host {self.host} does not own shard {shard_id}: call its owner")

    def _open(self, shard_id: int) -> "asyncio.Task[Shard]":
        opening = self._opening.get(shard_id)
        if opening is None:
            opening = self._opening[shard_id] = asyncio.get_running_loop().create_task(self._take(shard_id))
            opening.add_done_callback(lambda _done: self._opening.pop(shard_id, None))
            opening.add_done_callback(_log_failure)
        return opening

    async def _take(self, shard_id: int) -> Shard:
        before = self._shards.pop(shard_id, None)
        if before is not None:
            # Close the old shard completely, even if this task is cancelled.
            await asyncio.shield(self._close(before))
        shard = Shard(
            shard_id,
            services=self._services,
            run_task=run_row,
            is_over=is_over,
            replication_work=ShardReplicationWork,
            start_directly=start_directly,
            on_lost=self._lost,
        )
        try:
            async with self._opening_room:
                # The ring may have moved the shard while this task waited to open it.
                self._check_owner(shard_id)
                await shard.open()
            # The ring may have changed during `open`, which took the shard from its new owner: that host reopens it at
            # its next write.
            self._check_owner(shard_id)
        except BaseException as failure:
            await shard.close()
            if isinstance(failure, FairleadError) and not isinstance(failure, NotOwner):
                self._log.warning("shard can't be opened", shard=shard_id, error=str(failure))
                asyncio.get_running_loop().call_later(REOPEN_S, self._ring_changed)
            raise
        self._shards[shard_id] = shard
        if shard.ownership.is_lost:
            # A task of its queues lost the shard before it was in `_shards`, so `_lost` did not reopen it.
            asyncio.get_running_loop().call_later(REOPEN_S, self._ring_changed)
        return shard

    def gauges(self) -> list[HistoryGauges]:
        """The gauges of this host: numbers of shards, runs and tasks in memory."""
        shards = self._shards.values()
        return [
            HistoryGauges(
                shards=len(shards),
                runs=sum(len(shard.runs) for shard in shards),
                activity_slots=sum(shard.slots.count for shard in shards),
                tasks={name: sum(shard.queues.by_name[name].pending for shard in shards) for name in (TRANSFER, TIMER)},
            )
        ]

    def _lost(self, shard: Shard) -> None:
        self._metrics.count(SHARD_LOST)
        if self._is_open and self._shards.get(shard.shard_id) is shard:
            self._log.info("shard lost", shard=shard.shard_id)
            asyncio.get_running_loop().call_soon(self._ring_changed)

    def _namespace_changed(self, namespace: Namespace) -> None:
        for shard in self._shards.values():
            shard.namespace_changed(namespace)

    def _clusters_changed(self) -> None:
        for namespace in self._services.namespaces.all():
            if namespace.is_global:
                self._namespace_changed(namespace)

    def _ring_changed(self) -> None:
        if not self._is_open:
            return
        for shard_id in range(self._shards_count):
            shard = self._shards.get(shard_id)
            if self.owns(shard_id):
                if shard is None or shard.ownership.is_lost:
                    self._open(shard_id)
            elif shard is not None:
                del self._shards[shard_id]
                self._close(shard)

    def _close(self, shard: Shard) -> "asyncio.Task[None]":
        closing = asyncio.get_running_loop().create_task(shard.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing


def _shard_operation(name: str) -> ShardOperation:
    operation = SHARD_OPERATIONS.get(name)
    if operation is None:
        raise Unimplemented(f"history has no operation {name}")
    return operation


def _log_failure(done: "asyncio.Task[Shard]") -> None:
    """Retrieve the exception of a failed opening, so that asyncio does not log it: `_take` has logged it."""
    if not done.cancelled():
        done.exception()


def _decode(kind: type[Any], data: bytes) -> Message | msgspec.Struct:
    try:
        if issubclass(kind, Message):
            return kind.FromString(data)
        decoded: msgspec.Struct = msgspec.msgpack.decode(data, type=kind)
    except (DecodeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidArgument(f"request is not a valid {kind.__name__}: {wrong}") from None
    else:
        return decoded


__all__ = ["HistoryService", "shard_of"]
