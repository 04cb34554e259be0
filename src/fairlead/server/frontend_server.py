"""The frontend's gRPC server on one host."""

import asyncio
import ssl
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from fairlead.aio.drain import Drain
from fairlead.console.backend import Backend
from fairlead.console.sampler import Sampler
from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE, Frontend, add_services, answerers
from fairlead.rpc import RpcServer
from fairlead.server.web import http_endpoints
from fairlead.settings.dynamic.connections import CONNECTION_AGE_GRACE, CONNECTION_AGE_MAX
from fairlead.settings.dynamic.quotas import MESSAGE_MEMORY
from fairlead.settings.static.config import DEFAULTS, StaticConfig
from fairlead.telemetry import Metrics

if TYPE_CHECKING:
    # Not imported at run time: only clusters with remote clusters, or servers that skip time, load these modules.
    from fairlead.replication.admission import ClusterAdmission
    from fairlead.replication.endpoint import Endpoint
    from fairlead.time_skipping import Skipper

# Seconds for open calls to end at stop: the long polls are already answered, and all other calls are short.
DRAIN_S_MAX = 2.0


class FrontendServer:
    """Serves a frontend over gRPC, with health and reflection, and over HTTP."""

    def __init__(
        self,
        frontend: Frontend,
        *,
        listen: str,
        listens: bool,
        drain: Drain,
        metrics: Metrics,
        log: FilteringBoundLogger,
        endpoint: "Endpoint | None" = None,
        skipper: "Skipper | None" = None,
        config: StaticConfig = DEFAULTS,
        tls: ssl.SSLContext | None = None,
        http_tls: ssl.SSLContext | None = None,
        admission: "ClusterAdmission | None" = None,
        backend: Backend | None = None,
    ) -> None:
        """`drain` tracks the frontend's waiting calls; `endpoint` answers other clusters, None without such clusters.

        With a `skipper`, the server skips time and also offers Temporal's TestService. Without `listens`, another
        process accepts the connections. The console of the web page reads the `backend`.
        """
        self._rpc = RpcServer(
            listen,
            listens=listens,
            log=log,
            tls=tls,
            memory_bytes_max=lambda: frontend.settings.get(MESSAGE_MEMORY),
            ages_s=lambda: (frontend.settings.get(CONNECTION_AGE_MAX), frontend.settings.get(CONNECTION_AGE_GRACE)),
        )
        self._frontend = frontend
        table = answerers(frontend, metrics)
        self._health = add_services(self._rpc, table, has_reflection=frontend.gate is None)
        self._http = http_endpoints(config, frontend, table, metrics=metrics, log=log, tls=http_tls, backend=backend)
        self._sampler = None if backend is None else Sampler(metrics, backend.series)
        if endpoint is not None:
            endpoint.add_to(self._rpc, admission)
        if skipper is not None:
            from fairlead.time_skipping import add_test_service  # noqa: PLC0415 - see above

            add_test_service(self._rpc, skipper)
        self._skipper = skipper
        self._drain = drain
        self._is_draining = False

    def bind(self) -> str:
        """Bind the socket and return its address."""
        self._frontend.address = self._rpc.bind()
        for endpoint in self._http.values():
            endpoint.bind()
        self._frontend.http_address = self.http_address or ""
        return self._frontend.address

    @property
    def http_address(self) -> str | None:
        """Address of the HTTP API; None without one."""
        return self._http["http"].bind() if "http" in self._http else None

    @property
    def ui_address(self) -> str | None:
        """Address of the web page; None without one."""
        return self._http["ui"].bind() if "ui" in self._http else None

    async def start(self) -> None:
        """Start to accept calls of SDKs, and HTTP."""
        await self._rpc.start()
        for endpoint in self._http.values():
            endpoint.start()
        if self._sampler is not None:
            self._sampler.start()

    @property
    def rpc(self) -> RpcServer:
        """The gRPC server."""
        return self._rpc

    def set_able(self, *, is_able: bool) -> None:
        """Report to health checks whether this frontend can serve."""
        if not self._is_draining:
            for service in ("", WORKFLOW_SERVICE, OPERATOR_SERVICE):
                self._health.set_serving(service, is_serving=is_able)

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, answer long polls, and wait for other calls up to `grace_s` or `DRAIN_S_MAX`."""
        self._is_draining = True
        self._health.close()
        self._rpc.drain()
        for endpoint in self._http.values():
            endpoint.drain()
        self._drain.begin()
        if self._skipper is not None:
            await self._skipper.close()
        if self._sampler is not None:
            await self._sampler.stop()
        within_s = min(grace_s, DRAIN_S_MAX)
        await asyncio.gather(self._rpc.stop(within_s), *(endpoint.stop(within_s) for endpoint in self._http.values()))
