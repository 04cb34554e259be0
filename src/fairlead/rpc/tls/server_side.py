"""The server side of TLS: one context for a listening socket, whose certificates can be replaced while it listens."""

import ssl
from collections.abc import Mapping
from typing import Final

from fairlead.rpc.tls.pem import BadCertificate, joined, load_authorities, load_chain, read_pem
from fairlead.rpc.trust import Trust, TrustingContext, Unreadable, identities_of
from fairlead.settings.static.tls import Pem, ServerTls

ALPN_H2: Final = "h2"
ALPN_HTTP1: Final = "http/1.1"


class ServerSide:
    """Gives a listening socket its context. Each handshake uses the certificates of that moment, by host name.

    Established connections keep the server certificate with which they began. Those of clients end when their
    certificates end or their authorities are withdrawn: `Connection.check` asks the context's `Trust`.
    """

    def __init__(
        self, config: ServerTls, overrides: Mapping[str, ServerTls] | None = None, *, alpn: str | None = ALPN_H2
    ) -> None:
        """Read all certificates; raises `BadCertificate`. `overrides` are by host name in lower case."""
        self._config = config
        self._overrides = dict(overrides or {})
        self._alpn = alpn
        self._texts: tuple[bytes, ...] = ()
        self._by_name: Mapping[str, ssl.SSLContext] = {}
        self._trust = Trust()
        self._trusts = {name: Trust(self._trust) for name in self._overrides}
        self._default: ssl.SSLContext = _context(config, alpn, self._trust)
        self.context: ssl.SSLContext = _context(config, alpn, self._trust)
        self.context.sni_callback = self._choose
        sides = (config, *self._overrides.values())
        # The handshake decides whether to request a client certificate before it knows the host name: so it requests
        # one if any of the contexts needs one. The connection checks what its own context requires.
        if any(side.client_authorities for side in sides):
            is_always = all(side.requires_client for side in sides)
            self.context.verify_mode = ssl.CERT_REQUIRED if is_always else ssl.CERT_OPTIONAL
        self.refresh()

    def pems(self) -> list[Pem]:
        """All certificates, without the keys."""
        sides = (self._config, *self._overrides.values())
        certificates = [side.certificate for side in sides if side.certificate is not None]
        return [*certificates, *(pem for side in sides for pem in side.client_authorities)]

    def refresh(self) -> bool:
        """Read the files again, and return whether anything has changed. If this raises `BadCertificate`, it has
        changed nothing.
        """
        sides = (self._config, *self._overrides.values())
        texts = tuple(read_pem(pem) for side in sides for pem in _all_of(side))
        if texts == self._texts:
            return False
        default = _context(self._config, self._alpn, self._trust)
        by_name = {name: _context(side, self._alpn, self._trusts[name]) for name, side in self._overrides.items()}
        authorities = [(self._trust, _authorities(self._config))]
        authorities += [(self._trusts[name], _authorities(side)) for name, side in self._overrides.items()]
        # Nothing fails from here on.
        for trust, found in authorities:
            trust.use(found)
        self._default, self._by_name, self._texts = default, by_name, texts
        return True

    def _choose(self, handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        handshake.context = self._by_name.get((name or "").lower(), self._default)


def _all_of(side: ServerTls) -> list[Pem]:
    return [pem for pem in (side.certificate, side.key, *side.client_authorities) if pem is not None]


def _authorities(side: ServerTls) -> frozenset[bytes]:
    found: set[bytes] = set()
    for pem in side.client_authorities:
        try:
            found |= identities_of(read_pem(pem))
        except Unreadable as wrong:
            raise BadCertificate(f"authorities {pem.shown} can't be used: {wrong}") from None
    return frozenset(found)


def _context(side: ServerTls, alpn: str | None, trust: Trust) -> TrustingContext:
    context = TrustingContext(ssl.PROTOCOL_TLS_SERVER)
    context.trust = trust if side.client_authorities else None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would skip the check of the client's certificate against the present authorities.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    if side.certificate is not None and side.key is not None:
        load_chain(context, read_pem(side.certificate), read_pem(side.key), shown=side.certificate.shown)
    if side.client_authorities:
        shown = ", ".join(pem.shown for pem in side.client_authorities)
        load_authorities(context, joined(side.client_authorities), shown=shown)
        context.verify_mode = ssl.CERT_REQUIRED if side.requires_client else ssl.CERT_OPTIONAL
    return context
