"""One process of a cluster: the order in which it starts and stops its services.

A host enters the ring only after its store is open and its services run, so that it can answer every call; its frontend
opens last. It stops in the opposite order: it answers the waiting polls and leaves the ring; then, for a while, it
still tells callers which host is the new owner.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fairlead.api.codes import code_of
from fairlead.core.errors import FairleadError
from fairlead.core.namespaces import NamespaceNames
from fairlead.journal import Journal
from fairlead.matching.connection import MATCHING_ERRORS
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.rpc.hosts.caller import Handlers
from fairlead.rpc.hosts.credentials import with_secret
from fairlead.rpc.hosts.grpc_caller import GrpcCaller
from fairlead.rpc.hosts.grpc_server import GrpcServer
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.rpc.hosts.wire import Errors
from fairlead.server.addresses import check_free
from fairlead.server.certificates import read_certificates
from fairlead.server.exposure import check_exposure
from fairlead.server.host import Host, HostRing
from fairlead.server.loose_files import loose_files, warn_of_loose_files
from fairlead.server.namespace_names import NamespaceDirectory
from fairlead.server.stores import damage, forget_members, open_store
from fairlead.settings import DynamicSettings, Outcome, Plain
from fairlead.settings.static.config import Address, PostgresConfig, Role, StaticConfig
from fairlead.storage.watched import WatchedStore
from fairlead.telemetry import DYNAMIC_CONFIG_RELOADS, Metrics, MetricsEndpoint, get_log

if TYPE_CHECKING:
    from fairlead.rpc import RpcServer
    from fairlead.server.guard import Guard
    from fairlead.server.workflows import Workflows
    from fairlead.time_skipping import TimeSkipping

# Seconds between updates of a host's health from the state of its store.
HEALTH_INTERVAL_S = 0.5

_log = get_log("server")


class Server:
    """One process of a cluster, or the whole cluster."""

    def __init__(
        self,
        config: StaticConfig,
        *,
        overrides: Mapping[str, Plain] | None = None,
        start_task: Starter = start_plainly,
        skipping: "TimeSkipping | None" = None,
        listens: bool = True,
    ) -> None:
        """`overrides` are dynamic settings from the command line. Raises if the settings are wrong.

        `start_task` starts tasks on a host without the history role. `skipping` makes this a test server, whose clock
        jumps to the next timer. Without `listens`, a supervisor accepts the frontend's connections.
        """
        self._skipping = skipping
        self._listens = listens
        self._config = config
        self._start_task = start_task
        self._settings = DynamicSettings(file=config.dynamic_file, overrides=overrides)
        self._without_effect: tuple[str, ...] = ()
        self._names = NamespaceNames()
        self._settings.use_names(self._names)
        self._metrics = Metrics()
        self._metrics.use_names(self._names)
        self._handlers = Handlers()
        errors: tuple[type[FairleadError], ...] = MATCHING_ERRORS
        if self._has_workflows:
            # Imported late: Temporal's messages load slowly, and a host with only the matching role doesn't need them.
            from fairlead.server.workflows import HISTORY_ERRORS  # noqa: PLC0415

            errors += HISTORY_ERRORS
        self._errors = Errors(errors)
        self._tls = read_certificates(config)
        internode = None if self._tls is None or self._tls.internode is None else self._tls.internode.context
        self._grpc = GrpcServer(
            self._handlers,
            listen=str(config.listen),
            errors=self._errors,
            code_of=code_of,
            tls=internode,
            metrics=self._metrics,
        )
        self._guard: Guard | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._host: Host | None = None
        self._workflows: Workflows | None = None
        self._store: WatchedStore | None = None
        self._directory: NamespaceDirectory | None = None
        self._journal: Journal | None = None
        self._name = ""
        self._is_serving = False
        self._closing = AsyncExitStack()

    @property
    def address(self) -> str:
        """Name by which other hosts call this one, known once it has started; empty if it is not in the ring."""
        return "" if self._host is None else self._host.name

    @property
    def frontend_address(self) -> str | None:
        """Address for SDKs; None without the frontend role."""
        return None if self._workflows is None else self._workflows.frontend_address

    @property
    def http_address(self) -> str | None:
        """Address of the HTTP API; None if it is not configured."""
        return None if self._workflows is None else self._workflows.http_address

    @property
    def ui_address(self) -> str | None:
        """Address of the web page; None if it is not configured."""
        return None if self._workflows is None else self._workflows.ui_address

    @property
    def metrics_address(self) -> str | None:
        """Address of the metrics endpoint; None if it is not configured."""
        return None if self._endpoint is None else self._endpoint.address

    async def start(self) -> None:
        """Start all services and enter the ring. If this raises, everything is closed again."""
        try:
            await self._start()
        except BaseException as failure:
            await self._closing.aclose()
            if (refusal := damage(self._config.store, failure)) is not None:
                raise refusal from failure
            raise

    async def stop(self) -> None:
        """Drain the frontend, leave the ring, give other hosts time to take over, finish open calls, and close."""
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
    def frontend_rpc(self) -> "RpcServer | None":
        """The frontend's gRPC server, for a supervisor; None without the frontend role."""
        return None if self._workflows is None else self._workflows.rpc

    @property
    def _has_workflows(self) -> bool:
        return bool(self._config.roles & {Role.FRONTEND, Role.HISTORY})

    async def _start(self) -> None:
        """Open in order; closing reverses it: polls are answered before gRPC stops, and the store closes last."""
        config, closing = self._config, self._closing
        self._name_settings_without_effect()
        is_member = config.roles != {Role.FRONTEND}
        # Checked before the store is opened: a start that fails because of an address leaves no new file behind.
        if Role.FRONTEND in config.roles and self._listens:
            check_free(config.frontend_listen, **_keys(config, "frontend.listen"))
            if config.http is not None:
                check_free(config.http.listen, **_keys(config, "frontend.http.listen"))
            if config.ui is not None:
                check_free(Address(config.ui.host, config.ui.port), **_keys(config, "ui.listen"))
        if is_member:
            check_free(config.listen, **_keys(config, "listen"))
        check_exposure(config)
        await self._serve_metrics()
        loose = loose_files(config)
        opened = await open_store(config.store)
        # After the store is open: a file of another program is refused, and its permissions are not ours to judge.
        warn_of_loose_files(loose)
        store = self._store = WatchedStore(opened, self._metrics)
        closing.push_async_callback(store.close)
        if not isinstance(config.store, PostgresConfig):
            await forget_members(store)
        # Other hosts don't call a host that is not in the ring, so its name only has to be unique.
        bound = self._grpc.bind() if is_member else str(config.frontend_listen)
        name = self._name = bound if config.name is None else str(config.name)
        if is_member:
            closing.push_async_callback(self._grpc.stop, config.grace_s)
        await self._open_journal(name)
        await self._open_guard(store)
        network = LocalNetwork()
        caller = GrpcCaller(
            errors=self._errors,
            self_host=name,
            local=network.caller(),
            credentials=with_secret(config.security.secret, None if self._tls is None else self._tls.to_hosts),
        )
        closing.push_async_callback(caller.close)
        ring = HostRing(name, store=store, caller=caller, settings=self._settings)
        directory = self._directory = NamespaceDirectory(store.history, self._names)
        workflows = await self._make_workflows(ring, store, caller, directory)
        if workflows is None:
            # Before the first partition is loaded: its settings may be constrained to the namespace's name.
            closing.push_async_callback(directory.close)
            await directory.open()
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
                key=self._config.spelled("journal.folder"),
                names=self._names,
            )
            self._closing.push_async_callback(self._journal.close)

    async def _open_guard(self, store: WatchedStore) -> None:
        """Authenticate every caller from now on; nothing listens yet."""
        if self._tls is not None:
            self._closing.push_async_callback(self._tls.close)
            self._metrics.watch(self._tls.gauges)
            self._tls.start()
        security = self._config.security
        if not security.authorization.is_on and not security.guards_hosts:
            return
        from fairlead.server.guard import open_guard  # noqa: PLC0415 - only authorization needs it

        guard = self._guard = await open_guard(
            security,
            store=store.history,
            settings=self._settings,
            metrics=self._metrics,
            journal=self._journal,
            host=self._name,
        )
        self._closing.push_async_callback(guard.close)
        self._grpc.use_gate(guard.hosts)

    async def _make_workflows(
        self, ring: HostRing, store: WatchedStore, caller: GrpcCaller, directory: NamespaceDirectory
    ) -> "Workflows | None":
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
            directory=directory,
            journal=self._journal,
            skipping=self._skipping,
            listens=self._listens,
            guard=self._guard,
            tls=self._tls,
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
        start = self._start_task if workflows is None else workflows.starter
        host = Host(
            ring.name,
            store=store,
            caller=caller,
            settings=self._settings,
            metrics=self._metrics,
            start=start,
            ring=ring,
            journal=None if self._journal is None else self._journal.tasks(),
            names=self._names,
        )
        closing.push_async_callback(host.close)
        if self._directory is not None:
            self._directory.add_to(host.handlers)
        if workflows is not None:
            workflows.reserve_polls(host.matching.reserve)
            for method, handle in workflows.handlers():
                host.handlers.add(method, handle)
            closing.push_async_callback(workflows.close_history)
        if self._guard is not None:
            for method, handle in self._guard.handlers():
                host.handlers.add(method, handle)
        network.register(ring.name, host.handlers)
        for method, handle in host.handlers:
            self._handlers.add(method, handle)
        host.start()
        await self._grpc.start()
        # Registered before the join, so that a stop during the join leaves, too. Leaving twice does no harm.
        closing.push_async_callback(host.membership.leave)
        await host.join()
        if workflows is not None:
            await workflows.open_history()
        self._host = host

    async def _serve_metrics(self) -> None:
        if self._config.metrics_listen is not None:
            listen = str(self._config.metrics_listen)
            keys = _keys(self._config, "metrics.listen")
            endpoint = MetricsEndpoint(
                self._metrics,
                listen,
                why_not_serving=self._why_not_serving,
                tls=None if self._tls is None or self._tls.metrics is None else self._tls.metrics.context,
                key=keys["key"],
                host_key=keys["host_key"],
            )
            await endpoint.start()
            self._closing.push_async_callback(endpoint.stop)
            self._endpoint = endpoint

    def _why_not_serving(self) -> str | None:
        if not self._is_serving:
            return "not serving"
        return None if self._store is None else self._store.trouble

    async def _follow_store(self, store: WatchedStore) -> None:
        while True:
            is_able = store.trouble is None
            self._grpc.set_able(is_able=is_able)
            if self._workflows is not None:
                self._workflows.set_able(is_able=is_able)
            await asyncio.sleep(HEALTH_INTERVAL_S)

    def _name_settings_without_effect(self) -> None:
        """Log the settings that have no effect here in one line, now and whenever the list changes."""
        keys = self._settings.without_effect
        if keys and keys != self._without_effect:
            _log.warning("settings without effect here, see docs/settings.md", keys=list(keys))
        self._without_effect = keys

    async def _reload_forever(self) -> None:
        """Reload the file of dynamic settings when it changes; log its errors once and keep the last good settings."""
        while self._config.dynamic_file is not None:
            await asyncio.sleep(self._config.dynamic_poll_interval_s)
            try:
                reload = self._settings.reload()
            except ExceptionGroup as failures:
                _log.error("settings loaded, but some listeners failed", exc_info=failures)
                continue
            if reload.outcome is Outcome.UNCHANGED:
                continue
            self._metrics.count(DYNAMIC_CONFIG_RELOADS, reload.outcome)
            file = str(self._config.dynamic_file)
            if reload.outcome is Outcome.LOADED:
                _log.info("settings loaded", file=file, changed=[setting.key for setting in reload.changed])
                self._name_settings_without_effect()
            else:
                problems = [str(problem) for problem in reload.problems]
                _log.error("settings refused, keeping the last good ones", file=file, problems=problems)


def _keys(config: StaticConfig, key: str) -> dict[str, str]:
    """Settings or flags, for messages: that of an address, and that of its host, which has its own flag."""
    return {"key": config.spelled(key), "host_key": config.flags.get(f"{key}.host", config.spelled(key))}


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
