"""All contexts of a process, reread and checked for expiry in the background."""

import asyncio
import fnmatch

from fairlead.core.errors import FairleadError
from fairlead.rpc.tls.client_side import ClientSide
from fairlead.rpc.tls.expiry import Ending, endings
from fairlead.rpc.tls.pem import BadCertificate
from fairlead.rpc.tls.server_side import ALPN_HTTP1, ServerSide
from fairlead.settings.static.tls import ServerTls, TlsConfig
from fairlead.telemetry import CertificateGauges, get_log

_log = get_log("rpc.tls")


class TlsProvider:
    """Contexts by purpose. A side that is not configured is None: its connections are in clear text."""

    def __init__(self, config: TlsConfig, *, metrics: ServerTls | None = None) -> None:
        """Read all certificates; raises `BadCertificate`. `metrics` is the certificate of the metrics endpoint."""
        self._config = config
        frontend, internode = config.frontend, config.internode
        self.frontend = ServerSide(frontend.server, frontend.overrides) if frontend.server.is_on else None
        # For the HTTP API and the web page: the certificates of the frontend.
        self.http = ServerSide(frontend.server, frontend.overrides, alpn=ALPN_HTTP1) if frontend.server.is_on else None
        self.internode = ServerSide(internode.server) if internode.server.is_on else None
        self.metrics = None if metrics is None or not metrics.is_on else ServerSide(metrics, alpn=None)
        # Between hosts, a host uses its server certificate also as a client.
        self.to_hosts = ClientSide(internode.client, internode.server) if internode.client.is_on else None
        self._to_clusters = {
            name: ClientSide(group.client, group.server) for name, group in config.remotes.items() if group.client.is_on
        }
        self._running: list[asyncio.Task[None]] = []
        self._endings: list[Ending] = []

    def to_cluster(self, address: str) -> ClientSide | None:
        """Client side of connections to the frontend of a remote cluster: by HOST:PORT, HOST, or *.DOMAIN."""
        address = address.lower()
        host = address.rpartition(":")[0].strip("[]")
        for name in (address, host):
            if name in self._to_clusters:
                return self._to_clusters[name]
        return next((side for name, side in self._to_clusters.items() if fnmatch.fnmatchcase(host, name)), None)

    def start(self) -> None:
        """Start to read changed files and to check the expiry."""
        if self._sides() and self._config.refresh_s:
            self._running.append(asyncio.create_task(self._refresh_forever()))
        if self._sides() and self._config.check_s:
            self._running.append(asyncio.create_task(self._check_forever()))

    async def close(self) -> None:
        """Stop to reread files and to check the expiry."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def refresh(self) -> None:
        """Read changed files. A file that can't be used is logged, and the last good certificates stay."""
        for side in self._sides():
            try:
                if side.refresh():
                    _log.info("certificates reread", certificates=[pem.shown for pem in side.pems()])
                    await self._check()
            except FairleadError as failure:
                _log.error("certificates not reread, keeping the last good ones", reason=str(failure))

    def gauges(self) -> list[CertificateGauges]:
        """Number of certificates that have expired, and of those that expire soon; empty without TLS."""
        if not self._sides():
            return []
        warning_s = self._config.warning_s
        left_s = [ending.left_s for ending in self._endings]
        return [
            CertificateGauges(
                expired=sum(1 for left in left_s if left <= 0),
                expiring=sum(1 for left in left_s if 0 < left <= warning_s),
                next_end_s=min(left_s) if left_s else None,
            )
        ]

    def _sides(self) -> list[ServerSide | ClientSide]:
        found = (self.frontend, self.http, self.internode, self.metrics, self.to_hosts, *self._to_clusters.values())
        return [side for side in found if side is not None]

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.refresh_s)
            await self.refresh()

    async def _check_forever(self) -> None:
        while True:
            await self._check()
            await asyncio.sleep(self._config.check_s)

    async def _check(self) -> None:
        """Find out when each certificate ends, and log those that end soon."""
        pems = [pem for side in self._sides() for pem in side.pems()]
        try:
            self._endings = await asyncio.to_thread(endings, pems)
        except (BadCertificate, ValueError) as wrong:
            _log.error("expiry of certificates not checked", reason=str(wrong))
            return
        warning_s, error_s = self._config.warning_s, self._config.error_s
        for ending in self._endings:
            left_s = ending.left_s
            if left_s > warning_s:
                break
            say = _log.error if left_s <= error_s else _log.warning
            event = "certificate has expired" if left_s <= 0 else "certificate expires soon"
            say(event, certificate=ending.shown, subject=ending.subject, days_left=round(left_s / 86_400, 1))
