"""The history service and the frontend of one host: created for its roles, opened and closed in order."""

import random
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Self

from fairlead.aio.drain import Drain
from fairlead.api.errors import API_ERRORS
from fairlead.api.namespaces import Namespaces
from fairlead.api.worker_deployments import Deployments
from fairlead.console.backend import Backend
from fairlead.console.series import TimeSeries
from fairlead.frontend import Frontend, read_cluster_id
from fairlead.history.client import HistoryClient
from fairlead.history.draining_client import DrainingClient
from fairlead.history.service import HistoryService
from fairlead.history.shard.journal import HistoryJournal
from fairlead.history.shard.matching_tasks import leave_sticky
from fairlead.history.shard.queue import AHEAD_NS
from fairlead.history.state.errors import (
    BadRequest,
    KeyAtLimit,
    NotPending,
    QueueAtLimit,
    RunClosed,
    TooManySignals,
)
from fairlead.history.worker_deployments.task_moves import Mover
from fairlead.journal import Journal
from fairlead.matching.client import MatchingClient
from fairlead.matching.draining_caller import DrainingCaller
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.reserved_poll import Reserve
from fairlead.matching.sticky_polls import StickyPolls
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.membership.ring import RingView
from fairlead.rpc import RpcServer
from fairlead.rpc.hosts.caller import Caller, Handlers
from fairlead.server.bootstrap import ensure_namespaces, fix_cluster, fix_shards
from fairlead.server.frontend_server import FrontendServer
from fairlead.server.namespace_names import NamespaceDirectory
from fairlead.settings import DynamicSettings
from fairlead.settings.static.config import MemoryConfig, PostgresConfig, Role, SqliteConfig, StaticConfig
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import Metrics, get_log

if TYPE_CHECKING:
    from fairlead.replication.clusters import ClusterRegistry
    from fairlead.rpc.tls import TlsProvider
    from fairlead.server.global_namespaces import GlobalNamespaceServices
    from fairlead.server.guard import Guard
    from fairlead.time_skipping import TimeSkipping

# Error classes that callers on other hosts must get unchanged, not as their kind.
HISTORY_ERRORS = (*API_ERRORS, NotPending, RunClosed, BadRequest, TooManySignals, KeyAtLimit, QueueAtLimit)

# Seconds until all hosts of a cluster know a change of a namespace.
NAMESPACES_REFRESH_S = 5.0
# Seconds until all hosts know a change of a global namespace: its active cluster may change at any time.
GLOBAL_NAMESPACES_REFRESH_S = 1.0

# Names of the stores in GetClusterInfo.
_STORE_NAMES = {MemoryConfig: "memory", SqliteConfig: "sqlite", PostgresConfig: "postgres12"}


class Workflows:
    """Services of a host with the history or the frontend role, in addition to the ring and matching."""

    def __init__(
        self,
        *,
        namespaces: Namespaces,
        matching: MatchingClient,
        deployments: Deployments,
        mover: Mover,
        history: HistoryService | None,
        frontend: FrontendServer | None,
        global_namespaces: "GlobalNamespaceServices | None",
    ) -> None:
        """Call `make` instead of this constructor."""
        self._namespaces = namespaces
        self._matching = matching
        self._deployments = deployments
        self._mover = mover
        self._history = history
        self._frontend = frontend
        self._global_namespaces = global_namespaces
        self.frontend_address: str | None = None

    @property
    def http_address(self) -> str | None:
        """Address of the HTTP API; None without one."""
        return None if self._frontend is None else self._frontend.http_address

    @property
    def ui_address(self) -> str | None:
        """Address of the web page; None without one."""
        return None if self._frontend is None else self._frontend.ui_address

    @classmethod
    async def make(
        cls,
        config: StaticConfig,
        *,
        name: str,
        store: HistoryStore,
        caller: Caller,
        ring: RingView,
        settings: DynamicSettings,
        metrics: Metrics,
        directory: NamespaceDirectory,
        journal: Journal | None = None,
        skipping: "TimeSkipping | None" = None,
        listens: bool = True,
        guard: "Guard | None" = None,
        tls: "TlsProvider | None" = None,
    ) -> Self:
        """Create the services, write the store's initial metadata and namespaces, and bind the frontend's address.

        Without `listens`, another process accepts the frontend's connections.
        """
        gate = None if guard is None else guard.frontend
        shards = await fix_shards(store, config)
        await fix_cluster(store, config)
        cluster_id = await read_cluster_id(store)
        refresh_s = NAMESPACES_REFRESH_S if config.cluster is None else GLOBAL_NAMESPACES_REFRESH_S
        namespaces = Namespaces(store, clock=time.time, refresh_s=refresh_s)
        directory.follow(namespaces)
        await ensure_namespaces(namespaces, config.namespaces, new_id=_new_id, now_ns=time.time_ns())
        registry: ClusterRegistry | None = None
        if config.cluster is not None:
            # Imported late: a single cluster doesn't need replication.
            from fairlead.server.global_namespaces import cluster_credentials, open_registry  # noqa: PLC0415

            registry = await open_registry(store, config.cluster, cluster_credentials(config.cluster, tls))
        matching = MatchingClient(caller, ring, settings=settings, clock=time.time, random=random.random)
        metrics.watch(matching.gauges)
        deployments = Deployments(store, clock_ns=time.time_ns)
        mover = Mover(deployments, matching, clock_ns=time.time_ns)
        history: HistoryService | None = None
        client = HistoryClient(name, caller, ring, shards=shards)
        if Role.HISTORY in config.roles:
            history = HistoryService(
                name,
                store=store,
                caller=caller,
                ring=ring,
                settings=settings,
                shards=shards,
                namespaces=namespaces,
                matching=matching,
                deployments=deployments,
                metrics=metrics,
                log=get_log("history"),
                journal=None
                if journal is None or config.journal is None
                else HistoryJournal(journal, payloads=config.journal.payloads),
                clusters=None if registry is None else registry.clusters,
                clock_ns=time.time_ns if skipping is None else skipping.clock.now_ns,
                on_work=None if skipping is None else skipping.work.report,
                timers_ahead_ns=AHEAD_NS if skipping is None else None,
            )
            client = history.client
        global_namespaces: GlobalNamespaceServices | None = None
        if registry is not None:
            from fairlead.server import global_namespaces as built  # noqa: PLC0415 - see above

            authorization = config.security.authorization
            global_namespaces = built.GlobalNamespaceServices(
                registry,
                host=name,
                store=store,
                ring=ring,
                namespaces=namespaces,
                history=history,
                client=client,
                shards=shards,
                settings=settings,
                metrics=metrics,
                credentials=built.cluster_credentials(registry.config, tls),
                credential_headers=(authorization.header, authorization.extras_header),
            )
        frontend: FrontendServer | None = None
        if Role.FRONTEND in config.roles:
            drain = Drain()
            polls = DrainingCaller(caller, drain)
            sticky_polls: StickyPolls | None = None
            # With a journal, all polls wait at the partition, which records every task.
            if journal is None:
                sticky_polls = StickyPolls(name, ring, settings)
                matching.reserve_sticky(sticky_polls.reserve)
                client.offer_polls(matching.reserve_offered)
            polling = MatchingClient(polls, ring, settings=settings, clock=time.time, random=random.random)
            metrics.watch(polling.gauges)
            behind = Frontend(
                namespaces=namespaces,
                history=client,
                draining_history=DrainingClient(client, drain),
                matching=polling,
                sticky_polls=sticky_polls,
                operator=OperatorClient(caller, ring, random=random.random),
                store=store,
                settings=settings,
                clock=time.time,
                cluster_name=config.cluster_name,
                cluster_id=cluster_id,
                global_namespaces=None if global_namespaces is None else global_namespaces.of_frontend,
                redirection=None if global_namespaces is None else global_namespaces.redirection(drain),
                shard_count=shards,
                store_name=_STORE_NAMES[type(config.store)],
                worker_gone=partial(leave_sticky, matching, client),
                shared_deployments=deployments,
                observer=None if skipping is None else skipping.calls,
                gate=gate,
                hosts=lambda: len(ring.hosts),
            )
            frontend = FrontendServer(
                behind,
                listen=str(config.frontend_listen),
                listens=listens,
                drain=drain,
                metrics=metrics,
                log=get_log("frontend"),
                endpoint=None if global_namespaces is None else global_namespaces.endpoint(cluster_id, drain),
                admission=None if global_namespaces is None else global_namespaces.admission(gate),
                skipper=None if skipping is None or history is None else skipping.skipper(history, namespaces),
                config=config,
                tls=None if tls is None or tls.frontend is None else tls.frontend.context,
                http_tls=None if tls is None or tls.http is None else tls.http.context,
                backend=None
                if config.ui is None
                else Backend(
                    host=name,
                    caller=caller,
                    ring=ring,
                    metrics=metrics,
                    settings=settings,
                    config=config,
                    series=TimeSeries(),
                    shards=shards,
                    gate=gate,
                    admit=None if guard is None else guard.hosts.admit,
                    audit=None if guard is None else guard.audit,
                ),
            )
        made = cls(
            namespaces=namespaces,
            matching=matching,
            deployments=deployments,
            mover=mover,
            history=history,
            frontend=frontend,
            global_namespaces=global_namespaces,
        )
        try:
            await namespaces.open()
            await deployments.open()
            if frontend is not None:
                made.frontend_address = frontend.bind()
        except BaseException:
            await made.close()
            raise
        return made

    def handlers(self) -> Handlers:
        """Handlers for calls of other hosts."""
        handlers = Handlers() if self._history is None else self._history.handlers()
        if self._global_namespaces is not None:
            for method, handle in self._global_namespaces.handlers():
                handlers.add(method, handle)
        return handlers

    def reserve_polls(self, reserve: Reserve) -> None:
        """Let history start tasks for polls that wait at this host, see `MatchingService.reserve`."""
        self._matching.reserve_locally(reserve)

    @property
    def starter(self) -> Starter:
        """Starts the tasks that polls get at this host."""
        return start_plainly if self._history is None else self._history.start_task

    async def open_history(self) -> None:
        """Acquire the shards that this host owns, and start replication."""
        if self._history is not None:
            await self._history.open()
            if self._global_namespaces is not None:
                self._global_namespaces.open()

    async def start_frontend(self) -> None:
        """Start to accept calls of SDKs."""
        if self._frontend is not None:
            await self._frontend.start()

    @property
    def rpc(self) -> RpcServer | None:
        """The frontend's gRPC server; None without the frontend role."""
        return None if self._frontend is None else self._frontend.rpc

    def set_able(self, *, is_able: bool) -> None:
        """Report to health checks whether the frontend can serve."""
        if self._frontend is not None:
            self._frontend.set_able(is_able=is_able)

    async def stop_frontend(self, grace_s: float) -> None:
        """Accept no more calls, answer waiting polls empty, and wait for the other calls to end."""
        if self._frontend is not None:
            await self._frontend.stop(grace_s)

    async def close_history(self) -> None:
        """Stop replication and release the shards; pending work is in the store."""
        if self._global_namespaces is not None:
            await self._global_namespaces.stop()
        if self._history is not None:
            await self._history.close()

    async def close(self) -> None:
        """Close everything else, even after a partial start."""
        if self._frontend is not None:
            await self._frontend.stop(0)
        if self._global_namespaces is not None:
            await self._global_namespaces.close()
        await self._deployments.close()
        await self._mover.close()
        await self._namespaces.close()


def _new_id() -> str:
    return str(uuid.uuid4())
