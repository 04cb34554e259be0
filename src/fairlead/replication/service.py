"""Replication on one host: the streams of other clusters that it pulls, and the operations for operators."""

import asyncio
import random
from collections.abc import Callable, Iterable

import msgspec

from fairlead.api.clusters import Clusters
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, reported
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.core.routing import NoHosts
from fairlead.history.client import HistoryClient
from fairlead.membership.ring import RingView
from fairlead.replication.applier import Applier
from fairlead.replication.dead_letters import PAGE_MAX, DeadLetter, DeadLetters
from fairlead.replication.lanes import Room
from fairlead.replication.puller import Puller, Stream, StreamStatus
from fairlead.replication.remote import Remote
from fairlead.rpc.hosts.caller import Handlers, Method
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.replication import ATTEMPTS_MAX
from fairlead.settings.static.config import SHARDS_MAX
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import Buckets, Metrics, ReplicationGauges, get_log

# Limits for all streams of a host: bytes of received tasks that are not applied, and calls in flight to apply them.
ROOM_BYTES_MAX = 64 << 20
CALLS_MAX = 64
# Seconds between checks of the connected clusters, and between requests for a cluster's number of shards.
WATCH_S = 1.0
SHARDS_S = 30.0

_log = get_log("replication")


class UnknownSource(FixRequest):
    """Dead letters of a cluster that is not connected: their events can't be fetched."""


class UnlikelyShards(GiveUp):
    """A cluster reports an impossible number of shards."""


class StatusRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request for the progress of the streams that this host pulls."""


class StatusResponse(msgspec.Struct, array_like=True, frozen=True):
    """The progress of each stream; and the clusters that don't respond to Info, with the reason."""

    here: str
    streams: tuple[StreamStatus, ...]
    silent: tuple[tuple[str, str], ...] = ()


class DeadLettersRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request a page of dead letters of a source, or of all sources, after a key; with `task_ids`, only these tasks."""

    source: str = ""
    after: str = ""
    limit: int = PAGE_MAX
    task_ids: tuple[int, ...] = ()


class DeadLettersResponse(msgspec.Struct, array_like=True, frozen=True):
    """A page of dead letters; `next_after` is empty on the last page."""

    dead_letters: tuple[DeadLetter, ...]
    next_after: str = ""


class ProcessedDeadLetters(msgspec.Struct, array_like=True, frozen=True):
    """Number of dead letters of a page that were merged or purged, the errors of the others, and the start of the next
    page.
    """

    done: int
    failures: tuple[tuple[int, str], ...] = ()
    next_after: str = ""


STATUS = Method("replication.Status", StatusRequest, StatusResponse)
LIST = Method("replication.ListDeadLetters", DeadLettersRequest, DeadLettersResponse)
MERGE = Method("replication.MergeDeadLetters", DeadLettersRequest, ProcessedDeadLetters)
PURGE = Method("replication.PurgeDeadLetters", DeadLettersRequest, ProcessedDeadLetters)


def partition_of(stream: Stream) -> Partition:
    """Name of the partition under which the hash ring assigns a stream to one of this cluster's hosts."""
    return Partition(TaskQueueId("replication", f"{stream.source}/{stream.shard_id}", TaskType.WORKFLOW), 0)


class Replication:
    """Pulls the streams of other clusters that the ring assigns to this host."""

    def __init__(
        self,
        host: str,
        *,
        clusters: Clusters,
        remotes: Callable[[str], Remote],
        history: HistoryClient,
        store: HistoryStore,
        ring: RingView,
        settings: DynamicSettings,
        metrics: Metrics,
        clock_ns: Callable[[], int],
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`uniform` makes random numbers in [0, 1), which vary the pauses between attempts."""
        self._host = host
        self._clusters = clusters
        self._remotes = remotes
        self._history = history
        self._store = store
        self._ring = ring
        self._settings = settings
        self._metrics = metrics
        self._clock_ns = clock_ns
        self._uniform = uniform
        self.dead_letters = DeadLetters(store)
        self._room = Room(bytes_max=ROOM_BYTES_MAX, calls_max=CALLS_MAX)
        # Number of shards of each source that has responded, and the time of that response.
        self._shards: dict[str, int] = {}
        self._shards_s: dict[str, float] = {}
        # Sources that don't respond, with the reason; each is logged once.
        self._silent: dict[str, str] = {}
        self._latencies: dict[str, Buckets] = {}
        self._pullers: dict[Stream, Puller] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._watching: asyncio.Task[None] | None = None
        metrics.watch(self.gauges)
        ring.on_change(self._arrange)

    def handlers(self) -> Handlers:
        """The operations that this host offers to operators."""
        handlers = Handlers()
        handlers.add(STATUS, self._status)
        handlers.add(LIST, self._list)
        handlers.add(MERGE, self._merge)
        handlers.add(PURGE, self._purge)
        return handlers

    def open(self) -> None:
        """Start pulling."""
        self._is_open = True
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop; applied tasks are safe, and the next owner of each stream pulls the rest."""
        self._is_open = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._arrange()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def status(self) -> list[StreamStatus]:
        """The progress of each stream that this host pulls."""
        return [self._pullers[stream].status() for stream in sorted(self._pullers)]

    def silent(self) -> dict[str, str]:
        """The clusters that don't respond to Info, with the reason."""
        return {source: why for source, why in self._silent.items() if source in self._clusters.remotes}

    def gauges(self) -> list[ReplicationGauges]:
        """The progress by source, for a scrape of the metrics."""
        by_source: dict[str, list[StreamStatus]] = {}
        for one in self.status():
            by_source.setdefault(one.source, []).append(one)
        return [
            ReplicationGauges(
                source,
                lag_tasks=sum(one.lag_tasks for one in streams),
                lag_s=max(one.lag_s for one in streams),
                outstanding=sum(one.outstanding for one in streams),
                dead_letters=sum(one.dead_letters for one in streams),
                latency=self._latencies[source].read(),
            )
            for source, streams in by_source.items()
        ]

    # Streams

    async def _watch(self) -> None:
        while True:
            said_s = asyncio.get_running_loop().time() - SHARDS_S
            old = [one for one in sorted(self._clusters.remotes) if self._shards_s.get(one, said_s) <= said_s]
            try:
                await asyncio.gather(*(self._ask_shards(source) for source in old))
                self._arrange()
            except Exception:  # noqa: BLE001 - the next check follows after any error
                _log.exception("streams of other clusters not assigned")
            await asyncio.sleep(WATCH_S)

    async def _ask_shards(self, source: str) -> None:
        try:
            self._shards[source] = _likely((await self._remotes(source).info()).shards)
            self._shards_s[source] = asyncio.get_running_loop().time()
            self._silent.pop(source, None)
        except Exception as failure:  # noqa: BLE001 - an error of one cluster must not affect others
            is_known = source in self._silent
            self._silent[source] = str(failure)
            if is_known:
                return
            _log.info("cluster does not respond: retrying each second", source=source, **reported(failure, "reason"))

    def _arrange(self) -> None:
        """Open and close pullers so that this host pulls exactly the streams assigned to it."""
        wanted = set(self._wanted()) if self._is_open else set()
        for stream in sorted(self._pullers.keys() - wanted):
            closing = asyncio.get_running_loop().create_task(self._pullers.pop(stream).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for stream in sorted(wanted - self._pullers.keys()):
            puller = self._pullers[stream] = self._puller(stream)
            puller.open()

    def _wanted(self) -> Iterable[Stream]:
        for source in sorted(self._clusters.remotes):
            for shard_id in range(self._shards.get(source, 0)):
                stream = Stream(source, shard_id)
                try:
                    if self._ring.route(partition_of(stream)) == self._host:
                        yield stream
                except NoHosts:
                    return

    def _puller(self, stream: Stream) -> Puller:
        source = stream.source

        def remote() -> Remote:
            return self._remotes(source)

        return Puller(
            stream,
            host=self._host,
            here=self._clusters.here,
            remote=remote,
            applier=self._applier(source),
            store=self._store,
            dead_letters=self.dead_letters,
            room=self._room,
            streams=lambda: len(self._pullers),
            attempts_max=lambda: self._settings.get(ATTEMPTS_MAX),
            metrics=self._metrics,
            latency=self._latencies.setdefault(source, Buckets()),
            clock_ns=self._clock_ns,
            uniform=self._uniform,
        )

    def _applier(self, source: str) -> Applier:
        return Applier(source, remote=lambda: self._remotes(source), history=self._history, metrics=self._metrics)

    # Operators

    async def _status(self, _request: StatusRequest) -> StatusResponse:
        return StatusResponse(self._clusters.here, tuple(self.status()), tuple(sorted(self.silent().items())))

    async def _list(self, request: DeadLettersRequest) -> DeadLettersResponse:
        page = await self._page(request)
        dead_letters = tuple(
            dead_letter for dead_letter in page if not request.task_ids or dead_letter.task_id in request.task_ids
        )
        return DeadLettersResponse(dead_letters, _next_after(page, request))

    async def _merge(self, request: DeadLettersRequest) -> ProcessedDeadLetters:
        """Retry each dead letter of a page; those that succeed are removed."""
        page = await self._page(request)
        done = 0
        failures: list[tuple[int, str]] = []
        for dead_letter in page:
            if request.task_ids and dead_letter.task_id not in request.task_ids:
                continue
            if not dead_letter.is_readable:
                # Keep the stored record: a newer release may be able to decode and merge it.
                failures.append((dead_letter.task_id, dead_letter.error))
                continue
            try:
                if dead_letter.source not in self._clusters.remotes:
                    raise UnknownSource(
                        f"cluster {self._clusters.here!r} is not connected to {dead_letter.source!r}: add it, or "
                        f"purge the dead letters of {dead_letter.source!r}"
                    )
                await self._applier(dead_letter.source).replay(dead_letter)
                done += await self._remove(dead_letter)
            except FairleadError as failure:
                error = f"{type(failure).__name__}: {failure}"
                failures.append((dead_letter.task_id, error))
                await self.dead_letters.put(
                    msgspec.structs.replace(dead_letter, error=error, attempts=dead_letter.attempts + 1)
                )
        return ProcessedDeadLetters(done, tuple(failures), _next_after(page, request))

    async def _purge(self, request: DeadLettersRequest) -> ProcessedDeadLetters:
        page = await self._page(request)
        done = 0
        for dead_letter in page:
            if not request.task_ids or dead_letter.task_id in request.task_ids:
                done += await self._remove(dead_letter)
        return ProcessedDeadLetters(done, (), _next_after(page, request))

    async def _page(self, request: DeadLettersRequest) -> list[DeadLetter]:
        limit = max(1, min(request.limit, PAGE_MAX))
        return await self.dead_letters.page(source=request.source, after=request.after or None, limit=limit)

    async def _remove(self, dead_letter: DeadLetter) -> bool:
        is_gone = await self.dead_letters.remove(dead_letter)
        puller = self._pullers.get(Stream(dead_letter.source, dead_letter.shard_id))
        if puller is not None and is_gone:
            puller.dead_letters -= 1
        return is_gone


def _likely(shards: int) -> int:
    if not 0 < shards <= SHARDS_MAX:
        raise UnlikelyShards(f"the cluster reports {shards} shards: the number must be from 1 to {SHARDS_MAX}")
    return shards


def _next_after(page: list[DeadLetter], request: DeadLettersRequest) -> str:
    return page[-1].key if len(page) >= max(1, min(request.limit, PAGE_MAX)) else ""
