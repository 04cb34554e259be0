"""Claims from client certificates, by their names in the configuration and the authorities that have signed them."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.authorization.claims import Claims, with_permissions
from fairlead.core.errors import FairleadError
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.tls.pem import BadCertificate, read_pem
from fairlead.rpc.trust import Unreadable, fingerprints_of
from fairlead.settings.static.authorization import CertificateGrant
from fairlead.settings.static.tls import Pem
from fairlead.telemetry import get_log

# Seconds until the files of authorities are read again.
REFRESH_S: Final = 60.0

_log = get_log("authorization.certificates")


class CertificateClaims:
    """The configured claims of certificates, by common name or alternative name.

    A grant that names authorities is for certificates that one of them has signed. Any other grant is for certificates
    of the authorities that count for every host name: a host name with authorities of its own may belong to a tenant,
    who must not sign itself the name of an operator.
    """

    def __init__(self, grants: Sequence[CertificateGrant], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files of authorities; raises `BadCertificate`."""
        self._clock = clock
        self._read_s = clock()
        self._files = {file: _read(file) for grant in grants for file in grant.authority_files}
        self._grants = {
            grant.name: (
                grant,
                with_permissions(
                    grant.name,
                    grant.permissions,
                    kind="cluster" if grant.cluster else "certificate",
                    cluster=grant.cluster,
                ),
            )
            for grant in grants
        }

    def claims(self, certificate: PeerCertificate) -> Claims | None:
        """The claims of a verified certificate; None if none of its names is configured for its authority."""
        for name in certificate.all_names:
            found = self._grants.get(name)
            if found is not None and self._is_for(found[0], certificate):
                return found[1]
        return None

    def _is_for(self, grant: CertificateGrant, certificate: PeerCertificate) -> bool:
        if not grant.authorities and not grant.authority_files:
            return certificate.is_of_default
        self._refresh()
        accepted = set(grant.authorities).union(*(self._files[file] for file in grant.authority_files))
        return not accepted.isdisjoint(certificate.authorities)

    def _refresh(self) -> None:
        """Read the files again when it is time; the last good authorities stay if a file can't be used."""
        now_s = self._clock()
        if not self._files or now_s - self._read_s < REFRESH_S:
            return
        self._read_s = now_s
        for file in self._files:
            try:
                self._files[file] = _read(file)
            except FairleadError as failure:
                _log.error("authorities of certificates not reread, keeping the last good ones", reason=str(failure))


def _read(file: Pem) -> frozenset[str]:
    try:
        found = fingerprints_of(read_pem(file))
    except Unreadable as wrong:
        raise BadCertificate(f"authorities {file.shown} can't be used: {wrong}") from None
    if not found:
        raise BadCertificate(f"authorities {file.shown} can't be used: the file has no certificate")
    return found
