"""Authentication and authorization of one process: creates their parts, opens and closes them in order."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from fairlead.authorization.api_keys import ApiKeys
from fairlead.authorization.audit import Audit
from fairlead.authorization.authorizer import Authorizer, DefaultAuthorizer
from fairlead.authorization.claims import ClaimMapper
from fairlead.authorization.gate import Gate
from fairlead.authorization.host_methods import HostAdmission
from fairlead.authorization.json_web_keys import KeySource
from fairlead.authorization.json_web_tokens import JwtClaimMapper
from fairlead.authorization.messages import KeyAdmin
from fairlead.authorization.plugins import make_authorizer, make_claim_mapper
from fairlead.journal import Journal
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.hosts.caller import Handlers
from fairlead.server.host import is_of_history
from fairlead.settings import DynamicSettings
from fairlead.settings.static.authorization import DEFAULT
from fairlead.settings.static.security import SecurityConfig
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import Metrics


class Guard:
    """The gates of a process: `frontend` for SDKs and clusters, `hosts` for the host's own port.

    Without an authorizer there is no gate for SDKs. The host's own port has a gate if hosts authenticate themselves.
    """

    def __init__(
        self,
        config: SecurityConfig,
        *,
        store: HistoryStore,
        settings: DynamicSettings,
        metrics: Metrics,
        audit: Audit,
    ) -> None:
        """Raises if the configured claim mapper or authorizer can't be made."""
        self.audit = audit
        self._api_keys = ApiKeys(store)
        self._store = store
        self._closing = AsyncExitStack()
        self._key_source: KeySource | None = None
        authorization = config.authorization
        mapper: ClaimMapper | None = make_claim_mapper(authorization)
        if authorization.claim_mapper == DEFAULT:
            mapper = self._jwt_mapper(config)
        authorizer: Authorizer = make_authorizer(authorization) if authorization.is_on else DefaultAuthorizer()

        def gate(secret: str, is_host: Callable[[PeerCertificate], bool]) -> Gate:
            return Gate(
                authorization,
                authorizer=authorizer,
                mapper=mapper,
                api_keys=self._api_keys,
                settings=settings,
                metrics=metrics,
                secret=secret,
                is_host=is_host,
                on_decision=audit.record,
            )

        # Hosts call each other at their own ports only: their secret opens no other port.
        self.frontend = gate("", lambda _: False) if authorization.is_on else None
        # On the host's own port, the TLS layer has verified that a certificate is of the hosts' authority.
        of_hosts = gate(config.secret, lambda _: config.has_host_certificates)
        self.hosts = HostAdmission(of_hosts, is_reserved=is_of_history)

    async def open(self) -> Self:
        """Read the keys. If this raises, everything is closed again."""
        try:
            await self._api_keys.open()
            self._closing.push_async_callback(self._api_keys.close)
            if self._key_source is not None:
                self._closing.push_async_callback(self._key_source.close)
                await self._key_source.open()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def close(self) -> None:
        """Stop refreshing keys."""
        await self._closing.aclose()

    def handlers(self) -> Handlers:
        """Handlers of `fairlead admin key`."""
        return KeyAdmin(self._store, on_change=self._api_keys.refresh).handlers()

    def _jwt_mapper(self, config: SecurityConfig) -> JwtClaimMapper:
        authorization = config.authorization
        source = self._key_source = KeySource(authorization.key_sources, refresh_s=authorization.keys_refresh_s)
        mapper = JwtClaimMapper(
            source,
            permissions_claim=authorization.permissions_claim,
            permissions_regex=authorization.permissions_regex,
            audience=authorization.audience,
        )
        source.on_change(mapper.forget)
        return mapper


async def open_guard(
    config: SecurityConfig,
    *,
    store: HistoryStore,
    settings: DynamicSettings,
    metrics: Metrics,
    journal: Journal | None,
    host: str,
) -> Guard:
    """Make the gates of a host and read the keys; decisions go to the audit in the journal."""
    audit = Audit(None if journal is None else journal.audit(), host=host)
    return await Guard(config, store=store, settings=settings, metrics=metrics, audit=audit).open()
