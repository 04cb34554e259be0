"""The client side of TLS: the authorities that a process trusts, and the certificate that it presents."""

import ssl
from collections.abc import Callable

from fairlead.rpc.tls.pem import joined, load_authorities, load_chain, read_pem
from fairlead.rpc.tls.server_side import ALPN_H2
from fairlead.settings.static.tls import ClientTls, Pem, ServerTls


class ClientSide:
    """Gives connections to one kind of server their context, and reads changed files again."""

    def __init__(self, config: ClientTls, own: ServerTls | None = None) -> None:
        """Read all certificates; raises `BadCertificate`. `own` is the certificate for servers that ask for one."""
        self.server_name = config.server_name
        self.verifies_host = config.verifies_host
        self._config = config
        self._own = own if own is not None and own.is_on else None
        self._texts: tuple[bytes, ...] = ()
        self._listeners: list[Callable[[], None]] = []
        # PEM of the authorities, of the own certificate and of the own key; empty if not configured.
        self.authorities = b""
        self.certificate = b""
        self.key = b""
        self.refresh()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._context

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after the certificates have changed: new connections should replace the open ones."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Call `listener` no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def pems(self) -> list[Pem]:
        """All certificates, without the keys."""
        own = [] if self._own is None or self._own.certificate is None else [self._own.certificate]
        return [*own, *self._config.authorities]

    def refresh(self) -> bool:
        """Read the files again, and return whether anything has changed. If this raises `BadCertificate`, it has
        changed nothing.
        """
        authorities = joined(self._config.authorities)
        certificate = key = b""
        if self._own is not None and self._own.certificate is not None and self._own.key is not None:
            certificate, key = read_pem(self._own.certificate), read_pem(self._own.key)
        if (authorities, certificate, key) == self._texts:
            return False
        self._context = self._made(authorities, certificate, key)
        self._texts = (authorities, certificate, key)
        self.authorities, self.certificate, self.key = authorities, certificate, key
        for listener in tuple(self._listeners):
            listener()
        return True

    def _made(self, authorities: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([ALPN_H2])
        if not self.verifies_host:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if authorities:
            load_authorities(context, authorities, shown=", ".join(pem.shown for pem in self._config.authorities))
        elif self.verifies_host:
            context.load_default_certs()
        if certificate and self._own is not None and self._own.certificate is not None:
            load_chain(context, certificate, key, shown=self._own.certificate.shown)
        return context
