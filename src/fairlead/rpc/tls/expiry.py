"""Expiry of certificates."""

import time
from collections.abc import Iterable
from typing import NamedTuple

from fairlead.rpc.tls.pem import read_pem
from fairlead.settings.static.tls import Pem


class Ending(NamedTuple):
    """A certificate: its location, its subject, and its expiry in seconds since 1970."""

    shown: str
    subject: str
    ends_s: float

    @property
    def left_s(self) -> float:
        """Seconds until the end; negative after it."""
        return self.ends_s - time.time()


def endings(pems: Iterable[Pem]) -> list[Ending]:
    """The end of each certificate, the first to end first; raises `BadCertificate` or ValueError."""
    # Imported late: the library takes a while to load, and only servers with TLS need it.
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415

    found = {
        Ending(pem.shown, certificate.subject.rfc4514_string(), certificate.not_valid_after_utc.timestamp())
        for pem in pems
        for certificate in load_pem_x509_certificates(read_pem(pem))
    }
    return sorted(found, key=lambda ending: ending.ends_s)
