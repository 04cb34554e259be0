"""The history service of one host: the shards that it owns, and what is asked of them."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from google.protobuf.message import DecodeError, Message
from structlog.typing import FilteringBoundLogger

from fairlead.cluster.calls import Caller, CallLost, Handlers, Method
from fairlead.cluster.ring import RingView
from fairlead.core.errors import FairleadError, RetryElsewhere, RetryLater
from fairlead.core.routing import NoHosts
from fairlead.history.client import CALL, HistoryAnswer, HistoryCall, HistoryClient, place_of, shard_of
from fairlead.history.clusters import Clusters, is_not_active
from fairlead.history.deployments import Deployments, decode_mark
from fairlead.history.duties import run_row
from fairlead.history.journaling import HistoryJournal
from fairlead.history.large_calls import NEXT_PART, PART_BYTES_MAX, SEND_PART, KeptParts, NoRoom, new_key
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.history.operations import OPERATIONS
from fairlead.history.refusals import Refused, invalid, unimplemented
from fairlead.history.scope import Operation, Scope, Services
from fairlead.history.shard import TIMER, TRANSFER, NotOwner, Shard
from fairlead.history.shard_operations import SHARD_OPERATIONS, ShardOperation
from fairlead.history.state import DEFAULT_LIMITS, RunClosed
from fairlead.history.state.errors import NotPending
from fairlead.history.stream_messages import BranchesAnswer, BranchesRequest, TreeRequest
from fairlead.history.sweeping import Sweeper
from fairlead.history.tasks_wire import decode_matched
from fairlead.matching.client import MatchingClient
from fairlead.matching.starting import NotStarted
from fairlead.rpc import Code
from fairlead.settings import DynamicSettings
from fairlead.storage.history_contract import HistoryStore
from fairlead.telemetry import SHARD_LOST, HistoryGauges, Metrics

START_TIMEOUT_S = 5.0
# After a failure to take a shard it is tried again.
REOPEN_S = 0.2
# Shards that are taken at a time: the others' calls, and the heartbeats, need the store as well.
OPENING_MAX = 8

TREE = Method("history.Tree", TreeRequest, BranchesAnswer)


class HistoryService:
    """Everything that a host of the history role does."""

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
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        uniform: Callable[[], float] = random.random,
        log: FilteringBoundLogger | None = None,
        journal: HistoryJournal | None = None,
        clusters: Clusters | None = None,
    ) -> None:
        self.host = host
        self.client = HistoryClient(host, caller, ring, shards=shards)
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
            new_id=new_id,
            uniform=uniform,
            metrics=metrics,
            limits=DEFAULT_LIMITS,
            deployments=deployments or Deployments(store, clock_ns=clock_ns),
            journal=journal,
            clusters=clusters or Clusters(),
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
        metrics.watch(self.gauges)
        ring.on_change(self._ring_changed)
        namespaces.on_change(self._namespace_changed)
        self._services.clusters.on_change(self._clusters_changed)

    @property
    def shards(self) -> dict[int, Shard]:
        """The shards that this host has open."""
        return self._shards

    def handlers(self) -> Handlers:
        """What this host answers to others."""
        handlers = Handlers()
        handlers.add(CALL, self._call)
        handlers.add(SEND_PART, self._parts.add)
        handlers.add(NEXT_PART, self._parts.next)
        handlers.add(TREE, self._tree)
        return handlers

    async def open(self) -> None:
        """Take the shards that are this host's, now and whenever the ring changes."""
        self._is_open = True
        self._ring_changed()
        self._sweeper.open()

    async def close(self) -> None:
        """Let go of all shards; what is to be done is in the store."""
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
        """Carry out an operation in a shard of this host."""
        operation = _operation(name)
        shard = self._shards.get(shard_id)
        if shard is None or shard.is_lost:
            shard = await self._opened(shard_id)
        if isinstance(operation, ShardOperation):
            return await operation.run(shard, request)
        namespaces = self._services.namespaces
        namespace = namespaces.cached_id(namespace_id) or await namespaces.find_id(namespace_id)
        scope = Scope(shard, namespace, self._services, timeout_s)
        answer = await shard.shared.do(namespace, lambda: operation.run(scope, request))
        return answer if isinstance(answer, bytes) else answer.SerializeToString()

    async def start_task(self, payload: bytes, identity: str, worker: bytes = b"") -> bytes | NotStarted:
        """Start a task that matching gives to a poll: what the poll is answered with."""
        name, request = decode_matched(payload, identity, worker)
        is_review = decode_mark(worker) is not None
        if is_review:
            name = "ReviewTask"
        try:
            answer = await self.client.call(
                name, request.namespace_id, request.workflow_id, request, timeout_s=START_TIMEOUT_S
            )
        except (NotPending, RunClosed):
            return NotStarted.GONE
        except Refused as refused:
            # What is active in another cluster is given out there.
            is_gone = refused.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT) or is_not_active(refused)
            return NotStarted.GONE if is_gone else NotStarted.REFUSED
        except (RetryLater, RetryElsewhere):
            return NotStarted.REFUSED
        if is_review:
            return NotStarted.REFUSED if answer else NotStarted.GONE
        return answer or NotStarted.GONE

    async def _call(self, call: HistoryCall) -> HistoryAnswer:
        operation = _operation(call.name)
        if not 0 <= call.shard_id < self._shards_count:
            raise invalid(f"shard {call.shard_id} is not one of {self._shards_count}")
        data = self._parts.take(call.parts_key) if call.parts_key else call.request
        request = _decode(operation.request, data)
        answer = await self.run(call.name, call.shard_id, call.namespace_id, request, call.timeout_s)
        if len(answer) <= PART_BYTES_MAX:
            return HistoryAnswer(answer)
        rest_key = new_key()
        try:
            self._parts.keep(rest_key, answer[PART_BYTES_MAX:])
        except NoRoom as full:
            # Not as it is: who hears that takes it for not carried out.
            raise CallLost(f"{call.name} was carried out, but its answer can't be kept: {full}") from full
        return HistoryAnswer(answer[:PART_BYTES_MAX], rest_key)

    async def _tree(self, request: TreeRequest) -> BranchesAnswer:
        namespace = await self._services.namespaces.find(request.namespace)
        asked = BranchesRequest(request.workflow_id, request.run_id)
        answer = await self.client.call("Branches", namespace.id, request.workflow_id, asked)
        return msgspec.msgpack.decode(answer, type=BranchesAnswer)

    # Shards

    def owns(self, shard_id: int) -> bool:
        """Whether the ring gives the shard to this host."""
        try:
            return self._ring.route(place_of(shard_id)) == self.host
        except NoHosts:
            return False

    async def _opened(self, shard_id: int) -> Shard:
        self._check_owner(shard_id)
        return await asyncio.shield(self._open(shard_id))

    def _check_owner(self, shard_id: int) -> None:
        if not self._is_open or not self.owns(shard_id):
            raise NotOwner(f"shard {shard_id} is not of host {self.host}: ask for its owner again")

    def _open(self, shard_id: int) -> "asyncio.Task[Shard]":
        opening = self._opening.get(shard_id)
        if opening is None:
            opening = self._opening[shard_id] = asyncio.get_running_loop().create_task(self._take(shard_id))
            opening.add_done_callback(lambda _done: self._opening.pop(shard_id, None))
            opening.add_done_callback(_look_at)
        return opening

    async def _take(self, shard_id: int) -> Shard:
        before = self._shards.pop(shard_id, None)
        if before is not None:
            # To its end, even where this is told to stop.
            await asyncio.shield(self._close(before))
        shard = Shard(shard_id, services=self._services, do=run_row, on_lost=self._lost)
        try:
            async with self._opening_room:
                # Those that wait here for long may not be this host's any more.
                self._check_owner(shard_id)
                await shard.open()
            # The ring may have changed meanwhile. Its new owner takes the shard back with its next write.
            self._check_owner(shard_id)
        except BaseException as failure:
            await shard.close()
            if isinstance(failure, FairleadError) and not isinstance(failure, NotOwner):
                self._log.warning("shard can't be taken", shard=shard_id, error=str(failure))
                asyncio.get_running_loop().call_later(REOPEN_S, self._ring_changed)
            raise
        self._shards[shard_id] = shard
        if shard.is_lost:
            # By what its queues have begun already, when nobody would have been told.
            asyncio.get_running_loop().call_later(REOPEN_S, self._ring_changed)
        return shard

    def gauges(self) -> list[HistoryGauges]:
        """What this host holds now."""
        shards = self._shards.values()
        return [
            HistoryGauges(
                shards=len(shards),
                runs=sum(len(shard.runs) for shard in shards),
                tasks={name: sum(shard.queues[name].pending for shard in shards) for name in (TRANSFER, TIMER)},
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
                if shard is None or shard.is_lost:
                    self._open(shard_id)
            elif shard is not None:
                del self._shards[shard_id]
                self._close(shard)

    def _close(self, shard: Shard) -> "asyncio.Task[None]":
        closing = asyncio.get_running_loop().create_task(shard.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing


def _operation(name: str) -> Operation | ShardOperation:
    operation = OPERATIONS.get(name) or SHARD_OPERATIONS.get(name)
    if operation is None:
        raise unimplemented(f"history has no operation {name}")
    return operation


def _look_at(done: "asyncio.Task[Shard]") -> None:
    """Somebody else has logged how it failed."""
    if not done.cancelled():
        done.exception()


def _decode(kind: type[Any], data: bytes) -> Message | msgspec.Struct:
    try:
        if issubclass(kind, Message):
            return kind.FromString(data)
        decoded: msgspec.Struct = msgspec.msgpack.decode(data, type=kind)
    except (DecodeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise invalid(f"no {kind.__name__}: {wrong}") from None
    else:
        return decoded


__all__ = ["HistoryService", "shard_of"]
