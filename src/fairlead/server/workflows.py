"""The history service and the frontend of one host: made for its roles, and opened and closed in order."""

import random
import re
import time
import uuid
from functools import partial
from typing import Self

from fairlead.cluster.calls import Caller, Handlers
from fairlead.cluster.ring import RingView
from fairlead.frontend import Frontend, read_cluster_id
from fairlead.history.client import HistoryClient
from fairlead.history.deployments import Deployments
from fairlead.history.deployments.moving import Mover
from fairlead.history.journaling import HistoryJournal
from fairlead.history.namespaces import Namespaces
from fairlead.history.pushing import leave_sticky
from fairlead.history.refusals import Refused
from fairlead.history.service import HistoryService
from fairlead.history.state.errors import BadRequest, Busy, NotPending, RunClosed
from fairlead.journal import Journal
from fairlead.matching.client import MatchingClient
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.starting import NotStarted
from fairlead.server.bootstrap import ensure_namespaces, fix_cluster, fix_shards
from fairlead.server.frontend_server import Drain, DrainingCaller, DrainingHistory, FrontendServer
from fairlead.server.sharing import SHARED_NAMESPACES_REFRESH_S, SharedNamespaces, open_registry
from fairlead.settings import DynamicSettings
from fairlead.settings.static import MemoryConfig, PostgresConfig, Role, SqliteConfig, StaticConfig
from fairlead.storage.history_contract import HistoryStore
from fairlead.telemetry import Metrics, get_log

# Those that a caller at another host must tell from others of their kind.
HISTORY_ERRORS = (Refused, NotPending, RunClosed, BadRequest, Busy)

# So soon all hosts of a cluster know of a change of a namespace.
NAMESPACES_REFRESH_S = 5.0

# How the payload of each task begins that the history service gives to matching: an array whose first element says so.
_HISTORYS = re.compile(rb"[\x90-\x9f][\xa0-\xbf]Matched")

# As GetClusterInfo tells it.
_STORE_NAMES = {MemoryConfig: "memory", SqliteConfig: "sqlite", PostgresConfig: "postgres12"}


class Workflows:
    """What a host with the history or the frontend role has beside the ring and matching."""

    def __init__(
        self,
        *,
        namespaces: Namespaces,
        deployments: Deployments,
        mover: Mover,
        history: HistoryService | None,
        frontend: FrontendServer | None,
        sharing: SharedNamespaces | None,
    ) -> None:
        """Use `make`."""
        self._namespaces = namespaces
        self._deployments = deployments
        self._mover = mover
        self._history = history
        self._frontend = frontend
        self._sharing = sharing
        self.frontend_address: str | None = None

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
        journal: Journal | None = None,
    ) -> Self:
        """Make the services. The store has what it needs from now on, and the frontend has its address."""
        shards = await fix_shards(store, config)
        await fix_cluster(store, config)
        cluster_id = await read_cluster_id(store)
        # Where a namespace is active may change at any time, in any cluster.
        refresh_s = NAMESPACES_REFRESH_S if config.cluster is None else SHARED_NAMESPACES_REFRESH_S
        namespaces = Namespaces(store, clock=time.time, refresh_s=refresh_s)
        await ensure_namespaces(namespaces, config.namespaces, new_id=_new_id, now_ns=time.time_ns())
        registry = None if config.cluster is None else await open_registry(store, config.cluster)
        matching = MatchingClient(caller, ring, settings=settings, clock=time.time, random=random.random)
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
                else HistoryJournal(journal, with_payloads=config.journal.has_payloads),
                clusters=None if registry is None else registry.clusters,
            )
            client = history.client
        sharing = None
        if registry is not None:
            sharing = SharedNamespaces(
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
            )
        frontend: FrontendServer | None = None
        if Role.FRONTEND in config.roles:
            drain = Drain()
            polls = DrainingCaller(caller, drain)
            behind = Frontend(
                namespaces=namespaces,
                history=DrainingHistory(client, drain),
                matching=MatchingClient(polls, ring, settings=settings, clock=time.time, random=random.random),
                operator=OperatorClient(caller, ring, random=random.random),
                store=store,
                settings=settings,
                clock=time.time,
                cluster_name=config.cluster_name,
                cluster_id=cluster_id,
                sharing=None if sharing is None else sharing.of_frontend,
                redirection=None if sharing is None else sharing.redirection(drain),
                shard_count=shards,
                store_name=_STORE_NAMES[type(config.store)],
                worker_gone=partial(leave_sticky, matching, client),
                shared_deployments=deployments,
            )
            frontend = FrontendServer(
                behind,
                listen=str(config.frontend_listen),
                drain=drain,
                metrics=metrics,
                log=get_log("frontend"),
                endpoint=None if sharing is None else sharing.endpoint(cluster_id, drain),
            )
        made = cls(
            namespaces=namespaces,
            deployments=deployments,
            mover=mover,
            history=history,
            frontend=frontend,
            sharing=sharing,
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
        """What this host answers to others."""
        handlers = Handlers() if self._history is None else self._history.handlers()
        if self._sharing is not None:
            for method, handle in self._sharing.handlers():
                handlers.add(method, handle)
        return handlers

    async def start_task(self, payload: bytes, identity: str, worker: bytes) -> bytes | NotStarted:
        """Start a task that matching gives to a poll. One that no workflow has made is the poll's as it is."""
        if self._history is None or not is_of_history(payload):
            return payload
        return await self._history.start_task(payload, identity, worker)

    async def open_history(self) -> None:
        """Take the shards that are this host's."""
        if self._history is not None:
            await self._history.open()
            if self._sharing is not None:
                self._sharing.open()

    async def start_frontend(self) -> None:
        """Let SDKs in."""
        if self._frontend is not None:
            await self._frontend.start()

    def set_able(self, *, is_able: bool) -> None:
        """Tell those who ask for the frontend's health whether it is able to serve."""
        if self._frontend is not None:
            self._frontend.set_able(is_able=is_able)

    async def stop_frontend(self, grace_s: float) -> None:
        """Answer the polls, empty, then let the other calls end, and let nobody in any more."""
        if self._frontend is not None:
            await self._frontend.stop(grace_s)

    async def close_history(self) -> None:
        """Let go of the shards; what is to be done is in the store."""
        if self._sharing is not None:
            await self._sharing.stop()
        if self._history is not None:
            await self._history.close()

    async def close(self) -> None:
        """Close what is left, whether or not the rest was opened."""
        if self._frontend is not None:
            await self._frontend.stop(0)
        if self._sharing is not None:
            await self._sharing.close()
        await self._deployments.close()
        await self._mover.close()
        await self._namespaces.close()


def is_of_history(payload: bytes) -> bool:
    """Whether a task was made by a workflow, and not by a client of matching."""
    return _HISTORYS.match(payload) is not None


def _new_id() -> str:
    return str(uuid.uuid4())
