"""The certificate that a peer presented in its TLS handshake."""

import ssl
from typing import Any

from msgspec import Struct

from fairlead.rpc.trust import chain_of, trust_of

# Subject alternative names that identify a peer, by their type in Python's `ssl`.
_NAME_KINDS = frozenset(("DNS", "URI", "IP Address", "email"))
# Short names of the parts of a subject, as in RFC 4514.
_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
}


class PeerCertificate(Struct, frozen=True):
    """A certificate that the TLS layer has verified: its subject, its common name and its alternative names.

    `authorities` are the SHA-256 fingerprints of the authorities in its chain. A host name can have its own
    authorities of clients: `is_of_default` is false if only those accept the certificate.
    """

    subject: str
    common_name: str
    names: tuple[str, ...] = ()
    authorities: tuple[str, ...] = ()
    is_of_default: bool = True

    @property
    def all_names(self) -> tuple[str, ...]:
        """The common name and the alternative names."""
        return (self.common_name, *self.names) if self.common_name else self.names


def peer_certificate(encryption: ssl.SSLObject | None) -> PeerCertificate | None:
    """Certificate of the peer; None without TLS, or if the peer presented none."""
    if encryption is None:
        return None
    # An empty dictionary stands for a certificate that was not verified.
    found: dict[str, Any] | None = encryption.getpeercert()
    if not found:
        return None
    trust = trust_of(encryption)
    chain = None if trust is None else chain_of(encryption)
    parts = [part for relative in found.get("subject", ()) for part in relative]
    return PeerCertificate(
        ",".join(f"{_SHORT.get(kind, kind)}={value}" for kind, value in parts),
        next((value for kind, value in parts if kind == "commonName"), ""),
        tuple(value for kind, value in found.get("subjectAltName", ()) if kind in _NAME_KINDS),
        () if chain is None else chain.fingerprints,
        trust is None or (chain is not None and trust.is_of_default(chain)),
    )
