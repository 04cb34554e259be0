"""Credentials: headers and a certificate that authenticate the caller."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fairlead.rpc.client import ClientTls

if TYPE_CHECKING:
    from fairlead.rpc.tls.client_side import ClientSide

# Header with which a host of a cluster proves that it knows the cluster's secret.
SECRET_HEADER: Final = "fairlead-internode-secret"  # noqa: S105 - the name of a header
AUTHORIZATION_HEADER: Final = "authorization"
# Header that names the caller of a forwarded call; accepted only from an authenticated cluster.
PRINCIPAL_HEADER: Final = "fairlead-principal"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Headers of every call, and the client side of TLS; None for connections in clear text."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: "ClientSide | None" = None

    @property
    def channel_tls(self) -> ClientTls | None:
        """TLS of a channel: each new connection uses the certificates of that moment."""
        side = self.tls
        return None if side is None else ClientTls(lambda: side.context, side.server_name or None)


ANONYMOUS: Final = Credentials()


def with_secret(secret: str, tls: "ClientSide | None" = None) -> Credentials:
    """Credentials of a host of the cluster."""
    return Credentials(((SECRET_HEADER, secret),) if secret else (), tls)


def with_api_key(api_key: str, tls: "ClientSide | None" = None) -> Credentials:
    """Credentials of a client with an API key or a token."""
    return Credentials(((AUTHORIZATION_HEADER, f"Bearer {api_key}"),) if api_key else (), tls)
