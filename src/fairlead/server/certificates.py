"""Reads the certificates of a process."""

from typing import TYPE_CHECKING

from fairlead.settings.static.config import StaticConfig
from fairlead.settings.static.tls import TlsConfig

if TYPE_CHECKING:
    from fairlead.rpc.tls import TlsProvider


def read_certificates(config: StaticConfig) -> "TlsProvider | None":
    """Read the configured certificates; None if there are none."""
    if config.security.tls == TlsConfig() and not config.metrics_tls.is_on:
        return None
    # Imported late: a server without TLS doesn't need it.
    from fairlead.rpc.tls import TlsProvider  # noqa: PLC0415

    return TlsProvider(config.security.tls, metrics=config.metrics_tls)
