"""Authorities of client certificates: which chains they accept, now and after their files have changed."""

import ssl
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from fairlead.core.errors import FixRequest

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# Maximum number of authorities' certificates whose facts are cached.
_KNOWN_MAX: Final = 1_024
# Chains of TLS 1.2 sessions that may be resumed, about 1 kB each; a client of a forgotten one connects anew.
_SESSIONS_MAX: Final = 10_000
# Certificates of a chain; OpenSSL accepts 100.
CHAIN_MAX: Final = 100


# Chains by the session's id, oldest first.
_chains: "dict[bytes, Chain]" = {}


class Unreadable(FixRequest):
    """A certificate can't be decoded."""


class _Facts(NamedTuple):
    """Facts of one certificate. A renewed certificate of an authority with the same key has the same identity."""

    fingerprint: str
    identity: bytes
    ends_s: float


class Chain(Struct, frozen=True):
    """The verified chain of a client certificate: its authorities, and the time in seconds since 1970 of its end.

    `fingerprints` are SHA-256 of the certificates of the authorities, as hexadecimal text.
    """

    fingerprints: tuple[str, ...]
    identities: frozenset[bytes]
    ends_s: float


class Trust:
    """The authorities of clients that connect by one host name. `default` has those of all other host names.

    The authorities are replaced when their files change; open connections ask again whether their chain is accepted.
    """

    def __init__(self, default: "Trust | None" = None, *, clock: Callable[[], float] = time.time) -> None:
        self._default = default
        self._clock = clock
        self._identities: frozenset[bytes] = frozenset()

    def use(self, identities: frozenset[bytes]) -> None:
        """Accept the authorities with these identities from now on, and no others."""
        self._identities = identities

    def accepts(self, chain: Chain) -> bool:
        """Whether the chain has not ended, and one of its authorities is accepted."""
        return self._clock() < chain.ends_s and not self._identities.isdisjoint(chain.identities)

    def has_withdrawn(self, chain: Chain) -> bool:
        """Whether none of the chain's authorities is accepted any more."""
        return self._identities.isdisjoint(chain.identities)

    def is_of_default(self, chain: Chain) -> bool:
        """Whether the authorities of all other host names accept the chain, too."""
        return self._default is None or not self._default.has_withdrawn(chain)


class TrustingContext(ssl.SSLContext):
    """A server-side context that knows its authorities of clients: connections ask it again while they are open."""

    trust: Trust | None = None

    def check_of(self, encryption: ssl.SSLObject) -> Callable[[], bool]:
        """A function that tells whether the certificate of a connection's client still counts."""
        trust = self.trust
        if trust is None or not encryption.getpeercert():
            return lambda: True
        chain = chain_of(encryption)
        # A chain that is not known can't be checked.
        return (lambda: False) if chain is None else (lambda: trust.accepts(chain))


def trust_of(encryption: ssl.SSLObject | None) -> Trust | None:
    """The authorities of the context that the handshake used; None without any."""
    context = None if encryption is None else encryption.context
    return context.trust if isinstance(context, TrustingContext) else None


def chain_of(encryption: ssl.SSLObject) -> Chain | None:
    """The verified chain of the client's certificate; None if the client has presented none, or if it is unreadable."""
    session_id = _session_id(encryption)
    if encryption.session_reused:
        # The handshake of a resumed session carries no certificates: they are those of its first connection.
        return _chains.get(session_id)
    ders = _verified_chain(encryption)
    if not ders:
        return None
    try:
        ends_s = _ends_s(ders[0])
        # A certificate that is an authority of its own is the whole chain.
        authorities = [_facts(der) for der in ders[1:CHAIN_MAX] or ders]
    except Unreadable:
        return None
    chain = Chain(
        tuple(each.fingerprint for each in authorities),
        frozenset(each.identity for each in authorities),
        min(ends_s, *(each.ends_s for each in authorities)),
    )
    if session_id:
        _chains[session_id] = chain
        while len(_chains) > _SESSIONS_MAX:
            del _chains[next(iter(_chains))]
    return chain


def _session_id(encryption: ssl.SSLObject) -> bytes:
    """The id by which a client can resume the session; empty for TLS 1.3, where this server offers no resumption."""
    session = encryption.session if encryption.version() == "TLSv1.2" else None
    return b"" if session is None else session.id


def identities_of(text: bytes) -> frozenset[bytes]:
    """The identities of the authorities in a PEM text; raises `Unreadable`."""
    return frozenset(_facts(der).identity for der in _certificates_of(text))


def fingerprints_of(text: bytes) -> frozenset[str]:
    """The SHA-256 fingerprints of the certificates in a PEM text, as hexadecimal text; raises `Unreadable`."""
    return frozenset(sha256(der).hexdigest() for der in _certificates_of(text))


def _certificates_of(text: bytes) -> list[bytes]:
    # Imported late: the library takes a while to load, and only servers with client certificates need it.
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415

    try:
        return [each.public_bytes(Encoding.DER) for each in load_pem_x509_certificates(text)]
    except ValueError as wrong:
        raise Unreadable(str(wrong)) from None


def _verified_chain(encryption: ssl.SSLObject) -> list[bytes]:
    known: Any = encryption
    if hasattr(known, "get_verified_chain"):
        # From Python 3.13 on.
        return list(known.get_verified_chain())
    # Earlier, only the object behind it has the method, and the certificates are objects.
    chain = known._sslobj.get_verified_chain() or []  # noqa: SLF001
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain]


def _ends_s(der: bytes) -> float:
    return _loaded(der).not_valid_after_utc.timestamp()


def _loaded(der: bytes) -> "Certificate":
    from cryptography.x509 import load_der_x509_certificate  # noqa: PLC0415

    try:
        return load_der_x509_certificate(der)
    except ValueError as wrong:
        raise Unreadable(str(wrong)) from None


def _read_facts(der: bytes) -> _Facts:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415

    read = _loaded(der)
    try:
        key = read.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        # Its key can't be read: a renewed certificate counts as another authority.
        key = der
    identity = sha256(read.subject.public_bytes() + key).digest()
    return _Facts(sha256(der).hexdigest(), identity, read.not_valid_after_utc.timestamp())


# The cache has authorities only: each client has another certificate, but few authorities sign them.
_facts = lru_cache(maxsize=_KNOWN_MAX)(_read_facts)
