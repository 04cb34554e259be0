"""One process of a cluster: in which order it begins to serve, and in which it stops.

A host is ready before anybody is sent to it: its store is open and its services answer before it enters the ring, and
SDKs are let in last. It stops in the opposite order: those who poll are answered and sent elsewhere, then it leaves the
ring while it still tells those who come to it where to go.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from fairlead.cluster.calls import Handlers
from fairlead.cluster.grpc_caller import GrpcCaller
from fairlead.cluster.grpc_server import GrpcServer
from fairlead.cluster.local import LocalNetwork
from fairlead.cluster.wire import Errors
from fairlead.core.errors import FairleadError
from fairlead.journal import Journal
from fairlead.matching.starting import Starter, start_plainly
from fairlead.server.addresses import check_free
from fairlead.server.clients import MATCHING_ERRORS
from fairlead.server.host import Host, HostRing
from fairlead.server.stores import damage, forget_members, open_store
from fairlead.settings import DynamicSettings, Outcome, Plain
from fairlead.settings.static import PostgresConfig, Role, StaticConfig
from fairlead.storage.watched import WatchedStore
from fairlead.telemetry import DYNAMIC_CONFIG_RELOADS, Metrics, MetricsEndpoint, get_log

if TYPE_CHECKING:
    from fairlead.server.workflows import Workflows

# How soon those who watch the health of a host hear that its store fails, or does no more.
HEALTH_INTERVAL_S = 0.5

_log = get_log("server")


class Server:
    """One process of a cluster, or all of it."""

    def __init__(
        self,
        config: StaticConfig,
        *,
        overrides: Mapping[str, Plain] | None = None,
        start_task: Starter = start_plainly,
    ) -> None:
        """`overrides` are dynamic settings from the command line. What is wrong with the settings is told here.

        `start_task` starts the tasks of a host without the history role.
        """
        self._config = config
        self._start_task = start_task
        self._settings = DynamicSettings(file=config.dynamic_file, overrides=overrides)
        self._metrics = Metrics()
        self._handlers = Handlers()
        errors: tuple[type[FairleadError], ...] = MATCHING_ERRORS
        if self._has_workflows:
            # Temporal's messages take a while to load, and a host of matching alone has no use for them.
            from fairlead.server.workflows import HISTORY_ERRORS  # noqa: PLC0415

            errors += HISTORY_ERRORS
        self._errors = Errors(errors)
        self._grpc = GrpcServer(self._handlers, listen=str(config.listen), errors=self._errors)
        self._endpoint: MetricsEndpoint | None = None
        self._host: Host | None = None
        self._workflows: Workflows | None = None
        self._store: WatchedStore | None = None
        self._journal: Journal | None = None
        self._name = ""
        self._is_serving = False
        self._closing = AsyncExitStack()

    @property
    def address(self) -> str:
        """What other hosts call this one by; known when it has started. Empty if it is in no ring."""
        return "" if self._host is None else self._host.name

    @property
    def frontend_address(self) -> str | None:
        """Where SDKs connect; None if they do not here."""
        return None if self._workflows is None else self._workflows.frontend_address

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
            if (refusal := damage(self._config.store, failure)) is not None:
                raise refusal from failure
            raise

    async def stop(self) -> None:
        """Let SDKs go, leave the ring, let others take over, finish what was begun, and close."""
        self._is_serving = False
        self._grpc.drain()
        if self._workflows is not None:
            await self._workflows.stop_frontend(self._config.grace_s)
        if self._host is not None and await self._host.leave():
            _log.info("handing over", host=self._name, hand_over_s=self._config.hand_over_s)
            await asyncio.sleep(self._config.hand_over_s)
        await self._closing.aclose()
        _log.info("stopped", host=self._name)

    @property
    def _has_workflows(self) -> bool:
        return bool(self._config.roles & {Role.FRONTEND, Role.HISTORY})

    async def _start(self) -> None:
        """What is opened first is closed last: polls are answered before gRPC stops, and the store outlives all."""
        config, closing = self._config, self._closing
        is_member = config.roles != {Role.FRONTEND}
        # Before the store is opened: who is refused for an address leaves no new file behind.
        if Role.FRONTEND in config.roles:
            check_free(config.frontend_listen, key="frontend.listen")
        if is_member:
            check_free(config.listen, key="listen")
        await self._serve_metrics()
        opened = await open_store(config.store)
        store = self._store = WatchedStore(opened, self._metrics)
        closing.push_async_callback(store.close)
        if not isinstance(config.store, PostgresConfig):
            await forget_members(store)
        # A host that is in no ring is called by nobody, so that its name need only differ from all others.
        bound = self._grpc.bind() if is_member else str(config.frontend_listen)
        name = self._name = bound if config.name is None else str(config.name)
        if is_member:
            closing.push_async_callback(self._grpc.stop, config.grace_s)
        await self._open_journal(name)
        network = LocalNetwork()
        caller = GrpcCaller(errors=self._errors, self_host=name, local=network.caller())
        closing.push_async_callback(caller.close)
        ring = HostRing(name, store=store, caller=caller, settings=self._settings)
        workflows = await self._make_workflows(ring, store, caller)
        if is_member:
            await self._join(ring, store, caller, network, workflows)
        else:
            closing.push_async_callback(ring.close)
            ring.start()
            await ring.follow()
        for running in (self._reload_forever(), self._follow_store(store)):
            closing.push_async_callback(_cancel, asyncio.create_task(running))
        if workflows is not None:
            await workflows.start_frontend()
        self._is_serving = True
        _log.info("started", host=name, listen=bound, frontend=self.frontend_address, metrics=self.metrics_address)

    async def _open_journal(self, name: str) -> None:
        if self._config.journal is not None:
            self._journal = await Journal.open(
                self._config.journal.folder,
                cluster=self._config.cluster_name,
                host=name,
                settings=self._settings,
                metrics=self._metrics,
            )
            self._closing.push_async_callback(self._journal.close)

    async def _make_workflows(self, ring: HostRing, store: WatchedStore, caller: GrpcCaller) -> "Workflows | None":
        if not self._has_workflows:
            return None
        from fairlead.server.workflows import Workflows  # noqa: PLC0415 - see above

        workflows = self._workflows = await Workflows.make(
            self._config,
            name=ring.name,
            store=store.history,
            caller=caller,
            ring=ring.view,
            settings=self._settings,
            metrics=self._metrics,
            journal=self._journal,
        )
        self._closing.push_async_callback(workflows.close)
        return workflows

    async def _join(
        self,
        ring: HostRing,
        store: WatchedStore,
        caller: GrpcCaller,
        network: LocalNetwork,
        workflows: "Workflows | None",
    ) -> None:
        closing = self._closing
        start = self._start_task if workflows is None else workflows.start_task
        host = Host(
            ring.name,
            store=store,
            caller=caller,
            settings=self._settings,
            metrics=self._metrics,
            start=start,
            ring=ring,
            journal=None if self._journal is None else self._journal.tasks(),
        )
        closing.push_async_callback(host.close)
        if workflows is not None:
            for method, handle in workflows.handlers():
                host.handlers.add(method, handle)
            closing.push_async_callback(workflows.close_history)
        network.register(ring.name, host.handlers)
        for method, handle in host.handlers:
            self._handlers.add(method, _counted(method.name, handle, self._metrics))
        host.start()
        await self._grpc.start()
        # Also where it is told to stop in the middle of joining. To leave twice does no harm.
        closing.push_async_callback(host.membership.leave)
        await host.join()
        if workflows is not None:
            await workflows.open_history()
        self._host = host

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
            is_able = store.unavailable_since is None
            self._grpc.set_able(is_able=is_able)
            if self._workflows is not None:
                self._workflows.set_able(is_able=is_able)
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
