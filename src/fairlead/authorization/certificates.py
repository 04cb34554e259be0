"""Claims from client certificates, by their names in the configuration."""

from collections.abc import Sequence

from fairlead.authorization.claims import Claims, with_permissions
from fairlead.rpc.certificate import PeerCertificate
from fairlead.settings.static.authorization import CertificateGrant


class CertificateClaims:
    """The configured claims of certificates, by common name or alternative name."""

    def __init__(self, grants: Sequence[CertificateGrant]) -> None:
        self._claims = {
            grant.name: with_permissions(
                grant.name,
                grant.permissions,
                kind="cluster" if grant.cluster else "certificate",
                cluster=grant.cluster,
            )
            for grant in grants
        }

    def claims(self, certificate: PeerCertificate) -> Claims | None:
        """The claims of a verified certificate; None if none of its names is configured."""
        return next((self._claims[name] for name in certificate.all_names if name in self._claims), None)
