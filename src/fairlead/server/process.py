"""The composition root: the only place where services are made, and where it is decided in which order they begin.

A host is ready before anybody is sent to it: its store is open and its services answer before it enters the ring. And
it leaves the ring before it stops to answer: so others take its partitions over while it still tells those who come
to it where to go.
"""

import asyncio
import random
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from fairlead.cluster.calls import Caller, Handlers
from fairlead.cluster.grpc_caller import GrpcCaller
from fairlead.cluster.grpc_server import CannotListen, GrpcServer
from fairlead.cluster.local import LocalNetwork
from fairlead.cluster.membership import Membership, MembershipTimes
from fairlead.cluster.nudge import Nudges, nudge_all
from fairlead.cluster.ring import MemberRing, RemoteRing
from fairlead.cluster.wire import Errors
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import InvalidName, NotDrained, WriteNotLowered
from fairlead.core.routing import HashRing
from fairlead.matching.backlog import AppendQueueFull
from fairlead.matching.client import MatchingClient
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import NotARoot, ScalerIsOn, StaleConfig
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.partition import InvalidPoll, InvalidTask
from fairlead.matching.service import MatchingService
from fairlead.matching.starting import Starter, start_plainly
from fairlead.settings import DynamicSettings, Outcome, Plain, membership
from fairlead.settings.static import Address, MemoryConfig, PostgresConfig, SqliteConfig, StaticConfig, StoreConfig
from fairlead.storage.contract import LeaseLost, OutcomeUnknown, StoreUnavailable, TaskStore
from fairlead.storage.failures import follow_pool, reason_of
from fairlead.storage.memory import MemoryStore
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.watched import WatchedStore
from fairlead.telemetry import DYNAMIC_CONFIG_RELOADS, MEMBERSHIP_CHANGED, Metrics, MetricsEndpoint, get_log, refusal

# Others hear that a host comes or goes within this time, or find out by their own heartbeats.
NUDGE_S_MAX = 1.0
# How soon those who watch the health of a host hear that its store fails, or does no more.
HEALTH_INTERVAL_S = 0.5

# Those that a caller at another host must tell from others of their kind.
WIRE_ERRORS = (
    *(StaleConfig, NotOwner, AppendQueueFull, LeaseLost, OutcomeUnknown, StoreUnavailable),
    *(ScalerIsOn, NotARoot, NotDrained, WriteNotLowered, InvalidName, InvalidTask, InvalidPoll),
)

_log = get_log("server")


class CannotOpenStore(FixRequest):
    """A store is configured that can't be used so, or not by this installation."""


class Host:
    """The services of one host, however they are reached."""

    def __init__(
        self,
        name: str,
        *,
        store: TaskStore,
        caller: Caller,
        settings: DynamicSettings,
        metrics: Metrics,
        start: Starter = start_plainly,
    ) -> None:
        self.name = name
        self._caller = caller
        times = MembershipTimes(
            heartbeat_s=settings.get(membership.HEARTBEAT_INTERVAL), alive_s=settings.get(membership.MEMBER_EXPIRY)
        )
        self.membership = Membership(store, name, clock=time.time, times=times)
        self.ring = MemberRing(self.membership, settings, clock=time.time)
        self.matching = MatchingService(
            name,
            store=store,
            caller=caller,
            ring=self.ring,
            settings=settings,
            clock=time.time,
            start=start,
            metrics=metrics,
            log=get_log("matching"),
        )
        self._nudges = Nudges(self.membership)
        self.handlers = self.matching.handlers()
        self._nudges.add_to(self.handlers)

        def note_change(ring: HashRing) -> None:
            metrics.count(MEMBERSHIP_CHANGED)
            _log.info(
                "ring changed",
                host=name,
                hosts=list(ring.hosts),
                **{what: list(who) for what, who in self.membership.latest_change._asdict().items() if who},
                partitions_loaded=len(self.matching.engine.loaded),
            )

        self.membership.on_change(note_change)

    def start(self) -> None:
        """Begin what runs by itself; the host can be asked from now on."""
        self.ring.start()
        self.matching.start()

    async def join(self) -> None:
        """Enter the ring; the others are told."""
        await self.membership.join()
        await self._nudge()

    async def leave(self) -> bool:
        """Leave the ring, so that others take over; False if there is nobody else."""
        await self.membership.leave()
        await self._nudge()
        return bool(self.membership.ring.hosts)

    async def close(self) -> None:
        """Unload everything. Polls that wait are answered empty."""
        await self.matching.close()
        await self._nudges.close()
        await self.ring.close()

    async def _nudge(self) -> None:
        await nudge_all(self._caller, self.membership.ring.hosts, sender=self.name, timeout_s=NUDGE_S_MAX)


class Server:
    """One process of a cluster, or all of it."""

    def __init__(
        self,
        config: StaticConfig,
        *,
        overrides: Mapping[str, Plain] | None = None,
        start_task: Starter = start_plainly,
    ) -> None:
        """`overrides` are dynamic settings from the command line. What is wrong with the settings is told here."""
        self._config = config
        self._start_task = start_task
        self._settings = DynamicSettings(file=config.dynamic_file, overrides=overrides)
        self._metrics = Metrics()
        self._handlers = Handlers()
        self._grpc = GrpcServer(self._handlers, listen=str(config.listen), errors=Errors(WIRE_ERRORS))
        self._endpoint: MetricsEndpoint | None = None
        self._host: Host | None = None
        self._store: WatchedStore | None = None
        self._is_serving = False
        self._closing = AsyncExitStack()

    @property
    def address(self) -> str:
        """What other hosts, and clients, call this one by; known when it has started."""
        return "" if self._host is None else self._host.name

    @property
    def metrics_address(self) -> str | None:
        """Where the metrics are; None if they are not served."""
        return None if self._endpoint is None else self._endpoint.address

    async def start(self) -> None:
        """Begin to serve, and then enter the ring. Where this raises, nothing is left behind."""
        try:
            await self._start()
        except BaseException as failure:
            await self._closing.aclose()
            if isinstance(self._config.store, SqliteConfig) and (said := _damage_of(failure)):
                raise _damaged(self._config.store, said) from failure
            raise

    async def stop(self) -> None:
        """Leave the ring, let others take over, finish what was begun, and close."""
        self._is_serving = False
        self._grpc.drain()
        if self._host is not None and await self._host.leave():
            _log.info("handing over", host=self.address, hand_over_s=self._config.hand_over_s)
            await asyncio.sleep(self._config.hand_over_s)
        await self._closing.aclose()
        _log.info("stopped", host=self.address)

    async def _start(self) -> None:
        """What is opened first is closed last: polls are answered before gRPC stops, and the store outlives all."""
        config, closing = self._config, self._closing
        # Before the store is opened: who is refused for an address leaves no new file behind.
        _check_free(config.listen)
        await self._serve_metrics()
        opened = await open_store(config.store)
        store = self._store = WatchedStore(opened, self._metrics)
        closing.push_async_callback(store.close)
        if not isinstance(config.store, PostgresConfig):
            await _forget_members(store)
        bound = self._grpc.bind()
        closing.push_async_callback(self._grpc.stop, config.grace_s)
        name = bound if config.name is None else str(config.name)
        network = LocalNetwork()
        caller = GrpcCaller(errors=Errors(WIRE_ERRORS), self_host=name, local=network.caller())
        closing.push_async_callback(caller.close)
        host = Host(
            name,
            store=store,
            caller=caller,
            settings=self._settings,
            metrics=self._metrics,
            start=self._start_task,
        )
        closing.push_async_callback(host.close)
        network.register(name, host.handlers)
        for method, handle in host.handlers:
            self._handlers.add(method, _counted(method.name, handle, self._metrics))
        host.start()
        await self._grpc.start()
        reloading = asyncio.create_task(self._reload_forever())
        closing.push_async_callback(_cancel, reloading)
        following = asyncio.create_task(self._follow_store(store))
        closing.push_async_callback(_cancel, following)
        # Also where it is told to stop in the middle of joining. To leave twice does no harm.
        closing.push_async_callback(host.membership.leave)
        await host.join()
        self._host = host
        self._is_serving = True
        _log.info("started", host=name, listen=bound, metrics=self.metrics_address)

    async def _serve_metrics(self) -> None:
        if self._config.metrics_listen is not None:
            listen = str(self._config.metrics_listen)
            endpoint = MetricsEndpoint(self._metrics, listen, why_not_serving=self._why_not_serving)
            await endpoint.start()
            self._closing.push_async_callback(endpoint.stop)
            self._endpoint = endpoint

    def _why_not_serving(self) -> str | None:
        if not self._is_serving:
            return "not serving"
        since = None if self._store is None else self._store.unavailable_since
        return None if since is None else f"store unavailable since {since}"

    async def _follow_store(self, store: WatchedStore) -> None:
        while True:
            self._grpc.set_able(is_able=store.unavailable_since is None)
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def _reload_forever(self) -> None:
        """Follow the file of dynamic settings. What is wrong with it is logged once, and the last good one stays."""
        while self._config.dynamic_file is not None:
            await asyncio.sleep(self._config.dynamic_poll_interval_s)
            try:
                reload = self._settings.reload()
            except ExceptionGroup as failures:
                _log.error("settings in force, but not everywhere", exc_info=failures)
                continue
            if reload.outcome is Outcome.UNCHANGED:
                continue
            self._metrics.count(DYNAMIC_CONFIG_RELOADS, reload.outcome)
            file = str(self._config.dynamic_file)
            if reload.outcome is Outcome.LOADED:
                _log.info("settings loaded", file=file, changed=[setting.key for setting in reload.changed])
            else:
                problems = [str(problem) for problem in reload.problems]
                _log.error("settings refused, the last good ones stay", file=file, problems=problems)


async def open_store(config: StoreConfig) -> TaskStore:
    """Open the store that is configured, with the schema of this release."""
    if isinstance(config, SqliteConfig):
        return await SqliteStore.open(config.file)
    if isinstance(config, MemoryConfig):
        return MemoryStore()
    try:
        # Not everybody has its driver installed.
        import psycopg  # noqa: PLC0415

        from fairlead.storage.postgres import PostgresStore  # noqa: PLC0415
    except ImportError as missing:
        raise CannotOpenStore("the PostgreSQL store needs psycopg: pip install 'fairlead[postgres]'") from missing
    try:
        psycopg.conninfo.conninfo_to_dict(config.dsn)
    except psycopg.ProgrammingError:
        # Its message, and so that of its cause, would quote what may be a password.
        raise CannotOpenStore(
            "what store.postgres gives says not how to connect: "
            'write it like "host=10.0.0.5 dbname=fairlead user=fairlead" or "postgresql://fairlead@10.0.0.5/fairlead"'
        ) from None
    follow_pool()
    try:
        return await PostgresStore.open(config.dsn)
    except StoreUnavailable as failure:
        said, reason = str(failure), reason_of(failure)
        raise StoreUnavailable(said if reason in said else f"{said} It says: {reason}") from failure


@asynccontextmanager
async def connect(address: str, *, settings: DynamicSettings | None = None) -> AsyncIterator[MatchingClient]:
    """A client of the cluster that the host at `address` is of; the other hosts it finds by itself.

    async with connect("127.0.0.1:7240") as client:
        await client.add(task_list, task)
    """
    caller = new_caller()
    ring = RemoteRing(caller, [address], clock=time.time)
    try:
        await ring.open()
        yield MatchingClient(
            caller, ring, settings=settings or DynamicSettings(), clock=time.time, random=random.random
        )
    finally:
        await ring.close()
        await caller.close()


def new_caller() -> GrpcCaller:
    """Calls the hosts of a cluster from outside of it."""
    return GrpcCaller(errors=Errors(WIRE_ERRORS))


def _check_free(address: Address) -> None:
    """Refuse an address that can't be listened at, with the reason: gRPC keeps it for itself."""
    failure: OSError | None = None
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as trial:
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    trial.bind(place)
                    return
            except OSError as refused:
                failure = refused
    except OSError as unknown:
        failure = unknown
    why = refusal(failure, key="listen") if failure else "it has no address; choose another `listen`"
    raise CannotListen(f"can't listen at {address}: {why}")


def _damage_of(failure: BaseException) -> str | None:
    """What SQLite said of a file that is no database or no whole one; None if that is not what failed."""
    cause: BaseException | None = failure
    while cause is not None:
        # Itself, and none of those derived from it: a disk that is full, or a file that may not be read, is whole.
        if type(cause) is sqlite3.DatabaseError:
            return str(cause)
        cause = cause.__cause__
    return None


def _damaged(config: SqliteConfig, said: str) -> CannotOpenStore:
    return CannotOpenStore(
        f"{config.file} is damaged, or no database: SQLite says {said!r}; restore it from a backup, or move it and "
        f"{config.file.name}-wal away to begin with an empty one"
    )


async def _forget_members(store: TaskStore) -> None:
    """Only one process has the store open: whoever else is said to be alive was killed, or this host before."""
    for member in await store.members(now_s=time.time()):
        await store.leave(member.host)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _counted(
    operation: str, handle: Callable[[Any], Awaitable[Any]], metrics: Metrics
) -> Callable[[Any], Awaitable[Any]]:
    """Count what comes from outside the process, how long it takes, and how it fails."""
    service, _, name = operation.partition(".")
    calls = metrics.calls(service, name)

    async def count(request: Any) -> Any:
        began_s = time.perf_counter()
        try:
            answer = await handle(request)
        except Exception as failure:
            calls.failed(type(failure).__name__, time.perf_counter() - began_s)
            raise
        calls.answered(time.perf_counter() - began_s)
        return answer

    return count


class LocalCluster:
    """Several hosts in one process on one store: for tests and benchmarks.

    async with LocalCluster(hosts=3) as cluster:
        await cluster.client().add(task_list, task)
    """

    def __init__(
        self,
        *,
        hosts: int = 1,
        store: TaskStore | None = None,
        settings: DynamicSettings | None = None,
        start: Starter = start_plainly,
    ) -> None:
        """`store` is the caller's to close; without one, there is one in memory."""
        self.store = store or MemoryStore()
        self.settings = settings or DynamicSettings()
        self.metrics = Metrics()
        self.hosts: dict[str, Host] = {}
        self._names = [f"host-{number}" for number in range(hosts)]
        self._start = start
        self._network = LocalNetwork()
        self._caller = self._network.caller()
        self._ring = RemoteRing(self._caller, self._names, clock=time.time)

    async def __aenter__(self) -> Self:
        for name in self._names:
            await self.start_host(name)
        # Each has told those before it, who may not have looked yet.
        await asyncio.gather(*(host.membership.look() for host in self.hosts.values()))
        await self._ring.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ring.close()
        for name in list(self.hosts):
            await self.stop_host(name)

    def client(self) -> MatchingClient:
        """A client of its own: what it learns, no other knows."""
        return MatchingClient(self._caller, self._ring, settings=self.settings, clock=time.time, random=random.random)

    def operator(self) -> OperatorClient:
        """A client for what operators ask."""
        return OperatorClient(self._caller, self._ring, random=random.random)

    async def start_host(self, name: str) -> None:
        """Let another host join."""
        host = Host(
            name,
            store=self.store,
            caller=self._caller,
            settings=self.settings,
            metrics=self.metrics,
            start=self._start,
        )
        self._network.register(name, host.handlers)
        host.start()
        await host.join()
        self.hosts[name] = host

    async def stop_host(self, name: str, *, hand_over_s: float = 0.0) -> None:
        """Let a host leave, as `Server.stop` does."""
        host = self.hosts.pop(name)
        if await host.leave():
            await asyncio.sleep(hand_over_s)
        await host.close()
        self._network.unregister(name)
