"""The replication of one host: the streams of other clusters that it pulls, and what operators ask of it."""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from fairlead.cluster.calls import Handlers, Method
from fairlead.cluster.ring import RingView
from fairlead.core.errors import FairleadError, FixRequest, GiveUp
from fairlead.core.partitions import Partition, TaskList, TaskType
from fairlead.core.routing import NoHosts
from fairlead.history.client import HistoryClient
from fairlead.history.clusters import Clusters
from fairlead.replication.applying import Applier
from fairlead.replication.dead_letters import PAGE_MAX, DeadLetter, DeadLetters
from fairlead.replication.lanes import Room
from fairlead.replication.pulling import Puller, Stream, StreamStatus
from fairlead.replication.remote import Remote
from fairlead.settings import DynamicSettings
from fairlead.settings.replication import ATTEMPTS_MAX
from fairlead.settings.static import SHARDS_MAX
from fairlead.storage.history_contract import HistoryStore
from fairlead.telemetry import Buckets, Metrics, ReplicationGauges, get_log

# What has come from other clusters and is not taken in yet, and the calls under way for it, of all streams of a host.
ROOM_BYTES_MAX = 64 << 20
CALLS_MAX = 64
# How often it is looked which clusters there are, and how many shards each has: until it says, and now and then after.
WATCH_S = 1.0
SHARDS_S = 30.0

_log = get_log("replication")


class UnknownSource(FixRequest):
    """Dead letters of a cluster that this one is not connected with can't be got again."""


class UnlikelyShards(GiveUp):
    """A cluster says that it has a number of shards that none can have."""


class StatusRequest(msgspec.Struct, array_like=True, frozen=True):
    """How far is this host with the streams that it pulls."""


class StatusAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Each of them; and the clusters that don't answer when they are asked for their streams, with the reason."""

    here: str
    streams: tuple[StreamStatus, ...]
    silent: tuple[tuple[str, str], ...] = ()


class LettersRequest(msgspec.Struct, array_like=True, frozen=True):
    """Dead letters of a source, or of all: the first after a key. Of `task_ids` only, where there are any."""

    source: str = ""
    after: str = ""
    limit: int = PAGE_MAX
    task_ids: tuple[int, ...] = ()


class LettersAnswer(msgspec.Struct, array_like=True, frozen=True):
    """A page of them; `next_after` is empty where it is the last."""

    letters: tuple[DeadLetter, ...]
    next_after: str = ""


class DoneWithLetters(msgspec.Struct, array_like=True, frozen=True):
    """How many of a page were done with, what has become of the others, and where the next page begins."""

    done: int
    failures: tuple[tuple[int, str], ...] = ()
    next_after: str = ""


STATUS = Method("replication.Status", StatusRequest, StatusAnswer)
LIST = Method("replication.ListDeadLetters", LettersRequest, LettersAnswer)
MERGE = Method("replication.MergeDeadLetters", LettersRequest, DoneWithLetters)
PURGE = Method("replication.PurgeDeadLetters", LettersRequest, DoneWithLetters)


def place_of(stream: Stream) -> Partition:
    """What the ring routes a stream by: so the hosts of this cluster divide them among themselves."""
    return Partition(TaskList("replication", f"{stream.source}/{stream.shard_id}", TaskType.WORKFLOW), 0)


class Replication:
    """Pulls the streams of other clusters that the ring gives to this host."""

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
    ) -> None:
        self._host = host
        self._clusters = clusters
        self._remotes = remotes
        self._history = history
        self._store = store
        self._ring = ring
        self._settings = settings
        self._metrics = metrics
        self._clock_ns = clock_ns
        self.letters = DeadLetters(store)
        self._room = Room(bytes_max=ROOM_BYTES_MAX, calls_max=CALLS_MAX)
        # How many shards each source has, once it has said so, and when that was.
        self._shards: dict[str, int] = {}
        self._shards_s: dict[str, float] = {}
        # Those that don't answer, as the log says, and why.
        self._silent: dict[str, str] = {}
        self._latencies: dict[str, Buckets] = {}
        self._pullers: dict[Stream, Puller] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._watching: asyncio.Task[None] | None = None
        metrics.watch(self.gauges)
        ring.on_change(self._arrange)

    def handlers(self) -> Handlers:
        """What this host answers to operators."""
        handlers = Handlers()
        handlers.add(STATUS, self._status)
        handlers.add(LIST, self._list)
        handlers.add(MERGE, self._merge)
        handlers.add(PURGE, self._purge)
        return handlers

    def open(self) -> None:
        """Pull from now on."""
        self._is_open = True
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop; what was taken in is safe, and the rest is pulled by whoever comes next."""
        self._is_open = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._arrange()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def status(self) -> list[StreamStatus]:
        """How far this host is with each stream."""
        return [self._pullers[stream].status() for stream in sorted(self._pullers)]

    def silent(self) -> dict[str, str]:
        """The clusters that don't answer when they are asked for their streams, and why."""
        return {source: why for source, why in self._silent.items() if source in self._clusters.remotes}

    def gauges(self) -> list[ReplicationGauges]:
        """The same by source, for a scrape."""
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
            except Exception:  # noqa: BLE001 - whatever it is, it is looked again
                _log.exception("streams of other clusters not arranged")
            await asyncio.sleep(WATCH_S)

    async def _ask_shards(self, source: str) -> None:
        try:
            self._shards[source] = _likely((await self._remotes(source).info()).shards)
            self._shards_s[source] = asyncio.get_running_loop().time()
            self._silent.pop(source, None)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the other clusters have said it
            unexpected = None if isinstance(failure, FairleadError) else failure
            is_known = source in self._silent
            self._silent[source] = str(failure)
            if is_known:
                return
            _log.info(
                "cluster does not answer: it is asked again each second",
                source=source,
                reason=str(failure),
                exc_info=unexpected,
            )

    def _arrange(self) -> None:
        """Pull what is this host's now, and nothing else."""
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
                    if self._ring.route(place_of(stream)) == self._host:
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
            letters=self.letters,
            room=self._room,
            streams=lambda: len(self._pullers),
            attempts_max=lambda: self._settings.get(ATTEMPTS_MAX),
            metrics=self._metrics,
            latency=self._latencies.setdefault(source, Buckets()),
            clock_ns=self._clock_ns,
        )

    def _applier(self, source: str) -> Applier:
        return Applier(source, remote=lambda: self._remotes(source), history=self._history, metrics=self._metrics)

    # Operators

    async def _status(self, _request: StatusRequest) -> StatusAnswer:
        return StatusAnswer(self._clusters.here, tuple(self.status()), tuple(sorted(self.silent().items())))

    async def _list(self, request: LettersRequest) -> LettersAnswer:
        page = await self._page(request)
        letters = tuple(letter for letter in page if not request.task_ids or letter.task_id in request.task_ids)
        return LettersAnswer(letters, _next_after(page, request))

    async def _merge(self, request: LettersRequest) -> DoneWithLetters:
        """Try each letter of a page again; those that end well go."""
        page = await self._page(request)
        done = 0
        failures: list[tuple[int, str]] = []
        for letter in page:
            if request.task_ids and letter.task_id not in request.task_ids:
                continue
            if not letter.is_readable:
                # Whoever can read it may have it merged yet: nothing is written in its place.
                failures.append((letter.task_id, letter.error))
                continue
            try:
                if letter.source not in self._clusters.remotes:
                    raise UnknownSource(
                        f"cluster {letter.source!r} is none that {self._clusters.here!r} is connected with: add it, "
                        "or purge its letters"
                    )
                await self._applier(letter.source).replay(letter)
                done += await self._remove(letter)
            except FairleadError as failure:
                error = f"{type(failure).__name__}: {failure}"
                failures.append((letter.task_id, error))
                await self.letters.put(msgspec.structs.replace(letter, error=error, attempts=letter.attempts + 1))
        return DoneWithLetters(done, tuple(failures), _next_after(page, request))

    async def _purge(self, request: LettersRequest) -> DoneWithLetters:
        page = await self._page(request)
        done = 0
        for letter in page:
            if not request.task_ids or letter.task_id in request.task_ids:
                done += await self._remove(letter)
        return DoneWithLetters(done, (), _next_after(page, request))

    async def _page(self, request: LettersRequest) -> list[DeadLetter]:
        limit = max(1, min(request.limit, PAGE_MAX))
        return await self.letters.page(source=request.source, after=request.after or None, limit=limit)

    async def _remove(self, letter: DeadLetter) -> bool:
        is_gone = await self.letters.remove(letter)
        puller = self._pullers.get(Stream(letter.source, letter.shard_id))
        if puller is not None and is_gone:
            puller.dead_letters -= 1
        return is_gone


def _likely(shards: int) -> int:
    if not 0 < shards <= SHARDS_MAX:
        raise UnlikelyShards(f"it says that it has {shards} shards: there are 1 to {SHARDS_MAX}")
    return shards


def _next_after(page: list[DeadLetter], request: LettersRequest) -> str:
    return page[-1].key if len(page) >= max(1, min(request.limit, PAGE_MAX)) else ""
