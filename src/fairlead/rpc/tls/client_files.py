"""The client side of TLS from file names, for commands and clients."""

from pathlib import Path

from fairlead.rpc.tls.client_side import ClientSide
from fairlead.settings.static.tls import ClientTls, Pem, ServerTls


def client_side(
    *,
    authorities: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    server_name: str = "",
) -> ClientSide:
    """Read the files; raises `BadCertificate`. Without `authorities`, those of this machine are trusted."""
    config = ClientTls(
        server_name=server_name, authorities=() if authorities is None else (Pem(authorities),), is_forced=True
    )
    if certificate is None or key is None:
        return ClientSide(config)
    return ClientSide(config, ServerTls(Pem(certificate), Pem(key)))
